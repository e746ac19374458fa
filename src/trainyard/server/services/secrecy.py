"""A job's secrets: which variables hold them, and the job without them for everybody but its owner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from trainyard.lib.log import HIDDEN, redact_data
from trainyard.lib.secret_names import is_secret
from trainyard.server.auth.actor import Actor
from trainyard.server.store.workloads import WorkloadRecord
from trainyard.spec.workload import WorkloadSpec


def without_secrets(spec: WorkloadSpec) -> WorkloadSpec:
    """The same job without the variables that are secrets: for whoever copies a job of somebody else's."""
    roles = tuple(replace(role, env=_open_env(role.env)) for role in spec.roles)
    return replace(spec, env=_open_env(spec.env), roles=roles)


def masked(spec: WorkloadSpec) -> WorkloadSpec:
    """The same job with *** for every value that is a secret, for everybody but its owner."""
    roles = tuple(replace(role, env=_masked_env(role.env)) for role in spec.roles)
    return replace(spec, env=_masked_env(spec.env), roles=roles)


def for_eyes_of(actor: Actor, record: WorkloadRecord) -> WorkloadRecord:
    """The record as this actor may see it: only its owner sees its secrets."""
    has_env = record.spec.env or any(role.env for role in record.spec.roles)
    if record.user_id == actor.user_id or not (has_env or record.dlc):
        return record
    dlc = None if record.dlc is None else redact_data(record.dlc)
    return replace(record, spec=masked(record.spec), dlc=dlc)


def _open_env(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if not is_secret(name, value)}


def _masked_env(env: Mapping[str, str]) -> dict[str, str]:
    return {name: HIDDEN if is_secret(name, value) else value for name, value in env.items()}
