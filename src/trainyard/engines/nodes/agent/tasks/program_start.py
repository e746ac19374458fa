"""How the program of a task is started: what its words are, and a process for them that holds nothing of ours."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from trainyard.spec.exit_reasons import NOT_STARTED

from ..sandbox.sandbox_user import UMASK, TaskUser
from .folder import TaskFolder

# SIGTERM: the attempt has to end, see its tombstone. SIGUSR1: the fence has fallen. SIGUSR2: it uses too much of the disk,
# see its state. Blocked around every fork.
SIGNALS = (int(signal.SIGCHLD), int(signal.SIGTERM), int(signal.SIGUSR1), int(signal.SIGUSR2))
# Those that Python, or we, have set to something that a program does not expect.
DEFAULTS = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGHUP, signal.SIGINT, *SIGNALS)


def words_of(folder: TaskFolder, order: dict[str, Any], shell: str) -> list[str]:
    """What is started: the command, or what comes before it and then becomes it, see entry.py."""
    if order.get("entry"):
        return [sys.executable, "-IS", sys.argv[0], "entry", os.path.abspath(folder.path), shell]
    return [shell, os.path.abspath(folder.file("command"))]


def spawn(words: list[str], env: dict[str, str], output: int, user: TaskUser | None = None) -> int:
    """Start a program in a session of its own, with nothing to read and `output` to write to. OSError where it cannot be.

    `user` is whom it will become; what that one makes is for the group of all tasks too.
    """
    if user is None:
        return _spawn(words, env, output)
    before = os.umask(UMASK)
    try:
        return _spawn(words, env, output)
    finally:
        os.umask(before)


def _spawn(words: list[str], env: dict[str, str], output: int) -> int:
    """As above.

    Not by fork: the pages of a Python process are copied one by one then, which costs more than the program's start.
    """
    actions = [(os.POSIX_SPAWN_DUP2, output, 1), (os.POSIX_SPAWN_DUP2, output, 2)]
    try:
        return os.posix_spawn(
            words[0], words, env, file_actions=actions, setsid=True, setsigmask=(), setsigdef=DEFAULTS
        )
    except NotImplementedError:  # a C library without setsid here
        pass
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            for number in DEFAULTS:
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, set())
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.execve(words[0], words, env)  # noqa: S606  # it is a shell
        finally:
            os._exit(NOT_STARTED)
    return pid
