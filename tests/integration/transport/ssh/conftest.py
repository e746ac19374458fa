"""Transports to test hosts that close with the test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import pytest

from sshd import Sshd
from trainyard.transport.ssh import SshAddress, SshTransport

Connect = Callable[..., SshTransport]


def address_of(host: Sshd, /, **changes: object) -> SshAddress:
    address = SshAddress(
        host.address, host.port, host.user, identity_files=(host.client_key,), known_hosts=host.known_hosts
    )
    return replace(address, **changes)  # type: ignore[arg-type]


@pytest.fixture
async def reach(isolation: object) -> AsyncIterator[Connect]:
    """`reach(host)` → a transport; `reach(host, port=1)` changes its address."""
    opened: list[SshTransport] = []

    def open_one(host: Sshd, /, *, name: str = "alpha", **changes: object) -> SshTransport:
        transport = SshTransport(address_of(host, **changes), name=name)
        opened.append(transport)
        return transport

    yield open_one
    for transport in opened:
        await transport.aclose()
