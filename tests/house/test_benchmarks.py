"""The benchmarks can be run. How fast anything is stands in docs/benchmarks.md: a loaded machine is slow, not wrong."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _from_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))


def test_every_named_benchmark_can_be_imported():
    main = importlib.import_module("benchmarks.__main__")
    for name in main.NAMES:
        assert callable(importlib.import_module(f"benchmarks.{name}").measure)
    assert set(main.CHEAP) <= set(main.NAMES)


def test_ratio_and_verdict_come_from_both_figures():
    measure = importlib.import_module("benchmarks.measure")
    assert measure.Row("run", 1.0, "rival", 4.0, bar=0.3).is_met
    assert measure.Row("run", 2.0, "rival", 4.0, bar=0.3).is_met is False
    assert measure.Row("run", 2.0, "rival", None, bar=0.3).is_met is None
    assert measure.Row("run", 2.0, "rival", 4.0).is_met is None


def test_works_take_turns_when_they_are_measured_in_rounds():
    measure = importlib.import_module("benchmarks.measure")
    order: list[str] = []
    works = {name: (lambda name=name: order.append(name) or 1.0) for name in "ab"}
    assert measure.medians(measure.take_turns(works, 3)) == {"a": 1.0, "b": 1.0}
    assert order == list("abbaab")


@pytest.mark.slow  # makes a real job of 16 local machines in a process of its own
def test_the_cheapest_benchmark_prints_its_rows_as_json():
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "memory", "--quick", "--json"],
        cwd=ROOT,
        env=os.environ,
        capture_output=True,
        text=True,
    )
    document = json.loads(done.stdout)

    assert [report["name"] for report in document["benchmarks"]] == ["memory"]
    assert all(row["ours"] > 0 for row in document["benchmarks"][0]["rows"])


def test_an_unknown_name_is_refused_with_the_list():
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "speed"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "fanout" in done.stderr
