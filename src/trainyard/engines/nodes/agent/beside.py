"""A command that a person runs beside a task: in its folder, with its environment, and ended with it."""

from __future__ import annotations

import os
import sys
from typing import Any, NoReturn

from .folder import TaskFolder
from .supervisor import base_environment, enter_working_folder, task_environment
from .wire import NO_TASK, NOT_THERE


def run(attempt: str, name: str, command: str) -> int:  # noqa: RET503  # its end is another program
    """Become the command; an empty one is a login shell. Returns only where the task does not run."""
    folder = TaskFolder(attempt, name)
    order = folder.order()
    if order is None:
        sys.stderr.write(NOT_THERE)
        return NO_TASK
    # First our name, then the look at the state; the supervisor says `ended` first and looks for names then. So
    # either we see that it has ended, or it sees us.
    os.makedirs(folder.file("beside"), exist_ok=True)
    with open(folder.file(f"beside/{os.getpid()}"), "wb"):
        pass
    if folder.history()["at"] != "running":
        sys.stderr.write(NOT_THERE)
        return NO_TASK
    _become(folder, order, command)


def _become(folder: TaskFolder, order: dict[str, Any], command: str) -> NoReturn:
    env = task_environment(base_environment(), folder, order)
    if "TERM" in os.environ:
        env["TERM"] = os.environ["TERM"]
    shell = find_shell()
    enter_working_folder(folder, order)
    # The mark must be in the environment that this process *began* with, so it becomes another one.
    words = [shell, "-c", command] if command else [shell, "-l"]
    os.execve(shell, words, env)  # noqa: S606  # it is a shell


def find_shell() -> str:
    """Bash where there is one, as users expect; sh else."""
    for path in ("/bin/bash", "/usr/bin/bash", "/usr/local/bin/bash"):
        if os.access(path, os.X_OK):
            return path
    return "/bin/sh"
