"""Running a script inside a machine from outside, as Cloud Assistant's agent does: output, status, time-out, stop."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from trainyard.emulators.aliyun.call import MachineWish
from trainyard.emulators.aliyun.machines.folder import MachineFolder
from trainyard.emulators.aliyun.machines.isolation import Isolation
from trainyard.emulators.aliyun.machines.processes import end_below, find_name
from trainyard.lib.aio import end_task, finish

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


class _Output:
    """Collects the first part of what is written, counts the rest."""

    def __init__(self) -> None:
        self.kept = bytearray()
        self.dropped = 0

    async def collect(self, stream: asyncio.StreamReader) -> None:
        while data := await stream.read(65536):
            room = OUTPUT_LIMIT - len(self.kept)
            self.kept += data[:room]
            self.dropped += max(0, len(data) - room)


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
    environment: dict[str, str],
    *,
    timeout: float,
    cancelled: asyncio.Event | None,
    problem_of: Callable[[], str],
) -> Execution:
    # A pipe of our own: asyncio's `wait` may wait for a daemon that has kept the script's output.
    inner, outer = os.pipe()
    try:
        process = await asyncio.create_subprocess_exec(
            *words,
            env=environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=outer,
            stderr=outer,
            start_new_session=True,
        )
    except BaseException:
        os.close(inner)
        raise
    finally:
        os.close(outer)
    output = _Output()
    reader = asyncio.StreamReader()
    pipe = os.fdopen(inner, "rb")
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), pipe
    )
    reading = asyncio.create_task(output.collect(reader))
    try:
        problem = await _wait(process, timeout, cancelled)
    finally:
        await finish(_clear(process, reading, transport))
    problem = problem or problem_of()
    code = process.returncode or 0
    status = -1 if problem else code if code >= 0 else 128 - code  # as a shell counts signals
    return Execution(status=status, output=bytes(output.kept), dropped=output.dropped, problem=problem)


async def _wait(process: asyncio.subprocess.Process, timeout: float, cancelled: asyncio.Event | None) -> str:
    """Wait for the end of the script, of its time or of the patience; '' where it ended by itself."""
    ended = asyncio.create_task(process.wait())
    stopped = asyncio.create_task((cancelled or asyncio.Event()).wait())
    try:
        done, _ = await asyncio.wait([ended, stopped], timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await end_task(stopped)
        await end_task(ended)
    if ended in done:
        return ""
    return "Terminated" if stopped in done else "ExecutionTimeout"


async def _kill_tree(process: asyncio.subprocess.Process) -> None:
    # Where it is the script itself, it must not go on to its next line when the present one is killed; where it is
    # nsenter, it waits. Let nsenter collect its child: nobody inside the machine could.
    process.send_signal(signal.SIGSTOP)
    await end_below([process.pid])
    is_nsenter = find_name(process.pid) == "nsenter"
    if is_nsenter:
        process.send_signal(signal.SIGCONT)
        await asyncio.wait([ending := asyncio.ensure_future(process.wait())], timeout=COLLECT_SECONDS)
        await end_task(ending)
    with suppress(ProcessLookupError):
        process.kill()
    await process.wait()


async def _clear(
    process: asyncio.subprocess.Process, reading: asyncio.Task[None], transport: asyncio.BaseTransport
) -> None:
    """Kill the tree of a script that has not ended, take what it has written, let go of its output."""
    if process.returncode is None:
        await _kill_tree(process)
    await asyncio.wait([reading], timeout=LINGER_SECONDS)
    await end_task(reading)
    transport.close()
