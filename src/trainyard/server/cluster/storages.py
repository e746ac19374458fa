"""Storages that tasks see as folders, and sign-ins of registries for images: who may add them, and what they must be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection

from trainyard.lib.errors import ConflictError, InvalidError, NotFoundError
from trainyard.lib.ids import new_id
from trainyard.messages.catalogue import failure
from trainyard.server import validation
from trainyard.server.auth.actor import Actor, require
from trainyard.server.launch import mounts
from trainyard.server.launch.sandbox_spec import Login, words_of
from trainyard.server.people.workspace_lookup import find_workspace
from trainyard.server.records.storages import RegistryRecord, StorageRecord
from trainyard.server.secrets.sealing import Seal
from trainyard.server.service_context import Context
from trainyard.server.store import settings as stored
from trainyard.server.store.cluster import storages
from trainyard.server.store.people import workspaces
from trainyard.spec.workload import WorkloadSpec

# What a first start of a platform on one computer makes, as the platforms that people come from have it. Not absolute:
# below the platform's own folder.
DEFAULTS = (
    ("user", "users/{user}", "/mnt/user/{user}"),
    ("share", "groups/{group}", "/mnt/share/{group}"),
    ("home", "work/{user}", "/home/{user}"),
    ("work", "work/{user}", "/work"),
    ("job", "work/{user}/jobs/{day}/{job}", "/job"),
    ("data", "data", "/data"),
)
MADE = "storages_made"
OPTIONS = ("options",)  # of a mount command
SAMPLE = {"user": "u", "group": "g", "workspace": "w", "job": "j", "day": "d"}


class Storages:
    """`services.storages`."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def list(self, actor: Actor, workspace: str = "") -> Sequence[StorageRecord]:
        """The storages that the actor's jobs may use; of one workspace, where it is named."""
        require(actor, "storages:read")

        def work(connection: Connection) -> list[StorageRecord]:
            if workspace:
                return storages.list_storages(connection, find_workspace(connection, actor, workspace).id)
            found = storages.list_storages(connection)
            return [one for one in found if one.workspace_id is None or actor.can_see(one.workspace_id)]

        return await self._context.db.read(work)

    async def get(self, actor: Actor, text: str) -> StorageRecord:
        """One storage, by its id or its name."""
        found = [one for one in await self.list(actor) if text in (one.id, one.name)]
        if not found:
            raise failure(NotFoundError, "no_storage", storage=text)
        if len(found) > 1:
            raise InvalidError(
                f"There are {len(found)} storages {text!r}.", hint="Give the id of one of them."
            )
        return found[0]

    async def add(
        self,
        actor: Actor,
        name: str,
        *,
        source: str,
        target: str,
        kind: str = mounts.FOLDER,
        workspace: str = "",
        read_only: bool = False,
        is_default: bool = False,
        options: Mapping[str, Any] | None = None,
    ) -> StorageRecord:
        """Add a storage for all workspaces, or for one. What it leads to is checked on nodes, when a task needs it."""
        require(actor, "storages:write")
        record = StorageRecord(
            id=new_id("data"),
            name=name,
            kind=kind,
            source=source,
            target=target,
            read_only=read_only,
            is_default=is_default,
            options=dict(options or {}),
            created_at=self._context.now(),
        )
        check(record)

        def work(connection: Connection) -> StorageRecord:
            place = find_workspace(connection, actor, workspace).id if workspace else None
            made = replace(record, workspace_id=place)
            for other in storages.list_storages(connection):
                if other.name == name and (
                    other.workspace_id == place or None in (other.workspace_id, place)
                ):
                    raise ConflictError(f"There is a storage {name!r} already.", hint="Choose another name.")
                if is_default and other.is_default and other.target == target and other.workspace_id == place:
                    raise ConflictError(
                        f"Tasks have the storage {other.name!r} at {target} already.",
                        hint="Choose another target.",
                    )
            storages.insert_storage(connection, made)
            self._context.audit(
                connection, actor, "storages.add", made.id, workspace_id=place, data={"name": name}
            )
            return made

        return await self._context.write(actor, "storages.add", name, work, wakes=False)

    async def remove(self, actor: Actor, text: str) -> None:
        """Forget a storage. Its files stay where they are; tasks that run keep it."""
        require(actor, "storages:write")
        record = await self.get(actor, text)

        def work(connection: Connection) -> None:
            storages.remove_storage(connection, record.id)
            self._context.audit(connection, actor, "storages.remove", record.id, data={"name": record.name})

        await self._context.write(actor, "storages.remove", record.id, work, wakes=False)


