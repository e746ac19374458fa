"""The class Task: one machine and its session. The first method that needs the machine connects to it.

`job.py` runs methods on all tasks of a job. The arguments have the names that older scripts of this kind use, so that
the blocking API (`sync.py`) only forwards them.
"""

from __future__ import annotations

import asyncio
import posixpath
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from trainyard.lib import aio, shell
from trainyard.lib.errors import CommandError, InvalidError, NotFoundError, StillRunningError
from trainyard.lib.log import redact
from trainyard.runtime import verbs
from trainyard.runtime.context import Context
from trainyard.runtime.paths import MachinePaths
from trainyard.runtime.session import Ended, Session
from trainyard.runtime.text import TextSink, tail_lines
from trainyard.spec.machine import Machine, MachineState
from trainyard.transport import copy
from trainyard.transport.api import Completed, Transport
from trainyard.transport.copy.api import CopyOptions, CopyReport

FOREVER = 365 * 24 * 3600.0  # the default of max_wait_sec
FAILURE_LINES = 40  # how much of a failed command's output is shown

Commands = str | Sequence[str]


class Task:
    """One task of a job: one machine and its session."""

    def __init__(self, context: Context, machine: Machine, *, run_name: str = "") -> None:
        self.context = context
        self.machine = machine
        self.run_name = run_name
        self.env: dict[str, str] = {}
        self.last_status = -1
        self.last_number = 0
        self.run_counter = 0
        self._window = 0
        self._sessions: dict[int, Session] = {}
        self._announced: set[int] = set()
        self._outstanding: set[tuple[int, int]] = set()  # (window, number) of non-blocking commands
        self.standing = ""  # the last command that was started without waiting

    @property
    def name(self) -> str:
        """The machine's name, such as task0.bert."""
        return self.machine.name

    @property
    def transport(self) -> Transport:
        """The transport to the machine."""
        return self.context.backend.transport(self.machine)

    @property
    def paths(self) -> MachinePaths:
        """The paths of our files on the machine."""
        return MachinePaths(self.name, self.machine.home)

    @property
    def session(self) -> Session:
        """The session of the current window; opened by its first use."""
        if self._window not in self._sessions:
            if self.machine.state is MachineState.STOPPED:
                raise InvalidError(
                    f"{self.name} is stopped",
                    hint=f"Start it: task.start(), or `trainyard start {self.name}`.",
                )
            self._sessions[self._window] = Session(
                transport=self.transport,
                machine=self.name,
                window=self._window,
                env=self.env,
                clock=self.context.clock,
            )
        return self._sessions[self._window]

    @property
    def output_path(self) -> str:
        """The file on the machine that holds the output of the last command."""
        return f"{posixpath.join(self.machine.home or '~', self.session.folder)}/{self.last_number}.out"

    def log(self, message: str, *args: object, log_level: str = "INFO") -> None:
        """Report a line about this task."""
        self.context.reporter.log(self.name, message % args if args else message, log_level)

    # -- commands ------------------------------------------------------------------------------------------------

    async def run(
        self,
        cmd: Commands,
        sudo: bool = False,
        non_blocking: bool = False,
        ignore_errors: bool = False,
        max_wait_sec: float = FOREVER,
        show_realtime: bool = False,
        show: bool = False,
        quiet: bool = False,
        prefix: bool = False,
    ) -> str:
        """Run a command in the task's shell and return its output. With `non_blocking`, return '0' at once.

        The shell persists: `cd`, `export`, `conda activate` hold for later commands. A non-zero status is a
        CommandError unless `ignore_errors`. After `max_wait_sec` seconds a StillRunningError is raised and the
        command runs on. `show_realtime` shows the output as it is printed, `show` shows it once the command has
        ended. With `prefix`, each line begins with the task's name.
        """
        text = command_text(cmd, sudo=sudo)
        if not quiet:
            self.log("[bash run] %s", redact(text))
        self.run_counter += 1
        if non_blocking:
            self._started(await self._submit(text))
            self._outstanding.add((self._window, self.last_number))
            self.standing = text
            return "0"
        sink = TextSink()

        def live(piece: bytes) -> None:
            sink(piece)
            self.context.reporter.output(self.name if prefix else "", piece)

        timeout = None if max_wait_sec >= FOREVER else max_wait_sec
        session = self.session
        await self._announce_queue(session)
        try:
            ended = await session.run(
                text,
                collect=None if show_realtime else sink,
                on_output=live if show_realtime else None,
                timeout=timeout,
                on_number=self._started,
            )
        except StillRunningError as error:
            self._outstanding.add((self._window, self.last_number))
            raise StillRunningError(f"`{_short(text)}`: {error.message}", hint=error.hint) from None
        output = sink.text(f"{self.name}:{self.output_path}")
        if show and not show_realtime:
            self.context.reporter.output(self.name if prefix else "", output.encode(errors="replace"))
        self._judge(text, ended, output, ignore_errors=ignore_errors, shown=show or show_realtime)
        return output

    async def run_with_output(
        self, cmd: str, non_blocking: bool = False, ignore_errors: bool = False
    ) -> tuple[str, str]:
        """Run a command in the task's shell and return its output as (stdout, stderr)."""
        if non_blocking:
            raise InvalidError(
                "run_with_output waits for the output", hint="Use run(cmd, non_blocking=True)."
            )
        folder = f"{self.paths.session}/streams"
        home = shell.home_path(folder)
        number = self.run_counter + 1
        text = f"{{ {cmd}\n}} >| {home}/{number}.stdout 2>| {home}/{number}.stderr"
        await self.require(f"mkdir -p {home}", f"cannot make {folder}")
        failure: CommandError | None = None
        try:
            await self.run(text, ignore_errors=ignore_errors, quiet=True)
        except CommandError as error:
            failure = error
        streams = [await self.read(f"{folder}/{number}.{kind}") for kind in ("stdout", "stderr")]
        if failure is not None:
            failure.output = "".join(streams)
            raise CommandError(
                f"Command {_short(cmd)} returned status {failure.status} on {self.name}: "
                + tail_lines(streams[1] or streams[0], 5),
                status=failure.status,
                output=failure.output,
            ) from None
        return streams[0], streams[1]

    async def join(self, ignore_errors: bool = False, max_wait_sec: float = FOREVER) -> int:
        """Wait for the last command, even one that an earlier client started. Returns its status."""
        number = self.last_number or (await self.session.open()).last
        if not number:
            raise InvalidError(
                f"nothing was run on {self.name} yet", hint="Call run(cmd, non_blocking=True) first."
            )
        timeout = None if max_wait_sec >= FOREVER else max_wait_sec
        sink = TextSink()
        ended = await self.session.wait(number, collect=sink, timeout=timeout)
        self._outstanding.discard((self._window, number))
        self.last_number = number
        text = await self.session.text(number)
        self._judge(text, ended, sink.text(), ignore_errors=ignore_errors)
        return ended.status

    async def settle(self) -> None:
        """Wait for every command that this client started and did not wait for. Failures are logged, not raised."""
        for window, number in sorted(self._outstanding):
            ended = await self._sessions[window].wait(number)
            self._outstanding.discard((window, number))
            if ended.status:
                self.log("command %d ended with status %d", number, ended.status, log_level="WARN")

    async def output(self) -> str:
        """Return the output of the last command so far."""
        sink = TextSink()
        if self.last_number:
            async for piece in self.session.read(self.last_number):
                sink(piece)
        return sink.text(f"{self.name}:{self.output_path}")

    async def switch_window(self, window_id: int) -> None:
        """Send later commands to another tmux window, a second shell on the same machine. Makes it if missing."""
        if window_id < 0:
            raise InvalidError(f"{window_id} is not a window", hint="Windows are numbered 0, 1, 2, …")
        self._window = window_id
        await self.session.open()

    async def propagate_env(self, env: Mapping[str, str]) -> None:
        """Export variables in the task's shell, for all later commands."""
        self.env.update(env)
        await self.session.open()
        await self.session.set_env(self.env)

    async def interrupt(self) -> None:
        """Send Ctrl-C to the command that runs in the task's shell."""
        await self.session.interrupt()

    # -- files ---------------------------------------------------------------------------------------------------

    async def upload(
        self,
        local_fn: str | Path,
        remote_fn: str = "",
        dont_overwrite: bool = False,
        options: CopyOptions | None = None,
    ) -> CopyReport:
        """Copy files or folders to the machine; a pattern may name several. A relative target is under its home."""
        options = replace(options or CopyOptions(), dont_overwrite=dont_overwrite)
        return await copy.upload(
            [(self.name, self.transport)],
            [Path(local_fn)],
            remote_fn,
            options=options,
            progress=TransferProgress(self.context.reporter.transfer),
        )

    async def download(
        self, remote_fn: str, local_fn: str | Path = "", options: CopyOptions | None = None
    ) -> CopyReport:
        """Copy a file or folder from the machine. The default target is the current folder, under the same name."""
        target = Path(local_fn) if str(local_fn) else Path(posixpath.basename(remote_fn.rstrip("/")) or ".")
        progress = TransferProgress(self.context.reporter.transfer, name=self.name)
        return await copy.download(
            self.transport, remote_fn, target, options=options or CopyOptions(), progress=progress
        )

    async def write(self, fn: str, contents: str | bytes) -> None:
        """Write a file on the machine, either whole or not at all."""
        data = contents.encode(errors="surrogateescape") if isinstance(contents, str) else contents
        path = shell.home_path(fn)
        script = (
            f'p={path}; mkdir -p "$(dirname "$p")" && cat > "$p.trainyard-$$" && mv -f "$p.trainyard-$$" "$p"'
        )
        await self.require(script, f"cannot write {fn}", stdin=data)

    async def read(self, fn: str) -> str:
        """Return the text of a file on the machine."""
        return (await self.read_bytes(fn)).decode(errors="backslashreplace")

    async def read_bytes(self, fn: str) -> bytes:
        """Return the bytes of a file on the machine."""
        done = await self.transport.run(f'p={shell.home_path(fn)}; [ -e "$p" ] || exit 44; cat "$p"')
        if done.status == 44:
            raise NotFoundError(f"there is no file {fn!r} on {self.name}")
        return self._checked(done, f"cannot read {fn}")

    async def exists(self, fn: str) -> bool:
        """Return whether the file or folder exists on the machine."""
        return (await self.transport.run(f"[ -e {shell.home_path(fn)} ]")).status == 0

    async def isdir(self, fn: str) -> bool:
        """Return whether the folder exists on the machine."""
        return (await self.transport.run(f"[ -d {shell.home_path(fn)} ]")).status == 0

    async def wait_for_file(
        self, fn: str, max_wait_sec: float = FOREVER, check_interval: float = 0.5
    ) -> bool:
        """Wait until a file exists, in one round trip. Returns False after `max_wait_sec` seconds."""
        pause = max(0.02, check_interval)
        script = f"until [ -e {shell.home_path(fn)} ]; do sleep {pause:g}; done"
        try:
            done = await self.transport.run(script, timeout=None if max_wait_sec >= FOREVER else max_wait_sec)
        except TimeoutError:
            return False
        return done.status == 0

    async def tail_file(self, fn: str, prefix: str = "") -> None:
        """Pass a growing file on to the reporter, line by line, until cancelled."""
        process = await self.transport.spawn(f"exec tail -n +1 -F {shell.home_path(fn)} 2>/dev/null")
        try:
            rest = b""
            async for piece in process.output():
                *lines, rest = (rest + piece).split(b"\n")
                for line in lines:
                    self.context.reporter.output("", prefix.encode() + line + b"\n")
        finally:
            await aio.finish(process.terminate())

    async def logdir(self) -> str:
        """Return the log folder of this run, made on first use.

        An existing folder is never shared; the new one then gets a suffix `.01`, `.02` and so on.
        """
        known = self.context.logdirs.get(self.run_name)
        if known:
            return known
        root = self.context.logdir_root
        script = f"root={shell.home_path(root)} run={shell.quote(self.run_name or 'unnamed')} fallback={shell.home_path('trainyard-runs')}\n"
        made = await self.require(script + _LOGDIR, f"cannot make a log folder under {root}")
        path = made.decode(errors="surrogateescape").removesuffix("\n")
        if not path.startswith(root.rstrip("/")) and root.startswith("/"):
            self.log("cannot write to %s on this machine; logs go to %s", root, path, log_level="WARN")
        self.context.logdirs[self.run_name] = path
        return path

    # -- the machine ---------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Stop the machine once the commands that this client started have ended. Files are kept."""
        await self.settle()
        await self._leave()
        await verbs.stop(self.context.backend, [self.machine])
        self.machine = replace(self.machine, state=MachineState.STOPPED)

    async def start(self) -> None:
        """Start the machine again."""
        await self._leave()
        (self.machine,) = await verbs.start(self.context.backend, [self.machine])

    async def kill(self) -> None:
        """Release the machine for good, even if commands run on it. Calling it twice is no error."""
        await self._leave()
        await verbs.release(self.context.backend, [self.machine])
        self.machine = replace(self.machine, state=MachineState.RELEASED)

    async def adopt(self, other: Task) -> None:
        """Continue with the machine of `other`, a task of the same name, because this task's own machine is gone."""
        await self._leave()
        self.machine, self.env = other.machine, other.env

    async def aclose(self, *, parting: bool = False) -> None:
        """Close the session's connections; machine and commands stay. `parting`: the caller closes the backend next."""
        await self._leave(parting=parting)

    # -- inside --------------------------------------------------------------------------------------------------

    async def _leave(self, *, parting: bool = False) -> None:
        sessions, self._sessions = self._sessions, {}
        self._outstanding.clear()
        await asyncio.gather(*(session.aclose(parting=parting) for session in sessions.values()))

    async def _submit(self, text: str) -> int:
        session = self.session
        await self._announce_queue(session)
        return await session.submit(text)

    async def _announce_queue(self, session: Session) -> None:
        """Say once that new commands wait, if the session was found with a running command."""
        found = session.found or await session.open()
        if found.running is not None and self._window not in self._announced:
            self._announced.add(self._window)
            self.log("command %d is still running here; new commands wait for it", found.running)

    def _started(self, number: int) -> None:
        self.last_number = number

    def _judge(
        self, text: str, ended: Ended, output: str, *, ignore_errors: bool, shown: bool = False
    ) -> None:
        self.last_status = ended.status
        if ended.status == 0:
            return
        message = f"Command {_short(text)} returned status {ended.status} on {self.name}"
        if ignore_errors:
            self.log("%s (ignored)", message, log_level="WARN")
            return
        if output and not shown:
            self.log("%s; its last lines:\n%s", message, tail_lines(output, FAILURE_LINES), log_level="ERROR")
        raise CommandError(
            message,
            status=ended.status,
            output=output,
            hint=f"All of its output: `trainyard logs {self.name}`.",
        )

    async def require(self, script: str, failure: str, *, stdin: bytes = b"") -> bytes:
        """Run a script of ours on the machine and return its output. An error begins with the words `failure`."""
        return self._checked(await self.transport.run(script, stdin=stdin), failure)

    def _checked(self, done: Completed, failure: str) -> bytes:
        if done.status:
            stderr = done.stderr.decode(errors="replace").strip()
            raise InvalidError(f"{failure} on {self.name}: {stderr or f'status {done.status}'}")
        return done.stdout


