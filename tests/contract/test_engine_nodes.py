"""The engine of nodes keeps the promises of `engines/api.py`, with real agents."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "integration" / "engines" / "nodes"))
from engine_lab import QUICK, EngineLab

from trainyard.engines.api import DeclaredNodes, Engine, Fences, NodeAddress, TaskExec
from trainyard.engines.contract import EngineContract
from trainyard.engines.nodes.engine import NodeEngine

pytestmark = pytest.mark.slow  # agents are put on two nodes and started for each


class TestNodeEngine(EngineContract):
    capabilities = frozenset({DeclaredNodes, TaskExec, Fences})

    @pytest.fixture(autouse=True)
    async def _lab(self, isolation: Path, hostile_path: Path) -> AsyncIterator[None]:
        self.lab = EngineLab(hostile_path / "home")
        self.lab.home.mkdir()
        yield
        if self._attempts:  # the test has failed, and left them
            self.lab.addresses = {node: NodeAddress(name=node) for node in self.nodes}
            for launch in self._attempts:
                self.lab._attempts.add(launch.attempt_id)
            await self.lab.aclose()

    async def open_engine(self, epoch: int) -> Engine:
        return NodeEngine("p1", self.lab.sink, epoch=epoch, transport_of=self.lab.local, patience=QUICK)

    async def add_nodes(self, engine: Engine) -> None:
        assert isinstance(engine, DeclaredNodes)
        for node in self.nodes:
            await engine.add_node(NodeAddress(name=node))

    def log_of(self, workload_id: str, attempt: int, task: str) -> bytes:
        return bytes(self.lab.sink.logs.get((workload_id, attempt, task), b""))
