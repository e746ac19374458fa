"""Probes a host with one script, parses the answer into facts and judges problems. `cache.py` stores the facts."""

from __future__ import annotations

import ipaddress
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from trainyard.backends.ssh.connect import Runner
from trainyard.lib.errors import UnreachableError
from trainyard.lib.units import format_size
from trainyard.spec.hardware import short_model
from trainyard.spec.machine import Device, DeviceKind

SCRIPT = Path(__file__).with_name("probe.sh").read_text()
PROBE_SECONDS = 60.0  # two drivers that hang, twenty seconds each, and the rest
LARGEST_SKEW_SECONDS = 5.0  # beyond this, make and rsync misjudge what is newer, and tokens expire early
LEAST_DISK_MIB = 5 * 1000**3 // 2**20  # 5 GB: less holds no conda environment

_INSTALL = {
    "apt-get": "sudo apt-get install -y",
    "dnf": "sudo dnf install -y",
    "yum": "sudo yum install -y",
    "apk": "sudo apk add",
    "zypper": "sudo zypper install -y",
    "pacman": "sudo pacman -S --noconfirm",
}
_CLOCK = re.compile(r"\d+(\.\d+)?")


class Problem(NamedTuple):
    """A problem of a host: an `error` prevents its use, a `warning` may surprise."""

    severity: str
    sentence: str
    hint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """The facts that the probe found. Empty and zero mean unknown."""

    home: str = ""
    user: str = ""
    uid: int = -1
    os: str = ""
    kernel: str = ""
    arch: str = ""
    cores: int = 0
    memory_mib: int = 0
    disk_free_mib: int = 0
    devices: tuple[Device, ...] = ()
    reached: str = ""  # the host's own address that our connection came in by
    addresses: tuple[str, ...] = ()
    tools: frozenset[str] = frozenset()
    packages: str = ""  # the host's package manager
    tmux_version: str = ""
    bash_version: str = ""
    shell: str = ""
    device_errors: tuple[str, ...] = ()
    has_proc: bool = False
    is_home_writable: bool = False
    skew_seconds: float | None = None  # how far the host's clock is ahead of ours
    skew_doubt_seconds: float = 0.0

    @property
    def gpus(self) -> int:
        """How many GPUs."""
        return sum(device.kind is DeviceKind.GPU for device in self.devices)

    @property
    def npus(self) -> int:
        """How many NPUs."""
        return sum(device.kind is DeviceKind.NPU for device in self.devices)

    @property
    def own_address(self) -> str:
        """Where other hosts of the same network reach it: the loopback address of who tests, else a private one."""
        if self.reached and _ip(self.reached).is_loopback:
            return self.reached
        candidates = [text for text in (self.reached, *self.addresses) if text and ":" not in text]
        private = [text for text in candidates if _ip(text).is_private and not _ip(text).is_loopback]
        return next(iter(private or candidates), self.reached)


async def probe(transport: Runner) -> HostFacts:
    """Ask a host what it is. Changes nothing there."""
    sent = time.time()
    completed = await transport.run(SCRIPT, timeout=PROBE_SECONDS)
    received = time.time()
    if completed.status:
        said = completed.stderr.decode(errors="replace").strip()
        raise UnreachableError(f"{transport.name} cannot be probed: {said or completed.status}")
    return parse(completed.stdout.decode(errors="replace"), sent=sent, received=received)


def parse(text: str, *, sent: float | None = None, received: float | None = None) -> HostFacts:
    """Lines of key=value → facts; foreign lines (a talkative login script) are passed over."""
    pairs = [line.partition("=")[::2] for line in text.splitlines() if "=" in line]
    one = dict(pairs)
    skew, doubt = _skew(one, sent, received)
    return HostFacts(
        home=_unhex(one.get("home_hex", "")),
        user=one.get("user", ""),
        uid=_count(one, "uid", -1),
        os=one.get("os", ""),
        kernel=one.get("kernel", ""),
        arch=one.get("arch", ""),
        cores=_count(one, "cores"),
        memory_mib=_count(one, "memory_mib"),
        disk_free_mib=_count(one, "disk_free_mib"),
        devices=_devices(pairs),
        reached=one.get("reached", "") if _is_ip(one.get("reached", "")) else "",
        addresses=tuple(dict.fromkeys(v for k, v in pairs if k == "address" and _is_ip(v))),
        tools=frozenset(value for key, value in pairs if key == "tool"),
        packages=one.get("packages", ""),
        tmux_version=one.get("tmux_version", ""),
        bash_version=one.get("bash_version", ""),
        shell=one.get("shell", ""),
        device_errors=tuple(one[key] for key in ("gpu_error", "npu_error") if key in one),
        has_proc=one.get("proc") == "yes",
        is_home_writable=one.get("home_writable") == "yes",
        skew_seconds=skew,
        skew_doubt_seconds=doubt,
    )


