"""The client's cache of the last known state of hosts. It may be deleted at any time.

It is needed to list a machine whose host is silent as lost, and to show the hardware of hosts without asking them
again. The leases themselves are on the hosts, see `lease.py`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from trainyard.backends.ssh.inventory import Host
from trainyard.backends.ssh.lease import Lease
from trainyard.backends.ssh.probe import HostFacts
from trainyard.lib.files import lock, write_atomic
from trainyard.spec.machine import Device, DeviceKind

MOST_DOUBTFUL = 8  # such leases are rare; old ones can be dropped
SILENT_FOR = timedelta(minutes=10)  # how long a silent host is given less time to answer


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedHost:
    """The last known state of one host."""

    target: str = ""  # a host that was given another address is another host
    facts: HostFacts | None = None
    lease: Lease | None = None  # ours, when it last answered
    silent_since: datetime | None = None
    to_end: tuple[str, ...] = ()  # leases that a call of ours may have taken before the connection broke


class Cache:
    """One file; each change reads, changes and replaces it under a lock."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._loaded: tuple[tuple[int, int, int], Mapping[str, CachedHost]] | None = None

    def load(self) -> Mapping[str, CachedHost]:
        """What is remembered, by host name; nothing where the file is missing or unreadable."""
        try:
            facts = self._path.stat()
            version = facts.st_mtime_ns, facts.st_size, facts.st_ino
            if self._loaded is None or self._loaded[0] != version:
                document = json.loads(self._path.read_text(encoding="utf-8"))
                self._loaded = version, {name: _seen(entry) for name, entry in document.items()}
            return self._loaded[1]
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return {}

    def seen(self, host: Host) -> CachedHost:
        """Return the cached state of one host."""
        return self.seen_all([host])[host.name]

    def seen_all(self, hosts: Iterable[Host]) -> dict[str, CachedHost]:
        """What is remembered of these hosts, by name; the file is read once."""
        entries = self.load()
        found = {}
        for host in hosts:
            entry = entries.get(host.name)
            found[host.name] = (
                entry if entry and entry.target == _target(host) else CachedHost(target=_target(host))
            )
        return found

    def note(self, changes: Mapping[str, CachedHost]) -> None:
        """Remember this of these hosts. A folder that cannot be written to is no error: this is a cache."""
        with suppress(OSError), lock(self._path.with_name(f".{self._path.name}.lock")):
            before = self.load()
            after = {**before, **changes}
            if after != before:
                text = json.dumps({name: asdict(seen) for name, seen in after.items()}, default=_plain)
                write_atomic(self._path, text)

    def forget(self, name: str) -> None:
        """Remove the host from the cache."""
        with suppress(OSError), lock(self._path.with_name(f".{self._path.name}.lock")):
            entries = {key: asdict(seen) for key, seen in self.load().items() if key != name}
            write_atomic(self._path, json.dumps(entries, default=_plain))


def doubtful(seen: CachedHost, lease_id: str) -> CachedHost:
    """Remember to end a lease that may have been taken in vain."""
    return replace(seen, to_end=(*seen.to_end, lease_id)[-MOST_DOUBTFUL:])


def answered(seen: CachedHost, lease: Lease | None, facts: HostFacts | None = None) -> CachedHost:
    """Return the cache entry for a host that has answered."""
    ours = lease if lease and lease.is_mine else None
    return replace(seen, lease=ours, silent_since=None, facts=facts or seen.facts)


def kept_silent(seen: CachedHost, now: datetime) -> CachedHost:
    """Return the cache entry for a host that has not answered. The start of the silence expires after a while."""
    since = seen.silent_since
    return replace(seen, silent_since=since if since and now - since < SILENT_FOR else now)


def is_silent(seen: CachedHost, now: datetime) -> bool:
    """Whether the host was silent lately."""
    return seen.silent_since is not None and timedelta() <= now - seen.silent_since < SILENT_FOR


def _target(host: Host) -> str:
    return f"{host.user}@{host.target}:{host.port}"


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, frozenset):
        return sorted(value)
    raise TypeError(f"{value!r} cannot be kept")


def _seen(entry: Mapping[str, Any]) -> CachedHost:
    lease = entry["lease"]
    return CachedHost(
        target=entry["target"],
        facts=_facts(entry["facts"]) if entry["facts"] else None,
        lease=_lease(lease) if lease else None,
        silent_since=_moment(entry["silent_since"]),
        to_end=tuple(entry["to_end"]),
    )


def _lease(entry: Mapping[str, Any]) -> Lease:
    values = {each.name: entry[each.name] for each in fields(Lease)}
    return Lease(**{**values, "taken": _moment(entry["taken"]), "facts": _facts(entry["facts"])})


def _facts(entry: Mapping[str, Any]) -> HostFacts:
    values = {each.name: entry[each.name] for each in fields(HostFacts)}
    devices = [Device(DeviceKind(each["kind"]), each["index"], each["model"]) for each in entry["devices"]]
    tuples = {name: tuple(entry[name]) for name in ("addresses", "device_errors")}
    return HostFacts(**{**values, **tuples, "devices": tuple(devices), "tools": frozenset(entry["tools"])})


def _moment(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None
