"""What launches have to know beside the jobs themselves: nodes, people, workspaces, the secret. Loaded before, so that
`launching.launch_of` stays pure; every lookup of one that is not known gives something empty and harmless.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sqlalchemy import Connection

from trainyard.lib.secret_names import SEALED
from trainyard.server.jobs.turn_changes import Job
from trainyard.server.launch import code_checkout, job_secrets, sandbox_spec
from trainyard.server.launch.code_checkout import OpenSource
from trainyard.server.launch.job_secrets import OpenSecrets, SecretMissingError
from trainyard.server.launch.kinds import JobOwner
from trainyard.server.launch.sandbox_spec import SandboxFacts
from trainyard.server.records.nodes import NodeRecord
from trainyard.server.records.workloads import WorkloadRecord
from trainyard.server.secrets.sealing import Seal
from trainyard.server.store.database import Database
from trainyard.server.store.people import secrets, users, workspaces
from trainyard.spec.ascend import entry_addresses, simulated_addresses

PLAIN = "job"
KEPT_SECONDS = 1.0  # so late a change of a storage or a sign-in is seen by plain jobs


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchFacts:
    """Facts for some launches."""

    nodes: Mapping[str, NodeRecord] = field(default_factory=dict)
    people: Mapping[str, JobOwner] = field(default_factory=dict)
    workspaces: Mapping[str, str] = field(default_factory=dict)
    secret: bytes = field(default=b"", repr=False)
    seal: Seal | None = None  # None: nothing sealed can be opened
    secrets: Mapping[str, OpenSecrets] = field(default_factory=dict)  # of the store, by job
    sources: Mapping[str, OpenSource] = field(default_factory=dict)  # of code, by id
    views: SandboxFacts | None = None  # None: tasks see their nodes as they are

    def opened(self, env: Mapping[str, str], owner: str) -> dict[str, str]:
        """Variables with their secrets opened; SecretMissingError names one that cannot be."""
        return {name: self._open(name, value, owner) for name, value in env.items()}

    def opened_secrets(self, env: Mapping[str, str], owner: str) -> list[str]:
        """The values of the sealed ones alone; what cannot be opened is left out."""
        if self.seal is None:
            return []
        found = [self.seal.try_open_text(value, owner) for value in env.values()]
        return [value for value in found if value]

    def _open(self, name: str, value: str, owner: str) -> str:
        if not value.startswith(SEALED):
            return value
        found = None if self.seal is None else self.seal.try_open_text(value, owner)
        if found is None:
            raise SecretMissingError(
                f"The variable {name} was sealed with another key file.",
                hint="Submit the job again with its secrets, or have the key file put back.",
            )
        return found

    def device_of(self, node: str) -> str:
        """The type of a node's devices, for who named none; of several, the first."""
        record = self.nodes.get(node)
        return next(iter(record.devices), "") if record is not None else ""

    def address_of(self, node: str) -> str:
        """Where other nodes reach it."""
        return address_of(self.nodes.get(node))

    def binds_peers(self, node: str) -> bool:
        """Whether tasks there hear of their peers only after all have started."""
        record = self.nodes.get(node)
        return record is not None and bool(record.facts.get("binds_peers"))

    def device_addresses(self, node: str, place: int) -> Mapping[int, str]:
        """The devices' own addresses, by number. `place` is the node's among those of the job, for devices that are made up."""
        record = self.nodes.get(node)
        if record is None:
            return {}
        found = entry_addresses(record.options) or entry_addresses(record.facts)
        return found or (simulated_addresses(place) if record.simulated else {})


def address_of(record: NodeRecord | None) -> str:
    """Where other nodes reach a node; empty where nobody has said."""
    if record is None:
        return ""
    return str(record.options.get("address") or record.facts.get("address") or "")


def needs_store(job: Job) -> bool:
    """Whether a job's launch asks for more than its nodes."""
    spec = job.record.spec
    return spec.kind != PLAIN or len(job.tasks) > 1 or bool(spec.mounts or spec.code or spec.secrets)


def has_secrets(record: WorkloadRecord) -> bool:
    """Whether a job has anything that its tasks should not print."""
    spec = record.spec
    envs = (spec.env, *(role.env for role in spec.roles))
    is_sealed = any(value.startswith(SEALED) for env in envs for value in env.values())
    return bool(is_sealed or spec.secrets or (spec.code is not None and spec.code.source))


def plain(jobs: Sequence[Job], nodes: Iterable[NodeRecord]) -> LaunchFacts:
    """For jobs that need nothing of the store."""
    wanted = {name for job in jobs for name in job.nodes}
    return LaunchFacts(nodes={record.name: record for record in nodes if record.name in wanted})


def load(
    c: Connection,
    jobs: Sequence[Job],
    nodes: Iterable[NodeRecord],
    *,
    secret: bytes = b"",
    seal: Seal | None = None,
    views: Callable[[Connection], SandboxFacts] | None = None,
) -> LaunchFacts:
    """Read what these jobs' launches need."""
    return replace(
        plain(jobs, nodes),
        views=None if views is None else sandbox_spec.load(c, [job.record for job in jobs], views(c)),
        people={
            one.id: JobOwner(name=one.name, email=one.email)
            for one in users.load_many(c, {job.record.user_id for job in jobs})
        },
        workspaces=workspaces.names(c),
        sources=code_checkout.load(c, [job.record.spec for job in jobs], seal),
        secret=secret,
        seal=seal,
        secrets=job_secrets.load(c, [job.record for job in jobs], seal),
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

    async def survey(self, jobs: Sequence[Job], nodes: Iterable[NodeRecord]) -> LaunchFacts:
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


def _covers(kept: LaunchFacts, jobs: Sequence[Job]) -> bool:
    storages = {} if kept.views is None else kept.views.storages
    return all(job.record.user_id in kept.people and job.record.workspace_id in storages for job in jobs)
