"""A task's share of its node, kept by the kernel: groups of processes with a limit of memory, processor time and their number.

Both layouts: a tree for each resource (version 1), and one tree for all (version 2). Where the node lets us make no groups,
there are none, and who asked is told.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any, NamedTuple

from trainyard.lib.read_file import read_file

ROOT = "/sys/fs/cgroup"
OURS = "trainyard"
ASIDE = "trainyard.own"  # where we are counted ourselves, in a group that was given to us
MOVE_TRIES = 10
PERIOD = 100_000  # microseconds, in which a task may use its quota
LEAST_QUOTA = 1000  # the kernel takes no less
MEMORY, CPU, PIDS = "memory", "cpu", "pids"
PROCESSES = 4096  # and threads, that a task may have where its server says nothing else


class Limits(NamedTuple):
    """What a task is held to; 0: to nothing."""

    memory_mib: int = 0
    cpu_milli: int = 0
    processes: int = 0


class Trees:
    """Where groups can be made below our own: a folder for each resource; none where it cannot be."""

    def __init__(self, root: str = ROOT, own: str = "/proc/self/cgroup") -> None:
        self.version = 0
        self.folders: dict[str, str] = {}
        self.homes: list[str] = []  # where we are counted ourselves
        lines = _read(own).splitlines()
        parts = (line.split(":", 2) for line in lines)
        paths = {name: path for _, names, path in parts for name in names.split(",")}
        for name in (MEMORY, CPU, PIDS):
            if name in paths:
                self._find(name, f"{root}/{name}", paths[name])
        if not self.folders and "" in paths:
            self._find_unified(root, paths[""])

    def _find(self, name: str, tree: str, path: str) -> None:
        for parent in (
            f"{tree}{path.rstrip('/')}",
            tree,
        ):  # in a container, paths may begin outside of what it sees
            if os.path.isdir(parent):
                folder = _made(f"{parent}/{OURS}")
                if folder:
                    self.folders[name] = folder
                    self.homes.append(parent)
                    self.version = 1
                return

    def _find_unified(self, root: str, path: str) -> None:
        """The first of all groups, where we may; else the one that was given to us, as to a service or in a container."""
        own = f"{root}{path.rstrip('/')}"
        if not os.path.isdir(own):  # in a container, paths may begin outside of what it sees
            own = root
        given = os.path.dirname(own) if os.path.basename(own) == ASIDE else own
        if self._take(root):
            self.homes = [own]
        elif (given == root or os.geteuid()) and _make_free(given) and self._take(given):
            self.homes = [f"{given}/{ASIDE}"]

    def _take(self, parent: str) -> bool:
        """Whether groups below ours in a group can have limits of both kinds."""
        folder = _made(f"{parent}/{OURS}") if _enable(parent) else ""
        if not folder or not _enable(folder):
            return False
        self.version = 2
        self.folders = {MEMORY: folder, CPU: folder}
        if all(_enable(one, {PIDS}) for one in (parent, folder)):
            self.folders[PIDS] = folder
        return True

    def group(self, name: str) -> Group:
        """The group of a task; made when it gets its limits."""
        return Group(self, name)


class Group:
    """One task's group. `name` is that of a file."""

    def __init__(self, trees: Trees, name: str) -> None:
        self.version = trees.version
        self.homes = trees.homes
        self.folders = {kind: f"{folder}/{name}" for kind, folder in trees.folders.items()}

    def limit(self, memory_mib: int, cpu_milli: int, processes: int = 0) -> None:
        """Make it, with these limits; 0: none. OSError where it cannot be.

        Processes are not counted where the node cannot: nobody has asked for that by name.
        """
        if processes and PIDS in self.folders:
            _write(f"{self._make(PIDS)}/pids.max", str(processes))
        if memory_mib:
            self._limit_memory(memory_mib << 20)
        if cpu_milli:
            folder = self._make(CPU)
            quota = max(cpu_milli * PERIOD // 1000, LEAST_QUOTA)
            if self.version == 2:
                _write(f"{folder}/cpu.max", f"{quota} {PERIOD}")
            else:
                _write(f"{folder}/cpu.cfs_period_us", str(PERIOD))
                _write(f"{folder}/cpu.cfs_quota_us", str(quota))

    def _limit_memory(self, amount: int) -> None:
        folder = self._make(MEMORY)
        if self.version == 2:
            _write(f"{folder}/memory.max", str(amount))
            with contextlib.suppress(OSError):  # a kernel without swap
                _write(f"{folder}/memory.swap.max", "0")
        else:
            _write(f"{folder}/memory.limit_in_bytes", str(amount))
            with contextlib.suppress(OSError):
                _write(f"{folder}/memory.memsw.limit_in_bytes", str(amount))

    def _make(self, kind: str) -> str:
        folder = self.folders[kind]
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder)
        return folder

    def enter(self, pid: int) -> None:
        """Have a process be counted here; what it starts from now on is too. OSError where it has gone."""
        for folder in sorted(set(self.folders.values())):
            if os.path.isdir(folder):
                _write(f"{folder}/cgroup.procs", str(pid))

    def kills(self) -> int:
        """How many of its processes were killed for want of memory."""
        folder = self.folders.get(MEMORY, "")
        name = "memory.events" if self.version == 2 else "memory.oom_control"
        return _counted(f"{folder}/{name}", "oom_kill")

    def refusals(self) -> int:
        """How many processes it could not start because it had as many as it may."""
        return _counted(f"{self.folders.get(PIDS, '')}/pids.events", "max")

    def leave(self) -> None:
        """Have us be counted where we were before; what we have started stays."""
        for folder in self.homes:
            with contextlib.suppress(OSError):
                _write(f"{folder}/cgroup.procs", str(os.getpid()))

    def remove(self) -> bool:
        """Remove it, where nobody is in it; whether it is gone."""
        folders = set(self.folders.values())
        for folder in folders:
            with contextlib.suppress(OSError):
                os.rmdir(folder)
        return not any(map(os.path.exists, folders))


