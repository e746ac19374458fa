"""Folders that are used again: nothing of the last task is in the next one's, and nobody's own files are touched."""

from __future__ import annotations

import os
from pathlib import Path

from engine_lab import EngineLab, Watched, launch_of


def numbers(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_ino for path in folder.iterdir()}


async def run(lab: EngineLab, server: Watched, command: str, attempt: str) -> int:
    await lab.launch(server, launch_of(command, attempt))
    return (await server.ended(attempt)).exit_code


async def forget(lab: EngineLab, server: Watched, *attempts: str) -> None:
    await server.engine.forget(attempts, ["local"])
    assert not [attempt for attempt in attempts if (lab.root() / "tasks" / attempt).exists()]


async def test_a_folder_is_used_again_and_nothing_of_its_last_task_is_in_it(lab: EngineLab):
    server = await lab.start()
    tasks = lab.root() / "tasks"
    assert await run(lab, server, f"echo {'long ' * 9000}; exit 3", "w1.1") == 3
    before = numbers(tasks / "w1.1" / "worker-0")
    await forget(lab, server, "w1.1")
    kept = [path for path in (lab.root() / "spare").rglob("*") if path.is_file()]
    assert kept and not [path for path in kept if b"long" in path.read_bytes()]
    assert await run(lab, server, "echo short; ls; pwd -P > ~/place", "w2.1") == 0
    after = numbers(tasks / "w2.1" / "worker-0")
    # Its state is another one where the last supervisor has not closed it yet.
    assert {name for name in after if before[name] == after[name]} >= {"command", "task.json", "log"}
    assert server.log("w2.1") == b"short\n"
    assert (lab.home / "place").read_text() == f"{os.path.realpath(tasks / 'w2.1/worker-0/work')}\n"
    assert (tasks / "w2.1" / "worker-0" / "command").read_text().startswith("echo short")
    assert len(os.listdir(lab.root() / "spare")) == 0


async def test_a_log_without_blocks_of_the_disk_is_emptied_too(lab: EngineLab):
    server = await lab.start()
    await run(lab, server, "truncate -s 5 ../log", "w1.1")
    log = lab.root() / "tasks" / "w1.1" / "worker-0" / "log"
    assert (log.stat().st_size, log.stat().st_blocks) == (5, 0)
    await forget(lab, server, "w1.1")
    assert await run(lab, server, "echo short", "w2.1") == 0
    assert server.log("w2.1") == b"short\n"


async def test_a_folder_goes_when_its_task_left_something_or_put_something_else_in_its_place(lab: EngineLab):
    server = await lab.start()
    precious = lab.home / "precious"
    precious.write_text("mine")
    hostile = (
        "touch left",
        "touch ../left",
        "rm ../log; ln -s ~/precious ../log",
        "rm ../command; ln ~/precious ../command",
        "rm ../task.json; mkdir ../task.json",
        "chmod 666 ../log",
        "chmod 000 .",
    )
    for number, command in enumerate(hostile):
        await run(lab, server, f"{command}; exit 0", f"w{number}.1")
        await forget(lab, server, f"w{number}.1")
        assert await run(lab, server, "ls ..; exit 4", f"x{number}.1") == 4
        assert server.log(f"x{number}.1").split() == [b"command", b"log", b"state", b"task.json", b"work"], (
            command
        )
        await forget(lab, server, f"x{number}.1")
    assert precious.read_text() == "mine"
    assert precious.stat().st_nlink == 1


async def test_a_half_made_folder_is_nobodys_when_the_agent_died_with_a_spare_in_its_place(lab: EngineLab):
    server = await lab.start()
    await run(lab, server, "echo one", "w1.1")
    await forget(lab, server, "w1.1")
    await lab.stop(server)
    (spare,) = (lab.root() / "spare").iterdir()
    assert not list(spare.rglob("state"))
    spare.rename(lab.root() / "tasks" / "w2.1")
    server = await lab.start(epoch=2)
    assert not (lab.root() / "tasks" / "w2.1").exists()
    assert await run(lab, server, "echo two; exit 5", "w2.1") == 5
    assert server.log("w2.1") == b"two\n"


async def test_tasks_of_other_names_and_numbers_get_spares_too(lab: EngineLab):
    server = await lab.start()
    await run(lab, server, "echo one", "w1.1")
    await forget(lab, server, "w1.1")
    two = launch_of("true", "w2.1", nodes=("local", "local"))
    await lab.launch(server, two)
    for task in ("worker-0", "worker-1"):
        await server.ended("w2.1", task)
    await forget(lab, server, "w2.1")
    assert await run(lab, server, "exit 6", "w3.1") == 6
