"""Ports of the node that its tasks share: who takes one keeps others from it, for as long as it lives.

A claim is a socket with an abstract name: it is known to the same processes as the port itself (both belong to a network
namespace), needs no file, and goes with whoever holds it.
"""

from __future__ import annotations

import socket

TRIES = 2000


def claim(wanted: int) -> tuple[int, socket.socket] | None:
    """The port, or the next one that nobody has, and what holds the claim; None where there is none."""
    for number in range(wanted, min(wanted + TRIES, 65536)):
        holder = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            holder.bind(f"\0trainyard/port/{number}")
        except OSError:
            holder.close()
            continue
        if is_free(number):
            return number, holder
        holder.close()
    return None


def is_free(number: int) -> bool:
    """Whether nobody listens there now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("0.0.0.0", number))  # noqa: S104  # as those bind who will use it; nobody can connect yet
        except OSError:
            return False
    return True
