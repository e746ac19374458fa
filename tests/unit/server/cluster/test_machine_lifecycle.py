"""What becomes of a pool's machine, decision by decision."""

from __future__ import annotations

from dataclasses import replace

import pytest

from trainyard.server.cluster import machine_lifecycle
from trainyard.server.cluster.machine_lifecycle import JOIN_SECONDS, MachineFacts, follow
from trainyard.server.records.nodes import NodeCondition, NodeDesired, NodeRecord
from trainyard.server.records.pools import MachineRecord, PoolRecord, Stage
from trainyard.spec.machine import Machine, MachineState

NOW = 10_000.0
POOL = PoolRecord(name="gpu", backend="aliyun", types=("a",), most=4, created_at=0.0, idle_seconds=60)
NODE = NodeRecord(name="gpu-x-0", created_at=0.0, state=NodeCondition.READY, cpu=8000, memory_mib=1000)
MACHINE = Machine(
    name="task0.gpu-x", id="i-1", backend="aliyun", state=MachineState.RUNNING, public_address="192.0.2.1"
)
NOTICED = replace(MACHINE, details={"notice": "the provider takes it back"})


def row(state: Stage, **given: object) -> MachineRecord:
    values = {"name": "gpu-x-0", "pool": "gpu", "backend": "aliyun", "wanted_at": NOW - 100, **given}
    return MachineRecord(state=state, machine_id="i-1", price=3.6, costed_at=NOW - 100, **values)  # type: ignore[arg-type]


def sight(**given: object) -> MachineFacts:
    return MachineFacts(**{"pool": POOL, "node": NODE, "machine": MACHINE, **given})  # type: ignore[arg-type]


@pytest.mark.parametrize("state", [Stage.WANTED, Stage.RELEASING, Stage.RELEASED])
def test_nothing_is_decided_when_others_are_at_work_on_it(state):
    assert follow(row(state), sight(misses=9), NOW) is None


def test_a_node_is_made_when_the_machine_runs():
    step = follow(row(Stage.JOINING), sight(node=None), NOW)
    assert step is not None
    assert step.joins
    assert step.machine.state == Stage.JOINING
    booting = replace(MACHINE, state=MachineState.PENDING)
    assert follow(row(Stage.JOINING), sight(node=None, machine=booting), NOW) is None


def test_it_has_joined_when_its_node_is_ready_and_the_pool_learns_what_it_has():
    step = follow(row(Stage.JOINING), sight(), NOW)
    assert step is not None
    assert step.machine.state == Stage.JOINED
    assert step.learnt is not None
    assert step.learnt.cpu == 8000
    assert step.learnt.is_seen


def test_it_is_given_back_when_it_does_not_join_in_time():
    lost = replace(NODE, state=NodeCondition.LOST, reason="no answer")
    late = row(Stage.JOINING)
    step = follow(late, sight(node=lost, is_late=True), NOW)
    assert step is not None
    assert step.machine.state == Stage.RELEASING
    assert step.is_failure
    assert "no answer" in step.message
    assert follow(row(Stage.JOINING), sight(node=lost), NOW) is None


@pytest.mark.parametrize("stage", [Stage.JOINED, Stage.DRAINING])
def test_its_work_leaves_with_grace_when_it_is_given_notice(stage):
    step = follow(row(stage, idle_since=NOW), sight(machine=NOTICED, is_busy=True), NOW)
    assert step is not None
    assert (step.machine.state, step.desired) == (Stage.DRAINING, NodeDesired.DRAINED)


def test_work_that_came_early_leaves_with_grace_when_a_joining_machine_is_given_notice():
    first = follow(row(Stage.JOINING), sight(machine=NOTICED, is_busy=True), NOW)
    assert first is not None
    assert first.machine.state == Stage.JOINED


def test_it_is_gone_when_neither_the_provider_nor_its_node_knows_of_it():
    lost = replace(NODE, state=NodeCondition.LOST)
    assert follow(row(Stage.JOINED, idle_since=NOW), sight(node=lost, machine=None, misses=1), NOW) is None
    step = follow(row(Stage.JOINED, idle_since=NOW), sight(node=lost, machine=None, misses=2), NOW)
    assert step is not None
    assert (step.machine.state, step.desired) == (Stage.RELEASED, NodeDesired.GONE)
    assert step.machine.released_at == NOW
    assert step.machine.cost == pytest.approx(0.1)  # 100 s at 3.6 an hour