def name_of(mark: str) -> str:
    """The name of a task's group, from its mark."""
    return mark.replace("/", ".")


def limits_of(order: dict[str, Any]) -> Limits:
    """What a task is held to. One without a view is trusted with the processor, and with the number of its processes."""
    view = order.get("view")
    memory = int(order.get("memory_mib") or 0)
    if view is None or view.get("isolation") in ("open", "off"):
        return Limits(memory)
    return Limits(memory, int(order.get("cpu_milli") or 0), int(view.get("processes", PROCESSES)))


def _made(folder: str) -> str:
    """The folder, where we may make groups in it; else nothing."""
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError:
        return ""
    return folder if os.access(folder, os.W_OK | os.X_OK) else ""


def _enable(folder: str, wanted: frozenset[str] | set[str] = frozenset({MEMORY, CPU})) -> bool:
    """Whether groups in a folder of the one tree get limits of these kinds."""
    if not wanted <= set(_read(f"{folder}/cgroup.subtree_control").split()):
        with contextlib.suppress(OSError):
            _write(f"{folder}/cgroup.subtree_control", " ".join(f"+{name}" for name in sorted(wanted)))
    return wanted <= set(_read(f"{folder}/cgroup.subtree_control").split())


def _make_free(folder: str) -> bool:
    """Have nobody be counted in a group itself: one that has processes gives no limits to groups below it."""
    with contextlib.suppress(OSError):  # it is not ours
        os.makedirs(f"{folder}/{ASIDE}", exist_ok=True)
        for _ in range(MOVE_TRIES):  # those who are there may start others meanwhile
            pids = _read(f"{folder}/cgroup.procs").split()
            if not pids:
                return True
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    _write(f"{folder}/{ASIDE}/cgroup.procs", pid)
    return False


def _counted(path: str, name: str) -> int:
    """The number after a word of a file; 0 where there is none."""
    words = _read(path).split()
    with contextlib.suppress(ValueError, IndexError):
        return int(words[words.index(name) + 1])
    return 0


def _read(path: str) -> str:
    try:
        return read_file(path).decode(errors="replace")
    except OSError:
        return ""


def _write(path: str, text: str) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(handle, text.encode())
    finally:
        os.close(handle)
