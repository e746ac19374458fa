"""Opens one ssh connection: configuration, keys, jump hosts, host key verification, and clear errors.

`ssh_channel.py` runs commands over a connection; `ssh_pool.py` shares and reopens connections. No exception of asyncssh
leaves these modules.
"""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import logging
import math
import os
import random
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import asyncssh
from asyncssh.config import SSHClientConfig

from trainyard.lib.errors import DeniedError, Error, InvalidError, UnreachableError
from trainyard.transport.ssh_address import DEFAULT_PORT, SshAddress, parse_address
from trainyard.transport.ssh_channel import CommandSession
from trainyard.transport.ssh_host_keys import HostKey, KnownHosts, known_hosts_files, refusal, remember

# asyncssh logs every command at level INFO, which only its own developers need.
logging.getLogger("asyncssh").setLevel(logging.WARNING)

# curve25519: 1 ms where the post-quantum exchanges cost 20 to 60; aes128-gcm: hardware does it, 2x chacha20.
# Both are only preferred; a host without them uses others. ssh's configuration file overrides them.
FAST_EXCHANGE = "^curve25519-sha256,curve25519-sha256@libssh.org"
FAST_CIPHERS = "^aes128-gcm@openssh.com,aes256-gcm@openssh.com"
KEEPALIVE_TRIES = 3  # the connection counts as lost after so many unanswered messages
# A host that is starting, or sshd's MaxStartups, refuses connections for a moment. Nothing has run, so trying again is
# safe. The pauses are random, because many connections may go through one jump host.
RETRY_DELAYS = (0.1, 0.3, 0.4)
DEFAULT_KEY_NAMES = ("id_ed25519", "id_ecdsa", "id_rsa", "id_ed25519_sk", "id_ecdsa_sk", "id_ed448")


class _Client(asyncssh.SSHClient):
    """asyncssh's events of one connection."""

    def __init__(self) -> None:
        self.refused_key: asyncssh.SSHKey | None = None
        self.on_lost: Callable[[Exception | None], None] | None = None
        self.lost = False

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has ended, with or without an error."""
        self.lost = True
        if self.on_lost is not None:
            self.on_lost(exc)

    def validate_host_public_key(self, host: str, addr: str, port: int, key: asyncssh.SSHKey) -> bool:  # noqa: ARG002  # asyncssh's signature
        """Refuse the key and remember it for the error message."""
        # asyncssh calls this only for a key that is not in the known hosts.
        self.refused_key = key
        return False


@dataclass(eq=False)
class SshConnection:
    """An open connection and the events it reports."""

    connection: asyncssh.SSHClientConnection
    client: _Client
    last_close: float = -math.inf  # when, by the loop's clock, a session on it was last closed
    _sessions: set[CommandSession] = field(default_factory=set, repr=False)

    @property
    def is_lost(self) -> bool:
        """Whether the connection can no longer be used."""
        return self.client.lost or self.connection.is_closed()

    def watch(self, session: CommandSession) -> None:
        """Keep track of a session on this connection until it closes."""
        self._sessions.add(session)
        session.closed.add_done_callback(lambda _closed: self._forget(session))

    def _forget(self, session: CommandSession) -> None:
        self._sessions.discard(session)
        if session.channel is not None:
            self.last_close = asyncio.get_running_loop().time()

    def held(self) -> list[CommandSession]:
        """All sessions that are open on this connection now."""
        return [each for each in self._sessions if each.channel is not None and not each.closed.done()]

    def host_key(self) -> HostKey:
        """The verified key of the host at the far end."""
        key = self.connection.get_server_host_key()
        if key is None:
            raise UnreachableError("the connection has no host key")
        return HostKey.of(key)

    async def aclose(self) -> None:
        """Close the connection and wait until it is closed, with a short time limit for a silent host."""
        self.connection.close()
        with contextlib.suppress(TimeoutError, asyncssh.Error, OSError):
            async with asyncio.timeout(2):
                await self.connection.wait_closed()
                return
        self.connection.abort()


async def open_link(address: SshAddress, *, name: str = "") -> SshConnection:
    """Connect, through the jump hosts if there are any.

    UnreachableError if a host on the way does not answer. DeniedError if a host key is unknown or has changed, or if
    no login key is accepted. Cancelling leaves nothing open.
    """
    *gates, last = _chain(address)
    tunnel: SshConnection | None = None
    try:
        for hop in gates:
            tunnel = await _connect_through(hop, tunnel, str(hop.address))
        return await _connect_through(last, tunnel, name or str(address))
    except BaseException:
        if tunnel is not None:
            tunnel.connection.abort()
        raise


def chain(address: SshAddress) -> tuple[SshAddress, ...]:
    """Return every host on the way, nearest first and the host itself last. Reads ssh's configuration."""
    hops = [hop.address for hop in _chain(address)]
    return tuple(replace(hop, jump=tuple(hops[:index])) for index, hop in enumerate(hops))


