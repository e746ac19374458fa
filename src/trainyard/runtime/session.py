"""The class Session: a shell on a machine that outlives the client. Only the .sh files beside it know tmux.

The state of a command is in files on the machine (`paths.py`). This module submits commands, waits for them, streams
their output and interrupts them over any Transport. `task.py` and `job.py` build on it. The design is
docs/design/001-runtime.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TypeVar

from trainyard.lib import aio, ids, shell
from trainyard.lib.clock import Clock, SystemClock
from trainyard.lib.errors import InvalidError, NotFoundError, StillRunningError, UnreachableError
from trainyard.runtime.control_channel import FREE_SPACE, FULL, ControlChannel, OnOutput, SessionLook
from trainyard.runtime.paths import MachinePaths
from trainyard.spec import names
from trainyard.transport.api import Transport

logger = logging.getLogger(__name__)
T = TypeVar("T")

START_SECONDS = 60.0  # a slow .bashrc (conda, modules on NFS) may take many seconds
LIVENESS_SECONDS = 5.0  # a waiting client first asks after this time whether the session still lives; then more and more rarely
LONGEST_LIVENESS_SECONDS = 30.0  # with 256 tasks that wait for hours this makes 8 questions a second
RECONNECT_SECONDS = 120.0  # how long a wait keeps trying to reach a silent machine
INTERRUPT_SECONDS = 5.0  # how long Ctrl-C waits for the command to end
TAIL_SECONDS = 1.5  # busybox's tail checks the file once a second
LOST = "lost"  # the status of a command whose session ended before it

_FAR_SIDE = ("session_lib.sh", "session_rc.sh", "session_launch.sh", "session.sh")


@dataclass(frozen=True, slots=True)
class Ended:
    """A command that has ended: its number, exit status, and how many bytes it printed."""

    number: int
    status: int
    size: int


@dataclass(frozen=True, slots=True)
class SessionState:
    """The state of a session as the machine reports it."""

    alive: bool
    running: int | None = (
        None  # the command that runs now, or the next one if the shell has not started it yet
    )
    last: int = 0  # the newest command's number


@dataclass(slots=True, kw_only=True)
class Session:
    """The shell of one machine (and window). Safe to use from several tasks at once; commands run in order."""

    transport: Transport
    machine: str
    window: int = 0
    env: Mapping[str, str] = field(default_factory=dict)
    clock: Clock = field(default_factory=SystemClock)
    found: SessionState | None = field(default=None, init=False)  # as it was when this client first came
    _idle: list[ControlChannel] = field(default_factory=list, init=False)
    _opening: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    _unfinished: dict[str, int] = field(default_factory=dict, init=False)

    @property
    def folder(self) -> str:
        """The session's folder, relative to the home directory."""
        folder = MachinePaths(self.machine).session
        return f"{folder}/w{self.window}" if self.window else folder

    async def open(self) -> SessionState:
        """Start the session if it does not run. A running session is adopted together with its commands."""
        state, _ = await self._open("")
        return state

    async def open_and_ask(self, script: str) -> tuple[int, str]:
        """Do `open` and `ask` in one; the first time, that takes a single round trip."""
        _, answer = await self._open(script)
        return answer or await self.ask(script)

    async def _open(self, question: str) -> tuple[SessionState, tuple[int, str] | None]:
        async with self._opening, asyncio.timeout(START_SECONDS):
            channel, seen = await self._look(question)
            answer, channel.first_answer = channel.first_answer, None
            try:
                if not seen.alive or (self.env and seen.variables != _name_of(self.env)):
                    seen = await self._start(channel)
            finally:
                await self._put_back(channel)
            state = SessionState(True, seen.running, seen.last)
            if self.found is None:
                self.found = state
                if state.running is not None:
                    await self._note_unfinished(state.running, state.last)
            return state, answer

    async def _look(self, question: str) -> tuple[ControlChannel, SessionLook]:
        """Return a channel that answers, and the state of the session that it reported."""
        while self._idle:
            channel = self._idle.pop()
            try:
                return channel, await channel.look()
            except UnreachableError as error:
                logger.debug("%s: %s; opening another channel", self.machine, error)
                await aio.finish(channel.aclose())
            except BaseException:
                await aio.finish(channel.aclose())
                raise
        channel = await ControlChannel.open(self.transport, self.folder, self.machine, question)
        return channel, channel.first_look

    async def _start(self, channel: ControlChannel) -> SessionLook:
        """Start the session, or tell a running one its new variables."""
        script = _start_script(self.folder, names.session_name(self.machine), self.window, self.env)
        status, said = await channel.ask(script)
        words = said.split()
        if words[:1] == ["no-tmux"]:
            raise InvalidError(
                f"tmux is not installed on {self.machine}",
                hint="Install it there: `apt-get install tmux`, or `yum install tmux`.",
            )
        if words == [FULL]:
            raise InvalidError(
                f"the disk of {self.machine} is full: its session cannot be started", hint=FREE_SPACE
            )
        if len(words) != 4 or words[0] not in {"alive", "started"}:
            raise UnreachableError(
                f"the session on {self.machine} did not start: {said.strip() or f'status {status}'}",
                hint=f"Look at it with `trainyard ssh {self.machine}`.",
            )
        return SessionLook(True, _number(words[2]), _number(words[3]) or 0)

    async def ask(self, script: str) -> tuple[int, str]:
        """Run a short script of ours on the machine, beside the shell; return its status and its output.

        The script opens no further ssh channel. It may run twice if the connection is lost meanwhile.
        """
        return await self._on_channel(lambda channel: channel.ask(script))

    async def _note_unfinished(self, first: int, last: int) -> None:
        """Remember the unfinished commands, so that submitting the same text again returns that command."""
        script = f"cd {shell.home_path(self.folder)} && {{ n={first} last={last}\n{_UNFINISHED}\n}}"
        rest = (await self.transport.run(script)).stdout
        while rest:
            header, _, rest = rest.partition(b"\n")
            number, size = (int(word) for word in header.split())
            text, rest = rest[: size - 1], rest[size:]  # the file ends with one newline of ours
            self._unfinished[text.decode(errors="surrogateescape")] = number

    # -- commands ------------------------------------------------------------------------------------------------

    async def submit(self, text: str, *, adopt: bool = True) -> int:
        """Queue a command and return its number.

        With `adopt`, the text of a command that was found unfinished means that command.
        """
        adopted = self._adopt(text) if adopt else None
        if adopted is not None:
            return adopted
        token = ids.new_id()
        return await self._on_channel(lambda channel: channel.submit(token, text))

    async def run(
        self,
        text: str,
        *,
        collect: OnOutput | None = None,
        on_output: OnOutput | None = None,
        timeout: float | None = None,
        on_number: Callable[[int], None] = lambda _number: None,
    ) -> Ended:
        """Submit a command and wait for it.

        `collect` gets the output once the command has ended; `on_output` gets it as it is printed.

        Lost connections are reopened. After `timeout` seconds a StillRunningError is raised and the command runs on.
        Cancelling interrupts the command as Ctrl-C in its terminal would.
        """
        adopted = self._adopt(text)
        if adopted is not None or on_output is not None:
            number = await self.submit(text) if adopted is None else adopted
            on_number(number)
            return await self.wait(number, collect=collect, on_output=on_output, timeout=timeout)
        pending = _Pending(ids.new_id(), text)

        def started(number: int) -> None:
            pending.number = number
            on_number(number)

        async def once(channel: ControlChannel, keep: OnOutput | None) -> tuple[str, int]:
            return await channel.run(pending.token, text, keep, started)

        return await self._watched(pending, once, collect, timeout)

    async def wait(
        self,
        number: int,
        *,
        collect: OnOutput | None = None,
        on_output: OnOutput | None = None,
        timeout: float | None = None,
        start: int = 0,
        interrupt: bool = True,
    ) -> Ended:
        """Wait until a command has ended. The arguments are those of `run`.

        `on_output` begins at byte `start`. Without `interrupt`, cancelling only ends the wait and the command runs on.
        """

        async def once(channel: ControlChannel, keep: OnOutput | None) -> tuple[str, int]:
            return await channel.wait(number, keep)

        pending = _Pending("", "", number, interrupt=interrupt)
        if on_output is None:
            return await self._watched(pending, once, collect, timeout)
        follower = _Follower(self, number, on_output, start)
        try:
            ended = await self._watched(pending, once, None, timeout)
        except BaseException:
            await aio.finish(follower.aclose())
            raise
        await follower.drain(ended.size)
        return ended

    async def read(self, number: int, *, start: int = 0, size: int | None = None) -> AsyncIterator[bytes]:
        """Yield the output of a command so far, from byte `start`. NotFoundError if it was never started."""
        head = f" | head -c {size}" if size is not None else ""
        path = self._file(number, "out")
        process = await self.transport.spawn(f"[ -e {path} ] || exit 44; tail -c +{start + 1} {path}{head}")
        try:
            async for piece in process.output():
                yield piece
            if await process.wait() == 44:
                raise NotFoundError(f"there is no output of a command {number} on {self.machine}")
        finally:
            await process.terminate()

    async def state(self) -> SessionState:
        """Ask the machine for the state of the session. Starts nothing."""
        done = await self.transport.run(self._check_script(0), timeout=START_SECONDS)
        alive, running, last = done.stdout.decode(errors="replace").split()
        return SessionState(alive == "alive", _number(running), _number(last) or 0)

    async def status(self, number: int) -> int | None:
        """The exit status of a command; None while it runs or waits."""
        done = await self.transport.run(f"cat {self._file(number, 'status')} 2>/dev/null")
        text = done.stdout.decode().strip()
        if text in (LOST, FULL):
            raise self._lost(number) if text == LOST else self._full(number)
        return int(text) if text else None

    async def text(self, number: int) -> str:
        """The text of a command."""
        done = await self.transport.run(f"cat {self._file(number, 'cmd')} 2>/dev/null")
        return done.stdout.decode(errors="surrogateescape").removesuffix("\n")

    async def interrupt(self, number: int | None = None) -> None:
        """Send Ctrl-C to command `number`, or to the running one. Does nothing if it neither runs nor is next."""
        wanted = "" if number is None else str(number)
        head = f"D={shell.home_path(self.folder)} wanted={wanted}\n"
        await self.transport.run(head + _read("session_alive.sh") + _read("interrupt.sh"))

    async def set_env(self, env: Mapping[str, str]) -> None:
        """Export variables in the shell: now if it is idle, else before its next command. Restarts export them too."""
        self.env = dict(env)
        await self.transport.run(
            f'D={shell.home_path(self.folder)}\ncat >| "$D/job.env"\n'
            'if [ -p "$D/in" ]; then printf \'. "$__ty_dir/job.env"\\n\' 1<> "$D/in"; fi',
            stdin=_variables(env).encode(errors="surrogateescape"),
        )

    async def aclose(self, *, parting: bool = False) -> None:
        """Close the channels. The session and its commands run on. `parting`: the caller closes the transport next."""
        channels, self._idle = self._idle, []
        await asyncio.gather(*(channel.aclose() for channel in channels if not (parting and channel.leave())))

    # -- waiting -------------------------------------------------------------------------------------------------

    async def _watched(
        self,
        pending: _Pending,
        once: Callable[[ControlChannel, OnOutput | None], Awaitable[tuple[str, int]]],
        collect: OnOutput | None,
        timeout: float | None,
    ) -> Ended:
        """Wait over a channel, with a time limit. Check now and then that the session lives. Cancel sends Ctrl-C."""
        keep = _Resumed(collect) if collect is not None else None

        async def exchange(channel: ControlChannel) -> tuple[str, int]:
            if keep is not None:
                keep.restart()
            waiting = asyncio.ensure_future(once(channel, keep))
            pause = LIVENESS_SECONDS
            try:
                while not (await asyncio.wait([waiting], timeout=pause))[0]:
                    if pending.number is not None:
                        await self._check(pending.number)
                    pause = min(1.5 * pause, LONGEST_LIVENESS_SECONDS)
                return waiting.result()
            finally:
                await aio.end_task(waiting)

        try:
            async with asyncio.timeout(timeout) as limit:
                status, size = await self._on_channel(exchange)
        except TimeoutError:
            if not limit.expired():
                raise
            raise StillRunningError(
                f"command {pending.number} still runs on {self.machine} after {timeout:g} s",
                hint=f"See it with `trainyard logs -f {self.machine}` or `trainyard tmux {self.machine}`.",
            ) from None
        except asyncio.CancelledError:
            if pending.interrupt:
                await aio.finish(self._interrupt_and_wait(pending))
            raise
        number = pending.number or 0
        if status in (LOST, FULL):
            raise self._lost(number) if status == LOST else self._full(number)
        return Ended(number, int(status), size)

    async def _check(self, number: int) -> None:
        """Raise if the session died under a command. Wakes the shell if it overlooked the command."""
        done = await self.transport.run(self._check_script(number), timeout=START_SECONDS)
        if done.stdout.startswith(b"dead"):
            raise self._lost(number)

    async def _interrupt_and_wait(self, pending: _Pending) -> None:
        with contextlib.suppress(UnreachableError, TimeoutError):
            number = pending.number
            if number is None:  # cancelled before the answer came: the machine knows the number by the token
                path = f"{shell.home_path(self.folder)}/tokens/{pending.token}"
                number = _number(
                    (await self.transport.run(f"cat {path} 2>/dev/null")).stdout.decode().strip()
                )
            if number is None:
                return
            await self.interrupt(number)
            async with asyncio.timeout(INTERRUPT_SECONDS):
                await self._on_channel(lambda channel: channel.wait(number, None))

    async def _on_channel(self, work: Callable[[ControlChannel], Awaitable[T]]) -> T:
        """Do `work` over a channel; after a lost connection again over a new one, for a bounded time.

        Every exchange may be repeated: a submit carries a token, and a wait changes nothing.
        """
        silent_since: float | None = None
        pause = 0.1
        while True:
            channel = None
            try:
                channel = await self._take_channel()
                silent_since = None
                return await work(channel)
            except (UnreachableError, TimeoutError) as error:
                if isinstance(error, _SessionLostError):
                    raise
                now = self.clock.monotonic()
                silent_since = now if silent_since is None else silent_since
                if now - silent_since > RECONNECT_SECONDS:
                    raise UnreachableError(
                        f"{self.machine} has not answered for {RECONNECT_SECONDS:.0f} s: {error}",
                        hint="What was started there may still run; run the same script again to find it.",
                    ) from error
                logger.debug("%s: %s; trying again", self.machine, error)
            finally:
                if channel is not None:
                    await self._put_back(channel)
            await self.clock.sleep(pause)
            pause = min(2 * pause, 5.0)

    async def _take_channel(self) -> ControlChannel:
        if self.found is None:
            await self.open()
        if self._idle:
            return self._idle.pop()
        return await ControlChannel.open(self.transport, self.folder, self.machine)

    async def _put_back(self, channel: ControlChannel) -> None:
        if channel.is_idle:
            self._idle.append(channel)
        else:
            await aio.finish(channel.aclose())

    # -- small things --------------------------------------------------------------------------------------------

    def _adopt(self, text: str) -> int | None:
        if "\0" in text:
            raise InvalidError("a command cannot contain a NUL character")
        return self._unfinished.pop(text, None)

    def _file(self, number: int, kind: str) -> str:
        return f"{shell.home_path(self.folder)}/{number}.{kind}"

    def _check_script(self, number: int) -> str:
        head = f"D={shell.home_path(self.folder)} n={number}\n"
        return head + _read("session_alive.sh") + _read("session_wake.sh") + _read("session_check.sh")

    def _full(self, number: int) -> InvalidError:
        return InvalidError(
            f"the disk of {self.machine} is full: command {number} was not started, or nobody can wait for it",
            hint=FREE_SPACE,
        )

    def _lost(self, number: int) -> UnreachableError:
        return _SessionLostError(
            f"the session on {self.machine} ended while command {number} ran: the machine was restarted, "
            "or its tmux was killed",
            hint=f"What it printed is in ~/{self.folder}/{number}.out; run the command again.",
        )


