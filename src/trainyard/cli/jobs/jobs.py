"""`jobs`: lists, shows and changes the platform's jobs. job_submit.py submits; job_logs.py shows output and terminals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from trainyard.cli.duration_option import timeout_option
from trainyard.cli.invocation import Invocation, current
from trainyard.cli.jobs.job_logs import exec_command, logs_command
from trainyard.cli.jobs.job_submit import clone_command, explain_command, submit_command
from trainyard.cli.jobs.job_top import job_top_command
from trainyard.cli.jobs.wait_reasons import told_why
from trainyard.cli.platform.platform_client import (
    STATE_STYLES,
    age,
    complete_job,
    complete_workspace,
    find_job,
    job_argument,
    jobs_argument,
    run,
    span,
)
from trainyard.cli.terminal.output import Output
from trainyard.cli.terminal.table import Column, Table
from trainyard.cli.verb import PlainVerb, common_options
from trainyard.lib.errors import CommandError, Error, InvalidError, StillRunningError, TaskErrors
from trainyard.spec.workload import FINAL, Desired, RoleSpec, State

if TYPE_CHECKING:
    from trainyard.client import Client
    from trainyard.client.schemas import Event, Job, JobDetail, Sweep, Task

INTERRUPTED = 130
STATES = [state.value for state in State]


@click.group(
    "jobs",
    params=list(common_options(backend=False)),
    subcommand_metavar="[VERB ...]",
    invoke_without_command=True,
)
@click.pass_context
def jobs_command(context: click.Context) -> int:
    """Submit jobs to the platform, and manage them; without a verb, list yours.

    JOB is an id, or the name of a job where only one that has not ended has it.
    """
    if context.invoked_subcommand is not None:
        return 0
    result: int = context.invoke(ls_command)
    return result


jobs_command.add_command(submit_command)
jobs_command.add_command(clone_command)


@jobs_command.command("ls", cls=PlainVerb)
@click.option("-a", "--all", "everybody", is_flag=True, help="Jobs of everybody, where you may look.")
@click.option(
    "--state", "states", multiple=True, type=click.Choice(STATES), metavar="STATE", help="Only in this state."
)
@click.option(
    "--workspace",
    default="",
    metavar="NAME",
    shell_complete=complete_workspace,
    help="Only of this workspace.",
)
@click.option("--user", default="", metavar="NAME", help="Only of this user.")
@click.option("--name", default="", metavar="TEXT", help="Only with this in the name.")
@click.option("--sweep", default="", metavar="ID", help="Only of this sweep.")
@click.option(
    "-n",
    "--limit",
    type=click.IntRange(1, 1000),
    default=50,
    metavar="N",
    help="At most so many.  [default: 50]",
)
def ls_command(
    everybody: bool, states: tuple[str, ...], workspace: str, user: str, name: str, sweep: str, limit: int
) -> int:
    """List jobs, newest first: your own, or with -a everybody's."""
    invocation = current()

    async def work(client: Client) -> tuple[tuple[Job, ...], bool]:
        whose = user or ("" if everybody or sweep else "me")
        origin = f"sweep:{sweep}" if sweep else ""
        page = await client.jobs.page(
            state=states, workspace=workspace, user=whose, name=name, origin=origin, limit=limit
        )
        return page.items, page.next is not None

    found, has_more = run(work)
    if invocation.json:
        invocation.output.json([record(job) for job in found])
        return 0
    if not found:
        invocation.output.line("no jobs")
        invocation.output.note("Submit one with `trainyard jobs submit --name NAME -- COMMAND`.", "dim")
        return 0
    job_table(found, with_user=everybody or bool(user)).print(invocation.output)
    if has_more:
        invocation.output.note(f"There are more; -n shows more than {limit}.", "dim")
    return 0


