"""Nobody waits for ever: big gangs against streams of small work, low priorities against high ones, equal hash seeds."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduling_world import World

from trainyard.lib.errors import InvalidError
from trainyard.scheduling import (
    POLICIES,
    Holding,
    Node,
    Policy,
    Quota,
    Request,
    Role,
    Scheduler,
    Slot,
    Snapshot,
)
from trainyard.scheduling.model import NodeState

A100 = "A100"


def cluster(count, **more):
    return tuple(
        Node(name=f"n{at}", cpu=64000, memory=1000, devices={A100: 4}, **more) for at in range(count)
    )


def plain(**numbers):
    """A policy in which time is time: nobody goes first for being short, and nothing is guessed."""
    asked = {"short_first": False, "slowest_ageing": 0.0, "gang_ageing": 0.0, "patient_runs": 0.0, **numbers}
    return Policy(**{key: value for key, value in asked.items() if key in Policy.__slots__})


def work(name, replicas, devices, **more):
    return Request(id=name, roles=(Role(replicas=replicas, devices=devices, device=A100),), **more)


def starts_against_a_stream(world, big, small, rounds):
    """After how many rounds the big one starts, while small ones come and end all the time; None: it does not."""
    ends: list[tuple[float, str]] = []
    for at in range(rounds):
        for one in range(4):
            world.submit(replace(small, id=f"s{at}-{one}", submitted=world.now))
        if at == 5:
            world.submit(replace(big, submitted=world.now))
        for end, name in list(ends):
            if end <= world.now and name in world.running:
                world.end(name)
                ends.remove((end, name))
        cycle = world.cycle(10.0)
        ends += [(world.now + small.limit, one.id) for one in cycle.admits]
        if big.id in world.running:
            return at
    return None


@pytest.mark.slow  # a stream of small work against a big gang, a few times over
@settings(max_examples=6, deadline=None, derandomize=True)
@given(
    st.integers(2, 4), st.sampled_from([1, 2]), st.sampled_from([35.0, 100.0]), st.sampled_from(["x", "y"])
)
def test_a_big_gang_starts_when_small_work_never_ends(count, devices, limit, workspace):
    policy = plain(ageing=0.0, fair_share=workspace == "y", preemption=False)
    world = World(Snapshot(nodes=cluster(count), policy=policy))
    big = work("big", count, 4, workspace="x", limit=1000.0)
    small = work("small", 1, devices, workspace=workspace, limit=limit)
    assert starts_against_a_stream(world, big, small, 150) is not None


def test_a_big_gang_of_several_roles_starts_when_small_work_never_ends():
    world = World(Snapshot(nodes=cluster(3), policy=plain(ageing=0.0)))
    roles = (
        Role(name="chief", devices=3, device=A100),
        Role(name="worker", replicas=2, devices=4, device=A100),
    )
    big = Request(id="big", roles=roles, limit=1000.0)
    assert starts_against_a_stream(world, big, work("small", 1, 1, limit=100.0), 60) is not None


def test_a_gang_under_one_switch_starts_when_small_work_never_ends():
    nodes = tuple(replace(node, topology=(f"s{at % 2}",)) for at, node in enumerate(cluster(4)))
    world = World(Snapshot(nodes=nodes, policy=plain(ageing=0.0)))
    big = work("big", 2, 4, limit=1000.0, same_switch=True)
    assert starts_against_a_stream(world, big, work("small", 1, 1, limit=100.0), 60) is not None


def test_a_big_gang_starts_when_one_ahead_of_it_never_can():
    world = World(Snapshot(nodes=cluster(3), policy=plain(ageing=0.0)))
    world.submit(work("never", 4, 4, priority=9))
    assert starts_against_a_stream(world, work("big", 3, 4), work("small", 1, 1, limit=100.0), 60) is not None
    assert "never" in world.waiting


def test_a_big_gang_starts_when_short_ones_go_first_but_patience_ends():
    world = World(
        Snapshot(
            nodes=cluster(3), policy=plain(ageing=0.0, short_first=True, patience=100.0, gang_patience=100.0)
        )
    )
    assert starts_against_a_stream(world, work("big", 3, 4), work("small", 1, 1, limit=100.0), 90) is not None


def test_a_big_gang_starves_when_nothing_is_kept_for_it():
    # The rule that the default is compared with: it shows that the tests above could fail.
    world = World(Snapshot(nodes=cluster(3), policy=POLICIES["first-fit"]))
    assert starts_against_a_stream(world, work("big", 3, 4), work("small", 1, 1, limit=35.0), 60) is None


@pytest.mark.parametrize("ageing", [50.0, 0.0])
def test_a_low_priority_starts_only_with_age_when_high_ones_never_end(ageing):
    world = World(Snapshot(nodes=cluster(1), policy=plain(ageing=ageing, fair_share=False)))
    low = work("low", 1, 4, priority=1, limit=10.0)
    started = starts_against_a_stream(world, low, work("high", 1, 4, priority=8, limit=20.0), 120)
    assert (started is not None) == (ageing > 0)


def test_the_guarantee_is_reached_when_another_workspace_has_everything():
    quotas = (Quota(name="x", nominal={A100: 8}), Quota(name="y", nominal={A100: 8}))
    world = World(Snapshot(nodes=cluster(4), quotas=quotas))
    for at in range(16):
        world.submit(work(f"y{at}", 1, 1, workspace="y"))
    world.cycle()
    for at in range(8):
        world.submit(work(f"x{at}", 1, 1, workspace="x", submitted=world.now))
    for _ in range(20):
        world.cycle()
        for name in world.leaving():
            world.end(name)
    held = [one.request.workspace for one in world.running.values()]
    assert (held.count("x"), held.count("y")) == (8, 8)
    assert world.preempts == 8  # not one too many


def test_two_workspaces_do_not_take_from_each_other_in_turn():
    quotas = (Quota(name="x", nominal={A100: 2}), Quota(name="y", nominal={A100: 2}))
    world = World(Snapshot(nodes=cluster(1), quotas=quotas))
    for name in ("x", "y"):
        for at in range(4):
            world.submit(work(f"{name}{at}", 1, 1, workspace=name, preemptible=at % 2 == 0, priority=at + 1))
    for _ in range(30):
        world.cycle()
        for name in world.leaving():
            world.end(name)
    assert world.preempts <= 4
    assert {one.request.workspace for one in world.running.values()} == {"x", "y"}


def test_a_device_is_not_given_twice_when_it_was_bad_for_a_while():
    world = World(Snapshot(nodes=cluster(1)))
    world.submit(work("a", 1, 2))
    world.cycle()
    [node] = world.nodes.values()
    world.change(replace(node, unhealthy={A100: frozenset({0})}))
    world.change(node)
    world.submit(work("b", 1, 2))
    world.submit(work("c", 1, 1))
    world.cycle()  # checks that no device is given twice
    assert set(world.running) == {"a", "b"}
    world.change(replace(node, unhealthy={A100: frozenset({1})}))
    world.end("a")
    world.cycle()
    assert world.running["c"].slots[0].devices == (0,)


def test_what_waits_is_looked_at_again_when_whoever_held_room_is_gone():
    coming = replace(cluster(2)[1], state=NodeState.COMING)
    world = World(Snapshot(nodes=(*cluster(1), coming)))
    world.submit(work("gang", 2, 4, priority=9))
    world.submit(work("small", 1, 4))
    world.cycle()
    assert set(world.waiting) == {"gang", "small"}  # the gang waits for the node that is coming
    world.withdraw("gang")
    world.cycle()
    assert set(world.running) == {"small"}


def test_an_estimate_moves_on_when_a_workload_runs_past_it():
    scheduler = Scheduler(Snapshot(nodes=cluster(1), policy=plain(assumed_run=100.0)))
    scheduler.submit(work("a", 1, 4))
    scheduler.cycle(0.0)
    scheduler.submit(work("b", 1, 4))
    starts = []
    for now in (10.0, 150.0, 250.0):
        scheduler.cycle(now)
        starts += [one.start for one in scheduler.reservations]
    assert starts == [100.0, 200.0, 400.0]


LIFE = """
from hypothesis import HealthCheck, Phase, given, settings, strategies as st
from scheduling_strategies import EVENTS, live, requests, snapshots

