"""The accelerators of this computer: finds them and hands out free ones. A device belongs to one machine at a time."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trainyard.lib.errors import CapacityError
from trainyard.spec.hardware import TYPES, short_model
from trainyard.spec.machine import Device, DeviceKind, MachineSpec

TOOL_SECONDS = 20.0  # nvidia-smi without its persistence daemon takes several
_NPU_FIELD = re.compile(r"^\s*(NPU ID|Chip Count)\s*:\s*(\d+)\s*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class DeviceRequest:
    """How many accelerators a machine wants."""

    gpus: int = 0
    npus: int = 0


@dataclass(frozen=True, slots=True)
class Devices:
    """All accelerators of this computer."""

    gpus: tuple[Device, ...] = ()
    npus: tuple[Device, ...] = ()


def find_devices(*, gpus: int | None, npus: int | None, search_path: str) -> Devices:
    """Ask the vendors' tools. A configured number overrides theirs; the model names are still theirs."""
    return Devices(
        _declared(DeviceKind.GPU, gpus, _find_gpus(search_path)),
        _declared(DeviceKind.NPU, npus, _find_npus(search_path)),
    )


def wish_of(spec: MachineSpec, devices: Devices) -> DeviceRequest:
    """Return the devices that `spec` asks for on this computer.

    Devices that only the machine type implies are dropped if the computer has no GPU at all, so that any script can be
    tried on a laptop.
    """
    if spec.gpus is not None:
        return DeviceRequest(spec.gpus, spec.npus)
    implied = TYPES[spec.type].gpus if spec.type in TYPES else 0
    return DeviceRequest(implied if devices.gpus else 0, spec.npus)


def hand_out(
    wishes: Mapping[str, DeviceRequest], devices: Devices, held: Mapping[str, Sequence[Device]]
) -> dict[str, tuple[Device, ...]]:
    """Free devices for every machine of `wishes`, lowest numbers first; CapacityError where they do not suffice."""
    gpus = _share(devices.gpus, {name: wish.gpus for name, wish in wishes.items()}, held, "GPU")
    npus = _share(devices.npus, {name: wish.npus for name, wish in wishes.items()}, held, "NPU")
    return {name: gpus[name] + npus[name] for name in wishes}


def _share(
    devices: Sequence[Device], counts: Mapping[str, int], held: Mapping[str, Sequence[Device]], word: str
) -> dict[str, tuple[Device, ...]]:
    taken = {(device.kind, device.index) for group in held.values() for device in group}
    free = [device for device in devices if (device.kind, device.index) not in taken]
    wanted = sum(counts.values())
    if wanted > len(free):
        kinds = {device.kind for device in devices}
        holders = [
            f"{name} holds {count}"
            for name, group in held.items()
            if (count := sum(device.kind in kinds for device in group))
        ]
        raise CapacityError(
            f"{wanted} {word}s are wanted for {', '.join(name for name in counts if counts[name])}, "
            f"and {len(free)} of this computer's {len(devices)} are free"
            + (f" ({', '.join(holders)})" if holders else ""),
            hint="Stop or kill a machine that holds some, or ask for fewer."
            if holders
            else f"Ask for fewer, or declare some with TRAINYARD_LOCAL_{word}S={wanted}.",
        )
    pool = iter(free)
    return {name: tuple(next(pool) for _ in range(count)) for name, count in counts.items()}


def _declared(kind: DeviceKind, count: int | None, found: Sequence[Device]) -> tuple[Device, ...]:
    if count is None:
        return tuple(found)
    models = {device.index: device.model for device in found}
    return tuple(Device(kind, index, models.get(index, "")) for index in range(count))


def _find_gpus(search_path: str) -> list[Device]:
    text = _ask(search_path, "nvidia-smi", "--query-gpu=index,name", "--format=csv,noheader")
    rows = [line.split(",", 1) for line in text.splitlines()]
    return [
        Device(DeviceKind.GPU, int(row[0]), short_model(row[1]))
        for row in rows
        if len(row) == 2 and row[0].strip().isdigit()
    ]


def _find_npus(search_path: str) -> list[Device]:
    # The programs count chips, not cards, and skip cards that are missing.
    chips: list[int] = []
    for field, value in _NPU_FIELD.findall(_ask(search_path, "npu-smi", "info", "-l")):
        if field == "NPU ID":
            chips.append(1)
        elif chips:
            chips[-1] = int(value)
    return [Device(DeviceKind.NPU, index) for index in range(sum(chips))]


def _ask(search_path: str, tool: str, *arguments: str) -> str:
    """Return the output of a vendor's tool; '' if it is missing or fails, as it does without its driver."""
    program = shutil.which(tool, path=search_path)
    if program is None:
        return ""
    try:
        answer = subprocess.run(
            [program, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=TOOL_SECONDS,
            check=False,
            text=True,
            errors="replace",
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout if answer.returncode == 0 else ""
