"""How the tasks of an attempt find each other's ssh: each takes the first of a few ports that is free, and says the mark of
that port to whoever connects. So whoever looks knows a stranger from a peer, also one that repeats the mark of another port.

NB: ssh runs this file alone, as its ProxyCommand: `ssh_ports.py FILE TASK ADDRESS` hands the connection over to ssh, which then
needs nobody between. So it imports nothing of ours. FILE has the ports and marks: a command line would show them to all.
"""

from __future__ import annotations

import array
import errno
import os
import select
import socket
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    Marks = Mapping[int, str]  # port → what is said there
    Places = Mapping[str, tuple[str, Marks]]  # task → its address, and the ports where it may be

# Those that the platform the jobs come from has for it. Neighbours on a node have numbers below 200 apart, so that no two
# of their choices are the same.
FIRST, COUNT, STRIDE, CHOICES = 40000, 10000, 1237, 5
AT_ONCE = 100  # tasks that are looked for at one time: each costs a few descriptors
LONGEST_MARK = 512
PATIENCE_SECONDS = 15.0
LOOK_SECONDS = 2.0
PAUSE_SECONDS = 0.1


def choices(wanted: int) -> list[int]:
    """The port that is wanted, and those to be taken where somebody else has it."""
    return [wanted, *(FIRST + (wanted - FIRST + STRIDE * number) % COUNT for number in range(1, CHOICES))]


def find(places: Places, seconds: float) -> dict[str, socket.socket]:
    """Connect to all; who answered with its mark in time. Nothing of what they said has been read."""
    found: dict[str, socket.socket] = {}
    names = list(places)
    for first in range(0, len(names), AT_ONCE):
        some = {name: places[name] for name in names[first : first + AT_ONCE]}
        found.update(_find_some(some, time.monotonic() + seconds))
    return found


def _find_some(places: Places, until: float) -> dict[str, socket.socket]:
    found: dict[str, socket.socket] = {}
    poll = select.poll()
    open_: dict[int, tuple[str, str, socket.socket]] = {}
    for name, (address, marks) in places.items():
        for port, mark in marks.items():
            one = _begin(address, port)
            if one is not None:
                open_[one.fileno()] = (name, mark, one)
                poll.register(one, select.POLLIN)
    while any(name not in found for name, _, _ in open_.values()):
        ready = poll.poll(max(0.0, until - time.monotonic()) * 1000)
        if not ready:
            break
        for number, _ in ready:
            poll.unregister(number)
            name, mark, one = open_.pop(number)
            if name not in found and _says(one, mark.encode()):
                found[name] = one
            else:
                one.close()
    for _, _, one in open_.values():
        one.close()
    for one in found.values():
        one.setblocking(True)
    return found


def _begin(address: str, port: int) -> socket.socket | None:
    try:
        one = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    except OSError:  # too many are open: it is looked for again
        return None
    one.setblocking(False)
    try:
        failed = one.connect_ex((address, port)) not in (0, errno.EINPROGRESS)
    except OSError:  # a name that leads nowhere
        failed = True
    if failed:
        one.close()
        return None
    return one


def _says(one: socket.socket, mark: bytes) -> bool:
    """Whether it is one of ours. A few bytes come in one piece, or it is looked for once more."""
    try:
        return mark in one.recv(LONGEST_MARK, socket.MSG_PEEK)
    except OSError:
        return False


def marks_of(path: str, task: str) -> dict[int, str]:
    """The ports where a task may be, and what it says there: lines of the task, the port and the mark."""
    with open(path, encoding="utf-8") as file:
        words = [line.split() for line in file]
    return {int(port): mark for name, port, mark in words if name == task}


def hand_over(path: str, task: str, address: str) -> int:
    """Connect, and give the connection to who reads our output."""
    places = {"": (address, marks_of(path, task))}
    until = time.monotonic() + PATIENCE_SECONDS
    while True:
        found = find(places, LOOK_SECONDS)
        if found:
            break
        if time.monotonic() > until:
            os.write(2, f"trainyard: no ssh of this job answers at {address}\n".encode())
            return 1
        time.sleep(PAUSE_SECONDS)
    passed = array.array("i", [found[""].fileno()])
    with socket.socket(fileno=os.dup(1)) as reader:
        reader.sendmsg([b"\0"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, passed)])
    return 0


if __name__ == "__main__":
    sys.exit(hand_over(*sys.argv[1:]))
