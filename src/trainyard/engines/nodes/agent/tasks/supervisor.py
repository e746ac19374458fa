"""One task's supervisor: starts the program, keeps what it prints, notes how it ended, and lets nothing of it live on.

In a process of its own, forked from the agent (no Python is started for a task) and outliving it. Every orphan below it
becomes its child, so that a program that forks twice to get away does not. What it knows is in the task's `state` file.
What such a process does between two tasks is in supervisor_pool.py.

Output comes through a pipe and not straight into the file: `echo … > /dev/stderr` in a script opens anew, and cuts off,
a file that it stands for. Who reads the pipe can also say that the disk was full, where the program would just die of it.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import signal
import sys
import time
from importlib import import_module
from typing import Any

from trainyard.lib import process_tree
from trainyard.lib.remove_tree import remove_tree
from trainyard.spec.exit_reasons import EXIT_CODES, LAST_SIGNAL, SIGNAL_BASE, ExitReason, exit_reason

from .. import kernel
from ..readings.disk_reasons import reason_of
from ..sandbox import cgroups, storage_mounts, view
from ..sandbox.capabilities import Capabilities
from ..sandbox.gated_start import GatedStart
from ..sandbox.sandbox_user import TaskUser, user_of
from ..signals import signal_name
from .folder import (
    LONGEST_MESSAGE,
    TaskFolder,
    boot_seconds,
    find_tombstone,
    make_folders,
    note,
    silent_seconds,
    write_file,
)
from .program_start import SIGNALS, spawn, words_of

PIECE = 65536  # as much as a pipe holds
NAP_SECONDS = 0.004  # after little output: lines that come one by one cost one waking, not one each
LEFTOVER_GRACE_SECONDS = 5.0  # at most, for what a program that has ended by itself left running
KILL_AGAIN_SECONDS = 0.05  # something may fork faster than we look
NO_LIMITS = ("limits_missing", "The node cannot hold tasks to their memory and cores.")
POLLIN = int(select.POLLIN)
CHILD_OOM_SCORE = b"300"  # where memory runs out, the program goes before the one who can tell
FOREIGN = ("PWD", "OLDPWD", "SHLVL", "_", "TERM", "SSH_CONNECTION", "SSH_CLIENT", "SSH_TTY", "SSH_AUTH_SOCK")


class Supervisor:
    """Runs in a process of the supervisors', and never returns to the agent's code."""

    def __init__(
        self,
        folder: TaskFolder,
        state: int,
        order: dict[str, Any],
        *,
        shell: str,
        env: dict[str, str],
        capabilities: Capabilities,
    ) -> None:
        # Made in the agent, before the fork: every page that the child touches first is copied for it.
        self.folder = folder
        self.state = state
        self.order = order
        self.words = words_of(folder, order, shell)
        if order.get("entry"):
            import_module(".entry", __package__)  # once for all tasks to come
        self.env = task_environment(env, folder, order)
        self.view = ""  # of which kind its view is; empty: none
        self.limits = cgroups.limits_of(order)
        self.group: cgroups.Group | None = None
        self.capabilities = capabilities
        view.find_out(capabilities, order)
        if (
            self.limits.memory_mib
            or self.limits.cpu_milli
            or (self.limits.processes and cgroups.PIDS in capabilities.trees.folders)
        ):
            self.group = capabilities.trees.group(cgroups.name_of(order["mark"]))
        self.user: TaskUser | None = None  # as whom it runs; None: as we do
        self.claims: list[object] = []  # what holds ports of the node for the task
        self.child = 0
        self.has_children = True
        self.deadline: float | None = None  # when what is left is killed, in seconds of boot
        self.ended: dict[str, Any] | None = None
        self.is_said = False
        self.is_fenced = False
        self.over: tuple[ExitReason, str] | None = None  # why it was ended for the sake of the node's disk
        self.was_told = False  # asked to go before the program had ended
        self.lost_bytes = 0
        self.since = 0.0  # when it started, by the clock that nobody sets
        self.log = -1
        self.pipe = -1
        self.before = ""  # what its process has used for other tasks, for the state
        self.is_clean = True  # nothing of it can be left in its process

    def run(self, wakes: int, early: bytes) -> None:
        """All of a task's life. Our signals are blocked when it begins; `early` are some that may not have been for us."""
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        self.log = os.open(self.folder.file("log"), flags, 0o600)
        self.since = boot_seconds()
        times = f'"started":{time.time()},"since":{self.since}'
        started = f'{{"at":"starting",{times},"pid":{os.getpid()}{self.before}}}\n'
        os.write(self.state, started.encode())
        self._start_program()
        poll = select.poll()
        poll.register(wakes, POLLIN)
        if self.pipe >= 0:
            poll.register(self.pipe, POLLIN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        if signal.SIGTERM in early and find_tombstone(self.folder.attempt) is not None:
            self._ask_to_go()
        while self.has_children:
            events = dict(poll.poll(self._timeout()))
            if wakes in events:
                signals = os.read(wakes, 4096)
                self._reap()  # first: one that has ended by itself was not ended by us
                self._hear(signals)
            if self.pipe in events and not self._pump():
                poll.unregister(self.pipe)
                os.close(self.pipe)
                self.pipe = -1
            self._keep_time()
        self._finish()

    def count_from_here(self) -> None:
        """Note what its process has used before: that was for others. Seconds of processor, bytes read and written."""
        seconds = sum(os.times()[:4])
        read, written = kernel.disk_bytes_of("self")
        self.before = f',"before":[{seconds:.2f},{read},{written}]'

    def close(self) -> bool:
        """Let go of all that it held; whether its process can see to another task."""
        for handle in (self.log, self.pipe, self.state):
            if handle >= 0:
                os.close(handle)
        return self.is_clean and not self.claims and self.view != view.CONTAINER

    def _start_program(self) -> None:
        self.pipe, writer = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self.pipe, False)
        here = os.open(".", os.O_RDONLY | os.O_CLOEXEC)
        try:
            self.user = user_of(self.order)
            if self.user is not None:
                self.user.give_stream(writer)
            if self.order.get("ports"):
                self._claim_ports()
            if self.order.get("entry"):
                self._prepare_entry()
            wrapped = view.wrap(self.capabilities, self.folder, self.order, self.words, self.env)
            self.view = wrapped.kind
            if self.view == view.CONTAINER:
                self.group = None  # the container has its own
            self._note_all(wrapped.notes)
            if not self.view:
                enter_working_folder(self.folder, self.order)
            self._spawn(wrapped, writer)
        except (OSError, ValueError, storage_mounts.RefusalError) as error:
            self._could_not_start(error)
            return
        finally:
            os.close(writer)
            os.fchdir(here)
            os.close(here)
        os.write(self.state, b'{"at":"running","child":%d,"view":"%s"}\n' % (self.child, self.view.encode()))
        self._offer_to_oom()

    def _spawn(self, wrapped: view.WrappedCommand, writer: int) -> None:
        """Start it inside of its group, without being counted there ourselves."""
        try:
            has_group = self._make_group()
            if self.view and self.view != view.CONTAINER and (has_group or wrapped.placed):
                self._spawn_held(wrapped, writer)
            elif not has_group or self.group is None:
                self.child = self._begin(wrapped, writer)
            else:
                self.group.enter(os.getpid())
                try:
                    self.child = self._begin(wrapped, writer)
                finally:
                    self.group.leave()
        finally:
            wrapped.close()

    def _begin(self, wrapped: view.WrappedCommand, writer: int) -> int:
        if self.order.get("entry") and not self.view:  # it is our own program: nothing new has to be loaded
            folder, shell = self.words[-2:]
            return int(import_module(".entry", __package__).begin(folder, shell, wrapped.env, writer))
        return spawn(wrapped.words, wrapped.env, writer, self.user)

    def _spawn_held(self, wrapped: view.WrappedCommand, writer: int) -> None:
        """Have its view be made while the kernel moves it into its group, which takes as long.

        It begins when both are done, and when it sees of its storages what it should.
        """
        held = GatedStart()
        try:
            try:
                words = [wrapped.words[0], *held.options, *wrapped.words[1:]]
                self.child = spawn(words, wrapped.env, writer, self.user)
            finally:
                held.started()
            pid = held.pid()
            if pid:
                self._enter_group(pid)
                storage_mounts.check(pid, wrapped.placed)
            held.let_go()
        except storage_mounts.RefusalError:
            os.kill(self.child, signal.SIGKILL)  # it has not begun
            if pid:
                os.kill(pid, signal.SIGKILL)
            os.waitpid(self.child, 0)
            raise
        finally:
            held.close()

    def _enter_group(self, pid: int) -> None:
        try:
            if self.group is not None:
                self.group.enter(pid)
        except OSError:
            self._note_all([NO_LIMITS])

    def _make_group(self) -> bool:
        """Whether it is held to its limits."""
        if self.group is None:
            return False
        try:
            self.group.limit(*self.limits)
        except (OSError, KeyError):
            self.group.remove()
            self.group = None
            self._note_all([NO_LIMITS])
            return False
        return True

    def _note_all(self, notes: list[tuple[str, str]]) -> None:
        for code, message in notes:
            note(self.state, {"note": [code, message, time.time()]})

    def _could_not_start(self, error: Exception) -> None:
        place = getattr(error, "filename", None) or self.words[0]
        message = f"{os.fsdecode(place)}: {getattr(error, 'strerror', None) or error}"
        if isinstance(error, storage_mounts.RefusalError):
            message = str(error)
        self._write(f"trainyard: {message}\n".encode(errors="surrogateescape"))
        self.ended = self._verdict(
            EXIT_CODES[ExitReason.NOT_STARTED], 0, ExitReason.NOT_STARTED, message[:LONGEST_MESSAGE]
        )
        self._say_ended()
        self.has_children = self.is_clean = False

    def _claim_ports(self) -> None:
        """Take ports of the node for the task; the claims are ours, and go with us."""
        taken = {}
        for variable, wanted in self.order["ports"].items():
            claimed = import_module("..barrier.port_locks", __package__).claim(wanted)
            if claimed is None:
                raise OSError(errno.EADDRINUSE, "no port of the node is free", str(wanted))
            taken[variable] = str(claimed[0])
            self.claims.append(claimed[1])
        self.env.update(taken)

    def _prepare_entry(self) -> None:
        """Say to what comes before the command what it has to do, where the task sees it."""
        own = self.folder.file("entry")
        os.makedirs(own, mode=0o700, exist_ok=True)
        more = {"attempt": self.folder.attempt, "name": self.order["name"]}
        order = {**self.order["entry"], **more, "ports": self.order.get("ports") or {}}
        write_file(f"{own}/order.json", json.dumps(order).encode())
        if self.user is not None:
            for path in (f"{own}/order.json", own):
                self.user.give(path)

    def _offer_to_oom(self) -> None:
        try:
            handle = os.open(f"/proc/{self.child}/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
        except OSError:  # it has ended
            return
        with contextlib.suppress(OSError):
            os.write(handle, CHILD_OOM_SCORE)
        os.close(handle)

    def _pump(self) -> bool:
        """Move output from the pipe to the log; False at its end."""
        try:
            data = os.read(self.pipe, PIECE)
        except BlockingIOError:
            return True
        if not data:
            return False
        self._write(data)
        if len(data) < PIECE // 2 and self.ended is None:
            time.sleep(NAP_SECONDS)
        return True

    def _write(self, data: bytes) -> None:
        """Keep output; what a full disk does not take is counted and said."""
        if self.lost_bytes:
            gap = f"\n[trainyard: the disk was full, {self.lost_bytes} bytes of output are lost]\n"
            try:
                os.write(self.log, gap.encode())
            except OSError:
                self.lost_bytes += len(data)
                return
            self.lost_bytes = 0
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[os.write(self.log, rest) :]
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO):
                    raise
                self.lost_bytes += len(rest)
                return

    def _timeout(self) -> float | None:
        """Milliseconds until we have to look by ourselves."""
        waits = []
        if self.deadline is not None:
            waits.append(max(self.deadline - boot_seconds(), KILL_AGAIN_SECONDS))
        if self.order["fence"] and not self.is_fenced:
            waits.append(max(min(self.order["fence"] / 4, 5.0), 0.1))
        return min(waits) * 1000 if waits else None

    def _hear(self, signals: bytes) -> None:
        if signal.SIGTERM in signals:
            self._ask_to_go()
        if signal.SIGUSR1 in signals:
            self._fence()
        if signal.SIGUSR2 in signals and self.ended is None:
            self.over = reason_of(self.order, self.folder.history())
            if self.over:  # at once: what it writes meanwhile is what others lack
                self._end_by(boot_seconds())

    def _ask_to_go(self) -> None:
        wanted = find_tombstone(self.folder.attempt)
        if wanted is None:  # somebody on the node asked us, not the server
            wanted = boot_seconds() + self.order["grace"]
        self._end_by(wanted)

    def _end_by(self, deadline: float) -> None:
        is_first = self.deadline is None
        self.deadline = deadline if self.deadline is None else min(self.deadline, deadline)
        if is_first and boot_seconds() < self.deadline:
            self._signal_all(signal.SIGTERM)

    def _keep_time(self) -> None:
        if self.deadline is not None and boot_seconds() >= self.deadline and self.has_children:
            self._signal_all(signal.SIGKILL)
        fence = self.order["fence"]
        if fence and self.has_children and silent_seconds() > fence:
            self._fence()

    def _fence(self) -> None:
        """No server was heard for too long: it may have given the task to another node by now."""
        if not self.is_fenced:
            self.is_fenced = True
            self._end_by(boot_seconds() + min(self.order["grace"], LEFTOVER_GRACE_SECONDS))

    def _signal_all(self, number: int) -> None:
        is_asking = number == signal.SIGTERM
        if is_asking and self.view == view.CONTAINER:  # its keeper knows whom to tell
            with contextlib.suppress(OSError):
                os.kill(self.child, number)
            return
        for pid in process_tree.descendants_of(os.getpid()):
            if is_asking and self.view and pid == self.child:
                continue  # it only holds the view, and would take it away before the program has heard
            with contextlib.suppress(OSError):
                os.kill(pid, number)
                if number == signal.SIGTERM:
                    os.kill(pid, signal.SIGCONT)  # one that was stopped could not hear it

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self.has_children = False
                return
            if pid == 0:
                break
            if pid == self.child:
                self._program_ended(status)
        if self.ended is not None and not self.is_said:  # it left something behind
            self._say_ended()
            self._end_by(boot_seconds() + min(self.order["grace"], LEFTOVER_GRACE_SECONDS))

    def _program_ended(self, status: int) -> None:
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        code = SIGNAL_BASE + number if number else os.WEXITSTATUS(status)
        # All that bubblewrap tells of a signal.
        if self.view and SIGNAL_BASE < code <= SIGNAL_BASE + LAST_SIGNAL:
            number = code - SIGNAL_BASE
        self.was_told = self.deadline is not None and not self.over
        reason, message = self._reason(code, number)
        self.ended = self._verdict(code, number, reason, message)

    def _reason(self, code: int, number: int) -> tuple[ExitReason, str]:
        """Why the program has ended: for programs, and a sentence for people where the exit code does not say it all."""
        reason, message = ExitReason.EXITED, ""
        if number:
            reason = ExitReason.TOLD if self.was_told else ExitReason.SIGNALLED
            message = f"ended by signal {number} ({signal_name(number)})"
        if self.is_fenced:
            reason = ExitReason.FENCED
            message = f"ended by its node, which heard no server for {self.order['fence']:g} seconds"
        elif self.deadline is None and number == signal.SIGKILL:
            message += "; the node may have run out of memory"
        if self.view == view.CONTAINER and code:
            reason, message = self._problem("problem") or (reason, message)
        if code and self.order.get("entry"):
            reason, message = self._problem("entry/problem") or (reason, message)
        if self.group is not None and code and self.group.kills():
            reason = ExitReason.OUT_OF_MEMORY
            message = f"out of memory: it used more than its {self.limits.memory_mib} MiB"
        elif self.group is not None and self.group.refusals():
            said = f"it wanted more than its {self.limits.processes} processes and threads"
            if code:
                reason, message = ExitReason.TOO_MANY_PROCESSES, said
            self._note_all([("processes_limited", f"The node refused some of a task's processes: {said}.")])
        if self.over is not None and code:
            reason, message = self.over
        return reason, message

    def _problem(self, file: str) -> tuple[ExitReason, str] | None:
        """What kept the task from its command, or took its container away, as it was written down; None: nothing did."""
        name, _, message = self.folder.text(file).partition("\n")
        return (exit_reason(name), message) if message else None

    def _say_ended(self) -> None:
        note(self.state, {"at": "ended", **self._time(), **(self.ended or {})})
        self.is_said = True

    def _time(self) -> dict[str, float]:
        return {"ended": time.time(), "lasted": boot_seconds() - self.since}

    def _verdict(self, code: int, number: int, reason: ExitReason, message: str) -> dict[str, Any]:
        return {
            "code": code,
            "signal": number,
            "reason": reason.value,
            "message": message,
            "fenced": self.is_fenced,
            "told": self.was_told,
        }

    def _finish(self) -> None:
        """No child is left: take the rest of the output, end what people run beside it, and say so."""
        while self.pipe >= 0:
            try:
                data = os.read(self.pipe, PIECE)
            except BlockingIOError:  # somebody outside holds the other end; not ours to wait for
                break
            if not data:
                break
            self._write(data)
        ended = self.ended or self._verdict(
            EXIT_CODES[ExitReason.UNSEEN], 0, ExitReason.UNSEEN, "its end was missed"
        )
        if self.lost_bytes:
            ended["message"] += f"{'; ' if ended['message'] else ''}the disk of the node is full, "
            ended["message"] += f"{self.lost_bytes} bytes of output are lost"
        if self.group is not None:
            self.is_clean &= self.group.remove()
        if self.view == view.CONTAINER:
            import_module("..containers.containers", __package__).remove(self.folder, self.order)
        if self.view or self.over:
            remove_tree(self.folder.file("tmp"))
        if self.over:
            remove_tree(self.folder.file("work"))
        lines = []
        if not self.is_said or self.lost_bytes:
            lines.append({"at": "ended", **self._time(), **ended})
        if os.path.exists(
            self.folder.file("beside")
        ):  # looked at only after `ended` is said, see exec_command.py
            note(self.state, *lines)
            lines = []
            end_marked(mark_of(self.order), 0, {os.getpid()})
        if (
            lines and not ended["message"] and not ended["fenced"]
        ):  # the common end, without the weight of json
            now = self._time()
            times = f'"ended":{now["ended"]},"lasted":{now["lasted"]}'
            end = f'{times},"code":{ended["code"]},"signal":{ended["signal"]}'
            told = "true" if ended.get("told") else "false"
            text = f'{{"at":"ended",{end},"message":"","told":{told}}}\n{{"at":"cleared"}}\n'
            os.write(self.state, text.encode())
        else:
            note(self.state, *lines, {"at": "cleared"})


