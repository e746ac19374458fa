"""The way through the platform's server keeps the promises of `transport/api.py`, on a real platform."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from lab import entry
from platforms import Up, platform, stop_all
from sshd import start_sshds
from trainyard.backends.ssh import inventory
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
def host(up: Up, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A node that the server itself reaches by ssh."""
    folder = tmp_path_factory.mktemp("hosts")
    hosts = start_sshds(1, folder, first_address=70)
    try:
        path = Path(up.env["TRAINYARD_HOME"]) / "hosts.toml"
        path.parent.mkdir(parents=True, exist_ok=True)
        inventory.add(path, entry("far", hosts[0], folder / "leases"))
        up.call("POST", "/api/v1/nodes", {"name": "far", "address": {"backend": "ssh", "host": "far"}})
        # The contract looks for processes by their numbers: those of a view are not this computer's.
        up.call("PATCH", "/api/v1/nodes/far", {"options": {"isolation": "off"}})
        yield "far"
        stop_all(up)  # while it is there: nobody could say later that a job on it has ended
        up.call("PUT", "/api/v1/nodes/far/desired", {"desired": "drained"})
    finally:
        hosts[0].close()


def held(up: Up, node: str) -> str:
    job = up.submit("sleep 3600", name="place", roles=[{"cpu": 0.1, "nodes": [node]}])
    up.until(job, "running")
    return job


@pytest.fixture(scope="module")
def near(up: Up) -> str:
    return held(up, "local")


@pytest.fixture(scope="module")
def far(up: Up, host: str) -> str:
    return held(up, host)


class TestGateway(TransportContract):
    @pytest.fixture
    def job(self, near: str) -> str:
        return near

    @pytest.fixture
    async def transport(self, up: Up, job: str) -> AsyncIterator[GatewayTransport]:
        connection = Connection(up.url, up.token)
        transport = GatewayTransport(
            connection, job, "worker-0", name="task0.contract", place=f".trainyard/places/{new_id()}"
        )
        yield transport
        await transport.run('rm -rf "$TMUX_TMPDIR" "${HOME%/home}"')  # nobody holds this place
        await transport.aclose()
        await connection.aclose()

    @pytest.fixture(autouse=True)
    def _login(self, up: Up, monkeypatch: pytest.MonkeyPatch) -> None:
        """What a person's terminal needs beside its words: who asks, which must not be among them."""
        words = {"PATH": os.defpath, "TRAINYARD_SERVER": up.url, "TRAINYARD_TOKEN": up.token}
        monkeypatch.setattr(contract, "_environment", lambda: words)


@pytest.mark.ssh
class TestGatewayToANodeBehindSsh(TestGateway):
    @pytest.fixture
    def job(self, far: str) -> str:
        return far
