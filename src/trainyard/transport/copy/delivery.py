"""What one machine, or many with the same need, must be sent: archives of small files, then large files in parts, then
new blocks of files that are there in an older form.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from trainyard.lib.errors import Error, InvalidError
from trainyard.lib.ids import new_id
from trainyard.transport.api import Transport
from trainyard.transport.copy.archive import BLOCK, END, Segment, ended, pack, segments
from trainyard.transport.copy.blocks import Ledger, make_ledger
from trainyard.transport.copy.compare import Findings, Plan, part_signature
from trainyard.transport.copy.delta import Patch, patches, write_patch
from trainyard.transport.copy.manifest import ManifestEntry, part_stem
from trainyard.transport.copy.payload import Payload, Stream, make_payload
from trainyard.transport.copy.script import compose
from trainyard.transport.copy.send import Outcome, feed, is_bulk, patience_for

TAIL = 1024 * 1024
WIDE = 8 * 1024 * 1024  # from here on, enlarging the pipe on the machine is worth the process that does it
WINDOW = 2  # archives in memory at once: one being sent, one being made
STALE, BUSY = "3", "4"  # exit statuses of receive_part

Variables = dict[str, str | bytes | int]
OnBytes = Callable[[int], None]


@dataclass
class ArchiveDelivery:
    """One archive, made once, unpacked by every machine of the group."""

    plan: Plan
    segment: Segment
    notes: list[str]
    end: str
    stamp: str = ""
    in_all: int = 0
    is_streamed: bool = False  # one machine wants it, once, and over the open connection
    ledger: Ledger | None = None  # collects the checksums of the files while they are sent

    @property
    def length(self) -> int:
        """Bytes to send."""
        return self.segment.length

    @property
    def work(self) -> int:
        """Bytes that the machine must process after it has received all."""
        return self.length

    def keep(self, ledger: Ledger) -> None:
        """Let the machine keep the sums."""
        plain = Segment(self.segment.entries[:-1], self.segment.length - BLOCK)
        self.segment = ended(plain, self.end.encode(), ledger)

    def make(self) -> Payload | Stream:
        """Pack the files, or prepare to pack them while they are sent. Blocking."""
        if self.is_streamed:
            return Stream(self._pack, self.length)
        return self.make_shared()

    def make_shared(self) -> Payload:
        """Pack the files for any number of readers. Blocking."""
        return make_payload(self._pack)

    def _pack(self, descriptor: int) -> int:
        return pack(self.segment, descriptor, self.notes, self.ledger)

    def variables(self) -> Variables:
        """What `sinks.sh` has to know."""
        return {
            "sink": "tar",
            "base": self.plan.base,
            "key": self.plan.key,
            "end": self.end,
            "begun": str(self.plan.manifest.scanned_ns),
            "stamp": self.stamp,
        }

    async def send(self, transport: Transport, payload: Payload | Stream, on_bytes: OnBytes) -> Outcome:
        """To one machine."""
        return await _receive(transport, payload, self.variables(), on_bytes, self)


@dataclass
class PartDelivery:
    """One large file, sent from the end of the machine's partial file."""

    plan: Plan
    entry: ManifestEntry
    offset: int = 0
    stamp: str = ""
    in_all: int = 0
    alone: bool = False

    @property
    def length(self) -> int:
        """Bytes to send."""
        return self.entry.size - self.offset

    @property
    def work(self) -> int:
        """Bytes that the machine must process: the end of its partial file before, or the whole file after."""
        return min(self.offset, TAIL)

    def make(self) -> Payload:
        """The file itself; nothing is copied."""
        return Payload(self.entry.path, self.offset, self.length)

    make_shared = make

    def variables(self) -> Variables:
        """What `sinks.sh` has to know."""
        folder, _, leaf = self.entry.name.rpartition(b"/")
        when = time.strftime("%Y%m%d%H%M.%S", time.gmtime(self.entry.mtime))
        return {
            "sink": "part",
            "folder": self.plan.base + b"/" + folder if folder else self.plan.base,
            "leaf": leaf,
            "stem": part_stem(leaf),
            "signature": part_signature(self.entry),
            "key": self.plan.key,
            "offset": self.offset,
            "tail": _tail_hash(self.entry.path, self.offset),
            "upto": self.entry.size,
            "complete": 1,
            "mode": f"{self.entry.mode & 0o7777:o}",
            "when": when,
            "alone": int(self.alone),
            "relayed": 0,
            "stamp": self.stamp,
        }

    async def send(self, transport: Transport, payload: Payload | Stream, on_bytes: OnBytes) -> Outcome:
        """Send to one machine. Starts from the beginning if its partial file does not match or is in use."""
        variables = await asyncio.to_thread(self.variables)
        outcome = await _receive(transport, payload, variables, on_bytes, self)
        if outcome.words[:2] == ("failed", STALE):
            whole = replace(self, offset=0)
        elif outcome.words[:2] == ("failed", BUSY) and not self.alone:
            whole = replace(self, offset=0, alone=True)
        else:
            return outcome
        return await whole.send(transport, whole.make(), on_bytes)


