"""Secrets of users and of workspaces: values that go in and never come out, but to tasks of jobs that name them.

How a launch gets them is leader/launch_facts_loader.py's.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import PurePosixPath

from sqlalchemy import Connection

from trainyard.lib.errors import ConflictError, DeniedError, NotFoundError
from trainyard.lib.ids import new_id
from trainyard.messages.catalogue import failure
from trainyard.server.auth.actor import Actor, require
from trainyard.server.people.workspace_lookup import find_workspace
from trainyard.server.records.secrets import SecretRecord, place_of
from trainyard.server.secrets.sealing import Seal
from trainyard.server.service_context import Context
from trainyard.server.store.people import secrets
from trainyard.server.validation import VARIABLE, FieldError, check_text
from trainyard.spec.workload import SecretSpec, WorkloadSpec

NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,62}[A-Za-z0-9_])?\Z|[A-Za-z0-9_]\Z")
LARGEST = 64 * 1024  # bytes of a value: a variable may be no longer than twice that
MOST = 500  # of one user, or of one workspace
MOST_OF_JOB = 64
# The system's own, and what the platform mounts there: programs of nodes read those before a task has begun.
_NOT_FILES = (
    *("/proc", "/sys", "/dev", "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"),
    *("/etc/ld.so.preload", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d"),
)


class Secrets:
    """`services.secrets`."""

    def __init__(self, context: Context, seal: Seal) -> None:
        self._context = context
        self._seal = seal

    async def list(self, actor: Actor) -> Sequence[SecretRecord]:
        """The actor's own and those of their workspaces; their values are sealed, and nobody is told them."""
        require(actor, "secrets:read")
        return await self._context.db.read(
            lambda c: secrets.list_secrets(c, actor.user_id, actor.places("secrets:read"))
        )

    async def put(self, actor: Actor, name: str, value: str, *, workspace: str = "") -> SecretRecord:
        """Keep a value under a name, the actor's own or a workspace's; one of that name gets another value."""
        check_secret_name("name", name)
        _check_value(value)
        now = self._context.now()

        def work(connection: Connection) -> SecretRecord:
            place = self._place(connection, actor, workspace)
            old = secrets.find_secret(connection, name, actor.user_id, place)
            if old is not None:
                _require_maker(actor, old)
                sealed = self._seal.close_up(value.encode(), old.id)
                secrets.save_secret(connection, old.id, sealed, now)
                made = replace(old, sealed=sealed, changed_at=now)
            else:
                made = self._add(connection, actor, name, value, place, now)
            self._note(connection, actor, "secrets.put", made)
            return made

        return await self._context.write(actor, "secrets.put", name, work, wakes=False)

    async def remove(self, actor: Actor, name: str, *, workspace: str = "") -> None:
        """Forget one. Jobs that name it cannot start any more; those that run keep what they got."""

        def work(connection: Connection) -> None:
            place = self._place(connection, actor, workspace)
            record = secrets.find_secret(connection, name, actor.user_id, place)
            if record is None:
                raise failure(NotFoundError, "no_secret", secret=name)
            _require_maker(actor, record)
            secrets.remove_secret(connection, record.id)
            self._note(connection, actor, "secrets.remove", record)

        await self._context.write(actor, "secrets.remove", name, work, wakes=False)

    def _place(self, connection: Connection, actor: Actor, workspace: str) -> str | None:
        if not workspace:
            require(actor, "secrets:write")
            return None
        found = find_workspace(connection, actor, workspace)
        require(actor, "secrets:share", found.id)
        return found.id

    def _add(
        self, connection: Connection, actor: Actor, name: str, value: str, place: str | None, now: float
    ) -> SecretRecord:
        ids = [] if place is None else [place]
        here = place_of(actor.user_id, place)
        there = [one for one in secrets.list_secrets(connection, actor.user_id, ids) if one.place == here]
        if len(there) >= MOST:
            raise ConflictError(f"There are {MOST} secrets already.", hint="Remove some.")
        secret_id = new_id("sec")
        made = SecretRecord(
            id=secret_id, name=name, user_id=actor.user_id, workspace_id=place,
            sealed=self._seal.close_up(value.encode(), secret_id), created_at=now, changed_at=now,
        )  # fmt: skip
        secrets.insert_secret(connection, made)
        return made

    def _note(self, connection: Connection, actor: Actor, action: str, record: SecretRecord) -> None:
        self._context.audit(
            connection, actor, action, record.id, workspace_id=record.workspace_id, data={"name": record.name}
        )


