"""Host keys are verified, always: unknown is refused with what to do, changed is refused louder, accepted is known."""

from __future__ import annotations

import asyncio
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from sshd import Sshd, start_sshd, write_key
from trainyard.lib.errors import DeniedError, InvalidError
from trainyard.transport.ssh import SshAddress, accept_host_key, chain, fetch_host_key

pytestmark = pytest.mark.ssh


def fingerprint(host: Sshd) -> str:
    shown = subprocess.run(
        ["ssh-keygen", "-lf", host.folder / "host_key.pub"], capture_output=True, text=True
    )
    return shown.stdout.split()[1]


def address_of(host: Sshd) -> SshAddress:
    return SshAddress(host.address, host.port, host.user, (host.client_key,), known_hosts=host.known_hosts)


async def test_unknown_host_is_refused_with_its_fingerprint_and_the_command(sshd: Sshd, reach, tmp_path):
    transport = reach(sshd, known_hosts=tmp_path / "empty")

    with pytest.raises(DeniedError) as caught:
        await transport.run("touch pwned")

    assert f"the host key of {sshd.address}:{sshd.port} is not known" in caught.value.message
    assert f"ssh-ed25519 key {fingerprint(sshd)}" in caught.value.message
    assert f"`trainyard hosts accept alpha --fingerprint {fingerprint(sshd)}`" in caught.value.hint
    assert list(sshd.home.iterdir()) == []
    assert "Accepted" not in sshd.log


async def test_changed_key_is_refused_louder(sshd: Sshd, reach, tmp_path):
    other = write_key(tmp_path / "other")
    known = tmp_path / "known"
    known.write_text(f"[{sshd.address}]:{sshd.port} {other}\n")

    with pytest.raises(DeniedError, match="HAS CHANGED") as caught:
        await reach(sshd, known_hosts=known).run("true")

    assert fingerprint(sshd) in caught.value.message
    assert "HAS CHANGED" in caught.value.message
    assert "--fingerprint" in caught.value.hint


async def test_key_of_another_port_does_not_count_as_changed(sshd: Sshd, reach, tmp_path):
    known = tmp_path / "known"
    known.write_text(f"{sshd.address} {write_key(tmp_path / 'other')}\n")

    with pytest.raises(DeniedError, match="is not known"):
        await reach(sshd, known_hosts=known).run("true")


async def test_revoked_key_is_refused(sshd: Sshd, reach, tmp_path):
    known = tmp_path / "known"
    known.write_text(sshd.known_hosts_line + f"@revoked * {sshd.host_public_key}\n")

    with pytest.raises(DeniedError, match="revoked"):
        await reach(sshd, known_hosts=known).run("true")


async def test_host_is_known_when_its_line_is_hashed_among_thousands(sshd: Sshd, reach, tmp_path):
    known = tmp_path / "known"
    other = write_key(tmp_path / "other")
    lines = [f"host{number}.example,10.0.0.{number % 250} {other}\n" for number in range(3000)]
    known.write_text("# comment\n\n" + "".join(lines) + sshd.known_hosts_line)
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", known], check=True, capture_output=True)
    with known.open("a") as file:
        file.write("broken\nother.example not-a-key\n")
    assert sshd.address not in known.read_text()

    assert (await reach(sshd, known_hosts=known).run("true")).status == 0


async def test_host_is_known_when_an_authority_vouches_for_it(sshd: Sshd, reach, tmp_path):
    authority = write_key(tmp_path / "authority")
    sign = ["ssh-keygen", "-q", "-s", tmp_path / "authority", "-I", "host", "-h", "-n", sshd.address]
    subprocess.run([*sign, sshd.folder / "host_key.pub"], check=True)
    sshd.settings = (f"HostCertificate {sshd.folder}/host_key-cert.pub",)
    sshd.restart()
    known = tmp_path / "known"
    known.write_text(f"@cert-authority * {authority}\n")

    assert (await reach(sshd, known_hosts=known).run("true")).status == 0


async def test_accepted_host_is_known_to_us_and_to_ssh(sshd: Sshd, reach, hostile_path: Path):
    known = hostile_path / "ssh" / "known_hosts"
    address = replace(address_of(sshd), known_hosts=known)

    key = await fetch_host_key(address)
    assert (key.algorithm, key.fingerprint) == ("ssh-ed25519", fingerprint(sshd))
    assert key.line == sshd.host_public_key
    assert not known.exists()
    await accept_host_key(address, key.fingerprint, known)

    assert known.read_text() == sshd.known_hosts_line
    assert known.stat().st_mode & 0o777 == 0o600
    assert (await reach(sshd, known_hosts=known).run("true")).status == 0
    assert await reach(sshd, known_hosts=known).host_key() == sshd.host_public_key


