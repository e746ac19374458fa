"""The tables of a simulation's results in a terminal of 80 columns. simulate.py runs the simulation."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from trainyard.cli.terminal.output import Output, wrap
from trainyard.cli.terminal.table import Column, Table
from trainyard.simulation.charts import span
from trainyard.simulation.report import finding

if TYPE_CHECKING:
    from trainyard.simulation.result import Experiment, PolicyResult

BLOCKS = "▁▂▃▄▅▆▇█"
SPARK = 14
WIDTH = 80


def show_results(output: Output, title: str, experiment: Experiment, results: Sequence[PolicyResult]) -> None:
    """Both tables, and the sentence to take away."""
    output.line(title, "bold")
    output.line(
        f"{experiment.source}: {experiment.jobs:,} jobs over {experiment.days:.1f} days, load {experiment.load:.0%}, "
        f"seed {experiment.seed}"
    )
    output.line()
    _summary(results).print(output)
    output.line()
    output.line("p95 wait by devices of a job", "bold")
    _by_size(results).print(output)
    sentence = finding(results)
    if sentence:
        output.line()
        output.line(wrap(sentence, min(WIDTH, output.width or WIDTH)))


def _summary(results: Sequence[PolicyResult]) -> Table:
    columns = [
        Column("POLICY", shrink=8),
        Column("IN USE", right=True),
        Column("WAIT", right=True),
        Column("P95", right=True),
        Column("LARGE P95", right=True),
        Column("SLOWDOWN", right=True, drop=2),
        Column("FAIR", right=True, drop=3),
        Column("LOST", right=True, drop=1),
        Column("QUEUE", drop=4),
    ]
    rows = [
        [
            result.policy,
            f"{result.utilisation:.1%}",
            span(result.wait.mean),
            span(result.wait.p95),
            span(result.wait_large.p95) if result.wait_large.count else "-",
            f"{result.slowdown.mean:,.1f}",
            f"{result.fair_workspaces:.2f}",
            f"{result.lost_share:.1%}",
            f"{sparkline(result.queue[: result.window], SPARK)} {result.queue_max}",
        ]
        for result in results
    ]
    return Table(columns, rows)


def _by_size(results: Sequence[PolicyResult]) -> Table:
    sizes = list(dict.fromkeys(name for result in results for name in result.wait_by_size))
    columns = [Column("POLICY", shrink=8), *(Column(name, right=True) for name in sizes)]
    rows = [[result.policy, *(span(result.wait_by_size[name].p95) for name in sizes)] for result in results]
    counts = results[0].wait_by_size if results else {}
    return Table(columns, [*rows, ["(jobs)", *(f"{counts[name].count:,}" for name in sizes)]])


def sparkline(values: Sequence[float], width: int) -> str:
    """A series in `width` letters, as high as its own maximum."""
    if not values:
        return " " * width
    edges = [round(place * len(values) / width) for place in range(width + 1)]
    means = [
        sum(values[low:high]) / (high - low) if high > low else values[min(low, len(values) - 1)]
        for low, high in pairwise(edges)
    ]
    most = max(means)
    if most <= 0:
        return BLOCKS[0] * width
    return "".join(BLOCKS[min(len(BLOCKS) - 1, int(value / most * len(BLOCKS)))] for value in means)
