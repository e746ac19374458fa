"""A task that leaves a folder nobody likes to remove, or breaks its own files: the agent goes on, and says what it set aside."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from pathlib import Path

import pytest
from node_lab import EngineLab, Watched, launch_of, node_in, notices, restart

from trainyard.backends.local.folder import remove
from trainyard.engines.api import View
from trainyard.engines.nodes.frame_checks import line
from trainyard.lib.remove_tree import remove_tree

VIEWS = [None, View()] if shutil.which("bwrap") else [None]
NEST = """python3 - <<'END'
import os
for top in ["/tmp", "."] if os.environ.get("TRAINYARD_VIEW") else ["."]:
    here = os.open(top, os.O_RDONLY)
    for _ in range({0}):
        os.mkdir("d" * {1}, dir_fd=here)
        inner = os.open("d" * {1}, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)
END
exit 7"""
is_root = os.getuid() == 0


async def lives(lab: EngineLab, server: Watched, attempt: str) -> None:
    """The node takes another task, and nothing of forgotten ones is left on it."""
    await lab.launch(server, launch_of("exit 3", attempt))
    assert (await server.ended(attempt)).exit_code == 3
    trash = lab.root() / "trash"
    await server.until(lambda: not trash.exists() or not os.listdir(trash), "the trash is empty")


@pytest.mark.parametrize("view", VIEWS)
async def test_a_node_stays_in_use_when_a_task_nested_1500_folders(hostile_path: Path, view: View | None):
    async with node_in(hostile_path) as lab:
        await nest_and_go_on(lab, 1500, 1, view)


@pytest.mark.deep  # the kernel takes its time for so many folders
@pytest.mark.parametrize("view", VIEWS)
async def test_a_node_stays_in_use_when_a_task_nested_10000_folders_of_long_names(
    hostile_path: Path, view: View | None
):
    async with node_in(hostile_path) as lab:
        await nest_and_go_on(lab, 10_000, 255, view)


async def nest_and_go_on(lab: EngineLab, depth: int, length: int, view: View | None) -> None:
    server = await lab.start()
    await lab.launch(server, launch_of(NEST.format(depth, length), view=view))
    assert (await server.ended("w1.1")).exit_code == 7
    agent = lab.agent_pid()
    await lives(lab, server, "w2.1")
    server = await restart(lab, server)  # with the folder in its place
    await lives(lab, server, "w3.1")
    agent = lab.agent_pid()
    await server.engine.forget(["w1.1"], ["local"])
    await lives(lab, server, "w4.1")
    assert not (lab.root() / "tasks" / "w1.1").exists()
    assert lab.agent_pid() == agent
    assert notices(server) == ""


async def test_nothing_is_left_when_a_task_made_links_pipes_sockets_and_strange_names(hostile_path: Path):
    precious = hostile_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("mine")
    async with node_in(hostile_path) as lab:
        server = await lab.start()
        script = f"""python3 - <<'END'
import os, socket
for name in ("log", "command", "task.json", "work", "tmp", "beside", "..x", "state.old"):
    os.symlink({str(precious)!r}, name)
    os.symlink(".", name + ".loop")
os.mkfifo("pipe")
s = socket.socket(socket.AF_UNIX); s.bind("socket")
open("n" * 255, "w").close()
os.mkdir(b"\\xff\\xfe/".rstrip(b"/")); open(b"\\xff\\xfe/\\x80\\n", "w").close()
os.makedirs("locked/inner/more"); open("locked/inner/file", "w").close()
os.chmod("locked/inner/more", 0); os.chmod("locked/inner", 0); os.chmod("locked", 0)
os.link("n" * 255, "hard")
if os.getuid() == 0:
    os.mknod("zero", 0o20666, os.makedev(1, 5))
