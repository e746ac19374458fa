"""Into the view of a task: what a person runs beside it sees what it sees, and may no more than it may.

Where the task has ended and is kept for a look, a view like its own is made for that.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import signal
import time
from typing import Any, NoReturn

from trainyard.lib import process_tree
from trainyard.lib.read_file import read_file

from .. import kernel
from . import cgroups, storage_mounts, syscall_filter, view
from .gated_start import GatedStart
from .sandbox_user import UMASK, UNGUARDED, TaskUser, user_of

PR_CAPBSET_DROP = 24
NS_GET_USERNS = 0xB701
ROOMS = ("mnt", "pid", "ipc")
PATIENCE_SECONDS = 10.0  # a view is being put together when its task says that it runs
LOOK_SECONDS = 0.01
LEAVE_SECONDS = 0.5
PASSED_ON = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)

_libc = ctypes.CDLL(None, use_errno=True)


def program_of(known: dict[str, Any]) -> int:
    """The process of a task's own program inside of its view; LookupError where it has ended."""
    depth = 2 if known["view"] == view.CLOSED else 1  # what holds the view, and the first process in it
    deadline = time.monotonic() + PATIENCE_SECONDS
    while process_tree.start_time(int(known["child"])) and time.monotonic() < deadline:
        pid = int(known["child"])
        for _ in range(depth):
            pid = next(iter(process_tree.children_of(pid)), 0)
            if not pid:
                break
        if pid and not _is_holder(pid, int(known["child"])):
            return pid
        time.sleep(LOOK_SECONDS)
    raise LookupError("the program has ended")


def _is_holder(pid: int, outer: int) -> bool:
    """Whether a process has not become the program yet."""
    with contextlib.suppress(OSError):
        if os.fsencode(view.VARIABLES) in read_file(f"/proc/{pid}/cmdline").split(b"\0"):
            return True  # it is about to get its variables
        return os.readlink(f"/proc/{pid}/exe") == os.readlink(f"/proc/{outer}/exe")
    return True


def environment_of(pid: int) -> dict[str, str]:
    """What a process began with."""
    words = read_file(f"/proc/{pid}/environ").split(b"\0")
    pairs = (os.fsdecode(word).partition("=") for word in words if b"=" in word)
    return {name: value for name, _, value in pairs}


def become_inside(
    order: dict[str, Any], pid: int, *, folder: str, words: list[str], env: dict[str, str]
) -> int:
    """Run words in the view of a process, counted with it; their status. OSError where we may not go there."""
    if any(cgroups.limits_of(order)):
        with contextlib.suppress(OSError):
            cgroups.Trees().group(cgroups.name_of(order["mark"])).enter(os.getpid())
    user = user_of(order)
    # What we start is seen inside before it has become another program, and has our memory until then.
    kernel.hide_memory()
    _join(pid)
    child = os.fork()  # only what we start is in the other tree of processes
    if child == 0:
        _run(folder, words, env, user, is_closed=order["view"].get("isolation") not in UNGUARDED)
    return _wait(child)


def run_anew(order: dict[str, Any], wrapped: view.WrappedCommand) -> int:
    """Run what has a view around it, held to the task's limits; its status. RefusalError where it sees what it should not."""
    group = cgroups.Trees().group(f"{cgroups.name_of(order['mark'])}.{os.getpid()}")
    held = GatedStart()
    child = os.fork()
    if child == 0:
        try:
            if any(cgroups.limits_of(order)):
                with contextlib.suppress(OSError, KeyError):  # the node cannot, as the task's events said
                    group.limit(*cgroups.limits_of(order))
                    group.enter(os.getpid())
            if user_of(order) is not None:
                os.umask(UMASK)
            words = [wrapped.words[0], "--die-with-parent", *held.options, *wrapped.words[1:]]
            os.execve(words[0], words, wrapped.env)  # noqa: S606  # no shell
        finally:
            os._exit(126)
    try:
        held.started()
        pid = held.pid()
        if pid:
            storage_mounts.check(pid, wrapped.placed)
        held.let_go()
        return _wait(child)
    except storage_mounts.RefusalError:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise
    finally:
        held.close()
        deadline = time.monotonic() + LEAVE_SECONDS
        while not group.remove() and time.monotonic() < deadline:  # what was in it is on its way out
            time.sleep(LOOK_SECONDS)


def _join(pid: int) -> None:
    """Go where a process is. The right to enter its rooms has who is in the one that they were made in, which may be above its own."""
    rooms = [os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC) for name in ROOMS]
    owner = fcntl.ioctl(rooms[0], NS_GET_USERNS) if os.getuid() else -1
    own = os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    # All of them looked at before: once inside, /proc is that of processes that we are not among.
    others = [handle for handle in (owner, *rooms, own) if handle >= 0 and not _is_here(handle)]
    for handle in others:
        if _libc.setns(handle, 0) < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))


def _is_here(handle: int) -> bool:
    """Whether we are in a room already."""
    wanted = os.fstat(handle)
    return any(
        (here.st_dev, here.st_ino) == (wanted.st_dev, wanted.st_ino)
        for here in (os.stat(f"/proc/self/ns/{name}") for name in ("user", *ROOMS))
    )


def _run(
    folder: str, words: list[str], env: dict[str, str], user: TaskUser | None, *, is_closed: bool
) -> NoReturn:
    try:
        if user is not None:
            for handle in (0, 1, 2):
                user.give_stream(handle)
        if is_closed:
            give_up_rights(user)
        syscall_filter.keep_rights_down()
        try:
            os.chdir(folder)
        except OSError:
            os.chdir("/")
        os.execve(words[0], words, env)  # noqa: S606  # it is a shell
    finally:
        os._exit(126)


def give_up_rights(user: TaskUser | None) -> None:
    """Keep no more rights than a task in a closed view has. For good: no program gets them back."""
    if user is not None:
        last = int(read_file("/proc/sys/kernel/cap_last_cap"))
        for number in range(last + 1):
            _libc.prctl(PR_CAPBSET_DROP, number, 0, 0, 0)
        user.become()
    syscall_filter.apply()


def _wait(child: int) -> int:
    def pass_on(number: int, _frame: object) -> None:
        with contextlib.suppress(OSError):
            os.kill(child, number)

    for number in PASSED_ON:
        signal.signal(number, pass_on)
    while True:
        with contextlib.suppress(InterruptedError):
            _, status = os.waitpid(child, 0)
            return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
