"""The names of jobs, tasks and sessions. The only place that knows their format."""

from __future__ import annotations

import re
from typing import NamedTuple

from trainyard.lib.errors import InvalidError

LONGEST = 63  # a DNS label; also what fits a tmux status line and a cloud tag
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+=@-]*\Z")
_TASK = re.compile(r"task(0|[1-9][0-9]*)\.(.+)\Z")


class TaskName(NamedTuple):
    """`task0.bert`, taken apart."""

    number: int
    job: str


def task_name(job: str, index: int) -> str:
    """`bert`, 0 → `task0.bert`."""
    return f"task{index}.{job}"


def parse_task(name: str) -> TaskName | None:
    """`task0.bert` → (0, bert); None for a machine that belongs to no job."""
    match = _TASK.match(name)
    return TaskName(int(match[1]), match[2]) if match else None


def job_of(name: str) -> str:
    """The job a machine's name belongs to, or ''."""
    parts = parse_task(name)
    return parts.job if parts else ""


def sort_key(name: str) -> tuple[str, int, str]:
    """Sorts `task2.x` before `task10.x`, and tasks of one job together."""
    parts = parse_task(name)
    return (parts.job, parts.number, name) if parts else (name, 0, name)


def check_name(name: str, what: str = "name") -> str:
    """Refuse what could not be a file name, a tmux session and a tag at once."""
    if not _NAME.match(name):
        raise InvalidError(
            f"{name!r} cannot be a {what}",
            hint="Use letters, digits and . _ - + = @, beginning with a letter or digit.",
        )
    if len(name) > LONGEST:
        raise InvalidError(f"the {what} {name!r} has {len(name)} characters", hint=f"Use at most {LONGEST}.")
    return name


def session_name(machine: str) -> str:
    """The tmux session of a machine: tmux keeps '.' for itself, and the family writes '=' instead."""
    return machine.replace(".", "=")
