"""The blocking classes Job and Run. They forward to the async Job of `runtime/`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainyard.lib.ids import new_id
from trainyard.lib.portal import Portal
from trainyard.runtime import job as core
from trainyard.runtime.job import on_each
from trainyard.runtime.task import FOREVER, Commands
from trainyard.settings import pick
from trainyard.sync.task import Task
from trainyard.transport.api import Completed
from trainyard.transport.copy import CopyOptions, CopyReport

if TYPE_CHECKING:
    from trainyard.sync.runtime import Runtime


class Job:
    """Tasks that were made together; every verb acts on all of them at once.

    What a task returns, a job returns once per task, in order. Failures of several tasks come as one TaskErrors group that
    names them all, after the healthy tasks have finished.
    """

    def __init__(self, portal: Portal, job: core.Job, **kwargs: Any) -> None:
        self._portal = portal
        self._job = job
        self.name = job.name
        self.kwargs = kwargs
        self.tasks = [Task(portal, task, job=self, **kwargs) for task in job.tasks]

    def __repr__(self) -> str:
        return f"<Job {self.name}: {', '.join(task.name for task in self.tasks)}>"

    @property
    def logdir(self) -> str:
        """The folder of this run, on task 0; made on first use."""
        return self._portal.call(self._job.logdir())

    @property
    def output(self) -> list[str]:
        """What the last command of every task printed so far."""
        return self._portal.call(self._job.output())

    def run(
        self,
        cmd: Commands,
        sudo: bool = False,
        non_blocking: bool = False,
        ignore_errors: bool = False,
        max_wait_sec: float = FOREVER,
        check_interval: float = 0.2,  # noqa: ARG002  # the family's; completion is pushed here, not polled
        show_realtime: bool = False,
        show: bool = False,
        stream_output: bool = False,
        sanitized: bool = False,
        return_output: bool = True,  # noqa: ARG002  # the family's; the output is always returned
        quiet: bool = False,
    ) -> list[str]:
        """Run a command on every task at once; one output per task. Arguments as for `Task.run`."""
        return self._portal.call(
            self._job.run(
                cmd,
                sudo=sudo,
                non_blocking=non_blocking,
                ignore_errors=ignore_errors,
                max_wait_sec=max_wait_sec,
                show_realtime=show_realtime or stream_output,
                show=show,
                quiet=quiet or sanitized,
            )
        )

    def run_with_output(
        self, cmd: str, non_blocking: bool = False, ignore_errors: bool = False
    ) -> list[tuple[str, str]]:
        """Run a command on every task; (stdout, stderr) of each."""
        return self._portal.call(self._job.run_with_output(cmd, non_blocking, ignore_errors))

    def raw(self, cmd: str) -> list[Completed]:
        """Run beside the tasks' shells, on channels of their own; status and bytes as they are."""
        return self._portal.call(on_each(self._job.tasks, lambda task: task.transport.run(cmd)))

    def _run_raw(self, cmd: str, ignore_errors: bool = False) -> list[tuple[str, str]]:
        return [task._run_raw(cmd, ignore_errors) for task in self.tasks]  # noqa: SLF001  # the same family

    def join(self, ignore_errors: bool = False, max_wait_sec: float = FOREVER) -> list[int]:
        """Wait for the last command of every task; their statuses."""
        return self._portal.call(self._job.join(ignore_errors, max_wait_sec))

    def switch_window(self, window_id: int) -> None:
        """Send later commands to another tmux window on every task."""
        self._portal.call(self._job.switch_window(window_id))

    def propagate_env(self, env: Iterable[str] | Mapping[str, str], sanitized: bool = True) -> None:  # noqa: ARG002
        """Export variables in every task's shell: names of variables of this process, or a mapping of values."""
        self._portal.call(self._job.propagate_env(dict(env) if isinstance(env, Mapping) else pick(env)))

    def interrupt(self) -> None:
        """Ctrl-C for whatever runs on the tasks."""
        self._portal.call(self._job.interrupt())

    def upload(
        self,
        local_fn: str | Path,
        remote_fn: str = "",
        dont_overwrite: bool = False,
        options: CopyOptions | None = None,
        show_info: bool = True,  # noqa: ARG002  # the family's; a terminal sees a progress line
    ) -> CopyReport:
        """Copy a file or folder to every task. The client sends each byte once where tasks can pass it on."""
        return self._portal.call(self._job.upload(local_fn, remote_fn, dont_overwrite, options))

    def download(
        self, remote_fn: str, local_fn: str | Path = "", options: CopyOptions | None = None
    ) -> list[CopyReport]:
        """Copy a file or folder from every task: into `local_fn`/<task name>/ where there are several."""
        return self._portal.call(self._job.download(remote_fn, local_fn, options))

    def rsync(self, local_fn: str | Path, remote_fn: str = "", exclude_git: bool = False) -> CopyReport:
        """Upload what has changed; with `exclude_git` without .git."""
        return self.upload(
            local_fn, remote_fn, options=CopyOptions(exclude=(".git",)) if exclude_git else None
        )

    def write(self, fn: str, contents: str | bytes) -> None:
        """Write a file on every task."""
        self._portal.call(self._job.write(fn, contents))

    def read(self, fn: str) -> list[str]:
        """The text of a file on every task."""
        return self._portal.call(self._job.read(fn))

    def exists(self, fn: str) -> list[bool]:
        """Say for each task whether there is such a file."""
        return self._portal.call(self._job.exists(fn))

    def isdir(self, fn: str) -> list[bool]:
        """Say for each task whether there is such a folder."""
        return self._portal.call(self._job.isdir(fn))

    def wait_for_file(
        self, fn: str, max_wait_sec: float = FOREVER, check_interval: float = 0.5
    ) -> list[bool]:
        """Wait until a file is there on every task; False for those where it never came."""
        return self._portal.call(self._job.wait_for_file(fn, max_wait_sec, check_interval))

    def setup_logdir(self) -> str:
        """Make the folder of this run and return it."""
        return self.logdir

    def stop(self) -> None:
        """Wait for the commands that were started here, then stop all machines; files are kept."""
        self._portal.call(self._job.stop())
        self._job.log(
            "stopped; see it with `trainyard ls --stop`, start it with `trainyard start {%s}`", self.name
        )

    def start(self) -> None:
        """Start all machines again."""
        self._portal.call(self._job.start())

    def kill(self) -> None:
        """Release all machines for good, whatever runs there. Twice is no error."""
        self._portal.call(self._job.kill())
        self._job.log("released")


