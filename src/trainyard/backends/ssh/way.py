"""The way to a host: one ssh connection for its leases and for the machine on it.

How addresses, keys and connections work is `transport/ssh.py`'s matter. Here an inventory entry becomes an address, and
a machine gets a transport that marks its processes and refuses work while the machine is stopped.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from trainyard.backends.ssh.inventory import Host, Inventory
from trainyard.lib.errors import InvalidError, UnreachableError
from trainyard.transport.api import NO_ENV, ByteStream, Completed, Process, TerminalSize
from trainyard.transport.ssh import SshAddress, SshTransport
from trainyard.transport.sshaddress import DEFAULT_PORT
from trainyard.transport.sshpool import Pool

MARK = "TRAINYARD_MACHINE"


class HostTransport(SshTransport):
    """The way to a host, for our own scripts: what runs over it belongs to no machine."""

    def __init__(self, host: Host, inventory: Inventory) -> None:
        super().__init__(address_of(host, inventory), name=host.name)
        self.host = host

    @property
    def pool(self) -> Pool:
        """The connections, to be shared with the machine on the host."""
        return self._pool

    @property
    def is_closed(self) -> bool:
        """Whether somebody has closed it; it stays so."""
        return self._pool.is_closed


class MachineTransport(SshTransport):
    """The way to a machine, over the host's connections. Every process gets the machine's mark, see processes.sh."""

    def __init__(self, host: HostTransport, *, env: Mapping[str, str]) -> None:
        super().__init__(host.address, name=host.name, env=env)
        self._pool = host.pool
        self._refusal = ""

    def is_apart_from(self, host: HostTransport) -> bool:
        """Whether it goes over connections that are no longer the host's."""
        return self._pool is not host.pool

    def refuse(self, reason: str) -> None:
        """Run nothing from now on, and say why; an empty reason opens the way again."""
        self._refusal = reason

    async def run(
        self,
        script: str,
        *,
        stdin: bytes = b"",
        env: Mapping[str, str] = NO_ENV,
        timeout: float | None = None,
    ) -> Completed:
        """Run `script` and wait; UnreachableError while the machine is stopped. So with the other verbs."""
        self._check()
        return await super().run(script, stdin=stdin, env=env, timeout=timeout)

    async def spawn(
        self, script: str, *, env: Mapping[str, str] = NO_ENV, terminal: TerminalSize | None = None
    ) -> Process:
        """Start `script`."""
        self._check()
        return await super().spawn(script, env=env, terminal=terminal)

    async def put(self, source: Path, target: str) -> None:
        """Copy one file to the machine."""
        self._check()
        await super().put(source, target)

    async def get(self, source: str, target: Path) -> None:
        """Copy one file from the machine."""
        self._check()
        await super().get(source, target)

    async def connect(self, port: int) -> ByteStream:
        """Open a stream to a port of the machine."""
        self._check()
        return await super().connect(port)

    def _check(self) -> None:
        if self._refusal:
            raise UnreachableError(self._refusal, hint="Start it with `trainyard start`.")


class Runner(Protocol):
    """The little of a transport that the scripts of this package need."""

    name: str

    async def run(self, script: str, *, timeout: float | None = None) -> Completed:
        """Run a script and wait."""
        ...


def address_of(host: Host, inventory: Inventory, *, seen: tuple[str, ...] = ()) -> SshAddress:
    """The address of a host. A jump host may be another host of the inventory, or any name that ssh knows."""
    if host.name in seen:
        raise InvalidError(
            f"the way to {seen[0]} leads through {host.name} twice", hint=f"Correct jump in {inventory.path}."
        )
    jump: list[SshAddress | str] = []
    for hop in host.jump:
        known = inventory.hosts.get(hop)
        jump.append(address_of(known, inventory, seen=(*seen, host.name)) if known else hop)
    return SshAddress(
        host.target,
        port=host.port or DEFAULT_PORT,
        user=host.user,
        identity_files=tuple(_local_path(key, inventory) for key in host.key),
        jump=tuple(jump),
        known_hosts=_local_path(host.known_hosts, inventory) if host.known_hosts else None,
        config_file=_local_path(host.ssh_config, inventory) if host.ssh_config else None,
    )


def _local_path(text: str, inventory: Inventory) -> Path:
    """A path in the inventory: `~` is the client's home, and a relative one is relative to the file."""
    return inventory.path.parent / Path(text).expanduser()
