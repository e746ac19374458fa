"""Readings of nodes and tasks on their way into the store: gathered as they come, written now and then by the leader."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from time import monotonic
from typing import Any

from sqlalchemy import Connection

from trainyard.engines.api import DeviceReading, Reading
from trainyard.lib.errors import Error
from trainyard.server.leader.leader_lease import LeaderTerm
from trainyard.server.records.device_figures import Figures
from trainyard.server.records.samples import OWN_NETWORK, Values, node_subject, task_subject
from trainyard.server.store.usage import device_figures, samples

logger = logging.getLogger(__name__)

WRITE_SECONDS = 5.0  # or as often as is looked, where that is more often
FIGURES_EVERY = 3  # as long between figures of devices: there are many, and nobody asks for them more often
MOST_PENDING = 200_000  # readings, while the database does not answer: then the oldest go
IDLE_PERCENT = 1.0  # a device that does less does nothing


class SampleWriter:
    """The `Meter` of one term."""

    def __init__(
        self, term: LeaderTerm, *, sample_seconds: float = WRITE_SECONDS, figures_every: float = FIGURES_EVERY
    ) -> None:
        self._term = term
        self._pause = min(WRITE_SECONDS, sample_seconds or WRITE_SECONDS)
        self._pending: list[tuple[str, float, Values]] = []
        self._figures_pause = figures_every * self._pause
        self._figures_due = 0.0
        self._figures: dict[str, tuple[float, Figures]] = {}  # the newest of each task

    def take(
        self, node: str, time: float, own: Reading | None, tasks: Mapping[tuple[str, str], Reading]
    ) -> None:
        """Note what a node has sent."""
        if own is not None:
            self._pending.append((node_subject(node), time, values_of(own)))
        for (attempt_id, task), reading in tasks.items():
            subject = task_subject(attempt_id, task)
            self._pending.append((subject, time, values_of(reading)))
            figures = figures_of(reading)
            if figures:
                self._figures[subject] = time, figures
        del self._pending[:-MOST_PENDING]

    async def run(self) -> None:
        """Write again and again, until cancelled."""
        while True:
            await asyncio.sleep(self._pause)
            await self.write()

    async def write(self) -> None:
        """Write what has come; what could not be written is kept for the next time."""
        if self._term.db.is_short_of_room():
            return
        batch, self._pending = self._pending, []
        if not batch:
            return
        figures: dict[str, tuple[float, Figures]] = {}
        if monotonic() >= self._figures_due:
            self._figures_due = monotonic() + self._figures_pause
            figures, self._figures = self._figures, figures

        def work(c: Connection) -> None:
            samples.add(c, batch)
            device_figures.put(c, figures)

        try:
            await self._term.write(work)
        except Error as error:
            logger.warning("%d readings are written later: %s", len(batch), error)
            self._pending[:0] = batch
            self._figures = {**figures, **self._figures}


def values_of(reading: Reading) -> dict[str, Any]:
    """A reading as the store keeps it."""
    found: dict[str, Any] = {
        "cpu": reading.cpu_cores,
        "memory": round(reading.memory_mib, 1),
        "read": reading.read_bytes,
        "write": reading.written_bytes,
        "in": reading.received_bytes,
        "out": reading.sent_bytes,
    }
    if reading.has_own_network:
        found[OWN_NETWORK] = 1.0
    if reading.devices:
        found["devices"] = {str(one.index): _device(one) for one in reading.devices}
        busy = [one.busy_percent for one in reading.devices if one.busy_percent is not None]
        found["idle"] = float(sum(percent < IDLE_PERCENT for percent in busy))
    return found


def figures_of(reading: Reading) -> dict[str, dict[str, Any]]:
    """What is known of a task's devices beyond their use."""
    return {
        str(one.index): {**one.figures, **({"uuid": one.uuid} if one.uuid else {})}
        for one in reading.devices
        if one.figures
    }


def _device(one: DeviceReading) -> dict[str, float | None]:
    return {"busy": one.busy_percent, "memory": one.memory_used_mib, "total": one.memory_total_mib}
