"""All that a scrape shows: the tasks and nodes that were heard of lately, and whose they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trainyard.server.records.device_figures import Figures
from trainyard.server.records.latencies import Histogram
from trainyard.server.records.nodes import NodeRecord
from trainyard.server.records.samples import OWN_NETWORK, Values
from trainyard.server.records.tasks import TaskRecord
from trainyard.server.records.workloads import WorkloadRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentTask:
    """A task that was heard of lately, with whose it is."""

    workload: WorkloadRecord
    task: TaskRecord
    values: Values
    figures: Figures  # of its devices, as far as their drivers tell them


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """All that a scrape shows."""

    tasks: tuple[CurrentTask, ...]
    nodes: Mapping[str, Values]
    records: Sequence[NodeRecord]
    held: Mapping[str, Mapping[str, int]]  # node → type of device → how many are given away
    states: Mapping[str, int]
    changes: Mapping[str, Histogram]  # by the state that was reached
    workspace_names: Mapping[str, str]
    user_mails: Mapping[str, str]


def has_own_network(values: Values) -> bool:
    """Whether what a task received and sent is its own, and not all that its node did."""
    return values.get(OWN_NETWORK) == 1.0
