"""Clients that are killed at any moment: what they leave behind, the next one finds, and makes nothing twice."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cloud import make_client

from emulation import emulated
from trainyard.backends.aliyun.access.key_pair import fetch_key_pairs
from trainyard.backends.aliyun.access.network import ensure_vswitch, fetch_vswitches
from trainyard.backends.aliyun.api.paging import fetch_all
from trainyard.backends.aliyun.launch.prerequisites import ensure_prerequisites
from trainyard.lib.clock import SystemClock

pytestmark = pytest.mark.slow  # a dozen processes are started and killed

PROGRAM = """
import asyncio
from trainyard import settings
from trainyard.backends.aliyun.api.client import Client
from trainyard.backends.aliyun.launch.prerequisites import ensure_prerequisites
from trainyard.backends.aliyun.access.network import ensure_vswitch

async def main():
    client = Client.from_settings(settings.load())
    ground = await ensure_prerequisites(client, vpc_name="doomed", key_name="doomed-key", admitted=["203.0.113.7"])
    for zone in ("cn-beijing-f", "cn-beijing-g", "cn-beijing-h"):
        await ensure_vswitch(client, ground.vpc, zone)
    print("done", flush=True)

asyncio.run(main())
"""


def run_and_kill(environ: dict[str, str], seconds: float) -> None:
    """Run it until its first call is on the way, and so many seconds longer."""
    process = subprocess.Popen([sys.executable, "-c", PROGRAM], env=environ, stdout=subprocess.DEVNULL)
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@pytest.mark.parametrize("seed", [1, 2])
async def test_everything_exists_once_when_clients_are_killed_again_and_again(
    seed: int, isolation: Path, tmp_path: Path
):
    chance = random.Random(seed)
    with emulated(tmp_path / "state") as cloud:
        cloud.control("PUT", "faults", [{"action": "*", "kind": "slow", "seconds": 0.1}])
        environ = {**os.environ, **cloud.environ(), "TRAINYARD_HOME": str(isolation / ".trainyard")}
        started = time.monotonic()
        run_and_kill(environ, 30.0)  # the key is made, and how long a whole run takes is known
        whole = time.monotonic() - started
        for vpc in cloud.call("vpc", "DescribeVpcs")["Vpcs"]["Vpc"]:
            remove_network(cloud, vpc["VpcId"])
        for _ in range(6):
            run_and_kill(environ, whole * chance.uniform(0.3, 0.9))
        cloud.control("DELETE", "faults")
        client = make_client(cloud, isolation, SystemClock())
        prerequisites = await ensure_prerequisites(
            client, vpc_name="doomed", key_name="doomed-key", admitted=["203.0.113.7"]
        )
        for zone in ("cn-beijing-f", "cn-beijing-g", "cn-beijing-h"):
            await ensure_vswitch(client, prerequisites.vpc, zone)
        assert [row["VpcId"] for row in await fetch_all(client, "vpc", "DescribeVpcs")] == [
            prerequisites.vpc.id
        ]
        assert [each.zone_id[-1] for each in await fetch_vswitches(client, prerequisites.vpc.id)] == [
            "f",
            "g",
            "h",
        ]
        groups = await fetch_all(client, "ecs", "DescribeSecurityGroups")
        assert [row["SecurityGroupId"] for row in groups] == [prerequisites.group.id]
        assert [key.name for key in await fetch_key_pairs(client)] == ["doomed-key"]
        assert client.journal.entries() == []


def remove_network(cloud, vpc: str) -> None:
    for group in cloud.ecs("DescribeSecurityGroups", VpcId=vpc)["SecurityGroups"]["SecurityGroup"]:
        cloud.ecs("DeleteSecurityGroup", SecurityGroupId=group["SecurityGroupId"])
    for vswitch in cloud.call("vpc", "DescribeVSwitches", VpcId=vpc)["VSwitches"]["VSwitch"]:
        cloud.call("vpc", "DeleteVSwitch", VSwitchId=vswitch["VSwitchId"])
    cloud.call("vpc", "DeleteVpc", VpcId=vpc)
