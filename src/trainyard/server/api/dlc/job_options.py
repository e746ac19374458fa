"""What a DLC job asks for beside its roles: code, data, packages, elasticity, fault tolerance. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any

from trainyard.lib.errors import InvalidError
from trainyard.server.api.dlc.field_types import mapping, objects, switch, text, whole
from trainyard.spec.workload import CodeSpec, MountSpec, Restart, RoleSpec

# What AIMaster takes: its name → what it is without a value.
HANG_SECONDS = 1800
RESTARTS = 3
_FLAGS = frozenset(
    {
        "enable-job-restart",
        "enable-local-detection",
        "enable-job-hang-detection",
        "enable-c4d-hang-detection",
        "enable-job-exit-hang-detection",
    }
)
_NUMBERS = frozenset(
    {"max-num-of-job-restart", "job-restart-timeout", "job-hang-interval", "job-exit-hang-interval"}
)
_CHOICES = {
    "job-execution-mode": ("Sync", "Async"),
    "fault-tolerant-policy": ("OnFailure", "ExitCodeAndErrorMsg"),
}
# Each detection, and the interval that goes with it.
_DETECTIONS = {
    "enable-job-hang-detection": "job-hang-interval",
    "enable-c4d-hang-detection": "job-hang-interval",
    "enable-job-exit-hang-detection": "job-exit-hang-interval",
}


@dataclass(frozen=True, slots=True)
class Tolerance:
    """What is done about failures. `restart` None: as the roles say."""

    hang_seconds: int = 0
    restart: Restart | None = None
    max_retries: int = 0


def code_of(body: Mapping[str, Any]) -> CodeSpec | None:
    """CodeSource: an id or a name of one here, or an address."""
    given = mapping(body, "CodeSource")
    source = text(given, "CodeSourceId")
    branch, commit = text(given, "Branch"), text(given, "Commit")
    if not source:
        if branch or commit:
            raise InvalidError("CodeSource has no CodeSourceId.", hint="Name the source of the code.")
        return None
    target = text(given, "MountPath")
    if "://" in source:
        return CodeSpec(url=source, branch=branch, commit=commit, target=target)
    return CodeSpec(source=source, branch=branch, commit=commit, target=target)


def mounts_of(body: Mapping[str, Any]) -> tuple[MountSpec, ...]:
    """DataSources: ids of storages, or addresses with a place."""
    given = objects(body, "DataSources", 'Write [{"DataSourceId": "data-…"}].')
    found = []
    for number, one in enumerate(given):
        where = f"DataSources[{number}]"
        source = text(one, "DataSourceId", where) or text(one, "Uri", where)
        if not source:
            raise InvalidError(f"{where} has neither a DataSourceId nor a Uri.", hint="Give one of them.")
        target = text(one, "MountPath", where)
        if one.get("Uri") and not target:
            raise InvalidError(f"{where} has no MountPath.", hint="Write nas://address/path::/mount.")
        read_only = text(one, "MountAccess", where).upper() == "RO"
        found.append(MountSpec(source=source, target=target, read_only=read_only))
    return tuple(found)


def elastic(body: Mapping[str, Any], roles: Sequence[RoleSpec]) -> tuple[RoleSpec, ...]:
    """ElasticSpec: workers from MinParallelism to MaxParallelism."""
    given = mapping(body, "ElasticSpec")
    if not switch(given, "EnableElasticTraining"):
        return tuple(roles)
    least, most = whole(given, "MinParallelism", 1), whole(given, "MaxParallelism", 0)
    found = []
    for role in roles:
        replicas = (most or role.replicas) if role.name == "worker" else role.replicas
        if role.name == "worker" and not 1 <= least <= replicas:
            raise InvalidError(
                f"MinParallelism {least} is not between 1 and {replicas}.",
                hint="Give fewer than there are workers.",
            )
        found.append(
            replace(role, replicas=replicas, minimum=least if least < replicas else None)
            if role.name == "worker"
            else role
        )
    return tuple(found)


def with_driver(settings: Mapping[str, Any], roles: Sequence[RoleSpec]) -> tuple[RoleSpec, ...]:
    """Driver: nodes that carry the label `driver` with this version, for roles with devices."""
    version = text(settings, "Driver")
    if not version:
        return tuple(roles)
    return tuple(
        replace(role, labels={**role.labels, "driver": version}) if role.devices else role for role in roles
    )


def tolerance_of(settings: Mapping[str, Any]) -> Tolerance:
    """What AIMaster's switch and arguments ask for."""
    if not switch(settings, "EnableErrorMonitoringInAIMaster"):
        return Tolerance()
    given = parse_arguments(text(settings, "ErrorMonitoringArgs"))
    intervals = [
        int(given.get(interval, HANG_SECONDS))
        for detection, interval in _DETECTIONS.items()
        if given.get(detection) == "true"
    ]
    if given.get("enable-job-restart") != "true":
        return Tolerance(min(intervals, default=0))
    policy = given.get("fault-tolerant-policy", "OnFailure")
    restart = Restart.ON_FAILURE if policy == "OnFailure" else Restart.EXIT_CODE
    retries = int(given.get("max-num-of-job-restart", RESTARTS))
    return Tolerance(min(intervals, default=0), restart, retries)


def parse_arguments(text: str) -> dict[str, str]:
    """`--enable-job-restart --job-hang-interval 600`: by name. Flags are true, or what follows them; `=` does as well."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise InvalidError(f"ErrorMonitoringArgs {text!r} has an open quote.", hint="Close it.") from error
    found: dict[str, str] = {}
    place = 0
    while place < len(words):
        name, equals, value = words[place].partition("=")
        name = name.lower().replace("_", "-")
        place += 1
        if not name.startswith("--"):
            raise InvalidError(f"ErrorMonitoringArgs: {name!r} is no argument.", hint="Write --name value.")
        name = name.removeprefix("--")
        following = words[place] if place < len(words) and not words[place].startswith("--") else ""
        if not equals and following:
            value = following
            place += 1
        found[name] = _argument(name, value)
    return found


def _argument(name: str, value: str) -> str:
    if name in _FLAGS:
        if value.lower() not in {"", "true", "false"}:
            raise InvalidError(f"--{name} is {value!r}, not true or false.", hint=f"Write --{name}.")
        return value.lower() or "true"
    if name in _NUMBERS:
        if not (value.isascii() and value.isdigit() and len(value) < 10):
            raise InvalidError(f"--{name} is {value!r}, not a whole number.", hint=f"Write --{name} 600.")
        return value
    if name in _CHOICES:
        if value not in _CHOICES[name]:
            raise InvalidError(f"--{name} is {value!r}.", hint=f"Choose {' or '.join(_CHOICES[name])}.")
        return value
    near = get_close_matches(name, [*_FLAGS, *_NUMBERS, *_CHOICES], n=1)
    hint = f"Did you mean --{near[0]}?" if near else "See the guide for users of dlc."
    raise InvalidError(f"ErrorMonitoringArgs: there is no --{name}.", hint=hint)
