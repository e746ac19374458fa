"""The one who keeps the gate of an attempt: it hears who comes, sends strangers away, and lets all begin when all have come.

Whoever has not proved itself yet costs a descriptor and a few thousand bytes, for a few seconds. There is room for a
certain number of these; who comes when there is none takes the place of the oldest of the address that has most. So a
stranger crowds out itself, and where it shares the address with tasks, those come again.
"""

from __future__ import annotations

import errno
import resource
import select
import socket
import struct
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from . import barrier_proof as proofs

if TYPE_CHECKING:
    from .barrier_proof import Ports

PROVE_SECONDS = 5.0  # for one who has connected to prove who it is
ANSWER_SECONDS = 5.0  # for one who has proved it to take the answer
MOST_UNPROVED = 1024
LEAST_UNPROVED = 32
OTHER_DESCRIPTORS = 64
BACKLOG = 4096
AT_ONCE = 64  # who are let in before those that are in are heard
AGAIN_SECONDS = 0.5
TURN_SECONDS = 1.0
_CREDENTIALS = struct.Struct("iII")  # of a peer: its process, user and group


class MissingError(Exception):
    """Not all have come in time."""

    def __init__(self, missing: list[str], why: str = "") -> None:
        super().__init__(missing)
        self.missing = missing
        self.why = why


class UnprovedConnection:
    """One who has connected and has not proved that it is a task of the attempt."""

    def __init__(self, connection: socket.socket, door: str) -> None:
        self.connection = connection
        self.door = door
        self.peer = _peer_of(connection)
        self.born = time.monotonic()
        self.said = bytearray()
        self.session: proofs.Session | None = None  # since it has been told who we are


