"""What all nouns share: writes that name the version they read, and lists too long for one statement."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, ClassVar, Protocol, TypeVar

from sqlalchemy import Connection, Select, Table, Update, bindparam, insert, select, update
from sqlalchemy.exc import IntegrityError

from trainyard.lib.errors import ConflictError, StaleError

T = TypeVar("T")
N = TypeVar("N", bound="Named")

# Parameters in one statement: SQLite takes 32,766 and PostgreSQL 65,535; short lists are quicker to prepare.
MANY = 2000

# How the statements below call what a row is found by, apart from the values that it gets.
KEY, VERSION, NEW = "old_key", "old_version", "new_"

VersionedRow = tuple[str, int, Mapping[str, Any]]  # key, the version that was read, values


class Named(Protocol):
    """A record that people call by its name."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def name(self) -> str:
        """What it is found by."""
        ...

    @property
    def version(self) -> int:
        """As it was read."""
        ...


def chunks(items: Iterable[T], size: int = MANY) -> Iterator[list[T]]:
    """Pieces that one statement can take."""
    every = list(items)
    for start in range(0, len(every), size):
        yield every[start : start + size]


def versioned_update(table: Table, key: str, names: Sequence[str]) -> Update:
    """A statement that writes `names` where key and version are as they were read."""
    values: dict[str, Any] = {name: bindparam(NEW + name, type_=table.c[name].type) for name in names}
    values["version"] = table.c.version + 1
    return (
        update(table)
        .where(table.c[key] == bindparam(KEY), table.c.version == bindparam(VERSION))
        .values(values)
    )


def write_one(
    connection: Connection, statement: Update, row: VersionedRow, *, table: Table, key: str, what: str
) -> None:
    """Write a row; StaleError where somebody else has written it since it was read, or removed it."""
    if connection.execute(statement, _parameters(row)).rowcount:
        return
    name, version, _values = row
    found = connection.execute(select(table.c.version).where(table.c[key] == name)).scalar()
    seen = "is gone" if found is None else f"has version {found} by now, not {version}"
    raise StaleError(f"The {what} {name} {seen}.", hint="Load it again, then repeat the change.")


def save_named(
    connection: Connection,
    statement: Update,
    record: N,
    values: Mapping[str, Any],
    *,
    table: Table,
    what: str,
) -> N:
    """Write a record that is found by its name, if nobody has since it was read; returns it with its new version."""
    row = (record.name, record.version, values)
    write_one(connection, statement, row, table=table, key="name", what=what)
    return replace(record, version=record.version + 1)


def insert_named(
    connection: Connection, table: Table, values: Mapping[str, Any], *, what: str, hint: str
) -> None:
    """Write a new row; ConflictError where its name is taken."""
    try:
        with connection.begin_nested():
            connection.execute(insert(table), values)
    except IntegrityError as error:
        raise ConflictError(f"There is a {what} {values['name']!r} already.", hint=hint) from error


def picked(record: object, names: Sequence[str], plain: Mapping[str, Any]) -> dict[str, Any]:
    """What a row gets: `plain` where a column cannot take the record's own value, that value where it can."""
    return {name: plain[name] if name in plain else getattr(record, name) for name in names}


def write_many(
    connection: Connection, statement: Update, rows: Sequence[VersionedRow], *, table: Table, key: str
) -> list[str]:
    """Write those rows that nobody else has written since they were read; returns the keys of the others.

    Two statements for a few thousand rows: the first locks them, in one order for everybody, and looks. One for one.
    """
    if len(rows) == 1:
        written = connection.execute(statement, _parameters(rows[0])).rowcount
        return [] if written else [rows[0][0]]
    versions: dict[str, int] = {}
    for part in chunks(row[0] for row in rows):
        found = connection.execute(_locked_versions(table, key), {"wanted": part})
        versions.update({row[0]: row[1] for row in found})
    fresh = [row for row in rows if versions.get(row[0]) == row[1]]
    for some in chunks(fresh):
        connection.execute(statement, [_parameters(row) for row in some])
    return [row[0] for row in rows if versions.get(row[0]) != row[1]]


@cache
def _locked_versions(table: Table, key: str) -> Select[Any]:
    wanted = table.c[key].in_(bindparam("wanted", expanding=True))
    return select(table.c[key], table.c.version).where(wanted).order_by(table.c[key]).with_for_update()


def _parameters(row: VersionedRow) -> dict[str, Any]:
    name, version, values = row
    return {KEY: name, VERSION: version, **{NEW + column: value for column, value in values.items()}}
