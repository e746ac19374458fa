"""Transports to a host and to the machine on it, over one shared ssh connection.

An inventory entry becomes an address here. The transport of a machine marks its processes and refuses work while the
machine is stopped. `transport/ssh.py` handles keys and connections.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from trainyard.backends.ssh.inventory import Host, Inventory
from trainyard.lib.aio import finish
from trainyard.lib.errors import InvalidError, UnreachableError
from trainyard.lib.ids import new_id
from trainyard.lib.shell import exports
from trainyard.transport.api import NO_ENV, ByteStream, Completed, Process, TerminalSize
from trainyard.transport.ssh import SshAddress, SshTransport, entering, login_command
from trainyard.transport.ssh_address import DEFAULT_PORT
from trainyard.transport.ssh_channel import CommandSession
from trainyard.transport.ssh_pool import Pool, PooledConnection

MARK = "TRAINYARD_MACHINE"

_KEEP = Path(__file__).with_name("keep.sh").read_text()


@dataclass(frozen=True)
class _Kept:
    """An idle shell on the host that is kept for the next script."""

    mark: str  # one of its arguments, so that ending the machine finds it
    place: PooledConnection
    session: CommandSession
    release: Callable[[object], None]  # of its place, when it ends

    @property
    def is_usable(self) -> bool:
        return self.session.is_running and not self.session.closed.done() and not self.place.link.is_lost


class HostTransport(SshTransport):
    """The transport to a host for our own scripts. Its processes belong to no machine."""

    def __init__(self, host: Host, inventory: Inventory) -> None:
        super().__init__(address_of(host, inventory), name=host.name)
        self.host = host
        self._kept: _Kept | None = None

    @property
    def pool(self) -> Pool:
        """The connections, to be shared with the machine on the host."""
        return self._pool

    @property
    def is_closed(self) -> bool:
        """Whether it was closed. It cannot be opened again."""
        return self._pool.is_closed

    async def run_and_keep(self, script: str, *, machine: str, timeout: float) -> tuple[int, bytes]:
        """Run `script` as `run` does; return status and output. The shell is kept for the machine's next script.

        Starting a shell is most of the cost of a short script. `machine` is the mark of the machine that it is kept for.
        """
        await self.drop_kept()
        token, mark = new_id(), f"{MARK}={machine}"
        text = f"token={token}\n(\n{script}\n) </dev/null\n{_KEEP}"
        async with asyncio.timeout(timeout):
            place, session = await self._start(login_command(entering(text), mark), stays=True)
            kept = _Kept(mark, place, session, lambda _closed: self._pool.release_spawn(place))
            session.closed.add_done_callback(kept.release)
            said, ending = bytearray(), f"\n{token} ".encode()
            try:
                while (end := said.find(ending)) < 0 or said.find(b"\n", end + 1) < 0:
                    piece = await session.out.take()
                    if not piece:  # it ended early
                        return await asyncio.shield(session.status), bytes(said)
                    said += piece
            except BaseException:
                await finish(self._leave(session, kill=True))
                raise
        self._kept = kept
        return int(said[end + len(ending) :]), bytes(said[:end])

    def take_kept(self, env: Mapping[str, str]) -> tuple[PooledConnection, CommandSession] | None:
        """Return the kept shell of the machine with this environment, ready for statements; None if there is none."""
        kept, become = self._kept, f"{exports(env)}exec /bin/sh -s\n"
        if (
            kept is None
            or kept.mark != f"{MARK}={env.get(MARK)}"
            or "\n" in become[:-1]
            or not kept.is_usable
        ):
            return None
        self._kept = None
        self._running.discard(kept.session)
        kept.session.closed.remove_done_callback(kept.release)  # the new owner counts it
        kept.session.begin_with(become.encode(errors="surrogateescape"))
        return kept.place, kept.session

    async def drop_kept(self) -> None:
        """End the kept shell if it was not used, by closing its input."""
        kept, self._kept = self._kept, None
        if kept is not None and not kept.session.closed.done():
            kept.session.write_eof()
            await kept.session.abandon()

    async def aclose(self) -> None:
        """End what was started and not detached, then let go of the connections. Twice is no error."""
        await finish(self.drop_kept())
        await super().aclose()


class MachineTransport(SshTransport):
    """The transport to a machine over the host's connections. It marks every process, see processes.sh."""

    def __init__(self, host: HostTransport, *, env: Mapping[str, str]) -> None:
        super().__init__(host.address, name=host.name, env=env)
        self._host = host
        self._pool = host.pool
        self._refusal = ""

    def is_apart_from(self, host: HostTransport) -> bool:
        """Return whether it uses connections that are no longer the host's."""
        return self._pool is not host.pool

    def refuse(self, reason: str) -> None:
        """Refuse all work with this reason from now on. An empty reason allows work again."""
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

    async def _begin_shell(self, env: Mapping[str, str]) -> tuple[PooledConnection, CommandSession]:
        kept = self._host.take_kept(env)
        if kept is None:
            return await super()._begin_shell(env)
        self._running.add(kept[1])
        kept[1].closed.add_done_callback(lambda _closed: self._running.discard(kept[1]))
        return kept

    def _check(self) -> None:
        if self._refusal:
            raise UnreachableError(self._refusal, hint="Start it with `trainyard start`.")


class Runner(Protocol):
    """The part of a transport that the scripts of this package need."""

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
