"""The gate at which the tasks of an attempt meet: one keeps it, the others report there, and all begin when all have come.

Who keeps it says the attempt's mark first, so that nobody tells a stranger anything; then a line of JSON each way. Who
reports says the attempt's token, its name and the ports that it took; who keeps answers with the ports of all. What stands
by does not report: it is ready when its ssh answers with the attempt's mark. Which port it is at is reach.py's.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import select
import socket
import time
from typing import TYPE_CHECKING, Any

from .reach import choices, find

# As the init containers of DLWorkspace ended, so that its users know them.
NO_ENVIRONMENT, NO_PORT, NO_PEERS, NO_SSH = 200, 203, 204, 205

if TYPE_CHECKING:
    Ports = dict[str, dict[str, str]]  # task → variable → port
SSH = "ssh"  # in place of a variable: where the task's ssh is

PAUSE_SECONDS = 0.02
LONGEST_PAUSE_SECONDS = 0.5
ANSWER_SECONDS = 5.0  # for one who has connected to say who it is
LOOK_SECONDS = (1.0, 2.0, 5.0)  # for one to say the mark: the first time, the second, from then on
LONGEST_LINE = 1 << 20


class EntryError(Exception):
    """A task cannot begin; it ends with this status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class MissingError(Exception):
    """Not all have come in time."""

    def __init__(self, missing: list[str], why: str = "") -> None:
        super().__init__(missing)
        self.missing = missing
        self.why = why


def mark_of(token: str) -> str:
    """What the gate and the ssh of an attempt say of themselves: a port may be another job's."""
    return "ty-" + hashlib.sha256(token.encode()).hexdigest()[:16]


def meet(entry: dict[str, Any], name: str, own: dict[str, str], until: float) -> Ports:
    """Wait until all are there; the ports of all. MissingError names those who are not."""
    if entry["reports"]:
        return _report(entry, name, own, until)
    known = {name: own}
    if entry["waits_for"]:
        known.update(_await_ssh(entry, until))
    if entry["meets"]:
        known = _keep(entry, known, until)
    return known


# -- the one who keeps it


def _keep(entry: dict[str, Any], known: Ports, until: float) -> Ports:
    wanted = set(entry["meets"])
    listener = _listen(entry, until, sorted(wanted))
    arrived: dict[str, socket.socket] = {}
    half: dict[socket.socket, tuple[bytearray, float]] = {}
    try:
        while wanted - arrived.keys():
            left = until - time.monotonic()
            if left <= 0:
                raise MissingError(sorted(wanted - arrived.keys()))
            for one in _readable([listener, *half, *arrived.values()], min(left, 1.0)):
                if one is listener:
                    _admit(listener, half, entry["token"])
                elif one in half:
                    _hear(one, half, arrived, known, wanted, entry["token"])
                else:
                    _part(one, arrived, known)
            for one in [one for one, (_, born) in half.items() if time.monotonic() - born > ANSWER_SECONDS]:
                del half[one]
                one.close()
        answer = json.dumps(known).encode() + b"\n"
        for connection in arrived.values():
            _send(connection, answer)
        for connection in arrived.values():  # until each has it, or is gone
            connection.settimeout(ANSWER_SECONDS)
            try:
                connection.recv(1)
            except OSError:
                pass
    finally:
        for each in (listener, *half, *arrived.values()):
            each.close()
    return known


def _readable(sockets: list[socket.socket], seconds: float) -> list[socket.socket]:
    poll = select.poll()  # select() has no room for a thousand
    by_number = {one.fileno(): one for one in sockets}
    for number in by_number:
        poll.register(number, select.POLLIN)
    return [by_number[number] for number, _ in poll.poll(seconds * 1000)]


def _listen(entry: dict[str, Any], until: float, wanted: list[str]) -> socket.socket:
    while True:
        for port in choices(entry["gate_port"]):
            listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind((entry["gate_address"], port))
                listener.listen(1024)
            except OSError as error:  # somebody else has it
                listener.close()
                why = error.strerror
            else:
                return listener
        if time.monotonic() > until:
            raise MissingError(wanted, f" (port {entry['gate_port']}: {why})")
        time.sleep(LONGEST_PAUSE_SECONDS)


def _admit(listener: socket.socket, half: dict[socket.socket, tuple[bytearray, float]], token: str) -> None:
    try:
        connection, _ = listener.accept()
        connection.setblocking(False)
        connection.send(mark_of(token).encode() + b"\n")
    except OSError:
        return
    half[connection] = (bytearray(), time.monotonic())


