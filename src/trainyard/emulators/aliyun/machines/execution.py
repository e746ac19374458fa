"""Running a script inside a machine from outside, as Cloud Assistant's agent does: output, status, time-out, stop."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from trainyard.emulators.aliyun.api.call import MachineWish
from trainyard.emulators.aliyun.machines.folder import MachineFolder
from trainyard.emulators.aliyun.machines.isolation import Isolation
from trainyard.emulators.aliyun.machines.processes import end_below
from trainyard.lib.aio import end_task, finish
from trainyard.lib.process_tree import name_of

OUTPUT_LIMIT = 1024 * 1024  # what is kept; the provider keeps 24 KB of it
LINGER_SECONDS = 0.5  # a daemon that keeps the script's output open does not keep the script alive
COLLECT_SECONDS = 2.0
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """A script that has ended, or could not be run.

    `problem` is empty, or the provider's word for what went wrong: InstanceNotRunning, DirectoryNotExists,
    AccountNotExists, ExecutionTimeout, ExecutionInterrupted (the machine went away meanwhile), Terminated (it was
    cancelled). A non-zero `status` alone is no problem of ours.
    """

    status: int
    output: bytes
    dropped: int = 0
    problem: str = ""


class _Run:
    """A process with its output. Started without a point at which a cancel could lose it."""

    def __init__(self, words: Sequence[str], environment: Mapping[str, str]) -> None:
        self.kept = bytearray()
        self.dropped = 0
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[int] = self._loop.create_future()
        self.drained: asyncio.Future[None] = self._loop.create_future()
        self._output, outer = os.pipe()
        try:
            self.process = subprocess.Popen(
                words,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=outer,
                stderr=outer,
                start_new_session=True,
            )
        except BaseException:
            os.close(self._output)
            raise
        finally:
            os.close(outer)
        os.set_blocking(self._output, False)
        self._handle = os.pidfd_open(self.process.pid)
        self._loop.add_reader(self._handle, self._on_end)
        self._loop.add_reader(self._output, self._on_output)

    def _on_end(self) -> None:
        self._loop.remove_reader(self._handle)
        self.ended.set_result(self.process.wait())

    def _on_output(self) -> None:
        data = os.read(self._output, 65536)
        room = OUTPUT_LIMIT - len(self.kept)
        self.kept += data[:room]
        self.dropped += max(0, len(data) - room)
        if not data:
            self._loop.remove_reader(self._output)
            self.drained.set_result(None)

    async def close(self) -> None:
        """Kill the tree of a script that has not ended, take what it has written, let go of its output."""
        if not self.ended.done():
            await self._kill()
        # A daemon that keeps the output open does not keep the script alive.
        await asyncio.wait([self.drained], timeout=LINGER_SECONDS)
        for descriptor in (self._output, self._handle):
            self._loop.remove_reader(descriptor)
            os.close(descriptor)
        self.drained.cancel()

    async def _kill(self) -> None:
        # Where it is the script itself, it must not go on to its next line when the present one is killed. Where it is
        # nsenter, it must live to collect its child: nobody inside the machine could.
        self.process.send_signal(signal.SIGSTOP)
        await end_below([self.process.pid])
        if name_of(self.process.pid) == "nsenter":
            self.process.send_signal(signal.SIGCONT)
            await asyncio.wait([self.ended], timeout=COLLECT_SECONDS)
        if not self.ended.done():
            self.process.kill()
        await self.ended


def entrance(isolation: Isolation, pid: int) -> list[str]:
    """What stands in front of a command that is to run inside the machine of this first process."""
    if isolation is Isolation.HOME:
        return []
    words = ["nsenter", "--target", str(pid), "--mount", "--uts", "--ipc", "--pid", "--root", "--wd"]
    return [*words, "--user", "--preserve-credentials"] if isolation is Isolation.USER else words


async def run_script(
    folder: MachineFolder,
    wish: MachineWish,
    script: bytes,
    *,
    timeout: float,
    working_dir: str,
    user: str,
    cancelled: asyncio.Event | None,
) -> Execution:
    """Run it and wait. On a time-out, when `cancelled` is set and when the call is cancelled, its process tree is killed."""
    init = folder.find_init()
    if init is None:
        return Execution(status=-1, output=b"", problem="InstanceNotRunning")
    if user not in {"", "root"} and folder.isolation is not Isolation.ROOT:
        return Execution(status=-1, output=b"", problem="AccountNotExists")
    number = f"{next(_numbers)}-{init.process.start}"
    jobs = folder.shared / "jobs"
    path = jobs / f"{number}.sh"
    path.write_bytes(script)
    path.chmod(0o755)
    environment = folder.environment(wish)
    # HOME isolation has no root folder to speak of: /root is the machine's home.
    where = working_dir or environment["HOME"]
    words = ["sh", f"{folder.root}/run/trainyard/run.sh", folder.root, number, where, user or "root"]
    try:
        return await _run(
            [*entrance(folder.isolation, init.process.pid), *words],
            environment,
            timeout=timeout,
            cancelled=cancelled,
            problem_of=lambda: _problem(folder, number),
        )
    finally:
        for suffix in ("sh", "problem"):
            with suppress(OSError):
                (jobs / f"{number}.{suffix}").unlink()


def _problem(folder: MachineFolder, number: str) -> str:
    try:
        return (folder.shared / "jobs" / f"{number}.problem").read_text(encoding="ascii").strip()
    except OSError:
        return "" if folder.find_init() is not None else "ExecutionInterrupted"


async def _run(
    words: Sequence[str],
    environment: Mapping[str, str],
    *,
    timeout: float,
    cancelled: asyncio.Event | None,
    problem_of: Callable[[], str],
) -> Execution:
    run = _Run(words, environment)
    try:
        problem = await _wait(run, timeout, cancelled)
    finally:
        await finish(run.close())
    problem = problem or problem_of()
    code = run.ended.result()
    status = -1 if problem else code if code >= 0 else 128 - code  # as a shell counts signals
    return Execution(status=status, output=bytes(run.kept), dropped=run.dropped, problem=problem)


async def _wait(run: _Run, timeout: float, cancelled: asyncio.Event | None) -> str:
    """Wait for the end of the script, of its time or of the patience; '' where it ended by itself."""
    stopped = asyncio.create_task((cancelled or asyncio.Event()).wait())
    try:
        events: list[asyncio.Future[Any]] = [run.ended, stopped]
        done, _ = await asyncio.wait(events, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await end_task(stopped)
    if run.ended in done:
        return ""
    return "Terminated" if stopped in done else "ExecutionTimeout"
