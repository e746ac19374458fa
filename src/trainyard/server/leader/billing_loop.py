"""The books: what jobs have used and cost, and machines of pools, written down every minute by the leader; and budgets.

Whatever is written is worked out anew from tasks and machines, so that a server that was away for an hour misses nothing, and
one that does it twice changes nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from sqlalchemy import Connection

from trainyard.lib.errors import Error
from trainyard.messages.catalogue import say
from trainyard.server.jobs.lifecycle import OVER_BUDGET
from trainyard.server.leader.clock_trust import ClockTrust
from trainyard.server.leader.leader_lease import LeaderTerm
from trainyard.server.records.costs import BudgetRecord, MachineDay
from trainyard.server.records.workloads import WorkloadRecord
from trainyard.server.store import events, settings
from trainyard.server.store.cluster import nodes, pools
from trainyard.server.store.jobs import workloads
from trainyard.server.store.jobs.tasks import tasks_of_all_attempts
from trainyard.server.store.people import users, workspaces
from trainyard.server.store.usage import costs, samples
from trainyard.server.usage.accounting import DAY, days_of, held_by, machine_days, month_of, uses_of
from trainyard.server.usage.costs import BOOKED, load_prices
from trainyard.server.wakeups import EVENTS, RECONCILER, Wakeups
from trainyard.spec.events import Event, Subject
from trainyard.spec.workload import HOLDING, Desired, State

logger = logging.getLogger(__name__)

OVERLAP_SECONDS = 600.0  # a job that ended so long before the last pass is looked at again: clocks differ
BATCH = 200
# After the clock was set by more than some minutes: a year that never was would use up every budget, and hold all jobs.
LEAP_SECONDS = 900.0
SETTLED_SECONDS = 120.0  # after its end, nothing more comes of a job: its last readings are written
ACTOR = "budget"


class BillingLoop:
    """Keeps the books of one term."""

    def __init__(self, term: LeaderTerm, wakeups: Wakeups, *, sample_seconds: float, pause: float) -> None:
        self._term = term
        self._pause = pause
        self._wakeups = wakeups
        self._every = sample_seconds
        self._trust = ClockTrust(term.db, term.clock, patience=LEAP_SECONDS)
        self._closed: set[str] = set()  # ended, and in the books for good

    async def run(self) -> None:
        """One pass after another, until cancelled."""
        while True:
            try:
                await self.look()
            except Error as error:
                logger.warning("the books wait for the next pass: %s", error)
            await asyncio.sleep(self._pause)

    async def look(self) -> None:
        """One pass."""
        if await self._trust.is_lost():
            logger.warning("the clock was set: the books wait until it has gone on for a while")
            return
        now = self._now()
        ids = await self._open_ids(now)
        for begin in range(0, len(ids), BATCH):
            part = ids[begin : begin + BATCH]
            self._closed |= await self._term.write(lambda c, part=part: self._book(c, part, now))  # type: ignore[misc]
        machines, days, first_day = await self._term.db.read(lambda c: _machines(c, now))
        if machines:
            await self._term.write(
                lambda c: costs.replace_machine_days(c, machines, days, first_day=first_day)
            )
        acted = await self._term.write(lambda c: self._check(c, now))
        if acted:
            self._wakeups.wake(RECONCILER)
            self._wakeups.wake(EVENTS)

    def _now(self) -> float:
        return self._term.clock.now().timestamp()

    async def _open_ids(self, now: float) -> list[str]:
        """Jobs that hold something, and those that ended since the books were written last; not those that are done with."""
        started, ended = await self._term.db.read(lambda c: _changed(c, now))
        self._closed &= set(ended)  # older ones are not looked at anyway
        self._closed -= set(started)
        return [one for one in dict.fromkeys([*started, *ended]) if one not in self._closed]

    def _book(self, c: Connection, ids: list[str], now: float) -> set[str]:
        """Write what jobs have used; those of them for which that was the last time."""
        prices = load_prices(c)
        kinds = {one.name: next(iter(one.devices), "") for one in nodes.list_nodes(c)}
        booked = costs.device_types(c, ids)
        found = []
        records, tasks = workloads.load_many(c, ids), tasks_of_all_attempts(c, ids)
        for record in records.values():
            idle = samples.idle_seconds(c, record.id, self._every) if _has_devices(record) else {}
            found += uses_of(
                record,
                tasks.get(record.id, ()),
                now=now,
                prices=prices,
                device_of=partial(_device_of, c, kinds, booked.get(record.id, "")),
                idle=idle,
            )
        # A month that is over stays as it was, whatever things cost by now.
        first_day = max(0, min(int(_since(c, now) // DAY), days_of(month_of(now)).start))
        costs.replace_days(c, ids, found, first_day=first_day)
        return {one.id for one in records.values() if one.ended_at and one.ended_at < now - SETTLED_SECONDS}

    def _check(self, c: Connection, now: float) -> bool:
        """Compare budgets with the month; warn, hold and stop. True where somebody has to look."""
        settings.save(c, BOOKED, now)
        month, acted = month_of(now), False
        spent = _spent(c, month)
        for budget in costs.list_budgets(c):
            cost = spent.get((budget.subject, budget.subject_id), 0.0)
            acted |= _follow(c, budget, cost, month, now)
        return acted


def _device_of(c: Connection, kinds: Mapping[str, str], booked: str, node: str) -> str:
    """The type of a node's devices; of one that is gone, or whose driver does not answer, what its job was booked with, or what its pool knows."""
    return kinds.get(node) or booked or pools.device_of(c, node)


