"""The processes of one launcher on one machine: started together, shown together, and ended together.

When one fails the others are ended; when the launcher is asked to go they are asked; and when it dies without a word,
they die: each is killed with its parent, and a watcher kills what they in turn have started. Who they are and what
they are told is launcher.py's.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import time
from typing import NoReturn

from trainyard.lib import process_tree
from trainyard.spec.exit_reasons import NOT_FOUND, NOT_STARTED

from . import kernel
from .signals import signal_name

PIECE = 65536  # as much as a pipe holds
SHOWN_BYTES = (
    1 << 20
)  # that wait for a slow reader; then the processes wait, as they would with a pipe of their own
WRITE = 4096  # a pipe that is ready takes this much without blocking
LEFTOVER_SECONDS = 5.0  # for what processes that have ended left running
READER_SECONDS = 1.0  # for a reader that does not read, when we are asked to go
EXTRA_SECONDS = 30.0  # for a process that only serves the others, when those have ended
KILL_AGAIN_SECONDS = 0.05  # something may fork faster than we look
PASSED_ON = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
ENDING = (signal.SIGTERM, signal.SIGINT)
HEARD = (signal.SIGCHLD, *ENDING, *PASSED_ON)
DEFAULTS = (*HEARD, signal.SIGPIPE, signal.SIGXFSZ)


class Member:
    """One process: what it is to run, and what became of it."""

    def __init__(
        self, label: str, words: list[str], env: dict[str, str], *, folder: str = "", log: str = ""
    ) -> None:
        self.label = label
        self.words = words
        self.env = env
        self.folder = folder  # empty: where the launcher is
        self.log_path = log  # empty: none is kept
        self.is_extra = False  # serves the others: it need not end by itself
        self.is_shown = True
        self.pid = 0
        self.pipe = -1
        self.log = -1
        self.status: int | None = None
        self.rest = b""  # the beginning of a line


class ProcessGroup:
    """Runs them. `deadline` and the like are in seconds of the monotonic clock."""

    def __init__(
        self, members: list[Member], *, grace: float, is_supervised: bool = False, as_json: bool = False
    ) -> None:
        self.members = members
        self.as_json = as_json  # lines for programs
        self.grace = grace
        self.is_supervised = is_supervised  # somebody above us keeps time when we are asked to go
        self.width = max(len(member.label) for member in members)
        self.mark = f"TRAINYARD_LAUNCH_{os.urandom(8).hex()}"
        self.verdict = 0  # the code of the first that failed
        self.told = 0  # the signal that asked us to go
        self.is_ending = False
        self.deadline: float | None = None
        self.watcher = 0
        self.shown = bytearray()
        self.can_show = True
        self.by_pipe: dict[int, Member] = {}

    def run(self) -> int:
        """Start all, and come back when nothing of them is left. What is returned is the launcher's own exit code."""
        before = {number: signal.getsignal(number) for number in HEARD}
        reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        old_wakeup = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        for number in HEARD:
            signal.signal(number, _do_nothing)
        kernel.become_subreaper()
        auto_release = self._start_watcher()
        try:
            self._start()
            self._work(reader)
            self._clear_leftovers()
            self._show_rest(reader)
        finally:
            with contextlib.suppress(OSError):  # somebody has killed it
                os.write(auto_release, b".")  # all is well: the watcher may go
                os.waitpid(self.watcher, 0)
            os.close(auto_release)
            signal.set_wakeup_fd(old_wakeup)
            for number, action in before.items():
                signal.signal(number, action)
            os.close(reader)
            os.close(writer)
        return self._code()

    # -- start -------------------------------------------------------------------------------------------------------

    def _start_watcher(self) -> int:
        """A process that outlives us by a moment: where we die without having said so, it kills all that carry our mark."""
        reader, auto_release = os.pipe2(os.O_CLOEXEC)
        signal.pthread_sigmask(signal.SIG_BLOCK, HEARD)
        self.watcher = os.fork()
        if self.watcher == 0:
            os.close(auto_release)
            _be_watcher(reader, self.mark)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HEARD)
        os.close(reader)
        return auto_release

    def _start(self) -> None:
        signal.pthread_sigmask(
            signal.SIG_BLOCK, HEARD
        )  # one that is asked for now is heard when all are there
        try:
            for member in self.members:
                self._start_one(member)
        except OSError as error:  # no more processes, no more files
            for member in self.members:
                if not member.pid:
                    member.status = NOT_STARTED
            self.verdict = NOT_STARTED
            self._say(f"not all processes can be started: {error.strerror}; those that were are ended")
            self._end_all(signal.SIGTERM, self.grace)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, HEARD)

    def _start_one(self, member: Member) -> None:
        if member.log_path:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            try:
                member.log = os.open(member.log_path, flags, 0o644)
            except OSError as error:
                self._say(f"{member.log_path} is not written: {error.strerror}")
        member.pipe, writer = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(member.pipe, False)
        self.by_pipe[member.pipe] = member
        parent = os.getpid()
        try:
            member.pid = os.fork()
            if member.pid == 0:
                _become(member, writer, parent, {**member.env, self.mark: "1"})
        finally:
            os.close(writer)

    # -- while they run ----------------------------------------------------------------------------------------------

    def _work(self, wakes: int) -> None:
        while self._living():
            poll = select.poll()
            poll.register(wakes, select.POLLIN)
            if len(self.shown) < SHOWN_BYTES:
                for pipe in self.by_pipe:
                    poll.register(pipe, select.POLLIN)
            if self.shown:
                poll.register(1, select.POLLOUT)
            for handle, _ in poll.poll(self._timeout()):
                if handle == wakes:
                    signals = os.read(wakes, 4096)
                    self._reap()  # first: one that has failed by itself was not ended by us
                    self._hear(signals)
                elif handle in self.by_pipe:
                    self._pump(self.by_pipe[handle])
            self._flush()
            self._keep_time()

    def _living(self) -> list[Member]:
        return [member for member in self.members if member.status is None]

    def _timeout(self) -> float | None:
        if self.deadline is None:
            return None
        return max(self.deadline - time.monotonic(), KILL_AGAIN_SECONDS) * 1000

    def _reap(self) -> None:
        by_pid = {member.pid: member for member in self.members}
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            if pid in by_pid:  # others are orphans that came to us, or the watcher
                self._note_end(by_pid[pid], status)
        living = self._living()
        if living and all(member.is_extra for member in living) and self.deadline is None:
            self.deadline = time.monotonic() + EXTRA_SECONDS
            self.is_ending = True

    def _note_end(self, member: Member, status: int) -> None:
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        member.status = 128 + number if number else os.WEXITSTATUS(status)
        if member.status == 0 or self.is_ending:
            return
        self.verdict = member.status
        how = f"was ended by {signal_name(number)}" if number else f"ended with status {member.status}"
        others = "; the others are ended" if self._living() else ""
        self._say(f"process {member.label} {how}{others}")
        self._end_all(signal.SIGTERM, self.grace)

    def _hear(self, signals: bytes) -> None:
        for number in signals:
            if number in PASSED_ON:
                self._signal(signal.Signals(number))
            elif number in ENDING:
                self._ask_to_go(signal.Signals(number))

    def _ask_to_go(self, number: signal.Signals) -> None:
        if self.told:
            if number == signal.SIGINT:  # Ctrl-C again: at once
                self.deadline = time.monotonic()
            return
        self.told = number
        self._end_all(number, None if self.is_supervised and number == signal.SIGTERM else self.grace)

    def _end_all(self, number: signal.Signals, grace: float | None) -> None:
        self.is_ending = True
        if grace is not None:
            deadline = time.monotonic() + grace
            self.deadline = deadline if self.deadline is None else min(self.deadline, deadline)
        self._signal(number)

    def _signal(self, number: signal.Signals) -> None:
        for member in self._living():
            _signal_group(member.pid, number)
            if number in ENDING:
                _signal_group(member.pid, signal.SIGCONT)  # one that was stopped could not hear it

    def _keep_time(self) -> None:
        if self.deadline is not None and time.monotonic() >= self.deadline:
            for pid in self._ours():
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            self._reap()

    # -- what they print ---------------------------------------------------------------------------------------------

    def _pump(self, member: Member) -> bool:
        """Take some of a process's output; False where there is none now. At its end the pipe is forgotten."""
        try:
            data = os.read(member.pipe, PIECE)
        except BlockingIOError:
            return False
        if not data:
            self._forget(member)
            return False
        if member.log >= 0:
            self._keep(member, data)
        if member.is_shown and self.can_show:
            self._show(member, data)
        return True

    def _keep(self, member: Member, data: bytes) -> None:
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[os.write(member.log, rest) :]
        except OSError as error:  # a full disk is no reason to end a training
            self._say(f"{member.log_path} is not written any more: {error.strerror}")
            os.close(member.log)
            member.log = -1

    def _show(self, member: Member, data: bytes) -> None:
        """Whole lines, each with its process in front. A progress bar begins its line anew with a carriage return."""
        lines = (member.rest + data).splitlines(keepends=True)
        member.rest = b""
        if lines and not lines[-1].endswith(b"\n") and len(lines[-1]) < PIECE:
            member.rest = lines.pop()
        prefix = f"[{member.label:>{self.width}}] ".encode(errors="surrogateescape")
        for line in lines:
            self.shown += self._told(member, line) if self.as_json else prefix + line

    def _told(self, member: Member, line: bytes) -> bytes:
        text = line.rstrip(b"\r\n").decode(errors="replace")
        return json.dumps({"process": member.label, "line": text}, ensure_ascii=False).encode() + b"\n"

    def _forget(self, member: Member) -> None:
        if member.rest:
            self._show(member, b"\n")
        for handle in (member.pipe, member.log):
            if handle >= 0:
                os.close(handle)
        self.by_pipe.pop(member.pipe, None)
        member.pipe = member.log = -1

    def _flush(self) -> None:
        """Write what the reader takes now, and no more: a terminal that is held must not keep us from ending anything."""
        ready = select.poll()
        ready.register(1, select.POLLOUT)
        while self.shown and ready.poll(0):
            try:
                del self.shown[: os.write(1, bytes(self.shown[:WRITE]))]
            except BlockingIOError:
                return
            except OSError:  # nobody reads any more; the files are still kept
                self.shown.clear()
                self.can_show = False

    # -- the end -----------------------------------------------------------------------------------------------------

    def _ours(self) -> list[int]:
        """Every process below us but the watcher, and every one elsewhere that carries our mark."""
        try:
            marked = _marked(self.mark)
        except OSError:  # no file is left to look with
            marked = [member.pid for member in self._living()]
        return marked + [pid for pid in process_tree.descendants_of(os.getpid()) if pid != self.watcher]

    def _clear_leftovers(self) -> None:
        """All have ended: what they left in the background is asked to go, and then made to."""
        deadline = time.monotonic() + min(self.grace, LEFTOVER_SECONDS)
        number = signal.SIGTERM
        while True:
            left = [pid for pid in self._ours() if process_tree.start_time(pid)]
            if not left:
                break
            for pid in left:
                with contextlib.suppress(OSError):
                    os.kill(pid, number)
            time.sleep(KILL_AGAIN_SECONDS)
            self._reap()
            number = signal.SIGKILL if time.monotonic() >= deadline else signal.Signals(signal.SIGCONT)
        self._reap()

    def _show_rest(self, wakes: int) -> None:
        for member in self.members:
            while member.pipe >= 0 and self._pump(member):
                self._flush()
            if member.pipe >= 0:
                self._forget(member)
        until = time.monotonic() + READER_SECONDS
        while self.shown and not (self.told and time.monotonic() > until):
            poll = select.poll()
            poll.register(wakes, select.POLLIN)
            poll.register(1, select.POLLOUT)
            for handle, _ in poll.poll(READER_SECONDS * 1000 if self.told else None):
                if handle == wakes and set(os.read(wakes, 4096)) & set(ENDING):
                    self.told = self.told or int(signal.SIGTERM)
            self._flush()

    def _code(self) -> int:
        if self.verdict:
            return self.verdict
        if self.told and any(member.status for member in self.members):
            return 128 + self.told
        return 0

    @staticmethod
    def _say(text: str) -> None:
        with contextlib.suppress(OSError):
            os.write(2, f"launch: {text}\n".encode(errors="surrogateescape"))


