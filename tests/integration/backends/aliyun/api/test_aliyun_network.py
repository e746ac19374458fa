"""The network on the emulator: made once, whoever asks and whatever goes wrong, and removed when nobody uses it."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import stat
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cloud import called, make_client

from emulation import Emulation, emulated, until
from trainyard.backends.aliyun.access.key_pair import ensure_key_pair, fetch_key_pairs, fingerprint, key_name
from trainyard.backends.aliyun.access.network import (
    VPC_RANGE,
    ensure_vpc,
    ensure_vswitch,
    fetch_vswitches,
    free_ranges,
)
from trainyard.backends.aliyun.access.public_address import own_address, read_address
from trainyard.backends.aliyun.access.security_groups import (
    admit,
    checked_range,
    ensure_access,
    ensure_group,
    fetch_rules,
)
from trainyard.backends.aliyun.api.paging import fetch_all
from trainyard.backends.aliyun.launch.prerequisites import ensure_prerequisites
from trainyard.backends.aliyun.leftover_network import find_idle, remove
from trainyard.lib.clock import ManualClock, SystemClock
from trainyard.lib.errors import CapacityError, DeniedError, InvalidError

pytestmark = pytest.mark.slow  # an emulator of its own, and RSA keys take a moment to make

ZONES = [f"cn-beijing-{letter}" for letter in "fghijkl"]
CREATES = ("CreateVpc", "CreateVSwitch", "CreateSecurityGroup", "ImportKeyPair")


async def make_everything(client, name: str):
    vpc = await ensure_vpc(client, name)
    vswitch = await ensure_vswitch(client, vpc, ZONES[2])
    group = await ensure_group(client, vpc)
    await admit(client, group, ["203.0.113.7"])
    key = await ensure_key_pair(client, f"{name}-key")
    return vpc, vswitch, group, key


async def vpcs_named(client, name: str) -> list:
    return [row for row in await fetch_all(client, "vpc", "DescribeVpcs") if row["VpcName"] == name]


@pytest.fixture(autouse=True)
async def leave_nothing(emulated_cloud, emulated_client):
    """The region's quota is ten VPCs: each test takes away what it made."""
    yield
    emulated_cloud.control("DELETE", "faults")
    emulated_cloud.control("POST", "options", {"account": {"denied": []}})
    for row in emulated_cloud.instances():
        emulated_cloud.ecs("DeleteInstances", InstanceId=[row["InstanceId"]], Force=True)
    until(lambda: not emulated_cloud.instances())
    await remove(emulated_client, await find_idle(emulated_client))


async def test_everything_is_made_once_and_reused_when_asked_again(emulated_cloud, emulated_client):
    first = await make_everything(emulated_client, "once")
    emulated_cloud.control("DELETE", "calls")
    again = await make_everything(emulated_client, "once")
    assert first == again
    assert called(emulated_cloud, *CREATES) == []
    assert emulated_client.journal.entries() == []


async def test_names_and_ranges_are_those_of_the_familys_tools(emulated_client):
    vpc, vswitch, group, key = await make_everything(emulated_client, "ncluster-vpc")
    assert (vpc.name, vpc.range, vpc.status) == ("ncluster-vpc", "192.168.0.0/16", "Available")
    assert (vswitch.name, vswitch.range, vswitch.zone_id) == (
        "ncluster-vpc-h",
        "192.168.0.0/20",
        "cn-beijing-h",
    )
    second = await ensure_vswitch(emulated_client, vpc, "cn-beijing-f")
    assert (second.name, second.range) == ("ncluster-vpc-f", "192.168.16.0/20")
    assert key_name("ncluster", "root") == "ncluster-root"
    assert key_name("ncluster", "王.w-1") == "ncluster-王.w-1"
    names = {
        key_name("ncluster", user)
        for user in ("o'neil", "o neil", "o\nneil", "DOMAIN\\me", "x" * 300, "$(id)")
    }
    assert len(names) == 6
    for name in names:
        found = await ensure_key_pair(emulated_client, name)
        assert found.name == name
    assert group.name != vpc.name
    assert key.is_ours


