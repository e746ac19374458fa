"""The class Runtime: the functions of `import trainyard` and their state. Each public package has its own Runtime."""

from __future__ import annotations

import atexit
import sys
import warnings
from decimal import Decimal
from typing import Any

from trainyard import settings
from trainyard.backends.registry import BUILT_IN, known_backends, open_backend
from trainyard.lib.aio import gather_all
from trainyard.lib.errors import InvalidError
from trainyard.lib.ids import short_hash
from trainyard.lib.portal import Portal
from trainyard.runtime import cost, verbs
from trainyard.runtime import job as core
from trainyard.runtime.context import Context
from trainyard.runtime.self_stop import SelfStop, StopTerms
from trainyard.runtime.watch import Watch, WatchOptions, stop_when_done
from trainyard.spec.machine import MachineSpec
from trainyard.spec.names import task_name
from trainyard.sync.console import ConsoleReporter
from trainyard.sync.job import Job, Run
from trainyard.sync.task import Task

# Backends that existing scripts name. One that is not installed is refused only when a machine is asked for, so that
# TRAINYARD_BACKEND can replace it without an edit of the script.
FAMILY_BACKENDS = ("aliyun", "aws", "fastmr")
TRY_OUT_REGION = "cn-beijing"  # the answer of get_region() when a script for a cloud runs on other machines

# Keyword arguments of existing scripts that have no effect on machines that exist already.
_ACCEPTED = {
    "create_resources", "ssh_auth_for_task0", "preemptible", "logging_task", "is_chief",
}  # fmt: skip


