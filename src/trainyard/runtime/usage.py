"""Reads a machine's use of processors, memory, disk and accelerators with one shell script over any Transport.

If a tool or a file is missing on the machine, its value is left out and nothing fails. `cli/` shows the values.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from trainyard.lib.shell import quote
from trainyard.runtime import device_metrics
from trainyard.spec.hardware import short_model
from trainyard.spec.machine import DeviceKind
from trainyard.transport.api import Transport

_PATIENCE_SECONDS = 30.0  # two vendor tools with 5 s each, on a machine that is busy training
_COUNTERS = re.compile(r"\d+ \d+ \d+\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceUsage:
    """The use of one accelerator. None means that the driver does not report the value."""

    kind: DeviceKind
    index: int
    model: str = ""
    busy_percent: float | None = None
    memory_used_mib: int | None = None
    memory_total_mib: int | None = None
    temperature_celsius: float | None = None
    power_watts: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """The use of one machine. None means that the value could not be read.

    `own_…` count only the machine's own processes where several machines share one computer (local ones), on the
    same scale: percent of all processors. `counters` go into the next reading as `previous`.
    """

    cpus: int = 0
    cpu_percent: float | None = None
    load: tuple[float, float, float] | None = None
    memory_used_mib: int | None = None
    memory_total_mib: int | None = None
    disk_used_mib: int | None = None
    disk_total_mib: int | None = None
    own_processes: int | None = None
    own_cpu_percent: float | None = None
    own_memory_mib: int | None = None
    devices: tuple[DeviceUsage, ...] = ()
    counters: str = ""


async def fetch_usage(transport: Transport, previous: Usage | None = None) -> Usage:
    """Read the use of a machine.

    Processor use is counted since `previous`; without it, over a fifth of a second.
    """
    done = await transport.run(script(previous), timeout=_PATIENCE_SECONDS)
    return parse(done.stdout.decode(errors="replace"))


def script(previous: Usage | None = None) -> str:
    """Return the script that reads a machine. `parse` understands its output."""
    counters = previous.counters if previous and _COUNTERS.match(previous.counters) else ""
    body = Path(__file__).with_name("usage.sh").read_text(encoding="utf-8")
    return f"previous={quote(counters)}\n{body}\n{devices_script()}"


def devices_script(*, in_detail: bool = False) -> str:
    """Return the script that reads accelerators only. `parse` understands its output.

    With `in_detail`, it prints more columns, which device_metrics.py understands.
    """
    body = Path(__file__).with_name("devices.sh").read_text(encoding="utf-8")
    return device_metrics.wanted() + body if in_detail else body


def parse(text: str) -> Usage:
    """Parse the output of the script. Unknown lines are skipped."""
    lines = [line.partition(" ")[::2] for line in text.splitlines()]
    single = {
        key: rest.strip() for key, rest in lines if key in {"before", "after", "own", "load", "cpus", "disk"}
    }
    memory = dict(_pairs(rest for key, rest in lines if key == "memory"))
    visible = dict(rest.partition(" ")[::2] for key, rest in lines if key == "visible")
    columns = dict(rest.partition(" ")[::2] for key, rest in lines if key == "columns").get("gpu", "")
    cpu, own_cpu = _percent(single.get("before", ""), single.get("after", ""))
    own = _numbers(single.get("own", ""))
    load = _numbers(single.get("load", ""))
    cpus = _numbers(single.get("cpus", ""))
    disk_total, disk_used = _disk(single.get("disk", ""))
    total = memory.get("MemTotal")
    return Usage(
        cpus=int(cpus[0]) if cpus else 0,
        cpu_percent=cpu,
        load=(load[0], load[1], load[2]) if len(load) >= 3 else None,
        memory_used_mib=(total - _available(memory)) // 1024 if total is not None else None,
        memory_total_mib=total // 1024 if total is not None else None,
        disk_used_mib=disk_used,
        disk_total_mib=disk_total,
        own_processes=int(own[0]) if len(own) == 2 else None,
        own_cpu_percent=own_cpu if len(own) == 2 else None,
        own_memory_mib=int(own[1]) // 1024 if len(own) == 2 else None,
        devices=(
            *_visible(
                _gpus([rest for key, rest in lines if key == "gpu"], columns), visible.get("gpu", "all")
            ),
            *_visible(_npus([rest for key, rest in lines if key == "npu"]), visible.get("npu", "all")),
        ),
        counters=single.get("after", ""),
    )


def _percent(before: str, after: str) -> tuple[float | None, float | None]:
    """Return the use of all processors and the machine's own share, in percent.

    Both are None if no time has passed or the machine has rebooted in between.
    """
    if not (_COUNTERS.match(before) and _COUNTERS.match(after)):
        return None, None
    busy, total, own = (int(new) - int(old) for old, new in zip(before.split(), after.split(), strict=True))
    if total <= 0:
        return None, None
    # A process that has ended takes its ticks with it, so the difference may be below zero.
    return _clamped(100 * busy / total), _clamped(100 * own / total)


def _clamped(percent: float) -> float:
    return round(min(100.0, max(0.0, percent)), 1)


def _available(memory: Mapping[str, int]) -> int:
    """Return the memory that programs could still get. Kernels before 3.14 do not report it themselves."""
    parts = ("MemFree", "Buffers", "Cached")
    return memory.get("MemAvailable", sum(memory.get(part, 0) for part in parts))


def _disk(line: str) -> tuple[int | None, int | None]:
    """`filesystem kibibytes used available percent mount`: total and used; a name may hold blanks."""
    match = re.search(r"\s(\d+)\s+(\d+)\s+-?\d+\s+\S+%\s", f" {line} ")
    return (int(match[1]) // 1024, int(match[2]) // 1024) if match else (None, None)


def _pairs(lines: Iterator[str]) -> Iterator[tuple[str, int]]:
    for line in lines:
        name, _, number = line.partition(" ")
        if number.isdigit():
            yield name, int(number)


def _numbers(text: str) -> list[float]:
    """Return the numbers at the beginning of a line."""
    found = []
    for word in text.split():
        number = _number(word)
        if number is None:
            break
        found.append(number)
    return found


def _number(text: str) -> float | None:
    """Parse a value. Drivers write [N/A] or [Not Supported] for an unknown one."""
    return float(text) if re.fullmatch(r"-?\d+(\.\d+)?", text.strip()) else None


def _whole(text: str) -> int | None:
    number = _number(text)
    return None if number is None else round(number)


def _gpus(lines: list[str], columns: str) -> Iterator[DeviceUsage]:
    count = len(columns.split(",")) if columns else len(device_metrics.BASIC)
    for line in lines:
        words = device_metrics.split_gpu(line, count)
        if not words:
            continue
        index, model, busy, used, total, temperature, power = words[: len(device_metrics.BASIC)]
        yield DeviceUsage(
            kind=DeviceKind.GPU,
            index=int(index),
            model=short_model(model),
            busy_percent=_number(busy),
            memory_used_mib=_whole(used),
            memory_total_mib=_whole(total),
            temperature_celsius=_number(temperature),
            power_watts=_number(power),
        )


def _npus(lines: list[str]) -> Iterator[DeviceUsage]:
    """Parse lines `key : value` in blocks that begin with the number of the device."""
    blocks: dict[int, dict[str, float]] = {}
    index = -1
    for line in lines:
        name, _, text = line.partition(":")
        number = _number(text)
        if number is None:
            continue
        key = re.sub(r"\(.*", "", name).strip().lower()
        if key == "npu id":
            index = int(number)
            blocks.setdefault(index, {})
        elif index >= 0:
            blocks[index].setdefault(key, number)
    for index, values in sorted(blocks.items()):
        # Training cards have HBM; small ones only DDR.
        memory = "hbm" if values.get("hbm capacity") else "ddr"
        total, rate = values.get(f"{memory} capacity"), values.get(f"{memory} usage rate")
        yield DeviceUsage(
            kind=DeviceKind.NPU,
            index=index,
            busy_percent=values.get("aicore usage rate"),
            memory_total_mib=None if total is None else int(total),
            memory_used_mib=None if total is None or rate is None else round(total * rate / 100),
        )


def _visible(devices: Iterator[DeviceUsage], selection: str) -> Iterator[DeviceUsage]:
    """Yield the devices that the machine was given. A selection by UUIDs is not understood and keeps all."""
    words = [word for word in selection.split(",") if word]
    numbers = {int(word) for word in words if word.isdigit()}
    for device in devices:
        if len(numbers) != len(words) or device.index in numbers:
            yield device
