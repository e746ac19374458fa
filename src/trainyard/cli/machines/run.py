"""`run`: runs a command in the shell of a task, or of every task of a job."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from trainyard.cli.duration_option import timeout_option
from trainyard.cli.invocation import Invocation, current
from trainyard.cli.machines import machine_lookup
from trainyard.cli.machines.machine_lookup import MachineLookup
from trainyard.cli.machines.task_reporter import Streams
from trainyard.cli.terminal.interrupts import two_stage
from trainyard.cli.verb import CommandLineVerb, names_argument
from trainyard.lib import aio, shell
from trainyard.lib.errors import InvalidError
from trainyard.lib.log import redact
from trainyard.runtime.text import TextSink

if TYPE_CHECKING:
    from trainyard.runtime.task import Task

INTERRUPTED = 130


@click.command("run", cls=CommandLineVerb)
@click.option("-d", "--non-blocking", is_flag=True, help="Start it and come back; see it with `logs -f`.")
@click.option("--aside", is_flag=True, help="Beside the task's shell: do not wait for what runs there.")
@timeout_option("Stop waiting after 90s, 30m, 2h; it runs on.")
@names_argument()
@click.argument("command", nargs=-1, type=click.UNPROCESSED, required=True)
def run_command(
    name: str, command: tuple[str, ...], non_blocking: bool, aside: bool, timeout: float | None
) -> int:
    """Run COMMAND in the shell of a task, or of all tasks of {job}, and show what it prints.

    The shell persists: `cd`, `export` and `conda activate` hold for later commands. One word is shell text, as in `run
    task0.bert 'cd code && make'`; several are a program and its arguments. The exit status is the command's own.
    Ctrl-C interrupts the command; Ctrl-C again leaves it running.
    """
    invocation = current()
    text = command[0] if len(command) == 1 else shell.join(command)
    if aside and non_blocking:
        raise InvalidError("--aside and --non-blocking do not go together", hint="Leave one of them out.")

    async def work(machines: MachineLookup) -> int:
        tasks = await machines.tasks([name])
        runner = Runner(invocation, tasks, text)
        if aside:
            return await runner.run_aside(timeout)
        try:
            await runner.submit()
        except asyncio.CancelledError:
            await aio.finish(runner.take_back())
            raise
        if non_blocking:
            runner.tell_started()
            return 0
        return await runner.watch(timeout)

    return machine_lookup.run(invocation, work)


class Runner:
    """One command on one or several tasks."""

    def __init__(self, invocation: Invocation, tasks: Sequence[Task], text: str) -> None:
        self._invocation = invocation
        self._output = invocation.output
        self._tasks = {task.name: task for task in tasks}
        self._text = text
        self._numbers: dict[str, int] = {}
        self._statuses: dict[str, int] = {}
        self._collected = {name: TextSink() for name in self._tasks}
        self._streams = Streams(self._output, list(self._tasks))

    async def submit(self) -> None:
        """Queue the command everywhere; say where it has to wait."""
        from trainyard.runtime.job import on_each

        await on_each(list(self._tasks.values()), self._submit)

    async def take_back(self) -> None:
        """Interrupt the commands that were submitted already, because the user pressed Ctrl-C."""
        await aio.gather_all(
            [self._tasks[name].session.interrupt(number) for name, number in self._numbers.items()]
        )

    def tell_started(self) -> None:
        """Say where to find the output of the started commands."""
        if self._invocation.json:
            self._output.json([{"name": name, "number": number} for name, number in self._numbers.items()])
            return
        for name, number in self._numbers.items():
            self._output.line(f"{name}: command {number} started")
        first = next(iter(self._numbers))
        self._output.note(f"Follow it with `{self._invocation.program} logs -f {first}`.", "dim")

    async def watch(self, timeout: float | None) -> int:
        """Show the output until all commands have ended; return the status of the first failure."""
        from trainyard.runtime.job import on_each

        async def one(task: Task) -> None:
            number = self._numbers[task.name]
            ended = await task.session.wait(
                number, on_output=lambda piece: self._show(task.name, piece), timeout=timeout, interrupt=False
            )
            self._statuses[task.name] = ended.status

        try:
            with two_stage(self._interrupt):
                await on_each(list(self._tasks.values()), one)
        except asyncio.CancelledError:
            self._streams.close()
            self._tell_left()
            return INTERRUPTED
        return self._report()

    async def run_aside(self, timeout: float | None) -> int:
        """Run it over connections of its own; Ctrl-C ends it."""
        from trainyard.runtime.job import on_each

        async def one(task: Task) -> None:
            process = await task.transport.spawn(f"exec 2>&1\n{self._text}")
            try:
                await process.write_eof()
                async for piece in process.output():
                    self._show(task.name, piece)
                self._statuses[task.name] = await process.wait()
            finally:
                await aio.finish(process.terminate())

        async with asyncio.timeout(timeout):
            await on_each(list(self._tasks.values()), one)
        return self._report()

    async def _submit(self, task: Task) -> None:
        state = await task.session.open()
        if state.running is not None:
            running = _one_line(await task.session.text(state.running))
            self._output.note(
                f"{task.name} is busy with command {state.running}: {running}\n"
                "This one waits for it; --aside would run it beside.",
                "yellow",
            )
        self._numbers[task.name] = await task.session.submit(self._text, adopt=False)

    async def _interrupt(self) -> None:
        left = {name: task for name, task in self._tasks.items() if name not in self._statuses}
        for name, task in left.items():
            state = await task.session.state()
            if state.running not in {None, self._numbers[name]}:
                self._output.note(f"{name}: command {self._numbers[name]} has not begun.", "yellow")
        self._output.note("Interrupting it; Ctrl-C again leaves it running.", "yellow")
        await aio.gather_all([task.session.interrupt(self._numbers[name]) for name, task in left.items()])

    def _show(self, name: str, piece: bytes) -> None:
        if self._invocation.json:
            self._collected[name](piece)
        else:
            self._streams.feed(name, piece)

    def _tell_left(self) -> None:
        left = [name for name in self._tasks if name not in self._statuses]
        for name in left:
            self._output.note(f"{name}: command {self._numbers[name]} was left; it may still run.")
        if left:
            self._output.note(f"See it with `{self._invocation.program} logs -f {left[0]}`.", "dim")

    def _report(self) -> int:
        self._streams.close()
        failed = {name: self._statuses[name] for name in self._tasks if self._statuses.get(name)}
        if self._invocation.json:
            self._output.json(
                [
                    {
                        "name": name,
                        "number": self._numbers.get(name),
                        "status": self._statuses.get(name),
                        "output": sink.text(),
                    }
                    for name, sink in self._collected.items()
                ]
            )
        else:
            for name, status in failed.items():
                self._output.note(f"{name}: the command ended with status {status}", "red")
        return next(iter(failed.values()), 0)


def _one_line(text: str) -> str:
    first, _, rest = redact(text).strip().partition("\n")
    return f"{first[:60]}…" if rest or len(first) > 60 else first
