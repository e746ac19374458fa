"""`logs` and `wait`: show the output of commands, and wait for them. Neither affects running commands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from trainyard.cli.duration_option import timeout_option
from trainyard.cli.invocation import Invocation, current
from trainyard.cli.machines import machine_lookup
from trainyard.cli.machines.machine_lookup import MachineLookup
from trainyard.cli.machines.task_reporter import JsonStreams, Streams
from trainyard.cli.terminal.table import Column, Table
from trainyard.cli.verb import Verb, names_argument
from trainyard.lib.errors import InvalidError
from trainyard.lib.units import format_duration, format_size
from trainyard.runtime import logs
from trainyard.runtime.logs import CommandRecord
from trainyard.runtime.session import Ended

if TYPE_CHECKING:
    from trainyard.runtime.task import Task

INTERRUPTED = 130
DEFAULT_LINES = 1000
STATE_STYLES = {"0": "green", "running": "cyan", "waiting": "yellow", "lost": "red"}


@click.command("logs", cls=Verb)
@click.option(
    "-f", "--follow", is_flag=True, help="Go on until the command, and those that wait, have ended."
)
@click.option(
    "-n",
    "--lines",
    type=int,
    metavar="N",
    default=DEFAULT_LINES,
    help="Lines from the end, 0 for all.  [default: 1000]",
)
@click.option("--command", "number", type=int, metavar="N", help="Command number N of `--list`.")
@click.option("--list", "only_list", is_flag=True, help="List the commands instead.")
@names_argument()
def logs_command(name: str, follow: bool, lines: int, number: int | None, only_list: bool) -> int:
    """Show what the newest command of a task printed, or of all tasks of {job} with their names.

    Ctrl-C ends the stream, not the command.
    """
    invocation = current()
    if lines < 0 or (number is not None and number < 1):
        raise InvalidError(
            f"{lines if lines < 0 else number} is not a number to count with", hint="Write 1 or more."
        )

    async def work(machines: MachineLookup) -> int:
        tasks = await machines.tasks([name])
        if only_list:
            return await _list(invocation, tasks)
        return await _show(invocation, tasks, number, follow=follow, lines=lines or None)

    try:
        return machine_lookup.run(invocation, work)
    except KeyboardInterrupt:
        invocation.output.note("Stopped looking; what runs there runs on.")
        return INTERRUPTED


@click.command("wait", cls=Verb)
@timeout_option("Give up after 90s, 30m, 2h; it runs on.")
@names_argument()
def wait_command(name: str, timeout: float | None) -> int:
    """Wait until the commands of a task, or of all tasks of {job}, have ended.

    The exit status is that of the last command; of several tasks, the first that is not 0.
    """
    invocation = current()

    async def work(machines: MachineLookup) -> int:
        return await _wait(invocation, await machines.tasks([name]), timeout)

    try:
        return machine_lookup.run(invocation, work)
    except KeyboardInterrupt:
        invocation.output.note("Stopped waiting; what runs there runs on.")
        return INTERRUPTED


async def _show(
    invocation: Invocation, tasks: Sequence[Task], number: int | None, *, follow: bool, lines: int | None
) -> int:
    from trainyard.runtime.job import on_each

    output = invocation.output
    names = [task.name for task in tasks]
    streams = JsonStreams(output) if invocation.json else Streams(output, names)

    async def one(task: Task) -> None:
        session = task.session
        wanted = number or await logs.newest(session)

        def tell(ended: Ended) -> None:
            if ended.status:
                output.note(f"{task.name}: command {ended.number} ended with status {ended.status}", "yellow")

        def feed(piece: bytes) -> None:
            streams.feed(task.name, piece)

        if not follow:
            await logs.show(session, wanted, feed, lines=lines)
        elif number:
            await logs.follow(session, wanted, feed, lines=lines, on_ended=tell)
        else:
            await logs.follow_all(session, wanted, feed, lines=lines, on_ended=tell)

    try:
        await on_each(list(tasks), one)
    finally:
        streams.close()
    return 0


async def _list(invocation: Invocation, tasks: Sequence[Task]) -> int:
    from trainyard.runtime.job import on_each

    listed = await on_each(list(tasks), lambda task: logs.fetch_commands(task.session))
    if invocation.json:
        records = [
            {"name": task.name, **asdict(record)}
            for task, records in zip(tasks, listed, strict=True)
            for record in records
        ]
        invocation.output.json(records)
        return 0
    several = len(tasks) > 1
    columns = [
        *([Column("Task")] if several else []),
        Column("N", right=True),
        Column("State", styles=STATE_STYLES),
        Column("Took", right=True, drop=2),
        Column("Output", right=True, drop=1),
        Column("Command", shrink=20),
    ]
    rows = [
        [
            *([task.name] if several else []),
            str(record.number),
            record.state,
            _took(record),
            format_size(record.size),
            record.text,
        ]
        for task, records in zip(tasks, listed, strict=True)
        for record in records
    ]
    if rows:
        Table(columns, rows).print(invocation.output)
    else:
        invocation.output.line("no commands yet")
    return 0


async def _wait(invocation: Invocation, tasks: Sequence[Task], timeout: float | None) -> int:
    from trainyard.runtime.job import on_each

    async def one(task: Task) -> Ended:
        await logs.newest(task.session)  # an answer where there is nothing to wait for
        state = await task.session.state()
        return await task.session.wait(state.last, timeout=timeout, interrupt=False)

    results = await on_each(list(tasks), one)
    if invocation.json:
        invocation.output.json(
            [
                {"name": task.name, "number": ended.number, "status": ended.status}
                for task, ended in zip(tasks, results, strict=True)
            ]
        )
    else:
        for task, ended in zip(tasks, results, strict=True):
            invocation.output.line(f"{task.name}: command {ended.number} ended with status {ended.status}")
    return next((ended.status for ended in results if ended.status), 0)


def _took(record: CommandRecord) -> str:
    if record.submitted is None or record.ended is None:
        return "-"
    return format_duration(record.ended - record.submitted)