class TransferProgress:
    """Passes a copy's progress on to the reporter."""

    def __init__(self, transfer: Callable[[str, int, int], None], *, name: str = "") -> None:
        self._transfer = transfer
        self._name = name

    def update(self, machine: str, done: int, total: int) -> None:
        """Report the progress."""
        self._transfer(self._name or machine, done, total)


def command_text(cmd: Commands, *, sudo: bool = False) -> str:
    """Turn a command or a list of commands into one text. A list runs until the first failure."""
    if isinstance(cmd, str):
        text = cmd
    else:
        text = " && ".join(f"{{ {one}\n}}" for one in cmd)
    return f"sudo -E bash -c {shell.quote(text)}" if sudo else text


def _short(text: str) -> str:
    first, _, rest = redact(text).strip().partition("\n")
    return f"{first[:200]}…" if rest or len(first) > 200 else first


_LOGDIR = """\
if ! mkdir -p "$root" 2>/dev/null || [ ! -w "$root" ]; then root=$fallback; mkdir -p "$root" || exit 1; fi
folder=$root/$run number=0
until mkdir "$folder" 2>/dev/null; do
    number=$((number + 1))
    if [ "$number" -gt 9999 ]; then echo "too many log folders named $run" >&2; exit 1; fi
    folder=$root/$run.$(printf %02d "$number")
done
printf '%s\\n' "$folder"
"""
