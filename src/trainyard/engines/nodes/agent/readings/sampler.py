"""What tasks and the node use, looked at now and then in /proc; devices are asked through shell scripts of the server's.

Nothing is installed for it and nobody waits for it: a driver that hangs is killed, and its readings are left out. Figures that
only slow tools have are asked for apart, and go with the readings that are taken while they are fresh.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any

from trainyard.lib import process_tree
from trainyard.lib.read_file import read_file

from .. import kernel
from ..tasks.folder import boot_seconds
from ..tasks.task_list import Task
from .device_drivers import Source

TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
MIB = 1 << 20
DRIVER_SECONDS = 8.0
LOOKED_AT = 8  # processes of a task whose network is compared with the node's: its program is among the first
DRIVERS = ("nvidia-smi", "npu-smi")
PROFILERS = ("dcgmi", "nvidia-smi")
PROFILER_SECONDS = 30.0
PROFILE_EVERY = 3  # readings: what a profiler says of three seconds need not be asked more often
PROFILE_KEPT = 4 * PROFILE_EVERY  # readings that the last answer goes with, where none follows
PROFILE_REST_SECONDS = 600.0  # after a profiler that knew nothing

Counters = tuple[
    float, float, float, float, float
]  # seconds of processor; bytes read, written, received, sent


class Process:
    """One line of /proc/<pid>/stat."""

    __slots__ = ("children", "seconds")

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds  # of processor, with those of children that it has outlived
        self.children: list[int] = []


class Sampler:
    """Takes a reading whenever one is due. Off until a server says how often."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._next = 0.0
        self._devices = Source(DRIVERS, DRIVER_SECONDS)
        self._profiler = Source(PROFILERS, PROFILER_SECONDS)
        self._profile = ""
        self._profile_age = 0  # readings since it was told
        self._profile_next = 0.0
        self._before: dict[tuple[str, str], tuple[Counters, bool]] = {}
        self._node_before: Counters | None = None
        self._taken = 0.0

    def configure(self, seconds: float, script: str, profile: str = "") -> None:
        """How often, and how devices are asked; what takes its time is asked by `profile`."""
        self.seconds = seconds
        self._devices.configure(script)
        if self._profiler.configure(profile):
            self._profile, self._profile_next = "", 0.0
        self._next = time.monotonic() + seconds

    def wait(self, now: float) -> float:
        """Seconds until `poll` has something to do."""
        if not self.seconds:
            return 3600.0
        return 0.1 if self._devices.is_asked else max(0.0, self._next - now)

    def poll(self, tasks: list[Task]) -> dict[str, Any] | None:
        """A frame with readings where they are complete, else None. Never blocks."""
        now = time.monotonic()
        if not self.seconds:
            return None
        if not self._devices.is_asked:
            if now < self._next:
                return None
            self._next = now + self.seconds
            self._poll_profiler(now)
            return None if self._devices.begin() else self._read(tasks, "")
        answer = self._devices.answer()
        return None if answer is None else self._read(tasks, answer + self._profile)

    def stop(self) -> None:
        """Let go of drivers that are being asked."""
        self.seconds = 0.0
        self._devices.stop()
        self._profiler.stop()

    def _poll_profiler(self, now: float) -> None:
        """Take what it has said by now, or ask again. Nobody wakes for it: it is looked at with every reading."""
        self._profile_age += 1
        if self._profiler.is_asked:
            answer = self._profiler.answer()
            if answer is None:
                return
            if has_figures(answer):
                self._profile, self._profile_age = newest_rows(answer), 0
            else:
                self._profile_next = now + PROFILE_REST_SECONDS
        elif now >= self._profile_next:
            self._profile_next = now + PROFILE_EVERY * self.seconds
            if not self._profiler.begin():
                self._profile_next = now + PROFILE_REST_SECONDS
        if self._profile_age > PROFILE_KEPT:
            self._profile = ""

    def _read(self, tasks: list[Task], devices: str) -> dict[str, Any]:
        now, before = time.monotonic(), self._taken
        self._taken = now
        span = now - before if before else 0.0
        processes = all_processes()
        traffic = network("self")
        found = []
        counters: dict[tuple[str, str], tuple[Counters, bool]] = {}
        for task, pids in processes_of(tasks, processes):
            key = (task.folder.attempt, task.folder.name)
            own = own_network(pids)
            use = count(processes, pids, own or traffic)
            counters[key] = use, own is not None
            known = self._before.get(key)
            if known is None:  # it is new: what it has used, it used since it began
                began = float(task.history.get("since", 0.0))
                before = task.history.get("before", (0.0, 0.0, 0.0))  # its supervisor saw to others
                old, length = (*before, use[3], use[4]), max(boot_seconds() - began, 0.001)
            else:
                old, length = known[0], span
                if known[1] != (own is not None):  # another network: its count began elsewhere
                    old = (*old[:3], use[3], use[4])
            if length <= 0:
                continue
            env = task.order["env"]
            found.append(
                {
                    "a": key[0],
                    "t": key[1],
                    "d": env.get("TRAINYARD_DEVICES", ""),
                    "npu": bool(env.get("ASCEND_RT_VISIBLE_DEVICES")),
                    "net": own is not None,
                    "v": [*rates(old, use, length), memory_of(pids) / MIB, len(pids) - 1],
                }
            )
        self._before = counters
        frame: dict[str, Any] = {"op": "samples", "time": time.time(), "tasks": found, "devices": devices}
        node = (node_seconds(), *disk_bytes(), *traffic)
        if self._node_before is not None and span > 0:
            frame["node"] = [*rates(self._node_before, node, span), node_memory() / MIB]
        self._node_before = node
        return frame


