"""What happens to who waits when the cluster changes under it."""

from __future__ import annotations

from dataclasses import replace

from trainyard.scheduling import Node, Request, Role, Scheduler, Snapshot

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


def test_who_names_a_type_starts_when_its_node_joins():
    scheduler = Scheduler(Snapshot(nodes=(NODE,)), 0.0)
    assert waiting(scheduler, devices=1, device="A100") == []
    scheduler.add_node(Node(name="b", cpu=4000, memory=1000, devices={"A100": 1}))
    assert [admit.id for admit in scheduler.cycle(1.0).admits] == ["j"]
