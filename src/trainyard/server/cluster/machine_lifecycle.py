"""What becomes of a pool's machine: pure decisions, from what rows, nodes and the provider say. leader/pool_loop.py does them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from trainyard.server.records.nodes import NodeCondition, NodeDesired, NodeRecord, can_run_images
from trainyard.server.records.pools import COMING, MachineRecord, PoolRecord, Shape, Stage
from trainyard.spec.machine import Machine, MachineState

# From the purchase until a node is ready: an image with a driver boots for minutes.
JOIN_SECONDS = 900.0
# So many lists in a row without a machine, and it is gone: one list may have been made too early.
MISSES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFacts:
    """What is known of one machine besides its row."""

    pool: PoolRecord | None
    node: NodeRecord | None = None
    machine: Machine | None = None  # as the provider listed it last
    misses: int = 0  # lists in a row without it
    is_busy: bool = False  # a job has a place there
    is_left: bool = False  # nothing runs there, and nothing will
    is_awaited: bool = False  # a job that it was bought for still waits
    is_late: bool = False  # it should be a node by now
    is_spare: bool = False  # its pool has more than it keeps in any case, and nobody waits for more


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A machine's next stage, and what goes with it."""

    machine: MachineRecord
    code: str = ""  # of an event; none: nothing to tell
    message: str = ""
    desired: str = ""  # of its node
    joins: bool = False  # a node is to be made of it
    learnt: Shape | None = None  # what its type really has
    is_failure: bool = False  # of its pool: the next purchase waits
    is_vain: bool = False  # the same, for long: more of it would be as useless
    is_success: bool = False  # its pool is of use


def follow(row: MachineRecord, sight: MachineFacts, now: float) -> Step | None:
    """The next step of a machine, if there is one."""
    if row.state == Stage.JOINING:
        # A node that is ready may have work already: it leaves as others do, with grace.
        is_ready = sight.node is not None and sight.node.state == NodeCondition.READY
        return _join(row, sight, now) if is_ready else _leave(row, sight, now) or _join(row, sight, now)
    if row.state == Stage.JOINED:
        return _leave(row, sight, now) or _watch_idleness(row, sight, now)
    if row.state == Stage.DRAINING:
        return _leave(row, sight, now) or _drain(row, sight, now)
    return None


def release(row: MachineRecord, why: str, *, code: str = "machine_leaves", is_failure: bool = False) -> Step:
    """Give it back, whatever it is doing."""
    changed = replace(row, state=Stage.RELEASING, message=why)
    return Step(machine=changed, code=code, message=why, desired=NodeDesired.GONE, is_failure=is_failure)


def gone(row: MachineRecord, why: str, now: float) -> Step:
    """It is the provider's again: what ran there starts elsewhere."""
    return Step(machine=row.released(now, why), code="machine_gone", message=why, desired=NodeDesired.GONE)


# -- inside


def _leave(row: MachineRecord, sight: MachineFacts, now: float) -> Step | None:
    """Why a machine has to go, in any stage."""
    node = sight.node
    # NB: a node that answers is there, whatever a list says that was made under another name or in another region.
    if sight.misses >= MISSES and (node is None or node.state != NodeCondition.READY):
        return gone(row, "The provider has it no more.", now)
    if row.state != Stage.JOINING and (node is None or node.desired == NodeDesired.GONE):
        return release(row, "Its node was taken away.") if not sight.is_busy else None
    why, code = _reason(sight)
    if not why:
        return None
    if row.state == Stage.JOINING:
        return release(row, why, code=code)
    if node is None or node.desired == NodeDesired.DRAINED:
        return None
    changed = replace(row, state=Stage.DRAINING, message=why)
    return Step(machine=changed, code=code, message=why, desired=NodeDesired.DRAINED)


def _reason(sight: MachineFacts) -> tuple[str, str]:
    if sight.pool is None or not sight.pool.is_active:
        return "Its pool is being removed.", "machine_drains"
    notice = "" if sight.machine is None else sight.machine.details.get("notice", "")
    return (f"{notice[:1].upper()}{notice[1:]}.", "spot_notice") if notice else ("", "")


def _join(row: MachineRecord, sight: MachineFacts, now: float) -> Step | None:
    node, machine = sight.node, sight.machine
    if node is None:
        is_there = machine is not None and machine.state is MachineState.RUNNING
        if is_there and machine is not None and (machine.public_address or machine.address):
            return Step(machine=replace(row, message="It boots."), joins=True)
    elif node.state == NodeCondition.READY:
        changed = replace(row, state=Stage.JOINED, joined_at=now, idle_since=now, message="")
        learnt = Shape(
            cpu=node.cpu,
            memory_mib=node.memory_mib,
            devices=dict(node.devices),
            runs_images=can_run_images(node),
            is_seen=True,
        )
        return Step(machine=changed, code="machine_joined", message=f"{row.name} is a node.", learnt=learnt)
    elif node.state == NodeCondition.REFUSED:
        return release(row, f"It cannot be a node: {node.reason}", code="machine_refused", is_failure=True)
    if not sight.is_late:
        return None
    said = f" {node.reason}" if node is not None and node.reason else ""
    why = f"It did not become a node within {JOIN_SECONDS / 60:.0f} minutes.{said}"
    return release(row, why, code="machine_refused", is_failure=True)


def _watch_idleness(row: MachineRecord, sight: MachineFacts, now: float) -> Step | None:
    if sight.is_busy:
        if row.worked_at is None:
            return Step(machine=replace(row, idle_since=None, worked_at=now), is_success=True)
        return None if row.idle_since is None else Step(machine=replace(row, idle_since=None))
    if row.idle_since is None or row.idle_since > now:  # the clock was set back
        return Step(machine=replace(row, idle_since=now))
    limit = sight.pool.idle_seconds if sight.pool is not None else 0
    if now - row.idle_since < limit or not sight.is_spare:
        return None
    why = f"It was idle for {now - row.idle_since:.0f} s."
    is_vain = row.worked_at is None and sight.is_awaited
    if is_vain:
        why = f"Bought in vain: {row.name} was there, and the jobs that it was bought for could not use it."
    changed = replace(row, state=Stage.DRAINING, message=why)
    return Step(
        machine=changed,
        code="machine_idle",
        message=why,
        desired=NodeDesired.CORDONED,
        is_failure=is_vain,
        is_vain=is_vain,
    )


def _drain(row: MachineRecord, sight: MachineFacts, now: float) -> Step | None:
    node = sight.node
    if node is None or sight.is_left:
        return release(row, row.message, code="")  # it was told when the draining began
    is_idle = not _reason(sight)[0]
    if is_idle and node.desired != NodeDesired.DRAINED and sight.is_busy:  # work came before we said no
        return Step(
            machine=replace(row, state=Stage.JOINED, idle_since=None, message=""), desired=NodeDesired.READY
        )
    if is_idle and node.desired == NodeDesired.READY:  # somebody wants it to stay
        return Step(machine=replace(row, state=Stage.JOINED, idle_since=now, message=""))
    return None


def spare(pool: PoolRecord, rows: Mapping[str, MachineRecord], now: float) -> int:
    """How many machines of a pool may go for being idle: none while others are awaited, perhaps by a gang."""
    own = [row for row in rows.values() if row.pool == pool.name]
    if any(row.state in COMING and now - row.wanted_at < JOIN_SECONDS for row in own):
        return 0
    return sum(row.state == Stage.JOINED for row in own) - pool.least
