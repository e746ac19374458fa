"""Tasks in containers: a real podman, with an image that is made on the spot."""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from engine_lab import EngineLab, Watched, launch_of

from trainyard.engines.api import Entry, Mount, TaskNoted, View
from trainyard.transport.api import TerminalSize, read_all

IMAGE = "localhost/trainyard-test:1"
TOOLS = (
    "sh",
    "ls",
    "cat",
    "sleep",
    "echo",
    "id",
    "env",
    "mkdir",
    "pwd",
    "kill",
    "grep",
    "test",
    "head",
    "tail",
    "dd",
    "touch",
)
# No systemd to make groups or keep a journal here; a kernel with both versions of groups takes only runc. A folder and
# locks of its own: whoever else runs podman on the machine meanwhile, and resets it, would pull ours away as well.
CONFIGURATION = """
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_backend = "file"
lock_type = "file"
tmp_dir = "{folder}/tmp"
"""

busybox = shutil.which("busybox")


def podman(*words: str, **given: object) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["podman", *words], capture_output=True, check=False, **given)  # type: ignore[call-overload,no-any-return]


def image_of(path: str) -> bytes:
    """A file system with busybox, the libraries that it needs, and nothing else."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.add(path, "bin/busybox")
        listed = subprocess.run(["ldd", path], capture_output=True, text=True, check=False).stdout
        for library in re.findall(r"(/\S+) \(0x", listed):
            archive.add(os.path.realpath(library), library.lstrip("/"))
        for name in TOOLS:
            link = tarfile.TarInfo(f"bin/{name}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            archive.addfile(link)
        for name in ("tmp", "etc", "root"):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(folder)
    return buffer.getvalue()


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An image that the node has."""
    if shutil.which("podman") is None or shutil.which("runc") is None:
        pytest.skip("podman and runc are not installed")
    if busybox is None or os.getuid():
        pytest.skip("needs root and busybox")
    folder = tmp_path_factory.mktemp("podman")
    (folder / "containers.conf").write_text(CONFIGURATION.format(folder=folder))
    (folder / "storage.conf").write_text(
        f'[storage]\ndriver = "overlay"\ngraphroot = "{folder}/graph"\nrunroot = "{folder}/run"\n'
    )
    (folder / "policy.json").write_text('{"default": [{"type": "insecureAcceptAnything"}]}')
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CONTAINERS_CONF", str(folder / "containers.conf"))
        patch.setenv("CONTAINERS_STORAGE_CONF", str(folder / "storage.conf"))
        made = podman("import", "-", IMAGE, input=image_of(busybox))
        if made.returncode:
            pytest.skip(f"podman makes no image here: {made.stderr.decode()[-300:]}")
        tried = podman("run", "--rm", "--network", "host", *limits(), IMAGE, "/bin/sh", "-c", "echo fine")
        if tried.stdout != b"fine\n":
            pytest.skip(f"podman runs nothing here: {tried.stderr.decode()[-300:]}")
        yield IMAGE
        podman("rm", "-af")
        podman("rmi", "-af")
        podman("system", "reset", "-f")


def limits() -> list[str]:
    return ["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024"]


pytestmark = pytest.mark.slow  # a container takes half a second to begin, and as long to end


async def said(lab: EngineLab, command: str, **given: object) -> tuple[Watched, str]:
    server = await lab.start()
    await lab.launch(server, launch_of(command, **given))  # type: ignore[arg-type]
    ended = await server.ended("w1.1")
    text = server.log("w1.1").decode()
    assert ended.exit_code == 0, (ended, text)
    return server, text


def leftovers() -> str:
    return podman("ps", "-aq").stdout.decode()


async def test_a_task_runs_in_its_image_with_its_folder_storages_and_variables(
    lab: EngineLab, image: str, tmp_path: Path
):
    own = tmp_path / 'own, with "odd" name'
    own.mkdir()
    view = View(
        image=image,
        user="ada",
        home="/home/ada",
        mounts=(
            Mount(source=str(own), target="/home/ada"),
            Mount(source=str(own), target="/data", read_only=True),
        ),
        hosts={"worker-7": "10.1.2.3"},
        shared_memory_mib=33,
    )
    odd = "a b'c\"d\n$(x)中文"
    _, text = await said(
        lab,
        'ls -d /usr 2>/dev/null; echo "$X"; echo "$HOME"; echo mine > ~/f; cat /data/f; (echo x > /data/g) 2>/dev/null || echo locked; '
        "pwd; grep -c worker-7 /etc/hosts; grep shm /proc/mounts; exec 2>&1; echo last >&2",
        view=view,
        env={"X": odd, "PATH": "/bin:/odd"},
        working_dir="sub",
    )
    assert text.startswith(f"{odd}\n/home/ada\nmine\nlocked\n/home/ada/sub\n1\n"), text
    assert "size=33792k" in text and text.endswith("last\n")
    assert (own / "f").read_text() == "mine\n"
    assert leftovers() == ""


async def test_the_end_of_a_container_is_told_as_it_was(lab: EngineLab, image: str):
    server = await lab.start()
    for number, (command, code) in enumerate({"exit 7": 7, "kill -9 $$": 137}.items()):
        attempt = f"w{number}.1"
        await lab.launch(server, launch_of(command, attempt, view=View(image=image)))
        assert (await server.ended(attempt)).exit_code == code
    assert leftovers() == ""


