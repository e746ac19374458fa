"""The HTML report: a single page for light and dark mode, for large screens and phones. charts.py draws the charts."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from trainyard.simulation.charts import STYLE, charts, span
from trainyard.simulation.metrics import BRIEF, LARGE
from trainyard.simulation.result import Experiment, PolicyResult

PAGE_STYLE = """
:root{color-scheme:light dark;--page:#f6f7f9;--card:#fff;--ink:#1f2328;--dim:#59636e;--edge:#d9dfe5;--best:#0f7a52}
@media(prefers-color-scheme:dark){:root{--page:#0d1014;--card:#14181d;--ink:#e6edf3;--dim:#9aa4af;--edge:#2c333b;--best:#4fd0a0}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);font:16px/1.5 system-ui,-apple-system,'Segoe UI',Roboto,sans-serif}
main{max-width:1120px;margin:0 auto;padding:28px 16px 48px}
h1{font-size:1.7rem;line-height:1.2;margin:0 0 6px}h2{font-size:1.05rem;margin:0 0 2px}
p{margin:0 0 12px}.facts{color:var(--dim)}.finding{font-size:1.12rem;margin:14px 0 20px;max-width:62ch}
.card{background:var(--card);border:1px solid var(--edge);border-radius:10px;padding:16px}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,420px),1fr));gap:16px;margin-top:16px}
.card p{color:var(--dim);font-size:.9rem;margin-bottom:8px}.card svg{display:block;width:100%;height:auto}
.scroll{overflow-x:auto}table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{padding:7px 10px;text-align:right;white-space:nowrap;border-bottom:1px solid var(--edge)}
th{font-weight:600;color:var(--dim);font-size:.85rem;vertical-align:bottom}th:first-child,td:first-child{text-align:left}
tr:last-child td{border-bottom:0}td .key{display:inline-block;width:11px;height:11px;border-radius:2px;margin-right:8px}
td.best{color:var(--best);font-weight:650}th:first-child,td:first-child{position:sticky;left:0;background:var(--card)}
dl{display:grid;grid-template-columns:minmax(110px,max-content) 1fr;gap:4px 16px;margin:8px 0 0;font-size:.92rem}
dt{font-weight:600}dd{margin:0;color:var(--dim)}
code{font:.88em ui-monospace,Menlo,Consolas,monospace;overflow-wrap:anywhere}
footer{margin-top:20px;color:var(--dim);font-size:.9rem}
@media(max-width:480px){main{padding:18px 10px 36px}.card{padding:12px}h1{font-size:1.4rem}dl{grid-template-columns:1fr}dd{margin-bottom:6px}}
""".strip()

MEANING = (
    ("in use", "Devices in use, on average over the time in which jobs arrive."),
    (
        "mean wait",
        "Time in the queue until it runs, over all attempts: also after a failure or a preemption.",
    ),
    ("p95 wait", "95 of 100 workloads wait no longer."),
    ("large p95", f"The same for gangs of more than {LARGE} devices, which need several machines at once."),
    ("slowdown", f"(wait + running) / running, the mean; running counts as {BRIEF:.0f} s at least."),
    (
        "fairness",
        (
            "Jain's index over workspaces, of received / due in each hour in which somebody waited. Due: the devices shared "
            "out by guarantee or weight, nobody getting more than they ask for. 1 is even."
        ),
    ),
    (
        "stranded",
        (
            "Free devices that the most common large gang cannot use because they are too few on their machine, while one "
            "waits; share of all devices."
        ),
    ),
    ("preempted", "How often a running workload was stopped to make room."),
    ("lost", "Work that was done again after that, or after the loss of a node; share of all work."),
)


def format_report(experiment: Experiment, results: Sequence[PolicyResult], command: str) -> str:
    """The whole page. `command` is what makes it again."""
    title = f"{_count(len(results))} on {experiment.cluster}: {experiment.source}"
    cards = "\n".join(
        f'<section class="card"><h2>{escape(name)}</h2><p>{escape(caption)}</p>{svg}</section>'
        for name, caption, svg in charts(results).values()
    )
    meaning = "".join(f"<dt>{escape(word)}</dt><dd>{escape(text)}</dd>" for word, text in MEANING)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width,initial-scale=1">
<title>{escape(title)}</title>
<style>
{PAGE_STYLE}
{STYLE}
</style>
</head>
<body class="chart">
<main>
<h1>{escape(title)}</h1>
<p class="facts">{escape(_facts(experiment))}</p>
<p class="finding">{escape(finding(results))}</p>
<section class="card scroll">{_table(results)}</section>
<div class="cards">
{cards}
</div>
<section class="card" style="margin-top:16px"><h2>What the words mean</h2><dl>{meaning}</dl></section>
<footer>Made by <code>{escape(command)}</code>. The same command gives the same figures.</footer>
</main>
</body>
</html>
"""


