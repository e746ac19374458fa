"""A job as DLC's clients send it becomes a WorkloadSpec. Pure. The way back is views.py."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, TypeVar

from trainyard.lib.errors import InvalidError
from trainyard.server.api.dlc import job_options
from trainyard.server.api.dlc.field_table import fields_by_table
from trainyard.server.api.dlc.field_types import (
    mapping,
    objects,
    switch,
    text,
    whole,
    words,
)
from trainyard.server.launch import kinds
from trainyard.spec.workload import Restart, RoleSpec, Success, WorkloadSpec

_T = TypeVar("_T")
KINDS = (
    "PyTorchJob",
    "TFJob",
    "XGBoostJob",
    "MPIJob",
    "BatchJob",
    "RayJob",
    "OneFlowJob",
    "ElasticBatchJob",
    "SlurmJob",
    "DataJuicerJob",
)
RESTARTS = {
    "Always": Restart.ALWAYS,
    "Never": Restart.NEVER,
    "OnFailure": Restart.ON_FAILURE,
    "ExitCode": Restart.EXIT_CODE,
}
# Whether a job may run on what others leave free, and has to go when they want it back.
OVERSOLD = {"AcceptQuotaOverSold": True, "ForceQuotaOverSold": True, "ForbiddenQuotaOverSold": False}


@dataclass(frozen=True, slots=True)
class EcsSpec:
    """A machine type: a name for an amount of everything."""

    name: str
    cpu: int
    memory_gib: int
    gpus: int = 0
    gpu_type: str = ""


# What `ecsspecs` answers and `EcsSpec` may name: shapes that fit what clusters have.
ECS_SPECS = (
    EcsSpec("ecs.g6.large", 2, 8),
    EcsSpec("ecs.g6.xlarge", 4, 16),
    EcsSpec("ecs.g6.2xlarge", 8, 32),
    EcsSpec("ecs.g6.4xlarge", 16, 64),
    EcsSpec("ecs.g6.8xlarge", 32, 128),
    EcsSpec("ecs.gn6v-c8g1.2xlarge", 8, 32, 1, "V100"),
    EcsSpec("ecs.gn6v-c8g1.8xlarge", 32, 128, 4, "V100"),
    EcsSpec("ecs.gn6v-c8g1.16xlarge", 64, 256, 8, "V100"),
    EcsSpec("ecs.gn6i-c4g1.xlarge", 4, 15, 1, "T4"),
    EcsSpec("ecs.gn7-c12g1.3xlarge", 12, 94, 1, "A100"),
    EcsSpec("ecs.gn7-c13g1.26xlarge", 104, 752, 8, "A100"),
)
SPECS = {one.name: one for one in ECS_SPECS}


def spec_of(body: Mapping[str, Any]) -> WorkloadSpec:
    """The job that a CreateJob request asks for; InvalidError names the key that is wrong."""
    kind = text(body, "JobType") or "PyTorchJob"
    if kind not in KINDS:
        near = get_close_matches(kind, KINDS, n=1)
        guess = f" Did you mean {near[0]}?" if near else ""
        raise InvalidError(f"JobType {kind!r} is unknown.{guess}", hint=f"Choose one of {', '.join(KINDS)}.")
    settings = mapping(body, "Settings")
    if text(body, "ResourceId") and any(text(one, "EcsSpec") for one in _specs(body)):
        raise InvalidError(
            "ResourceId and EcsSpec exclude each other.", hint="In a quota, ask for CPU, GPU and memory."
        )
    roles = job_options.with_driver(settings, job_options.elastic(body, _roles(body, kind)))
    restart, retries = _restart(body)
    tolerance = job_options.tolerance_of(settings)
    if tolerance.restart is not None:
        restart, retries = tolerance.restart, tolerance.max_retries
    asked = WorkloadSpec(
        **fields_by_table(WorkloadSpec, body),
        name=text(body, "DisplayName") or kind.lower(),
        kind=kind,
        roles=roles,
        preemptible=any(switch(one, "UseSpotInstance") for one in _specs(body))
        or _choice(settings, "OversoldType", OVERSOLD, default=False),
        restart=restart,
        max_retries=retries,
        success=Success.FIRST if _decided_by_first(body, roles) else Success.ALL,
        hang_seconds=tolerance.hang_seconds,
        code=job_options.code_of(body),
        mounts=job_options.mounts_of(body),
    )
    return kinds.fit(asked)


# -- inside


def _roles(body: Mapping[str, Any], kind: str) -> tuple[RoleSpec, ...]:
    given = _specs(body)
    if not given:
        raise InvalidError("JobSpecs is empty.", hint="Give at least one role with a PodCount.")
    found: dict[str, RoleSpec] = {}
    for place, one in enumerate(given):
        role = _role(one, place)
        if role.replicas == 0:
            continue
        if role.name in found:
            raise InvalidError(f"JobSpecs has the role {role.name!r} twice.", hint="Join them into one.")
        found[role.name] = role
    if not found:
        raise InvalidError("JobSpecs asks for no task at all.", hint="Give a role a PodCount above 0.")
    known = kinds.find_kind(kind).roles
    foreign = next((name for name in found if name not in known), "")
    if foreign:
        raise InvalidError(f"A {kind} has no role {foreign!r}.", hint=f"It has {', '.join(known)}.")
    return tuple(found.values())


def _role(one: Mapping[str, Any], place: int) -> RoleSpec:
    where = f"JobSpecs[{place}]"
    name = (text(one, "Type", where) or "Worker").lower()
    if not re.fullmatch(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?", name):
        raise InvalidError(
            f"{where}.Type {name!r} is not the name of a role.", hint="Write Worker, Master, PS …"
        )
    config = mapping(one, "ResourceConfig")
    machine = text(one, "EcsSpec", where)
    shape = SPECS.get(machine)
    if machine and shape is None:
        raise InvalidError(
            f"{where}.EcsSpec {machine!r} is unknown.", hint="See `dlc get specs` for those there are."
        )
    if machine and any(config.get(key) for key in ("CPU", "GPU", "Memory")):
        raise InvalidError(
            f"{where} has an EcsSpec and a ResourceConfig.", hint="Give a machine type, or its parts."
        )
    given = fields_by_table(RoleSpec, one, where)
    if shape is not None:
        given |= {"cpu": float(shape.cpu), "memory_mib": shape.memory_gib * 1024}
        given |= {"devices": shape.gpus, "device": shape.gpu_type}
    if not given["devices"]:
        given["device"] = ""
    assigned = mapping(one, "AssignNodeSpec")
    names = text(assigned, "NodeNames", where) if switch(assigned, "EnableAssignNode", where) else ""
    words(one, "ImageConfig")  # read when the image is fetched, and too late to be refused then
    return RoleSpec(
        **given,
        name=name,
        replicas=whole(one, "PodCount", 1, where),
        nodes=tuple(part.strip() for part in names.split(",") if part.strip()),
    )


def _restart(body: Mapping[str, Any]) -> tuple[Restart, int]:
    policies = sorted({text(one, "RestartPolicy") for one in _specs(body)} - {""})
    for policy in policies:
        if policy not in RESTARTS:
            raise InvalidError(
                f"RestartPolicy {policy!r} is unknown.", hint=f"Choose one of {', '.join(RESTARTS)}."
            )
    if len(policies) > 1:
        raise InvalidError(
            f"The roles have different RestartPolicies: {', '.join(policies)}.",
            hint="Give all the same: a job starts again as a whole.",
        )
    wanted = policies[0] if policies else ""
    settings = mapping(body, "Settings")
    retries = whole(settings, "MaxRestartTimes", 3 if wanted and wanted != "Never" else 0)
    return RESTARTS.get(wanted, Restart.EXIT_CODE), retries


def _decided_by_first(body: Mapping[str, Any], roles: Sequence[RoleSpec]) -> bool:
    """As the policy says; without one a chief decides. Kinds where it cannot be otherwise say so themselves."""
    policy = text(body, "SuccessPolicy")
    if policy not in {"", "ChiefWorker", "AllWorkers"}:
        raise InvalidError(f"SuccessPolicy {policy!r} is unknown.", hint="Choose ChiefWorker or AllWorkers.")
    return policy == "ChiefWorker" or (policy == "" and any(role.name == "chief" for role in roles))


def _choice(body: Mapping[str, Any], key: str, known: Mapping[str, _T], *, default: _T) -> _T:
    given = text(body, key)
    if given and given not in known:
        raise InvalidError(f"{key} {given!r} is unknown.", hint=f"Choose one of {', '.join(known)}.")
    return known[given] if given else default


def _specs(body: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return objects(body, "JobSpecs", 'Write [{"Type": "Worker", "PodCount": 1, …}].')
