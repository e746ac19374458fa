"""The scheduler against slower judges: itself from a fresh snapshot, and every placement and every set of victims tried."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import combinations, permutations

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from scheduling_oracle import amounts, fits_anywhere
from scheduling_strategies import A100, EVENTS, happen, live, requests, snapshots
from scheduling_world import World

from trainyard.scheduling import Admit, Code, Holding, Preempt, Scheduler, Wait, schedule
from trainyard.scheduling.preemption import EXACT

pytestmark = pytest.mark.slow  # every test lives through dozens of small worlds, and tries everything
# The same examples in every run; a longer search is a matter of these two numbers.
QUICK = settings(
    max_examples=25,
    derandomize=True,
    deadline=None,
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
FEW = st.lists(requests(), min_size=4, max_size=6)
ALIKE = st.lists(requests(device=A100), min_size=4, max_size=6)
NO_ROOM = {Code.NODE_FIT, Code.GANG, Code.TOPOLOGY, Code.NEVER_FITS}


def steady(snapshot):
    """Without guesses about ends, which a scheduler with a memory makes at other moments than a fresh one."""
    policy = {"assumed_run": 1e6, "forecast": 0.0}
    known = {key: value for key, value in policy.items() if hasattr(snapshot.policy, key)}
    return replace(snapshot, policy=replace(snapshot.policy, **known))


@QUICK
@given(snapshots(), EVENTS, st.lists(requests(), min_size=6, max_size=14))
def test_a_scheduler_with_a_memory_admits_what_a_fresh_one_would(snapshot, events, arrivals):
    world = World(steady(snapshot))
    left = [replace(one, limit=None) for one in arrivals]
    for what, number in events:
        happen(world, what, number, left)
        shown = world.snapshot(world.now + 1)
        fresh = [one.id for one in schedule(shown, world.now + 1) if isinstance(one, Admit)]
        cycle = world.cycle(1)
        assert bool(cycle.admits) == bool(fresh), f"{cycle.admits} and {fresh} at {world.now}"


@QUICK
@given(snapshots(), EVENTS, st.lists(requests(), min_size=6, max_size=14))
def test_nothing_more_is_admitted_when_a_second_cycle_follows_at_once(snapshot, events, arrivals):
    world = live(snapshot, events, arrivals)
    while world.cycle(0).preempts:  # what is called away frees quota at once
        pass
    assert not world.cycle(0).admits


@QUICK
@given(snapshots(), EVENTS, FEW)
def test_no_placement_exists_when_a_gang_is_said_not_to_fit(snapshot, events, arrivals):
    world = live(snapshot, events, arrivals)
    shown = world.snapshot()
    decisions = schedule(shown, world.now)
    if world.claims or any(isinstance(one, Preempt) for one in decisions):
        return  # what is kept for a claim is neither free nor held
    held = [(one.request, one.slots) for one in shown.running]
    held += [(world.waiting[one.id], one.slots) for one in decisions if isinstance(one, Admit)]
    for one in decisions:
        if isinstance(one, Wait) and one.reason.code in NO_ROOM:
            request = world.waiting[one.id]
            assert not fits_anywhere(shown.nodes, held, request), f"{one} fits"
            if one.reason.code is Code.NEVER_FITS:
                healthy = [replace(node, unhealthy={}) for node in shown.nodes]
                assert not fits_anywhere(healthy, (), request), f"{one} fits an empty cluster"


@QUICK
@given(snapshots(), EVENTS, FEW)
def test_a_placement_exists_when_a_gang_is_admitted(snapshot, events, arrivals):
    world = live(snapshot, events, arrivals)
    shown = world.snapshot()
    held = [(one.request, one.slots) for one in shown.running]
    for one in schedule(shown, world.now):
        if isinstance(one, Admit):
            assert fits_anywhere(shown.nodes, held, world.waiting[one.id])
            held.append((world.waiting[one.id], one.slots))


def lawful(world, request, victims):
    """Whether these may go, one after the other in some order."""
    return any(_in_turn(world, request, order) for order in permutations(victims))


def _in_turn(world, request, order):
    tree, needs = world.tree(), amounts(request)
    for victim in order:
        theirs = victim.request
        if theirs.workspace == request.workspace:
            if not (theirs.preemptible and theirs.priority < request.priority):
                return False
        else:
            ours, its = tree.branches(request.workspace, theirs.workspace)
            nominal, used = tree.nominal(ours), tree.used.get(ours, Counter())
            named = [key for key in needs if key in nominal]
            wants = "A100" if "A100" in needs else ("cpu" if "cpu" in needs else "memory")
            inside = wants in nominal and all(used[key] + needs[key] <= nominal[key] for key in named)
            yields = theirs.preemptible and not request.preemptible
            if not tree.over(its, needs) or not (inside or yields):
                return False
        tree.remove(theirs, amounts(theirs, victim.slots))
    return True


def starts_without(world, request, victims):
    """Whether the gang has quota and room with these gone."""
    gone = {one.request.id for one in victims}
    tree = world.tree()
    for one in victims:
        tree.remove(one.request, amounts(one.request, one.slots))
    tree.add(request, amounts(request))
    held = [(one.request, one.slots) for name, one in world.running.items() if name not in gone]
    return not tree.broken() and fits_anywhere(world.nodes.values(), held, request)


@QUICK
@given(snapshots(most_nodes=3, device=A100), EVENTS, st.lists(requests(device=A100), min_size=5, max_size=8))
def test_victims_are_the_fewest_and_each_is_needed_when_somebody_has_to_go(snapshot, events, arrivals):
    world = World(snapshot)
    left = list(arrivals)
    for what, number in events:
        happen(world, what, number, left)
        if not world.claims and not world.closed:
            judge_victims(world)
        world.cycle(1.0 + number % 7)


def judge_victims(world):
    decisions = schedule(world.snapshot(), world.now)
    preempts = [one for one in decisions if isinstance(one, Preempt)]
    if not preempts or len(world.running) > EXACT:
        return
    books = World(world.start, world.now)
    books.nodes, books.waiting, books.running = world.nodes, dict(world.waiting), dict(world.running)
    for one in decisions:
        if isinstance(one, Admit):
            request = books.waiting.pop(one.id)
            books.running[one.id] = Holding(
                request=request, started=world.now, slots=one.slots, passed=one.passed
            )
    if books.tree().broken():
        return
    request = books.waiting[preempts[0].for_id]
    victims = [books.running[one.id] for one in preempts if one.for_id == request.id]
    assert starts_without(books, request, victims), f"{request.id} would still not fit"
    for one in victims:
        others = [other for other in victims if other is not one]
        assert not starts_without(books, request, others), f"{one.request.id} went in vain"
    candidates = [one for one in books.running.values() if one.leaving is None]
    for size in range(len(victims)):
        for fewer in combinations(candidates, size):
            if lawful(books, request, fewer):
                assert not starts_without(books, request, fewer), f"{fewer} would have been enough"


@QUICK
@given(snapshots(), EVENTS, st.lists(requests(), min_size=6, max_size=10))
def test_a_snapshot_with_decisions_applied_is_accepted_again(snapshot, events, arrivals):
    world = live(snapshot, events, arrivals)
    for _ in range(3):
        world.cycle(1)
        again = Scheduler(world.snapshot(), world.now)
        assert set(again.running) == set(world.running)
        assert {*again.entries, *again.claims} == set(world.waiting)
        assert schedule(world.snapshot(), world.now) == schedule(world.snapshot(), world.now)