async def test_ssh_is_open_only_to_the_admitted_address(emulated_client):
    _, _, group, _ = await make_everything(emulated_client, "closed")
    await admit(emulated_client, group, ["203.0.113.7"])  # said twice
    assert [
        (rule.protocol, rule.ports, rule.source) for rule in await fetch_rules(emulated_client, group)
    ] == [("TCP", "22/22", "203.0.113.7/32")]
    await admit(emulated_client, group, ["198.51.100.0/24"], ports={"tensorboard": "6006/6016"})
    sources = {(rule.ports, rule.source) for rule in await fetch_rules(emulated_client, group)}
    assert sources == {("22/22", "203.0.113.7/32"), ("6006/6016", "198.51.100.0/24")}


async def test_members_reach_each_other_when_somebody_had_isolated_them(emulated_cloud, emulated_client):
    vpc, _, group, _ = await make_everything(emulated_client, "isolated")
    emulated_cloud.ecs("ModifySecurityGroupPolicy", SecurityGroupId=group.id, InnerAccessPolicy="Drop")
    await ensure_access(emulated_client, vpc, group)
    await ensure_access(emulated_client, vpc, group)
    rules = {(rule.protocol, rule.source) for rule in await fetch_rules(emulated_client, group)}
    assert ("ALL", VPC_RANGE) in rules


async def test_old_addresses_of_the_same_computer_go_when_it_comes_from_a_new_one(emulated_cloud, isolation):
    clock = ManualClock(datetime.now(UTC))
    client = make_client(emulated_cloud, isolation, clock)
    vpc = await ensure_vpc(client, "moving")
    group = await ensure_group(client, vpc)
    await ensure_access(client, vpc, group, ["203.0.113.1"], owner="ada@laptop")
    await ensure_access(client, vpc, group, ["203.0.113.2"], owner="bob@laptop")
    await admit(client, group, ["198.51.100.0/24"])  # by hand
    await ensure_access(client, vpc, group, ["203.0.113.3"], owner="ada@laptop")
    assert len(await fetch_rules(client, group)) == 4  # a second network of the same day
    clock.advance(8 * 24 * 3600)
    await ensure_access(client, vpc, group, ["203.0.113.3"], owner="ada@laptop")
    assert len(await fetch_rules(client, group)) == 4  # nothing new, nothing done
    await ensure_access(client, vpc, group, ["203.0.113.4"], owner="ada@laptop")
    sources = {rule.source for rule in await fetch_rules(client, group)}
    assert sources == {"203.0.113.2/32", "198.51.100.0/24", "203.0.113.4/32"}


async def test_the_ground_takes_four_calls_when_all_is_there(emulated_cloud, emulated_client):
    async def make():
        return await ensure_prerequisites(
            emulated_client, vpc_name="ground", key_name="ground-key", admitted=["203.0.113.7"]
        )

    first = await make()
    emulated_cloud.control("DELETE", "calls")
    assert await make() == first
    assert len(called(emulated_cloud)) == 4
    assert {rule.source for rule in await fetch_rules(emulated_client, first.group)} == {"203.0.113.7/32"}


async def test_another_group_is_found_when_the_first_was_removed_by_its_maker(
    emulated_cloud, emulated_client
):
    """Two computers made one each; the slower of them takes its own back, whoever has found it meanwhile."""
    gone = {"kind": "error", "status": 404, "times": 1}
    for action, code in (
        ("AuthorizeSecurityGroup", "InvalidSecurityGroupId.NotFound"),
        ("CreateSecurityGroup", "InvalidVpcId.NotFound"),
    ):
        emulated_cloud.control("POST", "faults", {"action": action, "code": code, **gone})
    prerequisites = await ensure_prerequisites(
        emulated_client, vpc_name="settled", key_name="settled-key", admitted=["203.0.113.7"]
    )
    assert [rule.source for rule in await fetch_rules(emulated_client, prerequisites.group)] == [
        "203.0.113.7/32"
    ]


async def test_the_key_is_given_up_when_the_network_fails(emulated_cloud, emulated_client):
    emulated_cloud.control("POST", "options", {"account": {"denied": ["vpc:DescribeVpcs"]}})
    with pytest.raises(DeniedError, match="vpc:DescribeVpcs"):
        await ensure_prerequisites(emulated_client, vpc_name="denied", key_name="denied-key")


