"""The class SshAddress: how to reach a host and log in; and the arguments for the system's `ssh` program.

Nothing here opens a connection or imports asyncssh; `ssh_connect.py` does.
"""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from trainyard.lib.errors import InvalidError
from trainyard.lib.shell import join

DEFAULT_PORT = 22

_HOP = re.compile(r"(?:(?P<user>.+)@)?(?:\[(?P<v6>[^\]]+)\]|(?P<host>[^:@\[\]]+))(?::(?P<port>\d{1,5}))?\Z")


@dataclass(frozen=True, slots=True)
class SshAddress:
    """How to reach a host. Fields that are left out come from ssh's configuration file, then from ssh's defaults.

    `jump` holds the hosts to go through, nearest first; a text like `user@gate:2222` inherits everything else.
    `known_hosts` None means the configured files, else ~/.ssh/known_hosts; `config_file` None means ~/.ssh/config.
    Times are seconds.
    """

    host: str
    port: int = DEFAULT_PORT
    user: str = ""
    identity_files: tuple[str | Path, ...] = ()
    jump: tuple[SshAddress | str, ...] = ()
    known_hosts: Path | None = None
    config_file: Path | None = None
    connect_timeout: float = 15.0
    keepalive: float = 15.0

    def __post_init__(self) -> None:
        # A leading dash would become an option of the ssh program.
        for text in (self.host, self.user):
            if text.startswith("-") or any(letter.isspace() or letter == "\0" for letter in text):
                raise InvalidError(f"{text!r} cannot be part of an ssh address")
        if not self.host:
            raise InvalidError("an ssh address needs a host name")
        if not 0 < self.port < 65536:
            raise InvalidError(
                f"{self.port} is not a port of {self.host}", hint="Choose a port from 1 to 65535."
            )

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = f":{self.port}" if self.port != DEFAULT_PORT else ""
        return f"{self.user}@{host}{port}" if self.user else f"{host}{port}"

    @property
    def effective_config_file(self) -> Path | None:
        """The configuration file that is used; None if there is none."""
        path = self.config_file or Path.home() / ".ssh" / "config"
        return path if path.is_file() else None

    def hops(self) -> tuple[SshAddress, ...]:
        """The jump hosts as full addresses, nearest first."""
        chain: list[SshAddress] = []
        for hop in self.jump:
            full = parse_address(hop, like=self) if isinstance(hop, str) else hop
            chain += [*full.hops(), replace(full, jump=())]
        return tuple(chain)


def parse_address(text: str, *, like: SshAddress | None = None) -> SshAddress:
    """`user@host:port` → an address; keys, files and times are taken from `like`."""
    match = _HOP.match(text.strip())
    if match is None:
        raise InvalidError(f"{text!r} is not an ssh address", hint="Write it as user@host:port.")
    host, user = match["v6"] or match["host"], match["user"] or ""
    port = int(match["port"] or DEFAULT_PORT)
    if like is None:
        return SshAddress(host, port, user)
    return replace(like, host=host, port=port, user=user, jump=())


def ssh_argv(address: SshAddress, command: str = "", *, terminal: bool = True) -> list[str]:
    """Return the command line of the system's `ssh` with the same keys, known hosts and jump hosts."""
    return [*_ssh_words(address, address.hops()), "-t" if terminal else "-T", *_target(address, command)]


def _names_known_hosts(config: Path) -> bool:
    try:
        return "userknownhostsfile" in config.read_text(errors="replace").lower()
    except OSError:
        return False


def _account_home() -> Path | None:
    try:
        return Path(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:  # a container's uid without an account
        return None


def _ssh_words(address: SshAddress, hops: Sequence[SshAddress]) -> list[str]:
    config = address.effective_config_file
    words = ["ssh", "-F", str(config) if config else "none"]
    if address.port != DEFAULT_PORT:
        words += ["-p", str(address.port)]
    for path in address.identity_files:
        words += ["-i", str(Path(path).expanduser())]
    if address.identity_files:
        words += [
            "-o",
            "IdentitiesOnly=yes",
        ]  # sshd counts every offered key of an agent as a failed login
    # ssh looks in the account's home and ignores $HOME. We look in $HOME, and both must read the same files.
    known_hosts = address.known_hosts
    if known_hosts is None and (
        config is None or (Path.home() != _account_home() and not _names_known_hosts(config))
    ):
        known_hosts = Path.home() / ".ssh" / "known_hosts"
    if known_hosts is not None:
        words += ["-o", f"UserKnownHostsFile={_option_value(str(known_hosts))}"]
    words += ["-o", "StrictHostKeyChecking=yes"]
    words += ["-o", f"ConnectTimeout={max(1, round(address.connect_timeout))}"]
    words += ["-o", f"ServerAliveInterval={max(1, round(address.keepalive))}"]
    if config is None:
        # Debian's own configuration file sets this, and `-F` ignores that file. So the user's language reaches tmux.
        words += ["-o", "SendEnv=LANG LC_*"]
    if hops:
        # -J is not used, because a jump host reached by it gets neither our keys nor our known hosts.
        nearest = [*_ssh_words(hops[-1], hops[:-1]), *_target(hops[-1], "")]
        words += [
            "-o",
            f"ProxyCommand={_percent_safe(join(nearest[:1]))} -W %h:%p {_percent_safe(join(nearest[1:]))}",
        ]
    return words


def _target(address: SshAddress, command: str) -> list[str]:
    # -l and --: neither a user nor a host can be taken for an option or be split at an @.
    user = ["-l", address.user] if address.user else []
    return [*user, "--", address.host, *([command] if command else [])]


def _percent_safe(text: str) -> str:
    return text.replace("%", "%%")


def _option_value(text: str) -> str:
    """Quote one value of an `-o` option, because ssh splits at spaces and expands percent signs."""
    if "\n" in text:
        raise InvalidError(f"ssh cannot take the path {text!r}", hint="Choose a path without a line break.")
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{_percent_safe(escaped)}"'
