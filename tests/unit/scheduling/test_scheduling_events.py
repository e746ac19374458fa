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


def test_who_names_no_type_waits_when_a_second_type_comes_first():
    scheduler = Scheduler(Snapshot(nodes=(NODE,)), 0.0)
    assert waiting(scheduler, devices=1) == []
    scheduler.change_node(replace(NODE, devices={"V100": 2, "A100": 2}))
    assert scheduler.cycle(1.0).admits == []


def test_who_names_no_type_starts_when_the_last_node_of_the_other_type_goes():
    scheduler = Scheduler(Snapshot(nodes=(replace(NODE, devices={"V100": 2}),)), 0.0)
    scheduler.add_node(Node(name="b", cpu=4000, memory=1000, devices={"A100": 1}))
    assert waiting(scheduler, devices=1) == []
    scheduler.remove_node("b")
    assert [admit.id for admit in scheduler.cycle(1.0).admits] == ["j"]


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
