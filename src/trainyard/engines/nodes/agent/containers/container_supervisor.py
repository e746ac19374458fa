"""Who keeps a task's container: a process of its own between the task's supervisor and the podman or docker that runs it.

It has the image fetched, starts the container, looks at it before the task begins, tells it when it has to go, and removes
it. How a container is put together is containers.py. Podman has no daemon. Docker's may hang, end or come back meanwhile: a
task goes on where its container does, and is ended where nobody could tell any more how it does.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import time
from typing import Any

from trainyard.lib import process_tree
from trainyard.lib.read_file import read_file
from trainyard.spec.exit_reasons import (
    NO_CONTAINER,
    NOT_FOUND,
    NOT_STARTED,
    SIGNAL_BASE,
    ExitReason,
)

from ..sandbox.capabilities import DOCKER, PODMAN, Runtime, find_runtime, run_briefly
from ..sandbox.storage_mounts import RefusalError, check
from ..signals import EndSignal
from ..tasks.folder import TaskFolder, write_file
from ..tasks.supervisor import mark_of
from .containers import (
    FIRST_FILE,
    REMOVE_SECONDS,
    SHELL,
    Box,
    discard,
    discard_left,
    keep_runtime,
    mounted,
    name_of,
    no_runtime,
)
from .images import Fetcher

# What podman and docker say themselves: NO_CONTAINER when they could not start one, and docker when it lost its daemon;
# these when the image has nothing that could be started.
NO_SHELL = (NOT_STARTED, NOT_FOUND)
KILLED, TOLD = SIGNAL_BASE + signal.SIGKILL, SIGNAL_BASE + signal.SIGTERM
TELL_SECONDS = 30.0
TELL_AGAIN_SECONDS = 0.5
LOOK_SECONDS = 0.01
LOOK_AGAIN_SECONDS = 5.0  # now and then, for an end that nobody tells us of
LATE_SECONDS = 5.0  # so long after a container's end its program may tell of it; its daemon may hang, or have forgotten it
ANSWER_SECONDS = 20.0  # so long a daemon that is being started anew may take before a task
BACK_SECONDS = 60.0  # and so long while one runs
ASK_SECONDS = 0.5
AWAY_LINE = b"[trainyard: the daemon of docker was away, and output of that time may be lost]\n"
PROBLEM = "problem"  # a file of the task: why it could not begin, or how it was lost
# What docker says of a daemon that may be back in a moment.
IS_AWAY = re.compile(
    r"(?i)cannot connect|during connect|daemon running|no answer in time|refused|reset|\beof\b"
)
# The first process of a container: it passes on that the task has to go, to all in it and once, and cleans up after them.
# NB: shells differ in what `wait` says of who was waited for already, or ended while a signal came.
FIRST = (
    'told= heard=; leave() { echo "ended $1" >> /.first; exit $1; }; '
    "trap 'heard=1; if [ -z \"$told\" ]; then told=1; echo told >> /.first; kill -TERM -1 2>/dev/null; fi' TERM; "
    "echo began >> /.first; "
    "if [ -e /.go ]; then until read -r go < /.go; do :; done; fi; "
    'if [ -n "$1" ]; then mkdir -p -- "$1" && cd -- "$1" || leave 126; fi; shift; '
    '[ -z "$told" ] || leave 143; '
    '"$@" & main=$!; status=127; [ -z "$told" ] || kill -TERM -1 2>/dev/null; '
    "while :; do heard=; wait $main; now=$?; [ $now = 127 ] || status=$now; "
    '[ -n "$heard" ] || break; done; '
    "for file in /sys/fs/cgroup/memory/memory.oom_control /sys/fs/cgroup/memory.events; do "
    'if [ -r $file ]; then while read -r name count; do if [ "$name" = oom_kill ]; then echo "oom_kill $count" >> /.first; '
    "fi; done < $file; fi; done; leave $status"
)
# What comes before a command is a program of ours, and an image may have nothing to run it with.
PYTHON = (
    'if python3 -ISc "import sys; sys.exit(sys.version_info < (3, 8))" 2>/dev/null; then exec python3 -IS "$@"; fi; '
    'echo "trainyard: the image has no Python 3.8 or newer, by which the tasks of this job find each other" >&2; exit 200'
)


def run(attempt: str, name: str, words: str) -> int:
    """Keep one container from the fetching of its image to its removal."""
    folder = TaskFolder(attempt, name)
    order = folder.order()
    if order is None:
        return NOT_STARTED
    return ContainerSupervisor(folder, order, json.loads(words)).run()


class ContainerSupervisor:
    """One task's container."""

    def __init__(self, folder: TaskFolder, order: dict[str, Any], words: list[str]) -> None:
        self.folder = folder
        self.order = order
        self.view: dict[str, Any] = order["view"]
        self.words = words
        self.name = name_of(order)
        self.end_signal = EndSignal()
        self.barrier = -1  # what its first process waits at, until we have looked at it
        self.problem = ""
        self.is_lost = False  # who ran it went away, and did not come back

    def run(self) -> int:
        """Its status; one that could not begin, or was lost, leaves the reason in a file."""
        try:
            self.runtime = self._found()
            self.box = Box(self.folder, self.order, self.runtime)
            Fetcher(self.folder, self.view, (self.runtime.kind, self.runtime.path)).ensure(self.end_signal)
            words, env = self._words()
        except RefusalError as error:
            return TOLD if self.end_signal.is_told else self._give_up(ExitReason.NOT_STARTED, str(error))
        finally:
            self._forget_password()
        if self.end_signal.is_told:
            return TOLD
        discard_left(self.runtime)
        if (
            self.runtime.kind == DOCKER
        ):  # of a keeper that was killed; podman is asked for that with the start
            run_briefly([self.runtime.path, "rm", "-f", "-v", self.name], REMOVE_SECONDS)
        status = self._explained(self._attend(subprocess.Popen(words, env=env, stdin=subprocess.DEVNULL)))
        discard(self.runtime, self.order)
        with contextlib.suppress(OSError):
            os.unlink(self.folder.file(FIRST_FILE))
        return status

    def _found(self) -> Runtime:
        """What runs containers here. RefusalError where nothing does; a daemon that is being started anew is waited for."""
        deadline = time.monotonic() + ANSWER_SECONDS
        while not (found := find_runtime(self.view.get("images", ""))).kind:
            if not IS_AWAY.search(found.problem) or time.monotonic() > deadline or self.end_signal.is_told:
                raise RefusalError(no_runtime(self.view, found.problem))
            self.end_signal.pause(ASK_SECONDS)
        keep_runtime(self.folder, found)
        return found

    def _explained(self, status: int) -> int:
        """The status of the container, with a reason where its user would not see one."""
        said, kind = self._said(), self.runtime.kind
        if self.problem:
            return self._give_up(ExitReason.NOT_STARTED, self.problem)
        if status == NO_CONTAINER and "began" not in said:
            why = f"{kind} could not start the container; the log says why"
            return self._give_up(ExitReason.NO_CONTAINER, why)
        if status in NO_SHELL and "began" not in said:
            why = f"the image {self.view['image']} has no /bin/sh, by which commands are run"
            return self._give_up(ExitReason.NO_SHELL, why)
        if self.is_lost or (status == NO_CONTAINER and ended_of(said) is None):
            why = f"{kind} went away while the task ran, and its container with it"
            self._give_up(ExitReason.CONTAINER_LOST, why)
            return KILLED if status == NO_CONTAINER else status
        if status and is_starved(said):
            limit = int(self.order.get("memory_mib") or 0)
            why = f"out of memory: it used more than its {limit} MiB"
            self._give_up(ExitReason.OUT_OF_MEMORY, why)
        elif status and "told" in said and not self.end_signal.is_told:
            why = f"its container was asked to end: by {kind}, somebody on the node or itself"
            self._give_up(ExitReason.SIGNALLED, why)
        return status

    def _attend(self, child: subprocess.Popen[bytes]) -> int:
        """Wait for the end of the container; also where who runs it goes away before."""
        status = self._wait(child)
        while self._is_on() and (again := self._come_back()) is not None:
            status = self._wait(again)
            status = (
                status if status > SIGNAL_BASE else NO_CONTAINER
            )  # its own, where it has not said how it ended
        if self._is_on():
            self._let_go()
        ended = ended_of(self._said())
        return status if ended is None else ended

    def _let_go(self) -> None:
        """Ask a container to end whose daemon does not come back: nobody would hear of it any more."""
        self.is_lost = True
        self._tell()
        deadline = time.monotonic() + min(float(self.order["grace"]), BACK_SECONDS)
        while self._is_on() and time.monotonic() < deadline:
            self.end_signal.pause(ASK_SECONDS)

    def _is_on(self) -> bool:
        """Whether the container has begun, and not ended."""
        said = self._said()
        return "began" in said and ended_of(said) is None and self._first() > 0

    def _come_back(self) -> subprocess.Popen[bytes] | None:
        """Wait for a daemon that went away, and be told by it of a container that has outlived that. None where that is not to be."""
        ask = [self.runtime.path, "inspect", "--format", "{{.State.Running}}", self.name]
        deadline = time.monotonic() + BACK_SECONDS
        while self._is_on() and time.monotonic() < deadline:
            self._tell_if_due()
            self.end_signal.pause(ASK_SECONDS)
            status, said = run_briefly(ask)
            if status == 0 and said.strip() == "true":
                os.write(1, AWAY_LINE)
                words = [self.runtime.path, "attach", "--no-stdin", "--sig-proxy=false", self.name]
                return subprocess.Popen(words, stdin=subprocess.DEVNULL)
        return None

    def _wait(self, child: subprocess.Popen[bytes]) -> int:
        """Wait for who runs it. Who has to go is told until it has heard: it may not have been there yet."""
        is_open = not self.box.placed
        late = 0.0
        while (status := child.poll()) is None:
            if not is_open:
                is_open = self._open()
            seconds = TELL_AGAIN_SECONDS if self._tell_if_due() else LOOK_AGAIN_SECONDS
            self.end_signal.pause(seconds if is_open else LOOK_SECONDS)
            if is_open and ended_of(self._said()) is not None and not self._first():
                late = late or time.monotonic() + LATE_SECONDS
                if time.monotonic() > late:
                    child.kill()
        return status if status >= 0 else 128 - status

    def _open(self) -> bool:
        """Let it begin when it sees of its storages what it should; whether that is settled."""
        if "began" not in self._said():
            return False
        pid = self._first()
        try:
            if pid:  # else we have no right to look at it, and it none that we would have to fear
                check(pid, self.box.placed)
        except RefusalError as error:
            self.problem = str(error)
            os.kill(pid, signal.SIGKILL)
        else:
            # One is enough, but a shell may be called away while it reads it.
            os.write(self.barrier, b"go\n" * 8)
        return True

    def _first(self) -> int:
        """The first process of the container; 0 where it is not to be found."""
        mark = mark_of(self.order)
        return next(
            (
                pid
                for pid in process_tree.all_pids()
                if mark in process_tree.environment_of(pid) and is_first(pid)
            ),
            0,
        )

    def _tell_if_due(self) -> bool:
        """Whether it has to go and did not know yet."""
        is_due = self.end_signal.is_told and "told" not in self._said()
        if is_due:
            self._tell()
        return is_due

    def _tell(self) -> None:
        """Tell the first process of the container: it knows the others. By ourselves where we may; else by who runs it."""
        pid = self._first()
        with contextlib.suppress(OSError):
            if pid:
                os.kill(pid, signal.SIGTERM)
                return
        run_briefly([self.runtime.path, "kill", "--signal", "TERM", self.name], TELL_SECONDS)

    def _said(self) -> list[str]:
        """What the first process of the container has written, line by line."""
        return self.folder.text(FIRST_FILE).splitlines()

    def _forget_password(self) -> None:
        """Whoever fetched an image needs it no more."""
        if self.view.get("password"):
            self.view["password"] = ""
            write_file(self.folder.file("task.json"), json.dumps(self.order).encode())

    def _give_up(self, reason: ExitReason, message: str) -> int:
        problem = f"{reason.value}\n{message}"
        write_file(self.folder.file(PROBLEM), problem.encode(errors="replace")[:1000])
        return NOT_STARTED

    def _words(self) -> tuple[list[str], dict[str, str]]:
        first = os.path.abspath(self.folder.file(FIRST_FILE))
        write_file(first, b"")
        self._give(first)
        options = ["--mount", mounted(first, "/.first", False)]
        if self.view["mounts"]:
            barrier = os.path.abspath(self.folder.file("go"))
            with contextlib.suppress(FileExistsError):
                os.mkfifo(barrier, 0o600)
            self._give(barrier)
            self.barrier = os.open(barrier, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
            options += ["--mount", mounted(barrier, "/.go", False)]
        if self.runtime.kind == PODMAN:
            options += ["--replace"]
        return self.box.words(self.name, options, ["-c", FIRST, "sh", self.box.place(), *self._inner()])

    def _give(self, path: str) -> None:
        """Let the first process of the container use a file."""
        if self.box.user is not None:
            self.box.user.give(path)

    def _inner(self) -> list[str]:
        """The task's own words, by the programs of the image."""
        if self.order.get("entry"):
            return ["/bin/sh", "-c", PYTHON, "sh", *self.words[2:]]
        return ["/bin/sh", "-c", SHELL, "sh", *self.words[1:]]


def ended_of(said: list[str]) -> int | None:
    """With which status the first process of a container went; None where it has not said so."""
    words = next((line.split() for line in reversed(said) if line.startswith("ended ")), [])
    return int(words[1]) & 0xFF if len(words) == 2 and words[1].isdigit() else None


def is_starved(said: list[str]) -> bool:
    """Whether something of it was killed for want of memory, as the kernel counted for the container."""
    return any(line.startswith("oom_kill ") and line != "oom_kill 0" for line in said)


def is_first(pid: int) -> bool:
    """Whether a process is the first one in a tree of processes that is not ours."""
    try:
        lines = read_file(f"/proc/{pid}/status").splitlines()
    except OSError:
        return False
    numbers = next((line.split()[1:] for line in lines if line.startswith(b"NSpid:")), [])
    return len(numbers) > 1 and numbers[-1] == b"1"