@settings(max_examples=25, deadline=None, derandomize=True, database=None, phases=[Phase.generate],
          suppress_health_check=list(HealthCheck))
@given(snapshots(), EVENTS, st.lists(requests(), min_size=8, max_size=14))
def run(snapshot, events, arrivals):
    print(live(snapshot, events, arrivals).log)

run()
"""


@pytest.mark.slow  # two Python processes that live through many small worlds
def test_decisions_do_not_depend_on_the_seed_of_hashes():
    texts = set()
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(__file__).parent)}
        done = subprocess.run(
            [sys.executable, "-c", LIFE],
            capture_output=True,
            text=True,
            env=environment,
            check=True,
            timeout=60,
        )
        texts.add(done.stdout)
    assert len(texts) == 1
    assert "admit" in texts.pop()


@pytest.mark.parametrize("minimum", [-1, 3])
def test_a_minimum_is_refused_when_it_is_outside_the_replicas(minimum):
    scheduler = Scheduler(Snapshot(nodes=cluster(1)))
    role = Role(name="ps", replicas=2, minimum=minimum)
    with pytest.raises(InvalidError, match=f"'ps' of workload 'a' has a minimum of {minimum}") as caught:
        scheduler.submit(Request(id="a", roles=(role,)))
    assert caught.value.hint == "Give a minimum from 0 to 2."
    assert not scheduler.entries


def test_room_is_kept_for_the_next_gang_when_all_of_it_is_promised_to_another_first():
    low = Request(
        id="low", roles=(Role(devices=4, device=A100),), priority=1, preemptible=True, workspace="x"
    )
    held = Holding(request=low, started=0.0, slots=(Slot("worker", "n1", (0, 1, 2, 3)),))
    scheduler = Scheduler(Snapshot(nodes=cluster(2), running=(held,)), 0.0)
    scheduler.submit(work("high", 2, 4, priority=9, workspace="x", limit=100.0))
    assert [one.id for one in scheduler.cycle(1.0).preempts] == ["low"]
    scheduler.submit(work("next", 2, 4, workspace="x", submitted=2.0, limit=50.0))
    scheduler.cycle(2.0)
    assert [one.id for one in scheduler.reservations] == ["next"]
    scheduler.end("low", 3.0)
    assert [one.id for one in scheduler.cycle(3.0).admits] == ["high"]
    scheduler.end("high", 103.0)
    assert [one.id for one in scheduler.cycle(103.0).admits] == ["next"]
