"""Jobs that hang: what is done about one that says nothing and uses nothing. Pure; who notices is leader/hang_detector.py."""

from __future__ import annotations

from dataclasses import dataclass, replace

from trainyard.server.jobs import lifecycle
from trainyard.server.jobs.turn_changes import Job, TurnChanges
from trainyard.spec.workload import Restart, State

HUNG, FOUND = "hung", "hang_found"


@dataclass(frozen=True, slots=True)
class HungAttempt:
    """An attempt that has been still for longer than its job allows."""

    workload_id: str
    attempt_id: str
    seconds: int
    last_task: str  # that said something; empty: none ever did
    devices_known: bool  # whether the nodes could tell what the devices do


def end_hung(turn_changes: TurnChanges, job: Job, found: HungAttempt, now: float) -> None:
    """End a hung attempt. It counts as a failure, and is tried again where the job's policy and its retries allow it."""
    record = job.record
    if record.state != State.RUNNING or job.attempt_id != found.attempt_id:
        return  # it has ended meanwhile
    spec, message = record.spec, sentence(found, has_devices=any(task.devices for task in job.tasks.values()))
    data = {"seconds": found.seconds, "last_task": found.last_task, "devices_known": found.devices_known}
    turn_changes.tell(record, now, FOUND, message, data)
    if spec.restart is not Restart.NEVER and record.failures < spec.max_retries:
        job.record = replace(record, failures=record.failures + 1)
        said = f"{message} Retry {record.failures + 1} of {spec.max_retries}."
        lifecycle.finish(turn_changes, job, now, State.WAITING, reason=HUNG, message=said)
        return
    lifecycle.finish(turn_changes, job, now, State.FAILED, reason=HUNG, message=message)


def sentence(found: HungAttempt, *, has_devices: bool) -> str:
    """What was seen, for people."""
    text = f"It hangs: no output for {found.seconds} s"
    if has_devices and found.devices_known:
        text += ", and none of its devices did anything"
    elif has_devices:
        text += " (what its devices did is not known)"
    last = (
        f"; the last to say something was {found.last_task}"
        if found.last_task
        else "; it never said anything"
    )
    return f"{text}{last}."
