"""`simulate`: plays jobs on a cluster under several policies. Reads and writes the files; simulation/ does the rest."""

from __future__ import annotations

import shlex
import signal
import time
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

import click

from trainyard.cli.invocation import Invocation, current
from trainyard.cli.terminal.output import Output
from trainyard.cli.verb import PlainVerb
from trainyard.lib.errors import InvalidError, NotFoundError
from trainyard.simulation.shipped import CLUSTER, CLUSTERS, DAYS, LOAD, SEED, TRACES

if TYPE_CHECKING:
    from trainyard.scheduling.model import Policy
    from trainyard.simulation.cluster import Cluster
    from trainyard.simulation.jobs import Job
    from trainyard.simulation.result import Experiment, PolicyResult
    from trainyard.simulation.simulator import Simulation

SIDE_BY_SIDE = ("default", "fifo", "first-fit", "easy")
DAY = 86400.0
REDRAW_SECONDS = 0.1
BAR = 20


@click.command("simulate", cls=PlainVerb)
@click.option(
    "--cluster",
    default=CLUSTER,
    metavar="FILE",
    help="A cluster in TOML, or the shipped small, medium or large.",
)
@click.option("--jobs", metavar="FILE", help="Jobs in CSV, instead of invented ones.")
@click.option(
    "--trace", type=click.Choice(TRACES), help="Invent jobs with the shapes of this cluster (philly)."
)
@click.option("--days", type=float, metavar="N", help=f"How long jobs come ({DAYS:g}).")
@click.option("--load", type=float, metavar="X", help=f"Their work, in capacities of the cluster ({LOAD:g}).")
@click.option("--policy", "policies", multiple=True, metavar="NAME", help="A policy; give it again for more.")
@click.option("--seed", type=int, default=SEED, metavar="N", help=f"Another seed, other jobs ({SEED}).")
@click.option("--output", "folder", metavar="DIR", help="Save result.json, jobs.csv, queue.csv, report.html.")
def simulate_command(
    cluster: str,
    jobs: str | None,
    trace: str | None,
    days: float | None,
    load: float | None,
    policies: tuple[str, ...],
    seed: int,
    folder: str | None,
) -> None:
    """Try scheduling policies on a cluster that is not there, in simulated time.

    Every policy gets the same jobs. Without options: a week of invented jobs on a small cluster under four policies.
    """
    if jobs is not None and (trace, days, load) != (None, None, None):
        raise InvalidError(
            "--jobs has its own jobs, so that --trace, --days and --load say nothing",
            hint="Leave out either --jobs or the others.",
        )
    target = None if folder is None else _check_folder(Path(folder))
    invocation = current()
    place, chosen = _read_cluster(cluster, policies or SIDE_BY_SIDE)
    if jobs is not None:
        source, wanted = Path(jobs).name, _read_jobs(jobs)
    else:
        source = trace or TRACES[0]
        wanted = _invent(place, source, DAYS if days is None else days, LOAD if load is None else load, seed)
    experiment, fine = _prepare(place, wanted, source, seed)
    _remark_on(experiment, invocation.output)
    played = [_play(place, fine, policy, seed, invocation.output) for policy in chosen]
    results = [result for _, result in played]
    command = _command(cluster, jobs, source, days, load, policies, seed)
    if target is not None:
        _save(target, experiment, played, wanted, command)
    _show(invocation, experiment, results, target)


# -- what is simulated -----------------------------------------------------------------------------------------------


def _read_cluster(name: str, policies: Sequence[str]) -> tuple[Cluster, list[Policy]]:
    from trainyard.scheduling.policies import POLICIES
    from trainyard.simulation.cluster import parse_cluster

    if name in CLUSTERS:
        from importlib.resources import files

        text = (files("trainyard.simulation") / "data" / f"{name}.toml").read_text(encoding="utf-8")
    else:
        text = _read(name, f"Shipped clusters are {', '.join(CLUSTERS)}; others are files.")
    cluster = parse_cluster(text, POLICIES, name=name)
    known: dict[str, Policy] = {**POLICIES, **cluster.policies}
    return cluster, [_policy(each, known) for each in dict.fromkeys(policies)]


def _policy(name: str, known: Mapping[str, Policy]) -> Policy:
    if name in known:
        return known[name]
    near = get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"Did you mean {near[0]!r}?" if near else f"Policies are {', '.join(known)}."
    raise NotFoundError(f"there is no policy {name!r}", hint=hint)


def _read_jobs(name: str) -> list[Job]:
    from trainyard.simulation.jobs import parse_jobs

    text = _read(name, "Leave --jobs out to have jobs invented.")
    jobs = parse_jobs(text, name=name)
    if not jobs:
        raise InvalidError(f"{name} has no jobs", hint="Add a line for each under its header.")
    return jobs


def _invent(cluster: Cluster, trace: str, days: float, load: float, seed: int) -> list[Job]:
    from trainyard.simulation.traces import SHAPES, generate, room_in

    return generate(SHAPES[trace], room_in(cluster), days=days, load=load, seed=seed)


