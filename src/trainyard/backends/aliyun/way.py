"""The way to a machine of Alibaba Cloud: ssh to its public address, with the host key that its tags tell.

Its sshd answers some seconds after the provider calls a machine running, and the first boot has some work to do
(`boot.sh`): the first connection waits for both. Imports asyncssh, so it is imported on use.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

from trainyard.lib.clock import Clock
from trainyard.lib.errors import DeniedError, UnreachableError
from trainyard.lib.files import write_atomic
from trainyard.transport.ssh import SshAddress, SshTransport
from trainyard.transport.sshimport import asyncssh
from trainyard.transport.sshkeys import known_name
from trainyard.transport.sshlink import Link

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 1.0

_BOOTED = Path(__file__).with_name("booted.sh").read_text(encoding="utf-8")


class InstanceTransport(SshTransport):
    """A way to one instance. It refuses work while the machine is stopped."""

    def __init__(
        self,
        address: SshAddress,
        *,
        name: str,
        clock: Clock,
        admit: Callable[[], Awaitable[bool]] | None = None,
    ) -> None:
        super().__init__(address, name=name)
        self._clock = clock
        self._deadline = 0.0  # until when silence is put down to booting
        self._admit = admit  # lets the provider put our key in
        self._refusal = ""
        self._is_booted = False

    def refuse(self, reason: str) -> None:
        """Open no connection from now on, and say why; an empty reason opens the way again."""
        self._refusal = reason

    def expect(self, seconds: float) -> None:
        """It may be booting for so long."""
        self._deadline = self._clock.monotonic() + seconds

    async def _open_link(self) -> Link:
        if self._refusal:
            raise UnreachableError(self._refusal, hint="Start it with `trainyard start`.")
        pause = FIRST_PAUSE
        while True:
            try:
                link = await self._open_admitted()
                break
            except UnreachableError:
                if self._clock.monotonic() >= self._deadline:
                    raise
            await self._clock.sleep(pause)
            pause = min(pause * 1.5, LONGEST_PAUSE)
        try:
            await self._until_booted(link)
        except BaseException:
            await link.aclose()
            raise
        return link

    async def _open_admitted(self) -> Link:
        """Open a connection; where our key is not known there, let the provider put it in, once."""
        try:
            return await super()._open_link()
        except DeniedError as error:
            if not isinstance(error.__cause__, asyncssh.PermissionDenied) or self._admit is None:
                raise
            if not await self._admit():
                raise
        return await super()._open_link()

    async def _until_booted(self, link: Link) -> None:
        if self._is_booted:
            return
        try:
            done = await link.connection.run(_BOOTED, check=False)
        except (asyncssh.Error, OSError) as error:
            raise UnreachableError(f"the connection to {self.name} was lost while it booted") from error
        said = done.stdout or b""
        problems = (said if isinstance(said, str) else bytes(said).decode(errors="replace")).strip()
        if problems:
            raise UnreachableError(
                f"the first boot of {self.name} went wrong: {'; '.join(problems.splitlines())}",
                hint=f"Look with `trainyard ssh {self.name}` into /var/log/cloud-init-output.log, or release it.",
            )
        self._is_booted = True


def write_known_hosts(folder: Path, instance_id: str, *, address: str, port: int, host_key: str) -> Path:
    """A file that knows this one machine's key, under the address it has now."""
    path = folder / instance_id
    line = f"{known_name(address, port)} {host_key}\n"
    with suppress(OSError):
        if path.read_text(encoding="utf-8") == line:
            return path
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_atomic(path, line, mode=0o600)
    return path
