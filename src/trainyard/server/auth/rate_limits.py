"""Rate limits: a bucket for each key that fills with time. In memory of one server; a restart forgives."""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from collections.abc import Hashable

from trainyard.lib.clock import Clock
from trainyard.server.auth.actor import LimitedError

# Of an IPv6 address so many bits count: a home or a virtual machine has all that begin so.
IPV6_BITS = 64
# So many keys are remembered; who floods us with more only makes us forget the idlest.
KEYS = 20_000


class Limiter:
    """`rate` per minute for each key, saved up to `burst`."""

    def __init__(
        self, clock: Clock, *, rate: float, burst: float | None = None, what: str = "requests"
    ) -> None:
        self._clock = clock
        self._per_second = rate / 60.0
        self._burst = burst if burst is not None else max(1.0, rate)
        self._what = what
        self._buckets: OrderedDict[Hashable, tuple[float, float]] = OrderedDict()

    def take(self, key: Hashable, amount: float = 1.0) -> None:
        """Count one; LimitedError, and nothing counted, where there were too many. A rate of 0 is no limit."""
        if self._per_second <= 0:
            return
        left = self._left(key)
        if left < amount:
            raise LimitedError(f"Too many {self._what}.", retry_after=(amount - left) / self._per_second)
        self._keep(key, left - amount)

    def check(self, key: Hashable) -> None:
        """The same without counting."""
        if self._per_second > 0 and (left := self._left(key)) < 1.0:
            raise LimitedError(f"Too many {self._what}.", retry_after=(1.0 - left) / self._per_second)

    def forgive(self, key: Hashable) -> None:
        """Forget what was counted for a key."""
        self._buckets.pop(key, None)

    def _left(self, key: Hashable) -> float:
        found = self._buckets.get(key)
        if found is None:
            return self._burst
        left, at = found
        return min(self._burst, left + (self._clock.monotonic() - at) * self._per_second)

    def _keep(self, key: Hashable, left: float) -> None:
        self._buckets[key] = (left, self._clock.monotonic())
        self._buckets.move_to_end(key)
        while len(self._buckets) > KEYS:
            self._buckets.popitem(last=False)


def limited(address: str) -> str:
    """Under what an address is counted: itself, or its network where anybody has more of them than they could count."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    if found.version == 4:
        return address
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.ip_network((int(found), IPV6_BITS), strict=False).network_address)