@dataclass
class DeltaDelivery:
    """New blocks of files of which the machines have an older version."""

    plan: Plan
    patch: Patch
    stamp: str = ""
    in_all: int = 0
    is_streamed: bool = False
    ledger: Ledger | None = None

    @property
    def length(self) -> int:
        """Bytes to send."""
        return self.patch.length + self.patch.proofs + (self.ledger.length if self.ledger else 0)

    @property
    def work(self) -> int:
        """Bytes that the machine must process: it copies the old files, inserts the blocks and hashes all of it."""
        return self.length + 2 * sum(entry.size for entry, _ in self.patch.files)

    def keep(self, ledger: Ledger) -> None:
        """Let the machine keep the sums."""
        self.ledger = ledger

    def make(self) -> Payload | Stream:
        """Read the blocks, or get ready to read them while they are sent. Blocking."""
        if self.is_streamed:
            return Stream(self._write, self.length)
        return self.make_shared()

    def make_shared(self) -> Payload:
        """Read them for any number of readers. Blocking."""
        return make_payload(self._write)

    def _write(self, descriptor: int) -> int:
        return write_patch(self.patch, self.ledger, descriptor)

    def variables(self) -> Variables:
        """What `sinks.sh` has to know."""
        return {
            "sink": "delta",
            "base": self.plan.base,
            "key": self.plan.key,
            "patch": self.patch.script(),
            "upto": self.patch.length,
            "proofs": self.patch.proofs,
            "kept": self.ledger.length if self.ledger else 0,
            "stamp": self.stamp,
        }

    async def send(self, transport: Transport, payload: Payload | Stream, on_bytes: OnBytes) -> Outcome:
        """To one machine."""
        return await _receive(transport, payload, self.variables(), on_bytes, self)


Delivery = ArchiveDelivery | PartDelivery | DeltaDelivery


def deliveries(plan: Plan, findings: Findings, notes: list[str], *, copies: int) -> list[Delivery]:
    """Return the deliveries for `copies` machines with these findings, in order. The last completes the upload."""
    deltas = findings.deltas
    whole = [entry for entry in findings.files if entry.name not in deltas]
    ledger = make_ledger(plan.manifest.files, findings.files, findings.known)
    small = [*findings.folders, *(entry for entry in whole if not entry.is_large)]
    made: list[Delivery] = [_archive(plan, segment, notes, ledger) for segment in segments(small)]
    made += [
        PartDelivery(plan, entry, min(findings.parts.get(entry.name, 0), entry.size))
        for entry in whole
        if entry.is_large
    ]
    old = [(entry, deltas[entry.name]) for entry in findings.files if entry.name in deltas]
    made += [DeltaDelivery(plan, patch) for patch in patches(plan.base, old)]
    if made and ledger is not None and ledger.length:
        if isinstance(made[-1], PartDelivery):
            made.append(_archive(plan, Segment([], len(END)), notes, ledger))
        if not isinstance(made[-1], PartDelivery):
            made[-1].keep(ledger)
    in_all = copies * sum(item.length for item in made)
    for item in made:
        item.in_all = in_all
        if not isinstance(item, PartDelivery):
            item.is_streamed = copies == 1 and not is_bulk(item.length, in_all)
    if made:
        made[-1].stamp = plan.stamp
    return made