def problems(facts: HostFacts) -> list[Problem]:
    """What a person should know before using the host; errors first."""
    found = [*_missing_tools(facts)]
    if not facts.is_home_writable:
        found.append(
            Problem(
                "error", f"the home directory {facts.home} cannot be written to", "Correct its owner or mode."
            )
        )
    if not facts.has_proc:
        found.append(
            Problem("error", "there is no /proc, so processes cannot be found and ended", "Mount /proc.")
        )
    if facts.disk_free_mib < LEAST_DISK_MIB:
        free = format_size(facts.disk_free_mib * 2**20)
        found.append(
            Problem("warning", f"only {free} are free in {facts.home}", "Delete what is not needed.")
        )
    if facts.skew_seconds is not None:
        certain = abs(facts.skew_seconds) - facts.skew_doubt_seconds
        if certain > LARGEST_SKEW_SECONDS:
            way = "ahead of" if facts.skew_seconds > 0 else "behind"
            found.append(
                Problem(
                    "warning",
                    f"its clock is {abs(facts.skew_seconds):.0f} s {way} this computer's",
                    "Switch time synchronisation on: `sudo timedatectl set-ntp true`.",
                )
            )
    found += [
        Problem("warning", f"its accelerators do not answer: {said}", "Check the driver on the host.")
        for said in facts.device_errors
    ]
    return sorted(found, key=lambda problem: problem.severity != "error")


def _missing_tools(facts: HostFacts) -> Sequence[Problem]:
    wanted = {
        "tmux": ("error", "sessions need it"),
        "tar": ("error", "copying needs it"),
        "find": ("error", "copying needs it"),
        "sha256sum": ("error", "copying needs it"),
        "grep": ("error", "stopping needs it"),
        "bash": ("warning", "sessions will use sh"),
        "rsync": ("warning", "task.rsync needs it"),
    }
    package = {"find": "findutils", "sha256sum": "coreutils"}
    install = _INSTALL.get(facts.packages, "install")
    return [
        Problem(
            severity,
            f"{tool} is missing, and {why}",
            f"Run `{install} {package.get(tool, tool)}` on the host.",
        )
        for tool, (severity, why) in wanted.items()
        if tool not in facts.tools
    ]


def _skew(one: Mapping[str, str], sent: float | None, received: float | None) -> tuple[float | None, float]:
    """How far the host is ahead, and how far that may be wrong: half of the time that was spent on the way."""
    begin, end = _seconds(one.get("clock", "")), _seconds(one.get("clock_end", ""))
    if sent is None or received is None or begin is None or end is None:
        return None, 0.0
    on_the_way = max(0.0, (received - sent) - (end - begin))
    # A clock without fractions may be up to a second behind itself.
    coarse = 0.0 if "." in one["clock"].rstrip(".") else 1.0
    return begin - (sent + on_the_way / 2), on_the_way / 2 + coarse


def _seconds(text: str) -> float | None:
    match = _CLOCK.match(text)
    return float(match[0]) if match else None


def _devices(pairs: Sequence[Sequence[str]]) -> tuple[Device, ...]:
    devices = []
    for key, value in pairs:
        if key not in (DeviceKind.GPU, DeviceKind.NPU):
            continue
        index, _, rest = value.partition(",")
        if index.strip().isdigit():
            devices.append(Device(DeviceKind(key), int(index), short_model(rest.split(",")[0])))
    return tuple(devices)


def _count(one: Mapping[str, str], key: str, default: int = 0) -> int:
    text = one.get(key, "")
    return int(text) if text.isdigit() else default


def _unhex(text: str) -> str:
    try:
        return bytes.fromhex(text).decode(errors="surrogateescape")
    except ValueError:
        return ""


def _ip(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    return ipaddress.ip_address(text.partition("%")[0])


def _is_ip(text: str) -> bool:
    try:
        _ip(text)
    except ValueError:
        return False
    return True