class BarrierKeeper:
    """The gate of one attempt."""

    def __init__(self, entry: dict[str, Any], known: Ports, until: float) -> None:
        self._entry = entry
        self._known = known
        self._until = until
        self._wanted = set(entry["meets"])
        self._doors: dict[int, tuple[str, socket.socket]] = {}  # by descriptor, as all of these
        self._unproved: dict[int, UnprovedConnection] = {}  # who came first is first
        self._arrived: dict[str, tuple[socket.socket, proofs.Session]] = {}  # by the task's name
        self._names: dict[int, str] = {}
        self._poll = select.poll()  # select() has no room for a thousand
        self._most_unproved = MOST_UNPROVED

    def keep(self) -> Ports:
        """Wait until all have come, and let them begin; the ports of all. MissingError names those who have not."""
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        try:
            self._make_room(*limits)
            self._open()
            while self._wanted - self._arrived.keys():
                self._turn()
            self._let_begin()
        finally:
            self._close()
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)  # the command has what it would have had
        return self._known

    def _make_room(self, soft: int, hard: int) -> None:
        """Have descriptors for all who belong here and for some strangers."""
        others = len(self._wanted) + OTHER_DESCRIPTORS
        infinite = resource.RLIM_INFINITY
        if soft != infinite and soft < others + MOST_UNPROVED:
            soft = others + MOST_UNPROVED if hard == infinite else min(hard, others + MOST_UNPROVED)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            self._most_unproved = max(LEAST_UNPROVED, min(MOST_UNPROVED, soft - others))

    # -- doors

    def _open(self) -> None:
        while True:
            why = self._open_port()
            if self._entry["barrier_address"]:  # all are on this machine
                self._open_local()
            if self._doors:
                return
            if time.monotonic() > self._until:
                ports = ", ".join(map(str, self._entry["barrier_ports"]))
                raise MissingError(sorted(self._wanted), f" (ports {ports}: {why})")
            time.sleep(AGAIN_SECONDS)

    def _open_port(self) -> str | None:
        why: str | None = None
        for port in self._entry["barrier_ports"]:
            listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind((self._entry["barrier_address"], port))
                listener.listen(BACKLOG)
            except OSError as error:  # somebody else has it
                listener.close()
                why = error.strerror
            else:
                self._add_door(str(port), listener)
                return None
        return why

    def _open_local(self) -> None:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(proofs.local_name(self._entry["token"]))
            listener.listen(BACKLOG)
        except OSError:  # where a port is open, that will do
            listener.close()
        else:
            self._add_door(proofs.LOCAL, listener)

    def _add_door(self, name: str, listener: socket.socket) -> None:
        listener.setblocking(False)
        self._doors[listener.fileno()] = (name, listener)
        self._poll.register(listener, select.POLLIN)

    # -- who comes

    def _turn(self) -> None:
        """Hear everybody who has something to say."""
        left = self._until - time.monotonic()
        if left <= 0:
            raise MissingError(sorted(self._wanted - self._arrived.keys()))
        for number, _ in self._poll.poll(min(left, TURN_SECONDS) * 1000):
            if number in self._doors:
                self._let_in(*self._doors[number])
            elif number in self._unproved:
                self._hear(self._unproved[number])
            elif number in self._names:
                self._part(self._names[number])
        late = time.monotonic() - PROVE_SECONDS
        for one in [one for one in self._unproved.values() if one.born < late]:
            self._dismiss(one)

    def _let_in(self, door: str, listener: socket.socket) -> None:
        for _ in range(AT_ONCE):
            if len(self._unproved) >= self._most_unproved:
                self._dismiss_one()
            try:
                connection, _ = listener.accept()
            except OSError as error:  # nobody is left, or it has gone meanwhile
                if error.errno in (errno.EMFILE, errno.ENFILE) and self._unproved:
                    self._dismiss_one()
                return
            connection.setblocking(False)
            self._unproved[connection.fileno()] = UnprovedConnection(connection, door)
            self._poll.register(connection, select.POLLIN)

    def _dismiss_one(self) -> None:
        most, _ = Counter(one.peer for one in self._unproved.values()).most_common(1)[0]
        self._dismiss(next(one for one in self._unproved.values() if one.peer == most))

    def _dismiss(self, one: UnprovedConnection) -> None:
        self._forget(one)
        one.connection.close()

    def _forget(self, one: UnprovedConnection) -> None:
        del self._unproved[one.connection.fileno()]
        self._poll.unregister(one.connection)

    def _hear(self, one: UnprovedConnection) -> None:
        try:
            wanted = self._wanted_of(one)
            data = one.connection.recv(wanted - len(one.said))
            one.said += data
            if not data:
                self._dismiss(one)
            elif one.session is None and len(one.said) == proofs.GREETING:
                self._challenge(one)
            elif one.session is not None and len(one.said) == self._wanted_of(one):
                self._admit(one, one.session)
        except BlockingIOError:
            return
        except (OSError, ValueError):  # it has gone, or it is none of ours
            self._dismiss(one)

    def _wanted_of(self, one: UnprovedConnection) -> int:
        """How many bytes it has to say in all before it is answered, as far as is known."""
        if one.session is None:
            return proofs.GREETING
        return proofs.frame_size(bytes(one.said[: proofs.HEAD]), proofs.LONGEST_REPORT) or proofs.HEAD

    def _challenge(self, one: UnprovedConnection) -> None:
        """Prove to it that this is the gate, before it says anything of itself."""
        if not one.said.startswith(proofs.VERSION):
            raise ValueError("a stranger")
        own = proofs.nonce()
        theirs = bytes(one.said[len(proofs.VERSION) :])
        one.session = proofs.Session(self._entry["token"], self._entry["attempt"], one.door, theirs, own)
        one.said.clear()
        one.connection.send(proofs.VERSION + own + one.session.challenge(), proofs.QUIETLY)

    def _admit(self, one: UnprovedConnection, session: proofs.Session) -> None:
        """Take in who has proved that it is a task we wait for. ValueError where it has not."""
        body, proof = proofs.unframed(bytes(one.said))
        if not proofs.is_same(proof, session.report(body)):
            raise ValueError("a stranger")
        [(name, ports)] = proofs.unpacked(body).items()
        if name not in self._wanted:
            raise ValueError("a task that does not report here")
        before = self._arrived.pop(name, None)  # it was cut off, and has come again
        if before is not None:
            self._let_go(before[0])
        del self._unproved[one.connection.fileno()]
        self._arrived[name] = (one.connection, session)
        self._names[one.connection.fileno()] = name
        self._known[name] = ports

    def _let_go(self, connection: socket.socket) -> None:
        del self._names[connection.fileno()]
        self._poll.unregister(connection)
        connection.close()

    def _part(self, name: str) -> None:
        """One that had come is gone again, or says what it should not."""
        connection = self._arrived[name][0]
        try:
            connection.recv(1)
        except BlockingIOError:
            return
        except OSError:
            pass
        del self._arrived[name], self._known[name]
        self._let_go(connection)

    # -- the end

    def _let_begin(self) -> None:
        body = proofs.packed(self._known)
        for name, (connection, session) in self._arrived.items():
            connection.settimeout(ANSWER_SECONDS)
            try:
                connection.sendall(proofs.framed(body, session.answer(name, body)), proofs.QUIETLY)
            except OSError:  # it has gone: its own end says so
                continue
        for connection, _ in self._arrived.values():  # until each has it, or is gone
            try:
                connection.recv(1)
            except OSError:
                continue

    def _close(self) -> None:
        for _, listener in self._doors.values():
            listener.close()
        for one in self._unproved.values():
            one.connection.close()
        for connection, _ in self._arrived.values():
            connection.close()


def _peer_of(connection: socket.socket) -> str:
    """Who shares the room for strangers: an address, all of this machine, or a user of it."""
    try:
        if connection.family == socket.AF_UNIX:
            raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            return f"user {_CREDENTIALS.unpack(raw)[1]}"
        address = str(connection.getpeername()[0])
    except OSError:  # it has gone already
        return ""
    return "127" if address.startswith("127.") else address  # one can have any of these
