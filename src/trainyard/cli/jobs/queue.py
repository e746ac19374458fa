"""`queue`: running and waiting jobs in the order of the queue, shown once or live."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from trainyard.cli.duration_option import duration_option
from trainyard.cli.invocation import current
from trainyard.cli.platform.platform_client import STATE_STYLES, age, complete_workspace, run
from trainyard.cli.terminal import live_screen
from trainyard.cli.terminal.live_screen import can_watch
from trainyard.cli.terminal.output import Output
from trainyard.cli.terminal.table import Column, Table
from trainyard.cli.verb import PlainVerb
from trainyard.spec.workload import FINAL, State

if TYPE_CHECKING:
    from trainyard.client import Client
    from trainyard.client.schemas import Job

LIMIT = 1000
ALIVE = tuple(state.value for state in State if state not in FINAL)


@click.command("queue", cls=PlainVerb)
@click.option(
    "--workspace",
    default="",
    metavar="NAME",
    shell_complete=complete_workspace,
    help="Only of this workspace.",
)
@click.option("-w", "--watch", is_flag=True, help="Show it again and again; `q` ends it.")
@duration_option("--interval", "Seconds between two looks.  [default: 2]")
def queue_command(workspace: str, watch: bool, interval: float | None) -> int:
    """Show what runs and what waits, in the order of the queue, with what each job waits for."""
    invocation = current()
    output = invocation.output

    async def work(client: Client) -> int:
        jobs = await _fetch(client, workspace)
        if invocation.json:
            from trainyard.cli.jobs.jobs import record_all

            output.json(record_all(jobs))
            return 0
        if not (watch and can_watch(output)):
            _print(output, jobs)
            return 0

        async def look(_before: list[Job]) -> list[Job]:
            return await _fetch(client, workspace)

        await live_screen.watch(output, jobs, look, lambda found: _screen(output, found), interval=interval)
        return 0

    try:
        return run(work)
    except KeyboardInterrupt:
        return 0


async def _fetch(client: Client, workspace: str) -> list[Job]:
    page = await client.jobs.page(state=ALIVE, workspace=workspace, limit=LIMIT, order="oldest")
    return sorted(page.items, key=_place)


def _place(job: Job) -> tuple[int, int, int, str]:
    """What runs first, then the queue by position, then what is held."""
    section = {State.WAITING: 1, State.HELD: 2}.get(job.state, 0)
    return section, job.position or 10**9, -job.priority, job.id


def _print(output: Output, jobs: Sequence[Job]) -> None:
    if not jobs:
        output.line("nothing runs or waits")
        return
    queue_table(jobs).print(output)


def _screen(output: Output, jobs: Sequence[Job]) -> str:
    running = sum(job.state not in {State.WAITING, State.HELD} for job in jobs)
    head = f"{running} run, {sum(job.state is State.WAITING for job in jobs)} wait"
    if not jobs:
        return head
    lines = queue_table(jobs).lines(output, output.width)
    return "\n".join([head, output.paint(lines[0], "bold"), *lines[1 : output.rows - 2]])


def queue_table(jobs: Sequence[Job]) -> Table:
    """The table."""
    columns = [
        Column("#", right=True),
        Column("Id", drop=7),
        Column("Name", shrink=10),
        Column("User", shrink=8, drop=4),
        Column("Workspace", shrink=9, drop=2),
        Column("State", styles=STATE_STYLES),
        Column("Pri", right=True, drop=3),
        Column("Devices", right=True, drop=5),
        Column("Since", right=True, drop=6),
        Column("Why", shrink=12, drop=1),
    ]
    rows = [
        [
            str(job.position) if job.position and job.state is State.WAITING else "",
            job.id,
            job.name,
            job.user,
            job.workspace,
            str(job.state),
            str(job.priority),
            f"{job.devices} {job.device}".strip() if job.devices else "-",
            age(job.started_at or job.queued_at or job.submitted_at),
            (job.message or job.reason) if job.state in {State.WAITING, State.HELD} else "",
        ]
        for job in jobs
    ]
    return Table(columns, rows)
