"""Chooses loopback addresses for machines, so that equal ports of two machines do not collide. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Collection

from trainyard.lib.errors import CapacityError

_COUNT = 1 << 16


def free_addresses(count: int, *, used: Collection[str], seed: str) -> list[str]:
    """`count` addresses 127.77.x.y that are not `used`.

    The first address depends on `seed` (the folder of machines). So two users of one computer, who do not see each
    other's machines, rarely choose the same address.
    """
    start = int.from_bytes(hashlib.sha256(seed.encode(errors="surrogateescape")).digest()[:1], "big") << 8
    taken = set(used)
    found: list[str] = []
    for number in range(_COUNT):
        third, fourth = divmod((start + number) % _COUNT, 256)
        address = f"127.77.{third}.{fourth}"
        if fourth in {0, 255} or address in taken:
            continue
        if len(found) == count:
            break
        found.append(address)
    if len(found) < count:
        raise CapacityError(
            f"{count} loopback addresses are wanted and {len(found)} are free",
            hint="Kill machines not needed.",
        )
    return found
