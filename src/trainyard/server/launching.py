"""A job and its surroundings become a Launch: what each task is told, shown and given. Pure; conductor.py brings the facts."""

from __future__ import annotations

from typing import Protocol

from trainyard.engines.api import Launch, TaskLaunch
from trainyard.server.workflow import Job


class Surroundings(Protocol):
    """What a launch has to know beside the job itself."""

    def device_of(self, name: str) -> str:
        """The type of a node's devices, for who named none."""
        ...


def launch_of(job: Job, surroundings: Surroundings) -> Launch:
    """What the engine is to start."""
    record, spec = job.record, job.record.spec
    roles = {role.name: role for role in spec.roles}
    tasks = []
    for task in job.tasks.values():
        role = roles[task.role]
        env = {
            **spec.env,
            **role.env,
            "TRAINYARD_JOB_ID": record.id,
            "TRAINYARD_JOB_NAME": record.name,
            "TRAINYARD_TASK": task.name,
            "TRAINYARD_RANK": str(task.rank),
            "TRAINYARD_TASKS": str(len(job.tasks)),
            "TRAINYARD_ATTEMPT": str(record.attempt),
        }
        tasks.append(
            TaskLaunch(
                name=task.name,
                role=task.role,
                number=task.number,
                rank=task.rank,
                node=task.node,
                command=role.command or spec.command,
                env=env,
                working_dir=spec.working_dir,
                devices=task.devices,
                device_type=role.device or (surroundings.device_of(task.node) if task.devices else ""),
                cpu_milli=round(role.cpu * 1000),
                memory_mib=role.memory_mib,
            )
        )
    return Launch(
        attempt_id=job.attempt_id,
        workload_id=record.id,
        attempt=record.attempt,
        tasks=tuple(tasks),
        workspace_id=record.workspace_id,
        user=record.user_id,
        grace_seconds=spec.grace_seconds,
    )
