"""The class Job: n tasks made together. Every method runs on all tasks; the failed ones are named in one error group.

To make a job is to acquire machines, to let the tasks find each other, and to run the install script. `task.py` holds
the class Task.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol, TypeVar

from trainyard.lib import aio
from trainyard.lib.errors import InvalidError, TaskErrors
from trainyard.lib.log import redact
from trainyard.runtime import rendezvous, setup, verbs
from trainyard.runtime.context import Context
from trainyard.runtime.task import FOREVER, Commands, Task, TransferProgress, command_text
from trainyard.spec.machine import Machine, MachineSpec, MachineState
from trainyard.spec.names import check_name, task_name
from trainyard.transport import copy
from trainyard.transport.copy.api import CopyOptions, CopyReport, Peers

logger = logging.getLogger(__name__)
T = TypeVar("T")


class Named(Protocol):
    """Something with a name that error messages use."""

    @property
    def name(self) -> str:
        """The name in error messages."""
        ...


N = TypeVar("N", bound=Named)


class Job:
    """Tasks that were made together."""

    def __init__(
        self, context: Context, name: str, tasks: Sequence[Task], *, peers: Peers | None = None
    ) -> None:
        self.context = context
        self.name = name
        self.tasks = list(tasks)
        self.peers = peers

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
    ) -> list[str]:
        """Run a command on every task at once; one output per task. Arguments as for `Task.run`."""
        if not quiet:
            self.log("[bash run] %s", redact(command_text(cmd, sudo=sudo)))
        return await self._each(
            lambda task: task.run(
                cmd,
                sudo=sudo,
                non_blocking=non_blocking,
                ignore_errors=ignore_errors,
                max_wait_sec=max_wait_sec,
                show_realtime=show_realtime,
                show=show,
                quiet=True,
                prefix=len(self.tasks) > 1,
            )
        )

    async def run_with_output(
        self, cmd: str, non_blocking: bool = False, ignore_errors: bool = False
    ) -> list[tuple[str, str]]:
        """Run a command on every task; (stdout, stderr) of each."""
        return await self._each(lambda task: task.run_with_output(cmd, non_blocking, ignore_errors))

    async def join(self, ignore_errors: bool = False, max_wait_sec: float = FOREVER) -> list[int]:
        """Wait for the last command of every task; their statuses."""
        return await self._each(lambda task: task.join(ignore_errors, max_wait_sec))

    async def output(self) -> list[str]:
        """What the last command of every task printed so far."""
        return await self._each(lambda task: task.output())

    async def switch_window(self, window_id: int) -> None:
        """Send later commands to another tmux window on every task."""
        await self._each(lambda task: task.switch_window(window_id))

    async def propagate_env(self, env: Mapping[str, str]) -> None:
        """Export variables in every task's shell."""
        await self._each(lambda task: task.propagate_env(env))

    async def interrupt(self) -> None:
        """Send Ctrl-C to the running command of every task."""
        await self._each(lambda task: task.interrupt())

    # -- files ---------------------------------------------------------------------------------------------------

    async def upload(
        self,
        local_fn: str | Path,
        remote_fn: str = "",
        dont_overwrite: bool = False,
        options: CopyOptions | None = None,
    ) -> CopyReport:
        """Copy a file or folder to every task.

        The client reads it once. If the tasks can pass it on to each other, the client also sends it only once.
        """
        return await copy.upload(
            [(task.name, task.transport) for task in self.tasks],
            [Path(local_fn)],
            remote_fn,
            options=replace(options or CopyOptions(), dont_overwrite=dont_overwrite),
            progress=TransferProgress(self.context.reporter.transfer),
            peers=self.peers,
        )

    async def download(
        self, remote_fn: str, local_fn: str | Path = "", options: CopyOptions | None = None
    ) -> list[CopyReport]:
        """Copy a file or folder from every task. With several tasks, each copy goes to `local_fn`/<task name>/."""
        if len(self.tasks) == 1:
            return [await self.tasks[0].download(remote_fn, local_fn, options)]

        async def one(task: Task) -> CopyReport:
            folder = Path(local_fn or ".") / task.name
            await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
            return await task.download(
                remote_fn, folder / (Path(remote_fn.rstrip("/")).name or task.name), options
            )

        return await self._each(one)

    async def write(self, fn: str, contents: str | bytes) -> None:
        """Write a file on every task."""
        await self._each(lambda task: task.write(fn, contents))

    async def read(self, fn: str) -> list[str]:
        """The text of a file on every task."""
        return await self._each(lambda task: task.read(fn))

    async def exists(self, fn: str) -> list[bool]:
        """Return for each task whether the file exists."""
        return await self._each(lambda task: task.exists(fn))

    async def isdir(self, fn: str) -> list[bool]:
        """Return for each task whether the folder exists."""
        return await self._each(lambda task: task.isdir(fn))

    async def wait_for_file(
        self, fn: str, max_wait_sec: float = FOREVER, check_interval: float = 0.5
    ) -> list[bool]:
        """Wait until a file exists on every task. Returns False for each task where it did not appear in time."""
        return await self._each(lambda task: task.wait_for_file(fn, max_wait_sec, check_interval))

    async def logdir(self) -> str:
        """The folder of this run, on task 0."""
        return await self.tasks[0].logdir()

    # -- machines ------------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Wait for the commands that were started here, then stop all machines; files are kept."""
        await self._each(lambda task: task.settle())
        await self._each(lambda task: task.aclose())
        await verbs.stop(self.context.backend, self._machines())
        self._now(MachineState.STOPPED)

    async def start(self) -> None:
        """Start all machines again."""
        await self._each(lambda task: task.aclose())
        fresh = {
            machine.name: machine for machine in await verbs.start(self.context.backend, self._machines())
        }
        for task in self.tasks:
            task.machine = fresh[task.name]

    async def kill(self) -> None:
        """Release all machines for good, even if commands run on them. Calling it twice is no error."""
        await self._each(lambda task: task.aclose())
        await verbs.release(self.context.backend, self._machines())
        self._now(MachineState.RELEASED)

    async def aclose(self) -> None:
        """Close the connections. Machines and commands stay."""
        await self._each(lambda task: task.aclose())

    def log(self, message: str, *args: object, log_level: str = "INFO") -> None:
        """Report a line about this job."""
        name = self.tasks[0].name if len(self.tasks) == 1 else f"{self.name} x {len(self.tasks)}"
        self.context.reporter.log(name, message % args if args else message, log_level)

    # -- inside --------------------------------------------------------------------------------------------------

    def _machines(self) -> list[Machine]:
        return [task.machine for task in self.tasks]

    def _now(self, state: MachineState) -> None:
        for task in self.tasks:
            task.machine = replace(task.machine, state=state)

    async def _each(self, verb: Callable[[Task], Awaitable[T]]) -> list[T]:
        return await on_each(self.tasks, verb)


