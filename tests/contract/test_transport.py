"""The transport contract against every transport there is."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sshd import Sshd
from trainyard.transport.contract import TransportContract
from trainyard.transport.local import LocalTransport
from trainyard.transport.ssh import SshAddress, SshTransport


class TestLocal(TransportContract):
    @pytest.fixture
    async def transport(self, tmp_path: Path) -> AsyncIterator[LocalTransport]:
        home = tmp_path / "machine"
        home.mkdir()
        transport = LocalTransport(home, {"HOME": str(home)}, inherited=dict(os.environ))
        yield transport
        await transport.aclose()


@pytest.mark.ssh
class TestSsh(TransportContract):
    @pytest.fixture
    async def transport(self, sshd: Sshd) -> AsyncIterator[SshTransport]:
        address = SshAddress(
            sshd.address,
            sshd.port,
            sshd.user,
            identity_files=(sshd.client_key,),
            known_hosts=sshd.known_hosts,
        )
        transport = SshTransport(address, name="alpha")
        yield transport
        await transport.aclose()

    @pytest.mark.usefixtures("ssh_terminals")
    async def test_a_terminal_has_a_size_when_asked_for(self, transport: SshTransport) -> None:
        await super().test_a_terminal_has_a_size_when_asked_for(transport)

    @pytest.mark.usefixtures("ssh_terminals")
    async def test_a_terminal_program_ends_when_terminated(self, transport: SshTransport) -> None:
        await super().test_a_terminal_program_ends_when_terminated(transport)
