"""Reasons as sentences, and what each node lacks."""

from __future__ import annotations

import re

import pytest

from trainyard.scheduling import Code, Node, Reason, Request, Role, Scheduler, Snapshot
from trainyard.scheduling.diagnosis import Shortage, node_report, wait_of
from trainyard.scheduling.explain import LANGUAGES, SENTENCES, explain, explain_wait, remedy

FIGURES = {"used": 8, "wanted": 2, "limit": 9, "strategy": "backfill", "start": 70.0, "window": 60.0, "replicas": 2, "room": 1,
           "devices": 4, "victims": 1, "until": 40.0, "priority": 5, "own_priority": 3, "workspace": "vision"}  # fmt: skip


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("code", list(Code))
def test_every_reason_is_a_whole_sentence_when_it_is_told(code, language):
    reason = Reason(code, "subject", "A100", FIGURES)
    for text in (explain(reason, now=10.0, language=language), remedy(reason, now=10.0, language=language)):
        assert re.search(r"[.。]$", text)
        assert "{" not in text
    assert set(SENTENCES[code]) == set(LANGUAGES)


def test_position_reason_remedy_and_start_are_told_when_a_gang_waits():
    nodes = (Node(name="a", devices={"A100": 8}), Node(name="b", devices={"A100": 2}))
    role = Role(devices=4, replicas=2)
    waiting = (
        Request(id="first", roles=(role,), limit=3600.0),
        Request(id="second", roles=(role,), limit=3600.0),
    )
    scheduler = Scheduler(Snapshot(nodes=nodes, waiting=waiting), 0.0)
    assert [admit.id for admit in scheduler.cycle(0.0).admits] == ["first"]
    text = explain_wait(wait_of(scheduler, "second"), now=0.0)
    assert text == (
        "Position 1. No node has room for one replica of worker (4 x A100 each): 2 nodes are short of devices. "
        "The largest replica that fits now has 2 devices. Estimated start: in 1h."
    )
    assert node_report(scheduler, "second") == [
        Shortage("a", "devices", 0, 4),
        Shortage("b", "devices", 2, 4),
    ]


@pytest.mark.parametrize(
    ("nodes", "told"),
    [
        ({"gone"}, " It names nodes that are not there: gone."),
        ({f"n{number}" for number in range(9)}, " It names nodes that are not there: n0, n1, n2 …."),
    ],
)
def test_nodes_that_are_not_there_are_told_when_a_workload_names_them(nodes, told):
    request = Request(id="w", roles=(Role(cpu=1, nodes=frozenset(nodes)),))
    scheduler = Scheduler(Snapshot(nodes=(Node(name="a", cpu=1000),), waiting=(request,)), 0.0)
    assert scheduler.cycle(0.0).admits == []
    text = explain(wait_of(scheduler, "w").reason)
    assert text == f"No set of nodes of this cluster could ever hold 1 replicas of worker.{told}"