def test_it_stays_when_a_list_lacks_it_and_its_node_answers():
    assert follow(row(Stage.JOINED, idle_since=NOW), sight(machine=None, misses=99), NOW) is None


def test_it_goes_when_it_was_idle_for_long_and_is_spare():
    idle = row(Stage.JOINED, idle_since=NOW - 60)
    assert follow(idle, sight(is_spare=False), NOW) is None
    assert follow(row(Stage.JOINED, idle_since=NOW - 59), sight(is_spare=True), NOW) is None
    step = follow(idle, sight(is_spare=True), NOW)
    assert step is not None
    assert (step.machine.state, step.desired) == (Stage.DRAINING, NodeDesired.CORDONED)


def test_the_pool_rests_when_a_machine_was_of_no_use_to_those_that_it_was_bought_for():
    idle = row(Stage.JOINED, idle_since=NOW - 60, for_jobs=("j1",))
    step = follow(idle, sight(is_spare=True, is_awaited=True), NOW)
    assert step is not None
    assert step.is_failure
    assert step.is_vain
    used = replace(idle, worked_at=NOW - 80)
    for one, awaited in ((used, True), (idle, False)):
        step = follow(one, sight(is_spare=True, is_awaited=awaited), NOW)
        assert step is not None
        assert not step.is_failure
    busy = follow(idle, sight(is_busy=True), NOW)
    assert busy is not None
    assert busy.is_success
    assert busy.machine.worked_at == NOW


def test_idleness_begins_anew_when_work_came_or_the_clock_was_set_back():
    busy = follow(row(Stage.JOINED, idle_since=NOW - 60), sight(is_busy=True, is_spare=True), NOW)
    assert busy is not None
    assert busy.machine.idle_since is None
    back = follow(row(Stage.JOINED, idle_since=NOW + 3600), sight(is_spare=True), NOW)
    assert back is not None
    assert back.machine.idle_since == NOW


def test_it_is_released_only_when_nothing_can_come_there_any_more():
    cordoned = replace(NODE, desired=NodeDesired.CORDONED)
    assert follow(row(Stage.DRAINING), sight(node=cordoned), NOW) is None
    step = follow(row(Stage.DRAINING), sight(node=cordoned, is_left=True), NOW)
    assert step is not None
    assert (step.machine.state, step.desired) == (Stage.RELEASING, NodeDesired.GONE)


def test_it_stays_when_work_came_before_the_conductor_heard_of_the_draining():
    cordoned = replace(NODE, desired=NodeDesired.CORDONED)
    step = follow(row(Stage.DRAINING), sight(node=cordoned, is_busy=True), NOW)
    assert step is not None
    assert (step.machine.state, step.desired) == (Stage.JOINED, NodeDesired.READY)


def test_it_stays_when_an_administrator_takes_the_node_into_use_again():
    step = follow(row(Stage.DRAINING), sight(), NOW)
    assert step is not None
    assert step.machine.state == Stage.JOINED


@pytest.mark.parametrize("pool", [None, replace(POOL, is_active=False)])
def test_it_drains_when_its_pool_is_removed(pool):
    step = follow(row(Stage.JOINED, idle_since=NOW), sight(pool=pool, is_busy=True), NOW)
    assert step is not None
    assert step.desired == NodeDesired.DRAINED
    drained = replace(NODE, desired=NodeDesired.DRAINED)
    assert follow(row(Stage.DRAINING), sight(pool=pool, node=drained, is_busy=True), NOW) is None


def test_it_is_given_back_when_an_administrator_took_its_node_away():
    for node in (None, replace(NODE, desired=NodeDesired.GONE)):
        step = follow(row(Stage.JOINED, idle_since=NOW), sight(node=node), NOW)
        assert step is not None
        assert step.machine.state == Stage.RELEASING
        assert follow(row(Stage.JOINED, worked_at=1.0), sight(node=node, is_busy=True), NOW) is None


def test_none_is_spare_while_others_are_awaited():
    rows = {"a": row(Stage.JOINED), "b": row(Stage.JOINED), "c": row(Stage.WANTED)}
    assert machine_lifecycle.spare(POOL, rows, NOW) == 0
    assert (
        machine_lifecycle.spare(POOL, rows, NOW + JOIN_SECONDS) == 2
    )  # a purchase that never ends holds nobody
    del rows["c"]
    assert machine_lifecycle.spare(replace(POOL, least=1), rows, NOW) == 1
