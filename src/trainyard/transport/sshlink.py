"""Opening one ssh connection: configuration, keys, jump hosts, verified host keys, and plain words for what fails.

What runs over a connection is in `sshchannel.py`; sharing and reopening connections is in `ssh.py`. No exception of
asyncssh leaves these modules.
"""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import logging
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import asyncssh
from asyncssh.config import SSHClientConfig

from trainyard.lib.errors import DeniedError, Error, InvalidError, UnreachableError
from trainyard.transport.sshaddress import DEFAULT_PORT, SshAddress, parse_address
from trainyard.transport.sshkeys import HostKey, KnownHosts, known_hosts_files, refusal, remember

# asyncssh notes every command it runs at level INFO; that is for its own developers.
logging.getLogger("asyncssh").setLevel(logging.WARNING)

# curve25519: 1 ms where the post-quantum exchanges cost 20 to 60; aes128-gcm: hardware does it, 2x chacha20.
# Both only come first; a host that does not have them gets what it has. ssh's configuration file overrules.
FAST_EXCHANGE = "^curve25519-sha256,curve25519-sha256@libssh.org"
FAST_CIPHERS = "^aes128-gcm@openssh.com,aes256-gcm@openssh.com"
KEEPALIVE_TRIES = 3  # unanswered ones before the link counts as lost
# A host that is starting, or sshd's MaxStartups, closes the door for a moment. Nothing has run, so trying again is safe.
RETRY_DELAYS = (0.15, 0.5)
DEFAULT_KEY_NAMES = ("id_ed25519", "id_ecdsa", "id_rsa", "id_ed25519_sk", "id_ecdsa_sk", "id_ed448")

_Configured = Callable[[str], Sequence[str]]


class _Client(asyncssh.SSHClient):
    """asyncssh's events of one connection."""

    def __init__(self) -> None:
        self.refused_key: asyncssh.SSHKey | None = None
        self.on_lost: Callable[[Exception | None], None] | None = None
        self.lost = False

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has ended, in peace or not."""
        self.lost = True
        if self.on_lost is not None:
            self.on_lost(exc)

    def validate_host_public_key(self, host: str, addr: str, port: int, key: asyncssh.SSHKey) -> bool:  # noqa: ARG002  # asyncssh's signature
        """Never trust; remember what was shown."""
        # Called only for a key that the known hosts do not vouch for.
        self.refused_key = key
        return False


@dataclass(frozen=True)
class Link:
    """An open connection and the events it reports."""

    connection: asyncssh.SSHClientConnection
    client: _Client

    @property
    def is_lost(self) -> bool:
        """Whether it can be used no more."""
        return self.client.lost or self.connection.is_closed()

    def host_key(self) -> HostKey:
        """The verified key of the host at the far end."""
        key = self.connection.get_server_host_key()
        if key is None:
            raise UnreachableError("the connection has no host key")
        return HostKey.of(key)

    async def aclose(self) -> None:
        """Close it and wait until it is closed; not long, where the far side is silent."""
        self.connection.close()
        with contextlib.suppress(TimeoutError, asyncssh.Error, OSError):
            async with asyncio.timeout(2):
                await self.connection.wait_closed()
                return
        self.connection.abort()


async def open_link(address: SshAddress, *, name: str = "") -> Link:
    """Connect, through the jump hosts where there are any.

    UnreachableError where somebody on the way is silent; DeniedError for an unknown or changed host key and where no
    key lets us in. Cancelling leaves nothing open.
    """
    tunnel: Link | None = None
    link: Link | None = None
    try:
        for hop in _chain(address):
            label = name if hop is address and name else str(hop)
            link = await _connect_patiently(hop, tunnel, label)
            if tunnel is not None:
                link.connection.set_tunnel(tunnel.connection)  # closing the last one closes all
            tunnel = link
    except BaseException:
        if tunnel is not None:
            tunnel.connection.abort()
        raise
    if link is None:
        raise InvalidError(f"{address} leads nowhere")
    return link


def chain(address: SshAddress) -> tuple[SshAddress, ...]:
    """Every host on the way, nearest first, the host itself last; each must be known. Reads ssh's configuration."""
    hops = _chain(address)
    return tuple(replace(hop, jump=hops[:index]) for index, hop in enumerate(hops))


async def fetch_host_key(address: SshAddress) -> HostKey:
    """Ask the host for its key without trusting it. Hosts on the way to it must be known."""
    *before, last = _chain(address)
    tunnel = await open_link(replace(before[-1], jump=tuple(before[:-1]))) if before else None
    client = _Client()
    try:
        await _connect(last, tunnel, client, KnownHosts(()))
    except asyncssh.HostKeyNotVerifiable:
        if client.refused_key is not None:
            return HostKey.of(client.refused_key)
        raise UnreachableError(f"{last} showed no host key") from None
    except (asyncssh.Error, OSError) as error:
        raise await _explain(error, last, tunnel, client, KnownHosts(()), str(last)) from error
    finally:
        if tunnel is not None:
            await tunnel.aclose()
    raise UnreachableError(f"{last} showed no host key")


