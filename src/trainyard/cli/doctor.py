"""`doctor`: checks the set-up of this computer and suggests fixes. Each check is a function that yields findings."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from trainyard import settings as settings_module
from trainyard.cli.invocation import current
from trainyard.cli.terminal.output import printable, wrap
from trainyard.cli.verb import PlainVerb
from trainyard.lib.errors import Error
from trainyard.lib.units import format_size
from trainyard.settings import Settings

if TYPE_CHECKING:
    from trainyard.backends.api import Backend
    from trainyard.spec.machine import Machine

OK, NOTE, BROKEN = "ok", "note", "broken"
STYLES = {OK: "green", NOTE: "yellow", BROKEN: "red"}
LEAST_FREE = 5 * 10**9  # less holds no conda environment
LARGEST_SKEW_SECONDS = 5.0
EARLIEST_YEAR = 2024
TOOL_SECONDS = 10.0
MARGIN = 19  # where texts begin


class Finding(NamedTuple):
    """What a check found; `fix` says what to do about it."""

    check: str
    state: str
    text: str
    fix: str = ""


@click.command("doctor", cls=PlainVerb)
def doctor_command() -> int:
    """Check this computer: Python, tmux, ssh, the home, devices, hosts, cloud, clock. Status 1 if something is broken."""
    invocation = current()
    findings = list(_examine())
    broken = [finding for finding in findings if finding.state == BROKEN]
    if invocation.json:
        invocation.output.json([finding._asdict() for finding in findings])
        return 1 if broken else 0
    width = min(invocation.output.width or 10**6, 100)
    for finding in findings:
        label = invocation.output.paint(f"{finding.state:<6}", STYLES[finding.state])
        text = wrap(printable(finding.text), width, MARGIN)
        invocation.output.line(f"{label}  {finding.check:<10} {text}")
        if finding.fix:
            invocation.output.line(" " * MARGIN + wrap(printable(finding.fix), width, MARGIN))
    if broken:
        invocation.output.line(f"{len(broken)} of {len(findings)} checks found something broken", "red")
    else:
        invocation.output.line("all that is needed is there", "green")
    return 1 if broken else 0


def _examine() -> Iterator[Finding]:
    try:
        settings = settings_module.load()
    except Error as error:
        yield Finding("settings", BROKEN, error.message, error.hint)
        return
    for check in CHECKS:
        yield from check(settings)


def _python(_settings: Settings) -> Iterator[Finding]:
    version = ".".join(map(str, sys.version_info[:3]))
    yield Finding("python", OK, f"Python {version} at {sys.executable}")


def _tools(settings: Settings) -> Iterator[Finding]:
    has_hosts = settings.hosts_file.exists()
    yield _tool("tmux", ["-V"], needed=True, why="sessions run in it")
    yield _tool("bash", ["--version"], needed=False, why="sessions use plain sh instead")
    yield _tool(
        "ssh", ["-V"], needed=has_hosts, why="`ssh` and `tmux` to hosts need it", package="openssh-client"
    )
    yield _tool("tar", ["--version"], needed=True, why="copying needs it")


def _tool(name: str, arguments: list[str], *, needed: bool, why: str, package: str = "") -> Finding:
    path = shutil.which(name)
    if path is None:
        fix = f"Run `{_installer()} {package or name}`."
        return Finding(name, BROKEN if needed else NOTE, f"not installed; {why}", fix)
    try:
        done = subprocess.run(
            [path, *arguments],
            capture_output=True,
            text=True,
            timeout=TOOL_SECONDS,
            check=False,
            errors="replace",
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Finding(
            name, BROKEN if needed else NOTE, f"does not run: {error}", f"Install {package or name} again."
        )
    lines = (done.stdout or done.stderr).strip().splitlines()
    return Finding(name, OK, lines[0][:60].strip() if lines else path)


def _installer() -> str:
    for tool, words in (
        ("apt-get", "apt-get install"),
        ("dnf", "dnf install"),
        ("yum", "yum install"),
        ("apk", "apk add"),
        ("zypper", "zypper install"),
        ("pacman", "pacman -S"),
        ("brew", "brew install"),
    ):
        if shutil.which(tool):
            return words if os.getuid() == 0 or tool == "brew" else f"sudo {words}"
    return "install"


def _home(settings: Settings) -> Iterator[Finding]:
    home = settings.home
    place = next(folder for folder in (home, *home.parents) if folder.exists())
    try:
        before = time.time()
        with tempfile.NamedTemporaryFile(dir=place, prefix=".trainyard-doctor-") as file:
            skew = os.fstat(file.fileno()).st_mtime - before
    except OSError as error:
        yield Finding(
            "home",
            BROKEN,
            f"{_short(home, settings)} cannot be written: {error.strerror}",
            "Make it writable, or set TRAINYARD_HOME to a folder that is.",
        )
        return
    yield Finding("home", OK, f"{_short(home, settings)} can be written")
    free = shutil.disk_usage(place).free
    if free < LEAST_FREE:
        yield Finding(
            "disk", NOTE, f"only {format_size(free)} are free in {place}", "Delete what is not needed."
        )
    else:
        yield Finding("disk", OK, f"{format_size(free)} free")
    yield _clock(skew)


def _short(path: Path, settings: Settings) -> str:
    """`~` for the person's home."""
    home = settings.environ.get("HOME", "")
    return f"~{str(path).removeprefix(home)}" if home and str(path).startswith(f"{home}/") else str(path)


