"""A job's secrets: sealed before they are stored, opened when the job is launched, and shown to nobody.

Which variables are secrets is lib/secret_names.py's; the key is secrets/sealing.py's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from trainyard.lib.log import HIDDEN, change_secrets, redact_data
from trainyard.lib.secret_names import is_secret
from trainyard.server.records.workloads import WorkloadRecord
from trainyard.server.secrets.sealing import Seal
from trainyard.spec.workload import WorkloadSpec


def without_secrets(spec: WorkloadSpec) -> WorkloadSpec:
    """The same job without the variables that are secrets: for whoever copies a job of somebody else's."""
    return _with_env(
        spec, lambda env: {name: value for name, value in env.items() if not is_secret(name, value)}
    )


def masked(spec: WorkloadSpec) -> WorkloadSpec:
    """The same job with *** for every value that is a secret: not even its owner sees them again."""
    return _with_env(
        spec, lambda env: {name: HIDDEN if is_secret(name, value) else value for name, value in env.items()}
    )


def sealed(spec: WorkloadSpec, seal: Seal, owner: str) -> WorkloadSpec:
    """The same job as it is stored. What is sealed for this owner already (in a copy of their own job) stays."""
    return _with_env(
        spec,
        lambda env: {
            name: _sealed(value, seal, owner) if value and is_secret(name, value) else value
            for name, value in env.items()
        },
    )


def sealed_request(request: Mapping[str, Any], seal: Seal, owner: str) -> dict[str, Any]:
    """What the compatible door was given, as it is stored."""
    return change_secrets(request, lambda text: _sealed(text, seal, owner))


def masked_record(record: WorkloadRecord) -> WorkloadRecord:
    """The record as people may see it."""
    has_env = record.spec.env or any(role.env for role in record.spec.roles)
    if not (has_env or record.dlc):
        return record
    dlc = None if record.dlc is None else redact_data(record.dlc)
    return replace(record, spec=masked(record.spec), dlc=dlc)


def _sealed(value: str, seal: Seal, owner: str) -> str:
    """NB: a text that only looks sealed is sealed like any other, so that it is opened as what it is."""
    return value if seal.try_open_text(value, owner) is not None else seal.close_text(value, owner)


def _with_env(spec: WorkloadSpec, change: Callable[[Mapping[str, str]], Mapping[str, str]]) -> WorkloadSpec:
    if not (spec.env or any(role.env for role in spec.roles)):
        return spec
    roles = tuple(replace(role, env=change(role.env)) for role in spec.roles)
    return replace(spec, env=change(spec.env), roles=roles)
