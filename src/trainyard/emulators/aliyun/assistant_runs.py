"""Runs of Cloud Assistant on the side of the machines: fetched, begun, finished.

An action only writes down what is wanted (`ecs/assistant.py`). The owner takes the errands that `errands` lists, marks each
with `begin` and brings the outcome with `finish`; what nobody fetches within a minute is aborted by the timeline.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from trainyard.emulators.aliyun.cloud.cloud_state import CloudState
from trainyard.emulators.aliyun.cloud.records import Target
from trainyard.emulators.aliyun.cloud.timeline import UNDELIVERED, agent_answers

OUTPUT_LIMIT = 24 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class AssistantRun:
    """Something to do on one machine now."""

    invocation: str
    instance: str
    script: bytes
    """Empty for a file."""
    timeout: timedelta
    working_dir: str
    username: str
    file: Mapping[str, str]
    """Name, TargetDir, Content (base64), FileMode, FileOwner, FileGroup, Overwrite; empty for a script."""


def errands(cloud_state: CloudState, now: datetime) -> list[AssistantRun]:
    """What waits for an instance whose agent answers."""
    return [
        AssistantRun(
            invocation=invocation.id,
            instance=target.instance,
            script=base64.b64decode(invocation.script),
            timeout=timedelta(seconds=invocation.timeout),
            working_dir=invocation.working_dir,
            username=invocation.username,
            file=invocation.file,
        )
        for invocation in cloud_state.invocations.values()
        for target in invocation.targets
        if target.status in UNDELIVERED
        and target.instance in cloud_state.instances
        and agent_answers(cloud_state.instances[target.instance], now)
    ]


def _target(cloud_state: CloudState, invocation: str, instance: str) -> Target | None:
    found = cloud_state.invocations.get(invocation)
    return next((one for one in found.targets if one.instance == instance), None) if found else None


def begin(cloud_state: CloudState, invocation: str, instance: str, now: datetime) -> bool:
    """Mark an errand as running; False: it is no longer wanted."""
    target = _target(cloud_state, invocation, instance)
    if target is None or target.status not in UNDELIVERED:
        return False
    target.status, target.started = "Running", now
    return True


def is_wanted(cloud_state: CloudState, invocation: str, instance: str) -> bool:
    """Whether a running errand should go on; False after StopInvocation and when its instance is gone."""
    target = _target(cloud_state, invocation, instance)
    return target is not None and target.status == "Running"


def finish(
    cloud_state: CloudState,
    invocation: str,
    instance: str,
    now: datetime,
    *,
    exit_code: int | None,
    output: bytes = b"",
    error_code: str = "",
    error: str = "",
) -> None:
    """Write down how an errand ended; one that is over already stays as it is.

    `exit_code` None: it never ran to its end. Then `error_code` says why, such as ExecutionTimeout, ExecutionException,
    AccountNotExists or DirectoryNotExists.
    """
    target = _target(cloud_state, invocation, instance)
    if target is None or target.finished is not None:
        return
    target.output = base64.b64encode(output[-OUTPUT_LIMIT:]).decode()
    target.dropped = max(0, len(output) - OUTPUT_LIMIT)
    target.exit_code, target.finished = exit_code, now
    if target.status == "Stopping":
        target.status, target.stopped = "Terminated", now
    elif error_code:
        target.status = "Timeout" if error_code == "ExecutionTimeout" else "Failed"
        target.error_code, target.error = error_code, error
    elif exit_code == 0:
        target.status = "Success"
    else:
        target.status = "Failed"
        target.error_code, target.error = "ExitCodeNonzero", f"The exit code is {exit_code}, not 0."


def abandon(cloud_state: CloudState, now: datetime) -> None:
    """End what was running when the emulator died; call it once after loading a world."""
    for invocation in cloud_state.invocations.values():
        for target in invocation.targets:
            if target.finished is None and target.status not in UNDELIVERED:
                target.status, target.finished = "Failed", now
                target.error_code, target.error = "ClientNotResponse", "The agent does not respond."
