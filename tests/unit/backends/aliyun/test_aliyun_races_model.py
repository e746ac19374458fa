"""Any number of computers, any order of their calls, any of them dying: those that live agree on one machine of a name.

The clients run the real agreement against the emulated cloud's actions; only the wire between them is left out.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from datetime import UTC
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emulated import CPU, IMAGE, Cloud
from trainyard.backends.aliyun.access.network import TAG
from trainyard.backends.aliyun.api.errors import Context, Refused, explain
from trainyard.backends.aliyun.ecs import KEPT, KEPT_TAG, TOKEN_TAG, USER_TAG, Login, fetch_machines
from trainyard.backends.aliyun.launch import race_resolution
from trainyard.emulators.aliyun.api.problems import Problem
from trainyard.lib.clock import ManualClock
from trainyard.spec.machine import Machine

NAME = "task0.contested"


class Death(BaseException):
    """The computer is switched off."""


class Wireless:
    """A client whose calls reach the emulated cloud after some turns of the others; it may die before or after one."""

    region = "cn-beijing"

    def __init__(self, cloud: Cloud, clock: ManualClock, chance: random.Random, *, dies_at: int) -> None:
        self.cloud = cloud
        self.clock = clock
        self.chance = chance
        self.left = dies_at

    async def call(
        self, product: str, action: str, parameters: Mapping[str, Any] | None = None, *, about: str = ""
    ) -> dict[str, Any]:
        given = {key: value for key, value in (parameters or {}).items() if value is not None}
        await self._turns()
        self.left -= 1
        if self.left == 0 and self.chance.random() < 0.5:
            raise Death
        self.cloud.now = max(self.cloud.now, self.clock.now().astimezone(UTC))
        try:
            answer = self.cloud.call(product, action, **given)
        except Problem as problem:
            failure = Refused(problem.code, problem.message, status=problem.status)
            raise explain(failure, Context(product=product, action=action, about=about)) from None
        if self.left == 0:
            raise Death
        await self._turns()
        return answer

    async def _turns(self) -> None:
        for _ in range(self.chance.randrange(4)):
            await asyncio.sleep(0)

    # -- what a computer does --------------------------------------------------------------------------------------

    async def machines(self) -> Sequence[Machine]:
        return await fetch_machines(self, user="alice", login=Login())  # type: ignore[arg-type]

    async def make(self, number: int) -> list[str]:
        """As a launch does: look, make, look until it is seen, agree; the ids that it would tell its user of."""
        there = await self.machines()
        made: list[str] = []
        if not there:
            answer = await self.call(
                "ecs",
                "RunInstances",
                {
                    **self.cloud.launch,
                    "InstanceType": CPU,
                    "InstanceName": NAME,
                    "Tag": [
                        {"Key": TAG, "Value": "machine"},
                        {"Key": USER_TAG, "Value": "alice"},
                        {"Key": TOKEN_TAG, "Value": f"ty-{number}"},
                    ],
                },
            )
            made = answer["InstanceIdSets"]["InstanceIdSet"]
            while not set(made) <= {machine.id for machine in there}:
                await self.clock.sleep(1)
                there = await self.machines()
        agreed = await race_resolution.agree(self, self.machines, there, [NAME], made=made)  # type: ignore[arg-type]
        return [machine.id for machine in agreed if machine.name == NAME]


@pytest.mark.slow  # many whole agreements: some seconds
@given(
    seed=st.integers(0, 10**9),
    deaths=st.lists(st.sampled_from([0, 0, 0, 2, 3, 4, 5, 6]), min_size=2, max_size=5),
    visible=st.sampled_from([0, 0.5, 3]),
)
@settings(deadline=None, max_examples=100)
def test_those_that_live_agree_on_one_machine_when_all_make_it_at_once(seed, deaths, visible):
    timing = {"pending": 0, "starting": 0, "stopping": 0, "deleting": 1, "visible": visible}
    cloud = Cloud(timing=timing).ready()
    cloud.launch["ImageId"] = IMAGE
    chance, clock = random.Random(seed), ManualClock(cloud.now)

    async def run() -> list[list[str] | BaseException]:
        clients = [Wireless(cloud, clock, chance, dies_at=death) for death in deaths]
        return await asyncio.gather(
            *(client.make(number) for number, client in enumerate(clients)), return_exceptions=True
        )

    results = asyncio.run(run())
    for result in results:
        assert isinstance(result, (list, Death)), repr(result)
    cloud.later(60)
    told = [result for result in results if isinstance(result, list) and result]
    assert len({tuple(ids) for ids in told}) <= 1
    assert all(len(ids) == 1 for ids in told)
    there = {one.id: one.tags.get(KEPT_TAG, "") for one in cloud.world.instances.values()}
    for ids in told:
        assert ids[0] in there
        if len(there) > 1:
            assert [name for name, mark in there.items() if mark == KEPT] == ids
    if not any(deaths):
        assert len(there) == 1
        assert len(told) == len(deaths)
