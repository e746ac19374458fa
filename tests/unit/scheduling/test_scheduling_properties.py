"""What holds in every life of a small cluster: exact room, quotas, whole gangs, lawful victims, one reason each."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from scheduling_strategies import A100, EVENTS, live, requests, snapshots

from trainyard.scheduling import Admit, Wait, schedule

pytestmark = pytest.mark.slow  # every test lives through dozens of small worlds
# The same examples in every run; a longer search is a matter of these two numbers.
QUICK = settings(
    max_examples=25,
    derandomize=True,
    deadline=None,
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
ARRIVALS = st.lists(requests(), min_size=6, max_size=16)
ALIKE = st.lists(requests(device=A100), min_size=6, max_size=16)


@QUICK
@given(snapshots(), EVENTS, ARRIVALS)
def test_every_rule_holds_when_anything_happens(snapshot, events, arrivals):
    live(snapshot, events, arrivals)  # the world checks itself after every cycle


@QUICK
@given(snapshots(device=A100), EVENTS, ALIKE)
def test_every_rule_holds_when_all_want_the_same_devices(snapshot, events, arrivals):
    live(snapshot, events, arrivals)


@QUICK
@given(snapshots(device=A100), EVENTS, ALIKE)
def test_every_rule_holds_when_elastic_ones_grow_whenever_they_can(snapshot, events, arrivals):
    world = live(snapshot, events, [_elastic(one) for one in arrivals], _grow)
    decisions = schedule(world.snapshot(), world.now)
    told = [one.id for one in decisions if isinstance(one, Admit | Wait)]
    assert sorted(told) == sorted(world.waiting), "another scheduler goes on from there"


def _elastic(request):
    roles = tuple(replace(role, replicas=role.replicas + 2, minimum=1) for role in request.roles)
    return replace(request, roles=roles)


def _grow(world):
    for name in list(world.running):
        world.enlarge(name)


@QUICK
@given(snapshots(), EVENTS, ARRIVALS)
def test_decisions_are_the_same_when_the_same_happens_again(snapshot, events, arrivals):
    assert live(snapshot, events, arrivals).log == live(snapshot, events, arrivals).log


@QUICK
@given(snapshots(), EVENTS, ARRIVALS)
def test_everybody_is_told_one_thing_when_a_snapshot_is_decided(snapshot, events, arrivals):
    world = live(snapshot, events, arrivals)
    decisions = schedule(world.snapshot(), world.now)
    told = [one.id for one in decisions if isinstance(one, Admit | Wait)]
    assert sorted(told) == sorted(world.waiting)


@QUICK
@given(snapshots(device=A100), EVENTS, ALIKE)
def test_preemption_comes_to_rest_when_nothing_new_arrives(snapshot, events, arrivals):
    world = live(snapshot, events, arrivals)
    for _ in range(40):
        for name in world.leaving():
            world.end(name)
        cycle = world.cycle(1.0)
        if not cycle.admits and not cycle.preempts and not world.leaving():
            return
    raise AssertionError(f"still going after 40 rounds: {world.log[-20:]}")
