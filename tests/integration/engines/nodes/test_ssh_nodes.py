"""Nodes behind real sshds: gangs over several, links that are cut, hosts that go away and come back."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from engine_lab import EngineLab, alive, launch_of

import lab as ssh_lab
from sshd import Sshd
from trainyard.backends.ssh import inventory
from trainyard.backends.ssh.connect import HostTransport
from trainyard.engines.api import NodeAddress, NodeLost, NodeSeen, TaskEnded, TaskStarted, end_one, launch_one
from trainyard.lib.errors import UnreachableError
from trainyard.transport.api import TerminalSize, read_all

pytestmark = [pytest.mark.ssh, pytest.mark.slow]  # real sshds take their time


class SshLab(EngineLab):
    """Nodes h0, h1 … on these sshds."""

    def __init__(self, folder: Path, sshds: list[Sshd]) -> None:
        super().__init__(folder, self.over_ssh)
        self.sshds = sshds
        self._inventory = folder / "hosts.toml"
        for index, host in enumerate(sshds):
            inventory.add(self._inventory, ssh_lab.entry(f"h{index}", host, folder / "leases"))
            self.addresses[f"h{index}"] = NodeAddress(name=f"h{index}", backend="ssh", host=f"h{index}")

    def over_ssh(self, address: NodeAddress) -> HostTransport:
        hosts = inventory.load(self._inventory)
        return HostTransport(hosts.host(address.host), hosts)

    def root(self, node: str = "h0") -> Path:
        return self.sshds[int(node[1:])].home / ".trainyard" / "nodes" / "p1" / node


@pytest.fixture
async def hosts(
    isolation: Path, tmp_path: Path, sshds: Callable[..., list[Sshd]]
) -> AsyncIterator[Callable[[int], SshLab]]:
    """A factory of labs; what they started is ended before the hosts are."""
    labs: list[SshLab] = []

    def start(count: int) -> SshLab:
        labs.append(SshLab(tmp_path, sshds(count)))
        return labs[-1]

    yield start
    for each in labs:
        await each.aclose()


async def test_a_gang_runs_on_three_hosts(hosts: Callable[[int], SshLab]):
    lab = hosts(3)
    server = await lab.start()
    command = 'echo "$TRAINYARD_NODE $TRAINYARD_RANK"; exit $TRAINYARD_RANK'
    await lab.launch(server, launch_of(command, nodes=("h0", "h1", "h2")))
    for rank in range(3):
        ended = await server.ended("w1.1", f"worker-{rank}")
        assert ended.exit_code == rank
        assert server.log("w1.1", f"worker-{rank}") == f"h{rank} {rank}\n".encode()
    assert {each.address for each in server.find(TaskStarted)} == {"127.0.0.1", "127.0.0.2", "127.0.0.3"}


async def test_a_task_is_found_again_when_its_link_was_cut_and_its_host_unreachable(
    hosts: Callable[[int], SshLab],
):
    lab = hosts(1)
    server = await lab.start()
    command = (
        "i=0; while [ ! -e ~/go ]; do echo line $i; i=$((i+1)); sleep 0.01; done; echo $i > ~/count; exit 5"
    )
    await lab.launch(server, launch_of(command, nodes=("h0",)))
    await server.until(lambda: server.log("w1.1"), "output")
    (host,) = lab.sshds
    host.cut()
    at = len(server.log("w1.1"))
    await server.until(lambda: len(server.log("w1.1")) > at, "output after the cut")
    host.stop()
    lost = await server.see(NodeLost)
    assert isinstance(lost, NodeLost)
    assert lost.node == "h0"
    assert not lost.is_refused
    with pytest.raises(UnreachableError, match="h0"):
        await launch_one(server.engine, launch_of("true", "w2.1", nodes=("h0",)))
    assert not server.find(TaskEnded)
    before = len(server.find(NodeSeen))
    host.restart()
    await server.until(lambda: len(server.find(NodeSeen)) > before, "seen again")
    (host.home / "go").write_text("")
    assert (await server.ended("w1.1")).exit_code == 5
    count = int((host.home / "count").read_text())
    assert server.log("w1.1") == b"".join(b"line %d\n" % number for number in range(count))


async def test_a_node_is_lost_when_its_host_freezes(hosts: Callable[[int], SshLab]):
    lab = hosts(1)
    server = await lab.start()
    (host,) = lab.sshds
    host.freeze()
    host.stop()
    await server.see(NodeLost)
    host.restart()
    await server.until(lambda: len(server.find(NodeSeen)) == 2, "seen again")


async def test_every_process_is_gone_when_the_attempt_was_ended(hosts: Callable[[int], SshLab]):
    lab = hosts(2)
    server = await lab.start()
    command = "sleep 1000 & setsid sleep 1000 & echo $! > ~/pid; echo up; sleep 1000"
    await lab.launch(server, launch_of(command, nodes=("h0", "h1")))
    await server.until(lambda: server.log("w1.1", "worker-0") and server.log("w1.1", "worker-1"), "both up")
    pids = [int((host.home / "pid").read_text()) for host in lab.sshds]
    had = await end_one(server.engine, "w1.1", ["h0", "h1"], grace_seconds=2)
    assert had == {"h0": frozenset({"worker-0"}), "h1": frozenset({"worker-1"})}
    await server.ended("w1.1", "worker-0")
    await server.ended("w1.1", "worker-1")
    assert not any(map(alive, pids))


async def test_a_command_runs_beside_a_task_over_ssh(hosts: Callable[[int], SshLab], ssh_terminals: None):
    lab = hosts(1)
    server = await lab.start()
    await lab.launch(server, launch_of("echo up; sleep 1000", nodes=("h0",), env={"X": "y"}))
    await server.until(lambda: server.log("w1.1"), "it is up")
    process = await server.engine.exec("w1.1", "worker-0", "h0", "echo $X; tty", TerminalSize(90, 20))
    assert b"/dev/pts/" in await read_all(process)
    assert await process.wait() == 0


async def test_a_host_without_python_is_refused_with_a_reason(
    isolation: Path, tmp_path: Path, sshds: Callable[..., list[Sshd]]
):
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("sh", "bash", "mkdir", "cat"):
        for folder in ("/bin", "/usr/bin"):
            if os.path.exists(f"{folder}/{name}"):
                (tools / name).symlink_to(f"{folder}/{name}")
                break
    lab = SshLab(tmp_path, sshds(1, env={"PATH": str(tools)}))
    server = await lab.start(sees=False)
    lost = await server.see(NodeLost)
    assert isinstance(lost, NodeLost)
    assert lost.is_refused
    assert "python3" in lost.reason
    assert "Install" in lost.hint
    await lab.stop(server, leaves=False)


async def test_two_platforms_share_a_host_without_meeting(hosts: Callable[[int], SshLab], tmp_path: Path):
    from engine_lab import QUICK, MemorySink, Watched

    from trainyard.engines.nodes.engine import NodeEngine

    lab = hosts(1)
    server = await lab.start()
    await lab.launch(server, launch_of("echo first; sleep 1000", nodes=("h0",)))
    sink = MemorySink()
    engine = NodeEngine("p2", sink, epoch=1, transport_of=lab.over_ssh, patience=QUICK)
    other = Watched(engine, sink)
    await engine.add_node(lab.addresses["h0"])
    await other.see(NodeSeen)
    assert not other.find(TaskStarted)
    await launch_one(engine, launch_of("echo second", nodes=("h0",)))
    await other.ended("w1.1")
    assert other.log("w1.1") == b"second\n"
    await engine.forget(["w1.1"], ["h0"])
    await engine.remove_node("h0")
    await other.close(leaves=False)
    await asyncio.sleep(0)
    assert not server.find(TaskEnded)
