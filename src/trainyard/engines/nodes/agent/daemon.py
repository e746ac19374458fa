"""The agent: listens on a socket in the node's folder, takes orders of one server, tells it what becomes of them.

Everything that must not be lost is in files (folder.py): the agent may be killed at any line, and the next one goes on.
"""

from __future__ import annotations

import binascii
import contextlib
import fcntl
import gc
import os
import selectors
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

from trainyard.lib import process_tree

from . import kernel
from .log_sender import COALESCE_BYTES, COALESCE_SECONDS, LogSender
from .readings.disk_limit import DiskLimits
from .readings.sampler import Sampler
from .server_relay import SOCKET
from .tasks.broken_folders import notices
from .tasks.folder import CONTACT, boot_seconds, keep_reserve, silent_seconds, write_contact, write_in_place
from .tasks.task_list import Task, Tasks
from .wire import Frames, frame

LOCK = "agent.lock"
LOG = "agent.log"
LOG_BYTES = 1024 * 1024
EPOCH = "epoch"
SWEEP_SECONDS = 1.0
SWEEP_ALL_SECONDS = 10.0  # those who say themselves when something happens
POLL_SECONDS = 0.05  # where inotify has no watch left
IDLE_SECONDS = 600.0  # without a server and with nothing running: go
OUTPUT_ROOM = 2 * 1024 * 1024  # not more waits for the server to read
RECEIVE = 1024 * 1024
WORK_SECONDS = 0.02
DONE = object()
TOLD = ("started", "ended", "lasted", "code", "signal", "reason", "message")


