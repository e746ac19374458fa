"""What a machine of a pool costs by day, and how much of it jobs had; prices that change; pure."""

from __future__ import annotations

from dataclasses import replace

import pytest

from trainyard.server.records.pools import MachineRecord, Stage
from trainyard.server.usage.accounting import DAY, machine_days

BEGIN = 20000.0 * DAY + 1000
MACHINE = MachineRecord(
    name="cpu-x-0", pool="cpu", backend="aliyun", wanted_at=BEGIN - 5, costed_at=BEGIN, price=3.6, currency="CNY"
)  # fmt: skip


def parts(record, held, **more):
    return [
        (one.day, one.seconds, one.used_cost, one.idle_cost, one.starting_cost)
        for one in machine_days(record, held, **more)
    ]


def test_everything_is_starting_when_a_machine_never_joined():
    gone = replace(MACHINE, released_at=BEGIN + 1000)
    assert parts(gone, [], now=BEGIN + 5000) == [(20000, 1000, 0, 0, 1.0)]


def test_time_is_told_apart_when_jobs_overlap_and_one_began_before_the_machine_was_looked_at():
    joined = replace(MACHINE, joined_at=BEGIN + 300)
    held = [(BEGIN + 600, BEGIN + 800), (BEGIN + 290, BEGIN + 400), (BEGIN + 350, BEGIN + 500)]
    (day,) = parts(joined, held, now=BEGIN + 1000)
    assert day == (20000, 1000, pytest.approx(0.41), pytest.approx(0.30), pytest.approx(0.29))


def test_what_ran_before_or_after_does_not_count_when_it_held_longer_than_the_machine_was_there():
    joined = replace(MACHINE, joined_at=BEGIN, released_at=BEGIN + 100)
    assert parts(joined, [(BEGIN - 999, BEGIN + 999)], now=BEGIN + 5000) == [(20000, 100, 0.1, 0, 0)]


def test_days_add_up_to_the_cost_when_the_price_has_changed_over_midnight():
    midnight = 20001.0 * DAY
    rates = ((BEGIN + 3600, 7.2), (midnight, 1.8), (midnight + 900, 3.6))
    machine = replace(MACHINE, rates=rates, joined_at=BEGIN + 60)
    end = midnight + 1800
    found = machine_days(machine, [(BEGIN + 60, midnight + 900)], now=end)
    assert [one.day for one in found] == [20000, 20001]
    assert found[1].used_cost == pytest.approx(0.45)
    assert found[1].idle_cost == pytest.approx(0.9)
    assert sum(one.cost for one in found) == pytest.approx(machine.cost_at(end), abs=1e-5)
    assert sum(one.seconds for one in found) == pytest.approx(end - BEGIN)
    assert machine.price_now == 3.6


def test_only_later_days_are_written_when_the_first_is_given():
    later = machine_days(MACHINE, [], now=BEGIN + 2 * DAY, first_day=20002)
    assert [(one.day, one.seconds) for one in later] == [(20002, 1000.0)]


def test_nothing_is_told_when_it_was_not_bought_or_the_clock_went_back():
    assert machine_days(replace(MACHINE, costed_at=None), [], now=BEGIN + 10) == []
    assert machine_days(MACHINE, [], now=BEGIN - 10) == []


def test_a_rate_counts_from_its_moment_when_it_is_older_than_the_purchase():
    machine = replace(MACHINE, rates=((BEGIN - 50, 36.0), (BEGIN + 100, 3.6)))
    assert machine.cost_at(BEGIN + 200) == pytest.approx(1.0 + 0.1)


def test_the_account_is_closed_when_it_is_released():
    done = replace(MACHINE, rates=((BEGIN + 1800, 7.2),)).released(BEGIN + 3600, "idle")
    assert (done.state, done.cost) == (Stage.RELEASED, pytest.approx(5.4))
    assert done.cost_at(BEGIN + 99999) == done.cost
    assert done.stretches(BEGIN + 99999)[-1][1] == BEGIN + 3600
