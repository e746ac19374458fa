"""A task that reports at the gate of its attempt: it looks for the gate at every door where that may be, tells nothing of
itself to who has not proved to be it, and waits there until all have come.

Every door is tried for itself, again and again: a stranger who listens at one of them and says nothing, or never ends,
does not keep the task from the others.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from . import barrier_proof as proofs
from .barrier_keeper import MissingError

if TYPE_CHECKING:
    from .barrier_proof import Ports

PAUSE_SECONDS = 0.02
LONGEST_PAUSE_SECONDS = 0.5
SILENT_SECONDS = 5.0  # for one who listens to prove that it is the gate
TURN_SECONDS = 1.0
PIECE = 65536


class BarrierAddress(NamedTuple):
    """A door of the gate as the others reach it."""

    name: str
    family: int
    address: Any


class BarrierAttempt:
    """What is being tried at one place."""

    def __init__(self, place: BarrierAddress) -> None:
        self.place = place
        self.connection: socket.socket | None = None
        self.is_connected = False
        self.nonce = b""
        self.said = bytearray()
        self.due = 0.0  # when it is tried again, or given up
        self.pause = PAUSE_SECONDS
        self.why = "nobody is there"

    def begin(self) -> None:
        """Connect, as far as that goes without waiting."""
        self.nonce, self.is_connected = proofs.nonce(), False
        self.said.clear()
        self.due = time.monotonic() + SILENT_SECONDS
        try:
            one = socket.socket(self.place.family, socket.SOCK_STREAM)
        except OSError as error:  # too many are open
            self.put_off(error.strerror or "")
            return
        one.setblocking(False)
        self.connection = one
        try:
            number = one.connect_ex(self.place.address)
        except OSError as error:  # a name that leads nowhere
            self.put_off(error.strerror or str(error))
            return
        if number not in (0, errno.EINPROGRESS):
            self.put_off(os.strerror(number))

    def put_off(self, why: str) -> None:
        """Close it, and try it again after a while."""
        if self.connection is not None:
            self.connection.close()
            self.connection = None
        self.why = why
        self.due = time.monotonic() + self.pause
        self.pause = min(self.pause * 1.5, LONGEST_PAUSE_SECONDS)


class Reporter:
    """One task on its way to the gate."""

    def __init__(self, entry: dict[str, Any], name: str, own: dict[str, str], until: float) -> None:
        self._entry = entry
        self._name = name
        self._body = proofs.packed({name: own})
        self._until = until
        self._keeper = entry["peers"][0]
        self._address = entry["barrier_address"] or self._keeper["address"]
        self._doors = [BarrierAttempt(place) for place in self._places()]

    def _places(self) -> list[BarrierAddress]:
        ports = [
            BarrierAddress(str(port), socket.AF_INET, (self._address, port))
            for port in self._entry["barrier_ports"]
        ]
        if not self._entry["barrier_address"]:
            return ports
        return [BarrierAddress(proofs.LOCAL, socket.AF_UNIX, proofs.local_name(self._entry["token"])), *ports]

    def report(self) -> Ports:
        """Find the gate, say who we are and wait there; the ports of all. MissingError where it does not let us begin in time."""
        why = ""
        while True:
            found = self._find()
            if found is None:
                raise self._missing(why)
            answer = self._tell(*found)
            if answer is not None:
                return answer
            is_late = time.monotonic() >= self._until
            why = "it waits for others" if is_late else "cut off"
            for door in self._doors:  # it was there a moment ago
                door.due, door.pause = time.monotonic() + PAUSE_SECONDS, PAUSE_SECONDS

    def _missing(self, why: str) -> MissingError:
        door = next((door for door in self._doors if door.place.family == socket.AF_INET), None)
        if door is None:
            return MissingError([self._keeper["task"]], f" ({why or 'it has no port'})")
        return MissingError(
            [self._keeper["task"]], f" ({self._address}:{door.place.name}: {why or door.why})"
        )

    # -- looking for it

    def _find(self) -> tuple[socket.socket, proofs.Session] | None:
        """The door where somebody has proved to be the gate; None where nobody did in time."""
        try:
            while time.monotonic() < self._until:
                found = self._turn()
                if found is not None:
                    return found
            return None
        finally:
            for door in self._doors:
                if door.connection is not None:
                    door.connection.close()
                    door.connection = None

    def _turn(self) -> tuple[socket.socket, proofs.Session] | None:
        poll = select.poll()
        by_number: dict[int, BarrierAttempt] = {}
        now = time.monotonic()
        for door in self._doors:
            if now >= door.due:
                if door.connection is None:
                    door.begin()
                else:
                    door.put_off("somebody else is there")
            if door.connection is not None:
                by_number[door.connection.fileno()] = door
                poll.register(door.connection, select.POLLIN if door.is_connected else select.POLLOUT)
        next_due = min(self._until, *(door.due for door in self._doors)) - time.monotonic()
        for number, _ in poll.poll(max(0.0, min(next_due, TURN_SECONDS)) * 1000 + 1):
            door = by_number[number]
            session = self._advance(door)
            if session is not None and door.connection is not None:
                connection, door.connection = door.connection, None
                return connection, session
        return None

    def _advance(self, door: BarrierAttempt) -> proofs.Session | None:
        """One step at a door; what was agreed upon, where the gate is behind it."""
        one = door.connection
        if one is None:
            return None
        try:
            if not door.is_connected:
                number = one.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if number:
                    door.put_off(os.strerror(number))
                else:
                    door.is_connected = True
                    one.send(proofs.VERSION + door.nonce, proofs.QUIETLY)
                return None
            data = one.recv(proofs.CHALLENGE - len(door.said))
        except BlockingIOError:
            return None
        except OSError as error:
            door.put_off(error.strerror or str(error))
            return None
        door.said += data
        if data and len(door.said) < proofs.CHALLENGE:
            return None
        session = self._proved(door)
        if session is None:
            door.put_off("somebody else is there")
        return session

    def _proved(self, door: BarrierAttempt) -> proofs.Session | None:
        """What both sides know of this connection, where the other has proved to be the gate."""
        said, size = bytes(door.said), len(proofs.VERSION)
        theirs, proof = said[size : size + proofs.NONCE], said[size + proofs.NONCE :]
        session = proofs.Session(
            self._entry["token"], self._entry["attempt"], door.place.name, door.nonce, theirs
        )
        is_barrier = said[:size] == proofs.VERSION and proofs.is_same(proof, session.challenge())
        return session if is_barrier else None

    # -- being there

    def _tell(self, connection: socket.socket, session: proofs.Session) -> Ports | None:
        """Say who we are, and wait for the ports of all; None where the gate is gone or time is up."""
        with connection:
            try:
                connection.settimeout(SILENT_SECONDS)
                message = proofs.framed(self._body, session.report(self._body))
                connection.sendall(message, proofs.QUIETLY)
                body = self._hear(connection, session)
                found = proofs.unpacked(body) if body is not None else None
            except (OSError, ValueError):
                return None
            if found is not None:
                with contextlib.suppress(OSError):  # it has all that it needs, and so have we
                    connection.sendall(b"\n", proofs.QUIETLY)
            return found

    def _hear(self, connection: socket.socket, session: proofs.Session) -> bytes | None:
        said, wanted = bytearray(), 0
        while not wanted or len(said) < wanted:
            left = self._until - time.monotonic()
            if left <= 0:
                return None
            connection.settimeout(left)
            data = connection.recv(min(wanted or proofs.HEAD, PIECE + len(said)) - len(said))
            if not data:
                return None
            said += data
            wanted = wanted or proofs.frame_size(bytes(said), proofs.LONGEST_ANSWER)
        body, proof = proofs.unframed(bytes(said))
        return body if proofs.is_same(proof, session.answer(self._name, body)) else None
