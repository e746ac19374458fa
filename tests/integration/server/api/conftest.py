"""A server's REST application in this process, on a database of its own: rest_server.py has it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rest_server import Rig, serving
from trainyard.client import Client


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    made = Rig(tmp_path / "data")
    yield made
    made.close()


@pytest.fixture
def make_rig(tmp_path: Path) -> Iterator[Callable[..., Rig]]:
    """A factory: several servers of one platform."""
    made: list[Rig] = []

    def make(name: str, **options: Any) -> Rig:
        made.append(Rig(tmp_path / name, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def rig_now(tmp_path: Path) -> Iterator[Rig]:
    """The same for a test without a loop of its own."""
    made = Rig(tmp_path / "data")
    yield made
    made.close()


@pytest.fixture
async def client(rig: Rig) -> AsyncIterator[Client]:
    async with rig.client() as made:
        yield made


@pytest.fixture
def serve() -> Iterator[Callable[[Any], str]]:
    """Real uvicorn on loopback, in a thread with a loop of its own; the address."""
    with serving() as start:
        yield start
