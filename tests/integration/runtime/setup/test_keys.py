from __future__ import annotations

import stat
import subprocess

import pytest

import sshd as sshd_module
from trainyard.lib.errors import TaskErrors
from trainyard.runtime.setup import ensure_keys, remove_keys
from trainyard.spec.machine import Machine, MachineState
from trainyard.transport.local import LocalTransport
from trainyard.transport.ssh import SshAddress, SshTransport

pytestmark = [pytest.mark.ssh]


def machine(name, address, **more):
    return Machine(name=name, id=name, backend="ssh", state=MachineState.RUNNING, address=address, **more)


@pytest.fixture
async def members(tmp_path):
    """Two hosts with homes and ~/.ssh of their own; sshd reads authorized_keys there."""
    hosts, opened = [], []
    for number in (1, 2):
        home = tmp_path / f"home {number}"
        hosts.append(
            sshd_module.start_sshd(
                tmp_path,
                address=f"127.0.9.{number}",
                home=home,
                settings=[f'AuthorizedKeysFile "{home}/.ssh/authorized_keys" {tmp_path}/client_key.pub'],
                client_key=tmp_path / "client_key",
                known_hosts=tmp_path / "known_hosts",
            )
        )
    for number, host in enumerate(hosts):
        address = SshAddress(
            host.address,
            port=host.port,
            user=host.user,
            identity_files=(host.client_key,),
            known_hosts=host.known_hosts,
        )
        opened.append((machine(f"task{number}.bert", host.address), SshTransport(address)))
    yield opened, hosts
    for _, transport in opened:
        await transport.aclose()
    for host in hosts:
        host.close()


async def ssh(transport, words):
    """What plain ssh does where HOME is the account's home: it reads ~/.ssh/config."""
    return await transport.run(f'ssh -F "$HOME/.ssh/config" -o BatchMode=yes {words}', timeout=20)


@pytest.mark.slow  # eight ssh logins
async def test_every_task_reaches_every_task_when_keys_are_made(members):
    pairs, hosts = members
    peers = await ensure_keys(pairs)
    for _, transport in pairs:
        for target, host in zip(("127.0.9.1", "task1.bert"), hosts, strict=True):
            done = await ssh(transport, f"{target} 'printf %s \"$HOME\"'")
            assert (done.status, done.stdout.decode()) == (0, str(host.home)), done.stderr
    assert {name: (peer.address, peer.port) for name, peer in peers.members.items()} == {
        f"task{number}.bert": (host.address, host.port) for number, host in enumerate(hosts)
    }
    for host in hosts:
        for name in ("id_ed25519", "known_hosts"):
            path = host.home / ".trainyard/keys/bert" / name
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE((host.home / ".ssh").stat().st_mode) == 0o700
        assert stat.S_IMODE((host.home / ".ssh/authorized_keys").stat().st_mode) == 0o600


async def test_other_lines_stay_when_files_are_written_again_and_taken_back(members):
    pairs, hosts = members
    home = hosts[0].home
    (home / ".ssh").mkdir(mode=0o755)
    config, keys = home / ".ssh/config", home / ".ssh/authorized_keys"
    config.write_text("ServerAliveInterval 7\n# mine\nHost other\n    User me")
    config.chmod(0o644)
    keys.symlink_to(home / "dotfiles-keys")
    (home / "dotfiles-keys").write_text("ssh-ed25519 AAAA me")
    await ensure_keys(pairs)
    first = config.read_text(), keys.read_text()
    await ensure_keys(pairs)
    assert (config.read_text(), keys.read_text()) == first
    assert "Host 127.0.9.2 task1.bert" in first[0]
    assert first[0].endswith("ServerAliveInterval 7\n# mine\nHost other\n    User me\n")
    assert first[1].startswith("ssh-ed25519 AAAA me\n")
    assert first[1].count("trainyard-bert") == 2
    assert stat.S_IMODE(config.stat().st_mode) == 0o644
    assert keys.is_symlink()
    # What stands above the first Host line is for all hosts still.
    shown = subprocess.run(["ssh", "-G", "-F", config, "unknown"], capture_output=True, text=True, check=True)
    assert "serveraliveinterval 7" in shown.stdout.lower()
    shown = subprocess.run(
        ["ssh", "-G", "-F", config, "task1.bert"], capture_output=True, text=True, check=True
    )
    assert f"port {hosts[1].port}\n" in shown.stdout
    assert "stricthostkeychecking true\n" in shown.stdout
    assert "serveraliveinterval 7" in shown.stdout.lower()

    await remove_keys(pairs)
    await remove_keys(pairs)
    assert config.read_text() == "ServerAliveInterval 7\n# mine\nHost other\n    User me\n"
    assert keys.read_text() == "ssh-ed25519 AAAA me\n"
    assert not (home / ".trainyard/keys/bert").exists()
    assert (hosts[1].home / ".ssh/authorized_keys").read_text() == ""


async def test_login_is_refused_when_the_host_key_is_another(members):
    pairs, hosts = members
    await ensure_keys(pairs)
    known = hosts[0].home / ".trainyard/keys/bert/known_hosts"
    other = sshd_module.write_key(hosts[0].folder / "other_key")
    known.write_text(f"[127.0.9.2]:{hosts[1].port} {other}\n")
    done = await ssh(pairs[0][1], "127.0.9.2 true")
    assert done.status == 255
    assert b"Host key verification failed" in done.stderr


async def test_an_unclosed_block_costs_nobody_their_lines_when_files_are_written(members):
    pairs, hosts = members
    (hosts[0].home / ".ssh").mkdir(mode=0o700)
    keys = hosts[0].home / ".ssh/authorized_keys"
    keys.write_text("# >>> trainyard bert >>>\nssh-ed25519 BBBB precious\n")
    await ensure_keys(pairs)
    assert "precious" in keys.read_text()
    assert keys.read_text().count(">>> trainyard bert >>>") == 1


async def test_failure_names_the_machine_when_one_cannot_be_written(members):
    pairs, hosts = members
    (hosts[1].home / ".ssh").write_text("a file where the folder should be")
    with pytest.raises(TaskErrors, match=r"task1\.bert") as caught:
        await ensure_keys(pairs)
    assert len(caught.value.exceptions) == 1
    await remove_keys(pairs)


async def test_a_single_machine_can_log_in_to_itself_when_it_is_alone(members):
    pairs, _ = members
    peers = await ensure_keys(pairs[:1])
    assert peers is not None
    assert list(peers.members) == [pairs[0][0].name]
    await remove_keys(pairs[:1])


async def test_nothing_is_done_when_machines_are_not_reached_by_ssh(tmp_path):
    local = LocalTransport(tmp_path, {"HOME": str(tmp_path)})
    assert await ensure_keys([(machine("task0.a", ""), local), (machine("task1.a", ""), local)]) is None
    await remove_keys([(machine("task0.a", ""), local)])
    await local.aclose()
    assert not (tmp_path / ".ssh").exists()
