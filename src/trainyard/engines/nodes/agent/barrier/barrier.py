"""The gate at which the tasks of an attempt meet: one keeps it, the others report there, and all begin when all have come.

Who keeps it is barrier_keeper.py; how others report is barrier_report.py; how both know each other, without saying the attempt's
key, is barrier_proof.py. What stands by does not report: it is ready when its ssh answers with the mark of its port, which
only the attempt's tasks can make.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from trainyard.spec.exit_reasons import EXIT_CODES, ExitReason

from .barrier_keeper import BarrierKeeper, MissingError
from .barrier_proof import derive
from .barrier_report import Reporter
from .ssh_ports import choices, find

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .barrier_proof import Ports
SSH = "ssh"  # in place of a variable: where the task's ssh is

PAUSE_SECONDS = 0.02
LONGEST_PAUSE_SECONDS = 0.5
LOOK_SECONDS = (1.0, 2.0, 5.0)  # for one to say its mark: the first time, the second, from then on


class EntryError(Exception):
    """A task cannot begin; it ends with the exit code of this reason."""

    def __init__(self, reason: ExitReason, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.status = EXIT_CODES[reason]


def ssh_marks(entry: dict[str, Any], task: str, ports: Iterable[int]) -> dict[int, str]:
    """What the ssh of a task says of itself at each port where it may be: a stranger can only repeat that of another port."""
    key, attempt = entry["token"], entry["attempt"]
    return {port: "ty-" + derive(key, f"ssh {attempt} {task} {port}").hex()[:32] for port in ports}


def meet(entry: dict[str, Any], name: str, own: dict[str, str], until: float) -> Ports:
    """Wait until all are there; the ports of all. MissingError names those who are not."""
    if entry["reports"]:
        return Reporter(entry, name, own, until).report()
    known = {name: own}
    if entry["waits_for"]:
        known.update(_await_ssh(entry, until))
    if entry["meets"]:
        known = BarrierKeeper(entry, known, until).keep()
    return known


def _await_ssh(entry: dict[str, Any], until: float) -> Ports:
    """Wait for the ssh of others; where each is. MissingError names those that did not answer in time."""
    peers = {peer["task"]: peer for peer in entry["peers"]}
    missing = {
        name: (peers[name]["address"], ssh_marks(entry, name, choices(peers[name]["ssh_port"])))
        for name in entry["waits_for"]
    }
    known: Ports = {}
    pause, looks = PAUSE_SECONDS, 0
    while True:
        left = until - time.monotonic()
        if left <= 0:
            raise MissingError(list(missing))
        seconds = LOOK_SECONDS[min(looks, len(LOOK_SECONDS) - 1)]
        for name, connection in find(missing, min(left, seconds)).items():
            with connection:
                known[name] = {SSH: str(connection.getpeername()[1])}
            del missing[name]
        if not missing:
            return known
        time.sleep(min(pause, max(0.0, until - time.monotonic())))
        pause, looks = min(pause * 1.5, LONGEST_PAUSE_SECONDS), looks + 1
