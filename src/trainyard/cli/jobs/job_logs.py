"""`jobs logs` and `jobs exec`: show a job's output, and open a terminal in one of its tasks."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
from typing import TYPE_CHECKING

import click

from trainyard.cli.invocation import Invocation, current
from trainyard.cli.jobs.wait_reasons import told_why
from trainyard.cli.machines.task_reporter import JsonStreams, Streams
from trainyard.cli.platform.platform_client import find_job, job_argument, run
from trainyard.cli.verb import CommandLineVerb, PlainVerb
from trainyard.lib.errors import InvalidError
from trainyard.spec.workload import FINAL

if TYPE_CHECKING:
    from trainyard.client import Client
    from trainyard.client.schemas import JobDetail

INTERRUPTED = 130
DEFAULT_LINES = 1000
SEARCH_LIMIT = 1000
# What a task has printed last is here by then, where its job does not end for a while.
LAST_WORDS_SECONDS = 3.0


@click.command("logs", cls=PlainVerb)
@click.option("-f", "--follow", is_flag=True, help="Go on until the job has ended.")
@click.option(
    "-n",
    "--lines",
    type=click.IntRange(0),
    default=DEFAULT_LINES,
    metavar="N",
    help="Lines from the end of each task, 0 for all.  [default: 1000]",
)
@click.option("--task", default="", metavar="NAME", help="Only of this task: worker-0.")
@click.option("--attempt", type=click.IntRange(1), metavar="N", help="Of an earlier start.")
@click.option("--times", is_flag=True, help="Every line with its time and task, in the order of time.")
@click.option("--search", default="", metavar="TEXT", help="Only lines with this in them.")
@job_argument()
def logs_command(
    job: str, follow: bool, lines: int, task: str, attempt: int | None, times: bool, search: str
) -> int:
    """Show what a job has printed: all tasks with their names, or one.

    Ctrl-C ends the stream, not the job.
    """
    invocation = current()
    if follow and (times or search):
        raise InvalidError("-f shows output as it comes.", hint="Leave --times and --search out, or -f.")
    try:
        if search:
            return run(lambda client: _search(client, invocation, job, search, task, attempt))
        if times:
            return run(lambda client: _merged(client, invocation, job, task, attempt, lines))
        return run(lambda client: _show(client, invocation, job, task, attempt, lines, follow=follow))
    except KeyboardInterrupt:
        invocation.output.note("Stopped looking; the job goes on.")
        return INTERRUPTED


async def _show(
    client: Client,
    invocation: Invocation,
    job: str,
    task: str,
    attempt: int | None,
    lines: int,
    *,
    follow: bool,
) -> int:
    found = await find_job(client, job)
    if found.attempt == 0 and not follow:
        invocation.output.note(f"{found.id} has not started yet; it is {found.state}.", "dim")
        return 0
    # NB: at this point a job may have not been placed yet: then names come with the first output.
    names = (
        [task]
        if task
        else [
            f"{role.name}-{n}"
            for role in (await client.jobs.get(found.id)).spec.roles
            for n in range(role.replicas)
        ]
    )
    streams = JsonStreams(invocation.output) if invocation.json else Streams(invocation.output, names)
    read = client.jobs.follow_logs if follow else client.jobs.logs
    told = told_why(client, invocation, found.id) if follow else contextlib.nullcontext()
    try:
        async with told:
            async for piece in read(found.id, task=task, attempt=attempt, tail=lines or None):
                streams.feed(piece.task, piece.data)
    finally:
        streams.close()
        invocation.output.end_line()
    return 0


async def _search(
    client: Client, invocation: Invocation, job: str, text: str, task: str, attempt: int | None
) -> int:
    from trainyard.cli.jobs.jobs import record_all

    found = await find_job(client, job)
    page = await client.jobs.search_logs(found.id, text, task=task, attempt=attempt, limit=SEARCH_LIMIT)
    if invocation.json:
        invocation.output.json(record_all(page.items))
        return 0
    for line in page.items:
        invocation.output.line(f"{line.task}: {line.text}")
    if page.next is not None:
        invocation.output.note("There are more; download the log to see them all.", "dim")
    return 0 if page.items else 1


async def _merged(
    client: Client, invocation: Invocation, job: str, task: str, attempt: int | None, lines: int
) -> int:
    from trainyard.cli.jobs.jobs import record_all

    found = await find_job(client, job)
    page = await client.jobs.log_lines(
        found.id, task=task, attempt=attempt, tail=min(lines, 1000) or 1000, limit=1000
    )
    if invocation.json:
        invocation.output.json(record_all(page.items))
        return 0
    for line in page.items:
        time = f"{line.time.astimezone():%H:%M:%S}" if line.time is not None else "--:--:--"
        invocation.output.line(f"{time} {line.task} | {line.text}")
    return 0


def look_to_end(invocation: Invocation, job: str, *, follow: bool) -> JobDetail:
    """Wait until a job has ended, with its output or without; while it does not start, say why."""

    async def work(client: Client) -> JobDetail:
        if not follow:
            async with told_why(client, invocation, job):
                return await client.jobs.wait(job, until_retained=True)
        showing = asyncio.create_task(_show(client, invocation, job, "", None, 0, follow=True))
        waiting = asyncio.create_task(client.jobs.wait(job, until_retained=True))
        try:
            await asyncio.wait({showing, waiting}, return_when=asyncio.FIRST_COMPLETED)
            # NB: while its places are kept, its output has no end; what was printed is about to come.
            has_no_end = waiting.done() and (waiting.exception() or waiting.result().state not in FINAL)
            await asyncio.wait({showing}, timeout=LAST_WORDS_SECONDS if has_no_end else None)
            if showing.done():
                await showing
            return await waiting
        finally:
            for task in (showing, waiting):
                task.cancel()
            await asyncio.gather(showing, waiting, return_exceptions=True)

    return run(work)


@click.command("exec", cls=CommandLineVerb)
@click.option("--task", default="", metavar="NAME", help="In this task.  [default: the first]")
@job_argument()
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def exec_command(job: str, task: str, command: tuple[str, ...]) -> int:
    """Open a terminal in a running task, or run COMMAND there, in its folder with its environment.

    It ends with the task. The exit status is that of the command.
    """
    from trainyard.cli.terminal.remote_terminal import attach

    words = command[0] if len(command) == 1 else shlex.join(command)

    async def work(client: Client) -> int:
        found = await find_job(client, job)
        name = task or (await client.jobs.tasks(found.id) or _no_tasks(found.id))[0].name
        return await attach(client, found.id, name, words)

    return run(work)


def _no_tasks(job: str) -> tuple[()]:
    raise InvalidError(f"{job} has no tasks yet.", hint="See why with `trainyard jobs explain`.")
