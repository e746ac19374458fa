"""A hostile neighbour of distributed jobs, as a process of its own:

    python barrier_attacker.py TARGETS          a JSON list of {"address": …, "ports": […], "taken": […]} for each job to spoil

It knows more than a stranger could: every port at which a gate may be. It listens at those of `taken` before the gate does
and answers there in every way that it can think of (it says "ready" then); and it goes to the others, and to every socket of this machine that
looks like a gate, floods them, says half of a greeting, too much, or what it has heard elsewhere (it says "busy" when it
has tried all of that). When its input ends it says what it did, and what it won, as one line of JSON.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import json
import os
import resource
import sys
from collections.abc import Awaitable, Callable
from typing import Any

VERSION, NONCE, PROOF = b"trainyard gate 2", 32, 32
GREETING, CHALLENGE = len(VERSION) + NONCE, len(VERSION) + NONCE + PROOF
DEEP = b"[" * 200_000
PAUSE_SECONDS = 0.01
HOLD_SECONDS = 1.0
FLOOD = 60  # connections at once to one gate, again and again

done: collections.Counter[str] = collections.Counter()
won: list[str] = []
heard: dict[str, list[bytes]] = {"greeting": [], "challenge": []}  # of tasks, of gates
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def connect(place: Any) -> Streams:
    if isinstance(place, str):
        return await asyncio.open_unix_connection(place)
    return await asyncio.open_connection(*place)


async def read(reader: asyncio.StreamReader, size: int, seconds: float = HOLD_SECONDS) -> bytes:
    async with asyncio.timeout(seconds):
        return await reader.readexactly(size)


# -- as a visitor of the gate


async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(HOLD_SECONDS)


async def half(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write((VERSION + os.urandom(NONCE))[:30])
    await asyncio.sleep(HOLD_SECONDS)


async def deep(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(DEEP + b"\n")
    await writer.drain()


async def challenged(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    """Greet as a task does; what the gate says to that."""
    writer.write(VERSION + os.urandom(NONCE))
    said = await read(reader, CHALLENGE)
    heard["challenge"] = [said, *heard["challenge"][:50]]
    return said


async def claim(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, message: bytes, how: str) -> None:
    writer.write(message)
    with contextlib.suppress(asyncio.IncompleteReadError, TimeoutError):
        won.append(f"{how}: the gate said {await read(reader, 1)!r}")


async def forge(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await challenged(reader, writer)
    body = b"worker-0 MASTER_PORT 1"
    await claim(reader, writer, len(body).to_bytes(4, "big") + body + os.urandom(PROOF), "forge")


async def reflect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    said = await challenged(reader, writer)
    body = b"worker-0"
    await claim(reader, writer, len(body).to_bytes(4, "big") + body + said[-PROOF:], "reflect")


async def too_long(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await challenged(reader, writer)
    await claim(reader, writer, b"\xff\xff\xff\xff" + DEEP, "too long")


async def deep_report(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await challenged(reader, writer)
    await claim(reader, writer, (4000).to_bytes(4, "big") + DEEP[: 4000 + PROOF], "deep report")


async def replay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(heard["greeting"][0] if heard["greeting"] else VERSION + bytes(NONCE))
    await read(reader, CHALLENGE)
    if heard["challenge"]:
        await claim(reader, writer, b"\0\0\0\0" + heard["challenge"][-1][-PROOF:], "replay")


async def flood(place: Any) -> None:
    found = await asyncio.gather(*(connect(place) for _ in range(FLOOD)), return_exceptions=True)
    some = [one for one in found if not isinstance(one, BaseException)]
    done["flood"] += bool(some)
    for number, (_, writer) in enumerate(some):
        if number % 2:
            writer.write(VERSION + os.urandom(NONCE))
    await asyncio.sleep(HOLD_SECONDS)
    for _, writer in some:
        writer.close()


VISITS = (hold, half, deep, forge, reflect, too_long, deep_report, replay)


async def visit(place: Any, how: Callable[..., Awaitable[None]]) -> None:
    with contextlib.suppress(OSError, asyncio.IncompleteReadError, TimeoutError):
        reader, writer = await connect(place)
        done[how.__name__] += 1
        try:
            await how(reader, writer)
        finally:
            writer.close()


def local_gates() -> list[str]:
    with open("/proc/net/unix", encoding="utf-8", errors="replace") as file:
        names = {line.split()[-1] for line in file if "trainyard/gate" in line}
    return ["\0" + name[1:] for name in names]


async def storm(place: Any) -> None:
    """Go to one gate in all ways at once, for as long as it is there."""
    while True:
        try:
            _, writer = await connect(place)
        except OSError:
            return
        writer.close()
        before = len(done)
        await asyncio.gather(flood(place), *(visit(place, how) for how in VISITS))
        if done.keys() >= {"flood", *(how.__name__ for how in VISITS)} and len(done) > before:
            print("busy", flush=True)


async def visit_all(targets: list[dict[str, Any]]) -> None:
    """Look for gates all the time: each is there for a moment only."""
    ports = [(job["address"], port) for job in targets for port in job["ports"]]
    storms: dict[Any, asyncio.Task[None]] = {}
    while True:
        for place in [*local_gates(), *ports]:
            if place not in storms or storms[place].done():
                storms[place] = asyncio.create_task(storm(place))
        await asyncio.sleep(PAUSE_SECONDS)


# -- as a gate


async def silent(job: dict[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(3600)


async def nonsense(job: dict[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(DEEP)
    await writer.drain()


async def expect(reader: asyncio.StreamReader, how: str) -> None:
    """A task that takes us for its gate would tell its name and its ports now."""
    said = await reader.readexactly(1)
    won.append(f"{how}: a task has told {said + await reader.read(100)!r}")


async def pretend(job: dict[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readexactly(GREETING)
    writer.write(VERSION + os.urandom(NONCE + PROOF))
    await expect(reader, "pretend")


async def mirror(job: dict[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    said = await reader.readexactly(GREETING)
    writer.write(said + said[len(VERSION) :])
    await expect(reader, "mirror")


async def repeat(job: dict[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readexactly(GREETING)
    if heard["challenge"]:
        writer.write(heard["challenge"][0])
        await expect(reader, "repeat")


async def relay(job: dict[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass everything on to the real gate, and its answers back."""
    greeting = await reader.readexactly(GREETING)
    heard["greeting"] = [greeting]
    for place in [*local_gates(), *((job["address"], port) for port in job["ports"])]:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, TimeoutError):
            far_reader, far_writer = await connect(place)
            try:
                far_writer.write(greeting)
                writer.write(await read(far_reader, CHALLENGE))
                await expect(reader, "relay")
                return
            finally:
                far_writer.close()


GATES = (silent, nonsense, pretend, mirror, repeat, relay)


async def listen(job: dict[str, Any], port: int, how: Callable[..., Awaitable[None]]) -> asyncio.Server:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        done[how.__name__] += 1
        try:
            await how(job, reader, writer)
        except (OSError, asyncio.IncompleteReadError, TimeoutError):
            pass
        finally:
            writer.close()

    return await asyncio.start_server(answer, job["address"], port)


async def main() -> None:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    targets: list[dict[str, Any]] = json.loads(sys.argv[1])
    servers = []
    for number, job in enumerate(targets):
        for place, port in enumerate(job["taken"]):
            servers.append(await listen(job, port, GATES[(number + place) % len(GATES)]))
    print("ready", flush=True)
    visits = asyncio.create_task(visit_all(targets))
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    visits.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await visits
    print(json.dumps({"done": done, "won": won}), flush=True)
    os._exit(0)  # connections of those who wait for ever


if __name__ == "__main__":
    asyncio.run(main())
