"""A world that is saved and loaded is the same world, and goes on alike."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import timedelta

import pytest

from emulated import PUBLIC_KEY, Cloud
from trainyard.emulators.aliyun.api.control import _without_secrets
from trainyard.emulators.aliyun.api.problems import Problem
from trainyard.emulators.aliyun.cloud import saved_state
from trainyard.emulators.aliyun.cloud.world import World


def busy():
    """A cloud in which everything exists, much of it half-way."""
    cloud = Cloud().ready()
    cloud.ecs("ImportKeyPair", KeyPairName="mine", PublicKeyBody=PUBLIC_KEY)
    group = cloud.launch["SecurityGroupId"]
    rule = {"IpProtocol": "tcp", "PortRange": "22/22", "SourceCidrIp": "1.2.3.4"}
    cloud.ecs("AuthorizeSecurityGroup", SecurityGroupId=group, Permissions=[rule])
    cloud.running(Amount=3, KeyPairName="mine", SpotStrategy="SpotWithPriceLimit", SpotPriceLimit=20.5)
    a, b, c = cloud.world.instances
    cloud.world.interrupt(a, cloud.now)
    cloud.ecs("StopInstances", InstanceId=[b], StoppedMode="StopCharging")
    cloud.ecs("CreateImage", InstanceId=c, ImageName="im")
    cloud.ecs("RunCommand", Type="RunShellScript", CommandContent="echo 中 '\"", InstanceId=[c])
    cloud.nas("CreateFileSystem", ProtocolType="NFS", StorageType="Capacity")
    cloud.vpc("AllocateEipAddress")
    cloud.ecs("CreateDeploymentSet")
    cloud.run(
        InstanceName="中文.x", Amount=2, UserData="QUJD" * 1000, Tag=[{"Key": "a\n'\"", "Value": "$(b)"}]
    )
    cloud.world.set_stock("cn-beijing-h", "ecs.g6.large", spot=True, free=3)
    return cloud


def test_a_loaded_world_equals_the_saved_one_and_goes_on_alike(tmp_path):
    cloud = busy()
    path = tmp_path / "a b'中.json"
    cloud.world.save(path)
    loaded = World.load(path)
    assert loaded == cloud.world
    assert loaded.dump() == cloud.world.dump()
    later = cloud.now + timedelta(hours=3)
    for world in (loaded, cloud.world):
        world.advance(later)
    assert loaded == cloud.world
    assert loaded.machines(later) == cloud.world.machines(later)
    assert loaded.spent(later) == cloud.world.spent(later)
    assert loaded.new_id("i-") == cloud.world.new_id("i-")


def test_user_data_is_saved_once_however_many_have_it():
    cloud = Cloud().ready()
    cloud.run(Amount=50, UserData="QUJD" * 5000)
    saved = json.dumps(cloud.world.dump())
    assert saved.count("QUJD" * 5000) == 1
    loaded = saved_state.decode(World, json.loads(saved))
    assert loaded == cloud.world
    assert loaded.machines(cloud.now)[49].user_data == b"ABC" * 5000


def test_what_machines_were_told_is_not_shown_to_those_who_look_inside():
    cloud = Cloud(seed="the-seed").ready()
    cloud.run(UserData="QUJD" * 100, Password="Secret-Word-1")
    cloud.run(UserData="c2hvcnQ=")
    shown = json.dumps(_without_secrets(cloud.world.dump()))
    assert not [word for word in ("the-seed", "QUJD", "Secret-Word-1", "c2hvcnQ=") if word in shown]
    assert "instances" in shown


def test_passing_time_in_steps_or_at_once_comes_to_the_same():
    slow, quick = busy(), busy()
    for _ in range(400):
        slow.later(17)
    quick.later(400 * 17)
    assert slow.world == quick.world


def test_every_change_is_announced():
    cloud = busy()
    while (due := cloud.world.next_change()) is not None and due < cloud.now + timedelta(days=1):
        before = cloud.world.dump()
        cloud.world.advance(due - timedelta(microseconds=1))
        assert {**cloud.world.dump(), "clock": None} == {**before, "clock": None}
        cloud.world.advance(due)
        assert {**cloud.world.dump(), "clock": None} != {**before, "clock": None}


def test_a_clock_that_is_set_back_changes_nothing():
    cloud = busy()
    before = cloud.world.dump()
    cloud.world.advance(cloud.now - timedelta(hours=1))
    assert cloud.world.dump() == before


def test_states_of_other_versions_load(tmp_path):
    saved = busy().world.dump()
    for row in saved["instances"].values():
        row["of_the_future"] = 1
        del row["boot"]
    saved["unknown"] = {}
    path = tmp_path / "state"
    path.write_text(json.dumps(saved))
    loaded = World.load(path)
    assert {one.boot for one in loaded.instances.values()} == {0}


def test_options_change_by_name_and_unknown_ones_are_refused():
    world = World()
    world.set_options({"timing": {"starting": 0}, "slow": [{"names": "x*", "stopping": 99}]})
    assert world.options.timing.starting == 0
    assert world.options.timing.pending == 2
    assert world.options.duration("stopping", "x1") == timedelta(seconds=99)
    before = world.dump()
    for wrong in (
        {"timing": {"warp": 9}},
        {"timing": {"starting": "soon"}},
        {"timing": {"starting": -1}},
        {"timing": {"starting": True}},
        {"timing": 3},
        {"market": "yes"},
        {"stock": 1.5},
        {"slow": [{"names": "x", "startng": 3}]},
        {"slow": [{"starting": 3}]},
        {"slow": 7},
        {"account": {"balance": "much"}},
        {"account": {"roles": [1]}},
        {"loopback": "10.0.0.0/8"},
        {"loopback": "127.0.0.0/30"},
        {"loopback": "nonsense"},
    ):
        with pytest.raises(Problem):
            world.set_options(wrong)
    assert world.dump() == before


def test_what_cannot_be_saved_is_told():
    @dataclass
    class Odd:
        thing: object

    with pytest.raises(TypeError, match="object cannot be saved"):
        saved_state.encode(Odd(object()))
