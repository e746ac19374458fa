"""Converts params files, job files and flags of `dlc` into the request for a job. Pure.

Both editions' spellings are known: the light one's `worker_count` and the public one's `workers`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from trainyard.lib.errors import InvalidError
from trainyard.lib.log import redact_data
from trainyard.spec.job_fields import DlcName, JobField, Unit, fields_of, part_of
from trainyard.spec.workload import CodeSpec, RoleSpec, WorkloadSpec

ROLES = ("worker", "master", "ps", "chief", "evaluator", "graphlearn", "head", "launcher")
# How many of a role: spelling → role.
COUNTS = {
    **{f"{role}_count": role for role in ROLES},
    "workers": "worker",
    "masters": "master",
    "ps": "ps",
    "evaluators": "evaluator",
    "graphlearns": "graphlearn",
    "heads": "head",
    "launchers": "launcher",
}
_AMOUNT = "ResourceConfig."  # what of a role is an amount stands there in a request
# What a job and its roles have beside the fields of the table, or has no value of its own.
_OF_ROLE_BESIDE = {
    "spec": "a machine type instead of all these",
    "restart_policy": "Always, Never, OnFailure or ExitCode",
}
_BESIDE = {
    "resource_id": "id of the quota",
    "interactive": "true: wait for the end, and end with its result",
    "chief": "true: a chief beside the workers",
    "data_source_uris": "scheme://address/path::/mount, with commas",
    "node_names": "only on these nodes, with commas",
    "oversold_type": "AcceptQuotaOverSold, ForceQuotaOverSold or ForbiddenQuotaOverSold",
    "aimaster_enable": "true: watch over it and start it again",
    "aimaster_args": "how",
    "exit_code_on_stopped": "of an interactive job that was stopped",
    "image_repo_username": "of a private registry",
    "image_repo_password": "likewise",
    "driver": "version of the GPU driver",
}


def _named(kind: type) -> dict[str, tuple[JobField, DlcName]]:
    """The fields of a job or of a role that have a key, by it."""
    return {
        one.dlc.key: (one, one.dlc) for one in fields_of(kind).values() if one.dlc is not None and one.dlc.key
    }


def _texts(kind: type) -> dict[str, str]:
    return {key: dlc.text for key, (_one, dlc) in _named(kind).items()}


OF_ROLE = {**_texts(RoleSpec), **_OF_ROLE_BESIDE}
JOB = {**_texts(WorkloadSpec), **_texts(CodeSpec), **_BESIDE}
# They steer the vendor's cloud; here they say nothing, and are passed over with a note.
CLOUD_ONLY = frozenset(
    {"vpc_id", "switch_id", "security_group_id", "extended_cidrs", "default_route", "protocol", "region"}
)
KNOWN: Mapping[str, str] = {
    **JOB,
    **{spelling: f"how many tasks of the role {role}" for spelling, role in COUNTS.items()},
    **{f"{role}_{key}": f"{text}, role {role}" for role in ROLES for key, text in OF_ROLE.items()},
    **dict.fromkeys(sorted(CLOUD_ONLY), "(of the public cloud; has no effect here)"),
}


@dataclass(frozen=True, slots=True)
class Wanted:
    """A request, and what steers the command itself."""

    body: dict[str, Any]
    is_interactive: bool
    exit_code_on_stopped: int
    remarks: tuple[str, ...]


def parse_file(text: str, source: str) -> dict[str, str]:
    """One `key=value` a line; the first `=` splits; lines with # and empty ones are passed over."""
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        key, equals, value = line.partition("=")
        if not equals:
            raise InvalidError(
                f"{source}:{number}: {line.strip()!r} is not key=value.", hint="Write name=mnist."
            )
        found[key.strip()] = value.strip()
    return found


def request_of(values: Mapping[str, str], *, job: type = WorkloadSpec) -> Wanted:
    """The request that these keys ask for."""
    remarks = _remarks(values)
    kind = values.get("kind") or "PyTorchJob"
    body: dict[str, Any] = {
        "DisplayName": values.get("name", ""),
        "JobType": kind,
        "JobSpecs": _specs(values, part_of(job, "roles")),
        "UserCommand": "",
        "WorkspaceId": "",
        "Priority": 1,
        "ResourceId": values.get("resource_id", ""),
        "CodeSource": {
            "Branch": values.get("code_branch", ""),
            "CodeSourceId": values.get("code_source", ""),
            "Commit": values.get("code_commit", ""),
        },
        "DataSources": _data_sources(values),
        "ThirdpartyLibDir": "",
        "Settings": _settings(values),
    }
    for key, (one, dlc) in _named(job).items():
        value = _value(values, key, one) if dlc.by_table else None
        if value:
            _put(body, dlc.path, value)
    if values.get("success_policy"):
        body["SuccessPolicy"] = values["success_policy"]
    if "JobReservedMinutes" in body["Settings"]:
        body["Settings"].setdefault("JobReservedPolicy", "Always")
    if not body["Settings"]:
        del body["Settings"]
    if not body["UserCommand"]:
        raise InvalidError("The job has no command.", hint="Write command=… in the file, or give --command.")
    return Wanted(
        body, _boolean(values, "interactive"), _integer(values, "exit_code_on_stopped", 1), tuple(remarks)
    )


def _value(values: Mapping[str, str], key: str, one: JobField) -> object:
    """A value as a request has it; something that is false where the key is not given."""
    if not values.get(key):
        return None
    if one.is_mapping:
        return _pairs(values[key], key)
    if one.is_several:
        return _listed(values[key])
    return _integer(values, key, 0) if one.one is int else values[key]


