"""What launches have to know beside the jobs themselves: nodes, people, workspaces, the secret. Pure.

leader/launch_facts_loader.py reads them before. Every lookup of one that is not known gives something empty and harmless.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from trainyard.lib.secret_names import SEALED
from trainyard.server.launch.code_checkout import OpenSource
from trainyard.server.launch.job_secrets import OpenSecrets, SecretMissingError
from trainyard.server.launch.kinds import JobOwner
from trainyard.server.launch.sandbox_spec import SandboxFacts
from trainyard.server.records.nodes import NodeRecord
from trainyard.server.records.tasks import TaskRecord
from trainyard.server.records.workloads import WorkloadRecord
from trainyard.server.secrets.sealing import Seal
from trainyard.spec.ascend import entry_addresses, simulated_addresses

PLAIN = "job"


class PlacedJob(Protocol):
    """One attempt of a job, with a node for each of its tasks."""

    @property
    def record(self) -> WorkloadRecord:
        """The job."""

    @property
    def tasks(self) -> Mapping[str, TaskRecord]:
        """Its tasks, by name."""

    @property
    def attempt_id(self) -> str:
        """The name of this start of it, for the engine."""

    @property
    def nodes(self) -> frozenset[str]:
        """Where its tasks are."""


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


def needs_store(job: PlacedJob) -> bool:
    """Whether a job's launch asks for more than its nodes."""
    spec = job.record.spec
    return spec.kind != PLAIN or len(job.tasks) > 1 or bool(spec.mounts or spec.code or spec.secrets)


def has_secrets(record: WorkloadRecord) -> bool:
    """Whether a job has anything that its tasks should not print."""
    spec = record.spec
    envs = (spec.env, *(role.env for role in spec.roles))
    is_sealed = any(value.startswith(SEALED) for env in envs for value in env.values())
    return bool(is_sealed or spec.secrets or (spec.code is not None and spec.code.source))


def plain(jobs: Sequence[PlacedJob], nodes: Iterable[NodeRecord]) -> LaunchFacts:
    """For jobs that need nothing of the store."""
    wanted = {name for job in jobs for name in job.nodes}
    return LaunchFacts(nodes={record.name: record for record in nodes if record.name in wanted})
