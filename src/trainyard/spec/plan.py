"""What a wish for machines would cost, and where they would be looked for: a plan, before any money is spent.

And what is left lying about when machines are gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One way to get the machines, in the order in which they are tried."""

    type: str
    place: str
    spot: bool
    stock: str
    price_per_hour: Decimal | None = None  # of one machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What would be made. Nothing is promised: stock and spot prices change by the minute."""

    new: Sequence[str]  # names of machines that would be made
    existing: Sequence[str] = ()  # those that are there already
    starting: Sequence[str] = ()  # of these, the ones that are stopped and would be started
    currency: str = ""
    image: str = ""
    options: Sequence[Option] = ()
    notes: Sequence[str] = ()
    started_price_per_hour: Decimal = Decimal(0)  # of those that would be started, all together

    @property
    def price_per_hour(self) -> Decimal | None:
        """Of all that would begin to cost money, by the first option; None where no price is known."""
        if not self.new:
            return self.started_price_per_hour
        first = self.options[0].price_per_hour if self.options else None
        return None if first is None else first * len(self.new) + self.started_price_per_hour

    @property
    def is_free(self) -> bool:
        """Whether nothing begins to cost money."""
        return not self.new and not self.starting


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What a machine of one type has, by its backend's catalogue."""

    cpus: int
    memory_mib: int
    devices: int = 0
    model: str = ""  # of the devices


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftover:
    """Something that machines stood on, and that nobody uses any more."""

    kind: str
    id: str
    name: str
    place: str
    note: str = ""  # what it costs or uses up
