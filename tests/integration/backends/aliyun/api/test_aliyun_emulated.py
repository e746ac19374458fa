"""The client against the emulator: signatures, tokens, limits and rights as the provider has them."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from datetime import UTC, datetime, timedelta

import pytest
from cloud import called, make_client
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from emulation import Emulation, emulated
from trainyard.backends.aliyun.access.network import ensure_vpc, ensure_vswitch
from trainyard.backends.aliyun.access.security_groups import ensure_group
from trainyard.backends.aliyun.api import client as client_module
from trainyard.backends.aliyun.api.errors import code_of
from trainyard.backends.aliyun.api.paging import check_list_permission, fetch_all
from trainyard.backends.aliyun.api.retry import Kind
from trainyard.backends.aliyun.launch.journal import new_token
from trainyard.lib.clock import ManualClock
from trainyard.lib.errors import (
    CapacityError,
    ConflictError,
    DeniedError,
    InvalidError,
    UnreachableError,
)

pytestmark = pytest.mark.slow  # an emulator of its own

KINDS = ("cut", "html", "error", "empty", "broken", "throttle")
names = (f"disk{number}" for number in itertools.count())


class EmulatedClock(ManualClock):
    """Sleeping pushes the emulator's clock ahead, which stands still otherwise: both see the same time pass."""

    def __init__(self, cloud: Emulation) -> None:
        cloud.control("POST", "clock", {"rate": 0})
        super().__init__(datetime.fromisoformat(cloud.control("GET", "clock")["now"]))
        self._cloud = cloud
        self._turning = asyncio.Lock()
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        until = self.monotonic() + seconds
        async with self._turning:  # of many that sleep at once, each adds only what is left
            if (left := until - self.monotonic()) > 0:
                await asyncio.to_thread(self._cloud.control, "POST", "clock", {"advance_seconds": left})
                self.advance(left)


@pytest.fixture
def own_cloud(tmp_path):
    """An emulator whose clock may be turned."""
    with emulated(tmp_path / "own") as emulation:
        yield emulation


def disk(name: str) -> dict:
    return {"ZoneId": "cn-beijing-h", "DiskCategory": "cloud_essd", "Size": 20, "DiskName": name}


async def disks(client, name: str) -> list:
    return await fetch_all(client, "ecs", "DescribeDisks", {"DiskName": name})


faults = st.lists(
    st.fixed_dictionaries({"kind": st.sampled_from(KINDS), "when": st.sampled_from(["before", "after"])}),
    max_size=5,
)