async def accept_host_key(
    address: SshAddress, expected_fingerprint: str, known_hosts: Path | None = None
) -> HostKey:
    """Make the host known, if the key it shows now has `expected_fingerprint`; entries with other keys go.

    Writes `known_hosts`, else the address's file, else ~/.ssh/known_hosts. DeniedError where the key is another.
    """
    key = await fetch_host_key(address)
    if key.fingerprint != expected_fingerprint:
        raise DeniedError(
            f"{address} shows the key {key.fingerprint}, not {expected_fingerprint}",
            hint="Ask whoever runs the host for the right fingerprint.",
        )
    last = _chain(address)[-1]
    target = known_hosts or known_hosts_files(address, _lists(_load_config(address)))[0]
    host, port = _known_as(last)
    await asyncio.to_thread(remember, target, host, port, key)
    return key


def _chain(address: SshAddress) -> tuple[SshAddress, ...]:
    hops = address.hops()
    if not hops:
        proxy = str(_load_config(address).get("ProxyJump", "") or "")
        if proxy.lower() not in ("", "none"):
            near = tuple(parse_address(word, like=address) for word in proxy.split(","))
            hops = tuple(last for hop in near for last in _chain(replace(hop, identity_files=())))
    return (*hops, replace(address, jump=()) if hops else address)


def _load_config(address: SshAddress) -> SSHClientConfig:
    path = address.effective_config_file
    port = address.port if address.port != DEFAULT_PORT else ()
    try:
        config = SSHClientConfig.load(
            None,
            [path] if path else [],
            False,
            False,
            False,
            _local_user(),
            address.user or (),
            address.host,
            port,
        )
    except (asyncssh.ConfigParseError, OSError, ValueError) as error:
        raise InvalidError(f"ssh's configuration file {path} cannot be read: {error}") from error
    return cast("SSHClientConfig", config)


def _lists(config: SSHClientConfig) -> _Configured:
    def look_up(option: str) -> Sequence[str]:
        return cast("Sequence[str]", config.get(option, ()) or ())

    return look_up


def _known_as(address: SshAddress) -> tuple[str, int]:
    """Host and port under which known_hosts has it, after ssh's configuration."""
    config = _load_config(address)
    host = str(config.get("HostKeyAlias") or config.get("Hostname") or address.host)
    port = (
        address.port if address.port != DEFAULT_PORT else int(cast("int", config.get("Port", DEFAULT_PORT)))
    )
    return host, port


def _local_user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's uid without a name
        return str(os.getuid())


async def _connect_patiently(hop: SshAddress, tunnel: Link | None, label: str) -> Link:
    for delay in (*RETRY_DELAYS, None):
        client = _Client()
        files = known_hosts_files(hop, _lists(_load_config(hop)))
        known = KnownHosts(files, is_direct=tunnel is None)
        try:
            return await _connect(hop, tunnel, client, known)
        except (asyncssh.Error, OSError) as error:
            if delay is None or not _is_momentary(error):
                raise await _explain(error, hop, tunnel, client, known, label) from error
        except (asyncssh.KeyImportError, ValueError) as error:
            raise InvalidError(f"a key or setting for {hop} cannot be used: {error}") from error
        await asyncio.sleep(delay)
    raise UnreachableError(f"{hop} cannot be reached")


async def _connect(hop: SshAddress, tunnel: Link | None, client: _Client, known: KnownHosts) -> Link:
    config = _load_config(hop)
    path = hop.effective_config_file
    async with asyncio.timeout(hop.connect_timeout):
        options = asyncssh.SSHClientConnectionOptions(
            host=hop.host,
            port=hop.port if hop.port != DEFAULT_PORT else (),
            username=hop.user or config.get("User") or _local_user(),
            config=[str(path)] if path else None,
            client_factory=lambda: client,
            known_hosts=known.match,
            client_keys=list(_key_files(hop, config)),  # empty = ssh's default files
            ignore_encrypted=True,  # an agent may hold it; where nobody does, the refusal names the file
            password_auth=False,
            kbdint_auth=False,
            gss_kex=False,
            gss_auth=False,
            host_based_auth=False,
            kex_algs=config.get("KexAlgorithms", FAST_EXCHANGE),
            encryption_algs=config.get("Ciphers", FAST_CIPHERS),
            compression_algs=config.get_compression_algs() or "none",
            keepalive_interval=hop.keepalive,
            keepalive_count_max=KEEPALIVE_TRIES,
            login_timeout=hop.connect_timeout,
            x509_trusted_certs=None,
            command=None,
            env=None,
            send_env=None,
            request_pty=False,
            agent_forwarding=False,
            x11_forwarding=False,
            encoding=None,
        )
        connection = await asyncssh.connect(
            hop.host,
            config=None,
            options=options,
            tunnel=tunnel.connection if tunnel else None,
        )
    return Link(connection, client)


