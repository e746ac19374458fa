"""Pools through the services, on both databases: who may, what is refused, what it has cost."""

from __future__ import annotations

from dataclasses import replace

import pytest

from people import People
from trainyard.lib.errors import ConflictError, DeniedError, InvalidError, NotFoundError, StaleError
from trainyard.server.records.nodes import NodeRecord
from trainyard.server.records.pools import MachineRecord, PoolRecord, Shape, Stage
from trainyard.server.store import audit, events
from trainyard.server.store.cluster import nodes, pools

POOL = PoolRecord(name="gpu", backend="aliyun", types=("a", "b"), most=4, created_at=0.0)


async def test_a_pool_is_made_changed_and_removed_by_administrators_alone(people: People):
    with pytest.raises(DeniedError):
        await people.services.pools.create(people.ann, POOL)
    made = await people.services.pools.create(people.root, POOL)
    assert (made.pool.name, made.cost, made.machines) == ("gpu", 0.0, ())
    with pytest.raises(ConflictError):
        await people.services.pools.create(people.root, POOL)
    assert [view.pool.name for view in await people.services.pools.list(people.ann)] == ["gpu"]
    with pytest.raises(DeniedError):
        await people.services.pools.change(people.ann, "gpu", most=9)
    with pytest.raises(StaleError):
        await people.services.pools.change(people.root, "gpu", version=7, most=9)
    people.db.write_now(lambda c: pools.learn(c, "gpu", message="sold out", failures=3, retry_at=9e9))
    changed = (await people.services.pools.change(people.root, "gpu", most=9, zones=["z1"])).pool
    assert (changed.most, changed.zones, changed.message, changed.retry_at) == (9, ("z1",), "", None)
    with pytest.raises(DeniedError):
        await people.services.pools.remove(people.ann, "gpu")
    await people.services.pools.remove(people.root, "gpu")
    await people.services.pools.remove(people.root, "gpu")
    assert not (await people.services.pools.get(people.root, "gpu")).pool.is_active
    with pytest.raises(ConflictError):
        await people.services.pools.change(people.root, "gpu", most=1)
    told = people.db.read_now(lambda c: [one.code for one in events.page(c, subject="pool")])
    assert told == ["create", "change", "remove"]
    noted = people.db.read_now(lambda c: [one.action for one in audit.page(c, subject="gpu")])
    assert {"pools.create", "pools.change", "pools.remove"} <= set(noted)


WRONG: tuple[dict[str, object], ...] = (
    {"name": "GPU!"},
    {"name": "g" * 41},
    {"backend": "local"},
    {"types": ()},
    {"types": ("a b",)},
    {"types": ("a,b",)},
    {"zones": ("$(reboot)\n",)},
    {"most": -1},
    {"most": 1_000_000},
    {"least": 5},
    {"price_limit": -1.0},
    {"price_limit": float("nan")},
    {"price_limit": float("inf")},
    {"idle_seconds": -1},
    {"options": {"imag": "x"}},
    {"options": {"system_disk_gib": "many"}},
    {"options": {"system_disk_gib": True}},
    {"options": {"image": 7}},
)


async def test_what_cannot_be_bought_is_refused_at_once(people: People):
    for wrong in WRONG:
        with pytest.raises(InvalidError):
            await people.services.pools.create(people.root, replace(POOL, **wrong))  # type: ignore[arg-type]


async def test_a_name_is_refused_when_nodes_have_it_for_their_pool(people: People):
    people.db.write_now(lambda c: nodes.insert_node(c, NodeRecord(name="mine", created_at=0.0, pool="gpu")))
    with pytest.raises(ConflictError):
        await people.services.pools.create(people.root, POOL)


async def test_there_is_no_pool_when_nobody_made_it(people: People):
    with pytest.raises(NotFoundError):
        await people.services.pools.get(people.root, "none")


async def test_the_bill_has_what_runs_and_what_was_released(people: People):
    await people.services.pools.create(people.root, POOL)
    now = people.clock.now().timestamp()
    row = MachineRecord(
        name="gpu-x-0", pool="gpu", backend="aliyun", wanted_at=now, price=3.6, costed_at=now, machine_id="i-1"
    )  # fmt: skip
    other = replace(row, name="gpu-x-1", state=Stage.JOINED)
    people.db.write_now(lambda c: pools.insert_machines(c, [row, other]))
    people.clock.advance(1000)
    later = people.clock.now().timestamp()
    people.db.write_now(lambda c: pools.save_machine(c, row.released(later, "")))
    people.clock.advance(1000)
    view = await people.services.pools.get(people.root, "gpu")
    assert [(one.name, round(one.cost_at(view.at), 6)) for one in view.machines] == [
        ("gpu-x-1", 2.0),
        ("gpu-x-0", 1.0),
    ]
    assert view.cost == pytest.approx(3.0)
    assert [one.name for one in (await people.services.pools.list(people.root))[0].machines] == ["gpu-x-1"]
    assert people.db.read_now(lambda c: pools.backends_since(c, now - 1)) == {"aliyun"}


def test_what_the_leader_learns_makes_no_change_of_people_stale(db):
    shape = Shape(cpu=1, memory_mib=2, devices={"V100": 8}, price=1.5, is_seen=True)
    db.write_now(lambda c: pools.insert_pool(c, POOL))
    read = db.read_now(lambda c: pools.load(c, "gpu"))
    db.write_now(lambda c: pools.learn(c, "gpu", shapes={"a": shape}, currency="CNY", message="sold out"))
    db.write_now(lambda c: pools.save(c, replace(read, most=7)))
    found = db.read_now(lambda c: pools.load(c, "gpu"))
    assert (found.most, found.shapes, found.currency) == (7, {"a": shape}, "CNY")
    db.write_now(lambda c: pools.learn(c, "gone", message="nobody minds"))
    with pytest.raises(ValueError, match="most"):
        db.write_now(lambda c: pools.learn(c, "gpu", most=1))
