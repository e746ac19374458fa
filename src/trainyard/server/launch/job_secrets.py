"""The secrets of jobs as their launches need them: looked up, opened, and told apart from what is missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sqlalchemy import Connection

from trainyard.lib.errors import ConflictError
from trainyard.server.records.secrets import SecretRecord, place_of
from trainyard.server.records.workloads import WorkloadRecord
from trainyard.server.secrets.sealing import Seal
from trainyard.server.store.people import secrets, users, workspaces
from trainyard.spec.workload import WorkloadSpec


class SecretMissingError(ConflictError):
    """A job names a secret that it cannot have any more: starting it again would not help."""


@dataclass(frozen=True, slots=True)
class OpenSecrets:
    """What one job gets, by the names of its secrets."""

    values: Mapping[str, str] = field(default_factory=dict, repr=False)
    ids: tuple[str, ...] = ()  # of those rows


def load(
    connection: Connection, records: Sequence[WorkloadRecord], seal: Seal | None
) -> dict[str, OpenSecrets]:
    """The secrets of these jobs, by job. A user's own go before their workspace's, which members only have."""
    found = {}
    for record in records:
        if record.spec.secrets and seal is not None:
            found[record.id] = _of_job(connection, record, seal)
    return found


def _of_job(connection: Connection, record: WorkloadRecord, seal: Seal) -> OpenSecrets:
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


def variables_of(spec: WorkloadSpec, found: OpenSecrets | None) -> dict[str, str]:
    """The variables that tasks get; SecretMissingError names what is not there."""
    return {
        one.variable or one.name: _value(one.name, found) for one in spec.secrets if not one.file
    }  # fmt: skip


def files_of(spec: WorkloadSpec, found: OpenSecrets | None) -> dict[str, str]:
    """The files that tasks get, by path; SecretMissingError names what is not there."""
    return {one.file: _value(one.name, found) for one in spec.secrets if one.file}


def _value(name: str, found: OpenSecrets | None) -> str:
    if found is None or name not in found.values:
        raise SecretMissingError(
            f"The secret {name} is not there any more, or its job's owner may not use it.",
            hint=f"Keep it with `trainyard secrets set {name}`, and clone the job.",
        )
    return found.values[name]
