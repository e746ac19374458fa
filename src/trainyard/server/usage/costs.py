"""What jobs and machines have cost, prices and budgets. The books are kept by leader/billing_loop.py."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import date, timedelta
from typing import Any

from sqlalchemy import Connection

from trainyard.client.schemas import Budget, PoolUse, Use
from trainyard.lib.errors import ConflictError, InvalidError, NotFoundError
from trainyard.messages.catalogue import failure
from trainyard.server.auth.actor import Actor, require
from trainyard.server.people.workspace_lookup import find_workspace
from trainyard.server.records.costs import BudgetRecord, MachineDay, UseRecord
from trainyard.server.records.workloads import WorkloadRecord
from trainyard.server.service_context import Context
from trainyard.server.store import settings
from trainyard.server.store.jobs import workloads
from trainyard.server.store.people import users, workspaces
from trainyard.server.store.usage import costs
from trainyard.server.store.usage.costs import GROUPS
from trainyard.server.usage.accounting import Prices, days_of, month_of
from trainyard.server.validation import FieldError
from trainyard.spec.job_limits import DEVICE
from trainyard.spec.workload import State

BOOKED = "booked_at"
PRICES = "prices"
ACTIONS = ("warn", "hold", "stop")
SUBJECTS = ("workspace", "user")
WARN_AT = (0.5, 0.8)
USED_UP = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A month."""

    month: str  # 2026-11
    currency: str
    booked_at: float | None  # when the books were written last
    rows: tuple[Use, ...]
    total: Use
    pools: tuple[PoolUse, ...] = ()


