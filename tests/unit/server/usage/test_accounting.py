"""What jobs cost, from their tasks."""

from __future__ import annotations

import pytest

from trainyard.server.records.tasks import TaskRecord
from trainyard.server.records.workloads import WorkloadRecord
from trainyard.server.usage.accounting import DAY, Prices, days_of, month_of, uses_of
from trainyard.spec.workload import RoleSpec, State, WorkloadSpec

PRICES = Prices(devices={"V100": 10.0}, cpu=0.5, memory=0.1)


def job(state: State = State.SUCCEEDED, *, retain: int = 0, **more: object) -> WorkloadRecord:
    roles = (RoleSpec(cpu=2, memory_mib=1024, device="V100", devices=4),)
    spec = WorkloadSpec(name="x", command="true", roles=roles, retain_seconds=retain)
    return WorkloadRecord(
        id="dlc1", name="x", kind="job", workspace_id="ws1", user_id="u1", spec=spec, priority=5, state=state,
        submitted_at=0.0, **{"attempt": 1, **more},
    )  # fmt: skip


def task(begin: float | None, end: float | None, *, attempt: int = 1, name: str = "worker-0") -> TaskRecord:
    return TaskRecord(
        workload_id="dlc1", attempt=attempt, name=name, role="worker", number=0, rank=0, node="n",
        devices=(0, 1, 2, 3), started_at=begin, ended_at=end,
    )  # fmt: skip


def test_an_hour_of_four_devices_costs_as_much_when_it_is_over():
    (day,) = uses_of(job(ended_at=3600.0), [task(0.0, 3600.0)], now=9e9, prices=PRICES)
    assert (day.device_type, day.device_seconds, day.cpu_seconds) == ("V100", 4 * 3600, 2 * 3600)
    assert day.cost == pytest.approx(4 * 10 + 2 * 0.5 + 1 * 0.1)


def test_midnight_splits_a_job_when_it_runs_over_it():
    days = uses_of(job(ended_at=DAY + 1800.0), [task(DAY - 3600.0, DAY + 1800.0)], now=9e9, prices=PRICES)
    assert [(one.day, one.device_seconds) for one in days] == [(0, 4 * 3600.0), (1, 4 * 1800.0)]


def test_it_is_counted_until_now_when_it_still_runs():
    (day,) = uses_of(job(State.RUNNING), [task(0.0, None)], now=100.0, prices=PRICES)
    assert day.device_seconds == 400.0


def test_all_attempts_count_when_it_was_tried_again():
    tasks = [task(0.0, 50.0), task(100.0, 200.0, attempt=2)]
    (day,) = uses_of(job(attempt=2, ended_at=200.0), tasks, now=9e9, prices=PRICES)
    assert day.device_seconds == 4 * 150.0


def test_places_kept_for_a_look_count_when_the_program_has_ended():
    kept = job(State.RETAINED, retain=3600)
    (day,) = uses_of(kept, [task(0.0, 50.0)], now=250.0, prices=PRICES)
    assert day.device_seconds == 4 * 250.0
    (day,) = uses_of(job(retain=3600, ended_at=300.0), [task(0.0, 50.0)], now=9e9, prices=PRICES)
    assert day.device_seconds == 4 * 300.0


@pytest.mark.parametrize("begin", [None])
def test_nothing_is_counted_when_it_never_ran(begin):
    assert uses_of(job(State.CANCELLED, ended_at=5.0), [task(begin, None)], now=9.0, prices=PRICES) == []


def test_an_end_that_was_never_heard_of_costs_nothing_when_it_was_started_again():
    tasks = [task(0.0, None), task(100.0, 200.0, attempt=2)]
    days = uses_of(job(State.RUNNING, attempt=2), tasks, now=1e6, prices=PRICES)
    assert sum(one.device_seconds for one in days) == 4 * 100.0


def test_idle_time_is_told_when_devices_did_nothing():
    (day,) = uses_of(job(ended_at=100.0), [task(0.0, 100.0)], now=9e9, prices=PRICES, idle={0: 150.0})
    assert day.idle_device_seconds == 150.0
    (day,) = uses_of(job(ended_at=100.0), [task(0.0, 100.0)], now=9e9, prices=PRICES, idle={0: 1e9})
    assert day.idle_device_seconds == 400.0  # not more than it had


def test_the_type_is_the_nodes_when_the_job_names_none():
    record = job(State.RUNNING)
    spec = WorkloadSpec(name="x", command="true", roles=(RoleSpec(devices=4),))
    (day,) = uses_of(
        WorkloadRecord(**{name: getattr(record, name) for name in record.__slots__} | {"spec": spec}),
        [task(0.0, None)],
        now=10.0,
        prices=PRICES,
        device_of=lambda node: {"n": "V100"}[node],
    )
    assert (day.device_type, day.cost > 0) == ("V100", True)


@pytest.mark.parametrize(("month", "count"), [(202602, 28), (202412, 31), (202402, 29)])
def test_months_have_their_days_when_they_are_counted(month, count):
    days = days_of(month)
    assert len(days) == count
    assert {month_of(day * DAY + 1.0) for day in days} == {month}


def test_a_month_is_refused_when_there_is_none_such():
    with pytest.raises(ValueError, match="month"):
        days_of(202613)
