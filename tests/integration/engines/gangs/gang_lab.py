"""A platform whose nodes are hosts with addresses and process trees of their own (see netns.py), for jobs of several tasks."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import netns
import platforms
from trainyard.backends.ssh import inventory
from trainyard.backends.ssh.inventory import Host

CLONE_NEWNET = 0x40000000
READY_SECONDS = 60.0
SHARED = "/mnt/shared"

_libc = ctypes.CDLL(None, use_errno=True)


@contextlib.contextmanager
def inside(network: netns.Network) -> Iterator[None]:
    """Let this thread, and what it starts, live in the network of the hosts' client."""
    own = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    other = os.open(f"/proc/{network.hub.pid}/ns/net", os.O_RDONLY)
    try:
        assert _libc.setns(other, CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
        yield
    finally:
        _libc.setns(own, CLONE_NEWNET)
        os.close(own)
        os.close(other)


class GangYard:
    """`trainyard up` with the nodes n0, n1 …, each a host of its own."""

    def __init__(self, up: platforms.Up, network: netns.Network) -> None:
        self.up = up
        self.network = network
        self.shared = up.folder / "shared"  # what all nodes and all tasks see, at SHARED
        self.shared.mkdir()
        for path in Path(__file__).parent.glob("*_sockets.py"):
            shutil.copy(path, self.shared)

    def add_storage(self, name: str, folder: Path, target: str) -> None:
        """Let every task see a folder of this computer, whose files all hosts share."""
        body = {"name": name, "source": str(folder), "target": target, "default": True}
        self.up.call("POST", "/api/v1/storages", body)

    def add_nodes(self, *hosts: netns.NetHost, **more: Any) -> None:
        """Take hosts in, and wait until all of them answer."""
        for host in hosts:
            self._join(host, **more)
        for host in hosts:
            self.await_node(host.name, "ready")

    def _join(self, host: netns.NetHost, **more: Any) -> None:
        path = self.up.home / ".trainyard" / "hosts.toml"
        path.parent.mkdir(exist_ok=True)
        entry = Host(
            name=host.name, address=host.address, port=22, user="root", key=(str(self.network.client_key),),
            known_hosts=str(self.network.known_hosts), ssh_config="/dev/null",
        )  # fmt: skip
        inventory.add(path, entry)
        body = {"name": host.name, "address": {"backend": "ssh", "host": host.name}, **more}
        self.up.call("POST", "/api/v1/nodes", body)

    def await_node(self, name: str, state: str) -> None:
        deadline = time.monotonic() + READY_SECONDS
        while (found := self.up.call("GET", f"/api/v1/nodes/{name}"))["state"] != state:
            assert time.monotonic() < deadline, found
            time.sleep(0.05)

    def lose(self, host: netns.NetHost) -> None:
        """A host breaks, and a person says that it does not come back."""
        host.process.kill()  # all of it: the others of its processes live no longer than the first
        host.process.wait()
        self.await_node(host.name, "lost")
        self.up.call("PUT", f"/api/v1/nodes/{host.name}/desired", {"desired": "gone"})

    def run(self, command: str, *states: str, seconds: float = 90.0, **given: Any) -> tuple[Any, list[str]]:
        """Submit a job and wait for its end; the job and its lines."""
        job = self.up.submit(command, **given)
        found = self.up.until(job, *(states or ("succeeded", "failed")), seconds=seconds)
        return found, self.up.lines(job)


@contextlib.contextmanager
def gang_lab(folder: Path, count: int, **more: Any) -> Iterator[GangYard]:
    """A platform with so many hosts as its nodes, and none of its own."""
    (folder / "net").mkdir()
    with (
        netns.Network(
            folder / "net"
        ) as network,  # not below the platform's: hosts do not end with the agents
        inside(network),
        platforms.platform(folder / "up", "--no-local-node") as up,
    ):
        lab = GangYard(up, network)
        lab.add_storage("shared", lab.shared, SHARED)
        lab.add_nodes(*(network.add_host(f"n{number}") for number in range(count)), **more)
        yield lab
