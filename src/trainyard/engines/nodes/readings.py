"""A frame of samples, as the agent sends it, becomes readings. Each task gets those of its own devices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainyard.engines.api import DeviceReading, Reading
from trainyard.runtime import figures
from trainyard.runtime.usage import parse
from trainyard.spec.machine import DeviceKind

Devices = Mapping[tuple[DeviceKind, int], DeviceReading]


def readings_of(frame: Mapping[str, Any]) -> tuple[Reading | None, dict[tuple[str, str], Reading]]:
    """What the node itself used, where that is known yet, and its tasks."""
    devices = _devices(frame["devices"])
    own = _reading(frame["node"], tuple(devices.values())) if "node" in frame else None
    return own, {
        (task["a"], task["t"]): _reading(
            task["v"], _of_task(task, devices), has_own_network=bool(task.get("net"))
        )
        for task in frame["tasks"]
    }


def _devices(text: str) -> Devices:
    told = figures.parse(text)
    nothing = figures.Figures()
    found = {}
    for one in parse(text).devices:
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
    wanted = [(kind, int(word)) for word in task["d"].split(",") if word]
    return tuple(devices[one] for one in wanted if one in devices)


def _reading(
    values: list[float], devices: tuple[DeviceReading, ...], *, has_own_network: bool = False
) -> Reading:
    cpu, read, written, received, sent, memory = values[:6]
    return Reading(
        cpu_cores=cpu,
        read_bytes=read,
        written_bytes=written,
        received_bytes=received,
        sent_bytes=sent,
        memory_mib=memory,
        processes=int(values[6]) if len(values) > 6 else 0,
        has_own_network=has_own_network,
        devices=devices,
    )
