"""A job as DLC's clients send it becomes a WorkloadSpec. Pure. The way back is views.py."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, TypeVar

from trainyard.lib.errors import InvalidError
from trainyard.server import kinds
from trainyard.server.api.dlc import extras
from trainyard.spec.workload import Restart, Retain, RoleSpec, Success, WorkloadSpec

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
RETAINS = {"Always": Retain.ALWAYS, "OnFailure": Retain.ON_FAILURE, "OnSucceed": Retain.ON_SUCCESS}
# Whether a job may run on what others leave free, and has to go when they want it back.
OVERSOLD = {"AcceptQuotaOverSold": True, "ForceQuotaOverSold": True, "ForbiddenQuotaOverSold": False}
DEFAULT_CPU = 1.0
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)i?B?\s*\Z", re.IGNORECASE)
# Without a unit: GB, as the light edition. With or without an i: people write 64G and mean what the machine has.
_UNITS = {"": 2**30, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


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
    kind = _text(body, "JobType") or "PyTorchJob"
    if kind not in KINDS:
        near = get_close_matches(kind, KINDS, n=1)
        guess = f" Did you mean {near[0]}?" if near else ""
        raise InvalidError(f"JobType {kind!r} is unknown.{guess}", hint=f"Choose one of {', '.join(KINDS)}.")
    settings = _mapping(body, "Settings")
    if _text(body, "ResourceId") and any(one.get("EcsSpec") for one in _specs(body)):
        raise InvalidError(
            "ResourceId and EcsSpec exclude each other.", hint="In a quota, ask for CPU, GPU and memory."
        )
    minutes = _number(body, "JobMaxRunningTimeMinutes", 0)
    roles = extras.with_driver(settings, extras.elastic(body, _roles(body, kind)))
    restart, retries = _restart(body)
    tolerance = extras.tolerance_of(settings)
    if tolerance.restart is not None:
        restart, retries = tolerance.restart, tolerance.max_retries
    asked = WorkloadSpec(
        name=_text(body, "DisplayName") or kind.lower(),
        command=_text(body, "UserCommand"),
        workspace=_text(body, "WorkspaceId"),
        kind=kind,
        roles=roles,
        env={str(key): str(value) for key, value in _mapping(body, "Envs").items()},
        priority=_priority(body),
        preemptible=any(bool(one.get("UseSpotInstance")) for one in _specs(body))
        or _choice(settings, "OversoldType", OVERSOLD, default=False),
        max_run_seconds=int(minutes * 60),
        restart=restart,
        max_retries=retries,
        success=Success.FIRST if _decided_by_first(body, roles) else Success.ALL,
        retain_seconds=int(_number(settings, "JobReservedMinutes", 0) * 60),
        retain=_choice(settings, "JobReservedPolicy", RETAINS, default=Retain.ALWAYS),
        tags={str(key): str(value) for key, value in _mapping(settings, "Tags").items()},
        working_dir=_text(body, "WorkingDir"),
        hang_seconds=tolerance.hang_seconds,
        code=extras.code_of(body),
        mounts=extras.mounts_of(body),
        requirements=extras.packages_of(body),
        requirements_dir=_text(body, "ThirdpartyLibDir"),
    )
    return kinds.fit(asked)


def parse_memory(text: object, key: str) -> int:
    """MiB of `4`, `4Gi`, `512Mi` or `4GB`: a bare number is GB."""
    if text in {None, "", 0, "0"}:
        return 0
    found = _SIZE.match(str(text))
    if found is None:
        raise InvalidError(
            f"{key} {text!r} is not an amount of memory.", hint="Write it like 64Gi, or 64 for GB."
        )
    number, unit = found.groups()
    return int(float(number) * _UNITS[unit.upper()]) // 2**20


# -- inside


def _roles(body: Mapping[str, Any], kind: str) -> tuple[RoleSpec, ...]:
    given = _specs(body)
    if not given:
        raise InvalidError("JobSpecs is empty.", hint="Give at least one role with a PodCount.")
    found: dict[str, RoleSpec] = {}
    for number, one in enumerate(given):
        role = _role(one, number)
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


def _role(one: Mapping[str, Any], number: int) -> RoleSpec:
    name = str(one.get("Type") or "Worker").lower()
    where = f"JobSpecs[{number}]"
    if not re.fullmatch(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?", name):
        raise InvalidError(
            f"{where}.Type {name!r} is not the name of a role.", hint="Write Worker, Master, PS …"
        )
    config = _mapping(one, "ResourceConfig")
    machine = str(one.get("EcsSpec") or "")
    shape = SPECS.get(machine)
    if machine and shape is None:
        raise InvalidError(
            f"{where}.EcsSpec {machine!r} is unknown.", hint="See `dlc get specs` for those there are."
        )
    if machine and any(config.get(key) for key in ("CPU", "GPU", "Memory")):
        raise InvalidError(
            f"{where} has an EcsSpec and a ResourceConfig.", hint="Give a machine type, or its parts."
        )
    if shape is not None:
        cpu, memory, gpus, gpu_type = float(shape.cpu), shape.memory_gib * 1024, shape.gpus, shape.gpu_type
    else:
        cpu = _number(config, "CPU", DEFAULT_CPU, where)
        memory = parse_memory(config.get("Memory"), f"{where}.ResourceConfig.Memory")
        gpus, gpu_type = _whole(config, "GPU", 0, where), str(config.get("GPUType") or "")
    assigned = _mapping(one, "AssignNodeSpec")
    names = str(assigned.get("NodeNames") or "") if assigned.get("EnableAssignNode") else ""
    return RoleSpec(
        name=name,
        replicas=_whole(one, "PodCount", 1, where),
        command=str(one.get("UserCommand") or ""),
        cpu=cpu,
        memory_mib=memory,
        shared_memory_mib=parse_memory(config.get("SharedMemory"), f"{where}.ResourceConfig.SharedMemory"),
        device=gpu_type if gpus else "",
        devices=gpus,
        image=str(one.get("Image") or ""),
        nodes=tuple(part.strip() for part in names.split(",") if part.strip()),
    )


def _restart(body: Mapping[str, Any]) -> tuple[Restart, int]:
    policies = {str(one.get("RestartPolicy") or "") for one in _specs(body)} - {""}
    wanted = next(iter(policies), "")
    if wanted and wanted not in RESTARTS:
        raise InvalidError(
            f"RestartPolicy {wanted!r} is unknown.", hint=f"Choose one of {', '.join(RESTARTS)}."
        )
    settings = _mapping(body, "Settings")
    retries = _whole(settings, "MaxRestartTimes", 3 if wanted and wanted != "Never" else 0)
    return RESTARTS.get(wanted, Restart.EXIT_CODE), retries


def _decided_by_first(body: Mapping[str, Any], roles: Sequence[RoleSpec]) -> bool:
    """As the policy says; without one a chief decides. Kinds where it cannot be otherwise say so themselves."""
    policy = _text(body, "SuccessPolicy")
    if policy not in {"", "ChiefWorker", "AllWorkers"}:
        raise InvalidError(f"SuccessPolicy {policy!r} is unknown.", hint="Choose ChiefWorker or AllWorkers.")
    return policy == "ChiefWorker" or (policy == "" and any(role.name == "chief" for role in roles))


def _choice(body: Mapping[str, Any], key: str, known: Mapping[str, _T], *, default: _T) -> _T:
    given = str(body.get(key) or "")
    if given and given not in known:
        raise InvalidError(f"{key} {given!r} is unknown.", hint=f"Choose one of {', '.join(known)}.")
    return known[given] if given else default


def _priority(body: Mapping[str, Any]) -> int:
    priority = _whole(body, "Priority", 1)
    if not 1 <= priority <= 9:
        raise InvalidError(f"Priority {priority} is not between 1 and 9.", hint="9 goes first.")
    return priority


def _specs(body: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    given = body.get("JobSpecs") or []
    if not isinstance(given, list) or not all(isinstance(one, Mapping) for one in given):
        raise InvalidError(
            "JobSpecs is not a list of roles.", hint='Write [{"Type": "Worker", "PodCount": 1, …}].'
        )
    return given


def _mapping(body: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    given = body.get(key) or {}
    if not isinstance(given, Mapping):
        raise InvalidError(f"{key} is not an object.", hint='Write {"NAME": "value"}.')
    return given


def _text(body: Mapping[str, Any], key: str) -> str:
    given = body.get(key)
    if given is not None and not isinstance(given, str | int):
        raise InvalidError(f"{key} is not a text.", hint="Write it in quotes.")
    return str(given or "")


def _whole(body: Mapping[str, Any], key: str, default: int, where: str = "") -> int:
    number = _number(body, key, default, where)
    if number != int(number):
        name = f"{where}.{key}" if where else key
        raise InvalidError(f"{name} {body.get(key)!r} is not a whole number.", hint="Write it like 4.")
    return int(number)


def _number(body: Mapping[str, Any], key: str, default: float, where: str = "") -> float:
    given = body.get(key)
    if given in {None, ""}:
        return default
    name = f"{where}.{key}" if where else key
    try:
        number = float(given)
    except (TypeError, ValueError) as error:
        raise InvalidError(f"{name} {given!r} is not a number.", hint="Write it like 4.") from error
    if not 0 <= number <= 1e9:
        raise InvalidError(f"{name} {given!r} is out of range.", hint="Give a number from 0.")
    return number
