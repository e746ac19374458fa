"""Tasks in containers: a real podman and a real docker, with images that are made on the spot."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import container_lab
import engine_lab
import pytest
from container_lab import PLAIN, Containers
from engine_lab import WAIT, EngineLab, Watched, launch_of

from trainyard.engines.api import Entry, Mount, NodeSeen, TaskNoted, TaskStarted, View, end_one
from trainyard.transport.api import TerminalSize, read_all


@pytest.fixture(scope="module", params=["podman", "docker"])
def containers(request: pytest.FixtureRequest) -> Iterator[Containers]:
    """What runs containers on the node: a podman, then a docker."""
    with container_lab.lasting(request.param) as found:
        found.make(PLAIN, container_lab.plain_image())
        yield found


@pytest.fixture
def image(containers: Containers) -> str:
    """An image that the node has."""
    return PLAIN


pytestmark = pytest.mark.slow  # a container takes half a second to begin, and as long to end


async def said(lab: EngineLab, command: str, **given: object) -> tuple[Watched, str]:
    server = await lab.start()
    await lab.launch(server, launch_of(command, **given))  # type: ignore[arg-type]
    ended = await server.ended("w1.1")
    text = server.log("w1.1").decode()
    assert ended.exit_code == 0, (ended.message, text)
    return server, text


async def test_a_task_runs_in_its_image_with_its_folder_storages_and_variables(
    lab: EngineLab, containers: Containers, image: str, tmp_path: Path
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
    assert containers.leftovers() == ""


async def test_variables_of_a_task_lead_its_container_and_not_what_runs_it(
    lab: EngineLab, containers: Containers, image: str, tmp_path: Path
):
    """Else the loader of programs, or the storage of podman, would bring code of the user's onto the node."""
    (tmp_path / "seen").mkdir()
    (tmp_path / containers.kind).write_text(f"#!/bin/sh\ntouch {tmp_path}/seen/run\n")
    (tmp_path / containers.kind).chmod(0o755)
    env = {
        "PATH": f"{tmp_path}:/bin",
        "LD_DEBUG": "files",
        "LD_DEBUG_OUTPUT": f"{tmp_path}/seen/by",
        "DOCKER_HOST": "unix:///no/such",
        "DOCKER_CONFIG": str(tmp_path),
        "CONTAINERS_CONF": "/no/such",
        "CONTAINERS_STORAGE_CONF": "/no/such",
        "STORAGE_DRIVER": "none",
        "STORAGE_OPTS": "overlay.mount_program=/no/such",
        "REGISTRY_AUTH_FILE": "/no/such",
        "_CONTAINERS_USERNS_CONFIGURED": "done",
    }
    names = " ".join(f'"${name}"' for name in env)
    _, text = await said(lab, f"for one in {names}; do echo $one; done", view=View(image=image), env=env)
    assert set(env.values()) <= set(text.splitlines()), text
    assert list((tmp_path / "seen").iterdir()) == []


async def test_nothing_is_left_of_folders_that_an_image_has_apart_when_its_task_has_ended(
    lab: EngineLab, containers: Containers
):
    image = "localhost/trainyard-test-apart:1"
    containers.make(image, container_lab.plain_image(), "VOLUME /apart")
    await said(lab, "ls -d /apart", view=View(image=image))
    assert containers.leftovers() == ""
    assert containers.ask("volume", "ls", "-q").stdout == b""


async def test_the_end_of_a_container_is_told_as_it_was(lab: EngineLab, containers: Containers, image: str):
    server = await lab.start()
    ends = {"w1.1": ("exit 7", 7), "w2.1": ("kill -9 $$", 137)}
    for attempt, (command, _) in ends.items():
        await lab.launch(server, launch_of(command, attempt, view=View(image=image)))
    assert {attempt: (await server.ended(attempt)).exit_code for attempt in ends} == {"w1.1": 7, "w2.1": 137}
    assert containers.leftovers() == ""


async def test_every_process_of_a_container_hears_that_it_has_to_go_and_is_killed_when_it_does_not(
    lab: EngineLab, containers: Containers, image: str
):
    server = await lab.start()
    polite = "trap 'echo bye; exit 5' TERM; echo on; while :; do sleep 0.1; done"
    deaf = "trap '' TERM; echo on; while :; do sleep 0.1; done"
    await lab.launch(server, launch_of(polite, "w1.1", view=View(image=image)))
    await lab.launch(server, launch_of(deaf, "w2.1", view=View(image=image)))
    for attempt, grace in (("w1.1", 20), ("w2.1", 0.5)):
        await server.until(lambda attempt=attempt: b"on" in server.log(attempt))
        await end_one(server.engine, attempt, ["local"], grace_seconds=grace)
    ended = await server.ended("w1.1")
    assert (ended.exit_code, ended.was_told) == (5, True)
    assert b"bye" in server.log("w1.1")
    ended = await server.ended("w2.1")
    assert (ended.exit_code, ended.was_told) == (137, True)
    assert containers.leftovers() == ""