def has_figures(answer: str) -> bool:
    """Whether a profiler has told anything but what it has learnt of itself."""
    return any(line and not line.startswith("known ") for line in answer.split("\n"))


def newest_rows(answer: str) -> str:
    """The same with one row for each device: the last, with what only an earlier one has."""
    rows: dict[tuple[str, ...], list[str]] = {}
    others = []
    for line in answer.split("\n"):
        words = line.split()
        if words[:1] != ["dcgm"]:
            others.append(line)
            continue
        key, before = tuple(words[:3]), rows.get(tuple(words[:3]), [])
        if len(before) == len(words):
            words = [before[place] if word.startswith("N/") else word for place, word in enumerate(words)]
        rows[key] = words
    return "\n".join([*others, *map(" ".join, rows.values()), ""])


def all_processes() -> dict[int, Process]:
    """Every process with its children."""
    found: dict[int, Process] = {}
    parents: dict[int, int] = {}
    for pid in process_tree.all_pids():
        fields = process_tree.stat_fields(pid)
        if fields is not None:
            found[pid] = Process(sum(map(int, fields[11:15])) / TICKS)
            parents[pid] = int(fields[1])
    for pid, parent in parents.items():
        if parent in found:
            found[parent].children.append(pid)
    return found


def descendants(processes: dict[int, Process], root: int) -> list[int]:
    """A process and all below it."""
    found, waiting = [], [root]
    while waiting:
        pid = waiting.pop()
        found.append(pid)
        waiting += processes[pid].children
    return found


def processes_of(tasks: list[Task], processes: dict[int, Process]) -> list[tuple[Task, list[int]]]:
    """Tasks that run, each with its supervisor's process and all of its own."""
    found = []
    for task in tasks:
        root = int(task.history.get("pid", 0))
        is_on = task.history["at"] == "running" and "clearing" not in task.history
        if is_on and root in processes:
            found.append((task, descendants(processes, root)))
    if any((task.order.get("view") or {}).get("image") for task, _ in found):
        # What runs in a container of docker's is below its service, and not below us.
        below = {pid for _, pids in found for pid in pids}
        elsewhere: dict[str, list[int]] = {}
        for pid in sorted(processes.keys() - below):
            mark = process_tree.variable_of(pid, kernel.MARK.encode())
            if mark:
                elsewhere.setdefault(mark, []).append(pid)
        found = [(task, pids + elsewhere.get(task.order.get("mark", ""), [])) for task, pids in found]
    return found


def own_network(pids: list[int]) -> tuple[float, float] | None:
    """What a task has received and sent where it has a network of its own; else its traffic cannot be told from the node's."""
    for pid in pids[1 : 1 + LOOKED_AT]:
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/{pid}/ns/net") != os.readlink("/proc/self/ns/net"):
                return network(str(pid))
    return None


def count(processes: dict[int, Process], pids: list[int], traffic: tuple[float, float]) -> Counters:
    """What a task has used since it began, with the traffic that is known."""
    read = written = 0.0
    for pid in pids:
        own = kernel.disk_bytes_of(pid)
        read, written = read + own[0], written + own[1]
    return (sum(processes[pid].seconds for pid in pids), read, written, *traffic)


def rates(before: Counters, after: Counters, seconds: float) -> list[float]:
    """By the second. A process that ended unseen takes its count with it, so a difference may be below zero."""
    return [round(max(0.0, after[which] - before[which]) / seconds, 3) for which in range(len(after))]


def memory_of(pids: list[int]) -> float:
    """Bytes of a task: what is each process's own, and once what they share."""
    own = shared = 0
    for pid in pids[1:] or pids:  # its supervisor is ours
        with contextlib.suppress(OSError, ValueError, IndexError):
            words = read_file(f"/proc/{pid}/statm").split()
            resident, common = int(words[1]), int(words[2])
            own += resident - common
            shared = max(shared, common)
    return float((own + shared) * PAGE)


def network(pid: str) -> tuple[float, float]:
    """Bytes received and sent by all interfaces that lead outside."""
    received = sent = 0
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in read_file(f"/proc/{pid}/net/dev").splitlines()[2:]:
            name, _, rest = line.partition(b":")
            words = rest.split()
            if name.strip() != b"lo":
                received += int(words[0])
                sent += int(words[8])
    return float(received), float(sent)


def node_seconds() -> float:
    """Seconds that all processors of the node were busy."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        words = read_file("/proc/stat").splitlines()[0].split()[1:]
        user, nice, system, _idle, _waiting, irq, softirq, steal = (int(word) for word in words[:8])
        return (user + nice + system + irq + softirq + steal) / TICKS
    return 0.0


def disk_bytes() -> tuple[float, float]:
    """Bytes that whole disks have read and written; parts of them, and what lies on others, would count twice."""
    read = written = 0
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in read_file("/proc/diskstats").splitlines():
            words = line.split()
            name = words[2].decode(errors="replace")
            if os.path.exists(f"/sys/block/{name}/device"):
                read += int(words[5]) * 512
                written += int(words[9]) * 512
    return float(read), float(written)


def node_memory() -> float:
    """Bytes that the node has given away and cannot take back."""
    with contextlib.suppress(OSError, ValueError):
        lines = read_file("/proc/meminfo").splitlines()
        known = {words[0]: int(words[1]) for words in (line.split() for line in lines) if len(words) > 1}
        return float(known[b"MemTotal:"] - known.get(b"MemAvailable:", known[b"MemFree:"])) * 1024
    return 0.0
