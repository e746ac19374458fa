"""`schedules`: jobs that the platform submits by the clock."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from trainyard.cli.invocation import current
from trainyard.cli.jobs.job_submit import SubmitVerb, read_document
from trainyard.cli.platform.platform_client import complete_job, find_job, run
from trainyard.cli.terminal.table import Column, Table
from trainyard.cli.verb import PlainVerb, common_options
from trainyard.lib.errors import InvalidError
from trainyard.spec.workload import WorkloadSpec

if TYPE_CHECKING:
    from trainyard.client import Client
    from trainyard.client.job_sources import Schedule, ScheduleDetail

OVERLAPS = ["skip", "allow", "replace"]


@click.group(
    "schedules",
    params=list(common_options(backend=False)),
    subcommand_metavar="[VERB ...]",
    invoke_without_command=True,
)
@click.pass_context
def schedules_command(context: click.Context) -> int:
    """Manage jobs that are submitted by the clock; without a verb, list them. SCHEDULE is an id or a name."""
    if context.invoked_subcommand is not None:
        return 0
    result: int = context.invoke(ls_command)
    return result


@schedules_command.command("ls", cls=PlainVerb)
def ls_command() -> int:
    """List the schedules of your workspaces."""
    invocation = current()

    async def work(client: Client) -> list[Schedule]:
        return [one async for one in client.schedules.list()]

    found = run(work)
    if invocation.json:
        from trainyard.cli.jobs.jobs import record_all

        invocation.output.json(record_all(found))
        return 0
    rows = [
        [
            one.name,
            one.user,
            f"{one.cron} {one.timezone}",
            _time(one.next_at) if one.is_active else "paused",
            one.last_job or "-",
            one.message or "-",
        ]
        for one in found
    ]
    columns = [Column("Name", shrink=8), Column("User", drop=2), Column("When"), Column("Next")]
    Table([*columns, Column("Last job", drop=3), Column("Note", shrink=12, drop=1)], rows).print(
        invocation.output
    )
    return 0


@schedules_command.command("add", cls=SubmitVerb)
@click.option("--name", required=True, metavar="NAME", help="What to call it.")
@click.option(
    "--cron", required=True, metavar="TIMES", help="minute hour day month weekday: '0 3 * * mon-fri'."
)
@click.option(
    "--timezone", default="UTC", metavar="ZONE", help="Of these times: Asia/Shanghai.  [default: UTC]"
)
@click.option(
    "--overlap",
    type=click.Choice(OVERLAPS),
    default="skip",
    metavar="HOW",
    help="While the last one runs: skip, allow or replace it.  [default: skip]",
)
@click.option("-f", "--file", "path", metavar="FILE", help="A job in YAML or TOML; - is standard input.")
@click.option("--job", metavar="JOB", shell_complete=complete_job, help="A job to copy.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def add_command(name: str, cron: str, path: str | None, job: str | None, **options: Any) -> int:
    """Submit a job whenever the clock shows these times: from a document, like another job, or a COMMAND alone."""
    words: tuple[str, ...] = options["command"]
    if sum([path is not None, job is not None, bool(words)]) != 1:
        raise InvalidError("Say which job.", hint="Give one of -f FILE, --job JOB and a command after `--`.")
    spec: WorkloadSpec | None = None
    if path is not None:
        spec = read_document(path)
    elif words:
        spec = WorkloadSpec(name=name, command=words[0] if len(words) == 1 else shlex.join(words))

    async def work(client: Client) -> ScheduleDetail:
        given = {"timezone": options["timezone"], "overlap": options["overlap"]}
        if job is not None:
            given["from_job"] = (await find_job(client, job)).id
        return await client.schedules.add(name, cron, spec, **given)

    return _tell(run(work))


@schedules_command.command("show", cls=PlainVerb)
@click.argument("schedule", metavar="SCHEDULE")
def show_command(schedule: str) -> int:
    """Show one, and its next times."""
    return _tell(run(lambda client: client.schedules.get(schedule)))


@schedules_command.command("set", cls=PlainVerb)
@click.option("--name", metavar="NAME", help="Another name.")
@click.option("--cron", metavar="TIMES", help="Other times.")
@click.option("--timezone", metavar="ZONE", help="Another time zone.")
@click.option("--overlap", type=click.Choice(OVERLAPS), metavar="HOW", help="skip, allow or replace.")
@click.option("-f", "--file", "path", metavar="FILE", help="Another job.")
@click.argument("schedule", metavar="SCHEDULE")
def set_command(schedule: str, path: str | None, **changes: Any) -> int:
    """Change one."""
    given = {name: value for name, value in changes.items() if value is not None}
    if path is not None:
        given["job"] = read_document(path)
    return _tell(run(lambda client: client.schedules.change(schedule, **given)))


def _set_active(schedules: Sequence[str], done: str, *, is_active: bool) -> int:
    async def work(client: Client) -> None:
        for one in schedules:
            await client.schedules.change(one, is_active=is_active)

    run(work)
    for one in schedules:
        current().output.line(f"{one} {done}")
    return 0


@schedules_command.command("pause", cls=PlainVerb)
@click.argument("schedules", metavar="SCHEDULE...", nargs=-1, required=True)
def pause_command(schedules: tuple[str, ...]) -> int:
    """Submit nothing until they are resumed."""
    return _set_active(schedules, "is paused", is_active=False)


@schedules_command.command("resume", cls=PlainVerb)
@click.argument("schedules", metavar="SCHEDULE...", nargs=-1, required=True)
def resume_command(schedules: tuple[str, ...]) -> int:
    """Go on with the next time; what was missed meanwhile is not made up for."""
    return _set_active(schedules, "goes on", is_active=True)


@schedules_command.command("run", cls=PlainVerb)
@click.argument("schedule", metavar="SCHEDULE")
def run_command(schedule: str) -> int:
    """Submit its job now. Prints the id."""
    current().output.line(run(lambda client: client.schedules.run(schedule)).id)
    return 0


@schedules_command.command("rm", cls=PlainVerb)
@click.argument("schedule", metavar="SCHEDULE")
def rm_command(schedule: str) -> int:
    """Forget one; its jobs stay."""
    run(lambda client: client.schedules.remove(schedule))
    current().output.line(f"{schedule} is removed")
    return 0


def _tell(one: ScheduleDetail) -> int:
    from trainyard.cli.jobs.jobs import record

    invocation = current()
    if invocation.json:
        invocation.output.json(record(one))
        return 0
    rows = [
        ("id", one.id),
        ("name", one.name),
        ("workspace", one.workspace),
        ("user", one.user),
        ("when", f"{one.cron} ({one.timezone})"),
        ("overlap", one.overlap),
        ("state", "active" if one.is_active else "paused"),
        ("note", one.message),
        ("last job", one.last_job),
        ("command", one.spec.command),
        ("next", ", ".join(_time(moment) for moment in one.upcoming)),
    ]
    for name, text in rows:
        if text:
            invocation.output.line(f"{name:<10} {text}")
    return 0


def _time(moment: datetime | None) -> str:
    return "-" if moment is None else f"{moment.astimezone():%m-%d %H:%M}"
