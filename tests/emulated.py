"""An emulated cloud without wire and machines: calls go straight to the actions, time passes when told.

Parameters take the real way through the vendor's schema, and every answer is held against it.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from trainyard.emulators.aliyun.api.actions import ACTIONS
from trainyard.emulators.aliyun.api.call import Call
from trainyard.emulators.aliyun.api.parameters import read_parameters, strange_fields
from trainyard.emulators.aliyun.api.problems import Problem
from trainyard.emulators.aliyun.cloud.cloud_state import Timing
from trainyard.emulators.aliyun.cloud.world import World

REGION = "cn-beijing"
ZONE = "cn-beijing-h"
TYPE = "ecs.gn6v-c8g1.2xlarge"
CPU = "ecs.g6.large"
IMAGE = "ubuntu_22_04_x64_20G_alibase_20260119.vhd"
PUBLIC_KEY = (
    "ecdsa-sha2-nistp256 AAAAE2VjZHNhLXNoYTItbmlzdHAyNTYAAAAIbmlzdHAyNTYAAABBBBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQ"
    "EBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBA="
)
START = datetime(2026, 3, 1, 12, 30, 20, tzinfo=UTC)


def flat(value, name=""):
    """Nested parameters as the wire carries them: Tag.1.Key."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from flat(inner, f"{name}.{key}" if name else key)
    elif isinstance(value, (list, tuple)):
        for number, inner in enumerate(value, start=1):
            yield from flat(inner, f"{name}.{number}")
    else:
        yield name, str(value).lower() if isinstance(value, bool) else str(value)


class Cloud:
    """One emulated cloud and its clock."""

    def __init__(self, *, seed="test", instant=False, **options):
        self.world = World(seed=seed)
        self.now = START
        if instant:
            self.world.options.timing = Timing.instant()
        self.world.set_options(options)
        self.world.advance(self.now)

    def call(self, product, action, /, **parameters):
        """Do an action now, in Beijing unless RegionId says otherwise."""
        region = parameters.get("RegionId", REGION)
        if product != "nas":
            parameters = {"RegionId": region, **parameters}
        read = read_parameters(product, action, flat(parameters))
        self.world.advance(self.now)
        call = Call(
            product=product,
            action=action,
            parameters=read,
            region=region,
            account="1",
            now=self.now,
            request_id="R",
        )
        body = ACTIONS[product, action](self.world, call)
        self.world.advance(self.now)
        assert strange_fields(product, action, body) == []
        json.dumps(body)
        return body

    def ecs(self, action, /, **parameters):
        return self.call("ecs", action, **parameters)

    def vpc(self, action, /, **parameters):
        return self.call("vpc", action, **parameters)

    def nas(self, action, /, **parameters):
        return self.call("nas", action, **parameters)

    def refused(self, product, action, /, **parameters):
        """The code with which an action is refused."""
        with pytest.raises(Problem) as caught:
            self.call(product, action, **parameters)
        return caught.value.code

    def later(self, seconds=0, **span):
        """Let time pass."""
        self.now += timedelta(seconds=seconds, **span)
        self.world.advance(self.now)

    # --- what most tests need first

    def network(self, cidr="192.168.0.0/20", zone=ZONE, vpc=None):
        """A VPC unless one is given, and a vSwitch in it; their ids."""
        vpc = vpc or self.vpc("CreateVpc", CidrBlock="192.168.0.0/16", VpcName="v")["VpcId"]
        self.later(1)
        vswitch = self.vpc("CreateVSwitch", VpcId=vpc, ZoneId=zone, CidrBlock=cidr)["VSwitchId"]
        self.later(1)
        return vpc, vswitch

    def ready(self):
        """A network and a group; what RunInstances needs beside the type."""
        vpc, vswitch = self.network()
        group = self.ecs("CreateSecurityGroup", VpcId=vpc)["SecurityGroupId"]
        self.launch = {"ImageId": IMAGE, "InstanceType": TYPE, "SecurityGroupId": group, "VSwitchId": vswitch}
        return self

    def run(self, **parameters):
        """Ids of new instances."""
        body = self.ecs("RunInstances", **{**self.launch, **parameters})
        return body["InstanceIdSets"]["InstanceIdSet"]

    def running(self, **parameters):
        """Ids of new instances that run."""
        ids = self.run(**parameters)
        self.later(30)
        return ids

    def show(self, instance):
        """What DescribeInstances says of one instance; None: nothing."""
        body = self.ecs("DescribeInstances", InstanceIds=json.dumps([instance]))
        rows = body["Instances"]["Instance"]
        return rows[0] if rows else None