def _clock(skew: float) -> Finding:
    if time.gmtime().tm_year < EARLIEST_YEAR:
        stamp = time.strftime("%Y-%m-%d", time.gmtime())
        return Finding("clock", BROKEN, f"says {stamp}", "Set it: `timedatectl set-ntp true`.")
    if abs(skew) > LARGEST_SKEW_SECONDS:
        text = f"{skew:+.0f} s between this computer and the disk of the home"
        return Finding("clock", NOTE, text, "Switch time synchronisation on at both ends.")
    return Finding("clock", OK, time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()))


def _machines(settings: Settings) -> Iterator[Finding]:
    """Damaged machines, devices and loopback addresses of the local backend."""
    import asyncio

    from trainyard.backends.local.addresses import free_addresses
    from trainyard.backends.local.devices import find_devices
    from trainyard.backends.registry import open_backend
    from trainyard.spec.machine import MachineState

    devices = find_devices(
        gpus=settings.local_gpus, npus=settings.local_npus, search_path=settings.environ.get("PATH", "")
    )
    declared = " (declared)" if settings.local_gpus is not None or settings.local_npus is not None else ""
    yield Finding("devices", OK, f"{len(devices.gpus)} GPUs, {len(devices.npus)} NPUs{declared}")
    try:
        machines = asyncio.run(_listed(open_backend("local", settings)))
        free_addresses(1, used=[machine.address for machine in machines], seed=str(settings.home))
    except Error as error:
        yield Finding("machines", BROKEN, error.message, error.hint)
        return
    except OSError as error:
        yield Finding(
            "machines", BROKEN, f"{error.filename}: {error.strerror}", "Correct its owner and mode."
        )
        return
    lost = [machine for machine in machines if machine.state is MachineState.LOST]
    for machine in lost:
        reason = machine.details.get("reason", "it is damaged")
        yield Finding(
            "machines",
            NOTE,
            f"{machine.name} is lost: {reason}",
            f"Release it: `trainyard kill {machine.name}`.",
        )
    if not lost:
        yield Finding("machines", OK, f"{len(machines)} local")
    yield from _loopback()


async def _listed(backend: Backend) -> list[Machine]:
    try:
        return list(await backend.machines())
    finally:
        await backend.aclose()


def _loopback() -> Iterator[Finding]:
    """Other addresses than 127.0.0.1 work without set-up on Linux, and not elsewhere."""
    import socket

    with socket.socket() as listener:
        try:
            listener.bind(("127.77.0.1", 0))
        except OSError as error:
            yield Finding(
                "loopback",
                BROKEN,
                f"127.77.0.1 cannot be used: {error.strerror}",
                "Run `ip link set lo up`; elsewhere than on Linux use ssh hosts.",
            )
            return
    yield Finding("loopback", OK, "127.77.x.y can be used")


def _hosts(settings: Settings) -> Iterator[Finding]:
    from trainyard.backends.ssh import inventory

    try:
        hosts = inventory.load(settings.hosts_file).hosts
    except Error as error:
        yield Finding("hosts", BROKEN, error.message, error.hint)
        return
    if not hosts:
        yield Finding("hosts", OK, "none yet; `trainyard hosts add NAME` adds one")
        return
    yield Finding(
        "hosts",
        OK,
        f"{len(hosts)} in {_short(settings.hosts_file, settings)}; `trainyard hosts check` probes them",
    )
    folder = Path(settings.environ.get("HOME", "~")).expanduser() / ".ssh"
    keys = [path for path in folder.glob("id_*") if path.suffix != ".pub"] if folder.is_dir() else []
    own = [path for host in hosts.values() for path in host.key]
    if not keys and not own and not settings.environ.get("SSH_AUTH_SOCK"):
        yield Finding(
            "keys", NOTE, "no private key in ~/.ssh, none in the inventory, no agent", "Run `ssh-keygen`."
        )
        return
    for path in [*keys, *(Path(text).expanduser() for text in own)]:
        yield from _key(path)
    if keys or own:
        count = len({*map(str, keys), *own})
        yield Finding("keys", OK, f"{count} private key{'' if count == 1 else 's'}")


def _cloud(settings: Settings) -> Iterator[Finding]:
    """Whether the cloud answers to the keys that there are; nothing where none are."""
    if not settings.has_cloud:
        return
    import asyncio

    from trainyard.backends.registry import open_backend

    try:
        machines = asyncio.run(_listed(open_backend("aliyun", settings)))
    except Error as error:
        yield Finding("cloud", BROKEN, error.message, error.hint)
        return
    where = settings.cloud.endpoint or settings.region
    yield Finding("cloud", OK, f"Alibaba Cloud answers at {where}, {len(machines)} machines of yours")


def _key(path: Path) -> Iterator[Finding]:
    try:
        mode = path.stat().st_mode & 0o077
    except OSError as error:
        yield Finding("keys", BROKEN, f"{path}: {error.strerror}", "Correct the path in the inventory.")
        return
    if mode:
        yield Finding(
            "keys", BROKEN, f"{path} can be read by others, so ssh refuses it", f"Run `chmod 600 {path}`."
        )


CHECKS: tuple[Callable[[Settings], Iterator[Finding]], ...] = (
    _python,
    _tools,
    _home,
    _machines,
    _hosts,
    _cloud,
)
