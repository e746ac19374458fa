"""Invented jobs: repeatable, as much as was asked for, and shaped like what was published."""

from __future__ import annotations

import statistics

import pytest

from trainyard.lib.errors import InvalidError
from trainyard.simulation.traces import DAY, HOUR, LIMITS, SHAPES, Room, generate, quantile

ROOM = Room(devices=1024, workspaces={"a": 3.0, "b": 1.0})

# Means as published, and how far an invented week on 1024 devices may be from them: long jobs are cut.
PUBLISHED_DEVICES = {"philly": 1.75, "helios": 3.72, "pai": 6.25}
PUBLISHED_MEDIAN = {"philly": 1560.0, "helios": 206.0, "pai": 1380.0}


@pytest.fixture(scope="module")
def traces():
    return {name: generate(shape, ROOM, days=7, load=0.9, seed=7) for name, shape in SHAPES.items()}


@pytest.mark.parametrize("name", SHAPES)
def test_jobs_are_the_same_when_the_seed_is(name):
    first, second, other = (generate(SHAPES[name], ROOM, days=2, load=0.5, seed=seed) for seed in (3, 3, 4))
    assert first == second != other


@pytest.mark.parametrize("load", [0.3, 0.9, 1.4])
def test_the_work_is_the_load_that_was_asked_for(load):
    jobs = generate(SHAPES["helios"], ROOM, days=14, load=load, seed=1)
    assert sum(job.work for job in jobs) / (ROOM.devices * 14 * DAY) == pytest.approx(load, rel=0.05)


@pytest.mark.parametrize("name", SHAPES)
def test_sizes_and_running_times_are_as_published(traces, name):
    jobs = traces[name]
    assert statistics.mean(job.total_devices for job in jobs) == pytest.approx(
        PUBLISHED_DEVICES[name], rel=0.15
    )
    assert statistics.median(job.duration for job in jobs) == pytest.approx(PUBLISHED_MEDIAN[name], rel=0.25)
    assert statistics.mean(job.total_devices == 1 for job in jobs) > 0.5


def test_jobs_end_as_published(traces):
    for name, failed in (("philly", 0.172), ("helios", 0.155)):
        jobs = traces[name]
        assert statistics.mean(job.outcome == "failed" for job in jobs) == pytest.approx(failed, abs=0.02)
    assert any(job.failures for job in traces["philly"])
    assert not any(job.failures for job in traces["helios"])


def test_a_few_users_submit_most_when_the_shape_is_pais(traces):
    counts: dict[str, int] = {}
    for job in traces["pai"]:
        counts[job.user] = counts.get(job.user, 0) + job.replicas
    busiest = sorted(counts.values(), reverse=True)
    assert 0.6 < sum(busiest[: len(busiest) // 20]) / sum(busiest) < 0.9


@pytest.mark.parametrize("name", SHAPES)
def test_jobs_are_ordered_and_fit_and_announce_enough(traces, name):
    jobs = traces[name]
    assert [job.submitted for job in jobs] == sorted(job.submitted for job in jobs)
    assert len({job.id for job in jobs}) == len(jobs)
    assert {job.workspace for job in jobs} == {"a", "b"}
    for job in jobs:
        assert 0 <= job.submitted <= 7 * DAY + HOUR
        assert job.total_devices <= ROOM.devices // 8
        assert job.devices <= ROOM.node_devices
        assert job.limit is not None
        assert job.limit >= max(job.duration, *job.failures, 0.0)
        assert job.limit in LIMITS


def test_people_submit_by_day_and_overestimate(traces):
    jobs = traces["helios"]
    hours = [int(job.submitted / HOUR) % 24 for job in jobs]
    night = sum(hour in range(2, 6) for hour in hours)
    afternoon = sum(hour in range(14, 18) for hour in hours)
    assert afternoon > 3 * night
    assert statistics.median(job.limit / job.duration for job in jobs) > 2


def test_small_clusters_get_small_gangs_and_one_workspace():
    jobs = generate(SHAPES["pai"], Room(devices=16, node_devices=4), days=3, load=0.5, seed=1)
    assert max(job.total_devices for job in jobs) <= 2
    assert {job.workspace for job in jobs} == {"default"}


@pytest.mark.parametrize(("devices", "days", "load"), [(0, 1, 1), (8, 0, 1), (8, 1, 0), (8, -1, 1)])
def test_nothing_is_invented_when_there_is_no_room_or_time(devices, days, load):
    with pytest.raises(InvalidError) as caught:
        generate(SHAPES["philly"], Room(devices=devices), days=days, load=load, seed=1)
    assert caught.value.hint


def test_quantiles_meet_their_anchors():
    anchors = ((0.0, 1.0), (0.5, 10.0), (1.0, 1000.0))
    assert [round(quantile(anchors, share), 6) for share in (0.0, 0.5, 0.75, 1.0)] == [
        1.0,
        10.0,
        100.0,
        1000.0,
    ]
