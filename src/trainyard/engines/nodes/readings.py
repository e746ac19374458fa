"""A frame of samples, as the agent sends it, becomes readings. Each task gets those of its own devices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from trainyard.engines.api import DeviceReading, Reading
from trainyard.engines.nodes.frame_checks import Key, items, number, task_key, text
from trainyard.runtime import device_metrics
from trainyard.runtime.usage import parse
from trainyard.spec.machine import DeviceKind

LONGEST_DEVICES = 1024 * 1024  # of what the drivers of a node say
MOST_DEVICES = 1024
MOST_PROCESSES = 2**22  # what Linux can count

Devices = Mapping[tuple[DeviceKind, int], DeviceReading]


def readings_of(
    frame: Mapping[str, Any], is_own: Callable[[Key], bool] = lambda _key: True
) -> tuple[Reading | None, dict[Key, Reading]]:
    """What the node itself used, where that is known yet, and those of its tasks that are its own."""
    devices = _devices(text(frame["devices"], LONGEST_DEVICES))
    own = _reading(frame["node"], tuple(devices.values())) if "node" in frame else None
    found = {}
    for task in items(frame["tasks"]):
        key = task_key(task["a"], task["t"])
        if is_own(key):
            found[key] = _reading(task["v"], _of_task(task, devices), has_own_network=bool(task.get("net")))
    return own, found


def _devices(said: str) -> Devices:
    told = device_metrics.parse(said)
    nothing = device_metrics.Figures()
    found = {}
    for one in parse(said).devices[:MOST_DEVICES]:
        more = told.get(one.index, nothing) if one.kind is DeviceKind.GPU else nothing
        found[one.kind, one.index] = DeviceReading(
            index=one.index,
            busy_percent=one.busy_percent,
            memory_used_mib=one.memory_used_mib,
            memory_total_mib=one.memory_total_mib,
            uuid=more.uuid,
            figures=more.values,
        )
    return found


def _of_task(task: Mapping[str, Any], devices: Devices) -> tuple[DeviceReading, ...]:
    kind = DeviceKind.NPU if task["npu"] else DeviceKind.GPU
    wanted = [(kind, int(word)) for word in text(task["d"]).split(",")[:MOST_DEVICES] if word]
    return tuple(devices[one] for one in wanted if one in devices)


def _reading(values: object, devices: tuple[DeviceReading, ...], *, has_own_network: bool = False) -> Reading:
    values = [number(one) for one in items(values, 7)]
    cpu, read, written, received, sent, memory = values[:6]
    return Reading(
        cpu_cores=cpu,
        read_bytes=read,
        written_bytes=written,
        received_bytes=received,
        sent_bytes=sent,
        memory_mib=memory,
        processes=min(int(values[6]), MOST_PROCESSES) if len(values) > 6 else 0,
        has_own_network=has_own_network,
        devices=devices,
    )
