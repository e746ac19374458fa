"""What happens to who waits when the cluster changes under it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from trainyard.scheduling import Holding, Node, Pool, Quota, Request, Role, Scheduler, Slot, Snapshot

NODE = Node(name="a", cpu=4000, memory=1000)


def waiting(scheduler: Scheduler, **role: object) -> list[str]:
    request = Request(id="j", workspace="w", user="u", roles=(Role(name="r", cpu=100, **role),))
    scheduler.submit(request, now=0.0)
    return [admit.id for admit in scheduler.cycle(0.0).admits]


def test_who_names_no_type_starts_when_devices_come_later():
    scheduler = Scheduler(Snapshot(nodes=(NODE,)), 0.0)
    assert waiting(scheduler, devices=1) == []
    scheduler.change_node(replace(NODE, devices={"V100": 2}))
    assert [admit.id for admit in scheduler.cycle(1.0).admits] == ["j"]


V100 = Node(name="v", cpu=8000, memory=1000, devices={"V100": 2})
A100 = Node(name="x", cpu=8000, memory=1000, devices={"A100": 4})


def request(name, **role):
    return Request(id=name, roles=(Role(cpu=100, **role),))


def places(cycle):
    return {admit.id: {slot.node for slot in admit.slots} for admit in cycle.admits}


def test_who_names_no_type_has_what_there_is_most_of_when_several_types_come():
    scheduler = Scheduler(Snapshot(nodes=(NODE,)), 0.0)
    assert waiting(scheduler, devices=1) == []
    scheduler.add_node(V100)
    scheduler.add_node(A100)
    assert places(scheduler.cycle(1.0)) == {"j": {"x"}}


def test_who_waits_and_names_no_type_is_looked_at_again_when_a_second_type_joins():
    scheduler = Scheduler(Snapshot(nodes=(V100,), waiting=(request("first", devices=2),)), 0.0)
    assert places(scheduler.cycle(0.0)) == {"first": {"v"}}
    scheduler.submit(request("second", devices=2), now=1.0)
    scheduler.submit(request("large", devices=4), now=1.0)
    assert places(scheduler.cycle(1.0)) == {}
    scheduler.add_node(A100)
    assert places(scheduler.cycle(2.0)) == {"second": {"x"}}
    scheduler.end("second", 3.0)
    assert places(scheduler.cycle(3.0)) == {"large": {"x"}}, "no other type has so many on a node"


def test_who_names_no_type_has_one_of_nodes_that_it_may_use_when_there_are_several():
    named = request("named", devices=1, nodes=frozenset({"v"}))
    labelled = request("labelled", devices=1, selector=(("disk", "fast"),))
    fast = replace(V100, name="f", labels={"disk": "fast"})
    scheduler = Scheduler(Snapshot(nodes=(V100, A100, fast), waiting=(named, labelled)), 0.0)
    assert places(scheduler.cycle(0.0)) == {"named": {"v"}, "labelled": {"f"}}


def test_who_names_no_type_has_the_first_of_a_node_when_that_has_several():
    """A slot says which devices, not of which type: whoever starts it takes the node's first."""
    mixed = Node(name="m", cpu=8000, memory=1000, devices={"T4": 1, "A100": 4})
    scheduler = Scheduler(Snapshot(nodes=(mixed, A100), waiting=(request("j", devices=2),)), 0.0)
    assert places(scheduler.cycle(0.0)) == {"j": {"x"}}
    only = Scheduler(Snapshot(nodes=(mixed,), waiting=(request("j", devices=2),)), 0.0)
    assert places(only.cycle(0.0)) == {}


@pytest.mark.parametrize("order", [(V100, A100), (A100, V100)], ids=["before", "after"])
def test_devices_stay_with_who_named_no_type_when_the_leader_changes_after_a_second_type_joined(order):
    running = Holding(request=request("old", devices=2), started=0.0, slots=(Slot("worker", "v", (0, 1)),))
    waits = request("new", devices=1, device="V100")
    scheduler = Scheduler(Snapshot(nodes=order, running=(running,), waiting=(waits,)), 1.0)
    assert places(scheduler.cycle(1.0)) == {}, "they are in use"
    scheduler.end("old", 2.0)
    assert places(scheduler.cycle(2.0)) == {"new": {"v"}}


@pytest.mark.parametrize("device", ["", "V100"])
def test_a_leader_begins_when_what_runs_holds_devices_that_its_node_has_lost(device):
    bare = replace(V100, devices={})
    holder = request("old", devices=2, device=device)
    running = Holding(request=holder, started=0.0, slots=(Slot("worker", "v", (0, 1)),))
    scheduler = Scheduler(Snapshot(nodes=(bare, A100), running=(running,)), 1.0)
    scheduler.cycle(1.0)
    scheduler.end("old", 2.0)
    scheduler.change_node(V100)
    scheduler.submit(request("new", devices=2, device="V100"), now=3.0)
    assert places(scheduler.cycle(3.0)) == {"new": {"v"}}


def test_who_names_a_type_starts_when_its_node_joins():
    scheduler = Scheduler(Snapshot(nodes=(NODE,)), 0.0)
    assert waiting(scheduler, devices=1, device="A100") == []
    scheduler.add_node(Node(name="b", cpu=4000, memory=1000, devices={"A100": 1}))
    assert [admit.id for admit in scheduler.cycle(1.0).admits] == ["j"]


@pytest.mark.parametrize("leaving_for", ["", "gone"])
def test_quota_is_not_given_twice_when_a_workload_that_ends_is_taken_over(leaving_for):
    role = Role(name="worker", cpu=2000)
    ends = Request(id="ends", roles=(role,), workspace="w", user="u", priority=5, submitted=0.0)
    waits = Request(id="waits", roles=(role,), workspace="w", user="u", priority=5, submitted=1.0)
    holding = Holding(
        request=ends, started=0.0, slots=(Slot("worker", "a", ()),), leaving=9.0, leaving_for=leaving_for
    )
    view = Snapshot(
        nodes=(Node(name="a", pool="default", cpu=8000, memory=1024),),
        waiting=(waits,),
        running=(holding,),
        pools=(Pool(name="default"),),
        quotas=(Quota(name="w", nominal={"cpu": 3000}, borrow={"cpu": 0}),),
    )
    scheduler = Scheduler(view, 2.0)
    assert scheduler.cycle(2.0).admits == [], "it still holds its places"
    scheduler.end("ends", 3.0)
    assert [admit.id for admit in scheduler.cycle(3.0).admits] == ["waits"]
    scheduler.end("waits", 4.0)
    assert not any(scheduler.tree.place("w").used.values())