class Usage:
    """`services.usage`."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def report(
        self,
        actor: Actor,
        *,
        month: str = "",
        by: Sequence[str] = ("user",),
        workspace: str = "",
        user: str = "",
    ) -> Report:
        """What a month has cost: one's own jobs, those of workspaces that one administers, or all for an administrator."""
        require(actor, "usage:read")
        number = _month(month) if month else month_of(self._context.now())
        for name in by:
            if name not in GROUPS:
                raise InvalidError(
                    f"Use is not counted by {name!r}.", hint=f"Choose from {', '.join(GROUPS)}."
                )

        def work(c: Connection) -> Report:
            chosen: dict[str, Any] = {}
            if workspace:
                chosen["workspace_ids"] = [find_workspace(c, actor, workspace).id]
            if not actor.is_admin:
                managed = [one for one in actor.roles if actor.can("workspaces:write", one)]
                chosen |= {"managed": managed, "user_id": actor.user_id}
            if user:
                chosen["only_user_id"] = _user_id(c, actor, user)
            rows = costs.sums(c, days_of(number), by=tuple(by), **chosen)
            total = costs.sums(c, days_of(number), **chosen)
            return Report(
                month=f"{number // 100}-{number % 100:02}",
                currency=load_prices(c).currency,
                booked_at=settings.find(c, BOOKED),
                rows=tuple(_named(c, rows)),
                total=next(iter(_named(c, total)), Use()),
                # Machines are everybody's: of one workspace or one user there is no part of them.
                pools=() if workspace or user else _pool_uses(actor, costs.pool_sums(c, days_of(number))),
            )

        return await self._context.db.read(work)

    async def machines(self, actor: Actor, *, month: str = "") -> tuple[str, tuple[PoolUse, ...]]:
        """The month, and what each machine of a pool has cost on each of its days."""
        require(actor, "usage:read")
        number = _month(month) if month else month_of(self._context.now())
        found = await self._context.db.read(lambda c: costs.machine_rows(c, days_of(number)))
        return f"{number // 100}-{number % 100:02}", _pool_uses(actor, found)

    async def prices(self, actor: Actor) -> Prices:
        """What things cost."""
        require(actor, "usage:read")
        return await self._context.db.read(load_prices)

    async def set_prices(self, actor: Actor, prices: Prices) -> Prices:
        """Set them; what is in the books of this month and later is worked out anew as jobs go on, the rest stays."""
        require(actor, "budgets:write")
        _check_prices(prices)

        def work(c: Connection) -> Prices:
            settings.save(c, PRICES, asdict(prices))
            self._context.audit(c, actor, "prices.set", PRICES)
            return prices

        return await self._context.write(actor, "prices.set", PRICES, work, wakes=False)

    async def budgets(self, actor: Actor) -> list[Budget]:
        """Those of the actor and of their workspaces; all for an administrator."""
        require(actor, "usage:read")

        def work(c: Connection) -> list[Budget]:
            days = days_of(month_of(self._context.now()))
            by_place = {one.workspace_id: one.cost for one in costs.sums(c, days, by=("workspace",))}
            by_user = {one.user_id: one.cost for one in costs.sums(c, days, by=("user",))}
            currency = load_prices(c).currency
            found = [one for one in costs.list_budgets(c) if _may_see(actor, one)]
            places = workspaces.names(c)
            people = users.names(c, [one.subject_id for one in found if one.subject == "user"])
            return [
                Budget(
                    subject=one.subject,
                    name=(places if one.subject == "workspace" else people).get(
                        one.subject_id, one.subject_id
                    ),
                    amount=one.amount,
                    spent=(by_place if one.subject == "workspace" else by_user).get(one.subject_id, 0.0),
                    currency=currency,
                    warn_at=one.warn_at,
                    action=one.action,
                )
                for one in found
            ]

        return await self._context.db.read(work)

    async def set_budget(
        self,
        actor: Actor,
        subject: str,
        name: str,
        *,
        amount: float,
        warn_at: Collection[float] = WARN_AT,
        action: str = "warn",
    ) -> None:
        """Give a workspace or a user a budget for each month."""
        require(actor, "budgets:write")
        if not (math.isfinite(amount) and 0 < amount < 1e12):
            raise FieldError("amount", f"is {amount}", hint="Give what may be spent in a month.")
        if action not in ACTIONS:
            raise FieldError("action", f"is {action!r}", hint=f"Choose one of {', '.join(ACTIONS)}.")
        if len(warn_at) > 10 or not all(0 < one <= 1 for one in warn_at):
            raise FieldError("warn_at", "are shares from 0 to 1", hint="Write 0.5 and 0.8.")

        def work(c: Connection) -> None:
            key = _subject_id(c, actor, subject, name)
            known = next(
                (one for one in costs.list_budgets(c) if (one.subject, one.subject_id) == (subject, key)),
                BudgetRecord(subject=subject, subject_id=key, amount=amount, warn_at=(), action=action),
            )
            # What was told of the old amount need not hold of the new one.
            changed = replace(known, amount=amount, warn_at=tuple(sorted(warn_at)), action=action, warned=())
            costs.save_budget(c, changed)
            data = {"amount": amount, "action": action}
            self._context.audit(c, actor, "budgets.set", f"{subject}:{name}", data=data)

        await self._context.write(actor, "budgets.set", f"{subject}:{name}", work, wakes=False)

    async def remove_budget(self, actor: Actor, subject: str, name: str) -> None:
        """Take a budget away."""
        require(actor, "budgets:write")

        def work(c: Connection) -> None:
            if not costs.remove_budget(c, subject, _subject_id(c, actor, subject, name)):
                raise NotFoundError(f"{name} has no budget.", hint="See `trainyard budgets`.")
            self._context.audit(c, actor, "budgets.remove", f"{subject}:{name}")

        await self._context.write(actor, "budgets.remove", f"{subject}:{name}", work, wakes=False)


def refuse_over_budget(c: Connection, now: float, workspace_id: str, user_id: str) -> None:
    """ConflictError where a new job would go on a budget that is used up and holds jobs back."""
    month = month_of(now)
    for budget in costs.find_budgets(c, workspace_id, user_id):
        if budget.action != "warn" and budget.month == month and USED_UP in budget.warned:
            whose = "The workspace's budget" if budget.subject == "workspace" else "Your budget"
            raise ConflictError(
                f"{whose} for this month is used up ({budget.amount:.2f}).",
                hint="Ask an administrator to raise it, or wait for the next month.",
            )