class Registries:
    """`services.registries`. A password goes in and never comes out, but to the node that fetches an image."""

    def __init__(self, context: Context, seal: Seal) -> None:
        self._context = context
        self._seal = seal

    async def list(self, actor: Actor) -> Sequence[RegistryRecord]:
        """The sign-ins of all workspaces that the actor sees."""
        require(actor, "storages:read")
        found = await self._context.db.read(storages.list_registries)
        return [one for one in found if one.workspace_id is None or actor.can_see(one.workspace_id)]

    async def add(
        self, actor: Actor, host: str, *, username: str, password: str, workspace: str = ""
    ) -> RegistryRecord:
        """Keep a sign-in, for images of all workspaces or of one. One for the same host is replaced."""
        require(actor, "storages:write")
        validation.check_text("host", host, longest=255, empty=False)
        validation.check_text("username", username, longest=500, empty=False)
        if "/" in host or " " in host:
            raise validation.FieldError(
                "host", "is no host", hint="Give it as images have it: registry.example.com:5000."
            )
        if not password or len(password) > 4000:
            raise validation.FieldError(
                "password", "is empty or too long", hint="Give the password or a token."
            )
        registry_id = new_id("reg")
        sealed = self._seal.close_up(password.encode(), registry_id)
        now = self._context.now()

        def work(connection: Connection) -> RegistryRecord:
            place = find_workspace(connection, actor, workspace).id if workspace else None
            for other in storages.list_registries(connection):
                if (other.host, other.workspace_id) == (host, place):
                    storages.remove_registry(connection, other.id)
            record = RegistryRecord(
                id=registry_id,
                host=host,
                username=username,
                sealed=sealed,
                created_at=now,
                workspace_id=place,
            )
            storages.insert_registry(connection, record)
            self._context.audit(
                connection, actor, "registries.add", registry_id, workspace_id=place, data={"host": host}
            )
            return record

        return await self._context.write(actor, "registries.add", host, work, wakes=False)

    async def remove(self, actor: Actor, text: str) -> None:
        """Forget a sign-in, by its id or its host."""
        require(actor, "storages:write")
        found = [one for one in await self.list(actor) if text in (one.id, one.host)]
        if not found:
            raise NotFoundError(f"There is no sign-in for {text!r}.", hint="See `trainyard registries`.")
        if len(found) > 1:
            raise InvalidError(
                f"There are {len(found)} sign-ins for {text!r}.", hint="Give the id of one of them."
            )

        def work(connection: Connection) -> None:
            storages.remove_registry(connection, found[0].id)
            self._context.audit(
                connection, actor, "registries.remove", found[0].id, data={"host": found[0].host}
            )

        await self._context.write(actor, "registries.remove", found[0].id, work, wakes=False)


def logins(connection: Connection, seal: Seal) -> tuple[Login, ...]:
    """All sign-ins, opened; one that was sealed with another key is left out."""
    found = []
    for one in storages.list_registries(connection):
        try:
            password = seal.open_up(one.sealed, one.id).decode()
        except ConflictError:
            continue
        found.append(Login(one.host, one.username, password, one.workspace_id))
    return tuple(found)


def check(record: StorageRecord) -> None:
    """InvalidError where it cannot be a storage."""
    validation.check_name(record.name)
    if record.kind not in mounts.KINDS:
        raise validation.FieldError(
            "kind", f"is {record.kind[:40]!r}", hint=f"Choose {' or '.join(mounts.KINDS)}."
        )
    validation.check_text("source", record.source, longest=mounts.LONGEST, empty=False)
    mounts.check_words(record.source)
    mounts.check_words(record.target)
    mounts.checked_target(mounts.filled(record.target, SAMPLE))
    if ".." in record.source.split("/"):
        raise validation.FieldError("source", "leads upwards", hint="Give the path without `..`.")
    if record.kind == mounts.NETWORK:
        host, colon, path = record.source.partition(":")
        if not colon or not path.startswith("/") or not host or host.startswith("-"):
            raise validation.FieldError(
                "source", "is no network file system", hint="Write it like nas.example.com:/export."
            )
    elif not record.source.startswith("/") and (":" in record.source or "\\" in record.source):
        # Taken for a folder below the platform's own, everything would go to a local disk, and nobody would know.
        raise validation.FieldError(
            "source", "looks like a network file system", hint="Give --kind nfs, or a folder of the nodes."
        )
    for name, value in record.options.items():
        if name not in OPTIONS or not isinstance(value, str) or len(value) > 500:
            raise validation.FieldError(
                "options", f"has {name[:40]!r}", hint='Write {"options": "vers=4,soft"}.'
            )


def check_mounts(connection: Connection, spec: WorkloadSpec, *, user: str, workspace_id: str) -> None:
    """InvalidError where a job of this user cannot have the storages that it asks for."""
    if not spec.mounts:
        return
    place = workspaces.find(connection, workspace_id)
    name, group_id = (place.name, place.group_id) if place else ("", None)
    group = next((one.name for one in workspaces.list_groups(connection) if one.id == group_id), name)
    words = words_of(user=user, workspace=name, group=group, job_id="job", submitted_at=0.0)
    mounts.choose(storages.list_storages(connection, workspace_id), spec.mounts, words)


def ensure_defaults(connection: Connection, now: float) -> None:
    """Make the storages that a platform on one computer begins with, once: who removes them wants none."""
    if stored.find(connection, MADE) is not None:
        return
    stored.save(connection, MADE, True)
    for name, source, target in DEFAULTS:
        storages.insert_storage(
            connection,
            StorageRecord(
                id=new_id("data"),
                name=name,
                kind=mounts.FOLDER,
                source=source,
                target=target,
                is_default=True,
                created_at=now,
            ),
        )
