"""Starts keepers. It is a separate program (`python -I -S`), because forking needs a process without threads.

Each keeper leads a session, is the reaper of all orphans below it (the flag survives exec, not fork), and belongs to
nobody: it outlives the client. Reads one JSON request; writes a line per keeper that could not start, else nothing;
its output ends when all of them run. Imports nothing of ours.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import signal
import sys
from collections.abc import Callable

PR_SET_CHILD_SUBREAPER = 36
FIFO_DESCRIPTOR = 3
REPORT_DESCRIPTOR = 10  # out of the way of the one above


def become_keeper(prctl: Callable[..., int], keeper: dict[str, str], env: dict[str, str]) -> None:
    """Turn this process into a keeper. Never returns."""
    os.setsid()
    if prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "this kernel has no child subreapers")
    # A client under nohup, or in the background of a script, ignores signals that machines must not ignore.
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        if signal.getsignal(number) is not signal.SIG_DFL:
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    # Open for writing too: so it never ends, and a line that is sent before the shell looks is kept.
    os.dup2(os.open(keeper["fifo"], os.O_RDWR), FIFO_DESCRIPTOR)
    os.set_inheritable(FIFO_DESCRIPTOR, True)
    register(keeper["pid_file"], keeper["boot"])
    os.chdir("/")
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    os.execve("/bin/sh", ["sh", keeper["script"]], env)  # noqa: S606  # no shell between


def register(pid_file: str, boot: str) -> None:
    """Write down the identity of this process: its id, its start in clock ticks since boot, and the boot id."""
    with open("/proc/self/stat", encoding="utf-8", errors="replace") as stat:  # noqa: PTH123  # pathlib costs a third of the start
        started = stat.read().rpartition(")")[2].split()[19]
    with open(f"{pid_file}.new", "w", encoding="utf-8") as file:  # noqa: PTH123
        file.write(f"{os.getpid()} {started} {boot}\n")
    os.replace(f"{pid_file}.new", pid_file)  # noqa: PTH105


def main() -> None:
    """Fork one keeper after the other."""
    request = json.load(sys.stdin)
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    fcntl.fcntl(1, fcntl.F_DUPFD_CLOEXEC, REPORT_DESCRIPTOR)
    for keeper in request["keepers"]:
        if os.fork() == 0:
            try:
                env = {**request["env"], **keeper.pop("env")}
                become_keeper(prctl, keeper, env)
            except OSError as error:
                os.write(REPORT_DESCRIPTOR, f"{keeper['name']}: {error}\n".encode(errors="replace"))
            finally:
                os._exit(1)


if __name__ == "__main__":
    main()
