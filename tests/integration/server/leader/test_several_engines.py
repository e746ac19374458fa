"""One platform with two engines: nodes that people declared, and nodes that a cluster has; the leader with both at once."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from test_reconciler import Lab

sys.path.insert(0, str(Path(__file__).parents[3] / "faults"))
from engines import ClusterEngine, World, WorldEngine

from trainyard.engines.api import Engine
from trainyard.engines.engine_set import EngineSet
from trainyard.server.records.nodes import NodeCondition, NodeDesired
from trainyard.server.store.cluster import nodes
from trainyard.spec.workload import FINAL, State


class SeveralLab(Lab):
    """Nodes "a" and "b" are declared; "c" and "d" are a cluster's."""

    def __init__(self, folder: Path) -> None:
        self.cluster = World()
        self.cluster.node("c"), self.cluster.node("d")
        self.cluster.loses_answers = False
        super().__init__(folder)

    def open_engine(self) -> Engine:
        self.pods = ClusterEngine(self.cluster)
        return EngineSet({"nodes": WorldEngine(self.world), "cluster": self.pods})

    async def node_names(self, engine: str = "") -> list[str]:
        return [one.name for one in await self.db.read(lambda c: nodes.list_nodes(c, engine=engine))]

    async def until_nodes(self, *names: str, engine: str = "cluster") -> None:
        async with asyncio.timeout(20):
            while await self.node_names(engine) != list(names):
                await asyncio.sleep(0.01)

    async def until_ready(self, name: str) -> None:
        async with asyncio.timeout(20):
            while True:
                found = await self.db.read(lambda c: nodes.find(c, name))
                if found is not None and found.state == NodeCondition.READY:
                    return
                await asyncio.sleep(0.01)


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[SeveralLab]:
    made = SeveralLab(tmp_path)
    yield made
    if made.leading is not None:
        await made.kill()
    made.db.close()


async def test_nodes_that_an_engine_has_become_rows_with_its_name(lab: SeveralLab):
    await lab.lead()
    await lab.until_nodes("c", "d")
    await lab.until_ready("c")
    found = await lab.db.read(lambda c: nodes.load(c, "c"))
    assert (found.engine, found.cpu > 0, found.boot_id) == ("cluster", True, "boot-1")
    assert await lab.node_names("nodes") == ["a", "b"], "those that people declared stay what they are"


async def test_jobs_run_on_both_engines_at_once_and_each_gang_on_one(lab: SeveralLab):
    await lab.lead()
    await lab.until_ready("c")
    await lab.until_ready("d")
    jobs = [await lab.submit("0", replicas=2) for _ in range(8)]  # each node has room for four tasks
    for job in jobs:
        await lab.until(job, State.RUNNING)
    ran = [set(world.ran) for world in (lab.world, lab.cluster)]
    assert ran[0] | ran[1] == set(jobs)
    assert not ran[0] & ran[1], "no job has tasks on both"
    assert all(ran), "both have some"
    for job in jobs:
        lab.world.finish(job)
        lab.cluster.finish(job)
    for job in jobs:
        assert (await lab.until(job, *FINAL)).state == State.SUCCEEDED


async def test_tasks_hear_of_their_peers_when_all_have_started(lab: SeveralLab):
    await lab.lead()
    await lab.until_ready("c")
    await lab.until_ready("d")
    for name in ("a", "b"):
        await lab.db.write(
            lambda c, name=name: nodes.save(c, replace(nodes.load(c, name), desired=NodeDesired.CORDONED))
        )
    await lab.kill()
    await lab.lead()
    job = await lab.submit("0", replicas=3)
    await lab.until(job, State.RUNNING)
    bound = {f"worker-{at}": f"pod:{job}.1/worker-{at}" for at in range(3)}
    async with asyncio.timeout(20):
        while lab.pods.bound.get(f"{job}.1") != bound:
            await asyncio.sleep(0.01)
    await lab.kill()
    await lab.lead()  # who cannot know whether they have heard it
    async with asyncio.timeout(20):
        while lab.pods.bound.get(f"{job}.1") != bound:
            await asyncio.sleep(0.01)
    lab.cluster.finish(job)
    assert (await lab.until(job, *FINAL)).state == State.SUCCEEDED


async def test_a_node_that_its_engine_has_no_more_goes_and_what_ran_there_runs_elsewhere(lab: SeveralLab):
    await lab.lead()
    await lab.until_ready("c")
    await lab.until_ready("d")
    jobs = [await lab.submit("0") for _ in range(16)]  # as many as there is room for
    for job in jobs:
        await lab.until(job, State.RUNNING)
    gone = {task[0].rpartition(".")[0] for task in lab.cluster.node("d").tasks}
    assert len(gone) == 4
    del lab.cluster.nodes["d"]
    lab.pods.list_nodes()
    await lab.until_nodes("c")
    for job in gone:
        await lab.until(job, State.WAITING)
    assert await lab.node_names("nodes") == ["a", "b"]
    for job in jobs:
        lab.world.finish(job)
        lab.cluster.finish(job)
    for job in gone:
        assert (await lab.until(job, State.RUNNING)).attempt == 2


async def test_a_node_that_has_gone_while_nobody_led_is_removed_by_the_next_leader(lab: SeveralLab):
    await lab.lead()
    await lab.until_nodes("c", "d")
    await lab.kill()
    del lab.cluster.nodes["d"]
    await lab.lead()
    await lab.until_nodes("c")


async def test_a_declared_node_keeps_its_name_when_an_engine_has_one_that_is_called_the_same(lab: SeveralLab):
    lab.cluster.node("a")
    await lab.lead()
    await lab.until_nodes("c", "d")
    await lab.until_ready("a")
    job = await lab.submit("0")
    await lab.until(job, State.RUNNING)
    assert (await lab.db.read(lambda c: nodes.load(c, "a"))).engine == "nodes"
    assert "a" not in {task.node for one in lab.cluster.launched.values() for task in one.tasks}
