"""Who waits for machines is told what troubles the pool that they come from, and no other one."""

from __future__ import annotations

import pytest

from trainyard.scheduling import Node, NodeState, Reason, Snapshot
from trainyard.scheduling.reasons import Code
from trainyard.server.explain.explanations import ClusterNames, ClusterView, Explanation, with_trouble
from trainyard.server.records.pools import PoolRecord

SAID = Explanation(state="waiting", starts_now=False, sentence="It waits for new nodes.", remedy="Wait.")


def view(**troubles: str) -> ClusterView:
    nodes = (Node(name="cpu-1", pool="cpu", state=NodeState.COMING), Node(name="gpu-1", pool="gpu"))
    pools = {
        name: PoolRecord(name=name, backend="aliyun", types=("t",), most=1, created_at=0.0, message=text)
        for name, text in troubles.items()
    }
    return ClusterView(0.0, Snapshot(nodes=nodes), ClusterNames({}, {}), {}, {}, {}, 0.0, pools)


@pytest.mark.parametrize(
    ("subject", "troubles", "sentence"),
    [
        ("", {"gpu": "Sold out."}, "It waits for new nodes."),  # its machine is coming; gpu's trouble is not its own
        ("", {"gpu": "Sold out.", "cpu": "It boots slowly."}, "It waits for new nodes. cpu: It boots slowly."),
        ("gpu", {"gpu": "Sold out.", "cpu": "x"}, "It waits for new nodes. gpu: Sold out."),
        ("gpu", {}, "It waits for new nodes."),
    ],
)  # fmt: skip
def test_only_the_pool_that_machines_come_from_is_told_of_when_others_are_in_trouble(
    subject, troubles, sentence
):
    said = with_trouble(SAID, Reason(Code.ACQUIRING, subject, "", {}), view(**troubles), "en")
    assert said.sentence == sentence