def _hear(
    one: socket.socket,
    half: dict[socket.socket, tuple[bytearray, float]],
    arrived: dict[str, socket.socket],
    known: Ports,
    wanted: set[str],
    token: str,
) -> None:
    """Read what one says of itself; whoever is not of this attempt is sent away."""
    said = half[one][0]
    try:
        data = one.recv(LONGEST_LINE)
    except OSError:
        data = b""
    said += data
    if data and b"\n" not in said and len(said) < LONGEST_LINE:
        return
    del half[one]
    try:
        hello = json.loads(bytes(said))
        name, ports = str(hello["task"]), {str(key): str(value) for key, value in hello["ports"].items()}
        is_ours = hmac.compare_digest(str(hello["token"]), token) and name in wanted
    except (ValueError, KeyError, TypeError, AttributeError):
        is_ours = False
    if not is_ours:
        one.close()
        return
    before = arrived.pop(name, None)  # it was cut off, and has come again
    if before is not None:
        before.close()
    one.setblocking(True)
    arrived[name], known[name] = one, ports


def _part(one: socket.socket, arrived: dict[str, socket.socket], known: Ports) -> None:
    """One that had come is gone again."""
    try:
        if one.recv(1, socket.MSG_DONTWAIT):
            return
    except BlockingIOError:
        return
    except OSError:
        pass
    for name in [name for name, connection in arrived.items() if connection is one]:
        del arrived[name], known[name]
    one.close()


def _send(connection: socket.socket, data: bytes) -> None:
    connection.settimeout(ANSWER_SECONDS)
    try:
        connection.sendall(data)
    except OSError:  # it has gone: its own end says so
        pass


# -- the others


def _report(entry: dict[str, Any], name: str, own: dict[str, str], until: float) -> Ports:
    keeper = entry["peers"][0]
    address = entry["gate_address"] or keeper["address"]
    places = {keeper["task"]: (address, choices(entry["gate_port"]))}
    mark = mark_of(entry["token"])
    hello = json.dumps({"token": entry["token"], "task": name, "ports": own}).encode() + b"\n"
    pause, why = PAUSE_SECONDS, ""
    while True:
        left = until - time.monotonic()
        if left <= 0:
            why = why or _why_not(address, entry["gate_port"])
            raise MissingError([keeper["task"]], f" ({address}:{entry['gate_port']}: {why})")
        for connection in find(places, mark, min(left, LOOK_SECONDS[1])).values():
            answer = _tell(connection, len(mark) + 1, hello, until)
            if answer is not None:
                return answer
            why = "it waits for others" if time.monotonic() >= until else "cut off"
        time.sleep(min(pause, max(0.0, until - time.monotonic())))
        pause = min(pause * 1.5, LONGEST_PAUSE_SECONDS)


def _why_not(address: str, port: int) -> str:
    try:
        with socket.create_connection((address, port), timeout=1.0):
            return "somebody else is there"
    except OSError as error:
        return error.strerror or str(error)


def _tell(connection: socket.socket, greeting: int, hello: bytes, until: float) -> Ports | None:
    with connection:
        try:
            connection.recv(greeting, socket.MSG_WAITALL)
            connection.sendall(hello)
            answer = _answer(connection, until)
            if answer is not None:
                connection.sendall(b"\n")
        except OSError:
            return None
    return answer


def _answer(connection: socket.socket, until: float) -> Ports | None:
    said = bytearray()
    while not said.endswith(b"\n"):
        left = until - time.monotonic()
        if left <= 0:
            return None
        connection.settimeout(left)
        data = connection.recv(LONGEST_LINE)
        if not data:
            return None
        said += data
    found: Ports = json.loads(bytes(said))
    return found


# -- those that stand by


def _await_ssh(entry: dict[str, Any], until: float) -> Ports:
    """Wait for the ssh of others; where each is. MissingError names those that did not answer in time."""
    peers = {peer["task"]: peer for peer in entry["peers"]}
    missing = {
        name: (peers[name]["address"], choices(peers[name]["ssh_port"])) for name in entry["waits_for"]
    }
    mark = mark_of(entry["token"])
    known: Ports = {}
    pause, looks = PAUSE_SECONDS, 0
    while True:
        left = until - time.monotonic()
        if left <= 0:
            raise MissingError(list(missing))
        seconds = LOOK_SECONDS[min(looks, len(LOOK_SECONDS) - 1)]
        for name, connection in find(missing, mark, min(left, seconds)).items():
            with connection:
                known[name] = {SSH: str(connection.getpeername()[1])}
            del missing[name]
        if not missing:
            return known
        time.sleep(min(pause, max(0.0, until - time.monotonic())))
        pause, looks = min(pause * 1.5, LONGEST_PAUSE_SECONDS), looks + 1
