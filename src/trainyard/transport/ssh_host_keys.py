"""Host keys: looks them up in known_hosts files, explains unknown ones, and adds accepted ones.

asyncssh verifies host keys while a connection opens (`ssh_connect.py`) and asks `KnownHosts` for them.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import asyncssh

from trainyard.lib.errors import DeniedError, InvalidError
from trainyard.lib.files import lock, write_atomic
from trainyard.transport.ssh_address import DEFAULT_PORT, SshAddress

GLOBAL_KNOWN_HOSTS = Path("/etc/ssh/ssh_known_hosts")
_WILD = frozenset("*?!")


@dataclass(frozen=True, slots=True)
class HostKey:
    """The key that a host showed: algorithm, fingerprint as ssh-keygen prints it, and the public line."""

    algorithm: str
    fingerprint: str
    line: str

    @classmethod
    def of(cls, key: asyncssh.SSHKey) -> HostKey:
        """Describe a key that asyncssh has read."""
        words = key.export_public_key("openssh").decode().split()
        return cls(words[0], key.get_fingerprint("sha256"), " ".join(words[:2]))


def known_name(host: str, port: int) -> str:
    """Return the name of a host in known_hosts."""
    return host if port == DEFAULT_PORT else f"[{host}]:{port}"


@dataclass
class KnownHosts:
    """The known_hosts files for one connection attempt, and their entries for the host."""

    files: Sequence[Path]
    is_direct: bool = True
    is_known: bool = field(default=False, init=False)

    def match(self, host: str, addr: str, port: int | None) -> Sequence[Sequence[object]]:
        """Return keys, authorities and revocations for this host to asyncssh.

        Only lines that may concern the host are parsed: reading a key takes 0.1 ms, and some files have thousands.
        """
        if not self.is_direct:
            addr = ""  # through a tunnel this is the jump host's address
        bare = {host, addr}
        names = {known_name(name, port or DEFAULT_PORT) for name in bare if name} | bare
        lines = [line for path in self.files for line in _candidate_lines(path, names)]
        try:
            found = asyncssh.import_known_hosts("\n".join(lines))
        except ValueError as error:
            raise InvalidError(
                f"a known_hosts file cannot be read: {error}", hint=f"Correct {_listed(self.files)}."
            ) from error
        keys = found.match(host, addr, port)
        # asyncssh falls back to the host's entry without a port. A key found only there proves nothing about this port.
        is_about_port = all(line.startswith("[") and "," not in line.split(None, 1)[0] for line in lines)
        fallback = found.match(host, addr, None)[0] if port and not is_about_port else []
        self.is_known = bool(keys[0]) and not (port and list(keys[0]) == list(fallback))
        return [*keys[:5], [], []]


def refusal(name: str, address: str, key: HostKey, *, changed: bool) -> DeniedError:
    """Return the error for a host key that is not known or differs from the known one."""
    accept = f"run `trainyard hosts accept {name} --fingerprint {key.fingerprint}`"
    if changed:
        return DeniedError(
            f"THE HOST KEY OF {address} HAS CHANGED: it now shows the {key.algorithm} key {key.fingerprint}, "
            "which is not the known one; either it was installed anew, or somebody is listening in",
            hint=f"Ask whoever runs the host; only if this fingerprint is right, {accept}.",
        )
    return DeniedError(
        f"the host key of {address} is not known: it shows the {key.algorithm} key {key.fingerprint}",
        hint=f"Compare the fingerprint with the host's own; if it is the same, {accept}.",
    )


def remember(path: Path, host: str, port: int, key: HostKey) -> None:
    """Write `key` as the only known key of the host. Safe to run twice and from several clients at once."""
    path = path.expanduser().resolve()
    name = known_name(host, port)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with lock(path.with_name(f".{path.name}.lock")):
        old = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
        kept = [line for line in (_without(line, name, key) for line in old.splitlines()) if line is not None]
        entry = f"{name} {key.line}"
        if entry not in kept:
            kept.append(entry)
        text = "\n".join(kept) + "\n"
        if text != old:
            mode = path.stat().st_mode & 0o777 if path.exists() else 0o600
            write_atomic(path, text, mode=mode)


def known_hosts_files(address: SshAddress, configured: Callable[[str], Sequence[str]]) -> Sequence[Path]:
    """Return the known_hosts files for `address`; `configured` looks up a list in ssh's configuration file."""
    if address.known_hosts is not None:
        return (address.known_hosts.expanduser(),)
    own = [Path(name).expanduser() for name in configured("UserKnownHostsFile") if name.lower() != "none"]
    shared = [
        Path(name).expanduser() for name in configured("GlobalKnownHostsFile") if name.lower() != "none"
    ]
    return (*(own or [Path.home() / ".ssh" / "known_hosts"]), *(shared or [GLOBAL_KNOWN_HOSTS]))


def _candidate_lines(path: Path, names: set[str]) -> Iterator[str]:
    try:
        facts = path.stat()
        entries = _entries(path, facts.st_mtime_ns, facts.st_size, facts.st_ino)
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise DeniedError(
            f"{path} cannot be read: {error.strerror}", hint="Correct its permissions."
        ) from error
    for line, pattern, listed in entries:
        if listed is not None:
            if not names.isdisjoint(listed):
                yield line
        elif not pattern.startswith("|") or any(_is_hash_of(pattern, name) for name in names):
            yield line


@lru_cache(maxsize=8)
def _entries(path: Path, *_version: int) -> Sequence[tuple[str, str, frozenset[str] | None]]:
    """Return the lines of a file, each with its pattern and, unless it is hashed or has wildcards, its names.

    The result is cached until the file changes, because a job on many hosts asks once for each.
    """
    entries: list[tuple[str, str, frozenset[str] | None]] = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        words = line.split(None, 2)
        if len(words) < 2 or words[0].startswith("#"):
            continue
        pattern = words[1] if words[0].startswith("@") else words[0]
        is_plain = not pattern.startswith("|") and _WILD.isdisjoint(pattern)
        entries.append((line, pattern, frozenset(pattern.split(",")) if is_plain else None))
    return entries


def _is_hash_of(pattern: str, name: str) -> bool:
    """Return whether `pattern` is the hash of `name` in the form `|1|salt|hash` that HashKnownHosts writes."""
    parts = pattern.split("|")
    if len(parts) != 4 or parts[1] != "1":
        return False
    try:
        salt, wanted = base64.b64decode(parts[2]), base64.b64decode(parts[3])
    except ValueError:
        return False
    return hmac.compare_digest(hmac.new(salt, name.encode(), hashlib.sha1).digest(), wanted)


def _without(line: str, name: str, key: HostKey) -> str | None:
    """Remove `name` from a line that has another key. Returns None if no name is left."""
    words = line.split(None, 1)
    if len(words) < 2 or words[0].startswith(("#", "@")) or words[1].split()[:2] == key.line.split():
        return line
    if words[0].startswith("|"):
        return None if _is_hash_of(words[0], name) else line
    names = words[0].split(",")
    if name not in names:
        return line
    left = [other for other in names if other != name]
    return f"{','.join(left)} {words[1]}" if left else None


def _listed(files: Sequence[Path]) -> str:
    return " or ".join(os.fspath(path) for path in files)
