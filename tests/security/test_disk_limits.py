"""A task that fills its node's disk is ended before others suffer, says why, and gives its room back."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from node_lab import EngineLab, Watched, launch_of, node_in, small_disk

from trainyard.engines.api import NodeSeen, TaskEnded, TaskNoted, View, launch_one
from trainyard.engines.nodes.agent.readings.disk_usage import folder_use, held_bytes
from trainyard.lib.errors import CapacityError
from trainyard.lib.remove_tree import remove_tree

VIEWS = [None, View()] if shutil.which("bwrap") else [None]
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="mounting needs root")


def refusal(server: Watched) -> str:
    return [one for one in server.seen if isinstance(one, NodeSeen)][-1].facts.refusal


async def begin(lab: EngineLab, server: Watched, attempt: str, command: str = "true") -> None:
    """A task that lives on."""
    await lab.launch(server, launch_of(f"{command}; echo up; exec sleep 1000", attempt))
    await server.until(lambda: b"up" in server.log(attempt), "it is up")


@pytest.mark.parametrize("view", VIEWS)
async def test_only_the_task_that_uses_more_disk_than_its_own_is_ended(hostile_path: Path, view: View | None):
    async with node_in(hostile_path) as lab:
        server = await lab.start()
        await begin(lab, server, "w2.1", "head -c 20000000 /dev/zero > file")
        place = "/tmp/file" if view else "file"
        command = f"head -c 60000000 /dev/zero > {place}; exec sleep 1000"
        await lab.launch(server, launch_of(command, disk_mib=40, view=view))
        ended = await server.ended("w1.1")
        assert (ended.exit_code, ended.signal, ended.was_told) == (137, 9, False)
        assert ended.message.startswith("disk: it used more than its 40 MiB of the node's disk, ")
        folder = lab.root() / "tasks/w1.1/worker-0"
        assert not (folder / "work").exists()
        assert not (folder / "tmp").exists()
        assert not server.find(TaskEnded, "w2.1")


async def test_a_file_that_was_deleted_and_is_held_open_counts(hostile_path: Path):
    async with node_in(hostile_path) as lab:
        server = await lab.start()
        script = "exec 5> file; rm file; head -c 60000000 /dev/zero >&5; exec sleep 1000"
        await lab.launch(server, launch_of(script, disk_mib=40))
        assert (await server.ended("w1.1")).message.startswith("disk: it used more than its 40 MiB")


async def test_what_a_task_prints_counts_when_no_server_takes_it(hostile_path: Path):
    async with node_in(hostile_path) as lab:
        server = await lab.start()
        await lab.launch(
            server,
            launch_of(
                "echo up; while [ ! -e ~/go ]; do sleep 0.1; done; head -c 60000000 /dev/zero; exec sleep 1000",
                disk_mib=40,
            ),
        )
        await server.until(lambda: server.log("w1.1"), "it is up")
        pid = lab.supervisor_pid("w1.1")
        await lab.stop(server, leaves=False)
        (lab.home / "go").touch()
        state = lab.root() / "tasks/w1.1/worker-0/state"
        await server.until(lambda: "cleared" in state.read_text(), f"{pid} has ended it")
        server = await lab.start(epoch=2)
        assert (await server.ended("w1.1")).message.startswith("disk: it used more than its 40 MiB")


async def test_a_task_that_ends_by_itself_keeps_its_own_verdict_when_it_used_much(hostile_path: Path):
    async with node_in(hostile_path) as lab:
        server = await lab.start()
        await lab.launch(server, launch_of("head -c 1000000 /dev/zero > file; exit 4", disk_mib=40))
        ended = await server.ended("w1.1")
        assert (ended.exit_code, ended.message) == (4, "")


@needs_root
async def test_the_task_that_uses_most_is_ended_when_less_is_free_than_the_reserve(hostile_path: Path):
    with small_disk(hostile_path / "small", 100) as small:
        async with node_in(small) as lab:
            lab.disk_reserve_mib = 1024  # of a disk as small as this, 5 %
            server = await lab.start()
            assert refusal(server) == ""
            await begin(lab, server, "w1.1", "head -c 20000000 /dev/zero > file")
            await lab.launch(server, launch_of("cat /dev/zero > file; exec sleep 1000", "w2.1"))
            ended = await server.ended("w2.1")
            assert ended.message.startswith(
                "disk: the node's disk was full, and no other task used more of it: "
            )
            assert (ended.exit_code, ended.was_told) == (137, False)
            assert not server.find(TaskEnded, "w1.1")
            await server.until(lambda: refusal(server) == "", "it takes tasks again")
            await lab.launch(server, launch_of("exit 3", "w3.1"))
            assert (await server.ended("w3.1")).exit_code == 3


@needs_root
async def test_files_of_a_task_that_is_over_go_first_when_they_are_the_largest(hostile_path: Path):
    with small_disk(hostile_path / "small", 100) as small:
        async with node_in(small) as lab:
            lab.disk_reserve_mib = 1024
            server = await lab.start()
            await lab.launch(server, launch_of("head -c 70000000 /dev/zero > file; exit 5"))
            assert (await server.ended("w1.1")).exit_code == 5
            await begin(lab, server, "w2.1", "head -c 30000000 /dev/zero > file")
            await server.see(TaskNoted, "w1.1")
            assert server.find(TaskNoted, "w1.1")[0].code == "files_removed"
            assert not (lab.root() / "tasks/w1.1/worker-0/work").exists()
            await server.until(lambda: refusal(server) == "", "it takes tasks again")
            assert not server.find(TaskEnded, "w2.1")


@needs_root
async def test_a_node_takes_no_tasks_and_says_why_when_others_have_filled_its_disk(hostile_path: Path):
    with small_disk(hostile_path / "small", 100) as small:
        async with node_in(small) as lab:
            lab.disk_reserve_mib = 1024
            server = await lab.start()
            await begin(lab, server, "w1.1")
            (small / "foreign").write_bytes(bytes(96 << 20))
            await server.until(lambda: "its disk is full" in refusal(server), "it says so")
            with pytest.raises(CapacityError, match="its disk is full"):
                await launch_one(server.engine, launch_of("true", "w2.1"))
            (small / "foreign").unlink()
            await server.until(lambda: refusal(server) == "", "it takes tasks again")
            assert not server.find(TaskEnded, "w1.1")  # it was not to blame
            await lab.launch(server, launch_of("exit 3", "w3.1"))
            assert (await server.ended("w3.1")).exit_code == 3


def test_use_is_counted_once_for_several_names_by_no_link_and_however_deep(tmp_path: Path):
    top = tmp_path / "top"
    top.mkdir()
    (top / "file").write_bytes(b"x" * 1_000_000)
    os.link(top / "file", top / "again")
    (top / "link").symlink_to("/usr")
    with open(top / "sparse", "wb") as file:
        file.truncate(1 << 40)
    here = os.open(top, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=here)
        inner = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)
    try:
        use = folder_use(str(top))
        assert 1_000_000 <= use.bytes < 12_000_000
        assert use.files > 800
        assert folder_use(str(tmp_path / "nothing")).bytes == 0
    finally:
        remove_tree(top)


def test_what_a_task_writes_outside_of_its_folder_is_found_while_it_writes(tmp_path: Path):
    place, old = tmp_path / "elsewhere", tmp_path / "old"
    old.write_bytes(bytes(5_000_000))
    words = "import sys, time; f = open(sys.argv[1], 'wb'); f.write(bytes(20_000_000)); f.flush(); "
    words += "g = open(sys.argv[2], 'rb'); print(1, flush=True); time.sleep(1000)"
    process = subprocess.Popen(
        [sys.executable, "-c", words, str(place), str(old)], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == b"1\n"
        device = os.stat(tmp_path).st_dev
        assert held_bytes([process.pid], device, str(tmp_path / "folder"))[0] == 0
        assert 20_000_000 <= held_bytes([process.pid], device, str(tmp_path / "folder"))[1] < 25_000_000
        assert held_bytes([process.pid], device, str(tmp_path)) == (0, 0)
        place.unlink()
        nameless, named = held_bytes([process.pid], device, str(tmp_path))
        assert nameless >= 20_000_000 and named == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
