"""Reads what launches have to know from the database. What they make of it is launch/."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from sqlalchemy import Connection

from trainyard.server.launch.code_checkout import OpenSource
from trainyard.server.launch.job_secrets import OpenSecrets
from trainyard.server.launch.kinds import JobOwner
from trainyard.server.launch.launch_facts import LaunchFacts, PlacedJob, needs_store, plain
from trainyard.server.launch.sandbox_spec import SandboxFacts
from trainyard.server.records.code_sources import CodeSourceRecord
from trainyard.server.records.nodes import NodeRecord
from trainyard.server.records.secrets import SecretRecord, place_of
from trainyard.server.records.workloads import WorkloadRecord
from trainyard.server.secrets.sealing import Seal
from trainyard.server.store.cluster import storages
from trainyard.server.store.database import Database
from trainyard.server.store.jobs import code_sources
from trainyard.server.store.people import secrets, users, workspaces
from trainyard.spec.workload import WorkloadSpec

KEPT_SECONDS = 1.0  # so late a change of a storage or a sign-in is seen by plain jobs


def load(
    c: Connection,
    jobs: Sequence[PlacedJob],
    nodes: Iterable[NodeRecord],
    *,
    secret: bytes = b"",
    seal: Seal | None = None,
    views: Callable[[Connection], SandboxFacts] | None = None,
) -> LaunchFacts:
    """Read what these jobs' launches need."""
    return replace(
        plain(jobs, nodes),
        views=None if views is None else load_sandbox(c, [job.record for job in jobs], views(c)),
        people={
            one.id: JobOwner(name=one.name, email=one.email)
            for one in users.load_many(c, {job.record.user_id for job in jobs})
        },
        workspaces=workspaces.names(c),
        sources=load_sources(c, [job.record.spec for job in jobs], seal),
        secret=secret,
        seal=seal,
        secrets=load_secrets(c, [job.record for job in jobs], seal),
    )


class LaunchFactsLoader:
    """Finds out what launches have to know; for plain jobs that come one after the other, once in a moment."""

    def __init__(
        self,
        db: Database,
        monotonic: Callable[[], float],
        now: Callable[[], float],
        *,
        secret: bytes = b"",
        seal: Seal | None = None,
        views: Callable[[Connection], SandboxFacts] | None = None,
    ) -> None:
        self._db = db
        self._seal = seal
        self._monotonic = monotonic
        self._now = now
        self._secret = secret
        self._views = views
        self._kept: LaunchFacts | None = None
        self._until = 0.0

    async def survey(self, jobs: Sequence[PlacedJob], nodes: Iterable[NodeRecord]) -> LaunchFacts:
        """What the launches of these have to know. Most plain jobs need no turn of the store's threads."""
        is_plain = not any(needs_store(job) for job in jobs)
        here = replace(plain(jobs, nodes), seal=self._seal)
        if is_plain and self._views is None:
            return here
        kept = self._kept
        if is_plain and kept is not None and self._monotonic() < self._until and _covers(kept, jobs):
            return replace(kept, nodes=here.nodes)
        found = await self._db.read(
            lambda c: load(
                c, jobs, here.nodes.values(), secret=self._secret, seal=self._seal, views=self._views
            )
        )
        if used := [one for each in found.secrets.values() for one in each.ids]:
            await self._db.write(lambda c: secrets.note_used(c, used, self._now()))
        # Kept without what belongs to some jobs only.
        self._kept, self._until = replace(found, secrets={}), self._monotonic() + KEPT_SECONDS
        return found


def _covers(kept: LaunchFacts, jobs: Sequence[PlacedJob]) -> bool:
    storages = {} if kept.views is None else kept.views.storages
    return all(job.record.user_id in kept.people and job.record.workspace_id in storages for job in jobs)


def load_sources(
    connection: Connection, specs: Iterable[WorkloadSpec], seal: Seal | None
) -> dict[str, OpenSource]:
    """The sources that these jobs name, by id."""
    wanted = {spec.code.source for spec in specs if spec.code is not None and spec.code.source}
    if not wanted:
        return {}
    return {
        one.id: OpenSource(one, _token_of(one, seal)) for one in code_sources.load_sources(connection, wanted)
    }


def _token_of(record: CodeSourceRecord, seal: Seal | None) -> str:
    """The token; empty where there is none, or where it was sealed with another key: the repository will refuse us."""
    if record.sealed is None or seal is None:
        return ""
    return (seal.try_open(record.sealed, record.id) or b"").decode()


def load_secrets(
    connection: Connection, records: Sequence[WorkloadRecord], seal: Seal | None
) -> dict[str, OpenSecrets]:
    """The secrets of these jobs, by job. A user's own go before their workspace's, which members only have."""
    found = {}
    for record in records:
        if record.spec.secrets and seal is not None:
            found[record.id] = _secrets_of(connection, record, seal)
    return found


def _secrets_of(connection: Connection, record: WorkloadRecord, seal: Seal) -> OpenSecrets:
    own, shared = place_of(record.user_id, None), place_of("", record.workspace_id)
    places = [own, shared] if _is_member(connection, record) else [own]
    rows = secrets.find_in_places(connection, places, {one.name for one in record.spec.secrets})
    chosen: dict[str, SecretRecord] = {}
    for row in sorted(rows, key=lambda one: one.place == own):  # the last one counts
        chosen[row.name] = row
    opened = {name: seal.try_open(row.sealed, row.id) for name, row in chosen.items()}
    return OpenSecrets(
        {name: value.decode() for name, value in opened.items() if value is not None},
        tuple(row.id for row in chosen.values()),
    )


def _is_member(connection: Connection, record: WorkloadRecord) -> bool:
    if record.workspace_id in workspaces.roles_of(connection, record.user_id):
        return True
    user = users.find(connection, record.user_id)
    return user is not None and user.is_admin


def load_sandbox(c: Connection, records: Sequence[WorkloadRecord], facts: SandboxFacts) -> SandboxFacts:
    """Read what the views of these jobs need."""
    people = users.load_many(c, {record.user_id for record in records})
    known = {one.id: one for one in workspaces.list_workspaces(c, with_archived=True)}
    groups = {one.id: one.name for one in workspaces.list_groups(c)}
    return replace(
        facts,
        storages={one: storages.list_storages(c, one) for one in {record.workspace_id for record in records}},
        groups={one.id: groups.get(one.group_id or "", one.name) for one in known.values()},
        people={one.id: one.name for one in people},
        workspaces={one.id: one.name for one in known.values()},
        admins=frozenset(one.id for one in people if one.is_admin),
        numbers=users.numbers(c, {one.id for one in people}),
    )
