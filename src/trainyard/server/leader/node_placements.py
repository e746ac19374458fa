"""Which tasks were placed on which node, in this term and before: a node is believed about those, and no others.

What is of attempts that are over counts, too: a node that was lost comes back with their logs.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from sqlalchemy import Connection

from trainyard.server.jobs.turn_changes import Job, attempt_id, split_attempt
from trainyard.server.launch.job_launch import hidden_of
from trainyard.server.launch.launch_facts import has_secrets
from trainyard.server.leader.launch_facts_loader import load
from trainyard.server.logs.log_files import LogStore
from trainyard.server.records.workloads import WorkloadRecord
from trainyard.server.secrets.sealing import Seal
from trainyard.server.store.database import Database
from trainyard.server.store.jobs import workloads
from trainyard.server.store.jobs.tasks import tasks_of_all_attempts


class Placements:
    """What the store knows of placements. The secrets of jobs that are found are hidden before anything that they print."""

    def __init__(self, db: Database, logs: LogStore, seal: Seal) -> None:
        self._db = db
        self._logs = logs
        self._seal = seal

    async def of(self, node: str, tasks: Collection[tuple[str, str]]) -> Collection[tuple[str, str]]:
        """Those of `tasks`, by (attempt_id, task), that were ever placed on the node."""
        wanted = set(tasks)
        ids = sorted({split_attempt(attempt)[0] for attempt, _ in wanted})

        def work(c: Connection) -> tuple[set[tuple[str, str]], list[tuple[str, tuple[str, ...]]]]:
            rows = [
                one for each in tasks_of_all_attempts(c, ids).values() for one in each if one.node == node
            ]
            found = wanted & {(attempt_id(one.workload_id, one.attempt), one.name) for one in rows}
            attempts = [split_attempt(one) for one in sorted({attempt for attempt, _ in found})]
            known = workloads.load_many(c, {workload for workload, _ in attempts})
            records = [replace(known[workload], attempt=number) for workload, number in attempts]
            return found, secrets_of(c, records, self._seal)

        found, hidden = await self._db.read(work)
        for attempt, values in hidden:
            self._logs.hide(attempt, values)
        return found


def secrets_of(
    c: Connection, records: Collection[WorkloadRecord], seal: Seal
) -> list[tuple[str, tuple[str, ...]]]:
    """What is not to be kept of the logs of these attempts, where there is anything."""
    secretive = [one for one in records if has_secrets(one)]
    facts = load(c, [Job(one, {}) for one in secretive], (), seal=seal)
    return [(attempt_id(one.id, one.attempt), hidden_of(one, facts)) for one in secretive]