@given(faults)
@settings(deadline=None, max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_thing_is_made_once_when_its_create_goes_wrong_in_any_way(emulated_cloud, isolation, plan):
    name = next(names)
    client = make_client(emulated_cloud, isolation)
    emulated_cloud.control("PUT", "faults", [{"action": "CreateDisk", "times": 1, **fault} for fault in plan])

    async def go() -> None:
        made = await client.create("ecs", "CreateDisk", disk(name), purpose=name, token_tag="trainyard-token")
        (found,) = await disks(client, name)
        assert found["DiskId"] == made.answer["DiskId"]
        assert {"TagKey": "trainyard-token", "TagValue": made.token} in found["Tags"]["Tag"]
        client.journal.clear(made.token)

    asyncio.run(go())


# Throttling that strikes after the effect would be a lie, and no provider tells it.
honest_faults = faults.filter(
    lambda plan: all(fault != {"kind": "throttle", "when": "after"} for fault in plan)
)


@given(honest_faults)
@settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_call_without_a_token_has_at_most_one_effect_when_it_goes_wrong(emulated_cloud, isolation, plan):
    name = next(names)
    client = make_client(emulated_cloud, isolation)
    emulated_cloud.control("PUT", "faults", [{"action": "CreateDisk", "times": 1, **fault} for fault in plan])

    async def go() -> None:
        with contextlib.suppress(UnreachableError):  # it says that the outcome is unknown
            await client.call("ecs", "CreateDisk", {**disk(name), "ClientToken": None}, kind=Kind.UNSAFE)
        emulated_cloud.control("DELETE", "faults")
        assert len(await disks(client, name)) <= 1

    asyncio.run(go())


async def test_an_effect_is_found_when_the_answer_came_too_late(emulated_cloud, emulated_client, monkeypatch):
    monkeypatch.setattr(client_module, "READ_SECONDS", 0.5)
    emulated_cloud.control(
        "POST", "faults", {"action": "CreateDisk", "kind": "hang", "when": "after", "times": 2, "seconds": 3}
    )
    name = next(names)
    made = await emulated_client.create("ecs", "CreateDisk", disk(name), purpose=name)
    assert [found["DiskId"] for found in await disks(emulated_client, name)] == [made.answer["DiskId"]]
    assert called(emulated_cloud, "CreateDisk") == ["CreateDisk"] * 3


async def test_a_token_with_other_parameters_is_told(emulated_client):
    token = new_token()
    await emulated_client.call("ecs", "CreateDisk", {**disk(next(names)), "ClientToken": token})
    with pytest.raises(ConflictError, match="same token"):
        await emulated_client.call("ecs", "CreateDisk", {**disk(next(names)), "ClientToken": token})


async def test_the_minutes_window_is_kept_when_an_action_is_limited(own_cloud, isolation):
    clock = EmulatedClock(own_cloud)
    own_cloud.control("POST", "faults", {"action": "DescribeZones", "kind": "throttle", "per_minute": 5})
    client = make_client(own_cloud, isolation, clock)
    await asyncio.gather(*(client.call("ecs", "DescribeZones") for _ in range(12)))
    struck = own_cloud.control("GET", "faults")[0]["struck"]
    assert 1 <= struck <= 12  # nobody hammers: the others wait when one was refused
    assert clock.monotonic() < 200


async def test_the_header_is_obeyed_when_there_is_one(own_cloud, isolation):
    clock = EmulatedClock(own_cloud)
    own_cloud.control(
        "POST",
        "faults",
        {"action": "DescribeZones", "kind": "throttle", "times": 2, "retry_after_milliseconds": 2500},
    )
    await make_client(own_cloud, isolation, clock).call("ecs", "DescribeZones")
    assert len(clock.slept) == 2
    assert all(2.5 <= wait < 3 for wait in clock.slept)


async def test_a_role_is_assumed_with_the_emulators_sts(emulated_cloud, isolation):
    keys = emulated_cloud.environ()
    client = make_client(
        emulated_cloud,
        isolation,
        ALIYUN_ACCESS_KEY_ID="",
        ALIYUN_ACCESS_KEY_SECRET="",
        ALIBABA_CLOUD_ACCESS_KEY_ID=keys["ALIYUN_ACCESS_KEY_ID"],
        ALIBABA_CLOUD_ACCESS_KEY_SECRET=keys["ALIYUN_ACCESS_KEY_SECRET"],
        ALIBABA_CLOUD_ROLE_ARN=f"acs:ram::{emulated_cloud.ready['account_id']}:role/trainer",
    )
    who = await client.call("sts", "GetCallerIdentity")
    assert who["IdentityType"] == "AssumedRoleUser"
    await client.call("ecs", "DescribeZones")


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"ALIYUN_ACCESS_KEY_SECRET": "wrong"}, "secret is wrong"),
        ({"ALIYUN_ACCESS_KEY_ID": "nobody"}, "does not know this access key"),
        ({"ALIYUN_SECURITY_TOKEN": "wrong"}, "security token"),
    ],
)
async def test_wrong_keys_are_told_in_plain_words(emulated_cloud, isolation, env, words):
    client = make_client(emulated_cloud, isolation, **env)
    with pytest.raises(DeniedError, match=words):
        await client.call("ecs", "DescribeZones")


async def test_a_clock_that_is_wrong_is_told(emulated_cloud, emulated_client):
    emulated_cloud.control("POST", "clock", {"skew_seconds": 3600})
    try:
        with pytest.raises(InvalidError, match="clock"):
            await emulated_client.call("ecs", "DescribeZones")
    finally:
        emulated_cloud.control("POST", "clock", {"skew_seconds": 0})


