"""How the tasks of an attempt prove to each other at its gate that they know the attempt's key, which nobody ever says.

One connection carries four messages:

    task → gate   32 random bytes
    gate → task   32 random bytes of its own, and its proof
    task → gate   the task's name and ports, and its proof
    gate → task   the ports of all tasks, and its proof of them

A proof is an HMAC over who speaks, the attempt, the door at which the two have met and the random bytes of both. So a
recorded proof is worth nothing later, a proof sent back to who made it is not the one that it waits for, and one that was
got at another door is none at this one. Messages are flat text of a bounded size: there is nothing in them to nest.
"""

from __future__ import annotations

import hmac
import os
import socket
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    Ports = dict[str, dict[str, str]]  # task → variable → port

VERSION = b"trainyard gate 2"
NONCE, PROOF = 32, 32
GREETING = len(VERSION) + NONCE  # of the task
CHALLENGE = len(VERSION) + NONCE + PROOF  # of the gate
LONGEST_REPORT = 4096  # a name of 64 letters, and a few dozen variables
LONGEST_ANSWER = 1 << 24  # the ports of thousands of tasks
LOCAL = "local"  # the door that is no port
# For all that is sent: in a task SIGPIPE ends a process, and whoever is gone before it is answered must not end the gate.
QUIETLY = socket.MSG_NOSIGNAL
_SIZE = struct.Struct(">I")
HEAD = _SIZE.size


def derive(key: str, purpose: str) -> bytes:
    """Bytes that only who has the key can make, for one purpose."""
    return hmac.digest(key.encode(), b"trainyard " + purpose.encode(), "sha256")


def local_name(key: str) -> str:
    """What the gate is called among the sockets of its machine: nobody can take a name that they cannot guess."""
    return "\0trainyard/gate/" + derive(key, "gate name").hex()[:32]


class Session:
    """One connection, as both sides have to see it."""

    def __init__(self, key: str, attempt: str, door: str, of_task: bytes, of_barrier: bytes) -> None:
        self._key = derive(key, "gate")
        parts = [VERSION, attempt.encode(), door.encode(), of_task, of_barrier]
        self._context = b"".join(_SIZE.pack(len(part)) + part for part in parts)

    def challenge(self) -> bytes:
        """The gate's proof that it is the gate of the attempt."""
        return self._proof(b"gate", b"")

    def report(self, body: bytes) -> bytes:
        """A task's proof of who it is and which ports it has."""
        return self._proof(b"task", body)

    def answer(self, task: str, body: bytes) -> bytes:
        """The gate's proof of what it says to one task."""
        return self._proof(b"answer " + task.encode(), body)

    def _proof(self, who: bytes, body: bytes) -> bytes:
        said = _SIZE.pack(len(who)) + who + self._context + body
        return hmac.digest(self._key, said, "sha256")


def is_same(one: bytes, other: bytes) -> bool:
    """Compare proofs; it takes as long for a proof that is nearly right."""
    return hmac.compare_digest(one, other)


def nonce() -> bytes:
    """Random bytes that nobody has seen."""
    return os.urandom(NONCE)


def framed(body: bytes, proof: bytes) -> bytes:
    """A message with its size before it and its proof after it."""
    return _SIZE.pack(len(body)) + body + proof


def frame_size(said: bytes, longest: int) -> int:
    """How many bytes a message has in all, by its beginning; 0 where that is not known yet. ValueError where it is too long."""
    if len(said) < _SIZE.size:
        return 0
    size = int(_SIZE.unpack(said[: _SIZE.size])[0])
    if size > longest:
        raise ValueError("a message that is too long")
    return _SIZE.size + size + PROOF


def unframed(said: bytes) -> tuple[bytes, bytes]:
    """The body of a whole message, and its proof."""
    return said[_SIZE.size : -PROOF], said[-PROOF:]


def packed(ports: Ports) -> bytes:
    """Ports of tasks as lines: the task, the variable, the port. One without ports has a line of its own."""
    lines = []
    for task, own in ports.items():
        lines += [f"{task} {name} {value}" for name, value in own.items()] or [task]
    return "\n".join(lines).encode()


def unpacked(body: bytes) -> Ports:
    """The ports of tasks again. ValueError where these are none."""
    found: Ports = {}
    for line in body.decode().split("\n"):
        task, *rest = line.split(" ")
        own = found.setdefault(task, {})
        if rest:
            name, value = rest
            if not value.isdecimal() or not 0 < int(value[:6]) < 65536:
                raise ValueError("a port that is none")
            own[name] = value
    return found