class Run:
    """Jobs that belong together and share a log folder."""

    def __init__(self, runtime: Runtime, name: str, **kwargs: Any) -> None:
        self._runtime = runtime
        self.name = name
        self.kwargs = kwargs
        self.jobs: list[Job] = []
        self.placement_group = f"{name}-{new_id()[-5:]}"

    @property
    def logdir(self) -> str:
        """The folder of this run, on the first task that was made."""
        return self._runtime.chief(self.name).logdir

    def make_job(self, name: str = "", **kwargs: Any) -> Job:
        """Make a job of this run, called `name.run`."""
        return self._runtime.make_job(f"{name}.{self.name}" if name else self.name, self.name, **kwargs)

    def run(self, cmd: Commands, **kwargs: Any) -> list[list[str]]:
        """Run a command on every task of every job, job by job in parallel."""
        return self._all("run", cmd, **kwargs)

    def upload(self, local_fn: str | Path, remote_fn: str = "", **kwargs: Any) -> list[CopyReport]:
        """Upload to every job."""
        return self._all("upload", local_fn, remote_fn, **kwargs)

    def stop(self) -> None:
        """Stop every job."""
        self._all("stop")

    def start(self) -> None:
        """Start every job."""
        self._all("start")

    def kill(self) -> None:
        """Release every job."""
        self._all("kill")

    def _all(self, verb: str, *args: Any, **kwargs: Any) -> list[Any]:
        async def together() -> list[Any]:
            twins = [job._job for job in self.jobs]  # noqa: SLF001  # the same family
            return await on_each(twins, lambda twin: getattr(twin, verb)(*args, **kwargs))

        return self._runtime.portal.call(together())
