"""The way through the platform's server keeps the promises of `transport/api.py`, on a real platform."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from platforms import Up, platform
from trainyard.client.connection import Connection
from trainyard.lib.ids import new_id
from trainyard.transport import contract
from trainyard.transport.contract import TransportContract
from trainyard.transport.gateway import GatewayTransport

pytestmark = [
    pytest.mark.slow
]  # a whole platform is started for them, and every command passes three processes


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with platform(tmp_path_factory.mktemp("gateway")) as running:
        yield running


@pytest.fixture(scope="module")
def job(up: Up) -> str:
    job = up.submit("sleep 3600", name="place")
    up.until(job, "running")
    return job


class TestGateway(TransportContract):
    @pytest.fixture
    async def transport(self, up: Up, job: str, tmp_path: Path) -> AsyncIterator[GatewayTransport]:
        connection = Connection(up.url, up.token)
        transport = GatewayTransport(
            connection, job, "worker-0", name="task0.contract", place=f".trainyard/places/{new_id()}"
        )
        yield transport
        await transport.aclose()
        await connection.aclose()

    @pytest.fixture(autouse=True)
    def _login(self, up: Up, monkeypatch: pytest.MonkeyPatch) -> None:
        """What a person's terminal needs beside its words: who asks, which must not be among them."""
        words = {"PATH": os.defpath, "TRAINYARD_SERVER": up.url, "TRAINYARD_TOKEN": up.token}
        monkeypatch.setattr(contract, "_environment", lambda: words)
