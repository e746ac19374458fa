"""Folders of tasks that are forgotten: nothing of them is in the next task's, and nobody's own files are touched."""

from __future__ import annotations

from engine_lab import EngineLab, Watched, launch_of


async def run(lab: EngineLab, server: Watched, command: str, attempt: str) -> int:
    await lab.launch(server, launch_of(command, attempt))
    return (await server.ended(attempt)).exit_code


async def forget(lab: EngineLab, server: Watched, *attempts: str) -> None:
    await server.engine.forget(attempts, ["local"])
    assert not [attempt for attempt in attempts if (lab.root() / "tasks" / attempt).exists()]


async def test_the_next_task_has_its_own_log_when_the_last_one_put_something_into_its(lab: EngineLab):
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
