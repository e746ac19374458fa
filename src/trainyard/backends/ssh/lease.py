"""Leases: who holds a host. lease.sh keeps them on the host itself, so that users with several computers agree.

A lease belongs to a unix account. Every user of that account may use, rename and give back the machine; other accounts
see the lease and may end it on purpose. `acquire.py` decides which host to take.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from trainyard.backends.ssh import probe
from trainyard.backends.ssh.connect import HostTransport, Runner
from trainyard.backends.ssh.inventory import Host
from trainyard.backends.ssh.probe import HostFacts
from trainyard.lib.errors import ConflictError, DeniedError, UnreachableError, UnsupportedError
from trainyard.lib.shell import join
from trainyard.spec.machine import MachineSpec
from trainyard.transport.api import Completed
from trainyard.transport.ssh_address import DEFAULT_PORT

RUNNING, STOPPED = "running", "stopped"
LEASE_SECONDS = 30.0  # a few file operations; a host that takes longer hangs
RELEASE_SECONDS = (
    60.0  # on top of the grace period: what is stuck in the kernel is given up after some seconds
)

_LEASE = Path(__file__).with_name("lease.sh").read_text()
_PROCESSES = Path(__file__).with_name("processes.sh").read_text()
_FOLDER = Path(__file__).with_name("folder.sh").read_text()

# The exit codes of lease.sh.
_HELD, _NOT_HELD, _NOT_WRITABLE, _BROKEN_DIR = 3, 4, 5, 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """One lease as its host tells it."""

    id: str
    name: str  # of the machine; empty where the file on the host is damaged
    owner: str = ""  # user@client
    taken: datetime | None = None
    type: str = ""
    image: str = ""
    state: str = RUNNING
    is_mine: bool = False  # the unix account that we log in with holds it
    facts: HostFacts = field(default_factory=HostFacts)  # as they were when it was taken

    @property
    def holder(self) -> str:
        """For people: `alice@mac (task0.bert) since 2026-01-01 10:00 UTC`."""
        since = f" since {self.taken:%Y-%m-%d %H:%M} UTC" if self.taken else ""
        return f"{self.owner or 'somebody'} ({self.name or 'unreadable'}){since}"


@dataclass(frozen=True, slots=True)
class Survey:
    """The answer of a host: its lease or None, and its facts if they were asked for."""

    lease: Lease | None
    facts: HostFacts | None = None


class TakenError(ConflictError):
    """Another client was quicker; `lease` is its lease."""

    def __init__(self, message: str, lease: Lease) -> None:
        super().__init__(message)
        self.lease = lease


async def survey(transport: Runner, host: Host, *, probing: bool = False) -> Survey:
    """Ask a host for its lease. With `probing`, a free host is also probed in the same script."""
    script, limit = _survey_script(host, probing=probing)
    text = await _run(transport, script, limit, expected=(0, _HELD))
    lease = _parse(text)
    return Survey(lease, probe.parse(text) if probing and lease is None else None)


async def survey_again(way: HostTransport, host: Host, seen: Lease, *, probing: bool = False) -> Survey:
    """Ask a host that was ours for its lease. If it still is ours, the shell is kept for the machine."""
    script, limit = _survey_script(host, probing=probing)
    try:
        status, text = await way.run_and_keep(script, machine=f"{seen.name}:{seen.id}", timeout=limit)
    except TimeoutError as error:
        raise _silent(way, limit) from error
    lease = _parse(text.decode(errors="replace")) if status == _HELD else None
    if lease is not None and lease.id == seen.id and lease.name == seen.name:
        return Survey(lease)
    await way.drop_kept()  # its mark is another machine's
    return await survey(way, host, probing=probing)


def _survey_script(host: Host, *, probing: bool) -> tuple[str, float]:
    script = _call(_LEASE, *_place(host), "show")
    if not probing:
        return script, LEASE_SECONDS
    return f"({script}) && ({_call(probe.SCRIPT, 'quick')})", LEASE_SECONDS + probe.PROBE_SECONDS


async def check_place(transport: Runner, host: Host) -> None:
    """DeniedError where leases cannot be kept on the host."""
    await _status(transport, _call(_LEASE, *_place(host), "check"))


async def take(
    transport: Runner, host: Host, *, lease_id: str, name: str, owner: str, now: datetime, spec: MachineSpec
) -> Lease:
    """Lease the host; TakenError where it is leased already. With the same `lease_id` again: no change."""
    content = {
        "name": name,
        "owner": owner,
        "taken": now.isoformat(timespec="seconds"),
        "type": spec.type,
        "image": spec.image,
    }
    lease_script = _call(_LEASE, *_place(host), "take", lease_id, json.dumps(content))
    script = f"({_call(probe.SCRIPT, 'quick')}) | ({lease_script})"
    text = await _run(transport, script, LEASE_SECONDS + probe.PROBE_SECONDS, expected=(0, _HELD))
    lease = _parse(text)
    if lease is None:
        raise UnreachableError(f"{transport.name} does not say who holds it")
    if lease.id != lease_id:
        raise TakenError(f"{transport.name} is leased by {lease.holder}", lease)
    return lease


async def end(
    transport: Runner, host: Host, lease_id: str, *, who: str, removing_folder_of: str = ""
) -> bool:
    """End a lease. Returns False if it is over already. With `removing_folder_of`, removes the folder first."""
    script = _call(_LEASE, *_place(host), "end", lease_id, who)
    if removing_folder_of:
        script = f"({_call(_FOLDER, 'remove', removing_folder_of)}); ({script})"
    return await _status(transport, script) == 0


async def revoke(transport: Runner, host: Host, lease_id: str, *, who: str) -> None:
    """End a lease whose request was never answered. After this it does not exist and cannot come to exist."""
    await _run(transport, _call(_LEASE, *_place(host), "revoke", lease_id, who), LEASE_SECONDS, expected=(0,))


async def set_state(transport: Runner, host: Host, lease_id: str, state: str) -> bool:
    """Note that the machine runs or is stopped; False where the lease is over."""
    return await _note(transport, host, lease_id, "state", state)


async def set_name(transport: Runner, host: Host, lease_id: str, *, old: str, new: str) -> bool:
    """Give the machine another name, its folder too; False where the lease is over."""
    move = _call(_FOLDER, "move", old, new)
    note = _call(_LEASE, *_place(host), "note", lease_id, "name", new)
    # The folder comes first. After a crash in between the lease has the old name, and renaming again finishes.
    return await _status(transport, f"({move}) && ({note})") == 0


async def end_processes(transport: Runner, lease_id: str, *, grace_seconds: float) -> None:
    """End every process of the lease's machine: SIGTERM, the grace period, SIGKILL."""
    tenths = str(max(0, round(grace_seconds * 10)))
    completed = await _ask(
        transport, _call(_PROCESSES, lease_id, tenths), limit=RELEASE_SECONDS + grace_seconds
    )
    if completed.status == 0:
        return
    said = completed.stderr.decode(errors="replace").strip()
    if completed.status == 1:
        raise DeniedError(
            f"processes {said} on {transport.name} do not end",
            hint="End them there as the account that owns them.",
        )
    if completed.status == _BROKEN_DIR:
        raise UnsupportedError(
            f"processes on {transport.name} cannot be ended: {said}", hint="Mount /proc there."
        )
    raise UnreachableError(f"{transport.name} broke off ending processes: {said or completed.status}")


