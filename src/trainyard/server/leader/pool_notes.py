"""What pools say of themselves: why they cannot buy, and what happens to their machines. When they say it is pool_loop.py's."""

from __future__ import annotations

from sqlalchemy import Connection

from trainyard.messages.catalogue import Said
from trainyard.server.cluster.machine_lifecycle import Step
from trainyard.server.records.pools import MachineRecord, PoolRecord
from trainyard.server.store.cluster import pools
from trainyard.spec.events import Event, Subject

# What a pool says that could buy.
NOTHING = Said("", "")


def pool_event(pool: str, code: str, why: Said, now: float, machine: MachineRecord | None = None) -> Event:
    """What happened to a pool, or to a machine of it."""
    data: dict[str, object] = dict(why.values) if not why.code else {**why.values, "text": why.code}
    if machine is not None:
        own = {"machine": machine.name, "id": machine.machine_id, "cost": round(machine.cost, 4)}
        data = {**own, **data}
    return Event(
        time=now, subject=Subject.POOL, subject_id=pool, code=code, message=why.message, data=data or None
    )


def why_of(step: Step) -> Said:
    """What a step says."""
    return Said(step.reason, step.message, step.values)


def tell_pool(c: Connection, name: str, why: Said) -> None:
    """Note why a pool could not buy."""
    pools.learn(c, name, message=why.message, reason=why.code, facts=dict(why.values) or None)


def was_told(pool: PoolRecord, why: Said) -> bool:
    """Whether the pool says this already, so that an event would only repeat it."""
    return (pool.reason, dict(pool.facts or {})) == (why.code, dict(why.values))
