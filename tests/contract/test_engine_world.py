"""The engines that stand in where a leader is tried keep the promises of `engines/api.py`: what holds with them holds with others."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import ClassVar

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "faults"))
from engines import BareEngine, ClusterEngine, World, WorldEngine

from trainyard.engines.api import DeclaredNodes, Engine, Fences, LatePeers, Launch, NodeAddress, TaskExec
from trainyard.engines.contract import EngineContract
from trainyard.engines.engine_set import EngineSet
from trainyard.lib.errors import UnsupportedError


class OfWorld(EngineContract):
    keeps_logs = False
    ending = staying = "3"  # it ends when the world lets it, with this code
    kind: ClassVar[type[BareEngine]] = WorldEngine

    @pytest.fixture(autouse=True)
    def _world(self) -> None:
        self.world = World()
        self.world.loses_answers = False
        for node in self.nodes:
            self.world.node(node)

    async def open_engine(self, epoch: int) -> Engine:
        return self.kind(self.world)

    async def let_end(self, launch: Launch) -> None:
        self.world.finish(launch.workload_id)


class TestEngineWithDeclaredNodes(OfWorld):
    capabilities = frozenset({DeclaredNodes})

    async def add_nodes(self, engine: Engine) -> None:
        assert isinstance(engine, WorldEngine)
        for node in self.nodes:
            await engine.add_node(NodeAddress(name=node))


class TestEngineThatDiscoversItsNodes(OfWorld):
    capabilities = frozenset({LatePeers})
    kind = ClusterEngine


class TestEngineAmongSeveral(OfWorld):
    """What holds for an engine holds for it beside another one; the set has every capability, and refuses what an engine lacks."""

    capabilities = frozenset({DeclaredNodes, TaskExec, LatePeers, Fences})

    async def open_engine(self, epoch: int) -> Engine:
        other = World()
        other.node("c")
        return EngineSet({"nodes": WorldEngine(self.world), "cluster": ClusterEngine(other)})

    async def add_nodes(self, engine: Engine) -> None:
        assert isinstance(engine, EngineSet)
        for node in self.nodes:
            await engine.add_node(NodeAddress(name=node))

    async def test_a_command_runs_beside_a_task_and_nowhere_else(self) -> None:
        async with self._leader() as leader:
            assert isinstance(leader.engine, TaskExec)
            with pytest.raises(UnsupportedError, match="beside tasks of the engine 'nodes'"):
                await leader.engine.exec("w.1", "worker-0", "a", "true", None)

    async def test_peers_are_bound_when_all_have_started(self) -> None:
        async with self._leader() as leader:
            assert isinstance(leader.engine, LatePeers)
            await leader.engine.bind_peers("w.1", ["a"], {"worker-0": "x"})  # whose engine needs it not