def _read(name: str, hint: str) -> str:
    try:
        return Path(name).read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        raise NotFoundError(f"there is no file {name!r}", hint=hint) from error
    except UnicodeDecodeError as error:
        raise InvalidError(f"{name} is not UTF-8 text", hint="Save it as UTF-8.") from error


def _prepare(cluster: Cluster, jobs: Sequence[Job], source: str, seed: int) -> tuple[Experiment, list[Job]]:
    from trainyard.simulation.result import Experiment
    from trainyard.simulation.simulator import possible

    fine, never = possible(cluster, jobs)
    seconds = max((job.submitted for job in jobs), default=0.0)
    capacity = cluster.devices * seconds
    experiment = Experiment(
        cluster=cluster.name,
        nodes=len(cluster.nodes),
        devices=cluster.devices,
        jobs=len(fine),
        source=source,
        seed=seed,
        days=seconds / DAY,
        load=sum(job.work for job in fine) / capacity if capacity else 0.0,
        impossible=tuple(job.id for job in never),
    )
    return experiment, fine


def _remark_on(experiment: Experiment, output: Output) -> None:
    if experiment.impossible:
        count = len(experiment.impossible)
        output.warn(
            f"{count} of {count + experiment.jobs} jobs could never start on this cluster, not even if it were empty, and "
            f"are left out; the first is {experiment.impossible[0]!r}"
        )


def _play(
    cluster: Cluster, jobs: Sequence[Job], policy: Policy, seed: int, output: Output
) -> tuple[Simulation, PolicyResult]:
    from trainyard.scheduling.scheduler import Scheduler
    from trainyard.simulation.result import summarise
    from trainyard.simulation.simulator import Simulation

    drawn = 0.0

    def progress(done: int, total: int) -> None:
        nonlocal drawn
        now = time.monotonic()
        if now - drawn >= REDRAW_SECONDS:
            drawn = now
            bar = "#" * round(BAR * done / max(total, 1))
            output.draw(f"{policy.name:<10} [{bar:-<{BAR}}] {done:,} of {total:,} jobs")

    started = time.perf_counter()
    simulation = Simulation(cluster, jobs, policy, Scheduler, seed=seed)
    simulation.play(progress if output.can_draw else None)
    output.erase()
    return simulation, summarise(simulation, time.perf_counter() - started)


# -- what comes of it ------------------------------------------------------------------------------------------------


def _command(
    cluster: str,
    jobs: str | None,
    source: str,
    days: float | None,
    load: float | None,
    policies: Sequence[str],
    seed: int,
) -> str:
    words = ["trainyard", "simulate", "--cluster", cluster]
    words += ["--trace", source] if jobs is None else ["--jobs", jobs]
    words += [] if days is None else ["--days", f"{days:g}"]
    words += [] if load is None else ["--load", f"{load:g}"]
    for policy in policies:
        words += ["--policy", policy]
    return shlex.join([*words, "--seed", str(seed)])


def _check_folder(folder: Path) -> Path:
    """Find out before a long simulation that its result could not be saved."""
    if folder.exists() and not folder.is_dir():
        raise InvalidError(f"{str(folder)!r} is no folder", hint="Name another one with --output.")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _save(
    folder: Path,
    experiment: Experiment,
    played: Sequence[tuple[Simulation, PolicyResult]],
    jobs: Sequence[Job],
    command: str,
) -> None:
    from trainyard.lib.files import write_atomic
    from trainyard.simulation.charts import charts
    from trainyard.simulation.jobs import format_jobs
    from trainyard.simulation.report import format_report
    from trainyard.simulation.result import (
        JOB_COLUMNS,
        QUEUE_COLUMNS,
        as_document,
        format_csv,
        format_json,
        job_rows,
        queue_rows,
    )

    results = [result for _, result in played]
    rows = [row for simulation, _ in played for row in job_rows(simulation)]
    texts = {
        "result.json": format_json(as_document(experiment, results)),
        "jobs.csv": format_csv(JOB_COLUMNS, rows),
        "queue.csv": format_csv(QUEUE_COLUMNS, [row for result in results for row in queue_rows(result)]),
        "trace.csv": format_jobs(jobs),
        "report.html": format_report(experiment, results, command),
    }
    texts |= {f"{name}.svg": svg for name, (_, _, svg) in charts(results, alone=True).items()}
    # Ctrl-C waits until all are there, so that files of two runs never stand side by side.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        for name, text in texts.items():
            write_atomic(folder / name, text, mode=0o644)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _show(
    invocation: Invocation, experiment: Experiment, results: Sequence[PolicyResult], folder: Path | None
) -> None:
    from trainyard.cli.simulation_tables import show_results
    from trainyard.simulation.result import as_document

    if invocation.json:
        invocation.output.json(as_document(experiment, results))
        return
    nodes = f"{experiment.nodes:,} nodes with {experiment.devices:,} devices"
    show_results(invocation.output, f"{experiment.cluster}: {nodes}", experiment, results)
    if folder is not None:
        invocation.output.line(f"saved in {folder}; open {folder / 'report.html'}")
