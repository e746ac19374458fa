"""Everything on a node is killed at random, again and again; every task runs once, ends once, and loses no byte."""

from __future__ import annotations

import asyncio
import os
import random
from contextlib import suppress

import pytest
from engine_lab import EngineLab, launch_of

from trainyard.engines.api import TaskCleared, TaskEnded, TaskUnknown
from trainyard.lib.errors import UnreachableError

TASKS = 20
LAUNCH = (
    "echo $$ >> ~/run-{0}; j=0; while [ $j -lt {1} ]; do echo {0}-$j; j=$((j+1)); sleep 0.02; done; exit {2}"
)


@pytest.mark.slow  # twenty tasks, and as many deaths
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.deep)])
async def test_tasks_run_once_and_whole_when_agents_and_relays_die_at_random(lab: EngineLab, seed: int):
    dice = random.Random(seed)
    server = await lab.start()
    wanted: dict[str, tuple[int, bytes]] = {}

    async def kill_at_random() -> None:
        while True:
            await asyncio.sleep(dice.uniform(0.05, 0.4))
            victims = [lab.agent_pid()] if dice.random() < 0.5 else lab.relay_pids()
            for pid in filter(None, victims):
                with suppress(OSError):
                    os.kill(pid, 9)

    async def launch(number: int) -> None:
        lines, code = dice.randrange(5, 30), dice.randrange(5)
        attempt = f"w{number}.1"
        wanted[attempt] = (code, b"".join(b"%d-%d\n" % (number, line) for line in range(lines)))
        order = launch_of(LAUNCH.format(number, lines, code), attempt)
        times = dice.choice((1, 2))
        while times:
            try:
                await lab.launch(server, order)
                times -= 1
            except UnreachableError:
                await asyncio.sleep(0.02)

    chaos = asyncio.create_task(kill_at_random())
    try:
        for number in range(TASKS):
            await launch(number)
        await server.until(
            lambda: {each.attempt_id for each in server.find(TaskCleared)} >= set(wanted), "all are cleared"
        )
    finally:
        chaos.cancel()
    assert not server.find(TaskUnknown)
    for attempt, (code, log) in wanted.items():
        assert {each.exit_code for each in server.find(TaskEnded, attempt)} == {code}
        assert server.log(attempt) == log
        assert len((lab.home / f"run-{attempt[1:-2]}").read_text().split()) == 1