END
chmod 000 .; exit 7"""
        await lab.launch(server, launch_of(script))
        assert (await server.ended("w1.1")).exit_code == 7, server.log("w1.1")
        server = await restart(lab, server)
        await server.engine.forget(["w1.1"], ["local"])
        await lives(lab, server, "w2.1")
        assert notices(server) == ""
    assert (precious / "file").read_text() == "mine"


@pytest.mark.skipif(not is_root or not shutil.which("chattr"), reason="flags of files need root and chattr")
async def test_files_that_nobody_may_change_are_removed_too(hostile_path: Path):
    async with node_in(hostile_path) as lab:
        server = await lab.start()
        script = "mkdir a; echo x > a/b; chattr +i a/b && chattr +a a && chattr +i . ; exit 7"
        await lab.launch(server, launch_of(script))
        assert (await server.ended("w1.1")).exit_code == 7
        if b"not supported" in server.log("w1.1"):
            pytest.skip("this file system has no such flags")
        await server.engine.forget(["w1.1"], ["local"])
        await lives(lab, server, "w2.1")
        assert notices(server) == ""


@pytest.mark.skipif(not is_root, reason="mounting needs root")
async def test_a_folder_that_cannot_be_removed_is_set_aside_and_named(hostile_path: Path):
    async with node_in(hostile_path) as lab:
        server = await lab.start()
        await lab.launch(server, launch_of("mkdir mount; exit 7"))
        await server.ended("w1.1")
        outside = hostile_path / "outside"
        outside.mkdir()
        (outside / "file").write_text("mine")
        place = lab.root() / "tasks/w1.1/worker-0/work/mount"
        subprocess.run(["mount", "--bind", outside, place], check=True)
        try:
            await server.engine.forget(["w1.1"], ["local"])
            await lives(lab, server, "w2.1")
            server = await restart(lab, server)
            said = notices(server)
            assert "w1.1.worker-0" in said
            assert "cannot be removed" in said
            # A node's notice is one line, whatever its folders are called.
            assert line(str(lab.root() / "broken")) in said
        finally:
            (mount,) = lab.root().rglob("mount")
            subprocess.run(["umount", mount], check=True)
        assert (outside / "file").read_text() == "mine"
        remove_tree(lab.root() / "broken")  # as the operator does
        server = await restart(lab, server)
        assert notices(server) == ""


BREAKING = {
    "a state that is a pipe": "rm ../state; mkfifo ../state",
    "a state that is a link": "mv ../state ../x; ln -s x ../state",
    "a state of the wrong kinds": """printf '%s\\n' 7 '[]' '{"pid":"x","at":[]}' '{"note":[1]}' '{"code":NaN}' >> ../state""",
    "a state nested without end": "python3 -c \"print('[' * 500000)\" >> ../state",
    "an order nested without end": "python3 -c \"print('[' * 500000)\" > ../task.json",
    "an order of the wrong kinds": """echo '{"boot":1}' > ../task.json""",
    "an order that is a pipe": "rm ../task.json; mkfifo ../task.json",
    "an order that has no end": "rm ../task.json; ln -s /dev/zero ../task.json",
    "a log that is a pipe": "rm ../log; mkfifo ../log",
    "a log that is a link": "rm ../log; ln -s /dev/zero ../log",
}


@pytest.mark.parametrize("what", list(BREAKING))
async def test_the_agent_goes_on_when_a_task_has_broken_its_own_files(hostile_path: Path, what: str):
    async with node_in(hostile_path) as lab:
        server = await lab.start()
        await lab.launch(server, launch_of("echo fine; sleep 1000", "w9.1"))
        await server.until(lambda: server.log("w9.1"), "it is up")
        await lab.launch(server, launch_of(f"{BREAKING[what]}; touch done; sleep 1000"))
        done = lab.root() / "tasks/w1.1/worker-0/work/done"
        await server.until(done.exists, "it has done its worst")
        await lives(lab, server, "w2.1")
        agent = lab.agent_pid()
        server = await restart(lab, server)
        assert lab.agent_pid() not in {0, agent}
        await lives(lab, server, "w3.1")
        assert not server.find(type(await server.ended("w3.1")), "w9.1")  # the other one runs on


async def test_a_broken_folder_is_set_aside_and_named_when_the_agent_starts(hostile_path: Path):
    async with node_in(hostile_path) as lab:
        server = await lab.start()
        await lab.launch(server, launch_of("echo '[' > ../task.json; exit 7"))
        await server.ended("w1.1")
        server = await restart(lab, server)
        assert "w1.1.worker-0" in notices(server)
        assert "cannot be read" in notices(server)
        assert (lab.root() / "broken/w1.1.worker-0/files/task.json").read_text() == "[\n"
        await lives(lab, server, "w2.1")


async def test_a_folder_without_a_state_is_removed_beside_the_agents_work(
    hostile_path: Path,
):
    async with node_in(hostile_path) as lab:
        server = await lab.start()
        await lab.launch(server, launch_of("mkdir -p ../x/{1..20}/{1..50}; rm ../state; exit 7"))
        await server.until(lambda: not (lab.root() / "tasks/w1.1/worker-0/state").exists(), "it is gone")
        server = await restart(lab, server)
        await lives(lab, server, "w2.1")
        assert not (lab.root() / "tasks/w1.1").exists()


def test_a_tree_is_removed_by_two_at_once(tmp_path: Path):
    for number in range(300):
        (tmp_path / "top" / str(number % 7) / str(number) / "x").mkdir(parents=True)
        (tmp_path / "top" / str(number % 7) / str(number) / "f").write_text("")
    child = os.fork()
    if child == 0:
        remove_tree(tmp_path / "top")
        os._exit(0)
    remove_tree(tmp_path / "top")
    os.waitpid(child, 0)
    assert remove_tree(tmp_path / "top") is None
    assert not (tmp_path / "top").exists()


def test_a_link_in_the_place_of_a_tree_is_removed_and_what_it_leads_to_stays(tmp_path: Path):
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "file").write_text("mine")
    (tmp_path / "link").symlink_to("real")
    assert remove_tree(tmp_path / "link") is None
    assert remove_tree(tmp_path / "nothing") is None
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(os.path.relpath(tmp_path / "socket"))
        assert remove_tree(tmp_path / "socket") is None
    assert os.listdir(tmp_path / "real") == ["file"]
    assert sorted(os.listdir(tmp_path)) == ["home", "real"]


def nest_folders(top: Path, depth: int) -> None:
    """Folders in folders, none of which may be written to afterwards."""
    top.mkdir()
    here = os.open(top, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=here)
        inner = os.open("d", os.O_RDONLY, dir_fd=here)
        os.fchmod(here, 0o500)
        os.close(here)
        here = inner
    os.close(here)


def test_a_local_machine_is_removed_when_its_tasks_nested_1500_folders_without_rights(tmp_path: Path):
    top = tmp_path / "machine"
    nest_folders(top, 1500)
    remove(top)
    assert not top.exists()


async def test_a_task_runs_in_a_working_folder_that_is_1500_folders_deep(hostile_path: Path):
    async with node_in(hostile_path) as lab:
        server = await lab.start()
        await lab.launch(server, launch_of("exit 7", working_dir="a/" * 1500))
        assert (await server.ended("w1.1")).exit_code == 7
        await lives(lab, server, "w2.1")


async def test_the_agent_and_its_link_live_on_when_they_get_frames_that_make_no_sense(hostile_path: Path):
    async with node_in(hostile_path) as lab:
        server = await lab.start()
        agent = lab.agent_pid()
        os.chdir(lab.root())  # the path is longer than a socket's may be
        try:
            for noise in (
                b"[" * 500_000 + b"\n",
                b'{"op":"hello","size":-1}\n',
                b'{"op":"x","size":9999999999}\n',
            ):
                with socket.socket(socket.AF_UNIX) as stranger:
                    stranger.connect("socket")
                    stranger.settimeout(5)
                    stranger.sendall(noise)
                    assert stranger.recv(100) == b""  # it is sent away
        finally:
            os.chdir("/")
        await lives(lab, server, "w1.1")
        assert lab.agent_pid() == agent