async def test_every_process_of_a_container_hears_that_it_has_to_go_and_is_killed_when_it_does_not(
    lab: EngineLab, image: str
):
    server = await lab.start()
    polite = "trap 'echo bye; exit 5' TERM; echo on; while :; do sleep 0.1; done"
    await lab.launch(server, launch_of(polite, "w1.1", view=View(image=image)))
    await server.until(lambda: b"on" in server.log("w1.1"))
    await server.engine.end("w1.1", ["local"], grace_seconds=20)
    ended = await server.ended("w1.1")
    assert (ended.exit_code, ended.was_told) == (5, True)
    assert b"bye" in server.log("w1.1")
    deaf = "trap '' TERM; echo on; while :; do sleep 0.1; done"
    await lab.launch(server, launch_of(deaf, "w2.1", view=View(image=image)))
    await server.until(lambda: b"on" in server.log("w2.1"))
    await server.engine.end("w2.1", ["local"], grace_seconds=0.5)
    ended = await server.ended("w2.1")
    assert (ended.exit_code, ended.was_told) == (137, True)
    assert leftovers() == ""


async def test_nothing_of_a_container_is_left_when_agent_and_supervisor_were_killed(
    lab: EngineLab, image: str
):
    server = await lab.start()
    await lab.launch(server, launch_of("echo on; sleep 1000", view=View(image=image)))
    await server.until(lambda: b"on" in server.log("w1.1"))
    os.kill(lab.agent_pid(), 9)
    os.kill(lab.supervisor_pid("w1.1"), 9)
    ended = await server.ended("w1.1")
    assert ended.exit_code == 137
    assert leftovers() == ""


async def test_a_container_is_killed_alone_when_it_uses_more_memory_than_its_own(lab: EngineLab, image: str):
    server = await lab.start()
    eater = "exec dd if=/dev/zero of=/dev/null bs=300M count=1"
    await lab.launch(server, launch_of(eater, memory_mib=64, view=View(image=image)))
    ended = await server.ended("w1.1")
    assert ended.exit_code == 137
    assert ended.message == "out of memory: it used more than its 64 MiB"


async def test_a_command_and_a_terminal_open_inside_of_the_container(lab: EngineLab, image: str):
    server = await lab.start()
    await lab.launch(
        server, launch_of("echo mine > /tmp/own; echo on; sleep 60", view=View(image=image), env={"X": "a b"})
    )
    await server.until(lambda: b"on" in server.log("w1.1"))
    process = await server.engine.exec("w1.1", "worker-0", "local", 'cat /tmp/own; echo "$X"; exit 4', None)
    assert (await read_all(process)).decode() == "mine\na b\n"
    assert await process.wait() == 4
    process = await server.engine.exec("w1.1", "worker-0", "local", "", TerminalSize(80, 24))
    await process.write(b"cat /tmp/own; exit 3\n")
    assert b"mine" in await read_all(process)
    assert await process.wait() == 3


async def test_people_hear_of_it_when_an_image_cannot_be_fetched(lab: EngineLab, image: str):
    server = await lab.start()
    missing = "127.0.0.1:9/no/such:1"
    await lab.launch(server, launch_of("true", view=View(image=missing, username="u", password="p")))
    ended = await server.ended("w1.1")
    assert ended.exit_code == 126
    assert missing in ended.message and "not reached" in ended.message
    notes = [note.code for note in server.find(TaskNoted, "w1.1")]  # type: ignore[attr-defined]
    assert notes == ["image_pulling", "image_failed"]
    assert not list((lab.root() / "tasks" / "w1.1" / "worker-0").glob("registry*"))


async def test_an_image_is_ignored_with_a_word_when_the_node_is_set_so(lab: EngineLab):
    server, text = await said(
        lab, "ls -d /usr", view=View(image="no/such:1", images="ignore", isolation="open")
    )
    assert text == "/usr\n"
    assert [note.code for note in server.find(TaskNoted, "w1.1")] == ["image_ignored"]  # type: ignore[attr-defined]


async def test_an_image_is_refused_when_the_node_has_nothing_to_run_it(
    lab: EngineLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for name in ("podman", "docker"):
        (tmp_path / name).write_text("#!/bin/sh\nexit 1\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    server = await lab.start()
    await lab.launch(server, launch_of("true", view=View(image="no/such:1")))
    ended = await server.ended("w1.1")
    assert ended.exit_code == 126
    assert "no/such:1" in ended.message and "podman" in ended.message


async def test_it_is_said_when_an_image_has_no_python_for_what_comes_before_the_command(
    lab: EngineLab, image: str
):
    server = await lab.start()
    view, entry = View(image=image), Entry(env={"MET": "yes"})
    await lab.launch(server, launch_of("echo began", view=view, entry=entry))
    ended = await server.ended("w1.1")
    text = server.log("w1.1").decode()
    assert ended.exit_code == 200, (ended, text)
    assert "the image has no Python 3.8 or newer" in text
    assert "began" not in text