@jobs_command.command("show", cls=PlainVerb)
@job_argument()
def show_command(job: str) -> int:
    """Show a job: what was asked for, where it runs, what has happened to it."""
    invocation = current()

    async def work(client: Client) -> tuple[JobDetail, tuple[Task, ...], list[Event]]:
        found = await client.jobs.get((await find_job(client, job)).id)
        tasks = await client.jobs.tasks(found.id) if found.attempt else ()
        return found, tasks, [event async for event in client.jobs.events(found.id)]

    found, tasks, events = run(work)
    if invocation.json:
        shown = {**record(found), "tasks": record_all(tasks), "events": record_all(events)}
        invocation.output.json(shown)
        return 0
    _print_detail(invocation.output, found)
    if tasks:
        invocation.output.line()
        _task_table(tasks).print(invocation.output)
    if events:
        invocation.output.line()
        rows = [
            [event.time.astimezone().strftime("%m-%d %H:%M:%S"), event.code, event.message]
            for event in events[-20:]
        ]
        Table([Column("Time"), Column("Event", drop=1), Column("What happened", shrink=20)], rows).print(
            invocation.output
        )
    return 0


@jobs_command.command("tasks", cls=PlainVerb)
@click.option(
    "--attempt", type=click.IntRange(0), metavar="N", help="Of this start; 0 for all.  [default: the last]"
)
@job_argument()
def tasks_command(job: str, attempt: int | None) -> int:
    """List the tasks of a job: where each runs, with which devices, and how it ended."""
    invocation = current()

    async def work(client: Client) -> tuple[Task, ...]:
        return await client.jobs.tasks((await find_job(client, job)).id, attempt=attempt)

    tasks = run(work)
    if invocation.json:
        invocation.output.json(record_all(tasks))
    elif tasks:
        _task_table(tasks).print(invocation.output)
    else:
        invocation.output.line("no tasks yet")
    return 0


def _desire(jobs: Sequence[str], desired: Desired, done: str) -> int:
    async def one(client: Client, text: str) -> Job:
        return await client.jobs.set_desired((await find_job(client, text)).id, desired)

    return _on_each(jobs, one, done)


def _on_each(jobs: Sequence[str], one: object, done: str) -> int:
    """Do it to every job; one that refuses does not keep the others from it."""
    invocation = current()

    async def work(client: Client) -> tuple[list[Job], list[Error]]:
        changed: list[Job] = []
        failures: list[Error] = []
        for text in jobs:
            try:
                changed.append(await one(client, text))  # type: ignore[operator]  # a coroutine function
            except Error as error:
                failures.append(error)
        return changed, failures

    changed, failures = run(work)
    if invocation.json:
        invocation.output.json([record(job) for job in changed])
    else:
        for job in changed:
            invocation.output.line(f"{job.id} {done}")
    if len(failures) == 1:
        raise failures[0]
    if failures:
        raise TaskErrors(f"{len(failures)} of {len(jobs)} jobs refused", failures)
    return 0


@jobs_command.command("sweeps", cls=PlainVerb)
@click.option("-a", "--all", "everybody", is_flag=True, help="Of everybody, where you may look.")
def sweeps_command(everybody: bool) -> int:
    """List sweeps, newest first."""
    invocation = current()

    async def work(client: Client) -> list[Sweep]:
        return [one async for one in client.sweeps.list(user="" if everybody else "me")]

    found = run(work)
    if invocation.json:
        invocation.output.json(record_all(found))
        return 0
    rows = [
        [
            one.id,
            one.user,
            str(one.jobs),
            ", ".join(f"{count} {state}" for state, count in one.states.items()),
            " ".join(f"{name}={','.join(values)}" for name, values in one.parameters.items()),
        ]
        for one in found
    ]
    columns = [
        Column("Sweep"),
        Column("User", drop=2),
        Column("Jobs", right=True),
        Column("States", shrink=12),
    ]
    Table([*columns, Column("Parameters", shrink=16, drop=1)], rows).print(invocation.output)
    return 0


@jobs_command.command("stop", cls=PlainVerb)
@click.option("--sweep", default="", metavar="ID", help="All jobs of this sweep.")
@click.argument("jobs", metavar="JOB...", nargs=-1, shell_complete=complete_job)
def stop_command(jobs: tuple[str, ...], sweep: str) -> int:
    """Stop jobs: what runs is asked to go, and killed after the job's grace; what waits leaves the queue."""
    if sweep:
        run(lambda client: client.sweeps.set_desired(sweep, Desired.CANCEL))
        current().output.line(f"{sweep} is being stopped")
        if not jobs:
            return 0
    if not jobs:
        raise InvalidError("No job was named.", hint="Name jobs, or a sweep with --sweep ID.")
    return _desire(jobs, Desired.CANCEL, "is being stopped")


