"""How the cost of a full cycle grows: measured points, a fitted exponent, a table and a drawing. See scheduling.py.

One thing grows at a time: nodes, waiting workloads, nodes of a gang. Each point is a cluster of its own, full, with a
backlog. The drawing is a plain SVG with logarithmic scales; the dashed line grows as n log n from the first point.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import log, log2, log10
from pathlib import Path

NAME = "scheduling-curves"
TOLERANCE = 1.1  # of the power of n log n: rounds differ by as much


@dataclass(frozen=True, slots=True)
class Curve:
    """What grew, and the seconds at each size."""

    name: str
    title: str
    points: tuple[tuple[int, float], ...]

    @property
    def exponent(self) -> float:
        """The cost grows as this power of n."""
        return slope([(log(n), log(seconds)) for n, seconds in self.points])

    @property
    def of_n_log_n(self) -> float:
        """The cost grows as this power of n log n: above 1 would be worse."""
        return self._power(self.points)

    @property
    def at_the_end(self) -> float:
        """The same over the three largest sizes: at small ones fixed costs make any growth look harmless."""
        return self._power(self.points[-3:])

    @staticmethod
    def _power(points: Sequence[tuple[int, float]]) -> float:
        return slope([(log(n * max(1.0, log2(n))), log(seconds)) for n, seconds in points])

    @property
    def is_met(self) -> bool:
        """Whether it grows no worse than n log n, over all sizes and over the largest."""
        return max(self.of_n_log_n, self.at_the_end) <= TOLERANCE

    def as_dict(self) -> dict[str, object]:
        """For `--json`."""
        return {
            "points": [[n, round(seconds, 4)] for n, seconds in self.points],
            "exponent": round(self.exponent, 2),
            "power_of_n_log_n": round(self.of_n_log_n, 2),
            "power_of_n_log_n_at_the_end": round(self.at_the_end, 2),
            "no_worse_than_n_log_n": self.is_met,
        }


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Of the straight line through points with the least squares."""
    x_mean = sum(x for x, _ in points) / len(points)
    y_mean = sum(y for _, y in points) / len(points)
    return sum((x - x_mean) * (y - y_mean) for x, y in points) / sum((x - x_mean) ** 2 for x, _ in points)


def measure_curves(
    cost: Callable[[int, int, int | None], float], *, quick: bool = False
) -> tuple[Curve, ...]:
    """`cost` takes nodes, waiting and the nodes of every gang (None: the usual mixture), and gives seconds."""
    nodes = (100, 300, 1000) if quick else (100, 300, 1000, 3000, 10_000)
    waiting = (1000, 3000) if quick else (1000, 3000, 10_000, 30_000, 100_000)
    gangs = (1, 4, 16) if quick else (1, 4, 16, 64, 256)
    beside, few = (1000, 500) if quick else (10_000, 2000)
    return (
        Curve(
            "nodes", f"nodes ({beside:,} waiting)", tuple((size, cost(size, beside, None)) for size in nodes)
        ),
        Curve(
            "waiting",
            "waiting (1,000 nodes)",
            tuple((size, cost(1000, size, None)) for size in waiting),
        ),
        Curve(
            "gang",
            f"nodes of a gang ({few:,} waiting)",
            tuple((size, cost(1000, few, size)) for size in gangs),
        ),
    )


def save(curves: Sequence[Curve], folder: Path) -> None:
    """Write the table and the drawing."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = ["grows,n,seconds"]
    lines += [f"{curve.name},{n},{seconds:.5f}" for curve in curves for n, seconds in curve.points]
    (folder / f"{NAME}.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / f"{NAME}.svg").write_text(draw(curves), encoding="utf-8")


# -- drawing

WIDTH, HEIGHT = 300, 260
LEFT, TOP, BOTTOM = 52, 44, 42
STYLE = """
text { font: 11px system-ui, sans-serif; fill: #334155 } .title { font-weight: 600 } .small { font-size: 10px }
.grid { stroke: #94a3b8; stroke-opacity: .3 } .ours { stroke: #2563eb; stroke-width: 2; fill: none }
.dot { fill: #2563eb } .law { stroke: #64748b; stroke-dasharray: 4 4; fill: none }
@media (prefers-color-scheme: dark) { text { fill: #cbd5e1 } .ours { stroke: #60a5fa } .dot { fill: #60a5fa } }
"""


def draw(curves: Sequence[Curve]) -> str:
    """All curves side by side."""
    parts = [_panel(curve, at * WIDTH) for at, curve in enumerate(curves)]
    width = WIDTH * len(curves)
    told = "Seconds of a full cycle; dashed: n log n from the first point"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT}" width="{width}" height="{HEIGHT}" '
        f'role="img" aria-label="{told}"><title>{told}</title><style>{STYLE}</style>{"".join(parts)}</svg>\n'
    )


def _panel(curve: Curve, left: float) -> str:
    sizes = [n for n, _ in curve.points]
    first_n, first_s = curve.points[0]
    base = first_n * max(1.0, log2(first_n))
    law = [(n, first_s * n * max(1.0, log2(n)) / base) for n in sizes]
    every = [seconds for _, seconds in (*curve.points, *law)]
    low, high = _decade(min(every), down=True), _decade(max(every), down=False)
    x = _scale(sizes[0], sizes[-1], left + LEFT, left + WIDTH - 16)
    y = _scale(low, high, HEIGHT - BOTTOM, TOP)
    out = [
        f'<text class="title" x="{left + LEFT}" y="16">{curve.title}</text>',
        f'<text class="small" x="{left + LEFT}" y="30">seconds; n^{curve.exponent:.2f}; at the end (n log n)^{curve.at_the_end:.2f}</text>',
    ]
    tick = low
    while tick <= high * 1.001:
        out.append(f'<line class="grid" x1="{left + LEFT}" x2="{left + WIDTH - 16}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>')  # fmt: skip
        out.append(f'<text class="small" text-anchor="end" x="{left + LEFT - 6}" y="{y(tick) + 3:.1f}">{tick:g}</text>')  # fmt: skip
        tick *= 10
    out += [
        f'<text class="small" text-anchor="middle" x="{x(n):.1f}" y="{HEIGHT - BOTTOM + 16}">{n:,}</text>'
        for n in sizes
    ]
    out.append(f'<polyline class="law" points="{_path(law, x, y)}"/>')
    out.append(f'<polyline class="ours" points="{_path(curve.points, x, y)}"/>')
    out += [
        f'<circle class="dot" r="3" cx="{x(n):.1f}" cy="{y(s):.1f}"><title>{n:,}: {s:.3f} s</title></circle>'
        for n, s in curve.points
    ]
    return "".join(out)


def _path(
    points: Sequence[tuple[int, float]], x: Callable[[float], float], y: Callable[[float], float]
) -> str:
    return " ".join(f"{x(n):.1f},{y(seconds):.1f}" for n, seconds in points)


def _scale(low: float, high: float, first: float, last: float) -> Callable[[float], float]:
    bottom, span = log10(low), log10(high) - log10(low)
    return lambda value: first + (log10(value) - bottom) / span * (last - first)


def _decade(value: float, *, down: bool) -> float:
    """The power of ten below or above."""
    power = log10(value)
    whole = int(power // 1) if down else -int(-power // 1)
    return 10.0**whole
