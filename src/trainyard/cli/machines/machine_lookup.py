"""Finds the machines for a command in all backends, and runs the command's coroutine."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from trainyard import settings as settings_module
from trainyard.backends.api import Backend
from trainyard.backends.registry import open_backend
from trainyard.cli.invocation import Invocation
from trainyard.cli.machines.task_reporter import TerminalReporter
from trainyard.cli.terminal.output import Output
from trainyard.lib.aio import finish, gather_all
from trainyard.lib.errors import ConflictError, Error, InvalidError, NotFoundError
from trainyard.runtime import verbs
from trainyard.runtime.context import Context
from trainyard.runtime.name_matching import select
from trainyard.settings import Settings
from trainyard.spec.machine import Machine, MachineState
from trainyard.spec.names import sort_key

if TYPE_CHECKING:
    from trainyard.runtime.task import Task

T = TypeVar("T")
DEFAULT_BACKEND = "local"
CLOUD = "aliyun"
SLOW_SECONDS = 1.0  # after which a wait is explained


class MachineLookup:
    """All machines of the backends that were asked for: one if one was named, else all that there are."""

    def __init__(self, invocation: Invocation, settings: Settings) -> None:
        self.invocation = invocation
        self.settings = settings
        self.reporter = TerminalReporter(invocation.output)
        self.failures: dict[str, Error] = {}
        self._backends: dict[str, Backend] = {}
        self._contexts: dict[str, Context] = {}
        self._listed: list[Machine] | None = None

    @property
    def chosen(self) -> str:
        """The backend that was asked for by name, or ''."""
        return self.invocation.backend or self.settings.backend

    @property
    def names(self) -> list[str]:
        """The backends that are looked at."""
        if self.chosen:
            return [self.chosen]
        hosts = ["ssh"] if self._has_hosts() else []
        platform = ["platform"] if self.settings.has_login else []
        return [DEFAULT_BACKEND, *hosts, *platform, *([CLOUD] if self.settings.has_cloud else [])]

    @property
    def place(self) -> str:
        """Where new machines come from: the cloud where its emulator is named, or where the family's names are used."""
        if self.chosen:
            return self.chosen
        is_family = self.invocation.program in {"fastgpu", "ecluster"}
        is_cloud = bool(self.settings.cloud.endpoint) or (is_family and self.settings.has_cloud)
        return CLOUD if is_cloud else DEFAULT_BACKEND

    @property
    def home(self) -> str:
        """What `region=` says where there is no machine: the cloud's region, or the name of the place."""
        return (self.settings.region if self.place == CLOUD else "") or self.place

    def backend(self, name: str) -> Backend:
        """The backend called `name`, opened on first use."""
        if name not in self._backends:
            self._backends[name] = open_backend(name, self.settings)
        return self._backends[name]

    def context(self, name: str) -> Context:
        """What tasks of that backend share."""
        if name not in self._contexts:
            self._contexts[name] = Context(self.backend(name), self.reporter)
        return self._contexts[name]

    def task(self, machine: Machine) -> Task:
        """The task on a machine."""
        from trainyard.runtime.task import Task  # brings the copying with it, which `ls` can do without

        return Task(self.context(machine.backend), machine)

    async def machines(self) -> list[Machine]:
        """Every machine, asked once. A backend that fails is noted in `failures`; a single one's failure is raised."""
        if self._listed is None:
            results = await self._list_all()
            listed: list[Machine] = []
            for name, result in zip(self.names, results, strict=True):
                if isinstance(result, Error):
                    if len(self.names) == 1:
                        raise result
                    self.failures[name] = result
                elif isinstance(result, BaseException):
                    raise result
                else:
                    listed += result
            self._listed = sorted(listed, key=lambda machine: (sort_key(machine.name), machine.backend))
        return self._listed

    async def everybody(self, *, everywhere: bool = False, foreign: bool = True) -> list[Machine]:
        """Every machine, those of other people too where a backend can see them, and `everywhere` an account has some."""
        machines = await self._survey(await self.machines(), everybody=foreign, everywhere=everywhere)
        if "ssh" not in self.names or "ssh" in self.failures or not foreign:
            return machines
        from trainyard.backends.ssh.backend import SshBackend, describe

        backend = self.backend("ssh")
        if not isinstance(backend, SshBackend):
            return machines
        look = await backend.fleet.look(backend.fleet.inventory(allow_empty=True))
        others = [
            describe(host, lease, MachineState(lease.state))
            for host, lease in look.leased()
            if not lease.is_mine
        ]
        return sorted([*machines, *others], key=lambda machine: (sort_key(machine.name), machine.backend))

    async def _survey(self, machines: list[Machine], *, everybody: bool, everywhere: bool) -> list[Machine]:
        """The machines, and what backends see beyond them."""
        found = {(machine.backend, machine.id): machine for machine in machines}
        for name in self.names:
            if name not in self.failures:
                seen = await verbs.survey(self.backend(name), everybody=everybody, everywhere=everywhere)
                found |= {(machine.backend, machine.id): machine for machine in seen or ()}
        return sorted(found.values(), key=lambda machine: (sort_key(machine.name), machine.backend))

    async def select(self, words: Iterable[str], *, with_twins: bool = False) -> list[Machine]:
        """The machines that the words mean, each once, in the order of the words.

        `with_twins`: a name that one place has twice, as two computers may have made it, means both.
        """
        machines = await self.machines()
        chosen: dict[tuple[str, str], Machine] = {}
        for word in words:
            try:
                found = select(machines, word)
            except NotFoundError:
                for failure in self.failures.values():
                    raise failure from None  # it may be there, only nobody can say
                raise
            self._refuse_twins(found, with_twins=with_twins)
            for machine in found:
                chosen[machine.backend, machine.id] = machine
        for name, failure in self.failures.items():
            self.invocation.output.warn(f"the {name} machines could not be listed: {failure.message}")
        self.failures.clear()
        return list(chosen.values())

    async def select_one(self, word: str) -> Machine:
        """The one machine that a word means."""
        found = await self.select([word])
        if len(found) > 1:
            listed = ", ".join(machine.name for machine in found[:8])
            raise ConflictError(f"{word!r} fits {len(found)} machines: {listed}", hint="Name one of them.")
        return found[0]

    async def tasks(self, words: Iterable[str]) -> list[Task]:
        """Tasks on the machines that the words mean; all must be running."""
        machines = await self.select(words)
        require_running(machines)
        return [self.task(machine) for machine in machines]

    def by_backend(self, machines: Sequence[Machine]) -> list[tuple[Backend, list[Machine]]]:
        """The machines, apart by where they come from."""
        names = dict.fromkeys(machine.backend for machine in machines)
        return [
            (self.backend(name), [machine for machine in machines if machine.backend == name])
            for name in names
        ]

    async def confirm(self, question: str) -> bool:
        """Ask without standing in the way of Ctrl-C, which only the event loop hears."""
        self.invocation.output.ask(question)
        loop = asyncio.get_running_loop()
        typed = asyncio.Event()
        loop.add_reader(sys.stdin, typed.set)
        try:
            await typed.wait()
        finally:
            loop.remove_reader(sys.stdin)
        return self.invocation.output.answer()

    async def aclose(self) -> None:
        """Let go of every connection; machines and commands stay."""
        await gather_all([backend.aclose() for backend in self._backends.values()])

    async def _list_all(self) -> list[Sequence[Machine] | BaseException]:
        """Ask all backends at once; after a second, say what we wait for."""
        output = self.invocation.output
        remark = asyncio.get_running_loop().call_later(
            SLOW_SECONDS, output.draw, f"asking the {' and '.join(self.names)} machines ..."
        )
        try:
            return await gather_all([self._list(name) for name in self.names])
        finally:
            remark.cancel()
            output.erase()

    async def _list(self, name: str) -> Sequence[Machine]:
        return await self.backend(name).machines()

    def _has_hosts(self) -> bool:
        try:
            return "hosts" in self.settings.hosts_file.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return False

    def _refuse_twins(self, found: Sequence[Machine], *, with_twins: bool) -> None:
        """The same name on two backends, or twice on one: which is meant must be said."""
        names = [machine.name for machine in found]
        twins = sorted({name for name in names if names.count(name) > 1}, key=sort_key)
        places = sorted({machine.backend for machine in found if machine.name in twins})
        if len(places) > 1:
            raise ConflictError(
                f"{', '.join(twins[:8])} exists in several places: {', '.join(places)}",
                hint=f"Say which you mean, for example with --backend {places[0]}.",
            )
        if twins and not with_twins:
            ids = ", ".join(machine.id for machine in found if machine.name == twins[0])
            raise ConflictError(
                f"there are several machines called {twins[0]}: {ids}",
                hint=f"Release all of them with `trainyard kill {twins[0]}`.",
            )


