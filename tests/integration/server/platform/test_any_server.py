"""Two servers on one PostgreSQL: whoever leads, terminals, scripts and logs work through either, and go on when one dies."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
import urllib.error
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab import entry
from platforms import Up, platform
from postgres import Postgres, postgres  # noqa: F401  # a fixture
from sshd import start_sshds
from trainyard import settings
from trainyard.backends.platform.backend import PlatformBackend
from trainyard.backends.ssh import inventory
from trainyard.client import Client
from trainyard.client.terminal import open_terminal
from trainyard.lib.errors import DeniedError, NotFoundError
from trainyard.spec.machine import MachineSpec, MachineState

pytestmark = [pytest.mark.slow, pytest.mark.ssh, pytest.mark.timeout(300)]  # two servers, PostgreSQL, sshd

NODES = ("local", "h0")


@contextlib.contextmanager
def two_servers(folder: Path, database: str) -> Iterator[tuple[Up, Up]]:
    """Two servers, the first of which leads. This computer and a host behind ssh are their nodes."""
    folder.mkdir()
    (host,) = start_sshds(1, folder, first_address=90)
    try:
        with platform(folder, "--database", database, "--cpu", "4") as first:
            path = Path(first.env["TRAINYARD_HOME"]) / "hosts.toml"
            path.parent.mkdir(parents=True, exist_ok=True)
            inventory.add(path, entry("h0", host, folder / "leases"))
            address = {"backend": "ssh", "host": "h0"}
            first.call("POST", "/api/v1/nodes", {"name": "h0", "address": address})
            first.call(
                "PATCH", "/api/v1/nodes/h0", {"options": {"isolation": "off"}}
            )  # for a mark outside of it
            home = {"TRAINYARD_HOME": first.env["TRAINYARD_HOME"]}
            second = Up(folder / "second", "--database", database, "--no-local-node", env=home)
            second.data = first.data  # servers share their folder, where the logs are
            second.start()
            second.token = first.token
            try:
                yield first, second
            finally:
                if second.process is not None:
                    second.kill(signal.SIGTERM)
    finally:
        host.close()


@pytest.fixture(scope="module")
def both(
    tmp_path_factory: pytest.TempPathFactory,
    postgres: Postgres,  # noqa: F811  # the fixture
) -> Iterator[tuple[Up, Up]]:
    with two_servers(tmp_path_factory.mktemp("two") / "yard", postgres.database()) as found:
        yield found


@pytest.fixture
def servers(both: tuple[Up, Up]) -> tuple[Up, Up]:
    """The one that leads, and the other: both live, whatever the test before has done."""
    for up in both:
        if up.process is None:
            up.start()
    deadline = time.monotonic() + 60
    while not (leads := [up for up in both if up.call("GET", "/api/v1/health")["leader"]]):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return leads[0], both[both[0] is leads[0]]


async def said(up: Up, job: str, command: str, *, token: str = "") -> tuple[str, int | None]:
    """What a command beside a task says, and its status."""
    async with (
        Client(up.url, token or up.token) as client,
        open_terminal(client.connection, job, "worker-0", command=command) as terminal,
    ):
        pieces = [piece async for piece in terminal.output()]
    return b"".join(pieces).decode().replace("\r", ""), terminal.status


def start_on(up: Up, node: str, mark: Path) -> str:
    command = f"MINE='it is' ; echo begin; touch '{mark}'; n=0; while [ -e '{mark}' ]; do echo $n; n=$((n+1)); sleep 0.05; done"
    job = up.submit(command, name=f"on-{node}", env={"WORD": "o'neil $(x) 中文"}, roles=[{"cpu": 0.1, "nodes": [node]}])  # fmt: skip
    up.until(job, "running")
    return job


def test_logs_and_events_are_followed_through_the_server_that_does_not_lead(servers):
    leader, other = servers
    job = leader.submit("for n in $(seq 1 40); do echo line $n; sleep 0.05; done", name="told")
    asyncio.run(_follow(other, job))
    told = other.call("GET", f"/api/v1/jobs/{job}/events?limit=100")["items"]
    assert {"admitted", "running", "succeeded"} <= {event["state"] for event in told}, json.dumps(told)
    with pytest.raises(urllib.error.HTTPError):
        other.call("GET", f"/api/v1/jobs/{job}/events", token="ty_" + "A" * 43)


async def _follow(up: Up, job: str) -> None:
    async with Client(up.url, up.token) as client, asyncio.timeout(60):
        seen = b"".join([piece.data async for piece in client.jobs.follow_logs(job)])
    assert seen.decode().splitlines() == [f"line {n}" for n in range(1, 41)]


def test_tasks_are_entered_through_either_server_when_one_leads_and_when_it_has_died(tmp_path, servers):
    leader, other = servers
    assert leader.call("GET", "/api/v1/health")["leader"]
    assert not other.call("GET", "/api/v1/health")["leader"]
    marks = {node: tmp_path / f"mark-{node}" for node in NODES}
    jobs = {node: start_on(other, node, marks[node]) for node in NODES}
    try:
        asyncio.run(_enter_all(jobs, leader, other))
        asyncio.run(_refuse(jobs["h0"], marks["h0"], leader, other))
        asyncio.run(_script(other, tmp_path))
        asyncio.run(_stay_inside(jobs, leader, other))
    finally:
        for mark in marks.values():
            mark.unlink(missing_ok=True)
    for job in jobs.values():
        assert other.until(job, "succeeded", seconds=90)
        lines = other.lines(job)
        assert lines[:3] == ["begin", "0", "1"]


async def _enter_all(jobs: dict[str, str], leader: Up, other: Up) -> None:
    for up in (leader, other):
        for node, job in jobs.items():
            text, status = await said(
                up, job, 'printf %s "$WORD $TRAINYARD_NODE"; tty -s && stty size; exit 7'
            )
            assert (text, status) == (f"o'neil $(x) 中文 {node}24 80\n", 7), (up, node)


async def _refuse(job: str, mark: Path, leader: Up, other: Up) -> None:
    """Who may not through the one may not through the other; what does not run is not entered."""
    eve = f"eve-{job[-6:]}"
    leader.call("POST", "/api/v1/users", {"name": eve, "password": "a quite long one"})
    made = other.call(
        "POST", "/api/v1/session", {"username": eve, "password": "a quite long one", "kind": "token"}
    )
    for up in (leader, other):
        with pytest.raises((NotFoundError, DeniedError)):
            await said(up, job, "true", token=made["token"])
        with pytest.raises(DeniedError):
            await said(up, job, "true", token="ty_" + "A" * 43)
    short = other.submit("true", name="short")
    other.until(short, "succeeded")
    with pytest.raises(Exception, match="nothing runs"):
        await said(other, short, "true")
    assert mark.exists()


async def _script(other: Up, folder: Path) -> None:
    """A script of `make_job` names the server that does not lead: its machines are reached all the same."""
    home = folder / "laptop"
    home.mkdir()
    environ = {
        **os.environ,
        "TRAINYARD_HOME": str(home),
        "TRAINYARD_SERVER": other.url,
        "TRAINYARD_TOKEN": other.token,
    }
    backend = PlatformBackend.from_settings(settings.load(environ))
    try:
        machines = await backend.acquire(MachineSpec(type="0.1c0g"), ["task0.through"])
        async with asyncio.timeout(60):
            while not machines or machines[0].state is not MachineState.RUNNING:
                await asyncio.sleep(0.05)
                machines = await backend.machines(name="task0.through")
            way = backend.transport(machines[0])
            done = await way.run("cat; echo $0 >&2; exit 3", stdin=b"\0\xff in")
            assert (done.status, done.stdout) == (3, b"\0\xff in")
            source = folder / "file '中文'"
            source.write_bytes(b"x" * 300_000)
            await way.put(source, "there")
            await way.get("there", folder / "back")
            assert (folder / "back").read_bytes() == source.read_bytes()
        await backend.release(machines)
    finally:
        await backend.aclose()


async def _stay_inside(jobs: dict[str, str], leader: Up, other: Up) -> None:
    """A shell through the other server lives on when the leader is killed, and new ones open before anybody leads again."""
    async with (
        Client(other.url, other.token) as client,
        open_terminal(client.connection, jobs["h0"], "worker-0") as shell,
    ):
        await shell.write(b"echo in-$((1+1))\n")
        await _read_until(shell, b"in-2")
        leader.kill()
        for node, job in jobs.items():
            text, status = await said(other, job, "echo $TRAINYARD_NODE; exit 5")
            assert (text, status) == (f"{node}\n", 5)
        assert not other.call("GET", "/api/v1/health")["leader"], "nobody leads yet"
        await shell.write(b"echo still-$((2+1))\n")
        await _read_until(shell, b"still-3")
        deadline = time.monotonic() + 60
        while not other.call("GET", "/api/v1/health")["leader"]:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.1)
        await shell.write(b"echo led-$((3+1))\n")
        await _read_until(shell, b"led-4")
        for job in jobs.values():
            assert (await said(other, job, "exit 6"))[1] == 6


async def _read_until(terminal, wanted: bytes) -> None:
    seen = b""
    async with asyncio.timeout(30):
        async for piece in terminal.output():
            seen += piece
            if wanted in seen:
                return
    raise AssertionError(seen)
