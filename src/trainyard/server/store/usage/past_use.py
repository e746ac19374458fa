"""Past use: what each user of each workspace has had of the cluster, so that fair shares outlive a restart."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import Connection, delete, insert, select

from trainyard.scheduling import Policy
from trainyard.server.store.tables import past_use

HALF_LIFE = Policy().half_life

# Less than a second of one thousandth of the cluster: not worth a row.
LEAST = 0.001


def load(connection: Connection, now: float, *, half_life: float = HALF_LIFE) -> dict[tuple[str, str], float]:
    """By workspace and user, in shares of the cluster times seconds, decayed until now."""
    return {
        (row.workspace_id, row.user_id): row.amount * 0.5 ** (max(0.0, now - row.at) / half_life)
        for row in connection.execute(select(past_use))
    }


def save(connection: Connection, use: Mapping[tuple[str, str], float], now: float) -> None:
    """Replace everything by these amounts, as of now."""
    connection.execute(delete(past_use))
    rows = [
        {"workspace_id": workspace, "user_id": user, "amount": amount, "at": now}
        for (workspace, user), amount in use.items()
        if amount >= LEAST
    ]
    if rows:
        connection.execute(insert(past_use), rows)