def _do_nothing(_number: int, _frame: object) -> None:
    """A signal that is only to wake us."""


def _signal_group(pid: int, number: int) -> None:
    try:
        os.killpg(pid, number)
    except ProcessLookupError:  # it has just ended, or it was just born and has no group of its own yet
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
    except PermissionError:  # it has become somebody else
        pass


def _become(member: Member, output: int, parent: int, env: dict[str, str]) -> NoReturn:
    """In the child: a session of its own, killed with its parent, with nothing to read."""
    status = NOT_STARTED
    try:
        os.setsid()
        kernel.die_with_parent(signal.SIGKILL)
        if os.getppid() != parent:  # it has died before we could ask for that
            os._exit(NOT_STARTED)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
        if member.folder:
            os.chdir(member.folder)
        for number in DEFAULTS:
            signal.signal(number, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.execvpe(member.words[0], member.words, env)  # noqa: S606  # what the user wants to run
    except OSError as error:
        status = NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_STARTED
        place = os.fsencode(member.words[0])
        os.write(2, b"launch: " + place + b": " + (error.strerror or "cannot be run").encode() + b"\n")
    finally:
        os._exit(status)


def _be_watcher(auto_release: int, mark: str) -> NoReturn:
    """In the watcher: wait for the word that all is well, or for the silence of one who was killed."""
    try:
        os.setsid()  # not among those that Ctrl-C, or a kill of our whole group, reaches
        for number in (*ENDING, *PASSED_ON):
            signal.signal(number, signal.SIG_IGN)
        signal.set_wakeup_fd(-1)
        null = os.open("/dev/null", os.O_RDWR)
        for handle in (0, 1, 2):
            os.dup2(null, handle)
        if not os.read(auto_release, 1):
            _kill_marked(mark)
    finally:
        os._exit(0)


def _kill_marked(mark: str) -> None:
    until = time.monotonic() + LEFTOVER_SECONDS
    while time.monotonic() < until:
        left = [pid for pid in _marked(mark) if process_tree.start_time(pid)]
        if not left:
            return
        for pid in left:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(KILL_AGAIN_SECONDS)


def _marked(mark: str) -> list[int]:
    word = f"{mark}=1".encode()
    return process_tree.find_marked(word)


def flush_own_streams() -> None:
    """Before other processes write to the same places."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
