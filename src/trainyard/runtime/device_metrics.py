"""Detailed metrics of NVIDIA devices beyond use and memory, under the names that DCGM gives them.

`nvidia-smi` is asked with every reading. DCGM is asked now and then, if it runs. A metric that neither tool reports is
left out. The server decides which of them a scrape shows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

# The columns of devices.sh that every driver knows, and the further ones that only some know.
BASIC: Mapping[str, str] = {
    "index": "",
    "name": "",
    "utilization.gpu": "gpu_util",
    "memory.used": "fb_used",
    "memory.total": "",
    "temperature.gpu": "gpu_temp",
    "power.draw": "power_usage",
}
FURTHER: Mapping[str, str] = {
    "uuid": "uuid",
    "utilization.memory": "mem_copy_util",
    "utilization.encoder": "enc_util",
    "utilization.decoder": "dec_util",
    "memory.free": "fb_free",
    "temperature.memory": "memory_temp",
    "clocks.current.sm": "sm_clock",
    "clocks.current.memory": "memory_clock",
    "clocks_throttle_reasons.active": "clock_throttle_reasons",
    "clocks_event_reasons.active": "clock_throttle_reasons",  # the name that newer drivers use
    "ecc.errors.corrected.volatile.total": "ecc_sbe_volatile_total",
    "ecc.errors.uncorrected.volatile.total": "ecc_dbe_volatile_total",
    "ecc.errors.corrected.aggregate.total": "ecc_sbe_aggregate_total",
    "ecc.errors.uncorrected.aggregate.total": "ecc_dbe_aggregate_total",
    "retired_pages.single_bit_ecc.count": "retired_pages_sbe",
    "retired_pages.double_bit.count": "retired_pages_dbe",
    "retired_pages.pending": "retired_pages_pending",
}
# Fields that only DCGM has. A version or a device knows either a whole group or none of it.
GROUPS: tuple[Mapping[int, str], ...] = (
    {
        156: "total_energy_consumption",
        202: "pcie_replay_counter",
        230: "xid_errors",
        240: "power_violation",
        241: "thermal_violation",
        242: "sync_boost_violation",
        243: "board_limit_violation",
        244: "low_util_violation",
        245: "reliability_violation",
        246: "app_clock_violation",
    },
    {200: "pcie_tx_throughput", 201: "pcie_rx_throughput"},
    {
        409: "nvlink_flit_crc_error_count_total",
        419: "nvlink_data_crc_error_count_total",
        429: "nvlink_replay_error_count_total",
        439: "nvlink_recovery_error_count_total",
        449: "nvlink_bandwidth_total",
    },
    {
        1001: "gr_engine_active",
        1002: "sm_active",
        1003: "sm_occupancy",
        1004: "tensor_active",
        1005: "dram_active",
    },
    {1006: "fp64_active", 1007: "fp32_active", 1008: "fp16_active"},
    {1009: "pcie_tx_bytes", 1010: "pcie_rx_bytes", 1011: "nvlink_tx_bytes", 1012: "nvlink_rx_bytes"},
)
# Columns of `nvidia-smi dmon`, and the factor from their unit to DCGM's.
DMON: Mapping[str, tuple[str, float]] = {
    "pci": ("pcie_replay_counter", 1.0),
    "rxpci": ("pcie_rx_throughput", 1000.0),
    "txpci": ("pcie_tx_throughput", 1000.0),
}
NAMES = frozenset(
    name
    for name in (
        *BASIC.values(),
        *FURTHER.values(),
        *(name for group in GROUPS for name in group.values()),
        *(name for name, _ in DMON.values()),
    )
    if name not in {"", "uuid"}
)

_DCGM = {str(number): name for group in GROUPS for number, name in group.items()}
_BITS = re.compile(r"0[xX][0-9a-fA-F]{1,16}")
_UUID = re.compile(r"GPU-[0-9a-fA-F-]{8,72}")
_BLANK = (0x7FFFFFF0, 1 << 47)  # each of these and the fifteen numbers after it mean "no value" in DCGM
_MOST = 1 << 62  # every number from here on means "no value" too
_WORDS = {"Yes": 1.0, "No": 0.0}


@dataclass(slots=True)
class Figures:
    """The metrics of one device."""

    uuid: str = ""
    values: dict[str, float] = field(default_factory=dict)


def wanted() -> str:
    """Return the column names that devices.sh must ask for."""
    return f"gpu_wanted='{' '.join(FURTHER)}'\n"


def profile_script() -> str:
    """Return the script that asks DCGM, which is slow. `parse` understands its output."""
    groups = " ".join(",".join(map(str, group)) for group in GROUPS)
    return f"dcgm_groups='{groups}'\n" + Path(__file__).with_name("profile.sh").read_text(encoding="utf-8")


def parse(text: str) -> dict[int, Figures]:
    """Parse the output of devices.sh and profile.sh into metrics by device. Unknown lines are skipped."""
    columns: dict[str, list[str]] = {"gpu": list(BASIC)}
    rows: dict[str, list[str]] = {"gpu": [], "dcgm": [], "dmon": []}
    for line in text.splitlines():
        key, _, rest = line.partition(" ")
        if key == "columns":
            tool, _, names = rest.partition(" ")
            columns[tool] = names.replace(",", " ").split()
        elif key in rows:
            rows[key].append(rest)
    found: dict[int, Figures] = {}
    for line in rows["gpu"]:
        _take_gpu(found, columns["gpu"], split_gpu(line, len(columns["gpu"])))
    by_uuid = {one.uuid: one for one in found.values() if one.uuid}
    for line in rows["dcgm"]:
        _take_dcgm(found, by_uuid, columns.get("dcgm", []), line.split())
    for line in rows["dmon"]:
        _take_dmon(found, columns.get("dmon", []), line.split())
    return found


def split_gpu(line: str, count: int) -> list[str]:
    """Split a line into the columns of one device; a name with a comma stays whole. Other lines give []."""
    words = [word.strip() for word in line.split(",")]
    surplus = len(words) - count
    if count < len(BASIC) or surplus < 0 or _index(words[0]) < 0:
        return []
    return [words[0], ", ".join(words[1 : 2 + surplus]), *words[2 + surplus :]]


def _take_gpu(found: dict[int, Figures], columns: list[str], words: list[str]) -> None:
    if not words:
        return
    one = found.setdefault(int(words[0]), Figures())
    for column, word in zip(columns, words, strict=True):
        name = BASIC.get(column) or FURTHER.get(column, "")
        if name == "uuid":
            one.uuid = word if _UUID.fullmatch(word) else ""
        elif name and (value := _value(word)) is not None:
            one.values[name] = value


def _take_dcgm(
    found: dict[int, Figures], by_uuid: Mapping[str, Figures], columns: list[str], words: list[str]
) -> None:
    """Merge a row of DCGM. A later row is newer, but it may lack a value that an earlier row has."""
    if len(words) != len(columns) + 2:
        return
    # DCGM numbers devices in its own way, so its number is used only if the UUID is not known.
    has_name = bool(by_uuid) and _UUID.fullmatch(words[1])
    one = by_uuid.get(words[1]) if has_name else found.get(_index(words[0]))
    if one is not None:
        one.values |= dict(_values(columns, words[2:]))


def _values(columns: list[str], words: list[str]) -> Iterator[tuple[str, float]]:
    for column, word in zip(columns, words, strict=True):
        value = _value(word)
        if column in _DCGM and value is not None:
            yield _DCGM[column], value


def _take_dmon(found: dict[int, Figures], columns: list[str], words: list[str]) -> None:
    if len(words) != len(columns) + 1:
        return
    one = found.get(_index(words[0]))
    for column, word in zip(columns, words[1:], strict=True):
        value = _value(word)
        if one is not None and column in DMON and value is not None:
            name, scale = DMON[column]
            one.values.setdefault(name, value * scale)


def _index(word: str) -> int:
    return int(word) if re.fullmatch("[0-9]{1,4}", word) else -1


def _value(word: str) -> float | None:
    """Parse a number. Drivers write [N/A], [Not Supported], N/A, N/W, - and more for an unknown value."""
    if not word[:1].isdecimal() and word[:1] != "-":  # excludes "nan" and "inf"
        return _WORDS.get(word)
    try:
        value = float(word)
    except ValueError:
        return float(int(word, 16)) if _BITS.fullmatch(word) else None
    is_blank = not -_MOST < value < _MOST or any(blank <= value < blank + 16 for blank in _BLANK)
    return None if is_blank else value
