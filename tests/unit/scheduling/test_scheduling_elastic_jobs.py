"""Elastic workloads that run with fewer replicas than they want: who gets a larger start, where, and who does not."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from trainyard.scheduling import Holding, Node, NodeState, Quota, Request, Role, Scheduler, Slot, Snapshot
from trainyard.scheduling.model import ASCEND_910

V = "V100"


def elastic(id_: str = "e", *, replicas: int = 4, minimum: int = 1, **given: object) -> Request:
    role = Role(name="w", replicas=replicas, minimum=minimum, devices=1, device=V)
    return Request(**{"id": id_, "roles": (role,), "workspace": "x", "user": "u", **given})  # type: ignore[arg-type]


def plain(id_: str, devices: int, **given: object) -> Request:
    role = Role(name="w", devices=devices, device=V, nodes=frozenset(given.pop("nodes", ())))  # type: ignore[arg-type]
    return Request(**{"id": id_, "roles": (role,), "workspace": "x", "user": "u", "submitted": 5.0, **given})  # type: ignore[arg-type]


def node(name: str, devices: int, **given: object) -> Node:
    return Node(name=name, devices={V: devices}, **given)  # type: ignore[arg-type]


def holding(request: Request, *places: tuple[str, int], **given: object) -> Holding:
    slots = tuple(Slot(request.roles[0].name, name, (device,)) for name, device in places)
    return Holding(request=request, started=0.0, slots=slots, **given)  # type: ignore[arg-type]


@dataclass
class Case:
    """What there is, and with how many replicas the elastic one would start anew; 0: it stays as it is."""

    about: str
    want: int
    nodes: tuple[Node, ...] = (node("a", 4),)
    request: Request = field(default_factory=elastic)
    has: tuple[tuple[str, int], ...] = (("a", 0),)
    others: tuple[Holding, ...] = ()
    waiting: tuple[Request, ...] = ()
    quotas: tuple[Quota, ...] = ()


CASES = [
    Case("all of it where all is free", 4),
    Case("as many as there is room for", 2, nodes=(node("a", 2),)),
    Case("over more nodes than before", 3, nodes=(node("a", 1), node("b", 2))),
    Case("nothing where nothing is free", 0, nodes=(node("a", 1),)),
    Case("nothing where others have it", 0, nodes=(node("a", 2),), others=(holding(plain("o", 1), ("a", 1)),)),
    Case("nothing where it has all it wants", 0, request=elastic(replicas=1)),
    Case("nothing on nodes that take no new work", 0,
         nodes=(node("a", 1), node("b", 4, state=NodeState.CORDONED), node("c", 4, state=NodeState.COMING))),
    Case("nothing on nodes that it avoids", 0, nodes=(node("a", 1), node("b", 4)),
         request=elastic(avoid=frozenset({"b"}))),
    Case("nothing where somebody waits for that room", 0, waiting=(plain("o", 4),)),
    Case("nothing even where somebody of the lowest priority does", 0, waiting=(plain("o", 4, priority=1),)),
    Case("all of it where who waits is not allowed there", 4, nodes=(node("a", 4), node("b", 1)),
         others=(holding(plain("p", 1), ("b", 0)),), waiting=(plain("o", 1, nodes=("b",)),)),
    Case("all of it where who waits could never fit", 4, waiting=(plain("o", 64),)),
    Case("all of it where who waits has no quota", 4,
         waiting=(plain("o", 1, workspace="y"),), quotas=(Quota(name="y", nominal={V: 0}, borrow={V: 0}),)),
    Case("as many as the quota allows", 3, quotas=(Quota(name="x", nominal={V: 3}, borrow={V: 0}),)),
    Case("nothing where the quota is used up", 0, quotas=(Quota(name="x", nominal={V: 1}, borrow={V: 0}),)),
    Case("as many as the user's own limit allows", 2, quotas=(Quota(name="x", per_user={V: 2}),)),
    Case("nothing where it is leaving already", 0, has=()),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.about.replace(" ", "-"))
def test_an_elastic_workload_starts_anew_with_more_when_there_is_room_that_nobody_waits_for(case):
    running = (
        holding(case.request, *case.has)
        if case.has
        else holding(case.request, ("a", 0), leaving=9.0, leaving_for="z")
    )
    view = Snapshot(
        nodes=case.nodes, waiting=case.waiting, running=(running, *case.others), quotas=case.quotas
    )
    scheduler = Scheduler(view, 10.0)
    scheduler.cycle(10.0)
    before = _view(scheduler)
    found = scheduler.enlarge("e", 10.0, grace=7.0)
    assert (0 if found is None else len(found.slots)) == case.want
    if found is None:
        assert _view(scheduler) == before, "a look changes nothing"
    else:
        assert (found.count, found.leave_by) == (len(running.slots), 17.0)
        assert scheduler.enlarge("e", 10.0, grace=7.0) is None, "it is on its way"


def test_the_larger_places_are_kept_when_others_come_before_it_has_gone():
    scheduler = Scheduler(Snapshot(nodes=(node("a", 4),), running=(holding(elastic(), ("a", 0)),)), 10.0)
    found = scheduler.enlarge("e", 10.0, grace=7.0)
    assert found is not None
    scheduler.submit(plain("o", 2, priority=9), now=11.0)
    assert scheduler.cycle(11.0).admits == []
    _come_back(scheduler, found.slots, 12.0)
    assert [(one.id, len(one.slots)) for one in scheduler.cycle(12.0).admits] == [("e", 4)]


def test_the_larger_places_are_kept_when_another_leader_takes_over():
    request = elastic()
    scheduler = Scheduler(Snapshot(nodes=(node("a", 4),), running=(holding(request, ("a", 0)),)), 10.0)
    found = scheduler.enlarge("e", 10.0, grace=7.0)
    assert found is not None
    claims = replace(request, claim=found.slots)
    leaves = holding(claims, ("a", 0), leaving=17.0, leaving_for="e")
    quotas = (Quota(name="x", nominal={V: 4}, borrow={V: 0}),)
    view = Snapshot(nodes=(node("a", 4),), running=(leaves,), waiting=(plain("o", 2),), quotas=quotas)
    second = Scheduler(view, 11.0)
    assert second.cycle(11.0).admits == []
    _come_back(second, found.slots, 12.0)
    assert [(one.id, len(one.slots)) for one in second.cycle(12.0).admits] == [("e", 4)]
    third = Scheduler(replace(view, running=(), waiting=(plain("o", 2), claims)), 13.0)
    assert [(one.id, len(one.slots)) for one in third.cycle(13.0).admits] == [("e", 4)]


def test_it_is_not_smaller_than_need_be_when_a_node_of_its_larger_places_is_gone():
    nodes = (node("a", 2), node("b", 2))
    scheduler = Scheduler(Snapshot(nodes=nodes, running=(holding(elastic(), ("a", 0), ("a", 1)),)), 10.0)
    found = scheduler.enlarge("e", 10.0, grace=7.0)
    assert found is not None and len(found.slots) == 4
    scheduler.change_node(node("b", 2, state=NodeState.LOST))
    _come_back(scheduler, found.slots, 12.0)
    assert [len(one.slots) for one in scheduler.cycle(12.0).admits] == [2]


def test_its_quota_and_places_come_free_when_it_is_withdrawn_after_all():
    quotas = (Quota(name="x", nominal={V: 4}, borrow={V: 0}),)
    view = Snapshot(nodes=(node("a", 4),), running=(holding(elastic(), ("a", 0)),), quotas=quotas)
    scheduler = Scheduler(view, 10.0)
    assert scheduler.enlarge("e", 10.0, grace=7.0) is not None
    scheduler.end("e", 11.0)
    scheduler.withdraw("e")
    scheduler.submit(plain("o", 4), now=11.0)
    assert [one.id for one in scheduler.cycle(11.0).admits] == ["o"]


def test_whole_nodes_are_taken_when_devices_have_to_be_used_by_whole_nodes():
    role = Role(name="w", replicas=4, minimum=1, devices=8, device="npu")
    request = Request(id="e", roles=(role,), workspace="x", user="u")
    nodes = tuple(Node(name=name, devices={"npu": 8}) for name in "abc")
    has = Holding(request=request, started=0.0, slots=(Slot("w", "a", tuple(range(8))),))
    scheduler = Scheduler(Snapshot(nodes=nodes, running=(has,), device_rules={"npu": ASCEND_910}), 10.0)
    found = scheduler.enlarge("e", 10.0, grace=7.0)
    assert found is not None and sorted(slot.node for slot in found.slots) == ["a", "b", "c"]


def test_no_role_gets_fewer_when_another_could_have_more():
    roles = (
        Role(name="big", replicas=2, minimum=1, devices=2, device=V),
        Role(name="small", replicas=4, minimum=1, devices=1, device=V),
    )
    request = Request(id="e", roles=roles, workspace="x", user="u")
    slots = (Slot("big", "a", (0, 1)), Slot("small", "a", (2,)), Slot("small", "a", (3,)))
    view = Snapshot(nodes=(node("a", 5),), running=(Holding(request=request, started=0.0, slots=slots),))
    found = Scheduler(view, 10.0).enlarge("e", 10.0, grace=7.0)
    assert found is not None
    assert sorted(slot.role for slot in found.slots) == ["big", "small", "small", "small"]


def _come_back(scheduler: Scheduler, slots: tuple[Slot, ...], now: float) -> None:
    """As the platform does it: its places are free, and it stands in line with those that it claims."""
    scheduler.end("e", now)
    scheduler.withdraw("e")
    scheduler.submit(replace(elastic(), claim=slots), now=now)


def _view(scheduler: Scheduler) -> object:
    cluster = scheduler.cluster
    masks = {device: list(found) for device, found in cluster.masks.items()}
    used = {name: dict(place.used) for name, place in scheduler.tree.places.items()}
    return list(cluster.cpu), list(cluster.memory), masks, used, sorted(scheduler.claims)
