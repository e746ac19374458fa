"""What jobs have used and what machines of pools have cost by day, and the budgets of workspaces and users."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import fields

from sqlalchemy import Connection, and_, bindparam, delete, func, insert, or_, select, update

from trainyard.server.records.costs import BudgetRecord, MachineDay, UseRecord
from trainyard.server.store.tables import budgets, machine_days, usage
from trainyard.server.store.versioned_rows import chunks

GROUPS = {
    "user": (usage.c.user_id,),
    "workspace": (usage.c.workspace_id,),
    "job": (usage.c.workload_id, usage.c.workspace_id, usage.c.user_id),
    "device": (usage.c.device_type,),
    "day": (usage.c.day,),
}
_SUMS = ("device_seconds", "idle_device_seconds", "cpu_seconds", "memory_mib_seconds", "cost")
# Asked with every submission, so put together once.
_OF_JOB = select(budgets).where(
    or_(
        and_(budgets.c.subject == "workspace", budgets.c.subject_id == bindparam("workspace")),
        and_(budgets.c.subject == "user", budgets.c.subject_id == bindparam("user")),
    )
)


_COLUMNS = tuple(one.name for one in fields(UseRecord))
_MACHINE_COLUMNS = tuple(one.name for one in fields(MachineDay))
_MACHINE_SUMS = ("seconds", "used_cost", "idle_cost", "starting_cost")


def replace_days(
    connection: Connection, workload_ids: Collection[str], days: Iterable[UseRecord], *, first_day: int = 0
) -> None:
    """Write the days of these jobs anew, from the first on: doing it twice changes nothing."""
    for part in chunks(workload_ids):
        old = delete(usage).where(usage.c.workload_id.in_(part), usage.c.day >= first_day)
        connection.execute(old)
    rows = [{name: getattr(one, name) for name in _COLUMNS} for one in days if one.day >= first_day]
    if rows:
        connection.execute(insert(usage), rows)


def device_types(connection: Connection, workload_ids: Collection[str]) -> dict[str, str]:
    """What type of device each of these jobs was booked with, where it was."""
    found: dict[str, str] = {}
    for part in chunks(workload_ids):
        query = select(usage.c.workload_id, usage.c.device_type).where(
            usage.c.workload_id.in_(part), usage.c.device_type != ""
        )
        found |= {row.workload_id: row.device_type for row in connection.execute(query)}
    return found


def sums(
    connection: Connection,
    days: range,
    *,
    by: Sequence[str] = (),
    workspace_ids: Collection[str] | None = None,
    user_id: str = "",
    only_user_id: str | None = None,
    managed: Collection[str] | None = None,
) -> list[UseRecord]:
    """What was used on these days, dearest first. `managed`: others' use only in these workspaces, beside `user_id`'s own."""
    columns = list(dict.fromkeys(column for name in by for column in GROUPS[name]))
    query = select(*columns, *(func.sum(usage.c[name]).label(name) for name in _SUMS))
    query = query.where(usage.c.day >= days.start, usage.c.day < days.stop)
    if workspace_ids is not None:
        query = query.where(usage.c.workspace_id.in_(list(workspace_ids)))
    if managed is not None:
        query = query.where(or_(usage.c.user_id == user_id, usage.c.workspace_id.in_(list(managed))))
    if only_user_id is not None:
        query = query.where(usage.c.user_id == only_user_id)
    if columns:
        query = query.group_by(*columns)
    query = query.order_by(func.sum(usage.c.cost).desc(), func.sum(usage.c.device_seconds).desc())
    found = [row._asdict() for row in connection.execute(query)]
    return [
        UseRecord(**{k: v for k, v in row.items() if v is not None})
        for row in found
        if row["cost"] is not None
    ]


def replace_machine_days(
    connection: Connection, machines: Collection[str], days: Iterable[MachineDay], *, first_day: int
) -> None:
    """Write the days of these machines anew, from the first on: doing it twice changes nothing."""
    for part in chunks(machines):
        old = delete(machine_days).where(machine_days.c.machine.in_(part), machine_days.c.day >= first_day)
        connection.execute(old)
    rows = [{name: getattr(one, name) for name in _MACHINE_COLUMNS} for one in days]
    if rows:
        connection.execute(insert(machine_days), rows)


def pool_sums(connection: Connection, days: range) -> list[MachineDay]:
    """What the machines of each pool have cost on these days, by name."""
    c = machine_days.c
    query = (
        select(c.pool, c.currency, *(func.sum(c[name]).label(name) for name in _MACHINE_SUMS))
        .where(c.day >= days.start, c.day < days.stop)
        .group_by(c.pool, c.currency)
        .order_by(c.pool, c.currency)
    )
    return [MachineDay(**row._asdict()) for row in connection.execute(query)]


def machine_rows(connection: Connection, days: range) -> list[MachineDay]:
    """Every machine on each of these days, by day and name."""
    c = machine_days.c
    query = select(machine_days).where(c.day >= days.start, c.day < days.stop).order_by(c.day, c.machine)
    return [MachineDay(**row._asdict()) for row in connection.execute(query)]


def list_budgets(connection: Connection) -> list[BudgetRecord]:
    """All of them."""
    rows = connection.execute(select(budgets).order_by(budgets.c.subject, budgets.c.subject_id))
    return [_budget(row._asdict()) for row in rows]


def find_budgets(connection: Connection, workspace_id: str, user_id: str) -> list[BudgetRecord]:
    """Those that a job of this user in this workspace counts towards."""
    rows = connection.execute(_OF_JOB, {"workspace": workspace_id, "user": user_id})
    return [_budget(row._asdict()) for row in rows]


def save_budget(connection: Connection, record: BudgetRecord) -> None:
    """Write a budget, new or not."""
    values = {
        "amount": record.amount,
        "warn_at": list(record.warn_at),
        "action": record.action,
        "month": record.month,
        "warned": list(record.warned),
        "version": record.version + 1,
    }
    done = connection.execute(
        update(budgets)
        .where(budgets.c.subject == record.subject, budgets.c.subject_id == record.subject_id)
        .values(**values)
    )
    if not done.rowcount:
        key = {"subject": record.subject, "subject_id": record.subject_id}
        connection.execute(insert(budgets), {**values, **key, "version": 1})


def remove_budget(connection: Connection, subject: str, subject_id: str) -> bool:
    """Take a budget away; False where there is none."""
    done = connection.execute(
        delete(budgets).where(budgets.c.subject == subject, budgets.c.subject_id == subject_id)
    )
    return bool(done.rowcount)


def _budget(row: dict[str, object]) -> BudgetRecord:
    return BudgetRecord(**{**row, "warn_at": tuple(row["warn_at"]), "warned": tuple(row["warned"])})  # type: ignore[arg-type]  # JSON
