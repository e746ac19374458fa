"""`jobs top`: the resource use of jobs' tasks, now and in the last minutes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

import click

from trainyard.cli.duration_option import duration_option
from trainyard.cli.invocation import current
from trainyard.cli.platform.platform_client import complete_job, find_job, run
from trainyard.cli.terminal.live_screen import can_watch, watch
from trainyard.cli.terminal.table import Column, Table
from trainyard.cli.verb import PlainVerb
from trainyard.lib.aio import gather_all
from trainyard.lib.units import format_size

if TYPE_CHECKING:
    from trainyard.client import Client
    from trainyard.client.schemas import Job, MetricsAnswer, MetricSeries

SPAN = timedelta(minutes=10)
MOST_JOBS = 50
BARS = "▁▂▃▄▅▆▇█"
PLAIN_BARS = "_.-=+*#@"
WIDTH = 20
MIB = 2**20
MARK = "*"
NOTE = "* of the whole node: these tasks have no network of their own"


@dataclass(frozen=True, slots=True)
class Use:
    """What one task used."""

    job: Job
    task: str
    now: dict[str, float]  # by metric; of devices, the mean
    past: tuple[float, ...]  # of the devices, or of the processors where there are none
    top: float  # what a full bar stands for
    shared: frozenset[str] = frozenset()  # metrics that are all of the node's, not the task's alone


@click.command("top", cls=PlainVerb)
@click.option("--once", is_flag=True, help="Show it once, as without a terminal.")
@click.option("--devices", is_flag=True, help="Show each device of a task too, in a row of its own.")
@duration_option("--interval", "Seconds between two looks.  [default: 2]")
@click.argument("jobs", metavar="[JOB...]", nargs=-1, shell_complete=complete_job)
def job_top_command(jobs: tuple[str, ...], once: bool, devices: bool, interval: float | None) -> int:
    """Show what the tasks of jobs use: processors, memory, devices, network, disks. All that run, or those named."""
    return show(jobs, once=once, interval=interval, devices=devices)


def show(names: Sequence[str], *, once: bool, interval: float | None, devices: bool = False) -> int:
    """Show the use of these jobs, or of all that run, once or until `q`."""
    invocation = current()
    output = invocation.output

    async def work(client: Client) -> int:
        async def look(_before: list[Use] | None) -> list[Use]:
            return await fetch_uses(client, names, devices=devices)

        uses = await look(None)
        if invocation.json:
            output.json([_record(use) for use in uses])
            return 0
        bars = BARS if output.can_draw else PLAIN_BARS
        if once or not can_watch(output):
            if uses:
                _table(uses, bars).print(output)
                if any(use.shared for use in uses):
                    output.note(NOTE)
            else:
                output.line("nothing runs")
            return 0

        def draw(found: list[Use]) -> str:
            lines = _table(found, bars).lines(output, output.width)
            return "\n".join([output.paint(lines[0], "bold"), *lines[1 : output.rows - 1]])

        await watch(output, uses, look, draw, interval=interval)
        return 0

    try:
        return run(work)
    except KeyboardInterrupt:
        return 0


async def fetch_uses(client: Client, names: Sequence[str], *, devices: bool = False) -> list[Use]:
    """What these jobs, or all that run, have used in the last minutes; by the server's clock, whose readings they are."""
    if names:
        jobs = [await find_job(client, name) for name in names]
    else:
        jobs = list((await client.jobs.page(state=("running",), limit=MOST_JOBS)).items)
    since = client.connection.now() - SPAN
    answers = await gather_all(
        [
            client.jobs.metrics(job.id, **({} if job.ended_at else {"since": since.isoformat()}))
            for job in jobs
        ]
    )
    found: list[Use] = []
    for job, answer in zip(jobs, answers, strict=True):
        if isinstance(answer, BaseException):
            raise answer
        found += uses_of(job, answer, devices=devices)
    return found


def uses_of(job: Job, answer: MetricsAnswer, *, devices: bool = False) -> Iterable[Use]:
    """The tasks of the last attempt that were heard of; with `devices`, each of theirs behind them."""
    by_task: dict[str, list[MetricSeries]] = {}
    for one in answer.series:
        if one.attempt == job.attempt:
            by_task.setdefault(one.task, []).append(one)
    for task, several in sorted(by_task.items()):
        now: dict[str, list[float]] = {}
        for one in several:
            now.setdefault(one.metric, []).append(one.points[-1][1])
        shown = "gpu" if "gpu" in now else "cpu"
        top = 100.0 if shown == "gpu" else max(1.0, job.cpu / max(1, job.replicas))
        means = {metric: sum(values) / len(values) for metric, values in now.items()}
        shared = frozenset(one.metric for one in several if one.of == "node")
        yield Use(job, task, means, _past([one for one in several if one.metric == shown]), top, shared)
        if devices:
            yield from _devices_of(job, task, several)


def _devices_of(job: Job, task: str, several: Sequence[MetricSeries]) -> Iterable[Use]:
    for index in sorted({one.device for one in several if one.device is not None}):
        own = [one for one in several if one.device == index]
        now = {one.metric: one.points[-1][1] for one in own}
        yield Use(job, f"{task} #{index}", now, _past([one for one in own if one.metric == "gpu"]), 100.0)


def _past(several: Sequence[MetricSeries]) -> tuple[float, ...]:
    """The means of as many equal parts of the last minutes as there are bars."""
    last = max((one.points[-1][0] for one in several), default=0.0)
    part = SPAN.total_seconds() / WIDTH
    points: dict[int, list[float]] = {}
    for one in several:
        for time, value in one.points:
            points.setdefault(int((last - time) // part), []).append(value)
    return tuple(sum(points[one]) / len(points[one]) for one in sorted(points, reverse=True) if one < WIDTH)


def sparkline(values: Sequence[float], top: float, bars: str = BARS) -> str:
    """The last values as bars, each a share of `top`."""
    last = values[-WIDTH:]
    return "".join(bars[min(len(bars) - 1, max(0, int(value / top * len(bars))))] for value in last)


def _table(uses: Sequence[Use], bars: str) -> Table:
    columns = [
        Column("Job", shrink=10),
        Column("Task"),
        Column("CPU", right=True),
        Column("Memory", right=True),
        Column("GPU%", right=True),
        Column("GPU mem", right=True, drop=5),
        Column("In/s", right=True, drop=3),
        Column("Out/s", right=True, drop=4),
        Column("Read/s", right=True, drop=1),
        Column("Write/s", right=True, drop=2),
        Column("Last 10 min", drop=6),
    ]
    rows = [
        [
            use.job.name,
            use.task,
            _number(use.now.get("cpu"), "{:.1f}"),
            _size(use.now.get("memory"), MIB),
            _number(use.now.get("gpu"), "{:.0f}"),
            _size(use.now.get("gpu_memory"), MIB),
            _traffic(use, "in"),
            _traffic(use, "out"),
            _traffic(use, "read"),
            _traffic(use, "write"),
            sparkline(use.past, use.top, bars),
        ]
        for use in uses
    ]
    return Table(columns, rows)


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


def _size(value: float | None, unit: int) -> str:
    return "-" if value is None else format_size(int(value * unit))


def _traffic(use: Use, metric: str) -> str:
    return _size(use.now.get(metric), 1) + (MARK if metric in use.shared and metric in use.now else "")


def _record(use: Use) -> dict[str, object]:
    return {
        "job": use.job.id,
        "name": use.job.name,
        "task": use.task,
        "now": use.now,
        "past": list(use.past),
        "of_node": sorted(use.shared),
    }
