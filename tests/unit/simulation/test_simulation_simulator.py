"""Simulated time, with the scheduler itself: who starts when, what is lost, and that nothing is given out twice."""

from __future__ import annotations

import pytest

from trainyard.scheduling.policies import POLICIES
from trainyard.scheduling.scheduler import Scheduler
from trainyard.simulation.cluster import parse_cluster
from trainyard.simulation.jobs import Job
from trainyard.simulation.result import job_rows, summarise
from trainyard.simulation.simulator import Simulation, common_large_shape, possible
from trainyard.simulation.traces import SHAPES, generate, room_in

TWO_NODES = '[[nodes]]\ncount = 2\ncpus = 64\nmemory = "256GiB"\ndevices = { A100 = 8 }\n'
SIDE_BY_SIDE = (
    "default",
    "fifo",
    "first-fit",
    "easy",
    "strict-fifo",
    "round-robin",
    "balance",
    "intelligent",
)


class Watched(Simulation):
    """Checks at every decision that no device is held twice, and that what is measured is what is held."""

    def _decide(self, now):
        super()._decide(now)
        held: set[tuple[str, int]] = set()
        for run in self._running.values():
            for slot in run.places:
                places = {(slot.node, device) for device in slot.devices}
                assert not places & held
                held |= places
        assert self.meter.busy.value == len(held) <= self.meter.capacity.value
        assert self.meter.queue.value == self._waiting


def play(text, jobs, policy="default", **options):
    cluster = parse_cluster(text, POLICIES)
    simulation = Watched(cluster, jobs, {**POLICIES, **cluster.policies}[policy], Scheduler, **options)
    simulation.play()
    return simulation


def job(name, submitted, duration, **fields):
    return Job(
        id=name, submitted=submitted, duration=duration, **{"devices": 8, "limit": 10 * duration, **fields}
    )


def by_id(simulation):
    return {run.job.id: run for run in simulation.runs}


def test_jobs_start_at_the_tick_after_they_come_and_end_on_time():
    simulation = play(TWO_NODES, [job("a", 0.4, 100), job("b", 0.6, 50), job("c", 3.5, 10)])
    runs = by_id(simulation)
    assert [(runs[name].first_start, runs[name].ended) for name in "abc"] == [
        (1.0, 101.0),
        (1.0, 51.0),
        (51.0, 61.0),
    ]
    assert runs["c"].wait == pytest.approx(47.5)
    assert simulation.now == 101.0


def test_events_of_one_moment_are_decided_upon_together():
    simulation = play(TWO_NODES, [job(f"j{n}", 10.5 + n / 100, 60, devices=1) for n in range(16)])
    assert simulation.cycles == 1
    assert simulation.admissions == 16


@pytest.mark.parametrize("policy", SIDE_BY_SIDE)
@pytest.mark.parametrize("trace", SHAPES)
def test_every_job_ends_and_nothing_is_given_out_twice(policy, trace):
    text = TWO_NODES.replace("count = 2", "count = 8")
    cluster = parse_cluster(text, POLICIES)
    jobs = generate(SHAPES[trace], room_in(cluster), days=0.5, load=0.9, seed=5)
    simulation = play(text, jobs, policy)
    result = summarise(simulation, 1.0)
    assert (result.unfinished, result.completed) == (0, len(jobs))
    assert all(
        run.ended >= run.job.submitted + min(run.job.duration, run.job.limit) - 1e-6
        for run in simulation.runs
    )
    assert 0 < result.utilisation <= 1
    assert 0 < result.fair_users <= 1


def test_the_same_seed_gives_the_same_figures():
    cluster = parse_cluster(TWO_NODES, POLICIES)
    jobs = generate(SHAPES["helios"], room_in(cluster), days=1, load=0.9, seed=5)
    first, second = (summarise(play(TWO_NODES, jobs), 1.0) for _ in range(2))
    assert first == second


def test_a_failed_attempt_is_tried_again_with_its_age():
    simulation = play(TWO_NODES, [job("a", 0, 100, failures=(30, 40), limit=1000)])
    (run,) = simulation.runs
    assert (run.broken, run.attempt, run.ended, run.outcome) == (2, 3, 170.0, "completed")


def test_a_job_is_stopped_when_it_reaches_its_limit():
    simulation = play(TWO_NODES, [job("a", 0, 100, limit=60)])
    (run,) = simulation.runs
    assert (run.ended, run.outcome) == (60.0, "stopped")