def check_secrets(spec: WorkloadSpec) -> None:
    """What can be said of a job's secrets without looking."""
    if len(spec.secrets) > MOST_OF_JOB:
        raise FieldError("secrets", "are too many", hint=f"Name at most {MOST_OF_JOB}.")
    seen: set[str] = set()
    for number, one in enumerate(spec.secrets):
        field = f"secrets[{number}]"
        check_secret_name(f"{field}.name", one.name)
        if one.variable and one.file:
            raise FieldError(field, "has a variable and a file", hint="Name the secret twice for both.")
        if not one.file and not VARIABLE.match(variable_of(one)):
            raise FieldError(
                f"{field}.variable", "is no name of a variable", hint="Use letters, digits and _."
            )
        if one.file:
            _check_file(f"{field}.file", one.file)
        where = one.file or variable_of(one)
        if where in seen:
            raise FieldError(field, f"is at {where!r}, where another one is", hint="Choose another place.")
        seen.add(where)


def require_secrets(connection: Connection, actor: Actor, spec: WorkloadSpec, workspace_id: str) -> None:
    """NotFoundError where a job of this actor could not have the secrets that it names."""
    if not spec.secrets:
        return
    places = [place_of(actor.user_id, None), place_of("", workspace_id)]
    found = {
        one.name for one in secrets.find_in_places(connection, places, {one.name for one in spec.secrets})
    }
    for one in spec.secrets:
        if one.name not in found:
            raise NotFoundError(
                f"You have no secret {one.name!r}, and the workspace has none.",
                hint=f"Keep it with `trainyard secrets set {one.name}`.",
            )


def variable_of(spec: SecretSpec) -> str:
    """The variable that a task gets it in; one that says nothing else has the secret's own name."""
    return spec.variable or spec.name


def check_secret_name(field: str, name: str) -> None:
    """FieldError where it cannot be the name of a secret."""
    if not NAME.match(name):
        raise FieldError(
            field, f"{name[:80]!r} cannot be one", hint="Use up to 64 letters, digits and . _ -."
        )


def _check_file(field: str, path: str) -> None:
    check_text(field, path, longest=1000)
    parts = PurePosixPath(path).parts
    if not path.startswith("/") or len(parts) < 2 or ".." in parts or path.endswith("/"):
        raise FieldError(
            field, f"{path[:80]!r} is no file", hint="Give an absolute path, like /run/secrets/NAME."
        )
    if any(path == top or path.startswith(f"{top}/") for top in _NOT_FILES):
        raise FieldError(
            field, "is among the system's own files", hint="Choose a path like /run/secrets/NAME."
        )


def _check_value(value: str) -> None:
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise FieldError("value", "is no text", hint="Encode it, for example by base64.") from None
    if not value or size > LARGEST:
        raise FieldError("value", "is empty or too long", hint=f"Give 1 to {LARGEST} bytes.")
    if "\0" in value:
        raise FieldError("value", "has a character that no variable can have", hint="Encode it, by base64.")


def _require_maker(actor: Actor, record: SecretRecord) -> None:
    """Others rely on a workspace's secret: who did not make it must manage the workspace."""
    if record.user_id == actor.user_id or record.workspace_id is None:
        return
    if not actor.can("jobs:manage", record.workspace_id):
        raise DeniedError(
            f"The secret {record.name} was made by somebody else.",
            hint="Ask them, or an administrator of the workspace.",
        )
