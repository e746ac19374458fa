"""`python -m benchmarks [names…] [--quick] [--json]`: measure, and print a table of ratios."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import sys
from datetime import UTC, datetime

from benchmarks.measure import Report, Row, render, watched

NAMES = (
    "run", "fanout", "startup", "memory", "making", "transfers", "scheduling", "cloud", "platform", "gangs", "sampling",
    "isolation", "signed_requests", "strangers",
)  # fmt: skip
# What --quick measures, in under a minute.
CHEAP = ("run", "fanout", "startup", "making", "scheduling", "sampling")


def main(words: list[str] | None = None) -> int:
    """Measure what is named, or everything; status 1 where a bar is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=f"one or more of: {', '.join(NAMES)}")
    parser.add_argument("--quick", action="store_true", help="few rounds, and only what is short")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    wanted = parser.parse_args(words)
    unknown = [name for name in wanted.names if name not in NAMES]
    if unknown:
        parser.error(f"there is no benchmark {unknown[0]!r}; choose from: {', '.join(NAMES)}")
    reports = []
    for name in wanted.names or (CHEAP if wanted.quick else NAMES):
        if not wanted.json:
            print(f"{name} …", file=sys.stderr, flush=True)
        reports.append(_measure(name, quick=wanted.quick))
        if not wanted.json:
            print(_table(reports[-1]), flush=True)
    if wanted.json:
        print(json.dumps(_document(reports), indent=2, ensure_ascii=False))
    return int(any(row.is_met is False for report in reports for row in report.rows))


def _measure(name: str, *, quick: bool) -> Report:
    module = importlib.import_module(f"benchmarks.{name}")
    report = Report(name)
    with watched(report):
        report.rows += module.measure(quick=quick)
    return report


def _table(report: Report) -> str:
    lines = [
        [row.case, _figure(row.ours, row.unit), row.against, _theirs(row), _ratio(row), _bar(row)]
        for row in report.rows
    ]
    body = render(["case", "ours", "against", "theirs", "ratio", "bar"], lines, right=frozenset({1, 3, 4}))
    foot = (
        f"({report.seconds:.0f} s; up to {100 * report.foreign:.0f}% of the processors were used by others)"
    )
    return f"{body.rstrip()}\n{foot}\n"


def _theirs(row: Row) -> str:
    return "not measured" if row.theirs is None else _figure(row.theirs, row.unit)


def _ratio(row: Row) -> str:
    return "" if row.ratio is None else f"{row.ratio:.2f}"


def _bar(row: Row) -> str:
    if row.bar is None:
        return row.note
    verdict = {True: "met", False: "MISSED", None: ""}[row.is_met]
    return f"<= {row.bar:.2f} {verdict} {row.note}".rstrip()


def _figure(value: float, unit: str) -> str:
    if unit != "s":
        return f"{value:.0f} {unit}"
    return f"{1000 * value:.1f} ms" if value < 1 else f"{value:.2f} s"


def _document(reports: list[Report]) -> dict[str, object]:
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": f"{os.cpu_count()} processors, {platform.machine()}, Linux {platform.release()}",
        "python": platform.python_version(),
        "benchmarks": [
            {
                "name": report.name,
                "seconds": round(report.seconds, 1),
                "foreign": round(report.foreign, 3),
                "rows": [row.as_dict() for row in report.rows],
            }
            for report in reports
        ],
    }


if __name__ == "__main__":
    sys.exit(main())
