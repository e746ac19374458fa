"""The bars of `jobs top` stand for the time that their column says."""

from __future__ import annotations

from types import SimpleNamespace

from trainyard.cli.jobs.job_top import _past, sparkline, uses_of
from trainyard.client.schemas import MetricSeries


def series(values, *, step=10):
    points = tuple((1000 + step * number, value) for number, value in enumerate(values))
    return MetricSeries(
        metric="cpu", unit="cores", task="t", attempt=1, device=None, of="task", points=points
    )


def test_twenty_bars_show_ten_minutes_when_there_is_a_reading_every_ten_seconds():
    quiet, busy = [0.0] * 30, [1.0] * 30
    past = _past([series(quiet + busy)])
    assert len(past) == 20
    assert sparkline(past, 1.0, "_#") == "_" * 10 + "#" * 10


def test_what_is_older_is_left_out_when_a_job_has_run_for_longer():
    past = _past([series([1.0] * 300 + [0.0] * 60)])
    assert sparkline(past, 1.0, "_#") == "_" * 20


def test_there_are_as_many_bars_as_readings_when_there_are_few():
    assert _past([series([0.5, 1.0], step=60)]) == (0.5, 1.0)
    assert _past([]) == ()


def test_devices_are_shown_by_their_mean_when_there_are_several():
    assert _past([series([0.0]), series([1.0])]) == (0.5,)


def test_a_device_that_does_nothing_is_seen_when_each_is_asked_for():
    def of_device(metric, index, value):
        return MetricSeries(
            metric=metric, unit="", task="t", attempt=1, device=index, of="task", points=((0, value),)
        )

    given = [of_device("gpu", 0, 90.0), of_device("gpu", 1, 0.0), of_device("gpu_memory", 1, 5.0)]
    job = SimpleNamespace(attempt=1, cpu=1.0, replicas=1)
    answer = SimpleNamespace(series=given)
    (whole,) = uses_of(job, answer)
    assert whole.now["gpu"] == 45.0
    assert [(one.task, one.now, one.past) for one in uses_of(job, answer, devices=True)][1:] == [
        ("t #0", {"gpu": 90.0}, (90.0,)),
        ("t #1", {"gpu": 0.0, "gpu_memory": 5.0}, (0.0,)),
    ]
