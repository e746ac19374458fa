"""Pools: which machines may be bought, how many and for how much. Buying is leader/pool_loop.py; here is only what people want."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from sqlalchemy import Connection

from trainyard.lib.errors import ConflictError, StaleError
from trainyard.server import validation
from trainyard.server.auth.actor import Actor, require
from trainyard.server.cluster.elastic_pools import OPTIONS
from trainyard.server.records.pools import LIVE, MachineRecord, PoolRecord, Stage
from trainyard.server.service_context import Context
from trainyard.server.store.cluster import nodes, pools
from trainyard.server.wakeups import POOLS
from trainyard.spec.events import Subject

T = TypeVar("T")

BACKENDS = ("aliyun",)
LONGEST_NAME = 40  # names of machines begin with it, and are names of hosts
MOST = 1000
RELEASED_SHOWN = 50
# What people may change; each lets the next purchase be tried at once.
CHANGEABLE = frozenset(
    {
        "types",
        "zones",
        "is_spot",
        "price_limit",
        "most",
        "least",
        "idle_seconds",
        "labels",
        "taints",
        "options",
    }
)


@dataclass(frozen=True, slots=True)
class PoolView:
    """A pool with its machines and what they have cost until `at`."""

    pool: PoolRecord
    machines: tuple[MachineRecord, ...]  # live ones; where all were asked for, those released last too
    cost: float
    at: float


class Pools:
    """`services.pools`."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def list(self, actor: Actor) -> Sequence[PoolView]:
        """All pools by name, with their live machines."""
        require(actor, "pools:read")
        now = self._context.now()

        def work(connection: Connection) -> list[PoolView]:
            costs = pools.costs(connection, now)
            machines = pools.list_machines(connection)
            return [
                PoolView(
                    pool,
                    tuple(one for one in machines if one.pool == pool.name),
                    costs.get(pool.name, 0.0),
                    now,
                )
                for pool in pools.list_pools(connection)
            ]

        return await self._context.db.read(work)

    async def get(self, actor: Actor, name: str) -> PoolView:
        """One pool, with its machines and those it had last."""
        require(actor, "pools:read")
        return await self._context.db.read(lambda c: self._view(c, name))

    async def create(self, actor: Actor, record: PoolRecord) -> PoolView:
        """Make a pool. Nothing is bought before a job needs it, but for `least`."""
        require(actor, "pools:write")
        validation.check_node_name(record.name)
        if len(record.name) > LONGEST_NAME:
            raise validation.FieldError("name", "is too long", hint=f"Use at most {LONGEST_NAME} characters.")
        record = replace(record, created_at=self._context.now())
        _check(record)

        def work(connection: Connection) -> PoolView:
            taken = [node.name for node in nodes.list_nodes(connection) if node.pool == record.name]
            if taken:
                raise ConflictError(
                    f"The node {taken[0]!r} is in a pool {record.name!r} already.",
                    hint="Choose another name: a pool that buys machines has only those.",
                )
            pools.insert_pool(connection, record)
            self._note(connection, actor, "create", record, f"{actor.name} made the pool.")
            return self._view(connection, record.name)

        return await self._write(actor, "pools.create", record.name, work)

    async def change(
        self, actor: Actor, name: str, *, version: int | None = None, **changes: Any
    ) -> PoolView:
        """Change what is given. Machines that are there stay as they are, and go when they are idle."""
        require(actor, "pools:write")
        if unknown := changes.keys() - CHANGEABLE:
            raise validation.FieldError(
                min(unknown), "cannot be changed", hint=f"There are: {', '.join(sorted(CHANGEABLE))}."
            )
        for key in ("types", "zones", "taints"):
            if key in changes:
                changes[key] = tuple(changes[key])

        def work(connection: Connection) -> PoolView:
            record = _current(connection, name, version)
            if not record.is_active:
                raise ConflictError(
                    f"The pool {name!r} is being removed.", hint="Wait until it is gone, and make a new one."
                )
            changed = replace(record, **changes)
            _check(changed)
            if changed != record:
                changed = replace(changed, failures=0, retry_at=None, message="")
                pools.save(connection, changed)
                fields = sorted(key for key in changes if getattr(changed, key) != getattr(record, key))
                self._note(connection, actor, "change", changed, f"{actor.name} changed the pool.", fields)
            return self._view(connection, name)

        return await self._write(actor, "pools.change", name, work)

    async def remove(self, actor: Actor, name: str) -> None:
        """Let all its machines go: what runs there goes back to the queue. The pool is gone when they are."""
        require(actor, "pools:write")

        def work(connection: Connection) -> None:
            record = _current(connection, name, None)
            if record.is_active:
                pools.save(connection, replace(record, is_active=False, retry_at=None))
                self._note(connection, actor, "remove", record, f"{actor.name} removes the pool.")

        await self._write(actor, "pools.remove", name, work)

    async def _write(self, actor: Actor, action: str, name: str, work: Callable[[Connection], T]) -> T:
        done = await self._context.write(actor, action, name, work)
        self._context.wakeups.wake(POOLS)
        return done

    def _view(self, connection: Connection, name: str) -> PoolView:
        now = self._context.now()
        record = pools.load(connection, name)
        live = pools.list_machines(connection, pool=name, states=LIVE)
        past = pools.list_machines(connection, pool=name, states={Stage.RELEASED}, limit=RELEASED_SHOWN)
        return PoolView(record, (*live, *past), pools.costs(connection, now).get(name, 0.0), now)

    def _note(
        self,
        connection: Connection,
        actor: Actor,
        action: str,
        record: PoolRecord,
        message: str,
        details: Sequence[str] = (),
    ) -> None:
        data: dict[str, object] = {
            "types": list(record.types),
            "most": record.most,
            "least": record.least,
            "price_limit": record.price_limit,
            "fields": list(details),
        }
        self._context.audit(connection, actor, f"pools.{action}", record.name, data=data)
        self._context.tell(connection, actor, Subject.POOL, record.name, action, message)


