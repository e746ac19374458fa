"""What tasks and the node use, looked at now and then in /proc; devices are asked through a shell script of the server's.

Nothing is installed for it and nobody waits for it: a driver that hangs is killed, and its readings are left out.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import Any

from . import kernel
from .supervisor import MARK
from .tasks import Task

TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
MIB = 1 << 20
DRIVER_SECONDS = 8.0
MOST_OUTPUT = 1 << 20
LOOKED_AT = 8  # processes of a task whose network is compared with the node's: its program is among the first
DRIVERS = ("nvidia-smi", "npu-smi")
# Where drivers are, beside what the node's own PATH says.
PLACES = ("/usr/local/bin", "/usr/local/sbin", "/usr/bin", "/usr/sbin", "/bin", "/sbin")

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
        self._script = ""
        self._next = 0.0
        self._driver: Driver | None = None
        self._before: dict[tuple[str, str], tuple[Counters, bool]] = {}
        self._node_before: Counters | None = None
        self._taken = 0.0

    def configure(self, seconds: float, script: str) -> None:
        """How often, and how devices are asked."""
        self.seconds, self._script = seconds, script
        self._next = time.monotonic() + seconds

    def wait(self, now: float) -> float:
        """Seconds until `poll` has something to do."""
        if not self.seconds:
            return 3600.0
        return 0.1 if self._driver is not None else max(0.0, self._next - now)

    def poll(self, tasks: list[Task]) -> dict[str, Any] | None:
        """A frame with readings where they are complete, else None. Never blocks."""
        now = time.monotonic()
        if not self.seconds:
            return None
        if self._driver is None:
            if now < self._next:
                return None
            self._next = now + self.seconds
            self._driver = Driver(self._script) if self._script and has_driver() else None
            if self._driver is not None:
                return None
            return self._read(tasks, "")
        if not self._driver.is_done():
            return None
        text, self._driver = self._driver.text(), None
        return self._read(tasks, text)

    def stop(self) -> None:
        """Let go of a driver that is being asked."""
        self.seconds = 0.0
        if self._driver is not None:
            self._driver.kill()
            self._driver = None

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
                began = float(task.history.get("started", 0.0))
                old, length = (0.0, 0.0, 0.0, use[3], use[4]), max(time.time() - began, 0.001)
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


class Driver:
    """A shell that asks the drivers, and what it has said so far."""

    def __init__(self, script: str) -> None:
        reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        os.set_blocking(writer, True)
        null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        env = {**os.environ, "PATH": search_path(), "LC_ALL": "C"}
        actions = [
            (os.POSIX_SPAWN_DUP2, null, 0),
            (os.POSIX_SPAWN_DUP2, writer, 1),
            (os.POSIX_SPAWN_DUP2, null, 2),
        ]
        try:
            self._pid = os.posix_spawn(
                "/bin/sh", ["sh", "-c", script], env, file_actions=actions, setpgroup=0
            )
        finally:
            os.close(writer)
            os.close(null)
        self._reader = reader
        self._output = b""
        self._deadline = time.monotonic() + DRIVER_SECONDS

    def is_done(self) -> bool:
        """Whether all is said, or it took too long."""
        while len(self._output) < MOST_OUTPUT:
            try:
                piece = os.read(self._reader, 65536)
            except BlockingIOError:
                if time.monotonic() < self._deadline:
                    return False
                self._output = b""
                break
            if not piece:
                break
            self._output += piece
        self.kill()
        return True

    def text(self) -> str:
        """What it has said."""
        return self._output.decode(errors="replace")

    def kill(self) -> None:
        """End it, and whom it asks. The agent's own loop takes leave of it."""
        if self._reader >= 0:
            os.close(self._reader)
            self._reader = -1
            with contextlib.suppress(OSError):
                os.killpg(self._pid, signal.SIGKILL)


def search_path() -> str:
    """Where programs of the node are looked for."""
    return ":".join([os.environ.get("PATH", ""), *PLACES])


def has_driver() -> bool:
    """Whether there is anything to ask for devices."""
    folders = search_path().split(":")
    return any(os.access(f"{folder}/{name}", os.X_OK) for folder in folders if folder for name in DRIVERS)


def all_processes() -> dict[int, Process]:
    """Every process with its children."""
    found: dict[int, Process] = {}
    parents: dict[int, int] = {}
    for pid in kernel.all_pids():
        fields = kernel.stat_fields(pid)
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
        if task.history["at"] == "running" and root in processes:
            found.append((task, descendants(processes, root)))
    if any((task.order.get("view") or {}).get("image") for task, _ in found):
        # What runs in a container of docker's is below its service, and not below us.
        below = {pid for _, pids in found for pid in pids}
        elsewhere: dict[str, list[int]] = {}
        for pid in sorted(processes.keys() - below):
            mark = kernel.mark_of_process(pid, MARK.encode())
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
        with contextlib.suppress(OSError, ValueError, IndexError):
            words = kernel.read_file(f"/proc/{pid}/io").split()
            read += int(words[words.index(b"read_bytes:") + 1])
            written += int(words[words.index(b"write_bytes:") + 1])
    return (sum(processes[pid].seconds for pid in pids), read, written, *traffic)


def rates(before: Counters, after: Counters, seconds: float) -> list[float]:
    """By the second. A process that ended unseen takes its count with it, so a difference may be below zero."""
    return [round(max(0.0, after[which] - before[which]) / seconds, 3) for which in range(len(after))]


def memory_of(pids: list[int]) -> float:
    """Bytes of a task: what is each process's own, and once what they share."""
    own = shared = 0
    for pid in pids[1:] or pids:  # its supervisor is ours
        with contextlib.suppress(OSError, ValueError, IndexError):
            words = kernel.read_file(f"/proc/{pid}/statm").split()
            resident, common = int(words[1]), int(words[2])
            own += resident - common
            shared = max(shared, common)
    return float((own + shared) * PAGE)


def network(pid: str) -> tuple[float, float]:
    """Bytes received and sent by all interfaces that lead outside."""
    received = sent = 0
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in kernel.read_file(f"/proc/{pid}/net/dev").splitlines()[2:]:
            name, _, rest = line.partition(b":")
            words = rest.split()
            if name.strip() != b"lo":
                received += int(words[0])
                sent += int(words[8])
    return float(received), float(sent)


def node_seconds() -> float:
    """Seconds that all processors of the node were busy."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        words = kernel.read_file("/proc/stat").splitlines()[0].split()[1:]
        user, nice, system, _idle, _waiting, irq, softirq, steal = (int(word) for word in words[:8])
        return (user + nice + system + irq + softirq + steal) / TICKS
    return 0.0


def disk_bytes() -> tuple[float, float]:
    """Bytes that whole disks have read and written; parts of them, and what lies on others, would count twice."""
    read = written = 0
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in kernel.read_file("/proc/diskstats").splitlines():
            words = line.split()
            name = words[2].decode(errors="replace")
            if os.path.exists(f"/sys/block/{name}/device"):
                read += int(words[5]) * 512
                written += int(words[9]) * 512
    return float(read), float(written)


def node_memory() -> float:
    """Bytes that the node has given away and cannot take back."""
    with contextlib.suppress(OSError, ValueError):
        lines = kernel.read_file("/proc/meminfo").splitlines()
        known = {words[0]: int(words[1]) for words in (line.split() for line in lines) if len(words) > 1}
        return float(known[b"MemTotal:"] - known.get(b"MemAvailable:", known[b"MemFree:"])) * 1024
    return 0.0
