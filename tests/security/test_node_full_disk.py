"""A node whose disk is full at every moment of its agent's life: an error within seconds, and well again when there is room."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from node_lab import EngineLab, Watched, kill, launch_of, node_in, small_disk

from trainyard.engines.api import NodeSeen, TaskEnded, TaskStarted, end_one, launch_one
from trainyard.engines.nodes import agent_bundle as bundle_module
from trainyard.engines.nodes.agent_bundle import bundle
from trainyard.lib.errors import Error

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="mounting needs root")
SECONDS = 20.0  # an error has to be there by then, on a machine that is busy with other tests


class Filler:
    """A file that takes all the room that is left."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "filler"

    def fill(self) -> None:
        with open(self.path, "ab") as file:
            for step in (1 << 20, 4096, 1):
                with suppress(OSError):
                    while True:
                        os.write(file.fileno(), b"x" * step)

    def free(self) -> None:
        self.path.unlink()


@asynccontextmanager
async def full_node(folder: Path) -> AsyncIterator[tuple[EngineLab, Filler]]:
    with small_disk(folder / "small", 24) as small:
        filler = Filler(small)
        async with node_in(small) as lab:
            try:
                yield lab, filler
            finally:
                with suppress(FileNotFoundError):
                    filler.free()


async def works(lab: EngineLab, server: Watched, attempt: str) -> None:
    await lab.launch(server, launch_of("echo fine; exit 3", attempt))
    assert (await server.ended(attempt)).exit_code == 3
    assert server.log(attempt) == b"fine\n"


async def test_a_running_task_is_cancelled_when_the_disk_is_full(hostile_path: Path):
    async with full_node(hostile_path) as (lab, filler):
        server = await lab.start()
        await lab.launch(server, launch_of("echo up; exec sleep 1000"))
        await server.until(lambda: server.log("w1.1"), "it is up")
        filler.fill()
        (lab.root() / "reserve").unlink()
        filler.fill()  # and what the agent had kept back is gone as well
        async with asyncio.timeout(SECONDS):
            await end_one(server.engine, "w1.1", ["local"], grace_seconds=0)
            ended = await server.ended("w1.1")
        assert ended.was_told
        filler.free()
        await works(lab, server, "w2.1")


async def test_a_new_server_is_followed_and_cancels_when_the_disk_is_full(hostile_path: Path):
    async with full_node(hostile_path) as (lab, filler):
        server = await lab.start()
        await lab.launch(server, launch_of("echo up; exec sleep 1000"))
        await server.until(lambda: server.log("w1.1"), "it is up")
        filler.fill()
        await lab.stop(server, leaves=False)
        async with asyncio.timeout(SECONDS):
            server = await lab.start(epoch=lab.epoch + 1)
            await server.see(TaskStarted, "w1.1")
            await end_one(server.engine, "w1.1", ["local"], grace_seconds=0)
            await server.ended("w1.1")
        filler.free()
        await works(lab, server, "w2.1")


async def test_an_agent_starts_again_when_the_disk_is_full(hostile_path: Path):
    async with full_node(hostile_path) as (lab, filler):
        server = await lab.start()
        await lab.launch(server, launch_of("echo up; exec sleep 1000"))
        await server.until(lambda: server.log("w1.1"), "it is up")
        filler.fill()
        agent = lab.agent_pid()
        await lab.stop(server, leaves=False)
        kill(agent)
        async with asyncio.timeout(SECONDS):
            server = await lab.start(epoch=lab.epoch + 1)
            assert lab.agent_pid() != agent
            await end_one(server.engine, "w1.1", ["local"], grace_seconds=0)
            await server.ended("w1.1")
        filler.free()
        await works(lab, server, "w2.1")


async def test_a_launch_is_refused_at_once_when_the_disk_is_full(hostile_path: Path):
    async with full_node(hostile_path) as (lab, filler):
        server = await lab.start()
        filler.fill()
        async with asyncio.timeout(SECONDS):
            with pytest.raises(Error, match="No space left"):
                await launch_one(server.engine, launch_of("x" * 100_000))
        assert not (lab.root() / "tasks/w1.1").exists()
        filler.free()
        await works(lab, server, "w1.1")


