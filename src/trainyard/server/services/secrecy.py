"""A job's secrets: which variables hold them, and the job without them for everybody but its owner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from trainyard.lib.log import redact
from trainyard.server.auth.actor import Actor
from trainyard.server.store.workloads import WorkloadRecord
from trainyard.spec.workload import WorkloadSpec

# In a name, and at its end: max_tokens and TOKENIZERS_PARALLELISM are what training is about.
_WORDS = ("SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "CREDENTIAL", "PRIVATE")
_ENDINGS = ("TOKEN", "KEY")


def without_secrets(spec: WorkloadSpec) -> WorkloadSpec:
    """The same job without the variables that are named like secrets."""
    roles = tuple(replace(role, env=_open_env(role.env)) for role in spec.roles)
    return replace(spec, env=_open_env(spec.env), roles=roles)


def is_secret(name: str) -> bool:
    """Whether a variable of this name holds a secret, by the rule that logs are cleaned by, and a wider one."""
    words = name.upper()
    wide = words.endswith(_ENDINGS) or any(word in words for word in _WORDS)
    return wide or redact(f"{name}=x") != f"{name}=x"


def masked(spec: WorkloadSpec) -> WorkloadSpec:
    """The same job with *** for every value that is named like a secret, for everybody but its owner."""
    roles = tuple(replace(role, env=_masked_env(role.env)) for role in spec.roles)
    return replace(spec, env=_masked_env(spec.env), roles=roles)


def for_eyes_of(actor: Actor, record: WorkloadRecord) -> WorkloadRecord:
    """The record as this actor may see it: only its owner sees its secrets."""
    has_env = record.spec.env or any(role.env for role in record.spec.roles)
    if record.user_id == actor.user_id or not (has_env or record.dlc):
        return record
    dlc = (
        None
        if record.dlc is None
        else {name: _masked_data(name, value) for name, value in record.dlc.items()}
    )
    return replace(record, spec=masked(record.spec), dlc=dlc)


def _masked_data(name: str, value: Any) -> Any:
    """The same for what the compatible door was given, whatever is inside what."""
    if isinstance(value, Mapping):
        return {key: _masked_data(str(key), inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_masked_data(name, inner) for inner in value]
    return "***" if isinstance(value, str) and value and is_secret(name) else value


def _open_env(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if not is_secret(name)}


def _masked_env(env: Mapping[str, str]) -> dict[str, str]:
    return {name: "***" if is_secret(name) else redact(value) for name, value in env.items()}
