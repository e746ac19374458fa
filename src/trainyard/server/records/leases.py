"""A lease as it is stored: which server leads, and until when."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """One row of leases."""

    name: str
    owner: str
    until: float
    epoch: int
