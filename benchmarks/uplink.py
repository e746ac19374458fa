"""One upload to 1 and to 8 machines behind a client's uplink of 100 Mbit/s. Needs root: the machines are network
namespaces on a switch of their own, with a real sshd in each; the limit is on the client's side of its cable.

    sudo python benchmarks/uplink.py [megabytes]
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from upload import LONG_AGO, check, connect, scratch, wipe

import sshd as sshd_module
from benchmarks.measure import render
from trainyard.transport.copy import Peer, Peers, upload

NET = "10.213.77"
PORT = 2222
SWITCH = "tybench-switch"
CABLE = "tybench-up"


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@contextlib.contextmanager
def network(count: int) -> Iterator[list[str]]:
    """Namespaces on a bridge; yields their names."""
    names = [f"tybench-{number}" for number in range(count)]
    try:
        _ip("netns", "add", SWITCH)
        _ip("-n", SWITCH, "link", "add", "br0", "type", "bridge")
        _ip("-n", SWITCH, "link", "set", "br0", "up")
        _ip("link", "add", CABLE, "type", "veth", "peer", "name", "client", "netns", SWITCH)
        _ip("addr", "add", f"{NET}.1/24", "dev", CABLE)
        _ip("link", "set", CABLE, "up")
        _ip("-n", SWITCH, "link", "set", "dev", "client", "master", "br0", "up")
        limit = ["rate", "100mbit", "burst", "64kb", "latency", "50ms"]
        subprocess.run(["tc", "qdisc", "add", "dev", CABLE, "root", "tbf", *limit], check=True)
        for number, name in enumerate(names):
            _ip("netns", "add", name)
            _ip("-n", name, "link", "set", "lo", "up")
            _ip(
                "-n",
                name,
                "link",
                "add",
                "eth0",
                "type",
                "veth",
                "peer",
                "name",
                f"p{number}",
                "netns",
                SWITCH,
            )
            _ip("-n", name, "addr", "add", f"{NET}.{10 + number}/24", "dev", "eth0")
            _ip("-n", name, "link", "set", "eth0", "up")
            _ip("-n", SWITCH, "link", "set", f"p{number}", "master", "br0", "up")
        yield names
    finally:
        for name in (SWITCH, *names):
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
        subprocess.run(["ip", "link", "del", CABLE], check=False, capture_output=True)


@contextlib.contextmanager
def machines(names: list[str], folder: Path) -> Iterator[list[sshd_module.Sshd]]:
    """A real sshd in each namespace."""
    hosts = []
    try:
        for number, name in enumerate(names):
            host = sshd_module.prepare_sshd(
                folder,
                address=f"{NET}.{10 + number}",
                port=PORT,
                client_key=folder / "client_key",
                known_hosts=folder / "known_hosts",
            )
            host._write_config()
            words = [
                "ip",
                "netns",
                "exec",
                name,
                sshd_module.PROGRAM,
                "-D",
                "-f",
                str(host.folder / "config"),
            ]
            host.process = subprocess.Popen(
                [*words, "-E", str(host.folder / "log")], stdin=subprocess.DEVNULL
            )
            hosts.append(host)
        for host in hosts:
            host.wait_ready()
        yield hosts
    finally:
        for host in hosts:
            host.close()


async def measure(hosts: list[sshd_module.Sshd], source: Path, folder: Path) -> list[tuple[int, float]]:
    """Seconds to one machine and to all of them."""
    members = {f"task{number}": Peer(host.address, host.port, host.user) for number, host in enumerate(hosts)}
    peers = Peers(members, str(folder / "client_key"), str(folder / "known_hosts"))
    ways = connect(hosts)
    await asyncio.gather(*[way.run("true") for _, way in ways])
    found = []
    for count in (1, len(hosts)):
        wipe(hosts, "ours")
        start = time.perf_counter()
        report = await upload(ways[:count], [source], "ours", peers=peers)
        found.append((count, time.perf_counter() - start))
        for note in report.notes:
            print(note)
        for host in hosts[:count]:
            check(source, host.home / "ours")
    await asyncio.gather(*[way.aclose() for _, way in ways])
    return found


def run(megabytes: int = 60, count: int = 8) -> list[tuple[int, float]]:
    """Set up, measure, take down."""
    folder = scratch()
    try:
        source = folder / "source"
        source.mkdir()
        for number in range(10):
            path = source / f"shard{number}"
            path.write_bytes(os.urandom(megabytes * 100_000))
            os.utime(path, (LONG_AGO, LONG_AGO))
        with network(count) as names, machines(names, folder) as hosts:
            return asyncio.run(measure(hosts, source, folder))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def table(found: list[tuple[int, float]]) -> str:
    """Seconds, and as a multiple of one machine."""
    single = found[0][1]
    rows = [[str(count), f"{seconds:.2f}", f"{seconds / single:.2f}"] for count, seconds in found]
    return render(["machines", "seconds", "x one machine"], rows, right=frozenset({0, 1, 2}))


if __name__ == "__main__":
    print(table(run(*map(int, sys.argv[1:]))))
