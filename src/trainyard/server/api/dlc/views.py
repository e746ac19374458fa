"""Records as DLC's clients read them: their statuses, reasons and keys. Pure. The way in is translate.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from trainyard.lib.log import redact_data
from trainyard.server.api.dlc.job_ids import to_dlc
from trainyard.server.api.dlc.translate import EcsSpec
from trainyard.server.explain.events import event_sentence
from trainyard.server.jobs.lifecycle import OVER_BUDGET
from trainyard.server.records.tasks import TaskRecord
from trainyard.server.records.workloads import WorkloadRecord
from trainyard.server.secrets.masking import masked
from trainyard.spec.events import Event
from trainyard.spec.workload import FINAL, State, TaskState

STATUS = {
    State.WAITING: "Queuing",
    State.ADMITTED: "EnvPreparing",
    State.STARTING: "EnvPreparing",
    State.RUNNING: "Running",
    State.SUCCEEDED: "Succeeded",
    State.FAILED: "Failed",
    State.CANCELLED: "Stopped",
}
# status → our states, for filters
STATES: Mapping[str, tuple[State, ...]] = {
    "Creating": (State.HELD,),
    "Queuing": (State.WAITING,),
    "EnvPreparing": (State.ADMITTED, State.STARTING),
    "Running": (State.RUNNING,),
    "Restarting": (State.FINISHING,),
    "Stopping": (State.FINISHING,),
    "SucceededReserving": (State.RETAINED,),
    "FailedReserving": (State.RETAINED,),
    "Succeeded": (State.SUCCEEDED,),
    "Failed": (State.FAILED,),
    "Stopped": (State.CANCELLED, State.HELD),
}
REASONS = {
    "succeeded": "JobSucceeded",
    "failed": "JobFailed",
    "stopped": "StoppedByUser",
    "time_limit": "JobMaxRunningTimeExceeded",
    "refused": "ResourceAllocateFailed",
    "start_failed": "JobStartFailed",
    "preempted": "JobPreempted",
    "retried": "JobRestarting",
    "task_lost": "NodeLost",
    "hung": "JobHang",
    "need_not_met": "DependencyNotMet",
}
TASK_STATUS = {TaskState.PENDING: "Pending", TaskState.RUNNING: "Running", TaskState.LOST: "Unknown"}


def status_of(record: WorkloadRecord) -> str:
    """One word for where a job is."""
    state = record.state
    if state is State.RETAINED:
        return "SucceededReserving" if record.ending == State.SUCCEEDED else "FailedReserving"
    if state is State.HELD:
        return "Stopped" if record.reason in {"paused", OVER_BUDGET} else "Creating"
    if state is State.FINISHING:
        return {State.WAITING: "Restarting", State.SUCCEEDED: "Running", State.FAILED: "Running"}.get(
            State(record.ending), "Stopping"
        )
    if state is State.FAILED and record.reason == "time_limit":
        return "Stopped"
    return STATUS[state]


def amounts(held: Mapping[str, int]) -> dict[str, Any]:
    """Resources in the units that jobs ask for them: cores and GiB, and devices by their type."""
    found: dict[str, Any] = {name: count for name, count in held.items() if name not in {"cpu", "memory"}}
    if "cpu" in held:
        found["CPU"] = f"{held['cpu'] / 1000:g}"
    if "memory" in held:
        found["Memory"] = f"{held['memory'] / 1024:.4g}Gi"
    return found


def job_view(
    record: WorkloadRecord,
    tasks: Sequence[TaskRecord] = (),
    *,
    workspace: str = "",
    user: str = "",
    now: float,
    cluster: str = "trainyard",
) -> dict[str, Any]:
    """One job, with the keys that `get job` prints."""
    asked = redact_data(record.dlc or {})
    status = status_of(record)
    view: dict[str, Any] = {
        "JobId": to_dlc(record.id),
        "DisplayName": record.name,
        "JobType": record.kind if record.kind != "job" else "BatchJob",
        "UserId": record.user_id,
        "Username": user,
        "WorkspaceId": record.workspace_id,
        "WorkspaceName": workspace,
        "ClusterId": cluster,
        "ResourceId": asked.get("ResourceId") or "",
        "ResourceLevel": "L0",
        "Priority": record.priority,
        "JobSpecs": asked.get("JobSpecs") or _job_specs(record),
        "UserCommand": record.spec.command,
        "CodeSource": asked.get("CodeSource") or {},
        "DataSources": asked.get("DataSources") or [],
        "ThirdpartyLibDir": asked.get("ThirdpartyLibDir") or "",
        "ThirdpartyLibs": asked.get("ThirdpartyLibs") or [],
        "Envs": dict(masked(record.spec).env),
        "EnabledDebugger": False,
        "ElasticSpec": asked.get("ElasticSpec") or {},
        "Settings": asked.get("Settings") or {},
        "Status": status,
        "ReasonCode": REASONS.get(record.reason, "") if record.reason else "",
        "ExitCode": record.exit_code,
        "ReasonMessage": _reason_message(record, status),
        "Duration": _duration(record, now),
        "RestartTimes": str(max(0, record.attempt - 1)),
        "RequestCPU": int(sum(role.cpu * role.replicas for role in record.spec.roles)),
        "RequestGPU": str(sum(role.devices * role.replicas for role in record.spec.roles)),
        "RequestMemory": str(sum(role.memory_mib * role.replicas for role in record.spec.roles) * 2**20),
        **_times(record),
    }
    if tasks:
        view["Pods"] = [pod_view(record, task) for task in tasks]
    return view


def pod_view(record: WorkloadRecord, task: TaskRecord) -> dict[str, Any]:
    """One task."""
    status = TASK_STATUS.get(task.state) or ("Succeeded" if task.exit_code == 0 else "Failed")
    return {
        "PodId": pod_id(record.id, task.name),
        "PodUid": f"{to_dlc(record.id)}.{task.attempt}.{task.name}",
        "Type": task.role,
        "Status": status,
        "SubStatus": "",
        "Ip": task.address,
        "PodIp": task.address,
        "NodeName": task.node,
        "GmtCreateTime": stamp(record.admitted_at),
        "GmtStartTime": stamp(task.started_at),
        "GmtFinishTime": stamp(task.ended_at),
    }


def pod_id(job: str, task: str) -> str:
    """`dlc…-worker-0`."""
    return f"{to_dlc(job)}-{task}"


def task_of(job: str, pod: str) -> str:
    """`worker-0`; what is not a pod of the job is given back as it is."""
    return pod.removeprefix(f"{to_dlc(job)}-").removeprefix(f"{job}-")


def event_line(event: Event, language: str) -> str:
    """`2021-01-28 14:07:24 Created pod …`."""
    at = datetime.fromtimestamp(event.time, UTC).strftime("%Y-%m-%d %H:%M:%S")
    return f"{at} {to_dlc(event_sentence(event, language))}"


def spec_view(spec: EcsSpec, *, is_available: bool) -> dict[str, Any]:
    """One machine type."""
    return {
        "InstanceType": spec.name,
        "AcceleratorType": "GPU" if spec.gpus else "CPU",
        "Cpu": spec.cpu,
        "Memory": spec.memory_gib,
        "Gpu": spec.gpus,
        "GpuType": spec.gpu_type,
        "IsAvailable": is_available,
        "ResourceType": "ECS",
    }


def stamp(time: float | None) -> str:
    """Seconds as text; empty where it has not happened."""
    return "" if time is None else datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _times(record: WorkloadRecord) -> dict[str, str]:
    ended = stamp(record.ended_at)
    stopped = record.state is State.CANCELLED or record.reason == "time_limit"
    return {
        "GmtCreateTime": stamp(record.submitted_at),
        "GmtSubmittedTime": stamp(record.admitted_at or record.queued_at),
        "GmtRunningTime": stamp(record.started_at),
        "GmtFinishTime": ended,
        "GmtSuccessedTime": ended if record.state is State.SUCCEEDED else "",
        "GmtFailedTime": ended if record.state is State.FAILED and not stopped else "",
        "GmtStoppedTime": ended if stopped else "",
    }


def _duration(record: WorkloadRecord, now: float) -> int:
    if record.started_at is None:
        return 0
    end = record.stopped_at or record.ended_at or (now if record.state not in FINAL else record.started_at)
    return max(0, int(end - record.started_at))


def _reason_message(record: WorkloadRecord, status: str) -> str:
    kind = record.kind if record.kind != "job" else "BatchJob"
    if status == "Succeeded":
        return f"{kind} {to_dlc(record.id)} is successfully completed."
    return to_dlc(record.message)


def _job_specs(record: WorkloadRecord) -> list[dict[str, Any]]:
    """For jobs that came through another door."""
    return [
        {
            "Type": role.name.capitalize(),
            "PodCount": role.replicas,
            "Image": role.image,
            "EcsSpec": "",
            "ResourceConfig": {
                "CPU": f"{role.cpu:g}",
                "GPU": str(role.devices),
                "GPUType": role.device,
                "Memory": f"{role.memory_mib}Mi",
                "SharedMemory": f"{role.shared_memory_mib}Mi",
            },
        }
        for role in record.spec.roles
    ]
