"""Random calls and random time: what must hold of an emulated cloud after every step."""

from __future__ import annotations

import ipaddress
import json
from collections import Counter
from decimal import Decimal

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from emulated import CPU, TYPE, ZONE, Cloud
from trainyard.emulators.aliyun import assistant_runs
from trainyard.emulators.aliyun.api.problems import Problem
from trainyard.emulators.aliyun.cloud import saved_state, stock
from trainyard.emulators.aliyun.cloud.catalogue import TYPES
from trainyard.emulators.aliyun.cloud.world import World

QUOTA = 96
TABLES = ("instances", "disks", "snapshots", "images", "groups", "vpcs", "vswitches", "eips", "file_systems")
picks = st.integers(min_value=0, max_value=50)


class Life(RuleBasedStateMachine):
    """A user who does things in no order, and a provider who takes things away."""

    def __init__(self):
        super().__init__()
        quotas = {"vcpus": QUOTA, "spot_vcpus": QUOTA, "eips": 3, "disks": 60}
        self.cloud = Cloud(quotas=quotas, stock=6)
        self.seen = set()
        self.spent = Decimal(0)

    @initialize()
    def begin(self):
        self.cloud.ready()
        _, self.small = self.cloud.network("192.168.16.0/29", vpc=next(iter(self.cloud.world.vpcs)))

    # --- what a user does

    def attempt(self, product, action, **parameters):
        """Do it, or be refused without having changed anything."""
        before = self.cloud.world.dump()
        refusal = None
        try:
            return self.cloud.call(product, action, **parameters)
        except Problem as problem:
            refusal = problem
        assert 400 <= refusal.status < 500, refusal
        assert refusal.message.endswith("."), refusal.message
        assert self.cloud.world.dump() == before, refusal
        return None

    def some(self, table, pick):
        """One of the things in a table, or one that never was."""
        names = list(getattr(self.cloud.world, table))
        return names[pick % len(names)] if names and pick < 48 else "x-none"

    @rule(
        amount=st.integers(1, 8),
        least=st.integers(0, 8),
        kind=st.sampled_from([TYPE, CPU]),
        spot=st.sampled_from(["NoSpot", "SpotAsPriceGo", "SpotWithPriceLimit"]),
        behavior=st.sampled_from(["Terminate", "Stop"]),
        bandwidth=st.sampled_from([0, 10]),
        small=st.booleans(),
        keep_disk=st.booleans(),
        lease=st.booleans(),
    )
    def launch(self, amount, least, kind, spot, behavior, bandwidth, small, keep_disk, lease):
        launch = {**self.cloud.launch, "InstanceType": kind, "Amount": amount, "SpotStrategy": spot}
        if least:
            launch["MinAmount"] = least
        if spot != "NoSpot":
            launch["SpotInterruptionBehavior"] = behavior
        if spot == "SpotWithPriceLimit":
            launch["SpotPriceLimit"] = 3
        if small:
            launch["VSwitchId"] = self.small
        if keep_disk:
            launch["DataDisk"] = [{"Size": 20, "Category": "cloud_essd", "DeleteWithInstance": False}]
        if lease:
            launch["AutoReleaseTime"] = (self.cloud.now.replace(microsecond=0)).strftime("%Y-%m-%dT23:59:00Z")
        body = self.attempt(
            "ecs",
            "RunInstances",
            **launch,
            InternetMaxBandwidthOut=bandwidth,
            InternetChargeType="PayByBandwidth",
        )
        if body:
            ids = body["InstanceIdSets"]["InstanceIdSet"]
            assert (least or amount) <= len(ids) <= amount

    @rule(
        verb=st.sampled_from(["StartInstances", "StopInstances", "RebootInstances", "DeleteInstances"]),
        which=st.lists(picks, min_size=1, max_size=4),
        mode=st.sampled_from(["StopCharging", "KeepCharging"]),
        each=st.booleans(),
    )
    def power(self, verb, which, mode, each):
        given = {"InstanceId": [self.some("instances", one) for one in which]}
        if verb == "DeleteInstances":
            given["Force"] = each
        elif each:
            given["BatchOptimization"] = "SuccessFirst"
        if verb == "StopInstances":
            given["StoppedMode"] = mode
        self.attempt("ecs", verb, **given)

    @rule(size=st.integers(10, 40))
    def make_disk(self, size):
        self.attempt("ecs", "CreateDisk", ZoneId=ZONE, Size=size)

    @rule(
        verb=st.sampled_from(["AttachDisk", "DetachDisk", "DeleteDisk", "CreateSnapshot", "CreateImage"]),
        disk=picks,
        instance=picks,
    )
    def handle_disk(self, verb, disk, instance):
        given = {"DiskId": self.some("disks", disk), "InstanceId": self.some("instances", instance)}
        if verb in {"DeleteDisk", "CreateSnapshot"}:
            del given["InstanceId"]
        if verb == "CreateImage":
            del given["DiskId"]
        self.attempt("ecs", verb, **given)

    @rule(
        verb=st.sampled_from(["Allocate", "Associate", "Unassociate", "Release"]), eip=picks, instance=picks
    )
    def handle_address(self, verb, eip, instance):
        given = {} if verb == "Allocate" else {"AllocationId": self.some("eips", eip)}
        if verb == "Associate":
            given["InstanceId"] = self.some("instances", instance)
        self.attempt("vpc", f"{verb}EipAddress", **given)

    @rule(which=picks, bandwidth=st.sampled_from([0, 5, 101]))
    def change_bandwidth(self, which, bandwidth):
        name = self.some("instances", which)
        given = {"InternetMaxBandwidthOut": bandwidth, "AllocatePublicIp": True}
        self.attempt("ecs", "ModifyInstanceNetworkSpec", InstanceId=name, **given)

    @rule(which=picks, kind=st.sampled_from([TYPE, CPU]))
    def change_type(self, which, kind):
        self.attempt("ecs", "ModifyInstanceSpec", InstanceId=self.some("instances", which), InstanceType=kind)

    @rule(which=picks, size=st.integers(20, 60))
    def grow_disk(self, which, size):
        self.attempt("ecs", "ResizeDisk", DiskId=self.some("disks", which), NewSize=size)

    @rule(which=picks)
    def command(self, which):
        name = self.some("instances", which)
        self.attempt("ecs", "RunCommand", Type="RunShellScript", CommandContent="x", InstanceId=[name])
        for errand in assistant_runs.errands(self.cloud.world, self.cloud.now)[:1]:
            assistant_runs.begin(self.cloud.world, errand.invocation, errand.instance, self.cloud.now)

    @rule(verb=st.sampled_from(["DeleteVSwitch", "DeleteVpc"]))
    def demolish(self, verb):
        if verb == "DeleteVSwitch":
            if self.cloud.world.interfaces_in(self.small):
                assert self.cloud.refused("vpc", verb, VSwitchId=self.small) == "DependencyViolation"
        else:
            assert self.attempt("vpc", verb, VpcId=next(iter(self.cloud.world.vpcs))) is None

    # --- what the world does

    @rule(seconds=st.sampled_from([0, 0.25, 1, 2, 5, 15, 60, 299, 301, 3600, 40_000]))
    def wait(self, seconds):
        self.cloud.later(seconds)

    @rule(which=picks)
    def interrupt(self, which):
        name = self.some("instances", which)
        if name in self.cloud.world.instances:
            self.cloud.world.interrupt(name, self.cloud.now)

    @rule(kind=st.sampled_from([TYPE, CPU]), spot=st.booleans(), free=st.integers(0, 6))
    def restock(self, kind, spot, free):
        self.cloud.world.set_stock(ZONE, kind, spot=spot, free=free)
        assert self.cloud.world.stock(ZONE, kind, spot=spot) == free

    @rule(price=st.sampled_from([None, Decimal("0.5"), Decimal("2.5"), Decimal(9)]))
    def reprice(self, price):
        self.cloud.world.set_spot_price(ZONE, TYPE, price=price, now=self.cloud.now)

    @precondition(lambda self: self.cloud.world.instances)
    @rule()
    def restart_the_emulator(self):
        saved = json.loads(json.dumps(self.cloud.world.dump()))
        loaded = saved_state.decode(World, saved)
        assert loaded == self.cloud.world
        self.cloud.world = loaded

    # --- what holds

    @invariant()
    def ids_are_unique_and_never_come_back(self):
        world = self.cloud.world
        names = [name for table in TABLES for name in getattr(world, table)]
        assert len(names) == len(set(names))
        gone = self.seen - set(names)
        self.seen |= set(names)
        assert not gone & set(names)
        for table in TABLES:
            assert all(name == one.id for name, one in getattr(world, table).items())

    @invariant()
    def addresses_are_unique_and_inside_their_subnet(self):
        world = self.cloud.world
        shown = [address for address in world._addresses() if address]
        assert len(shown) == len(set(shown))
        assert all(ipaddress.ip_address(one).is_loopback for one in shown)
        for vswitch in world.vswitches.values():
            inside = world.interfaces_in(vswitch.id)
            assert len(inside) == len(set(inside))
            network = ipaddress.ip_network(vswitch.cidr)
            assert all(ipaddress.ip_address(one) in network for one in inside)
            assert len(inside) <= network.num_addresses - 4

    @invariant()
    def stock_and_quota_are_never_exceeded(self):
        world, held = self.cloud.world, stock.held(self.cloud.world)
        for pool, number in held.items():
            zone, kind, mode = pool.split("/")
            assert number <= stock.capacity(world, zone, kind, spot=mode == "spot")
        assert sum(held.values()) == sum(map(stock.holds, world.instances.values()))
        for spot in (False, True):
            assert stock.used_vcpus(world, "cn-beijing", spot=spot) <= QUOTA
        assert len(world.disks) <= 60

    @invariant()
    def exactly_what_exists_is_billed(self):
        world, now = self.cloud.world, self.cloud.now
        open_charges = Counter((one.thing, one.kind) for one in world.charges if one.end is None)
        assert all(count == 1 for count in open_charges.values())
        assert all(one.end is None or one.start <= one.end <= now for one in world.charges)
        expected = {(one.id, "snapshot") for one in world.snapshots.values()}
        expected |= {(one.id, "address") for one in world.eips.values()}
        for one in world.instances.values():
            if not one.deleting and stock.holds(one):
                expected.add((one.id, "instance"))
                if one.public_address:
                    expected.add((one.id, "bandwidth"))
        for disk in world.disks.values():
            instance = world.instances.get(disk.instance)
            if not (instance and instance.deleting and disk.delete_with_instance):
                expected.add((disk.id, "disk"))
        assert set(open_charges) == expected

    @invariant()
    def money_never_comes_back(self):
        spent = self.cloud.world.spent(self.cloud.now)
        assert spent >= self.spent
        self.spent = spent

    @invariant()
    def nothing_hangs_in_the_air(self):
        world, now = self.cloud.world, self.cloud.now
        due = world.next_change()
        assert due is None or due > now
        assert all(one.instance in world.instances for one in world.disks.values() if one.instance)
        for eip in world.eips.values():
            assert not eip.instance or world.instances[eip.instance].eip == eip.id
        for instance in world.instances.values():
            assert instance.type in TYPES
            assert not instance.eip or world.eips[instance.eip].instance == instance.id
            assert not (instance.eip and instance.public_address)
            assert [disk.kind for disk in world.disks_of(instance.id)].count("system") == 1
            devices = [disk.device for disk in world.disks_of(instance.id)]
            assert len(devices) == len(set(devices))
            settled = instance.status in {"Running", "Stopped"} and not instance.deleting
            assert settled == (instance.due is None)

    @invariant()
    def machines_are_wished_for_as_the_statuses_say(self):
        world = self.cloud.world
        wishes = {wish.instance_id: wish for wish in world.machines(self.cloud.now)}
        living = {name: one for name, one in world.instances.items() if not one.deleting}
        assert wishes.keys() == living.keys()
        for name, one in living.items():
            assert wishes[name].running == (one.status in {"Starting", "Running"})
            assert bool(wishes[name].boot) == (one.status != "Pending")


Life.TestCase.settings = settings(
    max_examples=25,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


@pytest.mark.slow  # a thousand steps, each with all invariants
class TestLife(Life.TestCase):
    """What hypothesis finds."""
