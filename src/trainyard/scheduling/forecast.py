"""Forecasts how long a workload will run, from earlier runs of its user with the same size and limit.

Users set limits that are far too long, but most workloads have run before (see simulation/traces.py for the sources). The
caller asks here before it submits and passes the answer in `Request.expected`. The scheduler itself remembers no past runs.
"""

from __future__ import annotations

from trainyard.scheduling.model import Request

NEWEST = 0.5  # weight of the newest run of a user among theirs: what people work on changes
KNOWN = 8  # runs of the same user after which what everybody else did counts no less than one run in nine
ENOUGH = 5  # runs with the same limit, of whomever, that say something
OVERSTATED = 3.0  # a limit is about so many times what is needed, where nothing better is known

Key = tuple[object, ...]


class Forecast:
    """Past runs, by user, size and limit, and by limit alone."""

    def __init__(self) -> None:
        self._theirs: dict[Key, tuple[int, float]] = {}  # how many, and their mean, the newest counting most
        self._all: dict[float | None, tuple[int, float]] = {}  # by limit

    def note(self, request: Request, seconds: float) -> None:
        """Note the run of a workload that has ended by itself. Preempted workloads are not counted."""
        key = _key(request)
        self._theirs[key] = _joined(self._theirs.get(key), seconds, NEWEST)
        self._all[request.limit] = _joined(self._all.get(request.limit), seconds, 0.0)

    def expect(self, request: Request) -> float | None:
        """Seconds that it will probably run; None: nothing is known."""
        count, usual = self._all.get(request.limit, (0, 0.0))
        if count < ENOUGH:
            usual = -1.0 if request.limit is None else request.limit / OVERSTATED
        runs, mean = self._theirs.get(_key(request), (0, 0.0))
        if not runs:
            return None if usual < 0 else usual
        if usual < 0:
            return mean
        runs = min(runs, KNOWN)
        return (mean * runs + usual) / (runs + 1)


def expected_run(request: Request, assumed: float) -> float:
    """Return the expected run: the forecast, else a part of the limit, else the assumed default."""
    if request.expected is not None:
        return request.expected
    return assumed if request.limit is None else request.limit / OVERSTATED


def _key(request: Request) -> Key:
    devices = 0
    for role in request.roles:
        devices += role.devices * role.least
    return (request.workspace, request.user, devices, request.limit)


def _joined(past: tuple[int, float] | None, seconds: float, newest: float) -> tuple[int, float]:
    count, mean = past or (0, 0.0)
    count += 1
    return count, mean + (seconds - mean) * max(newest, 1 / count)
