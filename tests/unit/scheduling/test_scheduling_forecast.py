"""Forecasts: what a user ran before says most, what everybody ran with such a limit a little, the limit least."""

from __future__ import annotations

import pytest

from trainyard.scheduling.forecast import ENOUGH, OVERSTATED, Forecast, expected_run
from trainyard.scheduling.model import Request, Role

HOUR = 3600.0


def work(user="ada", devices=1, limit=24 * HOUR, expected=None):
    role = Role(devices=devices, device="A100")
    return Request(id="w", roles=(role,), user=user, limit=limit, expected=expected)


def test_a_part_of_the_limit_is_expected_when_nothing_has_ended():
    assert Forecast().expect(work()) == 24 * HOUR / OVERSTATED


def test_nothing_is_expected_when_there_is_neither_limit_nor_past():
    assert Forecast().expect(work(limit=None)) is None


def test_a_users_own_runs_count_most_when_others_ran_with_the_same_limit():
    forecast = Forecast()
    for _ in range(ENOUGH):
        forecast.note(work(user="bob"), 10 * HOUR)
        forecast.note(work(), HOUR)
    assert HOUR < forecast.expect(work()) < 2 * HOUR
    assert forecast.expect(work(user="bob")) > 9 * HOUR
    assert forecast.expect(work(user="eve")) == pytest.approx(5.5 * HOUR)


@pytest.mark.parametrize("other", [work(devices=8), work(limit=HOUR), work(user="bob")])
def test_a_run_says_nothing_when_the_next_differs_in_size_limit_or_user(other):
    forecast = Forecast()
    forecast.note(work(), 60.0)
    assert forecast.expect(other) == other.limit / OVERSTATED


def test_the_newest_runs_count_most_when_somebody_changes_their_work():
    forecast = Forecast()
    for _ in range(20):
        forecast.note(work(limit=None), 60.0)
    for _ in range(4):
        forecast.note(work(limit=None), HOUR)
    assert forecast.expect(work(limit=None)) > HOUR / 2


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (work(expected=90.0), 90.0),
        (work(), 24 * HOUR / OVERSTATED),
        (work(limit=None), 4 * HOUR),
    ],
)
def test_the_best_that_is_known_is_expected_when_a_workload_waits(given, wanted):
    assert expected_run(given, 4 * HOUR) == wanted