def test_an_elastic_job_runs_longer_when_it_has_fewer_replicas():
    jobs = [job("long", 0, 1000), job("elastic", 1, 100, replicas=2, minimum=1)]
    runs = by_id(play(TWO_NODES, jobs))
    assert runs["elastic"].first_start == 1.0
    assert runs["elastic"].ended == 201.0


def test_a_victim_loses_what_it_has_not_saved_and_waits_again():
    jobs = [
        job("cheap", 0, 1000, replicas=2, preemptible=True, priority=2, checkpoint=60),
        job("urgent", 300, 100, replicas=2, priority=9),
    ]
    runs = by_id(play(TWO_NODES, jobs))
    cheap, urgent = runs["cheap"], runs["urgent"]
    assert urgent.first_start == 330.0  # after the grace
    assert (cheap.preemptions, cheap.lost) == (1, 16 * 30)  # 330 s were done, 300 s saved
    assert cheap.ended == 430.0 + 700
    assert cheap.wait == pytest.approx(100)


def test_a_victim_loses_everything_when_it_never_saves():
    jobs = [
        job("cheap", 0, 1000, replicas=2, preemptible=True, priority=2),
        job("urgent", 300, 100, replicas=2, priority=9),
    ]
    cheap = by_id(play(TWO_NODES, jobs))["cheap"]
    assert (cheap.lost, cheap.ended) == (16 * 330, 430.0 + 1000)


def test_work_starts_elsewhere_when_its_node_is_lost():
    text = f'{TWO_NODES}[losses]\nevery = "2h"\nrepair = "10m"\n'
    jobs = [job(f"j{n}", n, 5000, checkpoint=600, limit=100_000) for n in range(6)]
    simulation = play(text, jobs, seed=3)
    result = summarise(simulation, 1.0)
    assert simulation.losses > 0
    assert (result.unfinished, result.preemptions) == (0, 0)
    assert result.lost > 0


def test_nodes_are_acquired_when_a_pool_can_grow_and_given_back_when_idle():
    text = (
        f'{TWO_NODES}[[pools]]\nname = "cloud"\nlimit = 2\nprice = 1.0\ndelay = "5m"\nidle = "10m"\n'
        'node = { cpus = 64, memory = "256GiB", devices = { A100 = 8 } }\n'
    )
    jobs = [job(f"j{n}", 0, 3600) for n in range(4)] + [job("late", 20_000, 60)]
    simulation = play(text, jobs)
    result = summarise(simulation, 1.0)
    assert (result.acquired, result.unfinished) == (2, 0)
    assert sorted(run.first_start for run in simulation.runs)[:4] == [0.0, 0.0, 300.0, 300.0]
    assert simulation.meter.capacity.value == 16  # both have been given back


def test_whoever_can_never_start_is_told_apart_before():
    cluster = parse_cluster(TWO_NODES, POLICIES)
    jobs = [
        job("fits", 0, 1, replicas=2),
        job("gang", 0, 1, replicas=3),
        job("wide", 0, 1, devices=9),
        job("type", 0, 1, device="NPU"),
        job("memory", 0, 1, memory=10**6),
        job("elastic", 0, 1, replicas=3, minimum=2),
    ]
    fine, never = possible(cluster, jobs)
    assert [each.id for each in fine] == ["fits", "elastic"]
    assert [each.id for each in never] == ["gang", "wide", "type", "memory"]


def test_it_ends_when_somebody_waits_for_ever():
    text = f'{TWO_NODES}[[workspaces]]\nname = "w"\nnominal = {{ A100 = 4 }}\nborrow = {{ A100 = 0 }}\n'
    simulation = play(text, [job("a", 0, 10, workspace="w")])
    assert summarise(simulation, 1.0).unfinished == 1
    assert job_rows(simulation)[0][-1] == "waiting"


def test_the_common_large_shape_is_the_most_frequent_gang():
    jobs = [
        job("a", 0, 1, replicas=2),
        job("b", 0, 1, replicas=2),
        job("c", 0, 1, replicas=4),
        job("d", 0, 1),
    ]
    assert common_large_shape(jobs) == (2, 8)
    assert common_large_shape([job("d", 0, 1)]) == (0, 1)


def test_nothing_happens_when_there_are_no_jobs():
    simulation = play(TWO_NODES, [])
    assert summarise(simulation, 1.0).wait.count == 0
