"""The tasks that an agent knows: taking them, following what becomes of them, ending and removing them.

Who is told of it is daemon.py's matter. Each task's life itself is in supervisor.py, in a process of its own.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from trainyard.lib import process_tree

from .. import kernel
from ..exec_command import find_shell
from ..sandbox.capabilities import Capabilities
from .broken_folders import set_aside
from .folder import ENDED, TASKS, TaskFolder, all_folders, boot_seconds, find_tombstone, note, write_tombstone
from .program_start import SIGNALS
from .supervisor import Supervisor, base_environment, clear_orphaned, end_marked, mark_of
from .supervisor_pool import SupervisorPool, serve
from .trash import Trash, empty

MOST_FILES = 256  # an agent has a dozen open, and one for each supervisor that stands by

STUCK_SECONDS = 3.0  # after the end of its grace, for a supervisor on a node that is very busy
FORGOTTEN = 10_000  # attempts that are remembered after their files are gone, against orders that come late


class Task:
    """One task as the agent sees it."""

    __slots__ = ("folder", "history", "is_old", "order", "pid", "told", "watch")

    def __init__(self, folder: TaskFolder, order: dict[str, Any], *, is_old: bool) -> None:
        self.folder = folder
        self.order = order
        self.is_old = is_old  # of an earlier start of the machine
        self.history = folder.history()
        self.pid = 0  # of its supervisor, where that is our own child
        self.watch = -1
        self.told = ""

    @property
    def is_cleared(self) -> bool:
        """Whether nothing of it runs any more."""
        return self.is_old or self.history["at"] == "cleared"

    def refresh(self) -> bool:
        """Read its state; True where that has changed."""
        before = self.history["at"], len(self.history.get("notes", ()))
        self.history = self.folder.history()
        return (self.history["at"], len(self.history.get("notes", ()))) != before

    def signal(self, number: int) -> None:
        """Send a signal to its supervisor, and to nobody who has got its number since."""
        pid = self.pid or int(self.history.get("pid", 0))
        if pid and (
            self.pid or self.folder.is_locked()
        ):  # who has the lock is the one who wrote its number there
            with contextlib.suppress(OSError):
                os.kill(pid, number)


class Tasks:
    """All tasks of the node, by attempt and name."""

    def __init__(self, mark: str, changed: Callable[[Task], None]) -> None:
        self._mark = mark
        self._changed = changed
        self._boot = process_tree.boot_id()
        self._shell = find_shell()
        self._by_pid: dict[int, Task] = {}
        self.by_key: dict[tuple[str, str], Task] = {}
        self.by_attempt: dict[str, dict[str, Task]] = {}
        for folder in (TASKS, ENDED):
            os.makedirs(folder, mode=0o700, exist_ok=True)
        self._ended = set(os.listdir(ENDED))  # attempts with a tombstone
        self._unwritten: dict[
            str, float
        ] = {}  # attempts that have to end, and the grace; there was no room to note it
        self._forgotten: dict[str, None] = {}  # attempts, the oldest first
        self._env = base_environment()
        self._capabilities = Capabilities()
        self.supervisor_pool = SupervisorPool()
        self._trash = Trash()
        self.refusal = ""  # why no task is taken now, see disk_limit.py

    def load(self) -> None:
        """Find the tasks of whoever was here before, and go on where that stopped."""
        found, half_made = all_folders()
        for folder in half_made:
            self._discard(folder)
        for folder in found:
            order = folder.order()
            if order is None or not folder.has_state():
                self._set_aside(folder, "its order or its state cannot be read")
                continue
            try:
                self._take_up(Task(folder, order, is_old=order["boot"] != self._boot))
            except OSError as error:
                self._set_aside(folder, f"it cannot be used: {error.strerror}")
        self._end_strays()
        self.empty_trash()

    def _take_up(self, task: Task) -> None:
        """Go on with one task."""
        self._add(task)
        if task.is_old and "code" in task.history:  # it ended by itself; the machine's end was no more to it
            _note_cleared(task.folder)
            task.refresh()
            task.is_old = False
        if not task.is_cleared and not task.folder.is_locked():
            self._revive(task)

    def _set_aside(self, folder: TaskFolder, why: str) -> None:
        """A folder that nobody can use must not keep the agent from the others."""
        self._remove_known(folder)
        if not set_aside(folder.path, f"{folder.attempt}.{folder.name}", why):
            self._discard(folder)

    def _remove_known(self, folder: TaskFolder) -> None:
        self.by_key.pop((folder.attempt, folder.name), None)
        self.by_attempt.get(folder.attempt, {}).pop(folder.name, None)

    def _end_strays(self) -> None:
        """End processes of tasks whose files are gone: the server is told that we do not know them, and may start them anew."""
        for pid in process_tree.all_pids():
            mark = process_tree.variable_of(pid, kernel.MARK.encode())
            if not mark.startswith(f"{self._mark}/"):
                continue
            attempt, _, name = mark[len(self._mark) + 1 :].partition("/")
            if (attempt, name) not in self.by_key:
                end_marked(f"{kernel.MARK}={mark}".encode(), 0, {os.getpid()}, grace=0.0)

    def _add(self, task: Task) -> None:
        self.by_key[task.folder.attempt, task.folder.name] = task
        self.by_attempt.setdefault(task.folder.attempt, {})[task.folder.name] = task

    def _revive(self, task: Task) -> None:
        """Start what was taken and never started; clear up after a supervisor that was killed."""
        try:
            state = task.folder.lock()
        except OSError:  # its program is just being born, and has the lock until then
            return
        task.refresh()
        if task.is_cleared:
            os.close(state)
            self._changed(task)
        elif task.history["at"] == "created" and task.folder.attempt not in self._ended:
            with contextlib.suppress(OSError):  # no process can be made now; the next look tries again
                self._supervise(task, state)
        else:
            with contextlib.suppress(OSError):
                task.pid = self.fork(lambda: clear_orphaned(task.folder, state, task.order), state)
                self._by_pid[task.pid] = task
            os.close(state)

    def launch(self, launch: dict[str, Any], fence: float) -> list[str] | None:
        """Take the tasks of an attempt. None, or [code, message] where it is refused."""
        attempt = launch["attempt"]
        if attempt in self._ended:
            return ["conflict", f"the attempt {attempt} was ended before it was launched"]
        if attempt in self._forgotten:  # an order that came late: it has run
            return ["conflict", f"the attempt {attempt} is over"]
        for wanted in launch["tasks"]:
            if (attempt, wanted["name"]) in self.by_key:
                continue
            if self.refusal:
                return ["capacity", self.refusal]
            order = {
                **wanted,
                "workload": launch["workload"],
                "number": launch["number"],
                "grace": launch["grace"],
                "fence": fence,
                "boot": self._boot,
                "mark": f"{self._mark}/{attempt}/{wanted['name']}",
            }
            folder = TaskFolder(attempt, wanted["name"])
            try:
                state = folder.create(order)
                task = Task(folder, order, is_old=False)
                self._add(task)
                self._supervise(task, state)
            except OSError as error:
                return ["capacity", f"the task {folder.name} cannot be taken: {error.strerror}"]
        return None

    def _supervise(self, task: Task, state: int) -> None:
        """Have a supervisor see to a task: one that stands by, or a new one."""
        try:
            task.pid = self.supervisor_pool.hand(task.folder, state)
            if not task.pid:
                supervisor = self._supervisor(task.folder, state, task.order)
                task.pid = self.fork(
                    lambda: serve(supervisor, self._next_supervisor), state, *self._capabilities.handles
                )
        finally:
            os.close(state)
        self._by_pid[task.pid] = task
        self._changed(task)

    def _supervisor(self, folder: TaskFolder, state: int, order: dict[str, Any]) -> Supervisor:
        return Supervisor(
            folder, state, order, shell=self._shell, env=self._env, capabilities=self._capabilities
        )

    def _next_supervisor(self, folder: TaskFolder, state: int) -> Supervisor | None:
        """In a process that has seen to other tasks. None where somebody has removed the order meanwhile."""
        order = folder.order()
        return None if order is None else self._supervisor(folder, state, order)

    def stand_by(self) -> None:
        """Take those who are done with their task; what they said of it is read."""
        for pid in self.supervisor_pool.accept(self._by_pid.__contains__):
            self._leave(pid)

    def _leave(self, pid: int) -> None:
        task = self._by_pid.pop(pid, None)
        if task is not None:
            task.pid = 0
            self.look(task)

    def fork(self, run: Callable[[], None], *kept: int) -> int:
        """A process of its own for `run`, with no descriptor of ours but `kept`."""
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            pid = os.fork()
            if pid == 0:
                _become(run, kept)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        return pid

    def end(self, attempt: str, grace: float) -> list[str]:
        """Have an attempt end; the names of its tasks here."""
        try:
            write_tombstone(attempt, grace)
        except (
            OSError
        ):  # the disk is full: it has to end all the same, with the grace that it was launched with
            self._unwritten[attempt] = grace
        self._ended.add(attempt)
        tasks = self.by_attempt.get(attempt, {})
        for task in tasks.values():
            if not task.is_cleared:
                task.signal(signal.SIGTERM)
        return sorted(tasks)

    def write_tombstones(self) -> None:
        """Note what could not be noted before, and ask again: those who end have a grace to learn."""
        for attempt, grace in list(self._unwritten.items()):
            del self._unwritten[attempt]
            self.end(attempt, grace)

    def forget(self, attempt: str) -> list[Task]:
        """Remove what is kept of an attempt; not of what still runs. The tasks that are gone now."""
        self._forgotten[attempt] = None
        while len(self._forgotten) > FORGOTTEN:
            del self._forgotten[next(iter(self._forgotten))]
        known = self.by_attempt.get(attempt, {})
        gone = [task for task in known.values() if task.is_cleared]
        for task in gone:
            del self.by_key[attempt, task.folder.name]
            del self.by_attempt[attempt][task.folder.name]
            self._end_visits(task)
            self._discard(task.folder)
        if not self.by_attempt.get(attempt):
            self.by_attempt.pop(attempt, None)
            self._unwritten.pop(attempt, None)
            if attempt in self._ended:
                self._ended.discard(attempt)
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(f"{ENDED}/{attempt}")
        self.empty_trash()
        return gone

    def _end_visits(self, task: Task) -> None:
        """End what people still run beside a task that is over."""
        if os.path.exists(task.folder.file("beside")):
            mark = mark_of(task.order)
            with contextlib.suppress(OSError):  # no process can be made now
                self.fork(lambda: end_marked(mark, 0, {os.getpid()}))

    def _discard(self, folder: TaskFolder) -> None:
        """Take a folder from its place; it may be large, and others wait for us."""
        if not self._trash.put(folder.path, f"{folder.attempt}.{folder.name}"):
            folder.remove()
        with contextlib.suppress(OSError):  # its attempt has other tasks here
            os.rmdir(f"{TASKS}/{folder.attempt}")

    def discard_work(self, task: Task) -> None:
        """Remove what a task that is over has left in its own folders; what it printed stays."""
        for name in ("work", "tmp"):
            self._trash.put(task.folder.file(name), f"{task.folder.attempt}.{task.folder.name}.{name}")
        with contextlib.suppress(OSError):
            note_removed(task.folder)
            task.refresh()
            self._changed(task)
        self.empty_trash()

    def empty_trash(self) -> None:
        """Have what is in the trash be removed, where nobody does so already."""
        handle = self._trash.take()
        if handle >= 0:
            with contextlib.suppress(OSError):  # no process can be made now; the next start tries again
                self.fork(empty, handle)
            os.close(handle)

    def reap(self) -> None:
        """Take leave of children that have ended; one that said less than it should was killed."""
        while True:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self._leave(pid)

    def look(self, task: Task) -> None:
        """Read the state of a task, and see that somebody looks after it."""
        if not task.is_cleared and not task.folder.has_state():
            self._give_up(task)
        elif not task.is_cleared and task.refresh():
            self._changed(task)
        if task.history["at"] == "starting" and task.folder.attempt in self._ended:
            self._unstick(task)
        if not task.is_cleared and not task.pid and not task.folder.is_locked():
            self._revive(task)

    def _unstick(self, task: Task) -> None:
        """Who prepares a task may wait for a storage whose server is gone, and hear nothing but this."""
        if "clearing" in task.history or task.pid not in (0, task.history.get("pid")):
            return  # who clears up after it needs its time, and is not to be killed again and again
        deadline = find_tombstone(task.folder.attempt)
        if deadline is not None and boot_seconds() > deadline + STUCK_SECONDS:
            task.signal(signal.SIGKILL)

    def _give_up(self, task: Task) -> None:
        """Somebody removed the files of a task: nothing can be said of it but that nothing runs."""
        end_marked(mark_of(task.order), 0, {os.getpid()}, grace=0.0)
        task.is_old = True
        self._changed(task)

    def fence(self, silence: float) -> None:
        """A server is back after `silence` seconds: what its fence should have ended by now is ended first."""
        for task in self.by_key.values():
            if not task.is_cleared and 0 < task.order["fence"] < silence:
                task.signal(signal.SIGUSR1)

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs."""
        return not self._by_pid and all(task.is_cleared for task in self.by_key.values())


def note_removed(folder: TaskFolder) -> None:
    """Say to its user that its files are gone."""
    state = folder.lock()
    try:
        message = "The files that it left in its own folder were removed: the disk of its node was full."
        note(state, {"note": ["files_removed", message, time.time()]})
    finally:
        os.close(state)


def _note_cleared(folder: TaskFolder) -> None:
    state = folder.lock()
    try:
        note(state, {"at": "cleared"})
    finally:
        os.close(state)


def _become(run: Callable[[], None], kept: tuple[int, ...]) -> None:
    """In the child: let go of all that is the agent's, do the one thing, end."""
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        last = 2
        for number in (*sorted(kept), MOST_FILES):
            os.closerange(last + 1, number)
            last = number
        run()
    except BaseException:  # noqa: BLE001  # nobody else would hear of it
        with contextlib.suppress(OSError):  # the disk may be full
            sys.excepthook(*sys.exc_info())  # into agent.log
            sys.stderr.flush()
    finally:
        os._exit(0)