def mark_of(order: dict[str, Any]) -> bytes:
    """What every process of a task begins with in its environment."""
    return f"{kernel.MARK}={order['mark']}".encode()


def base_environment() -> dict[str, str]:
    """What of the node's own environment tasks get."""
    return {
        name: value
        for name, value in os.environ.items()
        if name not in FOREIGN and not name.startswith("TRAINYARD_SERVER_")
    }


def task_environment(base: dict[str, str], folder: TaskFolder, order: dict[str, Any]) -> dict[str, str]:
    """The node's own environment, what the task was given, and its mark."""
    return {
        **base,
        **order["env"],
        kernel.MARK: order["mark"],
        "TRAINYARD_TASK_DIR": os.path.abspath(folder.path),
        "TRAINYARD_AGENT": os.path.abspath(sys.argv[0]),  # which can launch the processes of a task
    }


def enter_working_folder(folder: TaskFolder, order: dict[str, Any]) -> None:
    """Go where the user wants the program to be; made where it is missing."""
    wanted = order["working_dir"]
    if wanted:
        path = os.path.join(os.path.expanduser("~"), os.path.expanduser(wanted))
        make_folders(path)
    else:
        path = folder.file("work")
        with contextlib.suppress(FileExistsError):
            os.mkdir(path)
    os.chdir(path)