def _has_devices(record: WorkloadRecord) -> bool:
    return any(role.devices for role in record.spec.roles)


def _since(c: Connection, now: float) -> float:
    """What ended before is in the books."""
    booked = settings.find(c, BOOKED)
    return 0.0 if booked is None else min(float(booked), now) - OVERLAP_SECONDS


def _machines(c: Connection, now: float) -> tuple[list[str], list[MachineDay], int]:
    """Machines whose days are to be written, those days, and the first of them; older ones are as they were."""
    since = _since(c, now)
    first_day, found, names = max(0, int(since // DAY)), [], []
    for row in pools.machines_since(c, since):
        given = workloads.tasks_held_on(c, row.name, first_day * float(DAY))
        jobs = workloads.load_many(c, {task.workload_id for task in given})
        held = [held_by(jobs[task.workload_id], task, now) for task in given if task.workload_id in jobs]
        names.append(row.name)
        found += machine_days(row, [one for one in held if one is not None], now=now, first_day=first_day)
    return names, found, first_day


def _changed(c: Connection, now: float) -> tuple[list[str], list[str]]:
    """Jobs that hold something, and those that ended since the books were written last."""
    since = _since(c, now)
    started = workloads.started_ids(c, HOLDING | {State.WAITING, State.HELD})
    return started, workloads.ended_since(c, since)


def _spent(c: Connection, month: int) -> Mapping[tuple[str, str], float]:
    days = days_of(month)
    found = {("workspace", one.workspace_id): one.cost for one in costs.sums(c, days, by=("workspace",))}
    return found | {("user", one.user_id): one.cost for one in costs.sums(c, days, by=("user",))}


def _follow(c: Connection, budget: BudgetRecord, cost: float, month: int, now: float) -> bool:
    told = budget.warned if budget.month == month else ()
    share = cost / budget.amount if budget.amount else float("inf")
    new = [one for one in sorted({*budget.warn_at, 1.0}) if share >= one and one not in told]
    if budget.month != month or new:
        costs.save_budget(c, replace(budget, month=month, warned=(*told, *new)))
    if new:
        events.append_many(c, [_warning(c, budget, cost, new[-1], now)])
    is_over = share >= 1.0
    if is_over and budget.action != "warn":
        return _hold(c, budget, now) or bool(new)
    return bool(new)


def _warning(c: Connection, budget: BudgetRecord, cost: float, share: float, now: float) -> Event:
    text = "is used up" if share >= 1 else f"is used up to {share:.0%}"
    message = f"The budget of {name_of(c, budget)} for this month {text}: {cost:.2f} of {budget.amount:.2f}."
    return Event(
        time=now,
        subject=Subject.WORKSPACE if budget.subject == "workspace" else Subject.USER,
        subject_id=budget.subject_id,
        workspace_id=budget.subject_id if budget.subject == "workspace" else None,
        code="budget_used_up" if share >= 1 else "budget_warning",
        message=message,
    )


def name_of(c: Connection, budget: BudgetRecord) -> str:
    """What people call whose budget it is."""
    if budget.subject == "workspace":
        return f"the workspace {workspaces.names(c).get(budget.subject_id, budget.subject_id)}"
    return users.names(c, [budget.subject_id]).get(budget.subject_id, budget.subject_id)


def _hold(c: Connection, budget: BudgetRecord, now: float) -> bool:
    """Pause what waits; with `stop`, what runs too."""
    states = {State.WAITING} | (
        HOLDING - {State.FINISHING, State.RETAINED} if budget.action == "stop" else set()
    )
    key = "workspace_id" if budget.subject == "workspace" else "user_id"
    held = workloads.wanted(c, states, **{key: budget.subject_id})
    said = say(OVER_BUDGET)
    for record in held:
        workloads.save(
            c, replace(record, desired=Desired.PAUSE, reason=OVER_BUDGET, message=said.message, facts=None)
        )
    events.append_many(
        c,
        [
            Event(
                time=now,
                subject=Subject.WORKLOAD,
                subject_id=record.id,
                workspace_id=record.workspace_id,
                code="budget_held",
                message=said.message,
                data={"text": said.code},
                state=record.state.value,
                actor=ACTOR,  # by which the conductor knows that a wish has changed
            )
            for record in held
        ],
    )
    return bool(held)