def _key_files(hop: SshAddress, config: SSHClientConfig) -> Sequence[str]:
    """Key files to offer; none = ssh's default ones."""
    named = [Path(path).expanduser() for path in hop.identity_files]
    if named and not any(path.exists() for path in named):
        raise InvalidError(f"the key file {named[0]} for {hop} does not exist", hint="Correct its path.")
    named = named or [Path(path).expanduser() for path in _lists(config)("IdentityFile")]
    return [str(path) for path in named if path.exists()]


def _is_momentary(error: Exception) -> bool:
    if isinstance(
        error, TimeoutError | socket.gaierror | asyncssh.HostKeyNotVerifiable | asyncssh.PermissionDenied
    ):
        return False
    return isinstance(
        error, ConnectionRefusedError | ConnectionResetError | BrokenPipeError | asyncssh.ConnectionLost
    )


async def _explain(
    error: Exception, hop: SshAddress, tunnel: Link | None, client: _Client, known: KnownHosts, label: str
) -> Error:
    """One sentence that names the host and the cause."""
    where = f"{hop.host}:{hop.port}"
    if isinstance(error, Error):
        return error
    if isinstance(error, asyncssh.HostKeyNotVerifiable):
        return _explain_host_key(error, where, client, known, label)
    if isinstance(error, asyncssh.PermissionDenied):
        return await _explain_denied(hop, where)
    if isinstance(error, asyncssh.KeyExchangeFailed) and known.is_known:
        return DeniedError(
            f"THE HOST KEY OF {where} HAS CHANGED: it has no key of the known kind any more",
            hint=f"Ask whoever runs the host; if it was installed anew, run `trainyard hosts accept {label}`.",
        )
    if isinstance(error, asyncssh.ChannelOpenError):
        via = tunnel.connection.get_extra_info("host") if tunnel else "the jump host"
        return UnreachableError(
            f"the jump host {via} cannot reach {where}: {error.reason}",
            hint="Check the address, and that the jump host allows forwarding.",
        )
    return UnreachableError(f"{where} cannot be reached: {_cause(error, hop)}", hint=_advice(error, hop))


def _cause(error: Exception, hop: SshAddress) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {hop.connect_timeout:g} seconds"
    if isinstance(error, socket.gaierror):
        return f"the name {hop.host!r} is unknown"
    if isinstance(error, ConnectionRefusedError):
        return "the connection was refused"
    if isinstance(error, asyncssh.ConnectionLost | ConnectionResetError):
        return "it closed the connection before ssh was set up"
    if isinstance(error, asyncssh.Error):
        return error.reason
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__


def _advice(error: Exception, hop: SshAddress) -> str:
    if isinstance(error, socket.gaierror):
        return "Correct the host name, or add it to ssh's configuration file."
    if isinstance(error, ConnectionRefusedError):
        return f"Check that sshd runs there and listens on port {hop.port}."
    return "Check that the host is on and that the network lets you through."


def _explain_host_key(
    error: asyncssh.HostKeyNotVerifiable, where: str, client: _Client, known: KnownHosts, label: str
) -> Error:
    if client.refused_key is None:
        return DeniedError(f"the host key of {where} is not to be trusted: {error.reason}")
    return refusal(label, where, HostKey.of(client.refused_key), changed=known.is_known)


async def _explain_denied(hop: SshAddress, where: str) -> Error:
    config = _load_config(hop)
    files = list(_key_files(hop, config))
    if not files and not hop.identity_files:
        files = [str(path) for key in DEFAULT_KEY_NAMES if (path := Path.home() / ".ssh" / key).exists()]
    encrypted = [path for path in files if _is_encrypted(path)]
    tried = [*(path for path in files if path not in encrypted), *await _agent_keys(config)]
    user = hop.user or str(config.get("User") or _local_user())
    message = f"{where} does not let {user} in; tried: {', '.join(tried) or 'no key, for there is none'}"
    if encrypted:
        message += f"; {', '.join(encrypted)} could not be used, for it is locked with a passphrase"
        return DeniedError(message, hint=f"Run `ssh-add {encrypted[0]}` first.")
    return DeniedError(
        message, hint=f"Add your public key to ~{user}/.ssh/authorized_keys there, or name another key."
    )


async def _agent_keys(config: SSHClientConfig) -> list[str]:
    """The keys an ssh agent offers, by their comments."""
    path = str(config.get("IdentityAgent") or "")
    try:
        async with asyncssh.connect_agent(path) as agent:
            return [f"{key.get_comment()} of the ssh agent" for key in await agent.get_keys()]
    except (OSError, ValueError, asyncssh.Error):  # no agent, or one that does not answer
        return []


def _is_encrypted(path: str) -> bool:
    try:
        asyncssh.read_private_key(path)
    except asyncssh.KeyImportError as error:
        return "assphrase" in str(error)
    except OSError:
        return False
    return False
