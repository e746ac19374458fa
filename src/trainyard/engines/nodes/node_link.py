"""One node's connection: kept up, made again when it breaks; orders out, reports and logs in.

What an order means is engine.py's matter; what happens on the node, `agent/`'s.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trainyard.engines.api import (
    LogSink,
    Meter,
    NodeAddress,
    NodeLost,
    NodeSeen,
    NotSentError,
    Observation,
    PlacedTasks,
)
from trainyard.engines.nodes import frame_checks
from trainyard.engines.nodes.agent.wire import frame
from trainyard.engines.nodes.agent_bundle import bundle
from trainyard.engines.nodes.agent_program import MISSING, AgentProgram, facts_of
from trainyard.engines.nodes.readings import readings_of
from trainyard.engines.nodes.reports import NodeReports
from trainyard.lib.aio import end_task, finish
from trainyard.lib.errors import ConflictError, Error, UnreachableError, UnsupportedError
from trainyard.runtime.device_metrics import profile_script
from trainyard.runtime.usage import devices_script
from trainyard.transport.api import Process, TerminalSize


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkTimeouts:
    """How long we wait for what. Seconds."""

    ping: float = 2.0
    silence: float = 10.0  # without a byte, the connection is given up
    lost: float = 10.0  # without a connection, the node is lost
    connect: float = 30.0
    answer: float = 60.0  # a batch of hundreds of tasks on a busy node
    first_backoff: float = 0.1
    last_backoff: float = 5.0
    refused_backoff: float = 30.0  # no python3: a person has to come first
    sample: float = 10.0  # between two looks at what tasks use
    refresh: float = 30.0  # between two looks at disk and clock of a node that answers
    equip: float = 300.0  # between two looks at a node that lacks something: docker may start after us, a driver be mended


LEAST_SKEW_SECONDS = 1.0  # less is the way, not the clock
STEADY_SECONDS = 5.0  # a connection that lasts shorter is not tried again at once
PUTS = 3  # a program that is put and not there is put again, but not for ever

# What reading an answer raises that an agent of ours does not give: whoever is there, the link lives on and tries again.
NONSENSE = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)

STRAYS = 64  # attempts that a node is told at once to remove
LOOK_UP_PAUSE = (
    1.0  # between two reports with tasks to look up, of a node that has named some that are not its own
)

Report = Callable[[Sequence[Observation]], Awaitable[None]]


class NodeLink:
    """The way to one agent."""

    def __init__(
        self,
        program: AgentProgram,
        *,
        mark: str,
        epoch: int,
        sink: LogSink,
        report: Report,
        patience: LinkTimeouts,
        placed: PlacedTasks,
        expected: Iterable[tuple[str, str]] = (),
        meter: Meter | None = None,
        can_profile: bool = True,
        disk_reserve_mib: int = 0,
    ) -> None:
        self._disk_reserve_mib = disk_reserve_mib
        self._refusal = ""  # why the node takes no tasks, as it said last
        self._meter = meter
        self._can_profile = can_profile
        self.program = program
        self.address: NodeAddress = program.address
        self._mark = mark
        self._epoch = epoch
        self._report = report
        self._patience = patience
        self._placed = placed
        self._strays: set[str] = set()  # attempts that nobody has placed there
        self._clearing: asyncio.Task[None] | None = None
        self._is_doubted = False  # what was refused is told with what the node is
        self.reports = NodeReports(self.address.name, sink, expected)
        self._numbers = itertools.count(1)
        self._waiting: dict[tuple[str, int], asyncio.Future[dict[str, Any]]] = {}
        self._output = bytearray()
        self._has_output = asyncio.Event()
        self._ready = asyncio.Event()
        self._tried = asyncio.Event()  # connecting was tried at least once
        self._process: Process | None = None
        self._probe: dict[str, Any] | None = None
        self._probed_boot = ""  # devices may be others after a node was started anew
        self._probed = 0.0
        self._welcomed: dict[str, Any] = {}
        self._probing: asyncio.Task[None] | None = None
        self._heard = time.monotonic()
        self._since = 0.0  # when it was connected last
        self._introduced = 0.0  # when it was found out last what it is
        self._is_lost = False
        self._is_closing = False
        self._is_replacing = False  # the agent is an older or newer one, and was told to make room
        self._reason: Error = UnreachableError(f"the node {self.address.name} was not connected yet")
        self._task = asyncio.create_task(self._run(), name=f"link to {self.address.name}")
        self._watch = asyncio.create_task(self._watch_over(), name=f"watch over {self.address.name}")

    @property
    def is_ready(self) -> bool:
        """Whether orders can be sent."""
        return self._ready.is_set()

    async def ask(self, name: str, **fields: Any) -> dict[str, Any]:
        """Send an order and wait until the agent has taken it. UnreachableError where it does not answer."""
        if not self._tried.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._patience.connect):
                    await self._tried.wait()
        if not self.is_ready:
            raise NotSentError(
                f"the node {self.address.name} does not answer: {self._reason.message}",
                hint=self._reason.hint,
            )
        number = next(self._numbers)
        awaited = ("pong" if name == "ping" else "answer", number)
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[awaited] = answer
        self.send({"op": name, "id": number, **fields})
        try:
            async with asyncio.timeout(self._patience.answer):
                return await answer
        except TimeoutError as error:
            raise UnreachableError(f"the node {self.address.name} did not answer in time") from error
        finally:
            self._waiting.pop(awaited, None)

    def send(self, header: dict[str, Any]) -> None:
        """Send a frame with the next write."""
        self._output += frame(header)
        self._has_output.set()

    async def greet(self, address: NodeAddress) -> None:
        """The fence has changed: say hello again."""
        self.address = address
        if self.is_ready:
            self._say_hello()

    async def beside(
        self, attempt_id: str, task: str, command: str, terminal: TerminalSize | None
    ) -> Process:
        """Run a command beside a task."""
        return await self.program.spawn("beside", attempt_id, task, command, terminal=terminal)

    async def leave(self) -> None:
        """Say goodbye: the agent goes, tasks stay, fences are open."""
        self._is_closing = True
        await self.ask("leave")

    async def dismiss(self) -> None:
        """Have the agent go where it has nothing to keep."""
        self._is_closing = True
        with contextlib.suppress(UnreachableError):
            await self.ask("retire", if_idle=True)

    async def aclose(self) -> None:
        """Close the connection; twice is no error."""
        self._is_closing = True
        await finish(self._close())

    async def _close(self) -> None:
        await end_task(self._watch)
        await end_task(self._probing)
        await end_task(self._clearing)
        await end_task(self._task)
        self._fail_waiting(UnreachableError(f"the connection to {self.address.name} was closed"))
        await self.program.transport.aclose()

    async def _run(self) -> None:
        backoff = self._patience.first_backoff
        while True:
            try:
                await self._connect()
            except (Error, TimeoutError, *NONSENSE, EOFError, OSError) as error:
                self._reason = _as_error(error, self.address.name)
            self._tried.set()
            if self._ready.is_set():
                self._ready.clear()
                if time.monotonic() - self._since > STEADY_SECONDS:
                    backoff = self._patience.first_backoff
            self._fail_waiting(self._reason)
            if self._is_closing:
                return
            is_refused = isinstance(self._reason, UnsupportedError | ConflictError)
            if is_refused or not self.reports.was_seen:
                await self._say_lost(is_refused=is_refused)
            await asyncio.sleep(self._patience.refused_backoff if is_refused else backoff)
            backoff = min(backoff * 2, self._patience.last_backoff)

    async def _connect(self) -> None:
        """Attach to the agent, and serve until the connection ends; it always ends with an error."""
        for _ in range(PUTS):
            self._is_replacing = False
            status, said = await self._attach()
            if status == MISSING:
                await self.program.put()
            elif not self._is_replacing:
                raise self.program.failure(status, said)
        raise UnreachableError(f"the program on the node {self.address.name} does not stay")

    async def _attach(self) -> tuple[int, bytes]:
        """One connection, from its beginning to its end; its status, and what it said last."""
        async with asyncio.timeout(self._patience.connect) as limit:
            process = await self.program.spawn(
                "attach", f"{self._mark}/{self.address.name}", bundle().version
            )
            self._process = process
            writer = asyncio.create_task(self._write(process))
            try:
                self._output.clear()
                self._say_hello()
                await self._read(process, limit)
                return await process.wait(), process.errors
            finally:
                self._process = None
                await end_task(writer)
                await finish(process.terminate())

    def _say_hello(self) -> None:
        fence = self.address.fence_seconds
        if fence:  # a fence that falls between two pings would end healthy tasks
            fence = max(fence, 4 * self._patience.ping)
        hello = {
            "op": "hello",
            "epoch": self._epoch,
            "fence": fence,
            "disk_reserve_mib": self._disk_reserve_mib,
        }
        if self._meter is not None:
            hello |= {
                "sample_seconds": self._patience.sample,
                "devices_script": devices_script(in_detail=True),
                "profile_script": profile_script() if self._can_profile else "",
            }
        self.send(hello)

    async def _write(self, process: Process) -> None:
        with contextlib.suppress(Error):  # the reader sees the end too, and says it
            while True:
                await self._has_output.wait()
                self._has_output.clear()
                data = bytes(self._output)
                self._output.clear()
                await process.write(data)

    async def _read(self, process: Process, limit: asyncio.Timeout) -> None:
        frames = frame_checks.frames_of_node()
        async for piece in process.output():
            self._heard = time.monotonic()
            found: list[Observation] = []
            for header, payload in frames.feed(piece):
                if header["op"] == "tasks" and header.get("all") and not self._is_replacing:
                    limit.reschedule(None)
                found += await self._take(header, payload)
            self._acknowledge()
            if found:
                await self._report(found)
            self._doubt()

    async def _take(self, header: dict[str, Any], payload: bytes) -> Sequence[Observation]:
        """One frame from the agent."""
        name = header["op"]
        if name == "logs":
            self.reports.keep(header["parts"], payload, time.time())
        elif name == "tasks":
            return await self._take_tasks(header)
        elif name in {"answer", "pong"}:
            if (
                name == "pong"
                and frame_checks.line(header["refusal"]) != self._refusal
                and self._is_introduced()
            ):
                self._begin_introducing()
            answer = self._waiting.get((name, frame_checks.whole(header["id"])))
            if answer is not None and not answer.done():
                answer.set_result(header)
        elif name == "samples" and self._meter is not None:
            own, readings = readings_of(header, lambda key: self.reports.is_own(key, "readings"))
            at = frame_checks.moment(header["time"]) - self.reports.skew
            self._meter.take(self.address.name, at, own, readings)
        elif name == "welcome":
            self._welcome(header)
        elif name == "refused":
            raise ConflictError(
                f"the node {self.address.name} follows a newer server",
                hint="Two servers lead at once; stop the older one.",
            )
        return ()

    async def _take_tasks(self, header: dict[str, Any]) -> Sequence[Observation]:
        if self._is_replacing:
            return ()
        strangers = self.reports.strangers(header["tasks"])
        if strangers:
            if self.reports.refusals.counts:
                await asyncio.sleep(LOOK_UP_PAUSE)
            known = strangers & set(await self._placed(self.address.name, strangers))
            self.reports.allow(known)
            self._strays |= {attempt for attempt, _ in strangers - known} - {attempt for attempt, _ in known}
        found = self.reports.take(header["tasks"], is_all=bool(header.get("all")))
        if header.get("all"):
            wanted = self.reports.offsets()
            if wanted:
                self.send({"op": "want", "parts": wanted})
            self._since = time.monotonic()
            self._ready.set()
            self._tried.set()
        self._clear_strays()
        return found

    def _clear_strays(self) -> None:
        """Have the node remove what nobody has placed there: of a workload that was removed, or of another past."""
        if self._strays and self._ready.is_set() and (self._clearing is None or self._clearing.done()):
            self._clearing = asyncio.create_task(self._clear(sorted(self._strays)[:STRAYS]))

    async def _clear(self, attempts: list[str]) -> None:
        with contextlib.suppress(Error):  # it tells of them again when it is back
            await self.ask("end", attempts=[[attempt, 0.0] for attempt in attempts])
            await self.ask("forget", attempts=attempts)
        self._strays.difference_update(attempts)

    def _doubt(self) -> None:
        """Once what was refused is news, let it be told with what the node is."""
        if not self._is_doubted and self.reports.refusals.counts and self._is_introduced():
            self._begin_introducing()

    def _welcome(self, header: dict[str, Any]) -> None:
        if header["version"] != bundle().version:
            self.send({"op": "retire", "id": 0})
            self._is_replacing = True
            return
        self._welcomed = frame_checks.welcome(header)
        skew = self._welcomed["time"] - time.time()
        self.reports.skew = skew if abs(skew) > LEAST_SKEW_SECONDS else 0.0
        self._begin_introducing()

    def _begin_introducing(self) -> None:
        if self._probing is not None:
            self._probing.cancel()
        self._probing = asyncio.create_task(self._introduce(self._welcomed))

    async def _introduce(self, welcome: dict[str, Any]) -> None:
        """Find out what the node is, and say that it is there."""
        try:
            await self._ready.wait()
            sent = time.time()
            pong = frame_checks.condition(await self.ask("ping"))
            skew = pong["time"] - (sent + time.time()) / 2
            if self._probe is None or self._probed_boot != welcome["boot"]:
                self._probe = await self.program.probe()
                self._probed_boot, self._probed = welcome["boot"], time.monotonic()
            elif _lacks(self._probe) and time.monotonic() - self._probed > self._patience.equip:
                self._probed = time.monotonic()
                with contextlib.suppress(Error, TimeoutError):  # it is what it was, then
                    self._probe = await self.program.probe()
            facts = facts_of(self._probe, {**welcome, **pong}, skew=round(skew, 3))
            self._refusal = facts.refusal
            if notice := self.reports.refusals.notice:
                self._is_doubted = True
                facts = replace(facts, notices=(*facts.notices, notice))
        except (Error, TimeoutError, *NONSENSE) as error:
            self._reason = _as_error(error, self.address.name)
            await self._say_lost(is_refused=False)
            if self._process is not None:
                with contextlib.suppress(Error, OSError):
                    await self._process.terminate()
            return
        self._is_lost = False
        self._introduced = time.monotonic()
        self.reports.skew = (
            skew if abs(skew) > LEAST_SKEW_SECONDS else 0.0
        )  # clocks are set while we are connected
        self.reports.place = facts.address
        await self._report([NodeSeen(self.address.name, welcome["boot"], facts)])

    def _acknowledge(self) -> None:
        parts = self.reports.taken()
        if parts:
            self.send({"op": "have", "parts": parts})

    async def _watch_over(self) -> None:
        """Ping; give a silent connection up; say when the node is lost."""
        while True:
            await asyncio.sleep(min(self._patience.ping, self._patience.silence / 4))
            silent = time.monotonic() - self._heard
            if self.is_ready:
                if silent > self._patience.silence and self._process is not None:
                    self._reason = UnreachableError(
                        f"the node {self.address.name} was silent for {silent:.0f} seconds"
                    )
                    with contextlib.suppress(Error, OSError):
                        await self._process.terminate()
                else:
                    self.send({"op": "ping", "id": 0})
                    if again := self.reports.wanted_again():
                        self.send({"op": "want", "parts": again})
                self._refresh()
            elif silent > self._patience.lost:
                await self._say_lost(is_refused=False)

    def _is_introduced(self) -> bool:
        """Whether nobody finds out just now what the node is."""
        return self._probing is not None and self._probing.done()

    def _refresh(self) -> None:
        """Look at disk and clock again, now and then."""
        if self._is_introduced() and time.monotonic() - self._introduced > self._patience.refresh:
            self._begin_introducing()

    async def _say_lost(self, *, is_refused: bool) -> None:
        if not self._is_lost and not self._is_closing:
            self._is_lost = True
            await self._report(
                [NodeLost(self.address.name, self._reason.message, self._reason.hint, is_refused)]
            )

    def _fail_waiting(self, error: Error) -> None:
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(UnreachableError(error.message, hint=error.hint))
        self._waiting.clear()


def _lacks(probe: Mapping[str, Any]) -> bool:
    """Whether a node may have more by now than it had: it ran no containers, or its driver did not answer."""
    return not probe.get("containers") or bool(probe.get("device_errors"))


def _as_error(error: Exception, name: str) -> Error:
    if isinstance(error, Error):
        return error
    if isinstance(error, TimeoutError):
        return UnreachableError(f"the node {name} did not answer in time")
    return UnreachableError(f"the connection to the node {name} failed: {error}")