class Client:
    """One connection to the socket."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self.socket = connection
        self.frames = Frames()
        self.output = bytearray()

    def send(self, header: dict[str, Any], payload: bytes = b"") -> None:
        """Queue a frame."""
        self.output += frame(header, payload)

    def flush(self) -> None:
        """Write what the socket takes. OSError where the other side has gone."""
        while self.output:
            try:
                sent = self.socket.send(self.output[:RECEIVE])
            except BlockingIOError:
                return
            del self.output[:sent]


class Agent:
    """One node's agent."""

    def __init__(self, mark: str, version: str) -> None:
        self.version = version
        self.selector = selectors.DefaultSelector()
        try:
            self.watcher: kernel.Inotify | None = kernel.Inotify()
        except OSError:  # the user has too many
            self.watcher = None
        self.shipper = LogSender(self.watcher)
        self.tasks = Tasks(mark, self._changed)
        self.sampler = Sampler()
        self.disk = DiskLimits(self.tasks)
        self.by_watch: dict[int, Task] = {}
        self.unwatched: set[Task] = set()
        self.to_tell: dict[Task, None] = {}
        self.to_do: deque[Iterator[None]] = deque()
        self.clients: dict[socket.socket, Client] = {}
        self.server: Client | None = None
        self.epoch = _load_epoch()
        self.is_epoch_noted = True
        self.fence = 0.0
        self.is_leaving = False
        self.last_contact = 0.0
        self.last_sweep = 0.0
        self.last_sweep_of_all = 0.0
        self.last_shipped = 0.0
        self.last_busy = time.monotonic()

    def run(self, listener: socket.socket) -> None:
        """Serve until told to go, or idle for long."""
        listener.setblocking(False)
        self.selector.register(listener, selectors.EVENT_READ, self._accept)
        self.selector.register(_wakes(), selectors.EVENT_READ, _drain)
        if self.watcher is not None:
            self.selector.register(self.watcher, selectors.EVENT_READ, self._watched)
        self.selector.register(self.tasks.supervisor_pool, selectors.EVENT_READ, self._stand_by)
        keep_reserve()
        self.tasks.load()
        gc.collect()
        gc.freeze()  # what is here now is shared with every child, and never touched by the collector again
        while not self.is_leaving and not self._is_idle():
            for key, mask in self.selector.select(self._timeout()):
                key.data(key.fileobj, mask)
            self._work()
            self.tasks.reap()
            self._sweep()
            self._tell()
            self._ship()
            self._sample()
            self._flush()

    def _timeout(self) -> float:
        now = time.monotonic()
        waits = [self.last_sweep + (POLL_SECONDS if self.unwatched else SWEEP_SECONDS) - now]
        if self.to_do or (self.to_tell and self.server is not None):
            waits.append(0.0)
        if self._can_ship():
            waits.append(self.last_shipped + COALESCE_SECONDS - now)
        if self.server is not None:
            waits.append(self.sampler.wait(now))
        return max(0.0, min(waits))

    def _is_idle(self) -> bool:
        if self.server is not None or not self.tasks.is_idle:
            self.last_busy = time.monotonic()
        return time.monotonic() - self.last_busy > IDLE_SECONDS

    def _accept(self, listener: socket.socket, _mask: int) -> None:
        with contextlib.suppress(OSError):
            client = Client(listener.accept()[0])
            self.clients[client.socket] = client
            self.selector.register(client.socket, selectors.EVENT_READ, self._serve)

    def _serve(self, connection: socket.socket, mask: int) -> None:
        client = self.clients.get(connection)
        if client is None:  # dropped in the same turn
            return
        try:
            if mask & selectors.EVENT_READ:
                data = connection.recv(RECEIVE)
                if not data:
                    raise ConnectionError
                for header, _ in client.frames.feed(data):
                    self._obey(client, header)
        except BlockingIOError:
            pass
        except (OSError, ValueError, KeyError, TypeError) as error:
            if not isinstance(error, ConnectionError):
                _complain(f"a connection is dropped: {error!r}\n")
            self._drop(client)

    def _drop(self, client: Client) -> None:
        if client is self.server:
            self.server = None
            self.sampler.stop()
        if self.clients.pop(client.socket, None) is not None:
            self.selector.unregister(client.socket)
            client.socket.close()

    def _flush(self) -> None:
        for client in list(self.clients.values()):
            try:
                client.flush()
            except OSError:
                self._drop(client)
                continue
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if client.output else 0)
            if self.selector.get_key(client.socket).events != wanted:
                self.selector.modify(client.socket, wanted, self._serve)

    def _obey(self, client: Client, order: dict[str, Any]) -> None:
        """Do what a frame says. Only the server whose `hello` was taken last is obeyed."""
        name = order["op"]
        if name == "hello":
            self._welcome(client, order)
            return
        if client is not self.server:
            return
        self._note_contact()
        if name == "launch":
            self.to_do.append(self._launching(client, order))
        elif name == "end":
            ended = {attempt: self.tasks.end(attempt, grace) for attempt, grace in order["attempts"]}
            client.send({"op": "answer", "id": order["id"], "results": ended})
        elif name == "forget":
            self.to_do.append(self._forgetting(client, order))
        elif name in ("want", "have"):
            self._move(order)
        elif name == "ping":
            client.send(
                {"op": "pong", "id": order["id"], "time": time.time(), **_condition(self.tasks.refusal)}
            )
        elif name in ("leave", "retire"):
            if name == "leave":
                write_contact(left=True)
            client.send({"op": "answer", "id": order["id"], "results": {}})
            self.is_leaving = not order.get("if_idle") or not self.tasks.by_key

    def _welcome(self, client: Client, order: dict[str, Any]) -> None:
        """Take a server: all that is known is told from the beginning."""
        if order["epoch"] < self.epoch:
            client.send({"op": "refused", "epoch": self.epoch})
            return
        if order["epoch"] > self.epoch:
            self.epoch = order["epoch"]
            self._write_epoch()
        if self.server is not None and self.server is not client:
            self._drop(self.server)
        self.server = client
        self.fence = float(order["fence"])
        self.disk.reserve_mib = int(order.get("disk_reserve_mib", 0))
        self.disk.poll()
        self.tasks.fence(silent_seconds())
        self.last_contact = 0.0
        self._note_contact()
        self.shipper.reset()
        self.sampler.configure(
            float(order.get("sample_seconds", 0.0)),
            order.get("devices_script", ""),
            order.get("profile_script", ""),
        )
        client.send(
            {
                "op": "welcome",
                "version": self.version,
                "boot": process_tree.boot_id(),
                "time": time.time(),
                "python": ".".join(map(str, sys.version_info[:3])),
                **_condition(self.tasks.refusal),
            }
        )
        for task in self.tasks.by_key.values():
            self.tasks.look(task)
            task.told = ""
        tasks = list(self.tasks.by_key.values())
        client.send({"op": "tasks", "all": True, "tasks": [self._report(task) for task in tasks]})
        self.to_tell.clear()

    def _write_epoch(self) -> None:
        """Note whom we follow. Where the disk has no room for it, it is tried again and again: a server must get through then, too."""
        try:
            write_in_place(EPOCH, b"%20d\n" % self.epoch)
        except OSError as error:
            self.is_epoch_noted = False
            _complain(f"the epoch cannot be noted: {error}\n")
        else:
            self.is_epoch_noted = True

    def _note_contact(self) -> None:
        """Let the supervisors know that a server was heard."""
        if time.monotonic() - self.last_contact >= (min(1.0, self.fence / 8) if self.fence else 1.0):
            self.last_contact = time.monotonic()
            try:
                write_contact()
            except (
                OSError
            ):  # one that is old only lets the fence fall early; one that is missing would keep it open
                if self.fence and not os.path.exists(CONTACT):
                    raise

    def _work(self) -> None:
        """Do what was ordered, for a moment: pings, logs and reports must not wait for hundreds of tasks."""
        until = time.monotonic() + WORK_SECONDS
        while self.to_do and time.monotonic() < until:
            if next(self.to_do[0], DONE) is DONE:
                self.to_do.popleft()

    def _launching(self, client: Client, order: dict[str, Any]) -> Iterator[None]:
        taken = {}
        for launch in order["launches"]:
            if client is not self.server:  # its successor will say what it wants
                return
            taken[launch["attempt"]] = self._launch(launch)
            yield
        client.send({"op": "answer", "id": order["id"], "results": taken})

    def _forgetting(self, client: Client, order: dict[str, Any]) -> Iterator[None]:
        for attempt in order["attempts"]:
            if client is not self.server:
                return
            self._forget(attempt)
            yield
        client.send({"op": "answer", "id": order["id"], "results": {}})

    def _launch(self, launch: dict[str, Any]) -> list[str] | None:
        refusal = self.tasks.launch(launch, self.fence)
        for task in self.tasks.by_attempt.get(launch["attempt"], {}).values():
            if self.shipper.open(task.folder).sent < 0 and not task.told:
                self.shipper.begin(task.folder, 0, is_new=True)
        return refusal

    def _forget(self, attempt: str) -> None:
        for task in self.tasks.forget(attempt):
            self.shipper.close(task.folder)
            self.by_watch.pop(task.watch, None)
            self.unwatched.discard(task)
            self.to_tell.pop(task, None)

    def _move(self, order: dict[str, Any]) -> None:
        """The server says from where it wants logs, or how far it has them."""
        act = self.shipper.begin if order["op"] == "want" else self.shipper.acknowledge
        for attempt, name, offset in order["parts"]:
            task = self.tasks.by_key.get((attempt, name))
            if task is not None:
                act(task.folder, offset)
                if task.is_cleared:
                    self.to_tell[task] = None

    def _changed(self, task: Task) -> None:
        """A task is new or has moved on."""
        self.to_tell[task] = None
        stream = self.shipper.open(task.folder)
        self.shipper.touch(stream)  # its log may be there now, and can be watched
        if task.is_cleared:
            stream.is_final = True
            self.unwatched.discard(task)
        elif task.watch < 0 and task not in self.unwatched:
            self._watch(task)

    def _watch(self, task: Task) -> None:
        try:
            if self.watcher is None:
                raise OSError
            task.watch = self.watcher.add(task.folder.file("state").encode(), once=False)
            self.by_watch[task.watch] = task
        except OSError:
            self.unwatched.add(task)
        if task.refresh():
            self.to_tell[task] = None

    def _watched(self, _file: object, _mask: int) -> None:
        if self.watcher is None:
            return
        for watch, mask in self.watcher.read():
            task = self.by_watch.get(watch)
            if mask & kernel.IN_Q_OVERFLOW:
                self.last_sweep = self.last_sweep_of_all = 0.0
            elif task is not None:
                self.tasks.look(task)
            elif not mask & kernel.IN_IGNORED:
                self.shipper.changed(watch)

    def _stand_by(self, _file: object, _mask: int) -> None:
        self.tasks.stand_by()

    def _sweep(self) -> None:
        now = time.monotonic()
        if now - self.last_sweep >= (POLL_SECONDS if self.unwatched else SWEEP_SECONDS):
            self.last_sweep = now
            is_all = now - self.last_sweep_of_all >= SWEEP_ALL_SECONDS
            if is_all:
                self.last_sweep_of_all = now
                keep_reserve()
                self.tasks.write_tombstones()
                if not self.is_epoch_noted:
                    self._write_epoch()
            for task in list(self.tasks.by_key.values()):
                if not task.is_cleared and (is_all or not self._is_heard_of(task)):
                    self.tasks.look(task)
            self.shipper.look_everywhere()
            self.tasks.supervisor_pool.dismiss()
            self.tasks.empty_trash()
            self.disk.poll()

    def _is_heard_of(self, task: Task) -> bool:
        """Whether we are told when its state changes, and when its supervisor dies: that is our child, and its file is watched."""
        return task.pid > 0 and task not in self.unwatched and task.history["at"] == "running"

    def _report(self, task: Task) -> dict[str, Any]:
        known = task.history
        at, stream = known["at"], self.shipper.open(task.folder)
        stream.is_final = task.is_cleared
        if task.is_cleared:
            is_through = stream.is_through
            at = ("unknown" if task.is_old else "cleared") if is_through else "ended"
            if task.is_old and not is_through:
                at = "old"
        task.told = at
        report: dict[str, Any] = {key: known[key] for key in TOLD if key in known}
        for mark in ("fenced", "told"):
            if known.get(mark):
                report[mark] = True
        if "since" in known and not task.is_old:  # by a clock that nobody sets
            report["ran"] = boot_seconds() - known["since"]
        if at in ("cleared", "unknown"):
            report["bytes"] = stream.acked
        if known.get("notes"):
            report["notes"] = known["notes"]
            task.told = f"{at} {len(known['notes'])}"
        return {
            "a": task.folder.attempt,
            "t": task.folder.name,
            "w": task.order["workload"],
            "n": task.order["number"],
            "at": at,
            **report,
        }

    def _tell(self) -> None:
        if self.server is None or not self.to_tell:
            return
        reports = []
        for task in self.to_tell:
            before = task.told
            report = self._report(task)
            if task.told != before:
                reports.append(report)
        self.to_tell.clear()
        if reports:
            self.server.send({"op": "tasks", "tasks": reports})

    def _can_ship(self) -> bool:
        return self.server is not None and self.shipper.has_work and len(self.server.output) < OUTPUT_ROOM

    def _ship(self) -> None:
        while self._can_ship() and time.monotonic() - self.last_shipped >= COALESCE_SECONDS:
            parts, payload, drained = self.shipper.collect()
            for stream in drained:
                task = self.tasks.by_key.get((stream.folder.attempt, stream.folder.name))
                if task is not None and task.is_cleared:
                    self.to_tell[task] = None
            if not parts:
                return
            if self.server is not None:
                self.server.send({"op": "logs", "parts": parts}, payload)
            if len(payload) < COALESCE_BYTES:
                self.last_shipped = time.monotonic()

    def _sample(self) -> None:
        """Tell the server what tasks use, where it keeps up with reading."""
        if self.server is None:
            return
        readings = self.sampler.poll(list(self.tasks.by_key.values()))
        if readings is not None and len(self.server.output) < OUTPUT_ROOM:
            self.server.send(readings)


