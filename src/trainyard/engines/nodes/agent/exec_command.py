"""A command that a person runs beside a task: in its folder, with its environment, and ended with it."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Any, NoReturn

from trainyard.lib.read_file import read_file

from . import kernel
from .sandbox.capabilities import Capabilities
from .sandbox.storage_mounts import RefusalError
from .sandbox.view import CONTAINER, IGNORE, place_of, wrap
from .tasks.folder import TaskFolder, find_tombstone
from .tasks.supervisor import base_environment, enter_working_folder, task_environment
from .wire import NO_TASK, NOT_THERE


def run(attempt: str, name: str, command: str) -> int:  # noqa: RET503  # its end may be another program
    """Become the command, inside of the task's view where it has one; an empty one is a login shell."""
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
    known = folder.history()
    if known["at"] in ("ended", "cleared") and find_tombstone(attempt) is None:
        # It has ended by itself, and is kept for a look: until it is forgotten.
        return _anew(folder, order, command)
    if known["at"] != "running":
        sys.stderr.write(NOT_THERE)
        return NO_TASK
    if known.get("view") == CONTAINER:
        return int(import_module(".containers.exec_in_container", __package__).beside(folder, order, command))
    if known.get("view"):
        return _inside(folder, order, known, command)
    _become(folder, order, command, int(known.get("child", 0)))


def _anew(folder: TaskFolder, order: dict[str, Any], command: str) -> int:  # noqa: RET503  # as above
    """Run it in a view like that of a task that has ended, or in a new container of its image."""
    wanted = order.get("view")
    if wanted is None:
        _become(folder, order, command, 0)
    if wanted.get("image") and wanted.get("images") != IGNORE:
        return int(import_module(".containers.exec_in_container", __package__).anew(folder, order, command))
    entering = import_module(".sandbox.exec_in_view", __package__)
    env = task_environment(base_environment(), folder, order)
    if "TERM" in os.environ:
        env["TERM"] = os.environ["TERM"]
    try:
        wrapped = wrap(Capabilities(), folder, order, _words(command), env)
        if wrapped.kind:
            return int(entering.run_anew(order, wrapped))
    except RefusalError as error:
        sys.stderr.write(f"trainyard: {error}\n")
        return NO_TASK
    _become(folder, order, command, 0)


def _words(command: str) -> list[str]:
    shell = find_shell()
    return [shell, "-c", command] if command else [shell, "-l"]


def _inside(folder: TaskFolder, order: dict[str, Any], known: dict[str, Any], command: str) -> int:
    entering = import_module(".sandbox.exec_in_view", __package__)  # not needed by who has no view
    try:
        pid = entering.program_of(known)
        env = entering.environment_of(pid)
    except (OSError, LookupError):
        sys.stderr.write(NOT_THERE)
        return NO_TASK
    if "TERM" in os.environ:
        env["TERM"] = os.environ["TERM"]
    place = os.path.abspath(folder.file("work"))
    if order["working_dir"]:
        place = place_of(order["working_dir"], env.get("HOME", "/"))
    try:
        return int(entering.become_inside(order, pid, folder=place, words=_words(command), env=env))
    except OSError as error:
        why = error.strerror or "it cannot be entered"
        sys.stderr.write(f"trainyard: no command can be run in the view of the task now: {why}\n")
        return NO_TASK


def _become(folder: TaskFolder, order: dict[str, Any], command: str, child: int) -> NoReturn:
    env = _environment(child, order) or task_environment(base_environment(), folder, order)
    if "TERM" in os.environ:
        env["TERM"] = os.environ["TERM"]
    words = _words(command)
    enter_working_folder(folder, order)
    # The mark must be in the environment that this process *began* with, so it becomes another one.
    os.execve(words[0], words, env)  # noqa: S606  # it is a shell


def _environment(child: int, order: dict[str, Any]) -> dict[str, str]:
    """What the task's program began with: it has ports and names that were found only then. Nothing where that cannot be read."""
    try:
        pairs = [word.partition(b"=") for word in read_file(f"/proc/{child}/environ").split(b"\0")]
    except OSError:
        return {}
    found = {os.fsdecode(name): os.fsdecode(value) for name, equals, value in pairs if equals}
    return found if found.get(kernel.MARK) == order["mark"] else {}


def find_shell() -> str:
    """Bash where there is one, as users expect; sh else."""
    for path in ("/bin/bash", "/usr/bin/bash", "/usr/local/bin/bash"):
        if os.access(path, os.X_OK):
            return path
    return "/bin/sh"