class _SessionLostError(UnreachableError):
    """The machine answers, but the session is gone. Trying again over a new channel would not help."""


@dataclass(slots=True)
class _Pending:
    """A submitted command: its token, and its number once the machine has given it one."""

    token: str
    text: str
    number: int | None = None
    interrupt: bool = True  # send Ctrl-C to the command when the wait is cancelled


class _Resumed:
    """Passes pieces on. After a restart from the beginning it passes on only new bytes."""

    def __init__(self, sink: OnOutput) -> None:
        self._sink = sink
        self._delivered = 0
        self._seen = 0

    def restart(self) -> None:
        self._seen = 0

    def __call__(self, piece: bytes) -> None:
        new = piece[max(0, self._delivered - self._seen) :]
        self._seen += len(piece)
        self._delivered += len(new)
        if new:
            self._sink(new)


class _Follower:
    """A `tail -f` of one command's output. After a lost connection it continues at the byte it had reached."""

    def __init__(self, session: Session, number: int, sink: OnOutput, start: int = 0) -> None:
        self._session = session
        self._number = number
        self._sink = sink
        self._count = start
        self._progress = asyncio.Event()
        self._limit: int | None = None
        self._task = asyncio.ensure_future(self._follow())

    async def aclose(self) -> None:
        """Stop following."""
        await aio.end_task(self._task)

    async def drain(self, size: int) -> None:
        """Deliver the output up to byte `size`, where the ended command's output ends, then stop."""
        self._limit = size
        with contextlib.suppress(TimeoutError):
            while self._count < size:
                self._progress.clear()
                async with asyncio.timeout(TAIL_SECONDS):
                    await self._progress.wait()
        await self.aclose()
        while self._count < size:  # the tail was cut or is slow: fetch the missing bytes
            try:
                async for piece in self._session.read(
                    self._number, start=self._count, size=size - self._count
                ):
                    self._deliver(piece)
            except UnreachableError:
                # The new channel proves that the machine answers again, or it gives up after its time limit.
                await self._session._on_channel(_nothing)  # noqa: SLF001

    def _deliver(self, piece: bytes) -> None:
        if (
            self._limit is not None
        ):  # a child in the background may go on writing, but that is no longer the command's output
            piece = piece[: self._limit - self._count]
        self._count += len(piece)
        if piece:
            self._sink(piece)
            self._progress.set()

    async def _follow(self) -> None:
        path = self._session._file(self._number, "out")  # noqa: SLF001
        appear = f"while [ ! -e {path} ]; do sleep 0.1; done; "
        while True:
            try:
                tail = f"{appear}exec tail -c +{self._count + 1} -f {path}"
                process = await self._session.transport.spawn(tail)
                try:
                    async for piece in process.output():
                        self._deliver(piece)
                finally:
                    await aio.finish(process.terminate())
            except UnreachableError:
                logger.debug("%s: the stream was cut at byte %d", self._session.machine, self._count)
            await asyncio.sleep(0.2)


