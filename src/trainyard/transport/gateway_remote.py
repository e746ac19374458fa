"""The remote end of `gateway.py`: does one operation on a node, beside a task. Sent as text to the node's own python3.

Python 3.8, the standard library, nothing of ours. The first line of standard input says what to do, as JSON; frames follow
both ways: a letter, a length of four bytes, a payload. What may be sent and not yet taken is bounded on both sides
(`WINDOW`), so nobody ever stops reading, and the end of the link is noticed at once.

    in   i input   e end of input   a so many bytes of output were taken   r size of the terminal   t end it
    out  S begun   o output   O end of output   x errors   a so many bytes of input were taken   X status   E the end
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import pty
import select
import signal
import socket
import struct
import subprocess
import termios
import time
from typing import Any

MAGIC = b"\1trainyard-1\n"
PIECE = 65536
WINDOW = 4 * 1024 * 1024  # the most output that may be sent before the client has taken it
GRACE_SECONDS = 1.0
LOST_GRACE_SECONDS = 0.5  # after a lost connection, when this process may itself be killed within a second
LINGER_SECONDS = 10.0  # the time for the client to close the connection after the end
LONGEST_ARGUMENT = 120_000
CONNECT_SECONDS = 10.0
LONGEST_SOCKET_FOLDER = 70  # what tmux adds must fit into the 108 bytes of a socket's address
BACKLOG = 262_144
CALLS = (int(signal.SIGTERM), int(signal.SIGHUP))
FULL_PIPE_READS = 32


class Wire:
    """Frames to the client."""

    def __init__(self) -> None:
        self.buffer = bytearray(MAGIC)
        self.input = bytearray()
        self.is_lost = False
        self.wakes, writer = os.pipe()
        for number in (0, 1, self.wakes, writer):
            os.set_blocking(number, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, *CALLS):
            signal.signal(number, lambda *_: None)

    def hear(self) -> None:
        """Note a signal that ends this process: the node's agent closes the connection by one."""
        with contextlib.suppress(BlockingIOError):
            if set(os.read(self.wakes, 4096)) & set(CALLS):
                self.is_lost = True

    def send(self, kind: bytes, payload: bytes = b"") -> None:
        """Queue one frame for the next write."""
        self.buffer += kind + struct.pack(">I", len(payload)) + payload

    def say(self, kind: bytes, **words: Any) -> None:
        """Queue one frame of JSON."""
        self.send(kind, json.dumps(words).encode())

    def flush(self) -> None:
        """Write as much as possible without waiting."""
        try:
            while self.buffer:
                del self.buffer[: os.write(1, memoryview(bytes(self.buffer[:PIECE])))]
        except BlockingIOError:
            pass
        except OSError:
            self.is_lost = True

    def read(self) -> None:
        """Read the bytes that have come."""
        try:
            data = os.read(0, PIECE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.is_lost = True
        self.input += data

    def line(self) -> bytes:
        """Return the first line; b'' if the client has gone before it came."""
        while b"\n" not in self.input and not self.is_lost:
            select.select([0], [], [])
            self.read()
        line, _, rest = bytes(self.input).partition(b"\n")
        self.input = bytearray(rest)
        return line if not self.is_lost or rest else b""

    def frames(self) -> list[tuple[bytes, bytes]]:
        """Whole frames that have come."""
        found, start = [], 0
        while len(self.input) - start >= 5:
            (size,) = struct.unpack_from(">I", self.input, start + 1)
            if len(self.input) - start < 5 + size:
                break
            found.append(
                (bytes(self.input[start : start + 1]), bytes(self.input[start + 5 : start + 5 + size]))
            )
            start += 5 + size
        del self.input[:start]
        return found

    def hang_up(self) -> None:
        """Send the rest and wait a little until the client has gone, so that its last writes do not fail."""
        deadline = time.monotonic() + LINGER_SECONDS
        for number in CALLS:
            signal.signal(number, signal.SIG_DFL)
        while not self.is_lost and time.monotonic() < deadline:
            select.select([0], [1] if self.buffer else [], [], 0.5)
            self.flush()
            self.read()
            self.input.clear()


class RemoteCommand:
    """Bytes between the client and something on the node."""

    source = target = errors = -1  # descriptors
    is_terminal = False

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.unsent = bytearray()  # input for the target
        self.taken = 0  # bytes of input that were passed on since the last report
        self.is_input_over = False
        self.room = WINDOW

    def serve(self) -> None:
        """Pass bytes in both directions until the operation is over."""
        while not self.is_over():
            readers = [0]
            if self.room > 0 and len(self.wire.buffer) < BACKLOG:
                readers += [each for each in (self.source, self.errors) if each >= 0]
            writers = [1] if self.wire.buffer else []
            if self.unsent and self.target >= 0:
                writers.append(self.target)
            ready, free, _ = select.select([*readers, self.wire.wakes], writers, [], self.timeout())
            if 0 in ready:
                self.wire.read()
                for kind, payload in self.wire.frames():
                    self.take(kind, payload)
            for each in (self.source, self.errors):
                if each >= 0 and each in ready:
                    self.pump(each)
            if self.target >= 0 and self.target in free:
                self.feed()
            if self.wire.wakes in ready:
                self.wire.hear()
            self.look()
            self.wire.flush()
            if self.wire.is_lost:
                self.lost()
                return

    def take(self, kind: bytes, payload: bytes) -> None:
        """One frame from the client."""
        if kind == b"i":
            if self.target < 0:
                self.wire.send(b"a", struct.pack(">I", len(payload)))
            else:
                self.unsent += payload
        elif kind == b"e":
            self.is_input_over = True
            if not self.unsent:
                self.end_input()
        elif kind == b"a":
            self.room += struct.unpack(">I", payload)[0]

    def feed(self) -> None:
        """Pass input on."""
        try:
            count = os.write(self.target, bytes(self.unsent[:PIECE]))
        except BlockingIOError:
            return
        except OSError:  # it reads no more
            count = len(self.unsent)
            self.is_input_over = True
        del self.unsent[:count]
        self.wire.send(b"a", struct.pack(">I", count))
        if self.is_input_over and not self.unsent:
            self.end_input()

    def pump(self, descriptor: int) -> bool:
        """Pass output on. Returns False if there was none."""
        try:
            data = os.read(descriptor, PIECE)
        except BlockingIOError:
            return False
        except OSError:  # EIO: nobody holds the other side of the terminal
            data = b""
        if data:
            self.room -= len(data)
            self.wire.send(b"x" if descriptor == self.errors else b"o", data)
        else:
            self.end_output(descriptor)
        return bool(data)

    def end_output(self, descriptor: int) -> None:
        """No more output will come."""
        if descriptor == self.errors:
            os.close(self.errors)
            self.errors = -1
            return
        if descriptor != self.target:
            os.close(descriptor)
        self.source = -1
        self.wire.send(b"O")

    def end_input(self) -> None:
        """No more input will come."""
        raise NotImplementedError

    def is_over(self) -> bool:
        """Return whether the operation is over."""
        raise NotImplementedError

    def timeout(self) -> float | None:
        """How long to sleep at most."""
        return None

    def look(self) -> None:
        """Check for changes that are not input or output."""

    def lost(self) -> None:
        """The client has gone."""


class Command(RemoteCommand):
    """A running script and its sh."""

    def __init__(self, wire: Wire, wanted: dict[str, Any]) -> None:
        super().__init__(wire)
        self.waits_for_output = bool(wanted["waits_for_output"])
        self.deadline: float | None = None
        self.status: int | None = None
        size = wanted["terminal"]
        self.is_terminal = size is not None
        words, kept = _words(wanted["script"])
        if self.is_terminal:
            os.environ.setdefault("TERM", "xterm-256color")
            self.pid, self.source = _on_terminal(words, size, kept)
            self.target = self.source
        else:
            child = subprocess.Popen(
                words, stdin=-1, stdout=-1, stderr=-1, start_new_session=True, pass_fds=kept
            )
            child.returncode = 0  # reaped by ourselves
            self.pid = child.pid
            self.target, self.source, self.errors = (
                os.dup(each.fileno()) for each in (child.stdin, child.stdout, child.stderr) if each
            )
            for each in (child.stdin, child.stdout, child.stderr):
                if each:
                    each.close()
        for descriptor in kept:
            os.close(descriptor)
        for descriptor in {self.source, self.target, self.errors} - {-1}:
            os.set_blocking(descriptor, False)
        wire.say(b"S")

    def take(self, kind: bytes, payload: bytes) -> None:
        """Handle two more kinds of frames."""
        if kind == b"t":
            self.end_it(GRACE_SECONDS)
        elif kind == b"r" and self.is_terminal and self.source >= 0:
            fcntl.ioctl(self.source, termios.TIOCSWINSZ, payload + b"\0\0\0\0")
        else:
            super().take(kind, payload)

    def end_input(self) -> None:
        """Close it; on a terminal, type Ctrl-D."""
        if self.target < 0:
            return
        if self.is_terminal:
            with contextlib.suppress(OSError):
                os.write(self.target, b"\4")
            return
        os.close(self.target)
        self.target = -1

    def is_over(self) -> bool:
        """Return whether the command has ended, and its output too if the client waits for that."""
        return self.status is not None and (not self.waits_for_output or self.source < 0)

    def timeout(self) -> float | None:
        """Return the time until the next step of ending the command."""
        return None if self.deadline is None else max(0.0, self.deadline - time.monotonic())

    def look(self) -> None:
        """Check whether the command has ended or must be killed."""
        self.reap()
        if self.deadline is not None and time.monotonic() >= self.deadline:
            self.deadline = None
            self.signal(signal.SIGKILL)

    def reap(self) -> None:
        """Note the command's exit status."""
        if self.status is not None:
            return
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if not pid:
            return
        # The output of the command and of the children it waited for is in the pipes by now.
        for descriptor in (self.source, self.errors):
            for _ in range(FULL_PIPE_READS):
                if (
                    descriptor < 0
                    or descriptor not in (self.source, self.errors)
                    or not self.pump(descriptor)
                ):
                    break
        self.status = 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        self.deadline = None
        self.wire.say(b"X", status=self.status)

    def end_it(self, grace: float) -> None:
        """Send SIGTERM to the command's group, and SIGKILL after the grace period."""
        if self.status is None:
            self.signal(signal.SIGTERM)
            if self.is_terminal:
                self.signal(signal.SIGHUP)
            if self.deadline is None:
                self.deadline = time.monotonic() + grace

    def signal(self, number: int) -> None:
        """Send a signal to the whole group."""
        if self.status is None:
            with contextlib.suppress(OSError):
                os.killpg(self.pid, number)

    def lost(self) -> None:
        """End it."""
        self.end_it(LOST_GRACE_SECONDS)
        deadline = time.monotonic() + LOST_GRACE_SECONDS
        while self.status is None and time.monotonic() < deadline:
            time.sleep(0.005)
            self.reap()
        self.signal(signal.SIGKILL)


class Connected(RemoteCommand):
    """A port on the node's loopback."""

    def __init__(self, wire: Wire, wanted: dict[str, Any]) -> None:
        super().__init__(wire)
        self.socket = _connect(int(wanted["port"]))
        self.socket.setblocking(False)
        self.source = self.target = self.socket.fileno()
        wire.say(b"S")

    def end_input(self) -> None:
        """Say that nothing more comes."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_WR)
        if self.source < 0:
            self.target = -1

    def end_output(self, descriptor: int) -> None:
        """The other side says nothing more."""
        super().end_output(descriptor)
        if self.is_input_over and not self.unsent:
            self.target = -1

    def is_over(self) -> bool:
        """When both ways have ended."""
        return self.source < 0 and self.target < 0


class Put(RemoteCommand):
    """A file from the client: complete or not there."""

    def __init__(self, wire: Wire, wanted: dict[str, Any]) -> None:
        super().__init__(wire)
        self.path, self.mode = wanted["path"], wanted["mode"]
        if os.path.isdir(self.path):
            raise IsADirectoryError(errno.EISDIR, "it is a folder", self.path)
        folder = os.path.dirname(self.path) or "."
        self.temporary = os.path.join(folder, f".trainyard-{os.getpid()}-{time.time_ns():x}")
        try:
            self.handle = os.open(self.temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise type(error)(error.errno, error.strerror, folder) from error
        self.is_done = False
        wire.say(b"S")

    def take(self, kind: bytes, payload: bytes) -> None:
        """Write it at once."""
        if kind == b"i":
            rest = memoryview(payload)
            while rest:
                rest = rest[os.write(self.handle, rest) :]
            self.wire.send(b"a", struct.pack(">I", len(payload)))
        elif kind == b"e":
            os.fchmod(self.handle, self.mode)
            os.close(self.handle)
            os.replace(self.temporary, self.path)
            self.is_done = True

    def is_over(self) -> bool:
        """When all is there."""
        return self.is_done

    def lost(self) -> None:
        """Leave nothing behind."""
        if not self.is_done:
            with contextlib.suppress(OSError):
                os.unlink(self.temporary)


class Get(RemoteCommand):
    """A file to the client."""

    def __init__(self, wire: Wire, wanted: dict[str, Any]) -> None:
        super().__init__(wire)
        self.source = os.open(wanted["path"], os.O_RDONLY | os.O_NONBLOCK)
        if os.path.isdir(wanted["path"]):
            raise IsADirectoryError(errno.EISDIR, "it is a folder", wanted["path"])
        wire.say(b"S", mode=os.fstat(self.source).st_mode & 0o7777)

    def end_input(self) -> None:
        """There is none."""

    def is_over(self) -> bool:
        """When all is sent."""
        return self.source < 0


OPERATIONS = {"run": Command, "connect": Connected, "put": Put, "get": Get}


def _words(script: str) -> tuple[list[str], tuple[int, ...]]:
    """Return the command that runs a script, and the descriptors it needs.

    A script that is too long for an argument is read from a file in memory.
    """
    data = os.fsencode(script)
    if len(data) <= LONGEST_ARGUMENT:
        return ["/bin/sh", "-c", script], ()
    handle = os.memfd_create("script")
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(handle, rest) :]
    os.lseek(handle, 0, os.SEEK_SET)
    return ["/bin/sh", "-c", f". /proc/self/fd/{handle}"], (handle,)


def _on_terminal(words: list[str], size: list[int], kept: tuple[int, ...]) -> tuple[int, int]:
    pid, terminal = pty.fork()
    if pid == 0:
        try:
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
            for number in (signal.SIGCHLD, *CALLS, signal.SIGPIPE):
                signal.signal(number, signal.SIG_DFL)
            for each in kept:
                os.set_inheritable(each, True)
            os.execv(words[0], words)  # noqa: S606  # it is a shell
        finally:
            os._exit(126)
    return pid, terminal


def _connect(port: int) -> socket.socket:
    failure: OSError | None = None
    for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        try:
            connection = socket.socket(family, socket.SOCK_STREAM)
            connection.settimeout(CONNECT_SECONDS)
            connection.connect((address, port))
        except OSError as error:
            failure = failure or error
        else:
            return connection
    raise failure or OSError(errno.ECONNREFUSED, "nobody listens")


def _enter(place: str, env: dict[str, str], address: str) -> None:
    """Set up this process as one of the machine: its home, its variables, its own tmux."""
    folder = os.path.join(os.path.expanduser("~"), place)
    home = os.path.join(folder, "home")
    os.makedirs(home, mode=0o700, exist_ok=True)
    sockets = os.path.join(folder, "tmux")
    if len(os.fsencode(sockets)) > LONGEST_SOCKET_FOLDER:
        digest = hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]
        sockets = f"/tmp/trainyard-{os.getuid()}-{digest}"  # its owner is checked below
    with contextlib.suppress(FileExistsError):
        os.mkdir(sockets, 0o700)
    if os.lstat(sockets).st_uid != os.getuid():
        raise PermissionError(errno.EACCES, "it is somebody else's", sockets)
    with contextlib.suppress(OSError), open(os.path.join(folder, "sockets"), "x") as note:
        note.write(f"{sockets}\n")  # lets the clean-up find the folder
    for name in ("PWD", "OLDPWD", "TMUX", "TMUX_PANE", "_", "SHLVL"):
        os.environ.pop(name, None)
    os.environ.update(HOME=home, TMUX_TMPDIR=sockets, PYTHONUNBUFFERED="1", TRAINYARD_ADDRESS=address)
    os.environ.update(env)
    os.chdir(home)


def main() -> None:
    """Do one operation."""
    wire = Wire()
    wire.flush()
    line = wire.line()
    if not line:
        return
    wanted = json.loads(line)
    operation: RemoteCommand | None = None
    try:
        _enter(wanted["place"], wanted["env"], wanted["address"])
        operation = OPERATIONS[wanted["verb"]](wire, wanted)
        for kind, payload in wire.frames():
            operation.take(kind, payload)
        operation.serve()
        wire.say(b"E")
    except OSError as error:
        if isinstance(operation, Put):
            operation.lost()
        path = os.fsdecode(error.filename) if error.filename else ""
        wire.say(b"E", error=error.strerror or str(error), errno=error.errno, path=path)
    wire.flush()
    if not wire.is_lost:
        wire.hang_up()


if __name__ == "__main__":
    main()
