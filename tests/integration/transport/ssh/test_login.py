"""Getting in: keys, agents, jump hosts, ssh's configuration file, any login shell, and the ssh program itself."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sshd import Sshd, write_key
from trainyard.lib.errors import DeniedError, InvalidError, UnreachableError
from trainyard.transport import ssh_connect
from trainyard.transport.ssh import SshAddress, SshTransport, parse_address

pytestmark = pytest.mark.ssh


def address_of(host: Sshd) -> SshAddress:
    return SshAddress(host.address, host.port, host.user, (host.client_key,), known_hosts=host.known_hosts)


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch, isolation: Path) -> Iterator[Path]:
    path = Path(os.environ["TMUX_TMPDIR"]) / "agent"
    process = subprocess.Popen(["ssh-agent", "-D", "-a", path], stdout=subprocess.DEVNULL)
    monkeypatch.setenv("SSH_AUTH_SOCK", str(path))
    while subprocess.run(["ssh-add", "-l"], capture_output=True).returncode == 2:
        assert process.poll() is None
    yield path
    process.terminate()
    process.wait()


def authorize(host: Sshd, public: str) -> None:
    (host.folder / "authorized_keys").write_text(public + "\n")


async def test_key_is_refused_when_the_host_does_not_have_it(sshd: Sshd, reach, tmp_path):
    write_key(tmp_path / "mine")

    with pytest.raises(DeniedError) as caught:
        await reach(sshd, identity_files=(tmp_path / "mine",)).run("true")

    assert f"{sshd.address}:{sshd.port} does not let {sshd.user} in" in caught.value.message
    assert str(tmp_path / "mine") in caught.value.message
    assert "authorized_keys" in caught.value.hint


async def test_key_file_is_read_again_when_it_was_replaced(sshd: Sshd, reach, tmp_path):
    write_key(tmp_path / "mine")
    with pytest.raises(DeniedError):
        await reach(sshd, identity_files=(tmp_path / "mine",)).run("true")

    authorize(sshd, write_key(tmp_path / "mine"))

    assert (await reach(sshd, identity_files=(tmp_path / "mine",)).run("true")).status == 0


async def test_key_file_is_read_once_when_many_connections_are_opened(sshds, reach):
    """Checking a key of RSA takes a fifth of a second, in which nobody else does anything."""
    hosts = sshds(3)
    before = ssh_connect._read_key.cache_info().misses
    key = hosts[0].client_key
    for host in hosts:
        assert host.client_key.read_bytes() == key.read_bytes()
        assert (await reach(host, identity_files=(key,)).run("true")).status == 0
    assert ssh_connect._read_key.cache_info().misses == before + 1


async def test_second_key_lets_us_in_when_the_host_does_not_know_the_first(sshd: Sshd, reach, tmp_path):
    write_key(tmp_path / "other")

    assert (await reach(sshd, identity_files=(tmp_path / "other", sshd.client_key)).run("true")).status == 0


async def test_locked_key_is_named_when_no_agent_has_it(sshd: Sshd, reach, tmp_path):
    authorize(sshd, write_key(tmp_path / "locked", passphrase="secret"))

    with pytest.raises(DeniedError, match="locked with a passphrase") as caught:
        await reach(sshd, identity_files=(tmp_path / "locked",)).run("true")

    assert f"ssh-add {tmp_path / 'locked'}" in caught.value.hint


@pytest.mark.slow  # locking a key is slow on purpose
async def test_agent_lets_in_when_the_key_file_is_locked(sshd: Sshd, reach, tmp_path, agent):
    authorize(sshd, write_key(tmp_path / "locked", passphrase="secret"))
    shutil.copy(tmp_path / "locked", tmp_path / "open")
    subprocess.run(
        ["ssh-keygen", "-q", "-p", "-P", "secret", "-N", "", "-f", tmp_path / "open"],
        check=True,
        capture_output=True,
    )
    subprocess.run(["ssh-add", "-q", tmp_path / "open"], check=True)

    assert (await reach(sshd, identity_files=(tmp_path / "locked",)).run("true")).status == 0
    assert (await reach(sshd, identity_files=()).run("true")).status == 0


async def test_agent_keys_are_named_when_they_do_not_let_in(sshd: Sshd, reach, tmp_path, agent):
    write_key(tmp_path / "other")
    subprocess.run(["ssh-add", "-q", tmp_path / "other"], check=True)

    with pytest.raises(DeniedError, match="of the ssh agent"):
        await reach(sshd, identity_files=()).run("true")


async def test_named_key_lets_in_when_the_agent_has_too_many(sshds, reach, tmp_path, agent):
    (host,) = sshds(1, settings=["MaxAuthTries 2"])
    for number in range(4):
        write_key(tmp_path / f"other{number}")
        subprocess.run(["ssh-add", "-q", tmp_path / f"other{number}"], check=True)

    assert (await reach(host).run("true")).status == 0
    child = await asyncio.create_subprocess_exec(*reach(host).argv("echo in", terminal=False), stdout=-1)
    assert (await child.communicate())[0] == b"in\n"
    with pytest.raises(DeniedError, match="stops after so many keys"):
        await reach(host, identity_files=()).run("true")


async def test_dead_agent_is_no_error_when_a_key_file_lets_in(sshd: Sshd, reach, monkeypatch, tmp_path):
    monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "nobody"))

    assert (await reach(sshd).run("true")).status == 0


async def test_default_key_files_let_in_when_none_is_named(sshd: Sshd, reach, isolation: Path):
    authorize(sshd, write_key(isolation / ".ssh" / "id_ed25519"))

    assert (await reach(sshd, identity_files=()).run("true")).status == 0


async def test_refusal_says_so_when_there_is_no_key_at_all(sshd: Sshd, reach):
    with pytest.raises(DeniedError, match="no key, for there is none"):
        await reach(sshd, identity_files=()).run("true")


async def test_missing_key_file_is_named(sshd: Sshd, reach, tmp_path):
    with pytest.raises(InvalidError, match="missing"):
        await reach(sshd, identity_files=(tmp_path / "missing",)).run("true")


async def test_broken_key_file_is_named(sshd: Sshd, reach, tmp_path):
    (tmp_path / "broken").write_text("not a key")

    with pytest.raises((InvalidError, DeniedError)):
        await reach(sshd, identity_files=(tmp_path / "broken",)).run("true")


async def test_configuration_file_is_honoured(sshd: Sshd, reach, hostile_path: Path, tmp_path):
    config = hostile_path / "config"
    config.write_text(
        f"Host alpha\n  HostName {sshd.address}\n  Port {sshd.port}\n  User {sshd.user}\n"
        f"  IdentityFile {tmp_path}/none\n  IdentityFile {sshd.client_key}\n  UserKnownHostsFile {sshd.known_hosts}\n"
        "Host *\n  StrictHostKeyChecking no\n"
    )
    transport = SshTransport(SshAddress("alpha", config_file=config))

    assert (await transport.run("echo in")).stdout == b"in\n"
    assert await transport.server_address() == (sshd.address, sshd.port)
    await transport.aclose()


async def test_strict_checking_stays_when_the_configuration_file_says_no(sshd: Sshd, tmp_path):
    config = tmp_path / "config"
    config.write_text("Host *\n  StrictHostKeyChecking no\n  UserKnownHostsFile /dev/null\n")
    address = replace(address_of(sshd), known_hosts=None, config_file=config)
    transport = SshTransport(address)

    with pytest.raises(DeniedError, match="is not known"):
        await transport.run("true")


async def test_configuration_file_is_named_when_it_is_broken(sshd: Sshd, reach, tmp_path):
    config = tmp_path / "config"
    config.write_text("Host *\n  Port many\n")

    with pytest.raises(InvalidError, match=str(config)):
        await reach(sshd, config_file=config).run("true")


async def test_two_jump_hosts_lead_to_a_third(sshds, reach):
    first, second, third = sshds(3)
    transport = reach(third, jump=(address_of(first), f"{second.user}@{second.address}:{second.port}"))

    assert (await transport.run('printf %s "$HOME"')).stdout == str(third.home).encode()
    assert await transport.server_address() == (third.address, third.port)
    await transport.aclose()
    for host in (first, second, third):
        assert host.log.count("Accepted publickey") == 1


@pytest.mark.slow  # two ssh programs, one inside the other
async def test_jump_host_of_the_configuration_file_is_used(sshds, tmp_path):
    gate, inner = sshds(2)
    config = tmp_path / "config"
    config.write_text(
        f"Host inner\n  HostName {inner.address}\n  Port {inner.port}\n  ProxyJump gate\n"
        f"Host gate\n  HostName {gate.address}\n  Port {gate.port}\n"
        f"Host *\n  User {gate.user}\n  IdentityFile {gate.client_key}\n  UserKnownHostsFile {gate.known_hosts}\n"
    )
    transport = SshTransport(SshAddress("inner", config_file=config))

    assert (await transport.run('printf %s "$HOME"')).stdout == str(inner.home).encode()
    assert gate.log.count("Accepted publickey") == 1
    child = await asyncio.create_subprocess_exec(*transport.argv("echo by ssh", terminal=False), stdout=-1)
    assert (await child.communicate())[0] == b"by ssh\n"
    await transport.aclose()


@pytest.mark.slow  # tried again
async def test_jump_host_is_named_when_it_cannot_reach_the_host(sshds, reach):
    gate, inner = sshds(2)
    inner.stop()

    with pytest.raises(UnreachableError, match=rf"jump host {gate.address} cannot reach {inner.address}"):
        await reach(inner, jump=(address_of(gate),)).run("true")


async def test_next_use_works_when_the_jump_host_cut_the_link(sshds, reach):
    gate, inner = sshds(2)
    transport = reach(inner, jump=(address_of(gate),))
    await transport.run("true")
    process = await transport.spawn("cat")

    gate.cut()

    with pytest.raises(UnreachableError):
        await process.wait()
    assert (await transport.run("echo back")).stdout == b"back\n"


SHELLS = [shell for shell in ("bash", "dash", "zsh", "fish", "busybox sh") if shutil.which(shell.split()[0])]


@pytest.mark.slow  # runs the ssh program, whose own key exchange is slow
@pytest.mark.parametrize("shell", SHELLS)
async def test_scripts_are_exact_whatever_the_login_shell(sshds, reach, shell: str):
    (host,) = sshds(1, shell=shell)
    transport = reach(host)
    script = "printf '%s|' 'a\\b' \"it's\" 'x\\\\y' \"$A\" '!h' 'new\nline'; exit 3"

    done = await transport.run(script, env={"A": "'q' \\ \"d\" $x\n"})

    assert (done.status, done.stdout) == (3, b"a\\b|it's|x\\\\y|'q' \\ \"d\" $x\n|!h|new\nline|")
    with pytest.raises(TimeoutError):
        await transport.run("sleep 1000", timeout=0.1)
    child = await asyncio.create_subprocess_exec(*transport.argv(script, terminal=False), stdout=-1)
    assert (await child.communicate())[0] == b"a\\b|it's|x\\\\y||!h|new\nline|"


@pytest.mark.slow  # three ssh programs, one inside the other
async def test_ssh_program_takes_the_same_way(sshds, hostile_path: Path):
    first, second, third = sshds(3)
    key, known = hostile_path / "key %d", hostile_path.parent / "known 'hosts' %h \"x\" \\ 中"
    for suffix in ("", ".pub"):
        shutil.copy(f"{third.client_key}{suffix}", f"{key}{suffix}")
    shutil.copy(third.known_hosts, known)
    key = third.client_key
    jump = tuple(replace(address_of(host), known_hosts=known) for host in (first, second))
    transport = SshTransport(
        replace(address_of(third), identity_files=(key,), known_hosts=known, jump=jump), env={"X": "a 'b'"}
    )

    child = await asyncio.create_subprocess_exec(
        *transport.argv('printf "%s|%s" "$X" "$HOME"; exit 5', terminal=False), stdout=-1
    )

    assert (await child.communicate())[0] == f"a 'b'|{third.home}".encode()
    assert child.returncode == 5
    assert first.log.count("Accepted publickey") == 1


async def test_ssh_program_refuses_an_unknown_host_too(sshd: Sshd, reach, tmp_path):
    words = reach(sshd, known_hosts=tmp_path / "empty").argv("echo in", terminal=False)

    child = await asyncio.create_subprocess_exec(*words, stdout=-1, stderr=-1)

    out, err = await child.communicate()
    assert (out, child.returncode) == (b"", 255)
    assert b"verification failed" in err


async def test_ssh_program_opens_a_login_shell_when_there_is_no_script(sshd: Sshd, reach):
    words = reach(sshd).argv(terminal=False)

    child = await asyncio.create_subprocess_exec(*words, stdin=-1, stdout=-1, stderr=-1)

    out, _ = await child.communicate(b"echo in $HOME; exit 4\n")
    assert (out, child.returncode) == (f"in {sshd.home}\n".encode(), 4)


def test_terminal_is_asked_for_when_a_person_attaches(sshd: Sshd, reach):
    assert "-t" in reach(sshd).argv("tmux attach")
    assert "-t" not in reach(sshd).argv("tmux attach", terminal=False)


@pytest.mark.parametrize(
    ("text", "host", "port", "user"),
    [
        ("gate", "gate", 22, ""),
        ("me@gate:2222", "gate", 2222, "me"),
        ("me@domain@gate", "gate", 22, "me@domain"),
        ("[::1]:22", "::1", 22, ""),
        ("me@[fe80::1%eth0]:99", "fe80::1%eth0", 99, "me"),
        ("-oProxyCommand=x", "", 0, ""),
        ("gate:99999", "", 0, ""),
        ("gate:port", "", 0, ""),
        ("", "", 0, ""),
    ],
)
def test_addresses_are_read_or_refused(text: str, host: str, port: int, user: str):
    if not host:
        with pytest.raises(InvalidError):
            parse_address(text)
        return
    address = parse_address(text)
    assert (address.host, address.port, address.user) == (host, port, user)