def _count(policies: int) -> str:
    words = (
        "No policy",
        "One policy",
        "Two policies",
        "Three policies",
        "Four policies",
        "Five policies",
        "Six policies",
    )
    return words[policies] if policies < len(words) else f"{policies} policies"


def _facts(experiment: Experiment) -> str:
    left_out = (
        f" {len(experiment.impossible)} jobs that no empty cluster could hold were left out."
        if experiment.impossible
        else ""
    )
    return (
        f"{experiment.nodes:,} nodes with {experiment.devices:,} devices; {experiment.jobs:,} jobs over {experiment.days:.1f} "
        f"days, {experiment.load:.0%} of what the devices can do; seed {experiment.seed}.{left_out}"
    )


def finding(results: Sequence[PolicyResult]) -> str:
    """The one sentence to take away: the first policy against each other one, on large gangs and on everybody."""
    if len(results) < 2 or not results[0].wait_large.count:
        return ""
    ours = results[0]
    others = "; ".join(_versus(ours, other) for other in results[1:])
    return (
        f"With {ours.policy}, 95 of 100 large gangs start within {span(ours.wait_large.p95)} ({others}), everybody waits "
        f"{span(ours.wait.mean)} on average, and {ours.utilisation:.1%} of the devices are in use."
    )


def _versus(ours: PolicyResult, other: PolicyResult) -> str:
    ratio = other.wait_large.p95 / max(ours.wait_large.p95, 1.0)
    times = f", {ratio:.1f} times as long" if ratio >= 1.05 else ""
    return f"{other.policy}: {span(other.wait_large.p95)}{times}"


def _table(results: Sequence[PolicyResult]) -> str:
    columns: tuple[tuple[str, list[float], list[str], bool], ...] = (
        _column("in use", [result.utilisation for result in results], "{:.1%}", highest=True),
        _times("mean wait", [result.wait.mean for result in results]),
        _times("p95 wait", [result.wait.p95 for result in results]),
        _times("large p95", [result.wait_large.p95 for result in results]),
        _times("large mean", [result.wait_large.mean for result in results]),
        _column("slowdown", [result.slowdown.mean for result in results], "{:,.1f}"),
        _column("fairness", [result.fair_workspaces for result in results], "{:.2f}", highest=True),
        _column("stranded", [result.fragmentation for result in results], "{:.1%}"),
        _column("preempted", [float(result.preemptions) for result in results], "{:,.0f}"),
        _column("lost", [result.lost_share for result in results], "{:.2%}"),
    )
    head = "".join(f"<th>{escape(name)}</th>" for name, *_ in columns)
    rows = []
    for place, result in enumerate(results):
        cells = []
        for _, values, texts, highest in columns:
            best = max(values) if highest else min(values)
            alike = texts[values.index(best)] == texts[place] and len(set(texts)) > 1
            cells.append(f"<td{' class=best' if alike else ''}>{escape(texts[place])}</td>")
        key = f'<span class="key" style="background:var(--p{place % 8})"></span>'
        rows.append(f"<tr><td>{key}{escape(result.policy)}</td>{''.join(cells)}</tr>")
    return f"<table><thead><tr><th>policy</th>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _column(
    name: str, values: list[float], form: str, *, highest: bool = False
) -> tuple[str, list[float], list[str], bool]:
    return name, values, [form.format(value) for value in values], highest


def _times(name: str, values: list[float]) -> tuple[str, list[float], list[str], bool]:
    return name, values, [span(value) for value in values], False
