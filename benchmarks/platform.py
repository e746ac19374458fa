"""The platform server: submissions, latency to start, jobs a second, followers, lists, logs, memory; beside Slurm and Ray.

Every figure is of one `trainyard up` in a process of its own, asked over HTTP by clients in this one, on the same
processors. `python -m benchmarks platform`; the rivals are installed and run in the same run (slurm_jobs.py, ray_jobs.py),
and are left out, with the reason, where they cannot be.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx2

from benchmarks.measure import Row

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from platforms import Up, platform, processes_of  # the same way to start one as the tests have
from postgres import running as running_postgres

READY_LIMIT = 2.0
MEMORY_LIMIT = 120.0
START_LIMIT = 0.1
LIST_LIMIT = 1000.0
LIVE = "&".join(f"state={one}" for one in ("waiting", "admitted", "starting", "running", "finishing"))


def measure(*, quick: bool = False) -> list[Row]:
    """SQLite first, then PostgreSQL, then the rivals."""
    rows = []
    with tempfile.TemporaryDirectory(prefix="bench-platform-") as folder:
        rows += _measure(Path(folder) / "sqlite", "SQLite", quick=quick)
    if not quick:
        with tempfile.TemporaryDirectory(prefix="bench-platform-") as folder, running_postgres() as postgres:
            rows += _measure(
                Path(folder) / "postgres", "PostgreSQL", "--database", postgres.database(), quick=quick
            )
        rows += _rivals(rows)
    return rows


def _measure(folder: Path, name: str, *options: str, quick: bool) -> list[Row]:
    folder.mkdir(parents=True)
    # As an installation leaves it: compiled, which a checkout need not be.
    compiled = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(folder / "compiled")}
    with platform(folder / "first", env=compiled):
        pass
    began = time.perf_counter()
    with platform(folder, *options, "--cpu", "64", "--overcommit", "1", env=compiled) as up:
        ready = time.perf_counter() - began
        assert up.process is not None
        spent = _cpu(up.process.pid)
        return [
            Row(f"{name}: ready", ready, "limit", READY_LIMIT, bar=1),
            Row(f"{name}: ready, processor time", spent, "", None),
            *asyncio.run(_ask(up, name, quick=quick)),
        ]


async def _ask(up: Up, name: str, *, quick: bool) -> list[Row]:
    limits = httpx2.Limits(max_connections=400, max_keepalive_connections=400)
    headers = {"authorization": f"Bearer {up.token}"}
    async with httpx2.AsyncClient(base_url=up.url, headers=headers, limits=limits, timeout=120) as client:
        await _settled(client)
        await asyncio.sleep(2)
        rows = [Row(f"{name}: idle memory", _memory(up), "limit", MEMORY_LIMIT, unit="MB", bar=1)]
        rows += await _starts(client, name, 20 if quick else 100)
        rows += await _throughput(up, client, name, 200 if quick else 2000)
        rows += await _submissions(client, name, 100 if quick else 500)
        rows += await _lists(client, name, 1000 if quick else 10_000)
        rows += await _crowd(client, name, 2.0 if quick else 8.0)
        rows += await _logs(client, name, 8 if quick else 64)
        rows += await _held(up, client, name, quick=quick)
    return rows


# -- what is measured


async def _starts(client: httpx2.AsyncClient, name: str, times: int) -> list[Row]:
    """From the request to the first thing that the program does, by the machine's own clock."""
    waits = []
    for _ in range(times):
        began = time.time()
        job = await _submit(client, "date +%s.%N")
        await _until(client, job)
        answer = (await client.get(f"/api/v1/jobs/{job}/logs")).json()
        waits.append(float(answer["items"][0]["text"]) - began)
    waits.sort()
    return [
        Row(f"{name}: submit to start, p50", statistics.median(waits), "limit", START_LIMIT, bar=1),
        Row(f"{name}: submit to start, p99", waits[int(0.99 * len(waits))], "", None),
    ]


async def _throughput(up: Up, client: httpx2.AsyncClient, name: str, count: int) -> list[Row]:
    """Trivial jobs, from the first submission to the last end; and what they take of the processors, whoever else runs."""
    assert up.process is not None
    server, node = _cpu(up.process.pid), _cpu_of_nodes(up)
    began = time.perf_counter()
    jobs = [_body("true", cpu=1.0) for _ in range(count)]
    for start in range(0, count, 500):
        (await client.post("/api/v1/jobs/bulk", json={"jobs": jobs[start : start + 500]})).raise_for_status()
    await _settled(client)
    seconds = time.perf_counter() - began
    return [
        Row(
            f"{name}: trivial jobs run to their end",
            count / seconds,
            "aim",
            200,
            unit="jobs/s",
            note="more is better",
        ),
        Row(
            f"{name}: a trivial job, the server's processor time",
            (_cpu(up.process.pid) - server) / count,
            "",
            None,
        ),
        Row(
            f"{name}: a trivial job, the node's processor time", (_cpu_of_nodes(up) - node) / count, "", None
        ),
    ]


