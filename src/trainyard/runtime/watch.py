"""Watches a job while its client lives and acts on machines that are about to be taken back, lost or idle.

A machine's `details["notice"]` says that its provider takes it back soon. Then the checkpoint command runs there. With
`recover`, another machine takes its name when it is gone and is set up in the same way, and the command that was started
without waiting is started again. Files that the install script does not bring must be on shared storage.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace

from trainyard.lib.errors import CommandError, Error, TaskErrors, UnreachableError
from trainyard.lib.shell import home_path
from trainyard.runtime.job import Job, make_named
from trainyard.runtime.self_stop import SelfStop
from trainyard.runtime.task import Task
from trainyard.spec.machine import MachineSpec, MachineState

LOOK_SECONDS = 15.0  # the notice comes five minutes before the machine is taken back
CHECKPOINT_SECONDS = 240.0
STILL = frozenset({MachineState.STOPPED, MachineState.STOPPING})


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchOptions:
    """The actions that a watch takes for a job."""

    checkpoint: str = ""  # run on a machine that is about to be taken back
    recover: bool = False  # replace a machine that is gone, and start the command again
    idle_minutes: float = 0.0  # stop the machines when no command has run for so long

    @property
    def is_needed(self) -> bool:
        """Whether any action is asked for."""
        return bool(self.checkpoint or self.recover or self.idle_minutes)


@dataclass(kw_only=True)
class Watch:
    """Watches one job."""

    job: Job
    spec: MachineSpec
    care: WatchOptions
    install_script: str = ""
    skip_setup: bool = False
    self_stop: SelfStop | None = (
        None  # set if the machines stop themselves; a new machine must then get the script too
    )
    look_seconds: float = LOOK_SECONDS
    _warned: set[str] = field(default_factory=set)
    _busy_at: float = 0.0

    async def run(self) -> None:
        """Check the machines again and again until the job's own client stops or kills the job."""
        clock = self.job.context.clock
        self._busy_at = clock.monotonic()
        while True:
            await clock.sleep(self.look_seconds)
            if self._is_over():
                return
            try:
                await self.look()
            except (Error, TaskErrors) as error:
                self.job.log("watching: %s", error, log_level="WARN")

    async def look(self) -> None:
        """Check all machines once and take the actions that are due."""
        there = {machine.name: machine for machine in await self.job.context.backend.machines()}
        if self._is_over():
            return
        for task in self.job.tasks:
            machine = there.get(task.name)
            if machine is not None and machine.state in STILL:
                task.log("the machine has been stopped", log_level="WARN")
                task.machine = replace(task.machine, state=machine.state)
        if self._is_over():
            return
        for task in self.job.tasks:
            machine = there.get(task.name)
            if machine is not None and "notice" in machine.details and machine.id not in self._warned:
                self._warned.add(machine.id)
                task.log("%s", machine.details["notice"], log_level="WARN")
                await self._save(task)
        lost = [task for task in self.job.tasks if task.name not in there]
        if lost:
            await self._replace(lost)
        elif self.care.idle_minutes:
            await self._consider_idleness()

    async def _save(self, task: Task) -> None:
        if not self.care.checkpoint:
            return
        try:
            done = await task.transport.run(self.care.checkpoint, timeout=CHECKPOINT_SECONDS)
        except (UnreachableError, TimeoutError):
            task.log("the checkpoint command did not end in time", log_level="ERROR")
            return
        if done.status:
            said = (done.stderr or done.stdout).decode(errors="replace").strip()
            task.log("the checkpoint command ended with status %d: %s", done.status, said, log_level="ERROR")
        else:
            task.log("the checkpoint command has run")

    async def _replace(self, lost: list[Task]) -> None:
        names = ", ".join(task.name for task in lost)
        # A machine that went without notice was killed by a person, who does not want it made again.
        if not self.care.recover or not all(task.machine.id in self._warned for task in lost):
            for task in lost:
                task.log("the machine is gone", log_level="ERROR")
                self.job.tasks.remove(task)
            return
        self.job.log("%s taken back; getting new machines", names, log_level="WARN")
        standing = {task.name: task.standing for task in self.job.tasks if task.standing}
        for task in self.job.tasks:
            if task not in lost:
                await task.interrupt()  # the command waits for ranks that are gone
        fresh = await make_named(
            self.job.context,
            name=self.job.name,
            names=[task.name for task in self.job.tasks],
            run_name=self.job.tasks[0].run_name,
            install_script=self.install_script,
            spec=self.spec,
            skip_setup=self.skip_setup,
        )
        self.job.peers = fresh.peers
        for task, new in zip(self.job.tasks, fresh.tasks, strict=True):
            await task.adopt(new)
        await self._keep_logdir()
        if self.self_stop is not None:
            await self.self_stop.arrange()
        for task in self.job.tasks:
            if task.name in standing:
                task.log("starting again: %s", standing[task.name])
                await task.run(standing[task.name], non_blocking=True, quiet=True)

    async def _keep_logdir(self) -> None:
        """Let the new job use the log folder of the old one, since it is the same run."""
        first = self.job.tasks[0]
        if first.run_name in self.job.context.logdirs:
            folder = await first.logdir()
            try:
                await first.require(f"mkdir -p {home_path(folder)}", f"cannot make {folder}")
            except CommandError as error:
                first.log("%s", error.message, log_level="WARN")

    async def _consider_idleness(self) -> None:
        clock = self.job.context.clock
        states = await asyncio.gather(*(task.session.state() for task in self.job.tasks))
        if any(state.running is not None for state in states):
            self._busy_at = clock.monotonic()
        elif clock.monotonic() - self._busy_at >= self.care.idle_minutes * 60:
            self.job.log("nothing has run for %g minutes; stopping the machines", self.care.idle_minutes)
            await self.job.stop()

    def _is_over(self) -> bool:
        ended = {*STILL, MachineState.RELEASED}
        return not self.job.tasks or any(task.machine.state in ended for task in self.job.tasks)


async def stop_when_done(job: Job, self_stop: SelfStop | None = None) -> None:
    """Wait for the commands that were started without waiting, then stop the machines.

    It is no error if the machines are gone or stopped already.

    With a self-stop it does not wait: the machines stop themselves when their commands have ended.
    """
    if not job.tasks or any(task.machine.state is not MachineState.RUNNING for task in job.tasks):
        return
    if self_stop is None:
        await job.stop()
    elif await self_stop.is_quiet():
        await self_stop.withdraw()
        await job.stop()
    else:
        await self_stop.leave()
        job.log("the machines stop themselves when their commands have ended")
