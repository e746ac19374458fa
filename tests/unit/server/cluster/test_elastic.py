"""What pools promise to the scheduler, and what its orders become."""

from __future__ import annotations

from dataclasses import replace

from trainyard.scheduling import Acquire, NodeState, Request, Role, Scheduler, Snapshot
from trainyard.server.cluster.elastic_pools import Elastic
from trainyard.server.cluster.pool_provider import machine_name, row_name, spec_of
from trainyard.server.cluster.scheduler_snapshot import snapshot_of
from trainyard.server.records.nodes import NodeCondition, NodeRecord
from trainyard.server.records.pools import MachineRecord, PoolRecord, Shape, Stage
from trainyard.spec.machine import Machine, MachineState

NOW = 1000.0
V100 = Shape(cpu=8000, memory_mib=30_000, devices={"V100": 1}, price=26.0)
POOL = PoolRecord(
    name="gpu", backend="aliyun", types=("a",), most=3, created_at=0.0, shapes={"a": V100}, labels={"team": "x"}
)  # fmt: skip


def elastic(pool: PoolRecord = POOL, *machines: MachineRecord) -> Elastic:
    return Elastic({pool.name: pool}, {one.name: one for one in machines})


def machine(number: int, state: Stage = Stage.WANTED) -> MachineRecord:
    return MachineRecord(name=f"gpu-x-{number}", pool="gpu", backend="aliyun", wanted_at=0.0, state=state)


def job(name: str, replicas: int = 1, devices: int = 1) -> Request:
    return Request(id=name, roles=(Role(replicas=replicas, cpu=1000, devices=devices, device="V100"),))


def snapshot(grows: Elastic, *waiting: Request, nodes: tuple[NodeRecord, ...] = ()) -> Snapshot:
    found = snapshot_of(nodes=nodes, waiting=(), running=(), quotas=(), now=NOW, elastic=grows)
    return replace(found, waiting=waiting)


def test_machines_are_asked_for_once_when_a_job_waits_for_them():
    grows = elastic()
    cycle = Scheduler(snapshot(grows, job("one"), job("two")), NOW).cycle(NOW)
    assert [(one.pool, one.count) for one in cycle.acquires] == [("gpu", 2)]
    wanted = grows.order(cycle.acquires, (), NOW)
    assert len({one.name for one in wanted}) == 2
    assert len({one.order for one in wanted}) == 1
    later = Scheduler(snapshot(elastic(POOL, *wanted), job("one"), job("two")), NOW).cycle(NOW)
    assert later.acquires == []
    assert later.admits == []  # they are coming, not there


def test_no_more_than_the_limit_is_ordered_whatever_is_asked_for():
    grows = elastic(POOL, machine(0), machine(1, Stage.RELEASING))
    assert len(grows.order([Acquire("gpu", 9, ("one",), 1.0)], (), NOW)) == 1


def test_nothing_more_is_ordered_until_what_has_come_was_looked_at():
    asked = [Acquire("gpu", 1, ("one",), 1.0)]
    grows = elastic(POOL, machine(0, Stage.JOINING))
    assert grows.order(asked, (), NOW, ready={"gpu-x-0"}) == []
    assert len(grows.order(asked, (), NOW)) == 1
    assert len(elastic(POOL, machine(0, Stage.JOINED)).order(asked, (), NOW, ready={"gpu-x-0"})) == 1


def test_what_a_pool_keeps_is_ordered_when_nobody_waits():
    kept = replace(POOL, least=2)
    assert len(elastic(kept).order([], (), NOW)) == 2
    assert len(elastic(kept, machine(0)).order([], (), NOW)) == 1
    assert elastic(replace(kept, is_active=False)).order([], (), NOW) == []


def test_an_order_is_whole_when_one_gang_alone_waits_for_it():
    grows = elastic()
    gang = grows.order([Acquire("gpu", 2, ("gang",), 1.0)], {"gang"}, NOW)
    mixed = grows.order([Acquire("gpu", 2, ("gang", "one"), 1.0)], {"gang"}, NOW)
    assert all(one.is_whole for one in gang)
    assert not any(one.is_whole for one in mixed)


def test_nothing_is_promised_while_a_pool_rests_but_to_who_asks_why():
    resting = elastic(replace(POOL, retry_at=NOW + 1))
    assert Scheduler(snapshot(resting, job("one")), NOW).cycle(NOW).acquires == []
    assert resting.order([Acquire("gpu", 1, ("one",), 1.0)], (), NOW) == []
    hopeful = snapshot_of(
        nodes=(), waiting=(), running=(), quotas=(), now=NOW, elastic=resting, is_hopeful=True
    )
    assert hopeful.pools[0].promise is not None
    assert elastic().promises(NOW) != resting.promises(NOW)
    assert elastic().promises(NOW) == resting.promises(NOW + 2)


def test_a_node_is_coming_until_it_is_ready():
    joining = machine(0, Stage.JOINING)
    node = NodeRecord(name="gpu-x-0", created_at=0.0, pool="gpu", state=NodeCondition.LOST)
    found = snapshot(elastic(POOL, joining), nodes=(node,)).nodes
    assert [(one.state, one.cpu, one.labels["team"]) for one in found] == [(NodeState.COMING, 8000, "x")]
    ready = replace(node, state=NodeCondition.READY, cpu=4000)
    found = snapshot(elastic(POOL, joining), nodes=(ready,)).nodes
    assert [(one.state, one.cpu) for one in found] == [(NodeState.READY, 4000)]


def test_jobs_count_on_the_smallest_type_when_several_will_do():
    small = Shape(cpu=4000, memory_mib=60_000, devices={"V100": 1}, price=20.0)
    other = Shape(cpu=4000, memory_mib=60_000, devices={"T4": 1}, price=1.0)
    pool = replace(POOL, types=("a", "b", "c"), shapes={"a": V100, "b": small, "c": other})
    assert pool.usable_types == ("a", "b")
    assert pool.shape == Shape(cpu=4000, memory_mib=30_000, devices={"V100": 1}, price=26.0)
    assert spec_of(pool, "p1").type == "a,b"


def test_images_are_promised_until_a_node_has_shown_that_it_runs_none():
    assert "trainyard/images" in snapshot(elastic()).pools[0].promise.labels
    without = replace(POOL, shapes={"a": replace(V100, runs_images=False)})
    assert "trainyard/images" not in snapshot(elastic(without)).pools[0].promise.labels


def test_a_machine_has_one_name_here_and_there():
    row = machine(7)
    assert machine_name(row) == "task7.gpu-x"
    found = Machine(name="task7.gpu-x", id="i", backend="aliyun", state=MachineState.RUNNING)
    assert row_name(found) == row.name
    assert row_name(replace(found, name="by-hand")) == "by-hand"


def test_the_provider_is_asked_with_the_pools_limits_and_labels():
    spec = spec_of(
        replace(POOL, is_spot=True, price_limit=1.5, options={"system_disk_gib": 80, "image": "mine"}), "p1"
    )
    assert str(spec.max_price_per_hour) == "1.5"
    assert str(spec.spot_price_limit) == "1.5"
    assert spec.labels == {"platform": "p1", "pool": "gpu"}
    assert (spec.system_disk_gib, spec.image, spec.with_driver) == (80, "mine", False)
    assert spec_of(POOL, "p1").with_driver  # devices need one, where nobody names an image
