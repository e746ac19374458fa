"""The transport to a host over ssh: one shared connection, opened on first use.

The parts: addresses in `ssh_address.py`, opening a connection in `ssh_connect.py`, host keys in `ssh_host_keys.py`,
sharing connections in `ssh_pool.py`, commands and streams in `ssh_channel.py`. No exception of asyncssh leaves these
modules.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, cast

from trainyard.lib.aio import end_task, finish, gather_all
from trainyard.lib.errors import (
    DeniedError,
    Error,
    InvalidError,
    NotFoundError,
    UnreachableError,
)
from trainyard.lib.ids import new_id
from trainyard.lib.shell import exports, join
from trainyard.transport.api import NO_ENV, SHELL, ByteStream, Completed, Process, TerminalSize, is_loopback
from trainyard.transport.ssh_address import SshAddress, parse_address, ssh_argv
from trainyard.transport.ssh_channel import CommandSession, SshProcess, StreamSession
from trainyard.transport.ssh_connect import SshConnection, accept_host_key, chain, fetch_host_key, open_link
from trainyard.transport.ssh_host_keys import HostKey
from trainyard.transport.ssh_import import asyncssh
from trainyard.transport.ssh_pool import PATIENCE_SECONDS, Pool, PooledConnection

__all__ = [
    "HostKey",
    "SshAddress",
    "SshTransport",
    "accept_host_key",
    "chain",
    "fetch_host_key",
    "parse_address",
]

COPY_CHUNK = 256 * 1024
LONGEST_COMMAND = (
    100_000  # Linux refuses a single argument of 128 KiB, and a login shell gets the command as one
)
KILL_SECONDS = 3.0  # the time limit for ending a cancelled command; a silent host must not hold up Ctrl-C
GRACE_TENTHS = 10
START_TRIES = 5  # if the connection is lost, or if no other session of ours is on it
CROWDED_TRIES = 50  # if other sessions of ours fill the connection
RESERVED_TRIES = 3
SETTLE_SECONDS = 0.02  # sshd still counts a session for a moment after its end
LATELY_SECONDS = 1.0  # a busy host may read that a session is closed, and that another is to open, in one go

_ENTER = Path(__file__).with_name("sshenter.sh").read_text()
_END = Path(__file__).with_name("sshend.sh").read_text()
_PUT = Path(__file__).with_name("sshput.sh").read_text()
_STAGE = Path(__file__).with_name("sshstage.sh").read_text()
_STAGED = Path(__file__).with_name("sshstaged.sh").read_text()
_GET = Path(__file__).with_name("sshget.sh").read_text()

_LOGIN_SHELL = 'exec "${SHELL:-/bin/sh}" -l'
_SPECIAL = re.compile(r"['\\]")
LONGEST_MODE = 8
_MODE = re.compile(rb"[0-7]{1,6}")


class SshTransport:
    """The transport to one host. Safe to use from many tasks at once; once closed it stays closed.

    `name` is what messages call the host; `env` is exported before every script.
    """

    def __init__(self, address: SshAddress, *, name: str = "", env: Mapping[str, str] = NO_ENV) -> None:
        self.address = address
        self.name = name or str(address)
        self._env = dict(env)
        self._pool = Pool(self._open_link, self.name)
        self._running: set[CommandSession] = set()
        self._to_end: dict[tuple[str, int], set[int]] = {}

    @property
    def is_here(self) -> bool:
        """Whether the host has a loopback address, which almost always means this computer."""
        return is_loopback(self.address.host) and not self.address.jump

    async def run(
        self,
        script: str,
        *,
        stdin: bytes = b"",
        env: Mapping[str, str] = NO_ENV,
        timeout: float | None = None,
    ) -> Completed:
        """Run `script` and wait for its shell, but not for processes that it leaves in the background.

        After a lost connection (UnreachableError) the command may still run there.
        """
        async with asyncio.timeout(timeout):
            place, session = await self._begin(script, env)
            try:
                return await self._complete(session, stdin)
            finally:
                await self._finish_run(place, session)

    async def spawn(
        self, script: str, *, env: Mapping[str, str] = NO_ENV, terminal: TerminalSize | None = None
    ) -> Process:
        """Start `script`; the caller reads, writes and waits."""
        if script == SHELL and terminal is None:
            place, session = await self._begin_shell({**self._env, **env})
        else:
            place, session = await self._begin(script, env, stays=True, terminal=terminal)
        session.closed.add_done_callback(lambda _closed: self._pool.release_spawn(place))

        async def end(pid: int) -> None:
            await self._end(pid, "TERM HUP" if terminal else "TERM", GRACE_TENTHS)

        return SshProcess(session, end, terminal=terminal is not None)

    async def put(self, source: Path, target: str) -> None:
        """Copy one file to the host; complete or not there."""
        target = _machine_path(target)
        try:
            file = await asyncio.to_thread(source.open, "rb")
        except FileNotFoundError as error:
            raise NotFoundError(f"{str(source)!r} does not exist") from error
        except OSError as error:
            raise InvalidError(f"{str(source)!r} cannot be read: {error.strerror}") from error
        with file:
            await self._put_open(file, source, target)

    async def _put_open(self, file: BinaryIO, source: Path, target: str) -> None:
        facts = os.fstat(file.fileno())
        folder, slash, _ = target.rpartition("/")
        variables = {
            "target": target,
            "part": f"{folder}{slash}.trainyard-{new_id()}",
            "mode": f"{facts.st_mode & 0o7777:o}",
            "size": str(facts.st_size),
        }
        place, session = await self._begin(_PUT, variables)
        try:
            left = facts.st_size
            with suppress(UnreachableError):  # the script ended early; its status says why
                while left and (piece := await asyncio.to_thread(file.read, min(COPY_CHUNK, left))):
                    left -= len(piece)
                    await session.write(piece)
            session.write_eof()
            status = await asyncio.shield(session.status)
        finally:
            # The script is not killed: at an early end of file it removes the partial file itself.
            await self._finish_run(place, session, kill=False)
        if status:
            raise self._copy_failure(status, str(source), target, bytes(session.errors))

    async def get(self, source: str, target: Path) -> None:
        """Copy one file from the host; complete or not there."""
        source = _machine_path(source)
        part = target.with_name(f".trainyard-{new_id()}")
        try:
            file = await asyncio.to_thread(part.open, "xb")
        except FileNotFoundError as error:
            raise NotFoundError(f"{str(target.parent)!r} does not exist") from error
        except OSError as error:
            raise InvalidError(f"{str(target)!r} cannot be written: {error.strerror}") from error
        try:
            with file:
                await self._get_open(source, file)
            part.replace(target)
        except BaseException as error:
            part.unlink(missing_ok=True)
            if isinstance(error, OSError) and not isinstance(error, Error | TimeoutError):
                raise InvalidError(f"{str(target)!r} cannot be written: {error.strerror}") from error
            raise

    async def _get_open(self, source: str, file: BinaryIO) -> None:
        place, session = await self._begin(_GET, {"source": source}, slow_reader=True)
        try:
            head = b""
            while b"\n" not in head and len(head) < LONGEST_MODE and (piece := await session.out.take()):
                head += piece
            mode, _, data = head.partition(b"\n")
            if head and not _MODE.fullmatch(mode):
                raise InvalidError(
                    f"the answer of {self.name} about {source!r} cannot be understood",
                    hint="Look at the machine; it does not do what it was told.",
                )
            data = data or await session.out.take()
            while data:
                await asyncio.to_thread(file.write, data)
                data = await session.out.take()
            status = await asyncio.shield(session.status)
        finally:
            await self._finish_run(place, session)
        if status:
            raise self._copy_failure(status, source, source, bytes(session.errors))
        # The host chose the mode, so setuid and setgid bits are dropped.
        os.fchmod(file.fileno(), int(mode, 8) & 0o777)

    async def connect(self, port: int) -> ByteStream:
        """Open a stream to a port of the host's loopback, through the connection."""
        link = (await self._pool.first()).link
        opening = asyncio.ensure_future(self._open_stream(link, port))
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            # asyncssh would leave a stream open whose opening is cancelled.
            opening.add_done_callback(_close_stream)
            raise

    async def _open_stream(self, link: SshConnection, port: int) -> StreamSession:
        session = StreamSession(f"port {port} of {self.name}")
        try:
            await link.connection.create_connection(lambda: session, "127.0.0.1", port, encoding=None)
        except asyncssh.ChannelOpenError as error:
            if link.is_lost:
                raise self._lost() from error
            if error.code == asyncssh.OPEN_ADMINISTRATIVELY_PROHIBITED:
                raise DeniedError(
                    f"{self.name} does not allow forwarding to port {port}",
                    hint="Set AllowTcpForwarding yes in its sshd_config.",
                ) from error
            raise UnreachableError(
                f"nothing listens on port {port} of {self.name}",
                hint="Check that the program there has started and binds this port.",
            ) from error
        except (asyncssh.Error, OSError) as error:
            raise self._lost() from error
        return session

    async def aclose(self) -> None:
        """End the processes that were started and not detached, then close the connections. Closing twice is no error."""
        if not self._pool.is_closed:
            self._pool.is_closed = True  # nobody starts anything from here on
            ending = [session for session in self._running if not session.is_left]
            await finish(gather_all([self._stop(session) for session in ending]))
        await finish(self._pool.aclose())

    async def _stop(self, session: CommandSession) -> None:
        with suppress(UnreachableError, DeniedError, TimeoutError):
            async with asyncio.timeout(KILL_SECONDS):
                pid = await asyncio.shield(session.pid)
                if not session.status.done():
                    await self._end(pid, "TERM", GRACE_TENTHS)
                    await asyncio.wait([session.status])

    def argv(self, script: str = "", *, terminal: bool = True) -> Sequence[str]:
        """The system's `ssh`, with the same keys, known hosts and jump hosts."""
        if not script and not self._env:
            return ssh_argv(self.address, terminal=terminal)
        text = f"cd; {exports(self._env)}{script or _LOGIN_SHELL}"
        return ssh_argv(self.address, login_command(text), terminal=terminal)

    async def host_key(self) -> str:
        """The verified key of the host, as a public key line without a comment."""
        return (await self._pool.first()).link.host_key().line

    async def server_address(self) -> tuple[str, int]:
        """Return the address and port at which the host sees our connection arrive; behind NAT, its private ones."""
        answer = await self.run('printf "%s" "$SSH_CONNECTION"')
        words = answer.stdout.decode(errors="replace").split()
        if len(words) != 4 or not words[3].isdigit():
            raise UnreachableError(f"{self.name} does not say at which address it is reached")
        return words[2], int(words[3])

    async def _open_link(self) -> SshConnection:
        return await open_link(self.address, name=self.name)

    async def _begin(
        self,
        script: str,
        env: Mapping[str, str],
        *,
        stays: bool = False,
        slow_reader: bool = False,
        terminal: TerminalSize | None = None,
    ) -> tuple[PooledConnection, CommandSession]:
        command = await self._login_command(script, env)
        return await self._start(command, stays=stays, slow_reader=slow_reader, terminal=terminal)

    async def _begin_shell(self, env: Mapping[str, str]) -> tuple[PooledConnection, CommandSession]:
        """Start a shell that reads statements. The login shell replaces itself by it.

        Its first statement exports the environment, so other users of the host cannot see the values in its arguments.
        """
        try:
            first = f"{_ENTER.rstrip()}; {exports(env)}set --\n"
            command = shell_command([f"{name}={value}" for name, value in env.items()])
        except ValueError as error:
            raise InvalidError(str(error)) from error
        place, session = await self._start(command, stays=True)
        session.begin_with(first.encode(errors="surrogateescape"))
        return place, session

    async def _start(
        self,
        command: str,
        *,
        stays: bool = False,
        slow_reader: bool = False,
        terminal: TerminalSize | None = None,
    ) -> tuple[PooledConnection, CommandSession]:
        """Find a connection with room and start the command. A command that may have been started is not tried again.

        A cancel waits until the channel is open, so that none is left half open, and then ends the command.
        """
        in_vain = 0
        for attempt in range(CROWDED_TRIES):
            place = await (self._pool.take_for_spawn() if stays else self._pool.take_for_run())

            def new_session() -> CommandSession:
                return CommandSession(self.name, tail_only=stays, slow_reader=stays or slow_reader)

            opening = asyncio.ensure_future(self._open_patiently(place.link, new_session, command, terminal))
            try:
                return place, await asyncio.shield(opening)
            except asyncio.CancelledError:
                await finish(self._drop(place, opening, stays=stays))
                raise
            except _NotStartedError as error:
                self._release(place, stays=stays)
                in_vain += not error.is_crowded
                if in_vain == START_TRIES or attempt == CROWDED_TRIES - 1:
                    raise error.reason from error
                await self._make_room(place, in_vain, stays=stays)
            except BaseException:
                self._release(place, stays=stays)
                raise
        raise self._lost()

    def _release(self, place: PooledConnection, *, stays: bool) -> None:
        if stays:
            self._pool.release_spawn(place)
        else:
            self._pool.release_run(place)

    async def _make_room(self, place: PooledConnection, in_vain: int, *, stays: bool) -> None:
        """Lower the session limit after a refusal, so that the next attempt waits or uses another connection."""
        if place.link.is_lost:
            return  # the next attempt opens a new connection
        held = place.link.held()
        if not held:
            await asyncio.sleep(SETTLE_SECONDS * 2**in_vain)
            return
        self._pool.narrow(place, len(held))
        if place.takes_spawn if stays else place.is_free:
            # A session that ends commands is not counted by the pool, but sshd counts it.
            closing = [session.closed for session in held]
            await asyncio.wait(closing, timeout=PATIENCE_SECONDS, return_when=asyncio.FIRST_COMPLETED)

    async def _drop(
        self, place: PooledConnection, opening: asyncio.Task[CommandSession], *, stays: bool
    ) -> None:
        await asyncio.wait([opening])
        if not opening.cancelled() and opening.exception() is None:
            await self._leave(opening.result(), kill=True)
        self._release(place, stays=stays)

    async def _open_patiently(
        self,
        link: SshConnection,
        new_session: Callable[[], CommandSession],
        command: str,
        terminal: TerminalSize | None,
    ) -> CommandSession:
        """Open a session. Try again after a moment if sshd may still count a session that we have closed.

        The place is kept meanwhile. If it were given back, the next session would be refused at the same moment.
        """
        session = new_session()
        try:
            await self._open_session(link, session, command, terminal)
        except _NotStartedError as error:
            if link.is_lost or not error.is_crowded:
                raise
            await asyncio.sleep(SETTLE_SECONDS)
            session = new_session()
            await self._open_session(link, session, command, terminal)
        return session

    async def _open_session(
        self, link: SshConnection, session: CommandSession, command: str, terminal: TerminalSize | None = None
    ) -> None:
        self._running.add(session)
        session.closed.add_done_callback(lambda _closed: self._running.discard(session))
        link.watch(session)
        try:
            await link.connection.create_session(
                lambda: session,
                # Bytes, because a path on a machine need not be UTF-8; asyncssh takes both, and declares text only.
                cast("str", command.encode(errors="surrogateescape")),
                encoding=None,
                request_pty="force" if terminal else False,
                term_type="xterm-256color" if terminal else None,
                term_size=(terminal.columns, terminal.rows) if terminal else None,
            )
        except (asyncssh.Error, OSError) as error:
            session.give_up()
            raise self._explain_start(error, link, session) from error

    def _explain_start(self, error: Exception, link: SshConnection, session: CommandSession) -> Exception:
        if link.is_lost or not isinstance(error, asyncssh.ChannelOpenError):
            # Without a channel the command was not sent, and starting it on another connection is safe.
            return self._lost() if session.channel is not None else _NotStartedError(self._lost())
        if session.channel is None:
            refused = UnreachableError(
                f"{self.name} opens no further session: {error.reason}",
                hint="Raise MaxSessions in its sshd_config.",
            )
            lately = asyncio.get_running_loop().time() - link.last_close < LATELY_SECONDS
            return _NotStartedError(refused, is_crowded=lately or bool(link.held()))
        return DeniedError(f"{self.name} does not run commands for this account: {error.reason}")

    async def _login_command(self, script: str, env: Mapping[str, str]) -> str:
        try:
            text = _ENTER + exports({**self._env, **env}) + script
            command = login_command(text)
        except ValueError as error:
            raise InvalidError(str(error)) from error
        if len(command.encode(errors="surrogateescape")) <= LONGEST_COMMAND:
            return command
        stored = await self.run(_STAGE, stdin=text.removeprefix(_ENTER).encode(errors="surrogateescape"))
        if stored.status:
            said = stored.stderr.decode(errors="replace").strip()
            raise UnreachableError(f"{self.name} cannot store a long script: {said}")
        path = stored.stdout.decode(errors="surrogateescape")
        return login_command(_ENTER + exports({"trainyard_script": path}) + _STAGED)

    async def _complete(self, session: CommandSession, stdin: bytes) -> Completed:
        feeding = asyncio.ensure_future(_feed(session, stdin)) if len(stdin) > COPY_CHUNK else None
        if feeding is None:
            await _feed(session, stdin)
        try:
            status = await asyncio.shield(session.status)
            await session.drained(self._round_trip)
        finally:
            await end_task(feeding)
        return Completed(status, session.out.collected(), bytes(session.errors))

    async def _finish_run(
        self, place: PooledConnection, session: CommandSession, *, kill: bool = True
    ) -> None:
        """End the command of a run that was cancelled or timed out, and give the place back."""
        try:
            if not session.closed.done():
                await finish(self._leave(session, kill=kill))
        finally:
            self._pool.release_run(place)

    async def _leave(self, session: CommandSession, *, kill: bool) -> None:
        if kill:
            with suppress(UnreachableError, DeniedError, TimeoutError):
                async with asyncio.timeout(KILL_SECONDS):
                    pid = await asyncio.shield(session.pid)
                    if not session.status.done():
                        await self._end(pid, "KILL", 0)
        await session.abandon()

    async def _end(self, pid: int, signals: str, grace_tenths: int) -> None:
        """End the process group of `pid` over a separate session. Requests that wait are sent together."""
        kind = (signals, grace_tenths)
        waiting = self._to_end.setdefault(kind, set())
        waiting.add(pid)
        with suppress(UnreachableError, DeniedError):
            async with self._pool.reserved() as link:
                if pid not in waiting:
                    return  # another request sent it along
                batch = sorted(waiting)
                waiting.clear()
                script = join(["exec", "sh", "-c", _END, "sh", signals, str(grace_tenths), *map(str, batch)])
                await self._run_reserved(link, script)

    async def _round_trip(self) -> None:
        """Wait for one round trip through sshd's event loop."""
        async with self._pool.reserved() as link:
            await self._run_reserved(link, "exit 0")

    async def _run_reserved(self, link: SshConnection, script: str) -> None:
        """Run one of our own scripts on this connection; if it has no room, on a connection of its own."""
        command = login_command(_ENTER + script)
        for _ in range(RESERVED_TRIES):
            try:
                await self._run_to_end(link, command)
                return
            except _NotStartedError as error:
                if link.is_lost:
                    raise error.reason from error
            await asyncio.sleep(SETTLE_SECONDS)
        async with self._pool.extra() as another:
            try:
                await self._run_to_end(another, command)
            except _NotStartedError as error:
                raise error.reason from error

    async def _run_to_end(self, link: SshConnection, command: str) -> None:
        session = CommandSession(self.name, tail_only=True)
        await self._open_session(link, session, command)
        session.write_eof()
        await asyncio.wait([session.closed])

    def _copy_failure(self, status: int, source: str, target: str, said: bytes) -> Error:
        words = said.decode(errors="replace").strip().rpartition("\n")[2]
        if status == 20:
            missing = source if source == target else target.rpartition("/")[0] or "/"
            return NotFoundError(f"{missing!r} does not exist on {self.name}")
        if status == 21:
            return InvalidError(f"{target!r} on {self.name} is a folder", hint="Name a file.")
        if status == 23:
            return UnreachableError(f"{source!r} did not reach {self.name} whole; {target!r} is as it was")
        return DeniedError(f"{target!r} on {self.name} cannot be copied: {words or f'status {status}'}")

    def _lost(self) -> UnreachableError:
        return UnreachableError(
            f"the connection to {self.name} was lost", hint="Try again; it is opened anew."
        )


