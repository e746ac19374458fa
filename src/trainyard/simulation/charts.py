"""Charts as SVG texts: policies side by side, light and dark, readable at the width of a phone.

A chart is a whole SVG document, so that it can stand in a page, in a file of its own or in somebody's slides. Colours are
classes; their values are in `STYLE`, which follows the reader's preference. The page around them is report.py's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from math import log10

from trainyard.simulation.metrics import LARGE, percentile
from trainyard.simulation.result import PolicyResult

WIDTH, HEIGHT = 420, 280  # small, so that letters stay legible where the chart is as wide as a phone
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 14, 36
MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0
TIMES = (
    (1, "1 s"), (10, "10 s"), (MINUTE, "1 min"), (10 * MINUTE, "10 min"), (HOUR, "1 h"), (6 * HOUR, "6 h"),
    (DAY, "1 d"), (4 * DAY, "4 d"), (14 * DAY, "2 w"), (60 * DAY, "60 d"),
)  # fmt: skip
SHORTEST = 1.0  # seconds; a logarithm has no zero
POINTS = 84  # of a line over the time: two hours each in a week

# Eight colours that stay apart for most kinds of colour blindness; ours is the strongest.
COLOURS = ("#0b62d6", "#9a6700", "#cf4b12", "#0f8a5f", "#8250df", "#b3307f", "#4d6a79", "#6f7500")
COLOURS_DARK = ("#6cb0ff", "#e0b040", "#ff8f5e", "#4fd0a0", "#c4a2ff", "#ff8fc8", "#9fb9c6", "#c6cc4a")


def _palette(colours: Sequence[str]) -> str:
    return "".join(f"--p{place}:{colour};" for place, colour in enumerate(colours))


STYLE = (
    ".chart{--ink:#1f2328;--dim:#59636e;--grid:#d9dfe5;--ground:#fff;" + _palette(COLOURS) + "}"
    "@media(prefers-color-scheme:dark){.chart{--ink:#e6edf3;--dim:#9aa4af;--grid:#343b44;--ground:#14181d;"
    + _palette(COLOURS_DARK)
    + "}}"
    ".chart text{font:12.5px system-ui,-apple-system,'Segoe UI',Roboto,sans-serif;fill:var(--dim)}"
    ".chart .name{fill:var(--ink);font-weight:600}.chart .end{text-anchor:end}.chart .mid{text-anchor:middle}"
    ".chart .halo{paint-order:stroke;stroke:var(--ground);stroke-width:4px;stroke-linejoin:round}"
    ".chart .grid{stroke:var(--grid);stroke-width:1;fill:none}"
    ".chart .line{fill:none;stroke-width:2;stroke-linejoin:round}"
    + "".join(
        f".chart .f{place}{{fill:var(--p{place})}}.chart .s{place}{{stroke:var(--p{place})}}"
        for place in range(len(COLOURS))
    )
    + ".chart .soft{opacity:.22}"
)


class _Canvas:
    """Elements of one chart."""

    def __init__(self, title: str, height: int = HEIGHT) -> None:
        self._title = title
        self._height = height
        self._parts: list[str] = []

    def text(self, x: float, y: float, words: str, kind: str = "") -> None:
        self._parts.append(f'<text x="{x:.1f}" y="{y:.1f}"{_class(kind)}>{escape(words)}</text>')

    def line(self, x1: float, y1: float, x2: float, y2: float, kind: str = "grid") -> None:
        self._parts.append(f'<path d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}"{_class(kind)}/>')

    def path(self, points: Sequence[tuple[float, float]], kind: str, tip: str, *, close: str = "") -> None:
        steps = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        self._parts.append(f'<path d="M{steps}{close}"{_class(kind)}><title>{escape(tip)}</title></path>')

    def bar(self, x: float, y: float, width: float, height: float, kind: str, tip: str) -> None:
        self._parts.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{max(height, 1.0):.1f}" rx="1.5"'
            f"{_class(kind)}><title>{escape(tip)}</title></rect>"
        )

    def dot(self, x: float, y: float, radius: float, kind: str, tip: str) -> None:
        self._parts.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}"{_class(kind)}><title>{escape(tip)}</title></circle>'
        )

    def svg(self, *, alone: bool) -> str:
        """The document; one that stands alone brings its colours and its ground along."""
        head = (
            f'<svg class="chart" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {self._height}" role="img" '
            f'aria-label="{escape(self._title)}">'
        )
        own = (
            f'<style>{STYLE}</style><rect width="100%" height="100%" style="fill:var(--ground)"/>'
            if alone
            else ""
        )
        return head + own + "".join(self._parts) + "</svg>"


def _class(kind: str) -> str:
    return f' class="{kind}"' if kind else ""


def charts(results: Sequence[PolicyResult], *, alone: bool = False) -> dict[str, tuple[str, str, str]]:
    """Every chart: file name → (title, caption, SVG)."""
    drawn = {
        "balance": ("The trade", BALANCE, balance_chart),
        "large": ("Large gangs", LARGE_CAPTION, large_chart),
        "wait": ("Wait by size", WAIT, wait_chart),
        "queue": ("The queue", QUEUE, queue_chart),
        "busy": ("Devices in use", BUSY, busy_chart),
        "fairness": ("Fairness", FAIRNESS, fairness_chart),
    }
    return {
        name: (title, caption, draw(results).svg(alone=alone))
        for name, (title, caption, draw) in drawn.items()
    }


BALANCE = (
    f"How long everybody waits on average, against how long the unluckiest twentieth of the gangs with more than {LARGE} "
    "devices waits. Best is the lower left corner."
)
LARGE_CAPTION = f"The share of gangs with more than {LARGE} devices that had waited no longer than so much."
WAIT = "95 of 100 workloads wait no longer than the bar is high; by devices of all replicas, on a logarithmic scale."
QUEUE = "Workloads that wait, over the days."
BUSY = "The share of the devices in use, over the days; each policy has a strip of its own."
FAIRNESS = (
    "Jain's index over the hours in which somebody waited: 1 where all got the same part of their due, less where some got "
    "much and others nothing."
)


# -- scales ----------------------------------------------------------------------------------------------------------


def _log_scale(low: float, high: float, first: float, last: float) -> Callable[[float], float]:
    bottom, top = log10(low), log10(max(high, low * 10))
    return lambda value: first + (log10(max(value, low)) - bottom) / (top - bottom) * (last - first)


def _ceiling(values: Sequence[float]) -> float:
    """The first tick above all values."""
    most = max(values, default=SHORTEST)
    return next((float(tick) for tick, _ in TIMES if tick >= most), most)


def _floor(values: Sequence[float]) -> float:
    least = max(SHORTEST, min(values, default=SHORTEST))
    return max((float(tick) for tick, _ in TIMES if tick <= least), default=SHORTEST)


def _round_up(value: float) -> float:
    """The next of 1, 2, 5 times a power of ten."""
    if value <= 0:
        return 1.0
    power: float = 10.0 ** int(log10(value) // 1)
    return next(step * power for step in (1, 2, 5, 10) if step * power >= value)


def _days_axis(canvas: _Canvas, seconds: float, bottom: float) -> Callable[[float], float]:
    """The horizontal axis of a series; marks at days, thinned out where there are many."""
    plain = WIDTH - LEFT - RIGHT
    days = seconds / DAY
    step = next((step for step in (0.25, 1, 2, 5, 7, 14, 28, 91) if days / step <= 9), 365)
    mark = 0.0
    while mark <= days + 1e-9:
        x = LEFT + plain * mark / days if days else LEFT
        canvas.line(x, bottom, x, bottom + 4)
        canvas.text(x, bottom + 17, f"{mark:g}", "mid")
        mark += step
    canvas.text(WIDTH - RIGHT, bottom + 32, "days", "end")
    return lambda at: LEFT + plain * at / seconds if seconds else LEFT


def _thin(values: Sequence[float], points: int) -> list[float]:
    """Means of neighbours, so that a line has at most so many points."""
    group = max(1, -(-len(values) // points))
    return [
        sum(values[at : at + group]) / len(values[at : at + group]) for at in range(0, len(values), group)
    ]


def span(seconds: float) -> str:
    """`45 s`, `12 min`, `3.4 h`, `2.1 d`: two figures are enough to compare."""
    if seconds < MINUTE:
        return f"{seconds:.0f} s"
    if seconds < HOUR:
        return f"{seconds / MINUTE:.0f} min"
    if seconds < 2 * DAY:
        return f"{seconds / HOUR:.1f} h"
    return f"{seconds / DAY:.1f} d"


# -- charts ----------------------------------------------------------------------------------------------------------


def balance_chart(results: Sequence[PolicyResult]) -> _Canvas:
    """Mean wait of all against the p95 of large gangs."""
    canvas = _Canvas("Mean wait of all workloads against the p95 wait of large gangs")
    bottom = HEIGHT - BOTTOM
    means = [result.wait.mean for result in results]
    tails = [result.wait_large.p95 for result in results]
    across = _log_scale(_floor(means), _ceiling(means), LEFT, WIDTH - RIGHT - 20)
    up = _log_scale(_floor(tails), _ceiling(tails), bottom, TOP + 8)
    for tick, label in TIMES:
        if _floor(means) <= tick <= _ceiling(means):
            canvas.line(across(tick), TOP, across(tick), bottom)
            canvas.text(across(tick), bottom + 16, label, "mid")
        if _floor(tails) <= tick <= _ceiling(tails):
            canvas.line(LEFT, up(tick), WIDTH - RIGHT, up(tick))
            canvas.text(LEFT - 6, up(tick) + 4, label, "end")
    canvas.text(WIDTH - RIGHT, bottom + 31, "mean wait of all", "end")
    canvas.text(LEFT + 6, TOP + 2, "p95 wait of large gangs", "halo")
    taken: list[tuple[float, float]] = []
    for place, result in enumerate(results):
        x, y = across(result.wait.mean), up(result.wait_large.p95)
        tip = f"{result.policy}: mean {span(result.wait.mean)}, large p95 {span(result.wait_large.p95)}"
        canvas.dot(x, y, 6.5, f"f{place % 8}", tip)
        level = y + 4
        while any(abs(level - below) < 14 and abs(x - beside) < 100 for beside, below in taken):
            level += 14 if level < bottom - 30 else -28
        taken.append((x, level))
        if abs(level - y - 4) > 1:
            canvas.line(x, y, x + (-9 if x > WIDTH - 110 else 9), level - 4)
        near = x > WIDTH - 110
        canvas.text(x - 11 if near else x + 11, level, result.policy, "name halo" + (" end" if near else ""))
    return canvas


def large_chart(results: Sequence[PolicyResult]) -> _Canvas:
    """How the waits of large gangs are distributed."""
    canvas = _Canvas("Distribution of the waits of large gangs")
    bottom = HEIGHT - BOTTOM - 18
    waits = [value for result in results for value in result.large_waits]
    top = _ceiling(waits)
    across = _log_scale(MINUTE, top, LEFT, WIDTH - RIGHT - 6)
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = bottom - (bottom - TOP) * share
        canvas.line(LEFT, y, WIDTH - RIGHT, y)
        canvas.text(LEFT - 6, y + 4, f"{share:.0%}", "end")
    for tick, label in TIMES:
        if MINUTE <= tick <= top:
            canvas.text(across(tick), bottom + 16, label if tick > MINUTE else "≤ 1 min", "mid")
    for place, result in enumerate(results):
        ranked = result.large_waits
        if not ranked:
            continue
        points = [(across(MINUTE), bottom - (bottom - TOP) * _share_up_to(ranked, MINUTE))]
        steps = [(percentile(ranked, step / 100), step / 100) for step in range(1, 101)]
        points += [(across(wait), bottom - (bottom - TOP) * share) for wait, share in steps if wait > MINUTE]
        canvas.path(points, f"line s{place % 8}", f"{result.policy}: median {span(result.wait_large.p50)}")
    _legend(canvas, results, HEIGHT - 8)
    return canvas


def _share_up_to(ranked: Sequence[float], limit: float) -> float:
    return sum(value <= limit for value in ranked) / len(ranked)


def wait_chart(results: Sequence[PolicyResult]) -> _Canvas:
    """p95 by size, a group of bars for each size."""
    canvas = _Canvas("p95 wait by size")
    bottom = HEIGHT - BOTTOM - 18
    sizes = list(results[0].wait_by_size) if results else []
    values = [result.wait_by_size[name].p95 for result in results for name in sizes]
    up = _log_scale(SHORTEST, _ceiling(values), bottom, TOP + 4)
    for tick, label in TIMES:
        if tick <= _ceiling(values):
            canvas.line(LEFT, up(tick), WIDTH - RIGHT, up(tick))
            canvas.text(LEFT - 6, up(tick) + 4, label, "end")
    room = (WIDTH - LEFT - RIGHT) / max(1, len(sizes))
    width = room * 0.82 / max(1, len(results))
    for group, name in enumerate(sizes):
        for place, result in enumerate(results):
            spread = result.wait_by_size[name]
            tip = f"{result.policy}, {name} devices: p95 {span(spread.p95)}, mean {span(spread.mean)}, {spread.count} jobs"
            x = LEFT + room * (group + 0.09) + width * place
            canvas.bar(x, up(spread.p95), width * 0.88, bottom - up(spread.p95), f"f{place % 8}", tip)
        canvas.text(LEFT + room * (group + 0.5), bottom + 16, f"{name}", "mid")
    _legend(canvas, results, HEIGHT - 8)
    return canvas


def queue_chart(results: Sequence[PolicyResult]) -> _Canvas:
    """The length of the queue over time."""
    canvas = _Canvas("Length of the queue over time")
    bottom = HEIGHT - BOTTOM - 18
    series = [
        _thin(result.queue[: result.window + result.window // 4], POINTS + POINTS // 4) for result in results
    ]
    top = _round_up(max((max(line, default=0.0) for line in series), default=1.0))
    seconds = max(
        (len(result.queue[: result.window + result.window // 4]) * result.width for result in results),
        default=1.0,
    )
    for step in range(5):
        y = bottom - (bottom - TOP) * step / 4
        canvas.line(LEFT, y, WIDTH - RIGHT, y)
        canvas.text(LEFT - 6, y + 4, f"{top * step / 4:g}", "end")
    across = _days_axis(canvas, seconds, bottom)
    for place, (result, line) in enumerate(zip(results, series, strict=True)):
        group = max(1, -(-len(result.queue[: result.window + result.window // 4]) // (POINTS + POINTS // 4)))
        step_width = result.width * group
        points = [
            (across((at + 0.5) * step_width), bottom - (bottom - TOP) * value / top)
            for at, value in enumerate(line)
        ]
        tip = f"{result.policy}: {result.queue_mean:.1f} on average, {result.queue_max} at most"
        canvas.path([(min(x, WIDTH - RIGHT), y) for x, y in points], f"line s{place % 8}", tip)
    _legend(canvas, results, HEIGHT - 8, right=WIDTH - 50)
    return canvas


def busy_chart(results: Sequence[PolicyResult]) -> _Canvas:
    """The share of the devices in use over time, a strip for each policy."""
    strip, gap = 46, 12
    height = TOP + len(results) * (strip + gap) + BOTTOM
    canvas = _Canvas("Devices in use over time", height)
    seconds = max((result.window * result.width for result in results), default=1.0)
    across = _days_axis(canvas, seconds, TOP + len(results) * (strip + gap))
    for place, result in enumerate(results):
        base = TOP + (place + 1) * (strip + gap) - 2
        line = _thin(result.busy[: result.window], POINTS)
        step = seconds / max(1, len(line))
        points = [
            (across((at + 0.5) * step), base - strip * min(1.0, value)) for at, value in enumerate(line)
        ]
        tip = f"{result.policy}: {result.utilisation:.1%} in use"
        canvas.line(LEFT, base - strip, WIDTH - RIGHT, base - strip)
        canvas.line(LEFT, base, WIDTH - RIGHT, base)
        if points:
            canvas.path(
                [(points[0][0], base), *points, (points[-1][0], base)], f"f{place % 8} soft", tip, close="Z"
            )
            canvas.path(points, f"line s{place % 8}", tip)
        canvas.text(LEFT - 6, base - strip + 9, "100%", "end")
        canvas.text(LEFT - 6, base, "0", "end")
        canvas.text(LEFT + 5, base - 6, f"{result.policy}  {result.utilisation:.1%}", "name halo")
    return canvas


def fairness_chart(results: Sequence[PolicyResult]) -> _Canvas:
    """Jain's index between workspaces and between users."""
    row = 25
    parts = (("between workspaces", "fair_workspaces"), ("between users", "fair_users"))
    height = TOP + 2 * (24 + row * len(results)) + 14
    canvas = _Canvas("Fairness", height)
    y = float(TOP)
    left, right = 100.0, WIDTH - 52.0
    for title, name in parts:
        canvas.text(left, y + 8, title)
        y += 15
        for place, result in enumerate(results):
            value = float(getattr(result, name))
            canvas.line(left, y + row / 2, right, y + row / 2)
            canvas.bar(
                left,
                y + 5,
                (right - left) * value,
                row - 10,
                f"f{place % 8}",
                f"{result.policy}: {value:.3f}",
            )
            canvas.text(left - 6, y + row / 2 + 4, result.policy, "name end")
            canvas.text(right + 6, y + row / 2 + 4, f"{value:.2f}")
            y += row
        y += 9
    return canvas


def _legend(canvas: _Canvas, results: Sequence[PolicyResult], y: float, right: float = WIDTH) -> None:
    x = float(LEFT) - 30
    for place, result in enumerate(results):
        width = 17 + 7.0 * len(result.policy) + 10
        if x + width > right:
            break  # more policies than fit have their names in the table
        canvas.bar(x, y - 9, 11, 11, f"f{place % 8}", result.policy)
        canvas.text(x + 16, y + 1, result.policy, "name")
        x += width