async def test_accept_is_refused_when_the_fingerprint_is_another(sshd: Sshd, tmp_path):
    known = tmp_path / "known"

    with pytest.raises(DeniedError, match=r"not SHA256:wrong"):
        await accept_host_key(address_of(sshd), "SHA256:wrong", known)

    assert not known.exists()


async def test_accept_replaces_the_old_key_and_keeps_other_lines(sshd: Sshd, reach, tmp_path):
    known = tmp_path / "known"
    other = write_key(tmp_path / "other")
    name = f"[{sshd.address}]:{sshd.port}"
    known.write_text(f"# mine\n{name} {other}\nbeta,{name} {other} note\ngamma {other}\n")
    known.chmod(0o644)

    for _ in range(2):
        await accept_host_key(address_of(sshd), fingerprint(sshd), known)

    assert known.read_text() == f"# mine\nbeta {other} note\ngamma {other}\n{sshd.known_hosts_line}"
    assert known.stat().st_mode & 0o777 == 0o644
    assert (await reach(sshd, known_hosts=known).run("true")).status == 0


async def test_no_line_is_lost_when_hosts_are_accepted_at_once(sshds, tmp_path):
    hosts = sshds(8)
    known = tmp_path / "known"

    await asyncio.gather(*(accept_host_key(address_of(host), fingerprint(host), known) for host in hosts))

    assert sorted(known.read_text().splitlines(keepends=True)) == sorted(
        host.known_hosts_line for host in hosts
    )


async def test_refused_again_when_the_host_is_installed_anew(tmp_path, sshd: Sshd, reach):
    transport = reach(sshd)
    await transport.run("true")
    write_key(sshd.folder / "host_key")
    sshd.restart()

    with pytest.raises(DeniedError, match="HAS CHANGED"):
        await transport.run("true")


async def test_unreadable_known_hosts_is_told(sshd: Sshd, reach, tmp_path):
    known = tmp_path / "known"
    known.write_text(f"@strange [{sshd.address}]:{sshd.port} {sshd.host_public_key}\n")

    with pytest.raises(InvalidError, match="known_hosts"):
        await reach(sshd, known_hosts=known).run("true")


async def test_jump_host_must_be_known_too(sshds, reach, tmp_path):
    gate, inner = sshds(2)
    known = tmp_path / "known"
    known.write_text(inner.known_hosts_line)
    address = replace(address_of(inner), known_hosts=known, jump=(f"{gate.user}@{gate.address}:{gate.port}",))

    with pytest.raises(DeniedError, match=rf"{gate.address}:{gate.port} is not known"):
        await reach(inner, known_hosts=known, jump=address.jump).run("true")
    with pytest.raises(DeniedError, match=rf"{gate.address}:{gate.port} is not known"):
        await fetch_host_key(address)

    for hop in chain(address):
        await accept_host_key(hop, (await fetch_host_key(hop)).fingerprint)
    assert (await reach(inner, known_hosts=known, jump=address.jump).run("true")).status == 0


async def test_host_behind_a_known_gate_is_unknown_not_changed(sshds, reach, tmp_path):
    gate, inner = sshds(2)
    known = tmp_path / "known"
    known.write_text(gate.known_hosts_line + f"{gate.address} {gate.host_public_key}\n")

    with pytest.raises(DeniedError, match=rf"{inner.address}:{inner.port} is not known"):
        await reach(inner, known_hosts=known, jump=(address_of(gate),)).run("true")


async def test_default_file_is_used_when_none_is_named(sshd: Sshd, reach, isolation):
    with pytest.raises(DeniedError, match="is not known"):
        await reach(sshd, known_hosts=None).run("true")

    await accept_host_key(replace(address_of(sshd), known_hosts=None), fingerprint(sshd))

    assert (isolation / ".ssh" / "known_hosts").read_text() == sshd.known_hosts_line
    assert (await reach(sshd, known_hosts=None).run("true")).status == 0


def test_sshd_fixture_has_its_own_key_for_every_host(tmp_path):
    first, second = start_sshd(tmp_path), start_sshd(tmp_path)
    try:
        assert first.host_public_key != second.host_public_key
        assert first.port != second.port
    finally:
        first.close()
        second.close()