@jobs_command.command("pause", cls=PlainVerb)
@jobs_argument()
def pause_command(jobs: tuple[str, ...]) -> int:
    """Take jobs out of the queue, or end what runs of them, until they are resumed."""
    return _desire(jobs, Desired.PAUSE, "is being paused")


@jobs_command.command("resume", cls=PlainVerb)
@jobs_argument()
def resume_command(jobs: tuple[str, ...]) -> int:
    """Put paused jobs back into the queue."""
    return _desire(jobs, Desired.RUN, "goes back to the queue")


@jobs_command.command("approve", cls=PlainVerb)
@jobs_argument()
def approve_command(jobs: tuple[str, ...]) -> int:
    """Let jobs that wait for a person into the queue."""

    async def one(client: Client, text: str) -> Job:
        return await client.jobs.approve((await find_job(client, text)).id)

    return _on_each(jobs, one, "is approved")


@jobs_command.command("delete", cls=PlainVerb)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@jobs_argument()
def delete_command(jobs: tuple[str, ...], yes: bool) -> int:
    """Forget jobs that have ended, with their logs."""
    if not yes and not current().output.confirm(f"Delete {', '.join(jobs)} with all logs?"):
        return 1

    async def one(client: Client, text: str) -> Job:
        found = await find_job(client, text)
        await client.jobs.delete(found.id)
        return found

    return _on_each(jobs, one, "is deleted")


@jobs_command.command("priority", cls=PlainVerb)
@job_argument()
@click.argument("priority", type=click.IntRange(1, 9), metavar="1-9")
def priority_command(job: str, priority: int) -> int:
    """Change the place of a waiting job in the queue: 9 comes first. Refused once it has started."""

    async def one(client: Client, text: str) -> Job:
        return await client.jobs.set_priority((await find_job(client, text)).id, priority)

    return _on_each([job], one, f"has priority {priority}")


jobs_command.add_command(explain_command)
jobs_command.add_command(job_top_command)
jobs_command.add_command(logs_command)
jobs_command.add_command(exec_command)


@jobs_command.command("wait", cls=PlainVerb)
@timeout_option("Give up after 90s, 30m, 2h; the job goes on.")
@job_argument()
def wait_command(job: str, timeout: float | None) -> int:
    """Wait until a job has ended. The exit status is that of its program."""
    invocation = current()
    try:
        found = run(lambda client: _wait(client, invocation, job), timeout=timeout)
    except TimeoutError as error:
        raise StillRunningError(f"{job} has not ended; it goes on.", hint="Wait for longer.") from error
    except KeyboardInterrupt:
        invocation.output.note("Stopped waiting; the job goes on.")
        return INTERRUPTED
    return tell_end(invocation, found)


async def _wait(client: Client, invocation: Invocation, job: str) -> JobDetail:
    found = await find_job(client, job)
    async with told_why(client, invocation, found.id):
        return await client.jobs.wait(found.id, until_retained=True)


def tell_end(invocation: Invocation, job: JobDetail) -> int:
    """Say how a job ended; the exit status is its program's."""
    if invocation.json:
        invocation.output.json(record(job))
    is_kept = job.state is State.RETAINED
    if job.state is State.SUCCEEDED or (is_kept and not job.exit_code):
        if not invocation.json:
            invocation.output.line(f"{job.id} succeeded{_ran(job)}")
            if is_kept:
                invocation.output.note(_kept(job))
        return 0
    if job.state not in FINAL and not is_kept:
        raise InvalidError(f"{job.id} is {job.state}.", hint="Wait for it with `trainyard jobs wait`.")
    raise CommandError(
        f"{job.id} {State.FAILED if is_kept else job.state}: {job.message}".rstrip(": "),
        status=job.exit_code or 1,
        hint=_kept(job)
        if is_kept
        else f"See `trainyard jobs logs {job.id}` and `trainyard jobs show {job.id}`.",
    )


def _kept(job: Job) -> str:
    until = "" if job.retain_until is None else f" until {job.retain_until.astimezone():%H:%M:%S}"
    return (
        f"Look at what it left with `trainyard jobs exec {job.id}`{until}; `trainyard jobs stop` lets it go."
    )


def _ran(job: Job) -> str:
    if job.started_at is None or job.stopped_at is None:
        return ""
    return f" after {span((job.stopped_at - job.started_at).total_seconds())}"