async def test_one_network_is_used_when_two_computers_make_it_at_once(emulated_cloud, isolation, tmp_path):
    homes = [isolation, tmp_path / "b", tmp_path / "c", tmp_path / "d"]  # no lock is shared between them
    clients = [make_client(emulated_cloud, home) for home in homes]
    await asyncio.gather(*(ensure_vpc(client, "two") for client in clients))
    made = [await ensure_vpc(client, "two") for client in clients]
    assert len({vpc.id for vpc in made}) == 1
    await asyncio.gather(*(ensure_group(client, made[0]) for client in clients))
    groups = [await ensure_group(client, made[0]) for client in clients]
    assert len({group.id for group in groups}) == 1
    vswitches = await asyncio.gather(*(ensure_vswitch(client, made[0], ZONES[1]) for client in clients))
    blocks = {vswitch.range for vswitch in vswitches}
    assert len(blocks) == len({vswitch.id for vswitch in vswitches})


async def test_one_vpc_is_made_when_many_ask_at_once(emulated_cloud, isolation):
    clients = [make_client(emulated_cloud, isolation) for _ in range(4)]
    made = await asyncio.gather(*(ensure_vpc(client, "crowd") for client in clients))
    assert len({vpc.id for vpc in made}) == 1
    assert len(await vpcs_named(clients[0], "crowd")) == 1


async def test_vswitches_are_made_one_after_the_other_when_many_zones_are_asked_for(
    emulated_cloud, emulated_client
):
    vpc = await ensure_vpc(emulated_client, "zones")
    made = await asyncio.gather(*(ensure_vswitch(emulated_client, vpc, zone) for zone in ZONES * 2))
    assert {vswitch.zone_id for vswitch in made} == set(ZONES)
    there = await fetch_vswitches(emulated_client, vpc.id)
    assert len(there) == len(ZONES)
    blocks = [ipaddress.ip_network(vswitch.range) for vswitch in there]
    assert not any(a.overlaps(b) for a in blocks for b in blocks if a is not b)
    assert called(emulated_cloud, "CreateVSwitch") == ["CreateVSwitch"] * len(ZONES)


async def test_another_vswitch_is_made_when_the_zones_own_is_full(emulated_cloud, emulated_client):
    vpc = await ensure_vpc(emulated_client, "full")
    first = await ensure_vswitch(emulated_client, vpc, ZONES[0])
    emulated_cloud.control("POST", "occupy", {"vswitch": first.id, "addresses": 4090})
    second = await ensure_vswitch(emulated_client, vpc, ZONES[0], addresses=8)
    assert second.id != first.id
    assert second.name == "full-f-2"


@pytest.mark.parametrize("kind", ["cut", "html", "error", "broken"])
@pytest.mark.parametrize("when", ["before", "after"])
async def test_nothing_is_made_twice_when_a_call_goes_wrong(emulated_cloud, emulated_client, kind, when):
    name = f"fault-{kind}-{when}"
    for action in (*CREATES, "AuthorizeSecurityGroup"):
        emulated_cloud.control("POST", "faults", {"action": action, "kind": kind, "when": when, "times": 1})
    vpc, vswitch, group, key = await make_everything(emulated_client, name)
    assert len(await vpcs_named(emulated_client, name)) == 1
    assert [each.id for each in await fetch_vswitches(emulated_client, vpc.id)] == [vswitch.id]
    groups = await fetch_all(emulated_client, "ecs", "DescribeSecurityGroups", {"VpcId": vpc.id})
    assert [row["SecurityGroupId"] for row in groups] == [group.id]
    assert [each.name for each in await fetch_key_pairs(emulated_client, f"{name}*")] == [key.name]
    assert len(await fetch_rules(emulated_client, group)) == 1
    assert emulated_client.journal.entries() == []


async def test_the_serial_rule_is_kept_between_computers_when_things_take_their_time(isolation, tmp_path):
    with emulated(tmp_path / "slow", instant=False) as cloud:
        clients = [make_client(cloud, home, SystemClock()) for home in (isolation, tmp_path / "other")]
        vpc = await ensure_vpc(clients[0], "slow")
        wanted = [(client, zone) for client in clients for zone in ZONES[:2]]
        made = await asyncio.gather(*(ensure_vswitch(client, vpc, zone) for client, zone in wanted))
        assert [vswitch.zone_id for vswitch in made] == [zone for _, zone in wanted]
        assert all(vswitch.status == "Available" for vswitch in made)
        there = await fetch_vswitches(clients[0], vpc.id)
        assert {vswitch.id for vswitch in made} == {vswitch.id for vswitch in there}
        assert not [entry for client in clients for entry in client.journal.entries()]


