"""What becomes of a pool's machine: pure decisions, from what rows, nodes and the provider say. leader/pool_loop.py does them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from trainyard.messages.catalogue import Said, say
from trainyard.messages.text import Values
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
    reason: str = ""  # the code of the message in the catalogue, and what it names
    values: Values = field(default_factory=dict)
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


def release(row: MachineRecord, why: Said, *, code: str = "machine_leaves", is_failure: bool = False) -> Step:
    """Give it back, whatever it is doing."""
    changed = replace(row, state=Stage.RELEASING, message=why.message)
    return Step(
        machine=changed,
        code=code,
        message=why.message,
        reason=why.code,
        values=why.values,
        desired=NodeDesired.GONE,
        is_failure=is_failure,
    )


def gone(row: MachineRecord, why: Said, now: float) -> Step:
    """It is the provider's again: what ran there starts elsewhere."""
    return Step(
        machine=row.released(now, why.message),
        code="machine_gone",
        message=why.message,
        reason=why.code,
        desired=NodeDesired.GONE,
    )


# -- inside


def _leave(row: MachineRecord, sight: MachineFacts, now: float) -> Step | None:
    """Why a machine has to go, in any stage."""
    node = sight.node
    # NB: a node that answers is there, whatever a list says that was made under another name or in another region.
    if sight.misses >= MISSES and (node is None or node.state != NodeCondition.READY):
        return gone(row, say("pool.gone"), now)
    if row.state != Stage.JOINING and (node is None or node.desired == NodeDesired.GONE):
        return release(row, say("pool.node_removed")) if not sight.is_busy else None
    why, code = _reason(sight)
    if why is None:
        return None
    if row.state == Stage.JOINING:
        return release(row, why, code=code)
    if node is None or node.desired == NodeDesired.DRAINED:
        return None
    changed = replace(row, state=Stage.DRAINING, message=why.message)
    return Step(machine=changed, code=code, message=why.message, reason=why.code, desired=NodeDesired.DRAINED)


def _reason(sight: MachineFacts) -> tuple[Said | None, str]:
    """Why it has to go, and the code of the event; None: it has not."""
    if sight.pool is None or not sight.pool.is_active:
        return say("pool.removed"), "machine_drains"
    notice = "" if sight.machine is None else sight.machine.details.get("notice", "")
    return (Said("", f"{notice[:1].upper()}{notice[1:]}."), "spot_notice") if notice else (None, "")


def _join(row: MachineRecord, sight: MachineFacts, now: float) -> Step | None:
    node, machine = sight.node, sight.machine
    if node is None:
        is_there = machine is not None and machine.state is MachineState.RUNNING
        if is_there and machine is not None and (machine.public_address or machine.address):
            return Step(machine=replace(row, message=say("pool.boots").message), joins=True)
    elif node.state == NodeCondition.READY:
        changed = replace(row, state=Stage.JOINED, joined_at=now, idle_since=now, message="")
        learnt = Shape(
            cpu=node.cpu,
            memory_mib=node.memory_mib,
            devices=dict(node.devices),
            runs_images=can_run_images(node),
            is_seen=True,
        )
        joined = say("machine_joined", machine=row.name)
        return Step(
            machine=changed,
            code="machine_joined",
            message=joined.message,
            reason=joined.code,
            values=joined.values,
            learnt=learnt,
        )
    elif node.state == NodeCondition.REFUSED:
        return release(row, say("pool.refused", why=node.reason), code="machine_refused", is_failure=True)
    if not sight.is_late:
        return None
    minutes = round(JOIN_SECONDS / 60)
    said = "" if node is None else node.reason
    why = (
        say("pool.not_joined_because", minutes=minutes, why=said)
        if said
        else say("pool.not_joined", minutes=minutes)
    )
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
    why = say("pool.idle", seconds=round(now - row.idle_since))
    is_vain = row.worked_at is None and sight.is_awaited
    if is_vain:
        why = say("pool.in_vain", machine=row.name)
    changed = replace(row, state=Stage.DRAINING, message=why.message)
    return Step(
        machine=changed,
        code="machine_idle",
        message=why.message,
        reason=why.code,
        values=why.values,
        desired=NodeDesired.CORDONED,
        is_failure=is_vain,
        is_vain=is_vain,
    )


def _drain(row: MachineRecord, sight: MachineFacts, now: float) -> Step | None:
    node = sight.node
    if node is None or sight.is_left:
        return release(row, Said("", row.message), code="")  # it was told when the draining began
    is_idle = _reason(sight)[0] is None
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
