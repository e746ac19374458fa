"""Supervisors that have done their task and stand by for the next: a fork costs more than all else that a short task needs.

Each says so at a socket of the agent that forked it, and gets either a task, with its locked state file, or the end of
the connection, and then it goes. It has nothing of its last task any more, no child among it; what it does with the
next one is what a new one would do. When the agent dies those that stand by go, and those that have a task do when
that is over: a later agent takes only those that it has forked itself.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from .. import kernel
from .folder import TaskFolder
from .program_start import SIGNALS

if TYPE_CHECKING:
    from .supervisor import Supervisor

SOCKET = "standby"
MOST = 64  # who stand by at once: as many short tasks as run at once on a large node
BACKLOG = 128
IDLE_SECONDS = 5.0
MESSAGE = 1024  # an attempt's and a task's name
_HANDLE = struct.Struct("i")
_CREDENTIALS = struct.Struct("iII")  # of a peer: its process, user and group


class SupervisorPool:
    """The agent's side: who waits for a task."""

    def __init__(self) -> None:
        self._waiting: list[tuple[int, socket.socket, float]] = []  # who came last is last
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(SOCKET)
        self._listener.bind(SOCKET)
        self._listener.listen(BACKLOG)
        self._listener.setblocking(False)

    def fileno(self) -> int:
        """For a selector."""
        return self._listener.fileno()

    def accept(self, is_ours: Callable[[int], bool]) -> list[int]:
        """Take those who have come. Their processes, also of those that are sent away because there are enough."""
        found: list[int] = []
        while True:
            try:
                connection = self._listener.accept()[0]
            except OSError:
                return found
            size = _CREDENTIALS.size
            raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
            pid = int(_CREDENTIALS.unpack(raw)[0])
            if not is_ours(pid):
                connection.close()
                continue
            found.append(pid)
            if len(self._waiting) < MOST:
                self._waiting.append((pid, connection, time.monotonic()))
            else:
                connection.close()

    def hand(self, folder: TaskFolder, state: int) -> int:
        """Give a task, with its locked state, to one who waits: its process; 0 where there is none."""
        message = f"{folder.attempt} {folder.name}".encode()
        handles = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, _HANDLE.pack(state))]
        while self._waiting:
            pid, connection, _ = self._waiting.pop()
            try:
                connection.sendmsg([message], handles)
            except OSError:  # it was killed
                continue
            finally:
                connection.close()
            return pid
        return 0

    def dismiss(self) -> None:
        """Let go of those who have waited for long."""
        before = time.monotonic() - IDLE_SECONDS
        while self._waiting and self._waiting[0][2] < before:
            self._waiting.pop(0)[1].close()

    def close(self) -> None:
        """Take nobody any more; who waits goes."""
        self._listener.close()
        while self._waiting:
            self._waiting.pop()[1].close()


def serve(first: Supervisor, make: Callable[[TaskFolder, int], Supervisor | None]) -> None:
    """In a supervisor's process: see to its first task, then to those that the agent has for it."""
    kernel.become_subreaper()
    wakes = _wake_on_signals()
    supervisor: Supervisor | None = first
    early = b""
    while supervisor is not None:
        supervisor.run(wakes, early)
        if not supervisor.close():
            return
        found = _ask()
        if found is None:
            return
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        early = _heard(wakes)
        supervisor = make(*found)
        if supervisor is not None:
            supervisor.count_from_here()


def _ask() -> tuple[TaskFolder, int] | None:
    """Wait for a task: its folder and its locked state; None where we are not needed any more."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        try:
            connection.connect(SOCKET)
            room = socket.CMSG_LEN(_HANDLE.size)
            message, handles, _, _ = connection.recvmsg(MESSAGE, room, socket.MSG_CMSG_CLOEXEC)
        except OSError:  # there is no agent
            return None
    if not message or not handles:
        return None
    attempt, _, name = message.decode().partition(" ")
    return TaskFolder(attempt, name), int(_HANDLE.unpack(handles[0][2])[0])


def _heard(wakes: int) -> bytes:
    """The signals that came since we were done with our last task. They may have been meant for it, or for the next."""
    try:
        return os.read(wakes, 4096)
    except BlockingIOError:
        return b""


def _wake_on_signals() -> int:
    """A pipe that becomes readable on our signals, holding their numbers."""
    reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in SIGNALS:
        signal.signal(number, _do_nothing)
    for number in (signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    return reader


def _do_nothing(_number: int, _frame: object) -> None:
    """A signal that is only to wake us."""
