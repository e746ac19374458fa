"""A histogram of how long jobs took from one state to the next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

BOUNDS: Sequence[float] = tuple(float(2**power) for power in range(11))  # seconds: 1 to 1024
RUNNING, FINISHED = "running", "finished"


@dataclass(frozen=True, slots=True)
class Histogram:
    """How many took at most so long, for each of BOUNDS; then all, and their sum."""

    counts: tuple[int, ...]
    count: int
    total: float
