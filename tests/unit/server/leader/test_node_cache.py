"""What the leader makes of what a node says of itself: events for its operator, and no work where it cannot be done."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from trainyard.engines.api import NodeFacts, NodeSeen
from trainyard.lib.clock import SystemClock
from trainyard.server.cluster.scheduler_snapshot import node_of
from trainyard.server.leader.node_cache import NodeCache
from trainyard.server.records.nodes import NodeRecord
from trainyard.spec.events import Event


def node_cache_of(record: NodeRecord) -> NodeCache:
    node_cache = NodeCache(cast("Any", SimpleNamespace(clock=SystemClock())), cast("Any", None))
    node_cache._records[record.name] = record
    return node_cache


def see(node_cache: NodeCache, **facts: Any) -> list[Event]:
    node_cache.see(NodeSeen("n", "boot", NodeFacts(cpu_milli=1000, **facts)), 1.0)
    taken = node_cache.take_writes()
    return [] if taken is None else taken.events


def test_each_notice_of_a_node_becomes_one_event_when_it_is_new():
    node_cache = node_cache_of(NodeRecord(name="n", created_at=0.0, state="ready"))
    assert [event.message for event in see(node_cache, notices=("one broken",))] == ["one broken"]
    assert see(node_cache, notices=("one broken",)) == []
    events = see(node_cache, notices=("one broken", "two broken"))
    assert [(event.code, event.message) for event in events] == [("node_notice", "two broken")]
    assert see(node_cache) == []
    assert len(see(node_cache, notices=("one broken",))) == 1


def test_a_node_gets_no_work_and_an_event_says_why_when_its_disk_is_full():
    node_cache = node_cache_of(NodeRecord(name="n", created_at=0.0, state="ready"))
    (event,) = see(node_cache, refusal="its disk is full: 3 MiB are free, 1024 MiB are needed")
    assert (event.code, event.message) == (
        "node_refused",
        "Its disk is full: 3 MiB are free, 1024 MiB are needed.",
    )
    record = node_cache.find("n")
    assert record is not None and record.state == "refused"
    (event,) = see(node_cache)
    assert event.code == "node_ready"


def test_labels_and_taints_of_an_engine_count_beside_those_of_people():
    facts = {"labels": {"zone": "z1", "gpu": "a100"}, "taints": ["dedicated=ml"]}
    record = NodeRecord(name="c", created_at=0.0, labels={"zone": "mine"}, taints=("slow",), facts=facts)
    node = node_of(record)
    assert {name: node.labels[name] for name in ("zone", "gpu")} == {"zone": "mine", "gpu": "a100"}
    assert [taint.key for taint in node.taints] == ["slow", "dedicated"]