def _put(body: dict[str, Any], path: str, value: object) -> None:
    *folders, name = path.split(".")
    for folder in folders:
        body = body.setdefault(folder, {})
    body[name] = value


def shown(body: Mapping[str, Any]) -> dict[str, Any]:
    """The request as it is printed: terminals and logs are no place for secrets."""
    return redact_data(body)


def _remarks(values: Mapping[str, str]) -> list[str]:
    found = []
    for key in values:
        if key in CLOUD_ONLY:
            found.append(f"{key} is for the public cloud and has no effect here.")
        elif key not in KNOWN:
            near = get_close_matches(key, KNOWN, n=1)
            guess = f"; did you mean {near[0]}?" if near else ""
            found.append(f"unknown key {key} is passed over{guess}")
    if values.get("aimaster_args") and not _boolean(values, "aimaster_enable"):
        found.append("aimaster_args has no effect without aimaster_enable=true.")
    return found


def _specs(values: Mapping[str, str], kind: type) -> list[dict[str, Any]]:
    counts = dict.fromkeys(ROLES, 0)
    spelled: dict[str, str] = {}
    for spelling, role in COUNTS.items():
        if spelling in values:
            count = _integer(values, spelling, 0)
            if count < 0 or (role in spelled and counts[role] != count):
                why = f"is not {spelled[role]}={counts[role]}" if role in spelled else "is below 0"
                raise InvalidError(f"{spelling}={count} {why}.", hint="Give how many there are, once.")
            counts[role], spelled[role] = count, spelling
    if _boolean(values, "chief"):
        counts["chief"] = counts["chief"] or 1
    if not any(counts.values()) and "worker" not in spelled:
        counts["worker"] = 1
    found = []
    for role in ROLES:
        if counts[role] < 1:
            continue
        found.append(_spec(values, role, counts[role], kind))
    return found


def _spec(values: Mapping[str, str], role: str, count: int, kind: type) -> dict[str, Any]:
    named = _named(kind)
    # The amounts go together: a server with cores of its own has not the workers' GPUs beside them.
    amounts = {key for key, (_one, dlc) in named.items() if dlc.path.startswith(_AMOUNT)} | {"spec"}
    sized = role if any(f"{role}_{key}" in values for key in amounts) else "worker"

    def value(key: str) -> str:
        if key in amounts:
            return values.get(f"{sized}_{key}", "")
        own = values.get(f"{role}_{key}", "")
        return own if own or key == "command" else values.get(f"worker_{key}", "")

    spec: dict[str, Any] = {
        "EcsSpec": value("spec"),
        "PodCount": count,
        "Type": "PS" if role == "ps" else role.capitalize(),
    }
    for key, (one, dlc) in named.items():
        if key != "command" or value(key):
            _put(spec, dlc.path, _memory(value(key)) if one.unit is Unit.MEBIBYTES else value(key))
    if value("restart_policy"):
        spec["RestartPolicy"] = value("restart_policy")
    if values.get("node_names"):
        spec["AssignNodeSpec"] = {"EnableAssignNode": True, "NodeNames": values["node_names"]}
    if values.get("image_repo_username") or values.get("image_repo_password"):
        spec["ImageConfig"] = {
            "Username": values.get("image_repo_username", ""),
            "Password": values.get("image_repo_password", ""),
        }
    if _boolean(values, "enable_preemptible_job"):
        spec["UseSpotInstance"] = True
    return spec


def _memory(text: str) -> str:
    """A bare number is GB, as the light edition reads it."""
    return f"{text}Gi" if text.replace(".", "", 1).isdigit() and text != "0" else text


def _settings(values: Mapping[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if values.get("oversold_type"):
        found["OversoldType"] = values["oversold_type"]
    if _boolean(values, "aimaster_enable"):
        found["EnableErrorMonitoringInAIMaster"] = True
        found["ErrorMonitoringArgs"] = values.get("aimaster_args", "")
    if values.get("driver"):
        found["Driver"] = values["driver"]
    return found


def _data_sources(values: Mapping[str, str]) -> list[dict[str, str]]:
    found = [{"DataSourceId": one} for one in _listed(values.get("data_sources", ""))]
    mounts: set[str] = set()
    for one in _listed(values.get("data_source_uris", "")):
        address, _, mount = one.partition("::")
        if mount and mount in mounts:
            raise InvalidError(
                "different datasource can't have the same mount path",
                hint=f"Mount one of them elsewhere than {mount}.",
            )
        mounts.add(mount)
        found.append({"Uri": address, "MountPath": mount})
    return found


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _pairs(text: str, key: str) -> dict[str, str]:
    found = {}
    for part in _listed(text):
        name, equals, value = part.partition("=")
        if not equals or not name:
            raise InvalidError(f"{key}: {part!r} is not k=v.", hint=f"Write {key}=NAME=value,OTHER=value.")
        found[name.strip()] = value
    return found


def _integer(values: Mapping[str, str], key: str, default: int) -> int:
    text = values.get(key, "")
    if not text:
        return default
    try:
        return int(text)
    except ValueError as error:
        raise InvalidError(f"{key} {text!r} is not a whole number.", hint=f"Write {key}=1.") from error


def _boolean(values: Mapping[str, str], key: str) -> bool:
    text = values.get(key, "").lower()
    if text not in {"", "true", "false"}:
        raise InvalidError(f"{key} {text!r} is neither true nor false.", hint=f"Write {key}=true.")
    return text == "true"
