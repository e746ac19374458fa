"""One file from a hostile host: its mode and its first line are chosen by whoever runs the host."""

from __future__ import annotations

import asyncio

import pytest

from trainyard.lib.errors import InvalidError
from trainyard.transport.ssh import SshAddress, SshTransport

pytestmark = pytest.mark.ssh


@pytest.fixture
async def way(sshd):
    made = SshTransport(
        SshAddress(sshd.address, sshd.port, sshd.user, (sshd.client_key,), known_hosts=sshd.known_hosts)
    )
    yield made
    await made.aclose()


async def test_no_file_runs_as_its_owner_when_the_host_says_so(sshd, way, tmp_path):
    (sshd.home / "tool").write_text("#!/bin/sh\n")
    (sshd.home / "tool").chmod(0o6755)
    await way.get("tool", tmp_path / "tool")
    assert (tmp_path / "tool").stat().st_mode & 0o7777 == 0o755


@pytest.mark.parametrize("line", ["nonsense", "-755", "99999", "7" * 100, ""])
async def test_the_file_is_refused_when_the_host_gives_no_mode(sshd, way, tmp_path, line, monkeypatch):
    from trainyard.transport import ssh

    # What a host does that answers as it likes: an endless stream behind a first line of its own.
    monkeypatch.setattr(ssh, "_GET", f"echo '{line}'; exec cat /dev/zero")
    with pytest.raises(InvalidError, match="cannot be understood"):
        async with asyncio.timeout(30):
            await way.get("x", tmp_path / "x")
    assert not [path for path in tmp_path.iterdir() if path.name.startswith((".trainyard-", "x"))]