async def fetch_host_key(address: SshAddress) -> HostKey:
    """Ask the host for its key without trusting it. Hosts on the way to it must be known."""
    *before, whole = chain(address)
    tunnel = await open_link(before[-1]) if before else None
    attempt = _Attempt(_chain(whole)[-1], tunnel, str(whole), known=KnownHosts(()))
    try:
        await attempt.connect()
    except asyncssh.HostKeyNotVerifiable as error:
        if attempt.client.refused_key is not None:
            return HostKey.of(attempt.client.refused_key)
        raise await attempt.explain(error) from error
    except (asyncssh.Error, OSError) as error:
        raise await attempt.explain(error) from error
    finally:
        if tunnel is not None:
            await tunnel.aclose()
    raise UnreachableError(f"{attempt.hop.where} showed no host key")


async def accept_host_key(
    address: SshAddress, expected_fingerprint: str, known_hosts: Path | None = None
) -> HostKey:
    """Add the host to the known hosts if its key has `expected_fingerprint`. Removes its entries with other keys.

    Writes `known_hosts`, else the address's file, else ~/.ssh/known_hosts. DeniedError if the key is another one.
    """
    key = await fetch_host_key(address)
    if key.fingerprint != expected_fingerprint:
        raise DeniedError(
            f"{address} shows the key {key.fingerprint}, not {expected_fingerprint}",
            hint="Ask whoever runs the host for the right fingerprint.",
        )
    last = _chain(address)[-1]
    await asyncio.to_thread(remember, known_hosts or last.known_hosts[0], *last.known_as, key)
    return key