def require_running(machines: Sequence[Machine]) -> None:
    """Refuse machines on which nothing can be done, with what to do about it."""
    stopped = [machine.name for machine in machines if machine.state is MachineState.STOPPED]
    if stopped:
        names = " ".join(stopped)
        raise InvalidError(
            f"{', '.join(stopped)} {'is' if len(stopped) == 1 else 'are'} stopped",
            hint=f"Start {'it' if len(stopped) == 1 else 'them'} with `trainyard start {names}`.",
        )
    for machine in machines:
        if machine.state is MachineState.LOST:
            reason = machine.details.get("reason", "it does not answer")
            host = machine.details.get("host")
            hint = (
                f"See what is wrong with `trainyard hosts check {host}`."
                if host
                else f"Release it with `trainyard kill {machine.name}`, then make it again."
            )
            raise NotFoundError(f"{machine.name} is lost: {reason}", hint=hint)


def run(invocation: Invocation, work: Callable[[MachineLookup], Awaitable[T]]) -> T:
    """Run a verb's coroutine with a fleet, and let go of everything when it ends, however it ends."""
    settings = replace(settings_module.load(), is_patient=not invocation.output.is_watched)
    if invocation.backend:
        settings = replace(settings, backend=invocation.backend)

    async def whole() -> T:
        fleet = MachineLookup(invocation, settings)
        ending = _Ending(invocation.output)
        remarks = _Remarks(invocation.output)
        logging.getLogger("trainyard").addHandler(remarks)
        try:
            return await work(fleet)
        finally:
            fleet.reporter.close()
            await finish(fleet.aclose())
            logging.getLogger("trainyard").removeHandler(remarks)
            ending.tell()

    return asyncio.run(whole())


class _Remarks(logging.Handler):
    """What the layers below warn of, as remarks: beside a moving line, not into it."""

    def __init__(self, output: Output) -> None:
        super().__init__(logging.WARNING)
        self._output = output

    def emit(self, record: logging.LogRecord) -> None:
        """Show one."""
        self._output.warn(record.getMessage())


class _Ending:
    """Ends the work in good order when somebody ends us, or when nobody reads our output any more."""

    def __init__(self, output: Output) -> None:
        self._working = asyncio.current_task()
        self._reason: BaseException | None = None
        output.on_broken = lambda: self._end(BrokenPipeError())
        asyncio.get_running_loop().add_signal_handler(
            signal.SIGTERM, lambda: self._end(SystemExit(128 + signal.SIGTERM))
        )

    def tell(self) -> None:
        """Raise what ended the work, if something did."""
        if self._reason is not None:
            raise self._reason

    def _end(self, reason: BaseException) -> None:
        if self._reason is None and self._working is not None:
            self._reason = reason
            self._working.cancel()
