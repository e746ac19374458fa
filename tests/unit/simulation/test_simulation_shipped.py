"""What is claimed of the default policy, on the traces that ship: each at its documented cluster, length, load and seed."""

from __future__ import annotations

from importlib.resources import files

import pytest

from trainyard.scheduling import POLICIES, Scheduler
from trainyard.simulation.cluster import parse_cluster
from trainyard.simulation.result import summarise
from trainyard.simulation.shipped import CLUSTER, CLUSTERS, DAYS, LOAD, SEED, TRACES
from trainyard.simulation.simulator import Simulation, possible
from trainyard.simulation.traces import SHAPES, generate, room_in


def cluster_of(name):
    text = (files("trainyard.simulation") / "data" / f"{name}.toml").read_text(encoding="utf-8")
    return parse_cluster(text, POLICIES, name=name)


def test_every_trace_and_cluster_is_there_when_it_is_named():
    assert tuple(SHAPES) == TRACES
    assert [cluster_of(name).name for name in CLUSTERS] == list(CLUSTERS)


@pytest.mark.slow  # a week of thousands of jobs under three policies: seconds each, more on a busy machine
@pytest.mark.timeout(600)
@pytest.mark.parametrize("trace", TRACES)
def test_large_gangs_wait_a_third_and_nobody_pays_when_the_default_decides(trace):
    cluster = cluster_of(CLUSTER)
    jobs, never = possible(
        cluster, generate(SHAPES[trace], room_in(cluster), days=DAYS, load=LOAD, seed=SEED)
    )
    assert not never
    results = {}
    for name in ("default", "first-fit", "easy"):
        simulation = Simulation(cluster, jobs, POLICIES[name], Scheduler, seed=SEED)
        simulation.play()
        results[name] = summarise(simulation, 0)
    ours, theirs = results["default"], results["first-fit"]
    assert 3 * ours.wait_large.p95 <= theirs.wait_large.p95
    assert ours.wait.mean <= theirs.wait.mean
    assert ours.utilisation >= max(result.utilisation for result in results.values()) - 0.02