async def on_each(tasks: Sequence[N], verb: Callable[[N], Awaitable[T]]) -> list[T]:
    """Call `verb` on all tasks at once and wait for all. Failures are raised as one group that names the tasks.

    If there is a single task, its failure is raised as it is.
    """
    results = await aio.gather_all([verb(task) for task in tasks])
    failed = {
        task.name: result
        for task, result in zip(tasks, results, strict=True)
        if isinstance(result, BaseException)
    }
    for error in failed.values():
        if not isinstance(error, Exception):  # a cancel or an interrupt goes through as it is
            raise error
    if failed:
        errors = [error for error in failed.values() if isinstance(error, Exception)]
        if len(tasks) == 1:
            raise errors[0]
        for name, error in failed.items():
            error.add_note(f"on {name}")
        raise TaskErrors(f"{len(failed)} of {len(tasks)} tasks failed: {', '.join(failed)}", errors)
    return [result for result in results if not isinstance(result, BaseException)]


async def make_job(
    context: Context,
    *,
    name: str,
    num_tasks: int = 1,
    run_name: str = "",
    install_script: str = "",
    spec: MachineSpec | None = None,
    skip_setup: bool = False,
) -> Job:
    """Make or find a job. The same name gives the same machines, with the commands that still run there."""
    if num_tasks < 1:
        raise InvalidError(f"a job cannot have {num_tasks} tasks", hint="Pass num_tasks=1 or more.")
    check_name(name, "job name")
    names = [task_name(name, index) for index in range(num_tasks)]
    return await make_named(
        context,
        name=name,
        names=names,
        run_name=run_name,
        install_script=install_script,
        spec=spec,
        skip_setup=skip_setup,
    )


async def make_task(
    context: Context,
    *,
    name: str,
    run_name: str = "",
    install_script: str = "",
    spec: MachineSpec | None = None,
    skip_setup: bool = False,
) -> Task:
    """Make or find a single machine with exactly this name."""
    job = await make_named(
        context,
        name=name,
        names=[name],
        run_name=run_name,
        install_script=install_script,
        spec=spec,
        skip_setup=skip_setup,
    )
    return job.tasks[0]


async def make_named(
    context: Context,
    *,
    name: str,
    names: Sequence[str],
    run_name: str = "",
    install_script: str = "",
    spec: MachineSpec | None = None,
    skip_setup: bool = False,
) -> Job:
    """Make or find a job whose machines have exactly these names."""
    machines = await verbs.acquire(context.backend, spec or MachineSpec(), names, clock=context.clock)
    tasks = [Task(context, machine, run_name=run_name) for machine in machines]
    job = Job(context, name, tasks)
    if not skip_setup:
        with verbs.telling_what_stays(context.backend, [machine.name for machine in machines]):
            await _introduce(job)
            if install_script.strip():
                await on_each(
                    tasks, lambda task: setup.ensure_installed(task.transport, task.paths, install_script)
                )
    return job


async def _introduce(job: Job) -> None:
    """Open the sessions and let the tasks reach each other. If they were introduced before, only check that."""
    members = [(task.machine, task.transport) for task in job.tasks]
    peers = rendezvous.peers_of([machine for machine, _ in members])
    folders = await on_each(job.tasks, _absolute)
    for task, variables in zip(job.tasks, rendezvous.environments(peers, folders), strict=True):
        task.env.update(variables)
    verified = await on_each(job.tasks, lambda task: setup.verified_key(task.transport))
    digest = setup.digest_of(members, verified, peers, folders)
    keys = setup.keys_folder(members)
    answers = await on_each(
        job.tasks, lambda task: task.session.open_and_ask(setup.recall_script(task.paths, digest, keys))
    )
    if not any(status for status, _ in answers):
        job.peers = setup.recalled_peers(members, [said for _, said in answers])
        return
    job.peers = await setup.ensure_keys(members)

    async def meet(index: int, task: Task) -> None:
        script = rendezvous.script(peers, index, folders[index])
        status, said = await task.session.ask(f"{script}\n{setup.note_script(task.paths, digest)}")
        if status:
            raise InvalidError(f"cannot write the host files on {task.name}: {said.strip() or status}")

    index_of = {task.name: index for index, task in enumerate(job.tasks)}
    await on_each(job.tasks, lambda task: meet(index_of[task.name], task))


async def _absolute(task: Task) -> str:
    if task.machine.home:
        return task.paths.rendezvous
    home = (await task.transport.run('printf %s "$HOME"')).stdout.decode(errors="surrogateescape")
    task.machine = replace(task.machine, home=home)
    return task.paths.rendezvous
