"""Sessions on a local machine and through a real sshd: the same tests for both."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from trainyard.runtime.session import Session
from trainyard.transport.api import Transport
from trainyard.transport.local import LocalTransport
from trainyard.transport.ssh import SshTransport
from trainyard.transport.ssh_address import SshAddress


@pytest.fixture(params=["local", pytest.param("ssh", marks=pytest.mark.ssh)])
def connect(request: pytest.FixtureRequest, hostile_path: Path) -> Callable[[], Transport]:
    """Makes transports to one machine: call it twice to be two clients."""
    if request.param == "local":
        home = hostile_path / "home"
        home.mkdir()
        env = {**os.environ, "HOME": str(home), "TRAINYARD_MACHINE": "task0.x:1", "PYTHONUNBUFFERED": "1"}
        return lambda: LocalTransport(home, env)
    host = request.getfixturevalue("sshd")

    def ssh() -> Transport:
        address = SshAddress(
            host=host.address,
            port=host.port,
            user=host.user,
            identity_files=(host.client_key,),
            known_hosts=host.known_hosts,
        )
        return SshTransport(address, name="task0.x", env={"TRAINYARD_MACHINE": "task0.x:1"})

    return ssh


@pytest.fixture
async def transport(connect: Callable[[], Transport]) -> AsyncIterator[Transport]:
    way = connect()
    yield way
    # The session outlives the client on purpose: end it as its machine would.
    gone = "p=~/.trainyard/task0.x/pid; while [ -e $p ] && kill -0 $(cat $p) 2>/dev/null; do sleep 0.02; done"
    await way.run(f"tmux kill-server 2>/dev/null; {gone}", timeout=10)
    await way.aclose()


@pytest.fixture
async def session(transport: Transport) -> AsyncIterator[Session]:
    made = Session(transport=transport, machine="task0.x")
    await made.open()
    yield made
    await made.aclose()


class Shell:
    """Runs texts and gives (status, bytes)."""

    def __init__(self, session: Session) -> None:
        self.session = session

    async def __call__(self, text: str, **options: object) -> tuple[int, bytes]:
        pieces: list[bytes] = []
        ended = await self.session.run(text, collect=pieces.append, **options)  # type: ignore[arg-type]
        return ended.status, b"".join(pieces)


@pytest.fixture
def run(session: Session) -> Shell:
    return Shell(session)
