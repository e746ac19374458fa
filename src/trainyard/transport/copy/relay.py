"""Relays data from machine to machine: the client sends to the first, and each machine sends to the next.

The stream is pipelined: nobody waits for a whole file. The client starts the receiver on every machine over its own connection
and hears from each how it went, so a machine that lies does so about itself alone: what it passes on is compared with the
client's hash before anything is made of it, and where it goes is for the client to say. Whoever did not get it is named, so
that the caller can serve it directly.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from trainyard.lib.aio import end_task, finish, gather_all
from trainyard.lib.errors import Error, UnreachableError
from trainyard.lib.ids import new_id
from trainyard.lib.shell import quote
from trainyard.transport.api import Process, Transport
from trainyard.transport.copy.api import Peers
from trainyard.transport.copy.payload import Payload
from trainyard.transport.copy.script import compose
from trainyard.transport.copy.send import Outcome, Patience, feed, make_outcome, printable, read_bounded

RELAY = 1024 * 1024  # below this, setting up the chain costs more than sending to everybody
# A chain uses every link once and is the quickest for few; each machine adds the time of a login (0.1 s and more)
# before the last one hears anything, so many make a tree in which each feeds two.
CHAIN = 8

Variables = Mapping[str, str | bytes | int]


async def send(
    chain: Sequence[str],
    machines: Mapping[str, Transport],
    peers: Peers,
    payload: Payload,
    digest: str,
    *,
    variables: Variables,
    on_bytes: Callable[[int], None],
    seconds: float,
) -> dict[str, str]:
    """Send one payload to all of `chain`. Returns a reason for each machine that failed.

    `seconds` without a byte taken by the first, or from then on until all have ended, are too many.
    """
    relay = _Relay(
        chain, machines, peers, payload, {**variables, "expected": digest, "length": payload.length}
    )
    patience = Patience(seconds)

    def moved(count: int) -> None:
        patience.note(count)
        on_bytes(count)

    with suppress(TimeoutError):
        await patience.watch(relay.run(moved, seconds))
    return relay.reasons()


@dataclass
class _Relay:
    """One relay under way: machines by their places in the chain."""

    chain: Sequence[str]
    machines: Mapping[str, Transport]
    peers: Peers
    payload: Payload
    variables: Variables
    name: str = field(
        default_factory=lambda: secrets.token_hex(16)
    )  # of the pipes; who knows it may fill them
    outcomes: dict[int, Outcome | Error] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.over = [asyncio.Event() for _ in self.chain]  # of machines that pass nothing on any more
        self.marks = [new_id("trainyard-") for _ in self.chain]

    def next(self, index: int) -> range:
        """Whom a machine feeds."""
        fan = 1 if len(self.chain) <= CHAIN else 2
        return range(fan * index + 1, min(fan * index + fan + 1, len(self.chain)))

    async def run(self, on_bytes: Callable[[int], None], seconds: float) -> None:
        """Go through with it; what came of it is in `outcomes`, and of whom there is none, did not end."""
        works = [self._note(0, self._feed_first(on_bytes, seconds))]
        for index in range(len(self.chain)):
            works += [self._note(other, self._follow(other, self.over[index])) for other in self.next(index)]
        for result in await gather_all(works):
            if isinstance(result, BaseException):
                raise result

    async def _note(self, index: int, work: Awaitable[Outcome]) -> None:
        try:
            self.outcomes[index] = await work
        except Error as error:
            self.outcomes[index] = error
        finally:
            self.over[index].set()

    async def _feed_first(self, on_bytes: Callable[[int], None], seconds: float) -> Outcome:
        first, script = self.machines[self.chain[0]], self._script(0)
        in_all = self.payload.length
        return await feed(
            first, script, self.payload, self.marks[0], on_bytes, in_all=in_all, seconds=seconds
        )

    async def _follow(self, index: int, is_over: asyncio.Event) -> Outcome:
        """One machine that is fed by another, watched over our own connection to it."""
        process = await self.machines[self.chain[index]].spawn(self._script(index))
        dismissing = asyncio.create_task(_dismiss(process, is_over))
        try:
            output = await read_bounded(process)
            return make_outcome(output, process.errors, self.marks[index])
        finally:
            await end_task(dismissing)
            await finish(_end(process))

    def reasons(self) -> dict[str, str]:
        """Why, of each machine that did not say that it has all."""
        found: dict[str, str] = {}
        for index, name in enumerate(self.chain):
            outcome = self.outcomes.get(index)
            if outcome is None:
                found[name] = "it did not end in time"
            elif isinstance(outcome, Error):
                found[name] = printable(outcome.message)
            elif ("ok",) not in outcome.lines:
                found[name] = self._reason(index, outcome)
        return found

    def _reason(self, index: int, outcome: Outcome) -> str:
        """What a machine says, and who was to feed it, with what that one says."""
        said = [line for line in outcome.lines if line[:1] == ("failed",)]
        reason = printable(" ".join(said[-1][1:])) if said else outcome.reason
        parent = next((one for one in range(index) if index in self.next(one)), None)
        if parent is None:
            return reason or "no reason given"
        reason = f"{reason or 'no reason given'} ({self.chain[parent]} was to pass it on)"
        above = self.outcomes.get(parent)
        for line in above.lines if isinstance(above, Outcome) else ():
            if line[:2] == ("unreached", str(index)):
                reason += f": {printable(' '.join(line[2:]))}"
                break
        return reason

    def _script(self, index: int) -> str:
        return (
            compose(
                mark=self.marks[index],
                index=index,
                key_name=self.name,
                next=" ".join(map(str, self.next(index))),
                **self.variables,
            )
            + f"key_file={_home(self.peers.key_file)}\nknown_hosts={_home(self.peers.known_hosts)}\n"
            + self._peer_table(index)
            + compose("sinks.sh", "relay.sh")
        )

    def _peer_table(self, index: int) -> str:
        cases = []
        for other in self.next(index):
            peer = self.peers.members[self.chain[other]]
            login = f"{peer.user}@{peer.address}" if peer.user else peer.address
            cases.append(f"{other}) login={quote(login)}; port={peer.port};;\n")
        return f"peer() {{ case $1 in\n{''.join(cases)}*) ;;\nesac; }}\n"


async def _dismiss(process: Process, is_over: asyncio.Event) -> None:
    """Tell a machine that nobody passes anything on to it any more."""
    await is_over.wait()
    with suppress(UnreachableError):
        await process.write_eof()


async def _end(process: Process) -> None:
    with suppress(UnreachableError):
        await process.terminate()


def _home(path: str) -> str:
    """Absolute on the machine: a relative path of a key would depend on where ssh is started."""
    if path.startswith("/"):
        return quote(path)
    return '"$HOME"/' + quote(path.removeprefix("~/"))
