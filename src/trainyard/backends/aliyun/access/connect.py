"""The transport to a machine of Alibaba Cloud: ssh to its public address, with the host key from the provider.

The key is asked of the provider once (`host_keys.py`) and kept in a file; a machine that shows another one is refused
unless the provider tells that one too, as after a new system disk. Its sshd answers some seconds after the provider
calls a machine running, and the first boot has some work to do (`boot.sh`): the first connection waits for both.
Imports asyncssh, so it is imported on use.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from trainyard.lib.clock import Clock
from trainyard.lib.errors import CapacityError, DeniedError, Error, UnreachableError
from trainyard.lib.files import write_atomic
from trainyard.transport.ssh import SshAddress, SshTransport, fetch_host_key
from trainyard.transport.ssh_connect import SshConnection
from trainyard.transport.ssh_host_keys import known_name
from trainyard.transport.ssh_import import asyncssh

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 1.0
ANSWER_SECONDS = 5.0
LEAST_PATIENCE = 75.0  # for its key; the provider needs a minute to find that a machine has no assistant

_BOOTED = Path(__file__).with_name("booted.sh").read_text(encoding="utf-8")
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class KnownKey:
    """The file that holds the host key of one machine, under the address that it has now."""

    path: Path
    host: str
    port: int

    def read(self) -> str:
        """The key, whatever address it was written under; '' where none is known."""
        try:
            words = self.path.read_text(encoding="utf-8").split()
        except OSError:
            return ""
        return " ".join(words[1:3]) if len(words) >= 3 else ""

    def write(self, host_key: str) -> None:
        """Keep the key. Twice is once."""
        line = f"{known_name(self.host, self.port)} {host_key}\n"
        with suppress(OSError):
            if self.path.read_text(encoding="utf-8") == line:
                return
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomic(self.path, line, mode=0o600)


class InstanceTransport(SshTransport):
    """The transport to one instance. It refuses work while the machine is stopped."""

    def __init__(
        self,
        address: SshAddress,
        *,
        name: str,
        clock: Clock,
        known: KnownKey,
        fetch_key: Callable[[float], Awaitable[str]],
        admit: Callable[[], Awaitable[bool]] | None = None,
    ) -> None:
        super().__init__(address, name=name)
        self._clock = clock
        self._known = known
        self._fetch_key = fetch_key  # asks the provider, for so many seconds
        self._host_key = known.read()
        self._learning = asyncio.Lock()
        self._deadline = 0.0  # until when silence is put down to booting
        self._admit = admit  # lets the provider put our key in
        self._refusal = ""
        self._is_booted = False

    def refuse(self, reason: str) -> None:
        """Refuse connections with this reason from now on. An empty reason allows them again."""
        self._refusal = reason

    def expect(self, seconds: float) -> None:
        """It may be booting for so long."""
        self._deadline = self._clock.monotonic() + seconds

    async def _open_link(self) -> SshConnection:
        if self._refusal:
            raise UnreachableError(self._refusal, hint="Start it with `trainyard start`.")
        pause = FIRST_PAUSE
        while True:
            try:
                await self.prepare()
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

    async def prepare(self) -> None:
        """Ask the provider for the host key where it is not known yet, once the machine answers at all.

        Only then: before its sshd runs, an image of another machine may still hold that one's keys.
        """
        async with self._learning:
            if not self._host_key:
                await self._check_answering()
                self._keep(await self._fetch_key(self._patience()))

    async def _check_answering(self) -> None:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                _reader, writer = await asyncio.open_connection(self.address.host, self.address.port)
        except OSError:  # TimeoutError is one
            await fetch_host_key(
                self.address
            )  # as ssh's configuration wants it, perhaps by way of another host
        else:
            writer.transport.abort()

    def _patience(self) -> float:
        return max(LEAST_PATIENCE, self._deadline - self._clock.monotonic())

    def _keep(self, host_key: str) -> None:
        try:
            self._known.write(host_key)
        except OSError as error:
            raise CapacityError(
                f"the ssh host key of {self.name} cannot be kept in {self._known.path.parent}: {error.strerror}",
                hint="Make room there, or correct the permissions of that folder.",
            ) from error
        self._host_key = host_key

    async def _open_admitted(self) -> SshConnection:
        """Open a connection; where our key is not known there, let the provider put it in, once."""
        try:
            return await self._open_verified()
        except DeniedError as error:
            if not isinstance(error.__cause__, asyncssh.PermissionDenied) or self._admit is None:
                raise
            if not await self._admit():
                raise
        return await self._open_verified()

    async def _open_verified(self) -> SshConnection:
        """Open a connection; a host key that is not the known one has to be the one that the provider tells now."""
        try:
            return await super()._open_link()
        except DeniedError as error:
            if not _is_about_host_key(error):
                raise
            await self._learn_again(error)
        try:
            return await super()._open_link()
        except DeniedError as error:
            if not _is_about_host_key(error):
                raise
            raise self._refusal_of_key("the provider tells another") from error

    async def _learn_again(self, refusal: DeniedError) -> None:
        """Take the key that the provider tells, where that is not the one we knew."""
        try:
            key = await self._fetch_key(LEAST_PATIENCE)
        except Error as error:
            raise self._refusal_of_key(error.message) from refusal
        if key == self._host_key:
            raise self._refusal_of_key("the provider tells another") from refusal
        logger.warning("%s has another ssh host key than before, and the provider confirms it", self.name)
        self._keep(key)

    def _refusal_of_key(self, reason: str) -> DeniedError:
        return DeniedError(
            f"{self.address.host}:{self.address.port} shows an ssh host key that is not that of {self.name}: {reason}; "
            "somebody may be listening in",
            hint="Try from another network; if it stays so, release the machine.",
        )

    async def _until_booted(self, link: SshConnection) -> None:
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


def _is_about_host_key(error: DeniedError) -> bool:
    """Whether the machine showed another key than the known one, or has none of its kind."""
    return isinstance(error.__cause__, asyncssh.HostKeyNotVerifiable | asyncssh.KeyExchangeFailed)