def _current(connection: Connection, name: str, version: int | None) -> PoolRecord:
    record = pools.load(connection, name)
    if version is not None and version != record.version:
        raise StaleError(f"The pool {name!r} has version {record.version} by now.", hint="Load it again.")
    return record


def _check(record: PoolRecord) -> None:
    if record.backend not in BACKENDS:
        raise validation.FieldError(
            "backend", f"is {record.backend[:40]!r}", hint=f"Choose {' or '.join(BACKENDS)}."
        )
    _check_words("types", record.types, least=1)
    _check_words("zones", record.zones)
    if not 0 <= record.least <= record.most <= MOST:
        raise validation.FieldError(
            "most", f"is {record.most} and least {record.least}", hint=f"Choose 0 <= least <= most <= {MOST}."
        )
    if record.price_limit is not None and not 0 < record.price_limit < float("inf"):
        raise validation.FieldError(
            "price_limit", f"is {record.price_limit}", hint="Name what an hour of one machine may cost."
        )
    if not 0 <= record.idle_seconds <= 30 * 86400:
        raise validation.FieldError(
            "idle_seconds", f"is {record.idle_seconds}", hint="Choose from 0 to 30 days, in seconds."
        )
    validation.check_labels("labels", record.labels)
    validation.check_taints("taints", record.taints)
    _check_options(record.options)


def _check_words(name: str, words: Sequence[str], *, least: int = 0) -> None:
    if not least <= len(words) <= 20:
        raise validation.FieldError(name, f"has {len(words)} entries", hint=f"Give {least} to 20.")
    for word in words:
        validation.check_text(name, word, longest=63, empty=False)
        if any(letter.isspace() or letter == "," for letter in word):
            raise validation.FieldError(
                name, f"has an entry {word[:40]!r}", hint="Write one name an entry, as the provider has it."
            )


def _check_options(options: Mapping[str, Any]) -> None:
    for name, value in options.items():
        kind = OPTIONS.get(name)
        if kind is None:
            raise validation.FieldError(
                f"options.{name[:40]}", "is not known", hint=f"There are: {', '.join(sorted(OPTIONS))}."
            )
        is_number = isinstance(value, int) and not isinstance(value, bool) and value >= 0
        if not (is_number if kind is int else isinstance(value, kind)):
            raise validation.FieldError(
                f"options.{name}", f"is {str(value)[:40]!r}", hint=f"Give it a value of type {kind.__name__}."
            )
        if isinstance(value, str):
            validation.check_text(f"options.{name}", value, longest=255)
