"""What a person runs in the container of a task: beside its program; or in one like it, where that has ended and is kept.

Who runs a container does not end what runs in it when its own end comes. So a process of ours stays, and sees to that.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import Any

from ..kernel import MARK
from ..sandbox.capabilities import DOCKER, Runtime, run_briefly
from ..sandbox.storage_mounts import RefusalError
from ..sandbox.view import place_of
from ..signals import EndSignal
from ..tasks.folder import TaskFolder
from ..tasks.supervisor import end_marked
from ..wire import NO_TASK
from .containers import SHELL, Box, home_of, name_of, no_runtime, runtime_of

VISIT = "TRAINYARD_VISIT"  # what a person's processes inside are known by
LEAVE_SECONDS = 0.3  # whoever ends us waits a second, and kills then
REMOVE_SECONDS = 60.0
# By these a person would leave, and what runs stay. Docker must have some; its own are those by which shells go back.
NO_KEYS = "ctrl-^,ctrl-^,ctrl-@"
ENTER = 'if [ -n "$1" ]; then mkdir -p -- "$1" && cd -- "$1" || exit 126; fi; shift; exec "$@"'


def beside(folder: TaskFolder, order: dict[str, Any], command: str) -> int:
    """Run a command inside of a task's container; an empty one is a login shell."""
    runtime, visit = runtime_of(folder, order), str(os.getpid())
    wanted = order["working_dir"]
    place = place_of(wanted, home_of(order)) if wanted else os.path.abspath(folder.file("work"))
    words = [runtime.path, "exec", *_options(runtime, visit), "-w", place, name_of(order), *_shell(command)]
    return _attend(words, {**os.environ, MARK: order["mark"]}, visit)


def anew(folder: TaskFolder, order: dict[str, Any], command: str) -> int:
    """Run a command in a new container of the image of a task that has ended, with the same storages and its working folder."""
    runtime, visit = runtime_of(folder, order), str(os.getpid())
    box, name = Box(folder, order, runtime), f"{name_of(order)}-visit-{visit}"
    try:
        if not box.runtime:
            raise RefusalError(no_runtime(order["view"], runtime.problem))
        inner = ["-c", ENTER, "sh", box.place(), *_shell(command)]
        words, env = box.words(name, ["--rm", *_options(runtime, visit)], inner)
    except RefusalError as error:
        sys.stderr.write(f"trainyard: {error}\n")
        return NO_TASK
    status = _attend(words, {**env, MARK: order["mark"]}, visit)
    run_briefly([box.runtime, "rm", "-f", "-v", name], REMOVE_SECONDS)  # where it was not removed by itself
    return status


def _options(runtime: Runtime, visit: str) -> list[str]:
    words = ["-i", "--env", f"{VISIT}={visit}"]
    if os.isatty(0):
        words += ["-t", "--detach-keys", NO_KEYS if runtime.kind == DOCKER else ""]
    return [*words, "--env", f"TERM={os.environ['TERM']}"] if os.environ.get("TERM") else words


def _shell(command: str) -> list[str]:
    return ["/bin/sh", "-c", SHELL, "sh", *(["-c", command] if command else ["-l"])]


def _attend(words: list[str], env: dict[str, str], visit: str) -> int:
    """Wait for a command; where we have to go, so has what it started."""
    end_signal = EndSignal(signal.SIGTERM, signal.SIGHUP)
    child = subprocess.Popen(words, env=env)
    for number in (signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)  # it has the terminal, and hears of these by itself
    while (status := child.poll()) is None:
        if end_signal.is_told:
            end_marked(f"{VISIT}={visit}".encode(), 0, {os.getpid()}, grace=LEAVE_SECONDS)
            child.terminate()
        end_signal.pause(LEAVE_SECONDS if end_signal.is_told else None)
    return status if status >= 0 else 128 - status