def _archive(plan: Plan, segment: Segment, notes: list[str], ledger: Ledger | None) -> ArchiveDelivery:
    end = new_id(".trainyard-part-end-")
    return ArchiveDelivery(plan, ended(segment, end.encode()), notes, end, ledger=ledger)


@dataclass
class Stock:
    """Payloads shared by `users` senders who go through `items` in order, each at its own pace.

    An archive is made when the first sender needs it and freed after the last one has sent it. At most WINDOW archives
    are held, so a slow machine slows down the others and does not fill memory.
    """

    items: Sequence[Delivery]
    users: int
    _slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(WINDOW))
    _made: dict[int, asyncio.Future[Payload | Stream]] = field(default_factory=dict)
    _waiting: dict[int, int] = field(default_factory=dict)

    async def take(self, index: int) -> Payload | Stream:
        """The payload of item `index`; give it back."""
        if index not in self._made:
            self._made[index] = asyncio.ensure_future(self._make(index))
        return await asyncio.shield(self._made[index])

    def give(self, index: int) -> None:
        """Note that one sender has sent item `index` or will never need it."""
        self._waiting[index] = self._waiting.get(index, self.users) - 1
        if self._waiting[index] == 0 and (made := self._made.get(index)):
            made.add_done_callback(self._free)
            made.cancel()

    async def settled(self) -> None:
        """Wait until no payload is being made. Payloads that no sender needs are freed by then."""
        if self._made:
            await asyncio.wait(self._made.values())
            await asyncio.sleep(0)  # the callbacks that free

    def _free(self, made: asyncio.Future[Payload | Stream]) -> None:
        if not made.cancelled() and made.exception() is None:
            made.result().close()
            self._slots.release()

    async def _make(self, index: int) -> Payload | Stream:
        await self._slots.acquire()
        try:
            # NB: a thread cannot be cancelled; waiting for it keeps the payload from being lost.
            making = asyncio.ensure_future(asyncio.to_thread(self.items[index].make))
            try:
                return await asyncio.shield(making)
            except asyncio.CancelledError:
                (await making).close()
                raise
        except BaseException:
            self._slots.release()
            raise


def failure(machine: str, plan: Plan, outcome: Outcome) -> Error:
    """Return the error for a machine that did not accept the whole delivery."""
    return InvalidError(
        f"the upload to {plan.shown_target!r} on {machine} failed: {outcome.reason}",
        hint="Check the space and the rights of the target there, then upload again; only the rest is sent.",
    )


async def _receive(
    transport: Transport, payload: Payload | Stream, variables: Variables, on_bytes: OnBytes, item: Delivery
) -> Outcome:
    mark = new_id("trainyard-")
    wide = int(payload.length >= WIDE)
    script = compose("sinks.sh", "receive.sh", mark=mark, wide=wide, **variables)
    seconds = patience_for(item.work)
    return await feed(transport, script, payload, mark, on_bytes, in_all=item.in_all, seconds=seconds)


def _tail_hash(path: bytes, offset: int) -> str:
    """Return the hash of the MiB before `offset`, as the machine computes it for its partial file."""
    if not offset:
        return "none"
    start = max(0, offset - TAIL)
    return Payload(path, start, offset - start).sha256()