class _NotStartedError(Exception):
    """The host did not get the command. `reason` is the error to raise if trying again does not help.

    `is_crowded` says that sessions of our own are on the connection or were a moment ago.
    """

    def __init__(self, reason: UnreachableError, *, is_crowded: bool = False) -> None:
        super().__init__(str(reason))
        self.reason = reason
        self.is_crowded = is_crowded


def entering(text: str) -> str:
    """Return the script with a start that changes to the home directory and prints the process id."""
    return _ENTER + text


def login_command(text: str, *called: str) -> str:
    """Return a script as one command that any login shell understands: bash, dash, zsh, fish."""
    return " ".join(["exec /bin/sh -c", *map(_login_word, (text, *called))])


def shell_command(marks: Sequence[str]) -> str:
    """Return the command that replaces any login shell by a `sh` that reads statements, with arguments `marks`."""
    return " ".join(["exec /bin/sh -s", *map(_login_word, marks)])


def _login_word(text: str) -> str:
    """Quote a word. Quotes and backslashes stay outside single quotes, because fish interprets backslashes there."""
    if "\0" in text:
        raise ValueError("a script cannot hold a NUL character")
    return "'" + _SPECIAL.sub(_set_apart, text) + "'"


def _set_apart(found: re.Match[str]) -> str:
    return f"'\\{found[0]}'"


def _close_stream(opening: asyncio.Future[StreamSession]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()


async def _feed(session: CommandSession, data: bytes) -> None:
    # A command that does not read its input is no failure.
    with suppress(UnreachableError):
        for start in range(0, len(data), COPY_CHUNK):
            await session.write(data[start : start + COPY_CHUNK])
        session.write_eof()


def _machine_path(path: str) -> str:
    """Return a path that cannot be taken for an option. A relative path is relative to the home directory."""
    path = path.removeprefix("~/")
    if not path or "\0" in path:
        raise InvalidError(f"{path!r} is not a path")
    return path if path.startswith("/") else f"./{path}"