@dataclass(frozen=True)
class _Hop:
    """One host on the way: its address and its part of ssh's configuration file."""

    address: SshAddress
    config: SSHClientConfig
    config_path: Path | None

    @classmethod
    def of(cls, address: SshAddress) -> _Hop:
        path = address.effective_config_file
        user, port = address.user or (), () if address.port == DEFAULT_PORT else address.port
        try:
            config = SSHClientConfig.load(
                None, [path] if path else [], False, False, False, _local_user(), user, address.host, port
            )
        except (asyncssh.ConfigParseError, OSError, ValueError) as error:
            raise InvalidError(f"ssh's configuration file {path} cannot be read: {error}") from error
        return cls(address, cast("SSHClientConfig", config), path)

    @property
    def host(self) -> str:
        return str(self.config.get("Hostname") or self.address.host)

    @property
    def port(self) -> int:
        return int(cast("int", self.config.get("Port", self.address.port)))

    @property
    def user(self) -> str:
        return str(self.config.get("User") or _local_user())

    @property
    def where(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def known_as(self) -> tuple[str, int]:
        """The host and port that known_hosts uses for it."""
        return str(self.config.get("HostKeyAlias") or self.host), self.port

    @property
    def known_hosts(self) -> Sequence[Path]:
        return known_hosts_files(self.address, self.listed)

    def listed(self, option: str) -> Sequence[str]:
        """Return a list option of the configuration file."""
        return cast("Sequence[str]", self.config.get(option, ()) or ())

    def key_files(self) -> list[str]:
        """Return the key files to offer; an empty list means ssh's default ones."""
        named = [Path(path).expanduser() for path in self.address.identity_files]
        if named and not any(path.exists() for path in named):
            raise InvalidError(
                f"the key file {named[0]} for {self.where} does not exist", hint="Correct its path."
            )
        named = named or [Path(path).expanduser() for path in self.listed("IdentityFile")]
        return [str(path) for path in named if path.exists()]

    def agent_identities(self) -> tuple[()] | list[str]:
        """Return the agent's keys to offer. If keys are named, only those, since sshd counts every offer as a failure."""
        files = self.key_files() if self.address.identity_files else []
        public = [f"{path}.pub" for path in files]
        return public if public and all(Path(path).exists() for path in public) else ()

    def arguments(self) -> dict[str, Any]:
        """Return the arguments for `asyncssh.connect`."""
        address, config = self.address, self.config
        return {
            "host": address.host,
            "port": self.port,
            "username": self.user,
            "config": [str(self.config_path)] if self.config_path else None,
            "client_keys": [_loaded(path) for path in self.key_files()],  # none = ssh's default files
            "agent_identities": self.agent_identities(),
            "ignore_encrypted": True,  # an agent may hold it; where nobody does, the refusal names the file
            "password_auth": False,
            "kbdint_auth": False,
            "gss_kex": False,
            "gss_auth": False,
            "host_based_auth": False,
            "kex_algs": config.get("KexAlgorithms", FAST_EXCHANGE),
            "encryption_algs": config.get("Ciphers", FAST_CIPHERS),
            "compression_algs": config.get_compression_algs() or "none",
            "keepalive_interval": address.keepalive,
            "keepalive_count_max": KEEPALIVE_TRIES,
            "login_timeout": address.connect_timeout,
            "x509_trusted_certs": None,
            "command": None,
            "env": None,
            "send_env": None,
            "request_pty": False,
            "agent_forwarding": False,
            "x11_forwarding": False,
            "encoding": None,
        }


def _loaded(path: str) -> asyncssh.SSHKey | str:
    """Load a private key once for all connections, because checking an RSA key takes 0.2 s.

    Returns the path if asyncssh must load the key itself.
    """
    if os.path.exists(f"{path}-cert.pub"):  # noqa: PTH110  # one of a thousand
        return path
    try:
        facts = os.stat(path)  # noqa: PTH116  # same
        return _read_key(path, facts.st_mtime_ns, facts.st_size, facts.st_ino)
    except (OSError, asyncssh.KeyImportError):  # gone, locked, or none: asyncssh says which
        return path


@lru_cache(maxsize=32)
def _read_key(path: str, *_version: int) -> asyncssh.SSHKey:
    return asyncssh.read_private_key(path)


def _chain(address: SshAddress) -> tuple[_Hop, ...]:
    gates, last = address.hops(), _Hop.of(replace(address, jump=()))
    if gates:
        return (*(_Hop.of(gate) for gate in gates), last)
    proxy = str(last.config.get("ProxyJump", "") or "")
    if proxy.lower() in ("", "none"):
        return (last,)
    near = [parse_address(word, like=replace(address, identity_files=())) for word in proxy.split(",")]
    return (*(hop for gate in near for hop in _chain(gate)), last)


def _local_user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's uid without a name
        return str(os.getuid())


async def _connect_through(hop: _Hop, tunnel: SshConnection | None, label: str) -> SshConnection:
    for delay in (*RETRY_DELAYS, None):
        attempt = _Attempt(hop, tunnel, label, KnownHosts(hop.known_hosts, is_direct=tunnel is None))
        try:
            link = await attempt.connect()
        except Error:
            raise
        except (asyncssh.Error, OSError) as error:
            if delay is None or not _is_momentary(error):
                raise await attempt.explain(error) from error
        except ValueError as error:  # asyncssh's KeyImportError is one
            raise InvalidError(f"a key or setting for {hop.where} cannot be used: {error}") from error
        else:
            if tunnel is not None:
                link.connection.set_tunnel(tunnel.connection)  # closing the last one closes all
            return link
        await asyncio.sleep(delay * random.uniform(0.7, 1.3))  # noqa: S311  # not a secret
    raise UnreachableError(f"{hop.where} cannot be reached")


class _Attempt:
    """One try to connect to a hop. It explains failures in plain words."""

    def __init__(self, hop: _Hop, tunnel: SshConnection | None, label: str, known: KnownHosts) -> None:
        self.hop = hop
        self.client = _Client()
        self._tunnel = tunnel
        self._label = label
        self._known = known

    async def connect(self) -> SshConnection:
        """Connect; asyncssh's exceptions and OSError come out as they are."""
        hop, tunnel = self.hop, self._tunnel.connection if self._tunnel else None
        async with asyncio.timeout(hop.address.connect_timeout):
            connection = await asyncssh.connect(
                **hop.arguments(),
                tunnel=tunnel,
                client_factory=lambda: self.client,
                known_hosts=self._known.match,
            )
        return SshConnection(connection, self.client)

    async def explain(self, error: Exception) -> Error:
        """One sentence that names the host and the cause."""
        where = self.hop.where
        if isinstance(error, Error):
            return error
        if isinstance(error, asyncssh.HostKeyNotVerifiable):
            if self.client.refused_key is None:
                return DeniedError(f"the host key of {where} is not to be trusted: {error.reason}")
            key = HostKey.of(self.client.refused_key)
            return refusal(self._label, where, key, changed=self._known.is_known)
        if isinstance(error, asyncssh.PermissionDenied):
            return await self._explain_denied()
        if isinstance(error, asyncssh.DisconnectError) and "authentication failures" in error.reason:
            return await self._explain_denied("it stops after so many keys")
        if isinstance(error, asyncssh.KeyExchangeFailed) and self._known.is_known:
            return DeniedError(
                f"THE HOST KEY OF {where} HAS CHANGED: it has no key of the known kind any more",
                hint="Ask whoever runs the host; if it was installed anew, "
                f"run `trainyard hosts accept {self._label}`.",
            )
        if isinstance(error, asyncssh.ChannelOpenError):
            via = self._tunnel.connection.get_extra_info("host") if self._tunnel else ""
            return UnreachableError(
                f"the jump host {via} cannot reach {where}: {error.reason}",
                hint="Check the address, and that the jump host allows forwarding.",
            )
        cause, advice = _cause(error, self.hop)
        return UnreachableError(f"{where} cannot be reached: {cause}", hint=advice)

    async def _explain_denied(self, remark: str = "") -> Error:
        hop = self.hop
        files = hop.key_files()
        if not files and not hop.address.identity_files:
            files = [str(path) for key in DEFAULT_KEY_NAMES if (path := Path.home() / ".ssh" / key).exists()]
        locked = [path for path in files if _is_locked(path)]
        tried = [*(path for path in files if path not in locked), *await _agent_keys(hop.config)]
        message = f"{hop.where} does not let {hop.user} in; tried: {', '.join(tried) or 'no key, for there is none'}"
        if remark:
            message += f"; {remark}"
        if locked:
            message += f"; {', '.join(locked)} could not be used, being locked with a passphrase"
            return DeniedError(message, hint=f"Run `ssh-add {locked[0]}` first.")
        hint = f"Add your public key to ~{hop.user}/.ssh/authorized_keys there, or name the right key."
        return DeniedError(message, hint=hint)


def _is_momentary(error: Exception) -> bool:
    return isinstance(
        error, ConnectionRefusedError | ConnectionResetError | BrokenPipeError | asyncssh.ConnectionLost
    )


def _cause(error: Exception, hop: _Hop) -> tuple[str, str]:
    """Return the reason why a host cannot be reached, and a hint."""
    check = "Check that the host is on and that the network lets you through."
    if isinstance(error, TimeoutError):
        return f"no answer within {hop.address.connect_timeout:g} seconds", check
    if isinstance(error, socket.gaierror):
        return (
            f"the name {hop.host!r} is unknown",
            "Correct the host name, or add it to ssh's configuration file.",
        )
    if isinstance(error, ConnectionRefusedError):
        return "the connection was refused", f"Check that sshd runs there and listens on port {hop.port}."
    if isinstance(error, asyncssh.ConnectionLost | ConnectionResetError):
        return "it closed the connection before ssh was set up", check
    if isinstance(error, asyncssh.Error):
        return error.reason, check
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(
        error
    ).__name__, check


async def _agent_keys(config: SSHClientConfig) -> list[str]:
    """The keys an ssh agent offers, by their comments."""
    path = str(config.get("IdentityAgent") or "")
    try:
        async with asyncssh.connect_agent(path) as agent:
            return [f"{key.get_comment()} of the ssh agent" for key in await agent.get_keys()]
    except (OSError, ValueError, asyncssh.Error):  # no agent, or one that does not answer
        return []


def _is_locked(path: str) -> bool:
    try:
        asyncssh.read_private_key(path)
    except asyncssh.KeyImportError as error:
        return "assphrase" in str(error)
    except OSError:
        return False
    return False