PROGRAM = """
import asyncio, sys
from trainyard import settings
from trainyard.backends.aliyun.api.client import Client
from trainyard.backends.aliyun.access.network import ensure_vpc
asyncio.run(ensure_vpc(Client.from_settings(settings.load()), "killed"))
"""


async def test_one_vpc_is_made_when_the_client_is_killed_before_it_sees_the_answer(emulated_cloud, isolation):
    emulated_cloud.control(
        "POST", "faults", {"action": "CreateVpc", "kind": "hang", "when": "after", "times": 1, "seconds": 5}
    )
    environ = {**os.environ, **emulated_cloud.environ(), "TRAINYARD_HOME": str(isolation / ".trainyard")}
    process = subprocess.Popen([sys.executable, "-c", PROGRAM], env=environ)
    until(lambda: emulated_cloud.control("GET", "faults")[0]["struck"])
    process.kill()
    process.wait()
    client = make_client(emulated_cloud, isolation)
    assert len(client.journal.entries()) == 1
    vpc = await ensure_vpc(client, "killed")
    assert [row["VpcId"] for row in await vpcs_named(client, "killed")] == [vpc.id]
    assert client.journal.entries() == []


async def test_a_limit_is_told_when_there_are_too_many_vpcs(emulated_cloud, emulated_client):
    emulated_cloud.control("POST", "options", {"quotas": {"vpcs": 0}})
    try:
        with pytest.raises(CapacityError, match="limit") as caught:
            await ensure_vpc(emulated_client, "one-too-many")
    finally:
        emulated_cloud.control("POST", "options", {"quotas": {"vpcs": 10}})
    assert "cleanup" in caught.value.hint
    assert emulated_client.journal.entries() == []


# -- keys --------------------------------------------------------------------------------------------------------------


async def test_the_private_key_is_for_its_owner_only_and_fits_the_public_one(emulated_client):
    key = await ensure_key_pair(emulated_client, "ncluster-ada")
    assert stat.S_IMODE(key.private_key.stat().st_mode) == 0o600
    assert key.public_line.startswith("ssh-rsa ")
    assert fingerprint(key.public_line) == key.fingerprint.replace(":", "").lower()
    done = subprocess.run(["ssh-keygen", "-y", "-f", key.private_key], capture_output=True, text=True)
    assert done.stdout.split()[1] == key.public_line.split()[1]


async def test_another_name_is_taken_when_a_stranger_has_a_key_of_ours(emulated_cloud, isolation, tmp_path):
    mine = make_client(emulated_cloud, isolation)
    other = make_client(emulated_cloud, tmp_path)
    first = await ensure_key_pair(mine, "ncluster-eve")
    second = await ensure_key_pair(other, "ncluster-eve")
    assert first.name == "ncluster-eve"
    assert second.name.startswith("ncluster-eve-")
    assert second.fingerprint != first.fingerprint
    assert (await ensure_key_pair(mine, "ncluster-eve")).name == first.name
    assert (await ensure_key_pair(other, "ncluster-eve")).name == second.name


async def test_another_name_is_taken_when_a_stranger_was_a_moment_quicker(
    emulated_cloud, isolation, tmp_path
):
    first = await ensure_key_pair(make_client(emulated_cloud, isolation), "ncluster-race")
    emulated_cloud.control("POST", "faults", {"action": "DescribeKeyPairs", "kind": "blind", "times": 1})
    second = await ensure_key_pair(make_client(emulated_cloud, tmp_path), "ncluster-race")
    assert second.name.startswith("ncluster-race-")
    assert second.fingerprint != first.fingerprint


async def test_the_familys_own_key_is_used_when_the_provider_still_knows_it(
    emulated_cloud, emulated_client, tmp_path
):
    made = emulated_cloud.ecs("CreateKeyPair", KeyPairName="ncluster-old")
    family = tmp_path / ".ncluster"
    family.mkdir()
    (family / "ncluster-old-cn-beijing.pem").write_text(made["PrivateKeyBody"])
    key = await ensure_key_pair(emulated_client, "ncluster-old", family_home=family)
    assert key.name == "ncluster-old"
    assert key.private_key == family / "ncluster-old-cn-beijing.pem"
    emulated_cloud.ecs("DeleteKeyPairs", KeyPairNames='["ncluster-old"]')


# -- idle things -------------------------------------------------------------------------------------------------------