class Runtime:
    """The functions behind `import trainyard`, `import fastgpu` and `import ncluster`."""

    def __init__(self, *, backend: str = "local", logdir_root: str = "~/.trainyard/runs") -> None:
        self._wanted = backend
        self._default_root = logdir_root
        self._logdir_root = logdir_root
        self._context: Context | None = None
        self._portal: Portal | None = None
        self._tasks: list[Task] = []
        self._told: set[str] = set()
        self._to_stop: list[tuple[core.Job, SelfStop | None]] = []
        self._counters = {"task": 0, "job": 0, "run": 0}
        self.runs: dict[str, Run] = {}
        self.task_run: dict[str, str] = {}
        self.skip_setup = False
        self.disable_nas = True

    @property
    def portal(self) -> Portal:
        """The background loop; started by its first use, ended with the process."""
        if self._portal is None:
            self._portal = Portal()
            atexit.register(self.close)
        return self._portal

    @property
    def context(self) -> Context:
        """What all tasks share; the backend is opened by its first use."""
        if self._context is None:
            now = settings.load()
            name = self._override(now) or self._wanted
            root = self._logdir_root
            if name == "local" and root == self._default_root:
                root = str(now.home / "runs")  # the file system is shared, and / is not ours
            self._context = Context(
                backend=open_backend(name, now), reporter=ConsoleReporter(now.log_level), logdir_root=root
            )
        return self._context

    @property
    def tasks(self) -> list[Task]:
        """Every task made here, in order."""
        return list(self._tasks)

    def close(self) -> None:
        """Let go of connections. Machines and commands stay."""
        portal, self._portal = self._portal, None
        context, self._context = self._context, None
        if portal is not None:
            done, self._to_stop = self._to_stop, []
            for job, self_stop in done:
                portal.call(stop_when_done(job, self_stop))
            if context is not None:
                portal.call(_let_go(context, [task._task for task in self._tasks]))  # noqa: SLF001
            portal.close()
        self._tasks = []

    # -- backends ------------------------------------------------------------------------------------------------

    def set_backend(self, name: str) -> None:
        """Choose where machines come from: 'local', 'ssh', 'aliyun', … before the first machine is made."""
        if name not in BUILT_IN and name not in FAMILY_BACKENDS and name not in known_backends():
            raise InvalidError(
                f"there is no backend {name!r}", hint=f"Choose one of: {', '.join(known_backends())}."
            )
        if self._tasks and name != self._wanted:
            raise InvalidError(
                f"cannot change the backend to {name!r} after machines were made",
                hint="Call set_backend once, before make_job.",
            )
        if name != self._wanted:
            self._context = None
        self._wanted = name
        self._logdir_root = self._default_root
        self._override(settings.load())

    def get_backend(self) -> str:
        """The backend that is in force."""
        return self._override(settings.load()) or self._wanted

    def use_aliyun(self) -> None:
        """`set_backend('aliyun')`."""
        self.set_backend("aliyun")

    def use_local(self) -> None:
        """`set_backend('local')`."""
        self.set_backend("local")

    def use_aws(self) -> None:
        """`set_backend('aws')`, of ncluster."""
        self.set_backend("aws")

    def running_locally(self) -> bool:
        """Say whether machines are local."""
        return self.get_backend() == "local"

    def running_on_aws(self) -> bool:
        """Say whether machines come from AWS."""
        return self.get_backend() == "aws"

    def get_region(self) -> str:
        """The region: of the environment for a cloud's script, else the backend's name. Needs no credentials."""
        now = settings.load()
        if self._wanted in FAMILY_BACKENDS:
            region = now.region or (now.zone[:-2] if now.zone else "")
            if region or now.backend:
                return region or TRY_OUT_REGION
            raise InvalidError(
                "no region is set",
                hint="Run `export ALIYUN_DEFAULT_REGION=cn-beijing`; to use your own machines, "
                "`export TRAINYARD_BACKEND=local`.",
            )
        return self._wanted

    def get_zone(self) -> str:
        """The zone: of the environment for a cloud's script, else the backend's name."""
        return settings.load().zone if self._wanted in FAMILY_BACKENDS else self._wanted

    def set_logdir_root(self, path: str) -> None:
        """Choose the folder on machines under which each run gets its own."""
        self._logdir_root = str(path)
        if self._context is not None:
            self._context.logdir_root = self._logdir_root

    def get_logdir_root(self) -> str:
        """The folder on machines under which each run gets its own."""
        return self._context.logdir_root if self._context is not None else self._logdir_root

    def add_authorized_keys(self, keys: str) -> None:
        """Remember public keys that machines should admit (`NCLUSTER_AUTHORIZED_KEYS`)."""
        name = "NCLUSTER_AUTHORIZED_KEYS"
        before = settings.pick([name]).get(name, "")
        settings.export(name, f"{before};{keys}" if before else keys)

    # -- making --------------------------------------------------------------------------------------------------

    def make_job(
        self,
        name: str = "",
        run_name: str = "",
        num_tasks: int = 1,
        install_script: str = "",
        **kwargs: Any,
    ) -> Job:
        """Make a job of `num_tasks` machines, task0.NAME, task1.NAME, …; or find it: the same name is the same job.

        Further keywords: instance_type, image_name, image_type, gpus, npus, spot, system_disk_size, data_disk_size,
        zone_id, vpc_name, enable_nas, disable_nas, skip_setup, and others of the family, which are accepted. Where
        machines cost money: confirm_cost=True does not ask, min_tasks is content with fewer, max_hours lets the provider
        release them when no client has renewed it for so long, max_price_per_hour and spot_price_limit are for one
        machine, install_cuda wants an image with the GPU driver, snapshot is what the data disk begins as. While this
        program lives: autostop_idle (minutes) stops idle machines, checkpoint is a command for machines that are about to
        be taken back, recover=True gets others in their place and starts the command again, and stop_when_done=True
        stops the machines at the end of the program, when their commands have ended. With ram_role, a role of the account
        that may stop machines, autostop_idle and stop_when_done are the machines' own business: this program may end.
        """
        name = name or self.unnamed("job")
        if name.count(".") > 1:
            raise InvalidError(f"the job name {name!r} has more than one dot", hint="Use at most one.")
        run = self._run(run_name or name)
        spec = self._spec(kwargs)
        self._agree(spec, [task_name(name, index) for index in range(num_tasks)], kwargs)
        made = self.portal.call(
            core.make_job(
                self.context,
                name=name,
                num_tasks=num_tasks,
                run_name=run.name,
                install_script=install_script,
                skip_setup=self._skips_setup(kwargs),
                spec=spec,
            )
        )
        job = Job(self.portal, made, install_script=install_script, **kwargs)
        self._watch(made, spec, install_script, kwargs)
        run.jobs = [*(other for other in run.jobs if other.name != name), job]
        self.register(job.tasks, run.name)
        return job

    def make_task(self, name: str = "", run_name: str = "", install_script: str = "", **kwargs: Any) -> Task:
        """Make one machine of that very name, or find it. Keywords as for `make_job`."""
        name = name or self.unnamed("task")
        run = self._run(run_name or name)
        spec = self._spec(kwargs)
        self._agree(spec, [name], kwargs)
        made = self.portal.call(
            core.make_task(
                self.context,
                name=name,
                run_name=run.name,
                install_script=install_script,
                skip_setup=self._skips_setup(kwargs),
                spec=spec,
            )
        )
        task = Task(self.portal, made, install_script=install_script, **kwargs)
        self._watch(core.Job(self.context, name, [made]), spec, install_script, kwargs)
        self.register([task], run.name)
        return task

    def make_run(self, name: str = "", **kwargs: Any) -> Run:
        """Make a run: jobs that share a log folder."""
        run = self._run(name or self.unnamed("run"))
        run.kwargs.update(kwargs)
        return run

    def chief(self, run_name: str) -> Task:
        """The first task that was made for a run."""
        for task in self._tasks:
            if self.task_run.get(task.name) == run_name:
                return task
        raise InvalidError(
            f"the run {run_name!r} has no tasks yet", hint="Make a job with this run_name first."
        )

    def join(self, things: Any) -> None:
        """Wait for the last command of a task, a job, or several of them."""
        for thing in things if isinstance(things, list | tuple | set) else [things]:
            thing.join()

    # -- inside --------------------------------------------------------------------------------------------------

    def _override(self, now: settings.Settings) -> str:
        """Return TRAINYARD_BACKEND, and report the first time that it overrides the script."""
        if now.backend and now.backend != self._wanted and self._wanted not in self._told:
            self._told.add(self._wanted)
            sys.stderr.write(
                f"trainyard: TRAINYARD_BACKEND={now.backend} takes the place of {self._wanted!r}\n"
            )
        return now.backend

    def _run(self, name: str) -> Run:
        return self.runs.setdefault(name, Run(self, name))

    def register(self, tasks: list[Task], run_name: str) -> None:
        """Remember tasks and the run they belong to."""
        known = {task.name for task in self._tasks}
        self._tasks += [task for task in tasks if task.name not in known]
        self.task_run.update({task.name: run_name for task in tasks})

    def unnamed(self, kind: str) -> str:
        """A name that is the same in every run of the same script."""
        number = self._counters[kind]
        self._counters[kind] += 1
        return f"unnamed{kind}-{number}-{short_hash(sys.argv[0] if sys.argv else '')}"

    def _agree(self, spec: MachineSpec, names: list[str], kwargs: dict[str, Any]) -> None:
        """Show the costs and ask for consent if something begins to cost money and the script has not consented."""
        if kwargs.get("confirm_cost") or settings.load().skips_cost_question:
            return
        plan = self.portal.call(verbs.plan(self.context.backend, spec, names))
        if plan is None or plan.is_free:
            return
        sys.stderr.write("".join(f"{line}\n" for line in cost.lines(plan)))
        question = f"Spend {cost.amount(plan.price_per_hour, plan.currency)} an hour?"
        if not sys.stdin or not sys.stdin.isatty():
            raise InvalidError(
                f"this asks first, and standard input is no terminal: {question}",
                hint="Pass confirm_cost=True, or run `export FASTGPU_SKIP_COST_CONFORM=1`.",
            )
        sys.stderr.write(f"{question} [y/N] ")
        sys.stderr.flush()
        if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
            raise InvalidError("nothing was made: the cost was not agreed to")

    def _watch(self, job: core.Job, spec: MachineSpec, install_script: str, kwargs: dict[str, Any]) -> None:
        """Start the actions that the user wants for a job while this program lives and at its end."""
        skip_setup = self._skips_setup(kwargs)
        idle_minutes = float(kwargs.get("autostop_idle") or 0)
        terms = StopTerms(when_done=bool(kwargs.get("stop_when_done")), idle_minutes=idle_minutes)
        self_stop: SelfStop | None = None
        # Machines that do not know each other cannot agree on when all are done.
        if terms.is_needed and spec.role and (not skip_setup or len(job.tasks) == 1):
            self_stop = SelfStop(job=job, terms=terms)
            if self.portal.call(self_stop.arrange()):
                self.portal.submit(self_stop.beat())
            else:
                self_stop = None
        care = WatchOptions(
            checkpoint=str(kwargs.get("checkpoint") or ""),
            recover=bool(kwargs.get("recover")),
            idle_minutes=0.0 if self_stop else idle_minutes,
        )
        if care.is_needed:
            watch = Watch(
                job=job,
                spec=spec,
                care=care,
                install_script=install_script,
                skip_setup=skip_setup,
                self_stop=self_stop,
            )
            self.portal.submit(watch.run())
        if terms.when_done:
            self._to_stop.append((job, self_stop))

    def _skips_setup(self, kwargs: dict[str, Any]) -> bool:
        return bool(kwargs.get("skip_setup", self.skip_setup))

    def _spec(self, kwargs: dict[str, Any]) -> MachineSpec:
        """Convert keyword arguments to a MachineSpec. Unknown ones are left out with a warning."""
        now = settings.load()
        words = {key: value for key, value in kwargs.items() if value not in (None, "")}
        known = _ACCEPTED | {
            "instance_type", "image_name", "image_type", "gpus", "npus", "spot", "disk_size", "system_disk_size",
            "data_disk_size", "zone_id", "vpc_name", "enable_nas", "disable_nas", "skip_setup", "labels", "confirm_cost",
            "install_cuda", "cuda_install", "min_tasks", "max_hours", "max_price_per_hour", "spot_price_limit",
            "snapshot", "checkpoint", "recover", "autostop_idle", "stop_when_done", "ram_role",
        }  # fmt: skip
        for key in kwargs.keys() - known:
            warnings.warn(f"make_job does not know the argument {key!r}; it is ignored", stacklevel=3)
        nas = bool(words.get("enable_nas", not words.get("disable_nas", self.disable_nas)))
        return MachineSpec(
            type=str(words.get("instance_type", "")),
            image=str(words.get("image_name", "")),
            image_type=str(words.get("image_type", "")),
            gpus=int(words["gpus"]) if "gpus" in words else None,
            npus=int(words.get("npus", 0)),
            spot=bool(words.get("spot", False)),
            system_disk_gib=int(words.get("system_disk_size", words.get("disk_size", 0))),
            data_disk_gib=int(words.get("data_disk_size", now.data_disk_gib)),
            zone_id=str(words.get("zone_id", now.zone)),
            vpc_name=str(words.get("vpc_name", "")),
            shared_storage=nas,
            snapshot=str(words.get("snapshot", now.snapshot)),
            with_driver=bool(words.get("install_cuda", words.get("cuda_install", False))),
            min_machines=int(words.get("min_tasks", 0)),
            max_hours=float(words.get("max_hours", 0)),
            max_price_per_hour=_money(words.get("max_price_per_hour")),
            spot_price_limit=_money(words.get("spot_price_limit")),
            role=str(words.get("ram_role", "")),
            labels=dict(words.get("labels", {})),
        )


def _money(value: Any) -> Decimal | None:
    try:
        return None if value is None else Decimal(str(value))
    except ArithmeticError as error:
        raise InvalidError(f"{value!r} is not a price", hint="Write a number, for example 26.5.") from error


async def _let_go(context: Context, tasks: list[Any]) -> None:
    await gather_all([task.aclose(parting=True) for task in tasks])
    await context.backend.aclose()
