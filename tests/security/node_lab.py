"""What tests of a hostile task share: a node with a real agent, and a home that goes however deep it was filled."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "integration" / "engines" / "nodes"))

from engine_lab import EngineLab, OpenSink, Watched, alive, kill, lab_in, launch_of

from trainyard.engines.api import NodeSeen
from trainyard.lib.remove_tree import remove_tree

__all__ = [
    "EngineLab",
    "OpenSink",
    "Watched",
    "alive",
    "kill",
    "launch_of",
    "node_in",
    "notices",
    "restart",
    "small_disk",
]


@contextmanager
def small_disk(folder: Path, mib: int) -> Iterator[Path]:
    """A disk of its own, which is soon full."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={mib}m", "tmpfs", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


@asynccontextmanager
async def node_in(folder: Path) -> AsyncIterator[EngineLab]:
    """A lab with one node; what hostile tasks made there is removed too, since pytest would trip over it."""
    home = folder / "home"
    try:
        async with lab_in(home) as lab:
            yield lab
    finally:
        problem = remove_tree(home)
        assert problem is None, problem


async def restart(lab: EngineLab, server: Watched) -> Watched:
    """The agent is killed, and a new one is started by a new server."""
    agent = lab.agent_pid()
    await lab.stop(server, leaves=False)
    if agent:
        kill(agent)
    return await lab.start(epoch=lab.epoch + 1)


def notices(server: Watched) -> str:
    """What the node said last that its operator should know."""
    seen = [one for one in server.seen if isinstance(one, NodeSeen)]
    return "\n".join(seen[-1].facts.notices) if seen else ""