def _load_epoch() -> int:
    try:
        with open(EPOCH, encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):
        return 0


def _condition(refusal: str) -> dict[str, Any]:
    """How the node is: free and total MiB where we live, and what its operator should know."""
    stat = os.statvfs(".")
    disk = [stat.f_bavail * stat.f_frsize >> 20, stat.f_blocks * stat.f_frsize >> 20]
    return {"disk": disk, "notices": notices(), "refusal": refusal}


def _wakes() -> socket.socket:
    reader, writer = socket.socketpair()
    reader.setblocking(False)
    writer.setblocking(False)
    signal.set_wakeup_fd(writer.detach(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    return reader


def _complain(text: str) -> None:
    """Into agent.log, where there is room for it."""
    with contextlib.suppress(OSError):
        sys.stderr.write(text)
        sys.stderr.flush()


def _drain(reader: socket.socket, _mask: int) -> None:
    with contextlib.suppress(BlockingIOError):
        while reader.recv(4096):
            pass


def start_daemon(mark: str, version: str) -> None:
    """Fork the agent away from whoever started us; returns in the one who called."""
    sys.stderr.flush()
    first = os.fork()
    if first:
        os.waitpid(first, 0)
        return
    try:
        os.setsid()
        if os.fork() == 0:
            _be_daemon(mark, version)
    finally:
        os._exit(0)


def _be_daemon(mark: str, version: str) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    if os.path.exists(LOG) and os.path.getsize(LOG) > LOG_BYTES:
        os.rename(LOG, f"{LOG}.old")
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 0)
    try:
        os.dup2(os.open(LOG, flags, 0o600), 1)
    except OSError:  # the disk has no room for one more file: the agent starts without a log
        os.dup2(null, 1)
    os.dup2(1, 2)
    os.closerange(3, 256)
    lock = os.open(LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:  # there is one
        return
    for name in os.listdir("."):
        if name.startswith("agent-") and name.endswith(".pyz") and version not in name:
            os.unlink(name)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(SOCKET)
    listener.bind(SOCKET)
    listener.listen(16)
    # Two nodes of one platform may live in two folders of one machine, and must not take each other's tasks for strays.
    agent = Agent(f"{mark}@{binascii.crc32(os.getcwdb()):08x}", version)
    try:
        agent.run(listener)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        raise
    finally:
        with contextlib.suppress(OSError):
            sys.stderr.flush()
        with contextlib.suppress(OSError):
            os.unlink(SOCKET)