def refuse_resuming(c: Connection, now: float, record: WorkloadRecord) -> None:
    """ConflictError where a job that is held should go on with a budget that is used up: it would be held again."""
    if record.state in {State.HELD, State.FINISHING}:
        refuse_over_budget(c, now, record.workspace_id, record.user_id)


def load_prices(c: Connection) -> Prices:
    """As they are set now."""
    found = settings.find(c, PRICES)
    return Prices() if found is None else Prices(**found)


def _check_prices(prices: Prices) -> None:
    if not (1 <= len(prices.currency) <= 8 and prices.currency.isalnum()):
        raise FieldError("currency", f"is {prices.currency[:20]!r}", hint="Write CNY, USD or the like.")
    named: Mapping[str, float] = {**prices.devices, "cpu": prices.cpu, "memory": prices.memory}
    for name, price in named.items():
        if name and not DEVICE.match(name):
            raise FieldError("devices", f"names {name[:40]!r}", hint="See `trainyard nodes`.")
        if not (math.isfinite(price) and 0 <= price < 1e9):
            raise FieldError(name or "devices", f"costs {price}", hint="Give what an hour costs.")


def _month(text: str) -> int:
    try:
        year, number = text.split("-")
        days_of(int(year) * 100 + int(number))
        return int(year) * 100 + int(number)
    except ValueError:
        raise InvalidError(f"{text[:20]!r} is no month.", hint="Write it like 2026-11.") from None


def _may_see(actor: Actor, budget: BudgetRecord) -> bool:
    if actor.is_admin:
        return True
    if budget.subject == "user":
        return budget.subject_id == actor.user_id
    return actor.can("workspaces:read", budget.subject_id)


def _subject_id(c: Connection, actor: Actor, subject: str, name: str) -> str:
    if subject == "workspace":
        return find_workspace(c, actor, name).id
    if subject != "user":
        raise InvalidError(f"A {subject[:20]!r} has no budget.", hint=f"Choose one of {', '.join(SUBJECTS)}.")
    found = users.find_by_name(c, name)
    if found is None:
        raise failure(NotFoundError, "no_user", user=name[:64])
    return found.id


def _user_id(c: Connection, actor: Actor, name: str) -> str:
    """Of whom use is asked for. Who administers nothing learns of nobody whether there is such a person."""
    found = users.find_by_name(c, name)
    if found is None and actor.is_admin:
        raise failure(NotFoundError, "no_user", user=name[:64])
    return "" if found is None else found.id


def _named(c: Connection, rows: Sequence[UseRecord]) -> list[Use]:
    places = workspaces.names(c)
    people = users.names(c, {one.user_id for one in rows if one.user_id})
    jobs = workloads.load_many(c, [one.workload_id for one in rows if one.workload_id])
    return [
        Use(
            job=one.workload_id,
            job_name=jobs[one.workload_id].name if one.workload_id in jobs else "",
            workspace=places.get(one.workspace_id, one.workspace_id),
            user=people.get(one.user_id, one.user_id),
            device=one.device_type,
            day=_day(one.day) if one.day else "",
            device_hours=round(one.device_seconds / 3600, 6),
            idle_device_hours=round(one.idle_device_seconds / 3600, 6),
            cpu_hours=round(one.cpu_seconds / 3600, 6),
            memory_gib_hours=round(one.memory_mib_seconds / 1024 / 3600, 6),
            cost=round(one.cost, 6),  # as the books have it: rows add up to their total
        )
        for one in rows
    ]


def _pool_uses(actor: Actor, found: Sequence[MachineDay]) -> tuple[PoolUse, ...]:
    """As they travel; nothing for who may not see pools."""
    if not actor.can("pools:read"):
        return ()
    return tuple(
        PoolUse(
            pool=one.pool,
            machine=one.machine,
            day=_day(one.day) if one.day else "",
            machine_hours=round(one.seconds / 3600, 6),
            used_cost=round(one.used_cost, 6),
            idle_cost=round(one.idle_cost, 6),
            starting_cost=round(one.starting_cost, 6),
            cost=round(one.cost, 6),
            currency=one.currency,
        )
        for one in found
    )


def _day(number: int) -> str:
    return (date(1970, 1, 1) + timedelta(days=number)).isoformat()
