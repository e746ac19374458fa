"""Nonces of signed requests that were taken, by digest. Which requests have one is auth/nonces.py's.

What is forgotten is forgotten by spans of time, and the spans are remembered: set back, the clock would take a request of such
a time for a fresh one, and nobody could say any more whether it was sent before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from sqlalchemy import Connection, bindparam, delete, func, select
from sqlalchemy.dialects import postgresql, sqlite

from trainyard.server.store import settings
from trainyard.server.store.tables import nonces

FORGOTTEN = "nonces_forgotten"  # a setting: [first, last] of each span
# Spans that are nearer than this are one. A clock that was wrong by more leaves a span of its own: the time between was not
# forgotten, and is still to come.
JOINED_SECONDS = 86400.0
MOST_SPANS = 100  # then the two that are nearest become one

_INSERTS = {
    "sqlite": sqlite.insert(nonces).on_conflict_do_nothing().returning(nonces.c.digest),
    "postgresql": postgresql.insert(nonces).on_conflict_do_nothing().returning(nonces.c.digest),
}

_LOWEST = select(func.min(nonces.c.expires_at)).where(nonces.c.expires_at < bindparam("time"))
_HIGHEST = select(func.max(nonces.c.expires_at)).where(nonces.c.expires_at < bindparam("time"))


def insert_new(connection: Connection, told: Mapping[bytes, float]) -> frozenset[bytes]:
    """Write digests with the time until which they matter; answers with those that certainly were not there before."""
    # Sorted: of two servers that write the same ones, none waits for the other in a circle.
    rows = [{"digest": digest, "expires_at": told[digest]} for digest in sorted(told)]
    new = frozenset(connection.scalars(_INSERTS[connection.dialect.name], rows))
    # NB: read after writing. One that is forgotten by another server meanwhile is either still there or in a span.
    spans = _spans(connection)
    return frozenset(one for one in new if not any(low <= told[one] <= high for low, high in spans))


def delete_before(connection: Connection, time: float) -> None:
    """Forget those whose request would be refused for its time alone, and remember of which times that were."""
    spans = _spans(connection)
    before = len(spans)
    while (low := connection.scalar(_LOWEST, {"time": time})) is not None:
        # Piece by piece: there may be some of last year and some of now, and all of the time between is still good.
        end = min(time, low + JOINED_SECONDS)
        high = connection.scalar(_HIGHEST, {"time": end})
        connection.execute(delete(nonces).where(nonces.c.expires_at.between(low, high)))
        spans.append((low, high))
    if len(spans) > before:
        settings.save(connection, FORGOTTEN, _joined(spans))


def _spans(connection: Connection) -> list[tuple[float, float]]:
    return [(low, high) for low, high in settings.find(connection, FORGOTTEN) or ()]


def _joined(spans: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The same in order, with those that are near one another as one."""
    found: list[tuple[float, float]] = []
    for low, high in sorted(spans):
        if found and low <= found[-1][1] + JOINED_SECONDS:
            found[-1] = (found[-1][0], max(found[-1][1], high))
        else:
            found.append((low, high))
    while len(found) > MOST_SPANS:
        gaps = [after[0] - before[1] for before, after in pairwise(found)]
        at = gaps.index(min(gaps))
        found[at : at + 2] = [(found[at][0], found[at + 1][1])]
    return found
