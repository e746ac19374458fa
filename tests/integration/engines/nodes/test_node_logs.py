"""The engine and the store of logs together: what tasks print arrives in files, exactly, and is followed meanwhile."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path

import pytest
from engine_lab import EngineLab, launch_of

from trainyard.engines.api import TaskCleared
from trainyard.server.logs.log_files import LogStore


async def test_output_is_in_the_store_and_was_followed_when_a_task_is_cleared(lab: EngineLab, tmp_path: Path):
    store = LogStore(tmp_path / "logs")
    server = await lab.start(sink=store)
    followed = b""

    async def follow() -> None:
        nonlocal followed
        async for part in store.follow(
            "w1", 1, "worker-0", is_ended=lambda: bool(server.find(TaskCleared, "w1.1"))
        ):
            followed += part.data

    follower = asyncio.create_task(follow())
    await lab.launch(server, launch_of("for i in 1 2 3; do echo line $i; sleep 0.05; done"))
    await server.see(TaskCleared, "w1.1")
    await asyncio.wait_for(follower, 10)
    assert followed == b"line 1\nline 2\nline 3\n" == b"".join(store.download("w1", 1, "worker-0"))
    times = store.times("w1", 1, "worker-0")
    assert len(times) >= 2
    store.close()


@pytest.mark.slow  # sixty megabytes through two servers
async def test_a_large_log_is_exact_in_the_store_when_the_server_changed_in_its_middle(
    lab: EngineLab, tmp_path: Path
):
    script = "python3 -c 'import random,sys; r=random.Random(7); [sys.stdout.buffer.write(r.randbytes(65536)) for _ in range(900)]'"
    first = LogStore(tmp_path / "logs")
    server = await lab.start(sink=first)
    await lab.launch(server, launch_of(script))
    await server.until(lambda: first.size("w1", 1, "worker-0") > 5_000_000, "some megabytes")
    await lab.stop(server, leaves=False)
    first.close()
    second = LogStore(tmp_path / "logs")
    server = await lab.start(sink=second, epoch=2)
    await server.see(TaskCleared, "w1.1")
    import random

    source = random.Random(7)
    want = hashlib.sha256(b"".join(source.randbytes(65536) for _ in range(900))).hexdigest()
    digest = hashlib.sha256()
    for piece in second.download("w1", 1, "worker-0"):
        digest.update(piece)
    assert second.size("w1", 1, "worker-0") == 900 * 65536
    assert digest.hexdigest() == want
    second.close()
