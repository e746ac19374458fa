"""`start`, `stop`, `kill`, `rename`: change machines. They list the machines, and ask before irreversible changes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import click

from trainyard.cli.invocation import Invocation, current
from trainyard.cli.machines import machine_lookup
from trainyard.cli.machines.ls import STATE_STYLES, record
from trainyard.cli.machines.machine_lookup import MachineLookup
from trainyard.cli.terminal.table import Column, Table
from trainyard.cli.verb import Verb, complete_name, names_argument
from trainyard.lib.aio import gather_all
from trainyard.lib.errors import Error, TaskErrors
from trainyard.lib.log import redact
from trainyard.runtime import verbs
from trainyard.spec.machine import Machine, MachineState
from trainyard.spec.names import job_of

BUSY_SECONDS = 5.0  # how long a machine may take to say what it is doing, before a question


@click.command("start", cls=Verb)
@names_argument(many=True)
@click.option("-y", "--yes", is_flag=True, help="Accepted for scripts; nothing is asked.")
def start_command(names: tuple[str, ...], yes: bool) -> int:  # noqa: ARG001  # the family's start asked
    """Start stopped machines. Starting one that runs is no error."""
    invocation = current()

    async def work(machines: MachineLookup) -> int:
        chosen = await machines.select(names)
        started: list[Machine] = []
        for backend, part in machines.by_backend(chosen):
            started += await verbs.start(backend, part)
        _tell(invocation, started, "started")
        return 0

    return machine_lookup.run(invocation, work)


@click.command("stop", cls=Verb)
@names_argument(many=True)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def stop_command(names: tuple[str, ...], yes: bool) -> int:
    """Stop machines: everything on them ends, their files are kept.

    Asks first where several machines are at work, or one belongs to somebody else.
    """
    invocation = current()

    async def work(machines: MachineLookup) -> int:
        chosen = await machines.select(names, with_twins=True)
        running = [machine for machine in chosen if machine.state is not MachineState.STOPPED]
        if not yes and await _needs_question(machines, running):
            return _declined(invocation)
        stopped = [machine for machine in chosen if machine not in running]
        try:
            for backend, part in machines.by_backend(running):
                await verbs.stop(backend, part)
                stopped += part
        except (Error, TaskErrors):
            now = {machine.id: machine.state for machine in await backend.machines()}
            stopped += [machine for machine in part if now.get(machine.id) is MachineState.STOPPED]
            raise
        finally:
            _tell(invocation, stopped, "stopped")
        if not invocation.json and running:
            invocation.output.note(
                f"Files are kept. Start again with `{invocation.program} start`, "
                f"list with `{invocation.program} ls --stop`.",
                "dim",
            )
        return 0

    return machine_lookup.run(invocation, work)


@click.command("kill", cls=Verb)
@names_argument(many=True)
@click.option("-f", "--force", is_flag=True, help="Do not ask; damaged and lost machines too.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def kill_command(names: tuple[str, ...], force: bool, yes: bool) -> int:
    """Release machines for good: everything on them ends, and their files go."""
    invocation = current()

    async def work(machines: MachineLookup) -> int:
        chosen = await machines.select(names, with_twins=True)
        if not (yes or force):
            await _list(machines, chosen)
            if not await machines.confirm(f"Kill {_count(chosen)} for good, with all files?"):
                return _declined(invocation)
        killed: list[Machine] = []
        try:
            for backend, part in machines.by_backend(chosen):
                for group in _by_job(part):
                    await verbs.release(backend, group)
                    killed += group
        except (Error, TaskErrors):
            left = {machine.id for machine in await backend.machines()}
            killed += [machine for machine in group if machine.id not in left]
            raise
        finally:
            _tell(invocation, killed, "killed")
        return 0

    return machine_lookup.run(invocation, work)


@click.command("rename", cls=Verb)
@click.argument("old", shell_complete=complete_name)
@click.argument("new")
def rename_command(old: str, new: str) -> int:
    """Give the machine OLD the name NEW."""
    invocation = current()

    async def work(machines: MachineLookup) -> int:
        machine = await machines.select_one(old)
        renamed = await verbs.rename(machines.backend(machine.backend), machine, new)
        if invocation.json:
            invocation.output.json(record(renamed))
        else:
            invocation.output.line(f"renamed {machine.name} to {renamed.name}")
        return 0

    return machine_lookup.run(invocation, work)


async def _needs_question(machines: MachineLookup, running: Sequence[Machine]) -> bool:
    """Whether the person said no, where there is reason to ask."""
    foreign = [machine for machine in running if _is_foreign(machines, machine)]
    if not foreign and len(running) <= 1:
        return False  # nothing that it is at work on would be asked about: it is not even reached
    busy = await _busy(machines, running)
    if not foreign and not busy:
        return False
    _print_plan(machines, running, busy)
    return not await machines.confirm(f"Stop {_count(running)}?")


async def _list(machines: MachineLookup, chosen: Sequence[Machine]) -> None:
    _print_plan(machines, chosen, await _busy(machines, chosen))


def _print_plan(machines: MachineLookup, chosen: Sequence[Machine], busy: dict[str, str]) -> None:
    columns = [
        Column("Name"),
        Column("State", styles=STATE_STYLES),
        Column("Type", shrink=10, drop=1),
        Column("Key-Owner", drop=2),
        Column("Runs", shrink=12),
    ]
    rows = [
        [
            machine.name,
            str(machine.state),
            machine.type or "-",
            machine.owner or "-",
            busy.get(machine.name, "-"),
        ]
        for machine in chosen
    ]
    output = machines.invocation.output
    output.plan(Table(columns, rows).lines(output, output.note_width))


async def _busy(machines: MachineLookup, chosen: Sequence[Machine]) -> dict[str, str]:
    """What runs in the sessions, by machine; a machine that does not say is left out."""

    async def ask(machine: Machine) -> str:
        session = machines.task(machine).session
        async with asyncio.timeout(BUSY_SECONDS):
            state = await session.state()
            if state.alive and state.running is not None:
                return redact(await session.text(state.running)).strip().split("\n")[0]
        return ""

    running = [machine for machine in chosen if machine.state is MachineState.RUNNING]
    answers = await gather_all([ask(machine) for machine in running])
    for answer in answers:
        if isinstance(answer, BaseException) and not isinstance(answer, (Error, TimeoutError)):
            raise answer
    return {
        machine.name: answer
        for machine, answer in zip(running, answers, strict=True)
        if isinstance(answer, str) and answer
    }


def _by_job(machines: Sequence[Machine]) -> list[list[Machine]]:
    """Machines of one job together: they have keys in common that go with them."""
    jobs: dict[str, list[Machine]] = {}
    for machine in machines:
        jobs.setdefault(job_of(machine.name), []).append(machine)
    return list(jobs.values())


def _is_foreign(machines: MachineLookup, machine: Machine) -> bool:
    return bool(machine.owner) and machine.owner.partition("@")[0] != machines.settings.user


def _tell(invocation: Invocation, machines: Sequence[Machine], deed: str) -> None:
    if invocation.json:
        invocation.output.json(
            [{"name": machine.name, "backend": machine.backend, "done": deed} for machine in machines]
        )
        return
    for machine in machines:
        invocation.output.line(f"{deed} {machine.name}")


def _declined(invocation: Invocation) -> int:
    invocation.output.note("Nothing was done.")
    return 1


def _count(machines: Sequence[Machine]) -> str:
    return f"{len(machines)} machine{'' if len(machines) == 1 else 's'}"