def job_table(jobs: Sequence[Job], *, with_user: bool = False) -> Table:
    """The table of `ls`."""
    columns = [
        Column("Id"),
        Column("Name", shrink=10),
        *([Column("User", shrink=8, drop=5)] if with_user else []),
        Column("Workspace", shrink=9, drop=2),
        Column("State", styles=STATE_STYLES),
        Column("Pri", right=True, drop=3),
        Column("Devices", right=True, drop=4),
        Column("Age", right=True, drop=6),
        Column("Why", shrink=16, drop=1),
    ]
    rows = []
    for job in jobs:
        user = [job.user] if with_user else []
        shown = f"{job.devices} {job.device}".strip() if job.devices else "-"
        rows.append(
            [
                job.id,
                job.name,
                *user,
                job.workspace,
                str(job.state),
                str(job.priority),
                shown,
                age(job.submitted_at),
                _why(job),
            ]
        )
    return Table(columns, rows)


def _why(job: Job) -> str:
    if job.state is State.WAITING and job.position:
        return f"position {job.position}"
    is_told = job.state is State.CANCELLED and job.desired is Desired.RUN  # nobody stopped it
    if is_told or job.state in {State.FAILED, State.WAITING, State.HELD}:
        return job.message or job.reason or "-"
    return "-"


def _print_detail(output: Output, job: JobDetail) -> None:
    spec = job.spec
    asked = ", ".join(
        f"{_counted(role)} × {role.name} ({role.cpu:g} cores"
        + (f", {role.memory_mib} MiB" if role.memory_mib else "")
        + (f", {role.devices} {role.device or 'devices'}" if role.devices else "")
        + ")"
        for role in spec.roles
    )
    rows = [
        ("id", job.id),
        ("name", job.name),
        (
            "state",
            f"{job.state}"
            + (
                f" (wanted: {job.desired})"
                if job.desired is not Desired.RUN and job.state not in FINAL
                else ""
            ),
        ),
        ("why", job.message),
        ("exit code", "" if job.exit_code is None else str(job.exit_code)),
        ("workspace", job.workspace),
        ("user", job.user),
        ("priority", f"{job.priority}" + (", preemptible" if job.preemptible else "")),
        ("asked for", asked),
        ("grows", f"after {span(spec.grow_seconds)} with fewer tasks" if spec.grow_seconds else ""),
        ("command", spec.command),
        ("attempt", f"{job.attempt}" + (f", {job.failures} retries" if job.failures else "")),
        ("avoids", ", ".join(job.avoid)),
        ("position", "" if job.position is None else str(job.position)),
        ("submitted", f"{job.submitted_at.astimezone():%Y-%m-%d %H:%M:%S}"),
        ("started", "" if job.started_at is None else f"{job.started_at.astimezone():%Y-%m-%d %H:%M:%S}"),
        (
            "ended",
            "" if job.ended_at is None else f"{job.ended_at.astimezone():%Y-%m-%d %H:%M:%S}{_ran(job)}",
        ),
    ]
    for name, text in rows:
        if text:
            output.line(f"{name:<10} {text.replace(chr(10), chr(10) + ' ' * 11)}")


def _counted(role: RoleSpec) -> str:
    is_elastic = role.minimum is not None and role.minimum < role.replicas
    return f"{role.minimum} to {role.replicas}" if is_elastic else str(role.replicas)


def _task_table(tasks: Sequence[Task]) -> Table:
    columns = [
        Column("Task"),
        Column("Node", shrink=8),
        Column("Devices", drop=3),
        Column("State", styles={"running": "green", "lost": "red"}),
        Column("Exit", right=True),
        Column("Log", right=True, drop=2),
        Column("Message", shrink=12, drop=1),
    ]
    rows = [
        [
            task.name,
            task.node,
            ",".join(map(str, task.devices)) or "-",
            str(task.state),
            "-" if task.exit_code is None else str(task.exit_code),
            str(task.log_bytes),
            task.message or "-",
        ]
        for task in tasks
    ]
    return Table(columns, rows)


def record(thing: object) -> dict[str, object]:
    """One thing for programs, in the words of REST."""
    from trainyard.client.encode import encode

    shown: dict[str, object] = encode(thing, whole=True)
    return shown


def record_all(things: Sequence[object]) -> list[dict[str, object]]:
    """Several."""
    return [record(thing) for thing in things]
