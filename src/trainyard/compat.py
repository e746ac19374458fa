"""What the compatible packages `fastgpu` and `ncluster` share beyond the Runtime: their globals module.

Everything else they offer is the Runtime's own. Nothing here runs at import.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainyard.lib.errors import InvalidError

if TYPE_CHECKING:
    from trainyard.sync import Run, Runtime, Task


class Globals:
    """`ncluster_globals` / `fastgpu_globals`: the family's switches and registries, answered from the Runtime."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._placement_group = False

    # -- switches ------------------------------------------------------------------------------------------------

    def set_should_disable_nas(self, should_disable: bool) -> None:
        """Choose whether jobs go without shared storage."""
        self._runtime.disable_nas = bool(should_disable)

    def should_disable_nas(self) -> bool:
        """Say whether jobs go without shared storage."""
        return self._runtime.disable_nas

    def set_should_skip_setup(self, should_skip: bool) -> None:
        """Choose whether machines are taken as they are."""
        self._runtime.skip_setup = bool(should_skip)

    def should_skip_setup(self) -> bool:
        """Say whether machines are taken as they are."""
        return self._runtime.skip_setup

    def enforce_placement_group(self) -> None:
        """Ask for machines close to each other, where a backend knows such a thing."""
        self._placement_group = True

    def unenforce_placement_group(self) -> None:
        """Take that back."""
        self._placement_group = False

    def is_enforced_placement_group(self) -> bool:
        """Say whether it was asked for."""
        return self._placement_group

    # -- registries ----------------------------------------------------------------------------------------------

    @property
    def LOGDIR_ROOT(self) -> str:  # noqa: N802  # the family's name
        """The folder under which each run gets its own."""
        return self._runtime.get_logdir_root()

    @property
    def task_launched(self) -> bool:
        """Say whether a machine was made already."""
        return bool(self._runtime.tasks)

    @property
    def task_counter(self) -> int:
        """How many tasks were made."""
        return len(self._runtime.tasks)

    @property
    def job_counter(self) -> int:
        """How many jobs were made."""
        return sum(len(run.jobs) for run in self._runtime.runs.values())

    @property
    def run_counter(self) -> int:
        """How many runs there are."""
        return len(self._runtime.runs)

    @property
    def run_dict(self) -> dict[str, Run]:
        """Runs by name."""
        return dict(self._runtime.runs)

    @property
    def task_run_dict(self) -> dict[Task, str]:
        """The run of each task."""
        return {task: self._runtime.task_run[task.name] for task in self._runtime.tasks}

    @property
    def run_task_dict(self) -> dict[str, list[Task]]:
        """The tasks of each run."""
        tasks: dict[str, list[Task]] = {}
        for task in self._runtime.tasks:
            tasks.setdefault(self._runtime.task_run[task.name], []).append(task)
        return tasks

    @property
    def run_logdir_dict(self) -> dict[str, str]:
        """The log folder of each run that has one."""
        return dict(self._runtime.context.logdirs)

    @property
    def tasks_seen(self) -> list[str]:
        """The names of all tasks."""
        return [task.name for task in self._runtime.tasks]

    def auto_assign_task_name_if_needed(self, name: str) -> str:
        """The name, or a new one where it is empty."""
        return name or self._runtime.unnamed("task")

    def auto_assign_job_name_if_needed(self, name: str) -> str:
        """The name, or a new one where it is empty."""
        return name or self._runtime.unnamed("job")

    def auto_assign_run_name_if_needed(self, name: str) -> str:
        """The name, or a new one where it is empty."""
        return name or self._runtime.unnamed("run")

    def register_task(self, task: Task, run_name: str) -> None:
        """Count a task among those of a run."""
        self._runtime.register([task], run_name)

    def register_run(self, run_name: str, run: Run) -> None:
        """Give a run a name."""
        self._runtime.runs[run_name] = run

    def create_run_if_needed(self, run_name: str) -> Run:
        """The run of that name, made if missing."""
        return self._runtime.make_run(run_name)

    def get_run_object(self, run_name: str) -> Run | None:
        """The run of that name, or None."""
        return self._runtime.runs.get(run_name)

    def get_run_for_task(self, task: Task) -> str:
        """The name of a task's run."""
        return self._runtime.task_run[task.name]

    def is_chief(self, task: Task, run_name: str) -> bool:
        """Say whether a task is the first of its run."""
        return self._runtime.chief(run_name).name == task.name

    def get_chief(self, run_name: str) -> Task:
        """The first task of a run."""
        return self._runtime.chief(run_name)

    def get_logdir(self, run_name: str) -> str:
        """The log folder of a run; /tmp for no run."""
        return self._runtime.chief(run_name).logdir if run_name else "/tmp"

    def set_logdir(self, run_name: str, logdir: str) -> None:
        """Choose the log folder of a run, once."""
        known = self._runtime.context.logdirs.setdefault(run_name, logdir)
        if known != logdir:
            raise InvalidError(
                f"the run {run_name!r} logs to {known!r} already", hint="Choose it once, at the beginning."
            )