async def _nothing(_line: ControlChannel) -> None:
    return None


_UNFINISHED = """\
while [ "$n" -le "$last" ]; do
    if [ -e "$n.cmd" ] && [ ! -s "$n.status" ]; then
        size=$(wc -c < "$n.cmd")
        if [ "$size" -le 1000000 ]; then echo "$n $size"; cat "$n.cmd"; fi
    fi
    n=$((n + 1))
done"""


def _number(word: str) -> int | None:
    return int(word) if word.isdigit() else None


@cache
def _read(name: str) -> str:
    return Path(__file__).with_name(name).read_text()


def _start_script(folder: str, tmux_name: str, window: int, env: Mapping[str, str]) -> str:
    """Return the script that writes the session's files on the machine and starts it, in one round trip.

    The files are in a folder that is named after the hash of their content, and one rename puts them there. So two
    clients, or two versions of this program, never change a file while a shell reads it.
    """
    variables = f"variables={shell.quote(_variables(env) if env else '')} variables_name={_name_of(env)}\n"
    return (
        f"D={shell.home_path(folder)} NAME={shell.quote(tmux_name)} WINDOW={window}\n{variables}"
        + _files_script()
        + _read("session_alive.sh")
        + _read("session_start.sh")
    )


def _variables(env: Mapping[str, str]) -> str:
    """Return the text of job.env. Its first line is a hash of it, so a client need not read all of it."""
    return f"# {_name_of(env)}\n{shell.exports(env)}\n"


def _name_of(env: Mapping[str, str]) -> str:
    return hashlib.sha256(shell.exports(env).encode(errors="surrogateescape")).hexdigest()[:12]


@cache
def _files_script() -> str:
    texts = {name: _read(name) for name in _FAR_SIDE}
    digest = hashlib.sha256("".join(texts.values()).encode()).hexdigest()[:12]
    files = "".join(
        f'printf %s {shell.quote(text)} >| "$F.$$/{name}" || {{ rm -rf "$F.$$"; echo {FULL}; exit 0; }}\n'
        for name, text in texts.items()
    )
    return (
        f'F=$HOME/.trainyard/far/{digest}\nif [ ! -e "$F/session.sh" ]; then\n'
        f'(umask 077 && mkdir -p "$F.$$") || exit 1\n{{\n{files}}} 2>/dev/null\n'
        'mv -T "$F.$$" "$F" 2>/dev/null || [ -e "$F/session.sh" ] || mv "$F.$$" "$F"\n'
        'if [ -e "$F.$$" ]; then rm -rf "$F.$$"; fi\nfi\n'
    )