async def test_a_task_with_a_reserve_is_refused_by_a_sentence_when_the_disk_is_full(hostile_path: Path):
    async with full_node(hostile_path) as (lab, filler):
        lab.disk_reserve_mib = 1024
        server = await lab.start()
        filler.fill()
        await server.until(
            lambda: "its disk is full" in server.find(NodeSeen)[-1].facts.refusal, "it says so"
        )
        with pytest.raises(Error, match="its disk is full: 0 MiB are free"):
            await launch_one(server.engine, launch_of("true"))
        filler.free()
        await server.until(lambda: not server.find(NodeSeen)[-1].facts.refusal, "it takes tasks again")
        await works(lab, server, "w1.1")


async def test_output_that_a_full_disk_did_not_take_is_counted_and_the_status_is_kept(hostile_path: Path):
    async with full_node(hostile_path) as (lab, filler):
        server = await lab.start()
        command = "echo up; while [ ! -e ~/go ]; do sleep 0.05; done; head -c 3000000 /dev/zero; exit 8"
        await lab.launch(server, launch_of(command))
        await server.until(lambda: server.log("w1.1"), "it is up")
        (lab.home / "go").touch()
        filler.fill()
        async with asyncio.timeout(SECONDS):
            ended = await server.ended("w1.1")
        assert ended.exit_code == 8
        if len(server.log("w1.1")) < 3_000_003:  # what was taken away while it printed made room again
            assert "bytes of output are lost" in ended.message
        filler.free()
        await works(lab, server, "w2.1")


async def test_a_task_is_forgotten_and_gives_its_room_back_when_the_disk_is_full(hostile_path: Path):
    async with full_node(hostile_path) as (lab, filler):
        server = await lab.start()
        await lab.launch(server, launch_of("head -c 5000000 /dev/zero > file; mkdir a; exit 7"))
        assert (await server.ended("w1.1")).exit_code == 7
        filler.fill()
        async with asyncio.timeout(SECONDS):
            await server.engine.forget(["w1.1"], ["local"])
        trash = lab.root() / "trash"
        await server.until(lambda: not os.listdir(trash), "the room is back")
        await works(lab, server, "w2.1")


async def test_the_agent_is_replaced_by_a_newer_one_when_the_disk_is_full(hostile_path: Path, monkeypatch):
    async with full_node(hostile_path) as (lab, filler):
        server = await lab.start()
        await lab.launch(server, launch_of("echo up; exec sleep 1000"))
        await server.until(lambda: server.log("w1.1"), "it is up")
        filler.fill()
        await lab.stop(server, leaves=False)
        monkeypatch.setattr(bundle_module, "_MAIN", bundle_module._MAIN + "# newer\n")
        bundle.cache_clear()
        try:
            async with asyncio.timeout(SECONDS):
                server = await lab.start(epoch=lab.epoch + 1)
            assert server.find(NodeSeen)[-1].facts.agent == bundle().version
            assert not server.find(TaskEnded)
            async with asyncio.timeout(SECONDS):
                await end_one(server.engine, "w1.1", ["local"], grace_seconds=0)
                await server.ended("w1.1")
            filler.free()
            await works(lab, server, "w2.1")
            await lab.aclose()
        finally:
            monkeypatch.undo()
            bundle.cache_clear()


async def test_a_newer_agent_comes_when_there_is_room_again_and_there_was_none_at_all(
    hostile_path: Path, monkeypatch
):
    async with full_node(hostile_path) as (lab, filler):
        server = await lab.start()
        (lab.root() / "reserve").unlink()
        filler.fill()
        await lab.stop(server, leaves=False)
        monkeypatch.setattr(bundle_module, "_MAIN", bundle_module._MAIN + "# newer\n")
        bundle.cache_clear()
        try:
            server = await lab.start(epoch=lab.epoch + 1, sees=False)
            await asyncio.sleep(2)
            filler.free()
            await server.until(lambda: server.find(NodeSeen), "the node is back")
            assert server.find(NodeSeen)[-1].facts.agent == bundle().version
            await works(lab, server, "w1.1")
            names = [path.name for path in lab.root().iterdir() if "agent-" in path.name]
            assert names == [bundle().file_name]  # nothing half made is left
            await lab.aclose()
        finally:
            monkeypatch.undo()
            bundle.cache_clear()