async def _submissions(client: httpx2.AsyncClient, name: str, count: int) -> list[Row]:
    """Jobs that wait: only their taking in is measured."""

    async def one(_: int) -> None:
        await _submit(client, "true", nodes=["nowhere"])

    began = time.perf_counter()
    for number in range(count // 5):
        await one(number)
    single = (count // 5) / (time.perf_counter() - began)
    began = time.perf_counter()
    await _at_once(one, count, 50)
    many = count / (time.perf_counter() - began)
    jobs = [_body("true", nodes=["nowhere"]) for _ in range(count)]
    began = time.perf_counter()
    (await client.post("/api/v1/jobs/bulk", json={"jobs": jobs})).raise_for_status()
    bulk = count / (time.perf_counter() - began)
    return [
        Row(f"{name}: submissions, one client", single, "", None, unit="1/s"),
        Row(f"{name}: submissions, 50 clients", many, "", None, unit="1/s"),
        Row(f"{name}: submissions, in bulk", bulk, "", None, unit="1/s"),
    ]


async def _lists(client: httpx2.AsyncClient, name: str, stored: int) -> list[Row]:
    """The first page of the list, with many stored and waiting."""
    jobs = [_body("true", nodes=["nowhere"]) for _ in range(1000)]
    for _ in range(stored // 1000):
        (await client.post("/api/v1/jobs/bulk", json={"jobs": jobs})).raise_for_status()

    line = _Line(client, "/api/v1/jobs?limit=50")
    await line.ask(200, 4)
    began = time.perf_counter()
    await line.ask(4000, 8)
    rate = 4000 / (time.perf_counter() - began)
    # The bar is a least rate: as a ratio, so that more is better there too.
    return [
        Row(
            f"{name}: list with {stored} stored, each",
            1 / rate,
            "limit",
            1 / LIST_LIMIT,
            bar=1,
            note=f"{rate:.0f}/s",
        )
    ]


async def _crowd(client: httpx2.AsyncClient, name: str, seconds: float) -> list[Row]:
    """200 clients that look at their job now and then, and 50 that follow a log that is being written."""
    job = await _submit(client, f"for i in $(seq {int(seconds * 20)}); do date +%s.%N; sleep 0.05; done")
    while (await client.get(f"/api/v1/jobs/{job}")).json()["state"] != "running":
        await asyncio.sleep(0.02)
    times: list[float] = []
    lags: list[float] = []
    until = time.perf_counter() + seconds * 0.8

    line = _Line(client, f"/api/v1/jobs/{job}")

    async def look(number: int) -> None:
        await asyncio.sleep(number / 200)  # people do not look in step
        reader, writer = await line.connect()
        while time.perf_counter() < until:
            began = time.perf_counter()
            await line.exchange(reader, writer)
            times.append(time.perf_counter() - began)
            await asyncio.sleep(1)
        writer.close()

    async def follow(_: int) -> None:
        async with client.stream("GET", f"/api/v1/jobs/{job}/logs/stream") as stream:
            async for line in stream.aiter_lines():
                if line.startswith("data:") and '"text"' in line:
                    printed = json.loads(line[5:])["text"].split()
                    if printed:
                        lags.append(time.time() - float(printed[-1]))
                if time.perf_counter() > until:
                    return

    await asyncio.gather(_at_once(look, 200, 200), _at_once(follow, 50, 50))
    await client.put(f"/api/v1/jobs/{job}/desired", json={"desired": "cancel"})
    times.sort()
    rows = [
        Row(f"{name}: 200 clients look, p50", times[len(times) // 2], "", None),
        Row(f"{name}: 200 clients look, p99", times[int(len(times) * 0.99)], "", None),
    ]
    if lags:
        lags.sort()
        rows.append(Row(f"{name}: 50 followers, a line's way, p50", lags[len(lags) // 2], "", None))
        rows.append(Row(f"{name}: 50 followers, a line's way, p99", lags[int(len(lags) * 0.99)], "", None))
    return rows


async def _logs(client: httpx2.AsyncClient, name: str, megabytes: int) -> list[Row]:
    """Output from a program to the server's disk, and from there to a reader."""
    began = time.perf_counter()
    job = await _submit(client, f"yes {'x' * 127} | head -c {megabytes}M")
    await _until(client, job, seconds=300)
    to_disk = megabytes / (time.perf_counter() - began)
    began = time.perf_counter()
    size = 0
    async with client.stream("GET", f"/api/v1/jobs/{job}/logs/download?task=worker-0") as stream:
        if stream.status_code == 200:
            async for piece in stream.aiter_bytes():
                size += len(piece)
    rows = [Row(f"{name}: log to disk", to_disk, "", None, unit="MB/s")]
    if size:
        rate = size / 1e6 / (time.perf_counter() - began)
        rows.append(Row(f"{name}: log to a reader", rate, "", None, unit="MB/s"))
    return rows


async def _held(up: Up, client: httpx2.AsyncClient, name: str, *, quick: bool) -> list[Row]:
    """Many waiting (from before) and many running: how much of a core the server takes to hold them."""
    count = 100 if quick else 1000
    jobs = [_body("sleep 600", cpu=0.05) for _ in range(count)]
    for start in range(0, count, 500):
        (await client.post("/api/v1/jobs/bulk", json={"jobs": jobs[start : start + 500]})).raise_for_status()
    await _started(client, count)
    await asyncio.sleep(10)  # with the first readings of all of them
    assert up.process is not None
    server, node, began = _cpu(up.process.pid), _cpu_of_nodes(up), time.perf_counter()
    await asyncio.sleep(20)
    seconds = time.perf_counter() - began
    shares = [100 * (_cpu(up.process.pid) - server) / seconds, 100 * (_cpu_of_nodes(up) - node) / seconds]
    return [
        Row(f"{name}: held with {count} running, of a core", shares[0], "", None, unit="%"),
        Row(f"{name}: held with {count} running, the node, of a core", shares[1], "", None, unit="%"),
        Row(f"{name}: memory then", _memory(up), "", None, unit="MB"),
    ]


async def _started(client: httpx2.AsyncClient, count: int) -> None:
    """Wait until all of them run: one that holds its places counts as running in the quotas long before."""
    deadline = time.monotonic() + 180
    while time.monotonic() < deadline:
        tree = (await client.get("/api/v1/quota")).json()["items"]
        left = (await client.get("/api/v1/jobs?limit=1&state=admitted&state=starting")).json()["items"]
        if max(one["running"] for one in tree) >= count and not left:
            return
        await asyncio.sleep(0.2)


def _rivals(rows: list[Row]) -> list[Row]:
    from benchmarks import rival_jobs

    ours = {row.case: row.ours for row in rows}
    start = ours.get("SQLite: submit to start, p50", 0.0)
    rate = ours.get("SQLite: trivial jobs run to their end", 0.0)
    found = []
    for rival in rival_jobs.measure_all():
        if rival.reason:
            found.append(Row(f"against {rival.name}", start, rival.name, None, note=rival.reason))
            continue
        found.append(Row("submit to start, p50", start, rival.name, rival.start_s, bar=1))
        found.append(Row("one trivial job's share", 1 / rate, rival.name, 1 / rival.jobs_per_s, bar=1,
                         note=f"{rate:.0f}/s against {rival.jobs_per_s:.1f}/s"))  # fmt: skip
    return found


class _Line:
    """One GET, repeated over plain sockets: a client library takes more time for an answer than the server does."""

    def __init__(self, client: httpx2.AsyncClient, path: str) -> None:
        url = client.base_url
        self._place = (url.host, url.port)
        token = client.headers["authorization"]
        self._request = f"GET {path} HTTP/1.1\r\nhost: {url.host}\r\nauthorization: {token}\r\n\r\n".encode()

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(*self._place, limit=1 << 20)

    async def exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(self._request)
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(head.decode())
        length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        await reader.readexactly(int(length.partition(b":")[2]))

    async def ask(self, count: int, connections: int) -> None:
        async def one(_: int) -> None:
            reader, writer = await self.connect()
            for _number in range(count // connections):
                await self.exchange(reader, writer)
            writer.close()

        await _at_once(one, connections, connections)


# -- asking


def _body(command: str, *, cpu: float = 0.01, nodes: list[str] | None = None) -> dict[str, Any]:
    role: dict[str, Any] = {"cpu": cpu}
    if nodes:
        role["nodes"] = nodes
    return {"name": "bench", "command": command, "roles": [role]}


async def _submit(client: httpx2.AsyncClient, command: str, *, nodes: list[str] | None = None) -> str:
    answer = await client.post("/api/v1/jobs", json=_body(command, nodes=nodes))
    answer.raise_for_status()
    return str(answer.json()["id"])


async def _until(client: httpx2.AsyncClient, job: str, *, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while (await client.get(f"/api/v1/jobs/{job}")).json()["state"] not in {
        "succeeded",
        "failed",
        "cancelled",
    }:
        if time.monotonic() > deadline:
            raise TimeoutError(job)
        await asyncio.sleep(0.005)


async def _settled(client: httpx2.AsyncClient) -> None:
    while (await client.get(f"/api/v1/jobs?limit=1&{LIVE}")).json()["items"]:
        await asyncio.sleep(0.05)


async def _at_once(work: Callable[[int], Awaitable[None]], count: int, clients: int) -> None:
    numbers = iter(range(count))

    async def one() -> None:
        for number in numbers:
            await work(number)

    await asyncio.gather(*(one() for _ in range(clients)))


def _memory(up: Up) -> float:
    assert up.process is not None
    text = Path(f"/proc/{up.process.pid}/smaps_rollup").read_text()
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Rss:")) / 1000


def _cpu(pid: int, *, with_children: bool = False) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11 : 15 if with_children else 13])) / os.sysconf("SC_CLK_TCK")


def _cpu_of_nodes(up: Up) -> float:
    """Of the processes on this computer that serve it as a node, with those they have started and seen end."""
    assert up.process is not None
    return sum(_cpu(pid, with_children=True) for pid in processes_of(str(up.folder)) if pid != up.process.pid)
