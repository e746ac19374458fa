"""Several engines serve one platform: each its own nodes, and a gang on the nodes of one."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "faults"))
from engines import BareEngine, ClusterEngine, World, WorldEngine

from trainyard.engines.api import (
    Launch,
    NodeAddress,
    NodeSeen,
    NotSentError,
    Observation,
    TaskLaunch,
    TaskStarted,
    TaskUnknown,
    end_one,
    launch_one,
)
from trainyard.engines.engine_set import EngineSet, ExecClientSet
from trainyard.engines.registry import known_engines, open_engines, open_exec_clients
from trainyard.lib.errors import InvalidError, UnreachableError, UnsupportedError


class Two:
    """A set of an engine whose node "a" is declared, and of one that discovers "c" and "d"."""

    def __init__(self) -> None:
        self.agents, self.cluster = World(), World()
        self.agents.node("a")
        self.cluster.node("c"), self.cluster.node("d")
        self.agents.loses_answers = self.cluster.loses_answers = False
        self.pods = ClusterEngine(self.cluster)
        self.engines = EngineSet({"nodes": WorldEngine(self.agents), "cluster": self.pods})
        self.seen: list[Observation] = []

    async def read_until(self, *wanted: str) -> None:
        """Read what all say until these nodes were seen."""
        async with asyncio.timeout(5):
            async for batch in self.engines.observe():
                self.seen += batch
                if {one.node for one in self.seen if isinstance(one, NodeSeen)} >= set(wanted):
                    return


@pytest.fixture
async def two() -> AsyncIterator[Two]:
    made = Two()
    await made.engines.add_node(NodeAddress(name="a"))
    await made.read_until("a", "c", "d")
    yield made
    await made.engines.aclose()


def launch_on(*nodes: str, workload: str = "w1") -> Launch:
    tasks = tuple(
        TaskLaunch(name=f"worker-{i}", role="worker", number=i, rank=i, node=node, command="0")
        for i, node in enumerate(nodes)
    )
    return Launch(attempt_id=f"{workload}.1", workload_id=workload, attempt=1, tasks=tasks)


async def test_each_gang_is_launched_by_the_engine_of_its_nodes(two: Two):
    answers = await two.engines.launch([launch_on("a"), launch_on("c", "d", workload="w2")])
    assert answers == {"w1.1": None, "w2.1": None}
    assert (two.agents.ran, two.cluster.ran) == ({"w1": ["w1.1"]}, {"w2": ["w2.1"]})


async def test_a_gang_is_refused_when_it_lies_on_nodes_of_several_engines(two: Two):
    answers = await two.engines.launch([launch_on("a", "c"), launch_on("c", workload="w2")])
    assert isinstance(answers["w1.1"], InvalidError)
    assert answers["w2.1"] is None, "others are launched"
    assert not two.agents.ran


async def test_a_node_that_no_engine_knows_is_not_reachable(two: Two):
    assert [two.engines.is_reachable(node) for node in ("a", "c", "x")] == [True, True, False]
    with pytest.raises(NotSentError, match="x is not one of this platform") as caught:
        await launch_one(two.engines, launch_on("x"))
    assert caught.value.values["node"] == "x"
    with pytest.raises(UnreachableError):
        await end_one(two.engines, "w1.1", ["a", "x"], grace_seconds=0)


async def test_an_attempt_is_ended_and_forgotten_on_nodes_of_all_engines(two: Two):
    """A leader that does not know any more where an attempt was asks everywhere."""
    await launch_one(two.engines, launch_on("c"))
    had = await end_one(two.engines, "w1.1", ["a", "c", "d"], grace_seconds=0)
    assert had == {"a": frozenset(), "c": frozenset({"worker-0"}), "d": frozenset()}
    await two.engines.forget(["w1.1"], ["a", "c", "d"])
    assert not two.cluster.node("c").tasks


async def test_one_engine_that_does_not_answer_keeps_no_other_from_being_asked(two: Two):
    two.agents.cut("a")
    answers = await two.engines.launch([launch_on("a"), launch_on("c", workload="w2")])
    assert isinstance(answers["w1.1"], NotSentError)
    assert answers["w2.1"] is None


async def test_what_a_node_was_given_is_told_to_its_engine_when_it_is_known_whose_it_is():
    made = Two()
    made.engines.expect("c", [("w9.1", "worker-0")])
    await made.engines.add_node(NodeAddress(name="c", engine="cluster"))  # discovered under an earlier leader
    await made.read_until("c", "d")
    assert [one.attempt_id for one in made.seen if isinstance(one, TaskUnknown)] == ["w9.1"]
    await made.engines.aclose()


async def test_a_node_of_an_engine_that_is_not_there_cannot_join(two: Two):
    with pytest.raises(UnsupportedError, match="needs the engine 'slurm'"):
        await two.engines.add_node(NodeAddress(name="s", engine="slurm"))


async def test_peers_are_bound_by_the_engine_that_binds_them(two: Two):
    await launch_one(two.engines, launch_on("c", "d"))
    await two.engines.bind_peers("w1.1", ["c", "d"], {"worker-0": "pod:1"})
    await two.engines.bind_peers("w2.1", ["a"], {"worker-0": "host"})
    assert two.pods.bound == {"w1.1": {"worker-0": "pod:1"}}


async def test_a_failure_of_one_engines_observations_is_not_kept_back():
    class Broken(BareEngine):
        async def observe(self) -> AsyncIterator[Sequence[Observation]]:
            raise ZeroDivisionError
            yield ()

    engines = EngineSet({"a": Broken(World()), "b": WorldEngine(World())})
    with pytest.raises(ZeroDivisionError):
        async for _ in engines.observe():
            pass


async def test_observations_of_an_engine_stay_in_their_order(two: Two):
    await launch_one(two.engines, launch_on("c"))
    two.cluster.finish("w1")
    kinds: list[str] = []
    async with asyncio.timeout(5):
        async for batch in two.engines.observe():
            kinds += [type(one).__name__ for one in batch if getattr(one, "attempt_id", "") == "w1.1"]
            if "TaskCleared" in kinds:
                break
    assert list(dict.fromkeys(kinds)) == [TaskStarted.__name__, "TaskEnded", "TaskCleared"]


async def test_commands_go_by_the_way_of_the_nodes_engine():
    clients = ExecClientSet({})
    with pytest.raises(UnsupportedError):
        clients.exec(NodeAddress(name="c", engine="cluster"), "w1.1", "worker-0", "true", None)
    await clients.aclose()


def test_an_engine_that_nobody_has_registered_is_named_with_those_there_are():
    assert "nodes" in known_engines()
    with pytest.raises(InvalidError, match="no engine 'slurm'") as caught:
        open_engines(["slurm"], None)  # type: ignore[arg-type]
    assert "nodes" in str(caught.value.hint)
    assert open_exec_clients([], None) is not None  # type: ignore[arg-type]
