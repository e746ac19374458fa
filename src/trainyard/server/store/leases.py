"""Leases: who alone does something for now. The epoch goes up with every owner, so a late writer is found out.

Times are the database's own unless the caller gives one: servers whose clocks differ agree on one clock.
"""

from __future__ import annotations

from sqlalchemy import Connection, bindparam, insert, select, text, update
from sqlalchemy.exc import IntegrityError

from trainyard.lib.errors import StaleError
from trainyard.server.records.leases import LeaseRecord
from trainyard.server.store.tables import leases

# For every write of the leader.
_EPOCH = select(leases.c.epoch).where(leases.c.name == bindparam("wanted_name")).with_for_update(read=True)
OWNER_LENGTH = 64  # of the column; a host's name may be longer


def take(
    connection: Connection,
    name: str,
    *,
    owner: str,
    seconds: float,
    now: float | None = None,
    silent: LeaseRecord | None = None,
) -> LeaseRecord | None:
    """Take a lease that nobody holds, or that has run out; None where somebody else holds it.

    `silent` is the lease as the caller has seen it for as long as it lasts, by a clock that nobody sets: unless it was renewed
    since, its owner is gone, whatever the database's clock says. Set back by hours, that one would keep it for hours.

    Taken anew by its own owner it gets a new epoch too: that owner does not know what it did before it was restarted.
    """
    owner = owner[:OWNER_LENGTH]
    moment = _now(connection, now)
    row = connection.execute(select(leases).where(leases.c.name == name).with_for_update()).first()
    if row is None:
        return _take_first(connection, LeaseRecord(name, owner, moment + seconds, 1))
    is_silent = silent is not None and (silent.epoch, silent.until) == (row.epoch, row.until)
    if row.until > moment and row.owner != owner and not is_silent:
        return None
    lease = LeaseRecord(name, owner, moment + seconds, row.epoch + 1)
    changed = connection.execute(
        update(leases)
        .where(leases.c.name == name, leases.c.epoch == row.epoch)
        .values(owner=lease.owner, until=lease.until, epoch=lease.epoch)
    )
    return lease if changed.rowcount else None


def renew(connection: Connection, name: str, epoch: int, *, seconds: float, now: float | None = None) -> bool:
    """Keep a lease for longer; False where it is somebody else's by now. One that ran out unnoticed can be kept."""
    until = _now(connection, now) + seconds
    statement = update(leases).where(leases.c.name == name, leases.c.epoch == epoch).values(until=until)
    return bool(connection.execute(statement).rowcount)


def release(connection: Connection, name: str, epoch: int) -> None:
    """Give a lease back at once, if it is still ours."""
    connection.execute(update(leases).where(leases.c.name == name, leases.c.epoch == epoch).values(until=0.0))


def check(connection: Connection, name: str, epoch: int) -> None:
    """Raise StaleError unless the lease is still ours; if it is, nobody can take it before this transaction has ended."""
    if connection.execute(_EPOCH, {"wanted_name": name}).scalar() != epoch:
        raise StaleError(f"The lease {name!r} is another server's by now.", hint="Leave the work to it.")


def find(connection: Connection, name: str) -> LeaseRecord | None:
    """Who holds, or last held, a lease."""
    row = connection.execute(select(leases).where(leases.c.name == name)).first()
    return None if row is None else LeaseRecord(row.name, row.owner, row.until, row.epoch)


def _take_first(connection: Connection, lease: LeaseRecord) -> LeaseRecord | None:
    try:
        with connection.begin_nested():
            connection.execute(
                insert(leases),
                {"name": lease.name, "owner": lease.owner, "until": lease.until, "epoch": lease.epoch},
            )
    except IntegrityError:  # another server was quicker
        return None
    return lease


_CLOCKS = {
    "postgresql": "SELECT extract(epoch from clock_timestamp())",
    "sqlite": "SELECT (julianday('now') - 2440587.5) * 86400",
}


def _now(connection: Connection, given: float | None) -> float:
    if given is not None:
        return given
    return float(connection.execute(text(_CLOCKS[connection.dialect.name])).scalar_one())
