"""What tasks and nodes use, as an engine that can measure says it. Plain values; no engine lives here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceReading:
    """What one device did, as its driver says. None: it does not say."""

    index: int
    busy_percent: float | None = None
    memory_used_mib: float | None = None
    memory_total_mib: float | None = None
    uuid: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)  # by the names of runtime/device_metrics.py


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a task, or a node, used in the last seconds. Rates are by the second."""

    cpu_cores: float
    read_bytes: float
    written_bytes: float
    received_bytes: float
    sent_bytes: float
    memory_mib: float
    processes: int = 0
    has_own_network: bool = False  # of a task; else what it received and sent is all that its node did
    devices: tuple[DeviceReading, ...] = ()