async def test_a_forbidden_list_is_told_from_an_empty_one(emulated_cloud, emulated_client):
    await check_list_permission(emulated_client)
    emulated_cloud.control("POST", "faults", {"action": "DescribeInstances", "kind": "blind", "times": 1})
    assert await fetch_all(emulated_client, "ecs", "DescribeInstances") == []
    emulated_cloud.control("POST", "options", {"account": {"denied": ["ecs:DescribeInstances"]}})
    try:
        with pytest.raises(DeniedError, match="ecs:DescribeInstances"):
            await check_list_permission(emulated_client)
    finally:
        emulated_cloud.control("POST", "options", {"account": {"denied": []}})


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({"quotas": {"vcpus": 0}}, CapacityError, "every new account"),
        ({"account": {"balance": "0"}}, DeniedError, "balance"),
        ({"account": {"verified": False}}, DeniedError, "real-name"),
        ({"account": {"denied": ["ecs:RunInstances"]}}, DeniedError, "may not call ecs:RunInstances"),
    ],
)
async def test_what_an_account_lacks_is_told_in_plain_words(
    emulated_cloud, emulated_client, options, kind, words
):
    before = emulated_cloud.control("GET", "options")
    vpc = await ensure_vpc(emulated_client, "accounts")
    vswitch = await ensure_vswitch(emulated_client, vpc, "cn-beijing-h")
    group = await ensure_group(emulated_client, vpc)
    emulated_cloud.control("POST", "options", options)
    try:
        with pytest.raises(kind, match=words) as caught:
            await emulated_client.create(
                "ecs",
                "RunInstances",
                {
                    "InstanceType": "ecs.gn6v-c8g1.2xlarge",
                    "ImageFamily": "acs:ubuntu_22_04_x64",
                    "VSwitchId": vswitch.id,
                    "SecurityGroupId": group.id,
                    "SystemDisk": {"Category": "cloud_essd", "Size": 40},
                },
                purpose="machine",
            )
    finally:
        changed = {part: {name: before[part][name] for name in values} for part, values in options.items()}
        emulated_cloud.control("POST", "options", changed)
    assert caught.value.hint.endswith(".")
    assert code_of(caught.value)
    assert emulated_client.journal.entries() == []


async def test_every_error_of_a_lost_emulator_is_one_sentence(isolation, tmp_path):
    cloud = Emulation(tmp_path / "state")
    client = make_client(cloud, isolation)
    await client.call("ecs", "DescribeZones")
    cloud.stop()
    with pytest.raises(UnreachableError) as caught:
        await client.call("ecs", "DescribeZones")
    assert cloud.endpoint in caught.value.message
    assert "emulate" in caught.value.hint


async def test_keys_that_end_soon_are_renewed_before_they_do(emulated_cloud, isolation):
    clock = ManualClock(datetime.now(UTC))
    keys = emulated_cloud.environ()
    client = make_client(
        emulated_cloud,
        isolation,
        clock,
        ALIYUN_ACCESS_KEY_ID="",
        ALIYUN_ACCESS_KEY_SECRET="",
        ALIBABA_CLOUD_ACCESS_KEY_ID=keys["ALIYUN_ACCESS_KEY_ID"],
        ALIBABA_CLOUD_ACCESS_KEY_SECRET=keys["ALIYUN_ACCESS_KEY_SECRET"],
        ALIBABA_CLOUD_ROLE_ARN=f"acs:ram::{emulated_cloud.ready['account_id']}:role/trainer",
    )
    await client.call("ecs", "DescribeZones")
    clock.advance(timedelta(minutes=50).total_seconds())
    await client.call("ecs", "DescribeZones")
    clock.advance(timedelta(minutes=8).total_seconds())
    await client.call("ecs", "DescribeZones")
    assert called(emulated_cloud, "AssumeRole") == ["AssumeRole"] * 2
