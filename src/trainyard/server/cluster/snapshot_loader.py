"""Reads from the database what the scheduler gets to see: quotas, and pools with their machines."""

from __future__ import annotations

from sqlalchemy import Connection

from trainyard.scheduling import Quota
from trainyard.server.cluster.elastic_pools import Elastic
from trainyard.server.cluster.scheduler_snapshot import quotas_of
from trainyard.server.store.cluster import pools
from trainyard.server.store.people import users, workspaces


def load_pools(connection: Connection) -> Elastic:
    """As the store has it."""
    return Elastic(
        {pool.name: pool for pool in pools.list_pools(connection)},
        {machine.name: machine for machine in pools.list_machines(connection)},
    )


def load_quotas(connection: Connection) -> tuple[Quota, ...]:
    """The quota tree as the store has it."""
    known = workspaces.list_workspaces(connection, with_archived=True)
    groups = workspaces.list_groups(connection)
    limited = {
        name
        for limits in (*(one.quota for one in known), *(one.quota for one in groups))
        for name in limits.users
    }
    return quotas_of(groups, known, users.ids(connection, limited))
