"""The leader's second loop: machines of pools are bought, joined, watched, drained and released, beside the conductor's turns.

The conductor writes what is wanted; what becomes of a machine is decided in machine_lifecycle.py; providers are asked by listings.py, each
call in a task of its own, so that a slow one holds up nothing else. Every change is written before it is acted on: a leader
that dies on any line is followed by one that finds rows and machines as they are. What a provider has and no row knows, goes.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from sqlalchemy import Connection

from trainyard.backends.machine_address import pack
from trainyard.lib.aio import finish, gather_all
from trainyard.lib.clock import Deadlines
from trainyard.lib.errors import (
    CapacityError,
    ConflictError,
    Error,
    InvalidError,
    TaskErrors,
    UnsupportedError,
)
from trainyard.messages.catalogue import Said, say
from trainyard.messages.pools import ENDED_BY_AN_ANSWER
from trainyard.server.cluster import machine_lifecycle
from trainyard.server.cluster.elastic_pools import DECLARE_DEVICES
from trainyard.server.cluster.machine_lifecycle import MachineFacts, Step
from trainyard.server.cluster.pool_provider import PoolProvider, row_name, said_of
from trainyard.server.leader.leader_lease import LeaderTerm, LeadLostError
from trainyard.server.leader.pool_demand import PoolChannel
from trainyard.server.leader.pool_notes import NOTHING, pool_event, tell_pool, was_told, why_of
from trainyard.server.records.nodes import NodeDesired, NodeRecord
from trainyard.server.records.pools import MachineRecord, PoolRecord, Stage
from trainyard.server.store import events
from trainyard.server.store.cluster import nodes, pools
from trainyard.server.wakeups import EVENTS, POOLS, Wakeups
from trainyard.spec.events import Event, Subject
from trainyard.spec.machine import Machine, MachineState

logger = logging.getLogger(__name__)

LOOK_SECONDS = 2.0  # between two looks, unless the settings say otherwise
QUIET_SECONDS = 15.0  # between two looks where there is no pool
LOOKS = 2.5  # between two lists of a provider's machines; a spot notice comes five minutes ahead
QUIET_LIST_SECONDS = 60.0  # the same where we have none: only strays are looked for
MEASURE_SECONDS = (
    600.0  # figures and prices are asked for again after this, those of spot machines that we have too
)
CLOSE_SECONDS = 3.0
DAY = 86400.0
# After a purchase that failed, the next waits so long, doubled each time.
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 15.0, 600.0
# The same after a machine that came and was of no use: what was wrong with it will be wrong with the next.
VAIN_PAUSE_SECONDS = 600.0
LONGEST_VAIN_PAUSE_SECONDS = LONGEST_PAUSE_SECONDS * VAIN_PAUSE_SECONDS / FIRST_PAUSE_SECONDS
# Errors after which nothing was bought, for certain. After others it is asked again under the same names.
REFUSALS = (CapacityError, InvalidError, UnsupportedError)


@dataclass(frozen=True, slots=True)
class PoolRows:
    """The rows, as one look sees them."""

    pools: Mapping[str, PoolRecord]
    rows: Mapping[str, MachineRecord]  # live ones
    nodes: Mapping[str, NodeRecord]
    backends: frozenset[str]  # where machines may be


@dataclass(slots=True)
class Listing:
    """What a provider has of ours."""

    at: float = float("-inf")  # by the clock that never steps
    machines: dict[str, Machine] = field(default_factory=dict)  # by the name of the row
    misses: Counter[str] = field(default_factory=Counter)
    strays: Counter[str] = field(default_factory=Counter)  # ids, and in how many lists in a row
    held: set[str] = field(default_factory=set)  # ids whose time we renew


class Pools:
    """One term of looking after machines."""

    def __init__(
        self,
        term: LeaderTerm,
        places: PoolChannel,
        wakeups: Wakeups,
        pool_provider: PoolProvider,
        *,
        look_seconds: float = LOOK_SECONDS,
    ) -> None:
        self._term = term
        self._places = places
        self._wakeups = wakeups
        self._pool_provider = pool_provider
        self._look_seconds = look_seconds
        self._list_seconds = LOOKS * look_seconds
        self._running: dict[str, asyncio.Task[None]] = {}
        self._listings: dict[str, Listing] = {}
        self._measured: dict[str, tuple[float, tuple[str, ...]]] = {}  # pool → when, and which types
        self._repriced: dict[str, float] = {}  # backend → when
        self._pauses: dict[str, tuple[int, float]] = {}  # what failed → how often, and until when it rests
        # A clock that is set back keeps no pool from buying, and no machine that never joins.
        self._moments = Deadlines(term.clock, longest=LONGEST_VAIN_PAUSE_SECONDS)
        self._failed: BaseException | None = None

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        try:
            while True:
                mark = self._wakeups.mark(POOLS)
                pause = self._look_seconds
                try:
                    pause = await self.look()
                except Error as error:
                    logger.warning("pools are looked at again in a moment: %s", error)
                if self._failed is not None:
                    raise self._failed
                await self._wakeups.wait(POOLS, timeout=pause, since=mark)
        finally:
            await finish(self._close())

    async def _close(self) -> None:
        """Let purchases end that are about to: one that is cut short is taken back, and bought anew by who comes next."""
        tasks = list(self._running.values())
        if tasks:
            await asyncio.wait(tasks, timeout=CLOSE_SECONDS)
        for task in tasks:
            task.cancel()
        await gather_all(tasks)
        await self._pool_provider.aclose()

    async def look(self) -> float:
        """One look at everything; returns how long the next may wait."""
        view = await self._term.db.read(self._read)
        if not view.pools and not view.rows and not view.backends:
            return QUIET_SECONDS
        now = self._now()
        self._measure(view)
        await self._expire(view, now)
        self._buy(view)
        self._list(view)
        self._reprice(view)
        await self._follow(view, now)
        for row in view.rows.values():
            if row.state == Stage.RELEASING:
                self._begin(f"release {row.name}", self._release(row))
        await self._remove_pools(view, now)
        return self._look_seconds

    # -- reading and writing

    def _read(self, c: Connection) -> PoolRows:
        rows = {row.name: row for row in pools.list_machines(c)}
        found = {name: nodes.find(c, name) for name in rows}
        return PoolRows(
            {pool.name: pool for pool in pools.list_pools(c)},
            rows,
            {name: node for name, node in found.items() if node is not None},
            frozenset(pools.backends_since(c, self._now() - DAY)),
        )

    async def _apply(self, steps: Sequence[Step], view: PoolRows, now: float) -> None:
        """Write what was decided, all of it at once."""

        def work(c: Connection) -> None:
            for step in steps:
                pools.save_machine(c, step.machine)
                _change_node(c, step, self._node_of(step, view), now)
                if step.code:
                    events.append(
                        c, pool_event(step.machine.pool, step.code, why_of(step), now, step.machine)
                    )
                if step.learnt is not None:
                    self._learn(c, step, now)
                if step.is_failure:
                    first = VAIN_PAUSE_SECONDS if step.is_vain else FIRST_PAUSE_SECONDS
                    self._note_failure(c, step.machine.pool, why_of(step), now, first=first)
                if step.is_success:
                    pools.learn(c, step.machine.pool, failures=0)

        await self._term.write(work)
        self._wakeups.wake(EVENTS, POOLS)
        self._places.look_again()

    def _node_of(self, step: Step, view: PoolRows) -> NodeRecord | None:
        """The node to be made of a machine."""
        row = step.machine
        pool, machine = view.pools.get(row.pool), self._listing(row.backend).machines.get(row.name)
        if not step.joins or pool is None or machine is None:
            return None
        shape = pool.shapes.get(row.machine_type)
        declared = dict(shape.devices) if shape is not None and pool.options.get(DECLARE_DEVICES) else {}
        return NodeRecord(
            name=row.name,
            created_at=self._now(),
            address={"backend": row.backend, "machine": dict(pack(machine))},
            pool=pool.name,
            devices=declared,
            simulated=bool(declared),
            labels=dict(pool.labels),
            taints=pool.taints,
            topology=(machine.zone,) if machine.zone else (),
        )

    def _learn(self, c: Connection, step: Step, now: float) -> None:
        """A type has what its node has, whatever the catalogue says."""
        row, learnt = step.machine, step.learnt
        pool = next((one for one in pools.list_pools(c) if one.name == row.pool), None)
        if pool is None or learnt is None:
            return
        known = pool.shapes.get(row.machine_type)
        if known is not None and known.devices and not learnt.devices:
            why = say("pool.devices_missing", machine=row.name, type=row.machine_type)
            events.append(c, pool_event(pool.name, "devices_missing", why, now, row))
            tell_pool(c, pool.name, why)
        price = known.price if known is not None else row.price
        pools.learn(
            c, pool.name, shapes={**pool.shapes, row.machine_type: replace(learnt, price=price or row.price)}
        )

    def _note_failure(
        self, c: Connection, name: str, why: Said, now: float, *, first: float = FIRST_PAUSE_SECONDS
    ) -> None:
        """The pool could not get a machine: say why, and let the next try wait."""
        pool = next((one for one in pools.list_pools(c) if one.name == name), None)
        if pool is None:
            return
        if not was_told(pool, why):
            events.append(c, pool_event(name, "cannot_buy", why, now))
        longest = LONGEST_PAUSE_SECONDS if first == FIRST_PAUSE_SECONDS else LONGEST_VAIN_PAUSE_SECONDS
        pause = min(first * 2 ** min(pool.failures, 10), longest)
        tell_pool(c, name, why)
        pools.learn(c, name, failures=pool.failures + 1, retry_at=now + pause)

    async def _expire(self, view: PoolRows, now: float) -> None:
        """Let pools try again whose pause is over."""
        due = [
            one.name
            for one in view.pools.values()
            if one.retry_at is not None and self._moments.is_past(f"buy {one.name}", one.retry_at, now)
        ]
        if due:

            def work(c: Connection) -> None:
                for name in due:
                    pools.learn(c, name, retry_at=None)

            await self._term.write(work)
            self._places.look_again()

    async def _remove_pools(self, view: PoolRows, now: float) -> None:
        """Forget pools that people removed, when their last machine is gone."""
        used = {row.pool for row in view.rows.values()}
        for pool in view.pools.values():
            if not pool.is_active and pool.name not in used:

                def work(c: Connection, name: str = pool.name, currency: str = pool.currency) -> None:
                    cost = pools.costs(c, now).get(name, 0.0)
                    pools.remove(c, name)
                    total = f"{cost:.2f} {currency}".strip()
                    events.append(c, pool_event(name, "pool_removed", say("pool_removed", cost=total), now))

                await self._term.write(work)
                self._wakeups.wake(EVENTS)
                self._places.look_again()

    # -- calls beside the looks

    def _begin(self, key: str, work: Coroutine[None, None, None]) -> None:
        """Run it in a task of its own, unless it runs already or rests after a failure."""
        until = self._pauses.get(key, (0, 0.0))[1]
        if key in self._running or self._term.clock.monotonic() < until:
            work.close()
            return
        task = self._running[key] = asyncio.create_task(work, name=key)
        task.add_done_callback(partial(self._done, key))

    def _done(self, key: str, task: asyncio.Task[None]) -> None:
        """Whatever went wrong with one call rests for a while, and stops nothing else."""
        self._running.pop(key, None)
        self._wakeups.wake(POOLS)
        error = None if task.cancelled() else task.exception()
        if error is None:
            self._pauses.pop(key, None)
            return
        if isinstance(error, LeadLostError):
            self._failed = error
            return
        failures = self._pauses.get(key, (0, 0.0))[0] + 1
        pause = min(LOOK_SECONDS * 2**failures, LONGEST_PAUSE_SECONDS)
        self._pauses[key] = (failures, self._term.clock.monotonic() + pause)
        unforeseen = None if isinstance(error, Error | TaskErrors) else error
        logger.warning("%s: tried again in %.0f s: %s", key, pause, error, exc_info=unforeseen)

    # -- figures

    def _measure(self, view: PoolRows) -> None:
        for pool in view.pools.values():
            at, types = self._measured.get(pool.name, (float("-inf"), ()))
            is_old = self._term.clock.monotonic() - at >= MEASURE_SECONDS
            if pool.is_active and (is_old or types != pool.types):
                self._begin(f"measure {pool.name}", self._measure_one(pool))

    async def _measure_one(self, pool: PoolRecord) -> None:
        try:
            shapes, currency = await self._pool_provider.measure(pool)
        except Error as error:
            await self._complain(pool.name, said_of(error))
            raise
        self._measured[pool.name] = (self._term.clock.monotonic(), pool.types)
        changed = replace(pool, shapes=shapes)
        left_out = [name for name in pool.types if name not in changed.usable_types]
        why = say("pool.types_left_out", types=", ".join(left_out)) if left_out else None
        cured = why is None and pool.reason in ENDED_BY_AN_ANSWER
        if shapes == pool.shapes and currency == pool.currency and why is None and not cured:
            return

        def work(c: Connection) -> None:
            pools.learn(c, pool.name, shapes=shapes, currency=currency)
            if cured:
                tell_pool(c, pool.name, NOTHING)
            if why is not None and not was_told(pool, why):
                tell_pool(c, pool.name, why)
                events.append(c, pool_event(pool.name, "types_left_out", why, self._now()))

        await self._term.write(work)
        self._places.look_again()

    def _reprice(self, view: PoolRows) -> None:
        """Follow the prices of spot machines: the provider bills what the market says."""
        for backend in {row.backend for row in view.rows.values() if row.is_spot}:
            machines = list(self._listing(backend).machines.values())
            at = self._repriced.get(backend, float("-inf"))
            if machines and self._term.clock.monotonic() - at >= MEASURE_SECONDS:
                self._begin(f"price {backend}", self._reprice_all(backend, machines))

    async def _reprice_all(self, backend: str, machines: Sequence[Machine]) -> None:
        await self._reprice_some(backend, machines)
        self._repriced[backend] = self._term.clock.monotonic()

    async def _reprice_some(self, backend: str, machines: Sequence[Machine]) -> None:
        found = await self._pool_provider.rates(backend, [machine for machine in machines if machine.spot])
        if found:
            await self._term.write(lambda c: pools.set_rates(c, found))

    async def _complain(self, name: str, why: Said) -> None:
        """Show why something does not work, without giving anything up."""

        def work(c: Connection) -> None:
            known = next((one for one in pools.list_pools(c) if one.name == name), None)
            if known is not None and not was_told(known, why):
                tell_pool(c, name, why)
                events.append(c, pool_event(name, "cannot_buy", why, self._now()))

        await self._term.write(work)

    # -- buying

    def _buy(self, view: PoolRows) -> None:
        orders: dict[str, list[MachineRecord]] = {}
        for row in view.rows.values():
            if row.state == Stage.WANTED:
                orders.setdefault(row.order, []).append(row)
        for order, rows in orders.items():
            pool = view.pools.get(rows[0].pool)
            if pool is None or not pool.is_active:
                self._begin(f"buy {order}", self._give_up(rows, say("pool.removed").message))
            else:
                self._begin(f"buy {order}", self._buy_one(pool, rows))

    async def _buy_one(self, pool: PoolRecord, rows: Sequence[MachineRecord]) -> None:
        began = self._now()
        try:
            got = await self._pool_provider.buy(pool, rows)
        except ConflictError as error:  # what an earlier leader bought is not what the pool wants by now
            await self._give_up(rows, said_of(error).message)
            return
        except REFUSALS as error:
            await self._refused(pool, rows, said_of(error))
            return
        except Error as error:
            await self._complain(pool.name, said_of(error))
            raise
        bought = [_bought(row, got[row.name], began) for row in rows if row.name in got]
        missing = [row.name for row in rows if row.name not in got]

        def work(c: Connection) -> None:
            for row in bought:
                pools.save_machine(c, row)
                bought_it = say(
                    "machine_bought",
                    type=row.machine_type,
                    zone=row.zone,
                    price=f"{row.price:.2f}",
                    currency=pool.currency,
                )
                events.append(c, pool_event(pool.name, "machine_bought", bought_it, began, row))
            pools.remove_machines(c, missing)
            tell_pool(c, pool.name, NOTHING)
            pools.learn(c, pool.name, retry_at=None)  # of use it is when a job runs there

        await self._term.write(work)
        self._wakeups.wake(EVENTS)
        self._places.look_again()

    async def _refused(self, pool: PoolRecord, rows: Sequence[MachineRecord], why: Said) -> None:
        """Nothing was bought: the rows go, and the queue decides anew when the pool may try again."""

        def work(c: Connection) -> None:
            pools.remove_machines(c, [row.name for row in rows])
            self._note_failure(c, pool.name, why, self._now())

        await self._term.write(work)
        self._wakeups.wake(EVENTS)
        self._places.look_again()

    async def _give_up(self, rows: Sequence[MachineRecord], why: str) -> None:
        """Whatever there may be of them is released."""

        def work(c: Connection) -> None:
            for row in rows:
                pools.save_machine(c, replace(row, state=Stage.RELEASING, message=why))

        await self._term.write(work)
        self._places.look_again()

    # -- what there is

    def _listing(self, backend: str) -> Listing:
        return self._listings.setdefault(backend, Listing())

    def _list(self, view: PoolRows) -> None:
        for backend in view.backends:
            ours = [row for row in view.rows.values() if row.backend == backend and row.state != Stage.WANTED]
            pause = self._list_seconds if ours or self._listing(backend).strays else QUIET_LIST_SECONDS
            if any(row.state == Stage.JOINING for row in ours):
                pause = min(pause, self._look_seconds)
            if self._term.clock.monotonic() - self._listing(backend).at >= pause:
                self._begin(f"list {backend}", self._list_one(backend))

    async def _list_one(self, backend: str) -> None:
        known = await self._term.db.read(pools.list_machines)
        found = await self._pool_provider.ours(backend)
        # NB: rows are read after the list was made: whatever was in the list had its row before it was bought.
        rows = {row.name: row for row in await self._term.db.read(pools.list_machines)}
        listing = self._listing(backend)
        listing.at = self._term.clock.monotonic()
        strays = [machine for machine in found if _is_stray(machine, rows.get(row_name(machine)))]
        lost = {machine.id for machine in strays}
        listing.machines = {row_name(machine): machine for machine in found if machine.id not in lost}
        bought = [one.name for one in known if one.backend == backend and one.state != Stage.WANTED]
        missing = [name for name in bought if name not in listing.machines]
        listing.misses = Counter({name: listing.misses[name] + 1 for name in missing})
        listing.strays = Counter({one: listing.strays[one] + 1 for one in lost})
        new = [one for one in listing.machines.values() if one.id not in listing.held]
        await self._pool_provider.hold(backend, new)
        listing.held = {one.id for one in listing.machines.values()}
        for machine in strays:
            if listing.strays[machine.id] >= machine_lifecycle.MISSES:
                self._begin(f"release {machine.id}", self._release_stray(backend, machine))

    async def _release_stray(self, backend: str, machine: Machine) -> None:
        """Nobody knows of it: somebody died between buying and telling, long ago or on another computer."""
        await self._pool_provider.release(backend, [machine])
        pool = machine.labels.get("pool", "")
        why = say("stray_released", machine=machine.name, id=machine.id)
        await self._term.write(
            lambda c: events.append(c, pool_event(pool, "stray_released", why, self._now()))
        )
        self._wakeups.wake(EVENTS)

    async def _follow(self, view: PoolRows, now: float) -> None:
        spare = {name: machine_lifecycle.spare(pool, view.rows, now) for name, pool in view.pools.items()}
        steps = []
        for row in view.rows.values():
            step = machine_lifecycle.follow(row, self._sight(row, view, spare), now)
            if step is not None:
                steps.append(step)
                if row.state == Stage.JOINED and step.machine.state != Stage.JOINED:
                    spare[row.pool] = spare.get(row.pool, 0) - 1
        if steps:
            await self._apply(steps, view, now)

    def _sight(self, row: MachineRecord, view: PoolRows, spare: Mapping[str, int]) -> MachineFacts:
        listing = self._listing(row.backend)
        return MachineFacts(
            pool=view.pools.get(row.pool),
            node=view.nodes.get(row.name),
            machine=listing.machines.get(row.name),
            misses=listing.misses[row.name],
            is_busy=self._places.is_busy(row.name),
            is_left=self._places.is_left(row.name),
            is_awaited=self._places.is_awaited(row.for_jobs),
            is_spare=spare.get(row.pool, 1) > 0,
            is_late=row.state == Stage.JOINING
            and self._moments.is_past(
                f"join {row.name}", row.wanted_at + machine_lifecycle.JOIN_SECONDS, self._now()
            ),
        )

    # -- releasing

    async def _release(self, row: MachineRecord) -> None:
        """Give a machine back, and close its account."""
        machines = [one for one in await self._pool_provider.ours(row.backend) if row_name(one) == row.name]
        await self._pool_provider.release(row.backend, [*machines, *_unlisted(row, machines)])
        now = self._now()
        if row.costed_at is None and machines:  # bought by somebody who could not say so any more
            row = replace(_bought(row, machines[0], now), message=row.message)
        try:  # the last price, for the books; the machine is gone whether it is told or not
            await self._reprice_some(row.backend, machines)
        except Error as error:
            logger.warning("what %s cost at last is not known: %s", row.name, error)

        def work(c: Connection) -> None:
            known = pools.find_machine(c, row.name)
            if row.costed_at is None or known is None:
                pools.remove_machines(c, [row.name])
                return
            done = replace(row, rates=known.rates).released(now, row.message)
            pools.save_machine(c, done)
            why = say("machine_released", cost=f"{done.cost:.4f}", why=done.message)
            events.append(c, pool_event(done.pool, "machine_released", why, now, done))

        await self._term.write(work)
        self._wakeups.wake(EVENTS)
        self._places.look_again()

    def _now(self) -> float:
        return self._term.clock.now().timestamp()


def _change_node(c: Connection, step: Step, made: NodeRecord | None, now: float) -> None:
    """Make the machine's node, or say what is wanted of it."""
    name = step.machine.name
    known = nodes.find(c, name)
    if made is not None and known is None:
        nodes.insert_node(c, made)
    if not step.desired or known is None:
        return
    if known.desired not in {step.desired, NodeDesired.GONE}:
        nodes.save(c, replace(known, desired=step.desired))
        event = Event(
            time=now,
            subject=Subject.NODE,
            subject_id=name,
            code="set_desired",
            message=f"The pool {step.machine.pool} wants the node {step.desired}: {step.message}",
            state=str(known.state),
        )
        events.append(c, event)


def _bought(row: MachineRecord, machine: Machine, began: float) -> MachineRecord:
    price = machine.details.get("exact_price_per_hour") or machine.details.get("price_per_hour") or "0"
    created = machine.created.timestamp() if machine.created is not None else began
    return replace(
        row,
        state=Stage.JOINING,
        machine_id=machine.id,
        machine_type=machine.type,
        zone=machine.zone,
        is_spot=machine.spot,
        price=float(price),
        currency=machine.details.get("currency", ""),
        # A provider's times are cut to minutes; one that an earlier leader has bought is older than our call.
        costed_at=max(created, row.wanted_at) if created < began - 60.0 else began,
        message="",
    )


def _unlisted(row: MachineRecord, listed: Sequence[Machine]) -> Sequence[Machine]:
    """The machine by its id alone: a list that is made under another name or in another region may not show it."""
    if not row.machine_id or row.machine_id in {machine.id for machine in listed}:
        return ()
    return (Machine(name=row.name, id=row.machine_id, backend=row.backend, state=MachineState.LOST),)


def _is_stray(machine: Machine, row: MachineRecord | None) -> bool:
    """Whether no row knows of it: none of its name, or one that has another machine."""
    return row is None or bool(row.machine_id and row.machine_id != machine.id)
