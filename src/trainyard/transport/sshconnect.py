"""A connection of asyncssh that comes about with less: fewer packets, fewer round trips, options prepared once for many hosts.

What is left out is of no use to us; nothing about verifying hosts or about who gets in is changed. It leans on a few
inner names of asyncssh, all of them here. What to connect to and with which keys is `sshlink.py`'s matter.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Hashable
from functools import lru_cache
from typing import Any, cast

from asyncssh.constants import MSG_IGNORE
from asyncssh.packet import Boolean

from trainyard.transport.sshimport import asyncssh

MOST_PREPARED = 32  # sets of options; hosts that differ in name and port only share one

Options = asyncssh.SSHClientConnectionOptions


class Prepared:
    """Options by what they were made from: choosing algorithms and reading keys takes longer than a key exchange."""

    def __init__(self) -> None:
        self._options: dict[Hashable, Options] = {}

    def get(self, made_from: Hashable, make: Callable[[], Options]) -> Options:
        """A copy of one's own, which `connect` may fill in."""
        found = self._options.get(made_from)
        if found is None:
            if len(self._options) >= MOST_PREPARED:
                self._options.clear()
            found = self._options[made_from] = make()
        options = copy.copy(found)
        # A connection notes in a key which signature its server takes.
        options.client_keys = [copy.copy(key) for key in found.client_keys or ()]
        return options


async def connect(
    options: Options,
    host: str,
    port: int,
    *,
    client: asyncssh.SSHClient,
    known_hosts: Callable[..., Any],
    tunnel: asyncssh.SSHClientConnection | None,
) -> asyncssh.SSHClientConnection:
    """Connect and log in; `options` are used up. What asyncssh raises comes out as it is. Cancelling leaves nothing open."""
    loop = asyncio.get_running_loop()
    options.host, options.port = host, port
    options.protocol_factory = lambda: client
    options.known_hosts = known_hosts
    options.waiter = loop.create_future()

    def make() -> QuickConnection:
        return QuickConnection(loop, options)

    if tunnel is None:
        _, connection = await loop.create_connection(
            make, host, port, family=options.family, local_addr=options.local_addr
        )
    else:
        _, through = await tunnel.create_connection(make, host, port)  # type: ignore[arg-type]  # as asyncssh does
        connection = cast("QuickConnection", through)
    connection.set_extra_info(host=host, port=port)
    try:
        await options.waiter
    except BaseException:
        connection.abort()
        await connection.wait_closed()
        raise
    return connection


class QuickConnection(asyncssh.SSHClientConnection):
    """Offers its one key signed at once, and sends no empty packets where the cipher needs none."""

    def __init__(self, loop: asyncio.AbstractEventLoop, options: Options) -> None:
        super().__init__(loop, options, wait="auth")
        keys = options.client_keys or ()
        # Several keys are offered one by one before any is signed with: sshd counts refusals. A key that is not in
        # a plain file may want a touch or a passphrase.
        self._signs_at_once = (
            options.public_key_auth
            and not (options.agent_path or options.pkcs11_provider or options.preferred_auth)
            and len(keys) == 1
            and not keys[0].use_executor
        )
        self._offered: asyncssh.SSHKeyPair | None = None
        if self._signs_at_once:
            self._auth_methods = [b"publickey"]  # instead of asking which there are; a refusal says that too

    async def public_key_auth_requested(self) -> asyncssh.SSHKeyPair | None:
        """The next key to offer."""
        self._offered = await super().public_key_auth_requested()
        return self._offered

    async def send_userauth_request(
        self, method: bytes, *args: bytes, key: Any = None, trivial: bool = True
    ) -> None:
        """The question whether a key would be welcome becomes the request itself: a round trip less."""
        if method == b"publickey" and key is None and self._signs_at_once and self._offered is not None:
            args, key, trivial = (Boolean(True), *args[1:]), self._offered, False
        await super().send_userauth_request(method, *args, key=key, trivial=trivial)

    def send_packet(self, pkttype: int, *args: bytes, handler: Any = None) -> None:
        """Without the empty packet before each one: it guards the chaining of CBC ciphers, and these do not chain."""
        if pkttype == MSG_IGNORE and _is_authenticated(self.get_extra_info("send_cipher")):
            return
        super().send_packet(pkttype, *args, handler=handler)


@lru_cache
def _is_authenticated(cipher: str | None) -> bool:
    return cipher is not None and (
        cipher.endswith("-gcm@openssh.com") or cipher == "chacha20-poly1305@openssh.com"
    )