async def test_idle_things_are_listed_in_order_and_removed(emulated_client):
    vpc, vswitch, group, key = await make_everything(emulated_client, "idle")
    idle = await find_idle(emulated_client)
    assert [(each.kind, each.id) for each in idle] == [
        ("security group", group.id),
        ("vSwitch", vswitch.id),
        ("VPC", vpc.id),
        ("key pair", key.name),
    ]
    assert await remove(emulated_client, idle) == ()
    assert await find_idle(emulated_client) == ()
    assert await remove(emulated_client, idle) == ()  # gone already


async def test_what_a_machine_uses_is_not_idle(emulated_cloud, emulated_client):
    vpc, vswitch, group, key = await make_everything(emulated_client, "busy")
    idle = await find_idle(emulated_client)
    network = {"VpcId": vpc.id, "VSwitchId": vswitch.id, "SecurityGroupId": group.id}
    emulated_cloud.launch(network, KeyPairName=key.name)
    assert await find_idle(emulated_client) == ()
    kept = await remove(emulated_client, [each for each in idle if each.kind != "key pair"])
    assert {each.kind for each in kept} == {"security group", "vSwitch", "VPC"}


async def test_somebody_elses_things_are_never_listed(emulated_cloud, emulated_client):
    network = emulated_cloud.network()
    emulated_cloud.ecs("CreateKeyPair", KeyPairName="not-ours")
    try:
        assert await find_idle(emulated_client) == ()
        vpc = await ensure_vpc(emulated_client, "test")  # theirs, used by its name
        assert vpc.id == network["VpcId"]
        assert not vpc.is_ours
        ours = await ensure_vswitch(emulated_client, vpc, ZONES[0])
        assert [each.id for each in await find_idle(emulated_client)] == [ours.id]
    finally:
        await remove(emulated_client, await find_idle(emulated_client))
        emulated_cloud.ecs("DeleteKeyPairs", KeyPairNames='["not-ours"]')
        emulated_cloud.ecs("DeleteSecurityGroup", SecurityGroupId=network["SecurityGroupId"])
        emulated_cloud.call("vpc", "DeleteVSwitch", VSwitchId=network["VSwitchId"])
        emulated_cloud.call("vpc", "DeleteVpc", VpcId=network["VpcId"])


async def test_nothing_is_called_idle_when_machines_may_not_be_seen(emulated_cloud, emulated_client):
    await make_everything(emulated_client, "blind")
    emulated_cloud.control("POST", "options", {"account": {"denied": ["ecs:DescribeInstances"]}})
    with pytest.raises(DeniedError, match="DescribeInstances"):
        await find_idle(emulated_client)


# -- small things ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("whole", "taken", "first"),
    [
        ("192.168.0.0/16", [], "192.168.0.0/20"),
        ("192.168.0.0/16", ["192.168.0.0/20", "192.168.16.0/24"], "192.168.32.0/20"),
        ("172.16.0.0/12", ["172.16.0.0/16"], "172.17.0.0/20"),
        ("10.0.0.0/24", [], "10.0.0.0/26"),
        ("10.0.0.0/28", [], "10.0.0.0/29"),
    ],
)
def test_the_lowest_free_range_is_taken(whole, taken, first):
    assert next(free_ranges(whole, taken)) == first


def test_no_range_is_left_when_all_are_taken():
    assert list(free_ranges("192.168.0.0/16", ["192.168.0.0/16"])) == []
    assert len(list(free_ranges("192.168.0.0/16", []))) == 16


def test_ranges_are_checked_before_they_are_opened():
    assert checked_range("203.0.113.7") == "203.0.113.7/32"
    assert checked_range("2001:db8::/32") == "2001:db8::/32"
    for wrong in ("203.0.113.7/24", "everyone", "", "203.0.113.0/33"):
        with pytest.raises(InvalidError):
            checked_range(wrong)


def test_a_public_address_is_read_out_of_what_services_say():
    assert read_address("当前 IP：8.8.4.4  来自于：…") == "8.8.4.4"
    assert read_address("192.168.1.2") == ""
    assert read_address("999.1.1.1 none") == ""


async def test_the_own_address_is_loopback_when_the_cloud_is_emulated(
    emulated_cloud: Emulation, tmp_path: Path
):
    assert await own_address(emulated_cloud.endpoint) == "127.0.0.1"
    assert await own_address(emulated_cloud.endpoint, given="203.0.113.0/24") == "203.0.113.0/24"