def end_marked(mark: bytes, session: int, spared: set[int], *, grace: float = LEFTOVER_GRACE_SECONDS) -> None:
    """End all processes with a mark, or of a session, that are not below us: ask, wait a little, kill until none is left."""
    number, deadline = signal.SIGTERM if grace else signal.SIGKILL, boot_seconds() + grace
    while found := [
        pid
        for pid, row in process_tree.find_processes().items()
        if pid not in spared
        and ((session and row.session == session) or mark in process_tree.environment_of(pid))
    ]:
        for pid in found:
            with contextlib.suppress(OSError):
                os.kill(pid, number)
                if number == signal.SIGTERM:
                    os.kill(pid, signal.SIGHUP)  # a person's shell hears only this
        if boot_seconds() > deadline:
            number = signal.SIGKILL
        time.sleep(KILL_AGAIN_SECONDS)


def clear_orphaned(folder: TaskFolder, state: int, order: dict[str, Any]) -> None:
    """End what is left of a task whose supervisor was killed, and write its end. Runs in a process of its own."""
    known = folder.history()
    note(state, {"pid": os.getpid(), "clearing": True})  # who has the lock is the one whose number is there
    # The number of a session is not given to a new process while anybody is in it. Where another has the number of its
    # first process, one without the mark, the session has gone.
    session, mark = int(known.get("child", 0)), mark_of(order)
    if session and process_tree.start_time(session) and mark not in process_tree.environment_of(session):
        session = 0
    end_marked(mark, session, {os.getpid()})
    if known.get("view") == view.CONTAINER:
        import_module("..containers.containers", __package__).remove(folder, order)
    if any(cgroups.limits_of(order)):
        cgroups.Trees().group(cgroups.name_of(order["mark"])).remove()
    lines = []
    if "ended" not in known:
        reason, message = ExitReason.SUPERVISOR_LOST, "its supervisor on the node was killed, and so was it"
        was_told = find_tombstone(folder.attempt) is not None
        if "started" not in known or (was_told and known["at"] == "starting"):
            reason, message = ExitReason.ENDED_BEFORE_START, "it was ended before it began"
        lines.append(
            {
                "at": "ended",
                "ended": time.time(),
                "code": EXIT_CODES[reason],
                "signal": int(signal.SIGKILL),
                "reason": reason.value,
                "message": message,
                "fenced": False,
                "told": was_told,
            }
        )
    note(state, *lines, {"at": "cleared"})
