"""The secrets of jobs as their tasks get them: variables and files, or the name of the one that is missing. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from trainyard.lib.errors import ConflictError
from trainyard.spec.workload import WorkloadSpec


class SecretMissingError(ConflictError):
    """A job names a secret that it cannot have any more: starting it again would not help."""


@dataclass(frozen=True, slots=True)
class OpenSecrets:
    """What one job gets, by the names of its secrets."""

    values: Mapping[str, str] = field(default_factory=dict, repr=False)
    ids: tuple[str, ...] = ()  # of those rows


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