async def _note(transport: Runner, host: Host, lease_id: str, kind: str, text: str) -> bool:
    script = _call(_LEASE, *_place(host), "note", lease_id, kind, text)
    return await _status(transport, script) == 0


async def _status(transport: Runner, script: str) -> int:
    completed = await _ask(transport, script, limit=LEASE_SECONDS)
    _check(transport, completed.status, completed.stderr, expected=(0, _NOT_HELD))
    return completed.status


async def _run(transport: Runner, script: str, limit: float, *, expected: tuple[int, ...]) -> str:
    completed = await _ask(transport, script, limit=limit)
    _check(transport, completed.status, completed.stderr, expected=expected)
    return completed.stdout.decode(errors="replace")


async def _ask(transport: Runner, script: str, *, limit: float) -> Completed:
    try:
        return await transport.run(script, timeout=limit)
    except TimeoutError as error:
        raise _silent(transport, limit) from error


def _silent(transport: Runner, limit: float) -> UnreachableError:
    return UnreachableError(f"{transport.name} did not answer within {limit:.0f} s")


def _check(transport: Runner, status: int, stderr: bytes, *, expected: tuple[int, ...]) -> None:
    if status in expected:
        return
    said = stderr.decode(errors="replace").strip().rpartition("\n")[2] or f"status {status}"
    if status == _NOT_WRITABLE:
        raise DeniedError(
            f"leases cannot be kept on {transport.name}: {said}",
            hint="Run `chmod 1777` on that folder, or set lease_dir for the host.",
        )
    if status == _BROKEN_DIR:
        raise DeniedError(
            f"leases cannot be kept on {transport.name}: {said}",
            hint="Free some space there, or set lease_dir.",
        )
    raise UnreachableError(f"{transport.name} gave no sensible answer: {said}")


def _call(script: str, *words: str) -> str:
    """A script of ours with its arguments, as one text."""
    return f"set -- {join(words)}\n{script}"


def _place(host: Host) -> tuple[str, str]:
    return host.lease_dir, str(host.port or DEFAULT_PORT)


def _parse(text: str) -> Lease | None:
    lines = text.splitlines()
    values = dict(line.partition("=")[::2] for line in lines if "=" in line and not line.startswith("fact:"))
    if not values.get("id"):
        return None
    try:
        content = json.loads(values.get("lease", ""))
    except json.JSONDecodeError:
        content = {}
    if not isinstance(content, dict):
        content = {}
    facts = "\n".join(line.removeprefix("fact:") for line in lines if line.startswith("fact:"))
    return Lease(
        id=values["id"],
        name=values.get("name") or str(content.get("name", "")),
        owner=str(content.get("owner", "")),
        taken=_time(str(content.get("taken", ""))),
        type=str(content.get("type", "")),
        image=str(content.get("image", "")),
        state=STOPPED if values.get("state") == STOPPED else RUNNING,
        is_mine=values.get("mine") == "yes",
        facts=probe.parse(facts),
    )


def _time(text: str) -> datetime | None:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo else None
