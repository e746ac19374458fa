"""Measures against their definitions, computed the slow way."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.scheduling.model import Slot
from trainyard.simulation.metrics import (
    FAIR_SECONDS,
    Area,
    Ledger,
    Meter,
    Spreading,
    fill,
    percentile,
    size_class,
)


@given(
    st.lists(st.tuples(st.floats(0, 50), st.integers(-3, 5)), max_size=20),
    st.floats(0.5, 20),
)
def test_an_area_is_the_integral_of_its_steps(steps, width):
    area = Area(width)
    now, value, total = 0.0, 0, 0.0
    for gap, step in steps:
        total += value * gap
        now += gap
        value += step
        area.change(now, step)
    assert sum(area.buckets) == pytest.approx(total, abs=1e-6)
    assert len(area.buckets) <= now / width + 2


def test_an_area_is_split_between_its_buckets():
    area = Area(10.0)
    area.change(5.0, 2)
    area.advance(25.0)
    assert area.buckets == [10.0, 20.0, 10.0]
    assert area.until(2) == 30.0


@given(st.lists(st.floats(0, 1e6), min_size=1))
def test_percentiles_are_values_that_occur(values):
    ranked = sorted(values)
    spread = Spreading.of(values)
    assert {spread.p50, spread.p95, spread.p99, spread.max} <= set(ranked)
    assert spread.p50 <= spread.p95 <= spread.p99 <= spread.max == ranked[-1]
    assert sum(value <= percentile(ranked, 0.95) for value in ranked) >= 0.95 * len(ranked)


def test_nothing_has_a_summary_of_zeros():
    assert Spreading.of([]).as_dict() == {
        "count": 0,
        "mean": 0.0,
        "p50": 0.0,
        "p95": 0.0,
        "p99": 0.0,
        "max": 0.0,
    }


@given(
    st.floats(0, 1000),
    st.dictionaries(st.sampled_from("abcdef"), st.floats(0.1, 500), min_size=1),
    st.dictionaries(st.sampled_from("abcdef"), st.floats(0.1, 10)),
)
def test_shares_never_exceed_the_demand_or_the_capacity(capacity, demands, weights):
    dues = fill(capacity, demands, weights)
    assert sum(dues.values()) == pytest.approx(min(capacity, sum(demands.values())), abs=1e-6)
    assert all(due <= demands[name] + 1e-9 for name, due in dues.items())
    # Whoever is not satisfied has no less for its weight than anybody else.
    level = {name: dues[name] / weights.get(name, 1.0) for name in dues}
    for name, due in dues.items():
        if due < demands[name] - 1e-6:
            assert level[name] >= max(level.values()) - 1e-6


def test_fairness_is_even_when_both_get_the_same():
    ledger = Ledger(8, {}, 10 * FAIR_SECONDS)
    ledger.change("a", 0, 4, 4)
    ledger.change("b", 0, 4, 4)
    ledger.change("a", 3 * FAIR_SECONDS, 0, 0)
    assert ledger.jain() == pytest.approx(1.0)


def test_fairness_is_half_when_one_of_two_gets_everything():
    ledger = Ledger(8, {}, 10 * FAIR_SECONDS)
    ledger.change("a", 0, 8, 8)
    ledger.change("b", 0, 0, 16)
    ledger.change("a", 3 * FAIR_SECONDS, 0, 0)
    assert ledger.jain() == pytest.approx(0.5)


def test_hours_without_waiting_say_nothing_about_fairness():
    ledger = Ledger(8, {}, 10 * FAIR_SECONDS)
    ledger.change("a", 0, 7, 0)
    ledger.change("b", 0, 1, 0)
    ledger.change("a", 3 * FAIR_SECONDS, 0, 0)
    assert ledger.jain() == 1.0


def test_devices_are_stranded_when_a_gang_waits_that_cannot_use_them():
    meter = Meter({"x": 8, "y": 8}, {}, (2, 8), until=100.0)
    meter.run(("w", "u"), [Slot("worker", "x", (0, 1, 2))], 0.0, 1)
    meter.advance(10.0)
    assert sum(meter.stranded.buckets) == 0  # nobody waits
    meter.wait(("w", "u"), (2, 8), 10.0, 1)
    meter.advance(20.0)
    assert sum(meter.stranded.buckets) == pytest.approx(10 * 5)  # five are free on x; y is whole
    meter.wait(("w", "u"), (2, 8), 20.0, -1)
    meter.advance(30.0)
    assert sum(meter.stranded.buckets) == pytest.approx(10 * 5)


@pytest.mark.parametrize(
    ("devices", "name"), [(0, "0"), (1, "1"), (2, "2-4"), (8, "5-8"), (9, "9-32"), (33, "33+"), (4096, "33+")]
)
def test_sizes_have_classes(devices, name):
    assert size_class(devices) == name