async def test_a_container_hears_that_it_has_to_go_when_it_was_not_there_yet(
    lab: EngineLab, containers: Containers, image: str
):
    server = await lab.start()
    await lab.launch(server, launch_of("exec sleep 1000", view=View(image=image)))
    await server.see(TaskStarted, "w1.1")  # who keeps it has begun; the container has not
    await end_one(server.engine, "w1.1", ["local"], grace_seconds=WAIT)
    ended = await server.ended("w1.1")
    assert (ended.exit_code, ended.was_told) == (143, True)
    assert containers.leftovers() == ""


async def test_a_container_does_not_begin_when_a_storage_of_it_leads_elsewhere(
    lab: EngineLab, containers: Containers, image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A link where a folder should be; and who is quick enough exchanges it after we looked."""
    store, host, tools = tmp_path / "store", tmp_path / "host", tmp_path / "tools"
    for folder in (store / "ada", host, tools):
        folder.mkdir(parents=True)
    (store / "link").symlink_to(host)
    (tools / containers.kind).write_text(
        f'#!/bin/sh\nif [ "$1" = run ] && [ -d "{store}/ada" ]; then mv "{store}/ada" "{store}/gone"; '
        f'ln -s "{host}" "{store}/ada"; fi\nexec {shutil.which(containers.kind)} "$@"\n'
    )
    (tools / containers.kind).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    server = await lab.start()
    for attempt, name in (("w1.1", "link"), ("w2.1", "ada")):
        mount = Mount(source=str(store / name), target="/data", options={"base": str(store)})
        await lab.launch(
            server, launch_of("echo > /data/x", attempt, view=View(image=image, mounts=(mount,)))
        )
        ended = await server.ended(attempt)
        assert ended.exit_code == 126, ended
        assert ("is a link" if name == "link" else "is not what it should be") in ended.message
    assert list(host.iterdir()) == []
    assert containers.leftovers() == ""


async def test_nothing_of_a_container_is_left_when_agent_and_supervisor_were_killed(
    lab: EngineLab, containers: Containers, image: str
):
    server = await lab.start()
    await lab.launch(server, launch_of("echo on; sleep 1000", view=View(image=image)))
    await server.until(lambda: b"on" in server.log("w1.1"))
    os.kill(lab.agent_pid(), 9)
    os.kill(lab.supervisor_pid("w1.1"), 9)
    ended = await server.ended("w1.1")
    assert ended.exit_code == 137
    assert containers.leftovers() == ""


async def test_a_container_is_killed_alone_when_it_uses_more_memory_than_its_own(
    lab: EngineLab, containers: Containers, image: str
):
    server = await lab.start()
    eater = "exec dd if=/dev/zero of=/dev/null bs=300M count=1"
    await lab.launch(server, launch_of(eater, memory_mib=64, view=View(image=image)))
    ended = await server.ended("w1.1")
    assert ended.exit_code == 137
    assert ended.message == "out of memory: it used more than its 64 MiB"


async def test_a_command_and_a_terminal_open_inside_of_the_container(
    lab: EngineLab, containers: Containers, image: str
):
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
    typing = "echo ready; read x; exit 6"
    process = await server.engine.exec("w1.1", "worker-0", "local", typing, TerminalSize(80, 24))
    await anext(aiter(process.output()))
    await process.write(b"\x10\x11\n")  # by which docker and podman would have us leave
    await read_all(process)
    assert await process.wait() == 6
    process = await server.engine.exec("w1.1", "worker-0", "local", "echo in; exec sleep 4321.5", None)
    await anext(aiter(process.output()))
    await server.until(lambda: len(marked("4321.5")) == 1, "the shell has become it")
    await process.terminate()
    await server.until(lambda: not marked("4321.5"), "what a person ran has ended with its connection")


async def test_a_command_runs_in_a_container_like_the_tasks_own_when_that_has_ended_and_is_kept(
    lab: EngineLab, containers: Containers, image: str, tmp_path: Path
):
    server = await lab.start()
    (tmp_path / "sets").mkdir()
    (tmp_path / "sets" / "set").write_text("numbers")
    mount = Mount(source=str(tmp_path / "sets"), target="/data", read_only=True)
    view = View(image=image, mounts=(mount,))
    await lab.launch(server, launch_of("echo mine > own; exit 7", view=view, env={"X": "a b"}))
    assert (await server.ended("w1.1")).exit_code == 7
    command = (
        'cat own /data/set; echo "$X"; ls -d /usr /sbin 2>/dev/null; (echo > /data/x) 2>/dev/null || exit 4'
    )
    process = await server.engine.exec("w1.1", "worker-0", "local", command, None)
    assert (await read_all(process)).decode() == "mine\nnumbersa b\n"
    assert await process.wait() == 4
    process = await server.engine.exec("w1.1", "worker-0", "local", "echo in; exec sleep 4321.5", None)
    await anext(aiter(process.output()))
    await process.terminate()
    await server.until(lambda: not marked("4321.5"), "what a person ran has ended with its connection")
    await server.until(lambda: containers.leftovers() == "", "its container is removed")


def marked(word: str) -> list[int]:
    """Processes that have a word in what they were started with, but for those who only run them."""
    found = []
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            with suppress(OSError):
                words = (path / "cmdline").read_bytes().split(b"\0")
                if words[1:2] == [word.encode()] and words[0].rpartition(b"/")[2] not in (
                    b"podman",
                    b"docker",
                ):
                    found.append(int(path.name))
    return found


@pytest.mark.parametrize("password", ["right $(x)", "wrong"])
async def test_an_image_is_fetched_with_the_sign_in_of_its_registry_and_people_hear_of_it(
    lab: EngineLab,
    containers: Containers,
    image: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    password: str,
):
    with container_lab.registry(container_lab.plain_image(), "robot", "right $(x)") as name:
        server = await lab.start()
        view = View(image=name, username="robot", password=password)
        await lab.launch(server, launch_of("echo on", view=view))
        ended = await server.ended("w1.1")
    notes = [note.code for note in server.find(TaskNoted, "w1.1")]  # type: ignore[attr-defined]
    if password == "wrong":
        assert ended.exit_code == 126
        assert name in ended.message and "unauthorized" in ended.message
        assert notes == ["image_pulling", "image_failed"]
    else:
        assert (ended.exit_code, server.log("w1.1")) == (0, b"on\n"), ended
        assert notes == ["image_pulling", "image_pulled"]
    kept = [path for path in (lab.root() / "tasks" / "w1.1" / "worker-0").rglob("*") if path.is_file()]
    assert kept and not [path for path in kept if password.encode() in path.read_bytes()]


async def test_an_image_is_ignored_with_a_word_when_the_node_is_set_so(lab: EngineLab):
    server, text = await said(
        lab, "ls -d /usr", view=View(image="no/such:1", images="ignore", isolation="open")
    )
    assert text == "/usr\n"
    assert [note.code for note in server.find(TaskNoted, "w1.1")] == ["image_ignored"]  # type: ignore[attr-defined]


def hide_runtimes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put programs that do not work before those of the node."""
    for name in ("podman", "docker"):
        (folder / name).write_text("#!/bin/sh\nexit 1\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


async def test_an_image_is_refused_when_the_node_has_nothing_to_run_it(
    lab: EngineLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    hide_runtimes(tmp_path, monkeypatch)
    server = await lab.start()
    await lab.launch(server, launch_of("true", view=View(image="no/such:1")))
    ended = await server.ended("w1.1")
    assert ended.exit_code == 126
    assert "no/such:1" in ended.message and "podman" in ended.message


async def test_a_node_is_known_to_run_containers_when_it_began_to_after_we_met_it(
    lab: EngineLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    hide_runtimes(tmp_path, monkeypatch)
    monkeypatch.setattr(engine_lab, "QUICK", replace(engine_lab.QUICK, refresh=0.1, equip=0.1))
    server = await lab.start()
    assert {seen.facts.containers for seen in server.find(NodeSeen)} == {""}  # type: ignore[attr-defined]
    (tmp_path / "ready").write_text("#!/bin/sh\necho podman version 4.3.1\n")
    (tmp_path / "ready").chmod(0o755)
    (tmp_path / "ready").rename(tmp_path / "podman")
    await server.until(lambda: server.find(NodeSeen)[-1].facts.containers == "podman")  # type: ignore[attr-defined]


async def test_it_is_said_when_an_image_has_no_python_for_what_comes_before_the_command(
    lab: EngineLab, containers: Containers, image: str
):
    server = await lab.start()
    view, entry = View(image=image), Entry(env={"MET": "yes"})
    await lab.launch(server, launch_of("echo began", view=view, entry=entry))
    ended = await server.ended("w1.1")
    text = server.log("w1.1").decode()
    assert ended.exit_code == 200, (ended, text)
    assert "the image has no Python 3.8 or newer" in text
    assert "began" not in text
