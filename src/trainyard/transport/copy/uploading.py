"""Uploads files and folders to machines: asks every machine which files it lacks, and reads each byte only once."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from trainyard.lib.aio import finish, gather_all
from trainyard.lib.errors import Error, InvalidError, TaskErrors, UnreachableError
from trainyard.lib.ids import new_id
from trainyard.transport.api import Nearby, Transport
from trainyard.transport.copy import relay
from trainyard.transport.copy.api import DEFAULT_OPTIONS, CopyOptions, CopyReport, Peers, Progress
from trainyard.transport.copy.compare import FILE, INTO, TREE, Findings, Plan, survey
from trainyard.transport.copy.delivery import Delivery, DeltaDelivery, Stock, deliveries, failure
from trainyard.transport.copy.manifest import ROOT, expand, leaf_name, scan
from trainyard.transport.copy.payload import Payload
from trainyard.transport.copy.prune import prune
from trainyard.transport.copy.script import compose, machine_path
from trainyard.transport.copy.send import Outcome, patience_for

ATTEMPTS = (
    3  # after a lost connection, or if two uploads to a shared home collide: ask again and send the rest
)
AT_ONCE = 64  # so many machines are sent to at the same time; each may be a process here
# So many machines on this computer assemble files from blocks at the same time. They copy and hash on our own
# processors; more of them at once would only use more memory.
HERE_AT_ONCE = 2 * (os.cpu_count() or 2)


async def upload(
    targets: Sequence[tuple[str, Transport]],
    sources: Sequence[Path],
    target: str = "",
    *,
    options: CopyOptions = DEFAULT_OPTIONS,
    progress: Progress | None = None,
    peers: Peers | None = None,
) -> CopyReport:
    """Copy `sources` to every machine, sending only the differences. Repeating an upload is cheap and resumes it.

    Relative targets and `~` mean the machine's home; no target means the home itself. One folder with a target becomes
    the target (merging with what is there); one file becomes the target, or goes inside it where it is a folder or is
    written with a slash at the end; several sources, and the matches of a pattern, go inside. Parents are made.

    Machines that fail do not stop the others: their errors come as one TaskErrors, or alone if there is one.
    Cancelling ends the remote scripts. Files that have arrived stay and are not sent again.
    """
    plan = await asyncio.to_thread(_plan, sources, target, options)
    work = _Upload(plan, dict(targets), progress, peers)
    await work.run(list(work.machines), ATTEMPTS)
    if options.delete and plan.kind != FILE:
        await work.prune()
    work.raise_failures()
    return CopyReport(
        files=len(plan.manifest.files),
        sent=work.sent,
        relayed=tuple(sorted(work.relayed)),
        notes=tuple(dict.fromkeys(plan.manifest.notes)),
    )


def _plan(sources: Sequence[Path], target: str, options: CopyOptions) -> Plan:
    paths, is_pattern = expand(sources)
    single = len(paths) == 1 and not is_pattern
    inside = not single or options.into or target in ("", "~", "~/", ".", "./", "/")
    kind = INTO
    where = machine_path(target)
    names = [os.fsencode(leaf_name(path)) for path in paths]
    if single and paths[0].is_dir() and (not inside or not target):
        kind = TREE
        where = where if target else machine_path(leaf_name(paths[0]))
        names = [ROOT]
    elif single and not inside and not target.endswith("/"):
        kind = FILE
        names = [where.rpartition(b"/")[2]]
    manifest = scan(zip(names, paths, strict=True), options)
    return Plan(manifest, kind, where, _key(paths, where), options)


def _key(paths: Sequence[Path], where: bytes) -> str:
    """Return the name of this upload's stamp on a machine, made from this computer, the sources and the target."""
    parts = [os.fsencode(os.uname().nodename), where, *(os.fsencode(path.absolute()) for path in paths)]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:20]


def _inside(plan: Plan) -> Plan:
    """Return the plan for machines on which the target of a file is a folder."""
    entry = plan.manifest.files[0]
    moved = entry._replace(name=entry.path.rpartition(b"/")[2])
    manifest = scan([], plan.options)
    manifest.files.append(moved)
    manifest.scanned_ns = plan.manifest.scanned_ns
    return Plan(manifest, INTO, plan.target, plan.key, plan.options)


@dataclass
class _Upload:
    """A running upload."""

    plan: Plan
    machines: dict[str, Transport]
    progress: Progress | None
    peers: Peers | None
    sent: dict[str, int] = field(default_factory=dict)
    relayed: set[str] = field(default_factory=set)
    failures: dict[str, BaseException] = field(default_factory=dict)
    whole: set[str] = field(default_factory=set)  # where putting files together from blocks has failed
    _gate: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE))
    _gate_here: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(HERE_AT_ONCE))

    async def run(self, names: Sequence[str], attempts: int, *, may_relay: bool = True) -> None:
        """Bring the machines `names` up to date."""
        plan = self.plan
        found = await gather_all([survey(name, self.machines[name], plan) for name in names])
        needs: dict[str, Findings] = {}
        for name, findings in zip(names, found, strict=True):
            if isinstance(findings, BaseException):
                self._fail(name, findings)
            else:
                needs[name] = replace(findings, deltas={}) if name in self.whole else findings
        inside = [name for name, findings in needs.items() if findings.inside]
        if inside:
            await self._run_inside(inside)
        left = {name: needs[name] for name in needs if name not in inside}
        groups = _groups(left, len(plan.manifest.files))
        served = await gather_all(
            [self._serve(group, findings, attempts, may_relay=may_relay) for group, findings in groups]
        )
        for result in served:
            if isinstance(result, BaseException):
                raise result

    def raise_failures(self) -> None:
        """Raise the failures, if there are any."""
        for error in self.failures.values():
            if not isinstance(error, Exception):
                raise error
        # An error about a local file is raised once, not once for each machine.
        distinct = {id(error): error for error in self.failures.values()}
        errors = [error for error in distinct.values() if isinstance(error, Exception)]
        if len(errors) == 1:
            raise errors[0]
        if errors:
            raise TaskErrors(f"the upload failed on {', '.join(self.failures)}", errors)

    async def _run_inside(self, names: Sequence[str]) -> None:
        other = _Upload(_inside(self.plan), self.machines, self.progress, self.peers)
        await other.run(names, ATTEMPTS)
        self.sent.update(other.sent)
        self.relayed |= other.relayed
        self.failures.update(other.failures)

    async def _serve(self, names: list[str], findings: Findings, attempts: int, *, may_relay: bool) -> None:
        """Send the same to all of `names`."""
        items = deliveries(
            self.plan,
            findings,
            self.plan.manifest.notes,
            copies=len(names),
        )
        total = sum(item.length for item in items)
        if not items:
            if findings.is_verified:
                await gather_all([self._stamp(name) for name in names])
            for name in names:
                self._done(name)
            return
        if may_relay and self.peers is not None and total > relay.RELAY and self.peers.can_relay(names):
            if left := await self._relay(names, items, total, self.peers):
                # The files on the machines have changed meanwhile, so ask again.
                await self.run(left, attempts, may_relay=False)
            return
        stock = Stock(items, len(names))
        try:
            results = await gather_all([self._direct(name, stock, total) for name in names])
        finally:
            await finish(stock.settled())
        again = []
        for name, result in zip(names, results, strict=True):
            if isinstance(result, _TryAgain) and attempts > 1:
                again.append(name)
            elif isinstance(result, BaseException):
                self._fail(name, result.cause if isinstance(result, _TryAgain) else result)
        if again:
            await self.run(again, attempts - 1, may_relay=False)

    async def _stamp(self, name: str) -> None:
        # Without the stamp the next upload only has to compare contents again.
        script = compose("sinks.sh", "stamp.sh", mark=new_id(), key=self.plan.key, stamp=self.plan.stamp)
        await self.machines[name].run(script)

    async def _direct(self, name: str, stock: Stock, total: int) -> None:
        meter = _Meter(self.progress, [name], total)
        index = 0
        try:
            for item in stock.items:
                payload = await stock.take(index)
                try:
                    # NB: nobody waits for a payload inside a gate: its place is freed by machines that wait outside.
                    async with self._gate_of(name, item):
                        outcome = await item.send(self.machines[name], payload, meter.on_bytes)
                except UnreachableError as error:
                    raise _TryAgain(_lost(name)) from error
                except InvalidError as error:  # what it says has no end
                    raise InvalidError(
                        f"the upload to {name} failed: {error.message}", hint=error.hint
                    ) from error
                if not outcome.is_ok:
                    if isinstance(item, DeltaDelivery):
                        self.whole.add(name)
                    raise _TryAgain(failure(name, self.plan, outcome))
                self.sent[name] = self.sent.get(name, 0) + payload.length
                stock.give(index)
                index += 1
                meter.finish(item.length)
        finally:
            for rest in range(index, len(stock.items)):
                stock.give(rest)
        self._done(name, total)

    def _gate_of(self, name: str, item: Delivery) -> asyncio.Semaphore:
        transport = self.machines[name]
        is_here = isinstance(transport, Nearby) and transport.is_here
        return self._gate_here if is_here and isinstance(item, DeltaDelivery) else self._gate

    async def _relay(
        self, names: list[str], items: Sequence[Delivery], total: int, peers: Peers
    ) -> list[str]:
        """Send along a chain. Returns the machines that must be sent to directly."""
        chain = list(names)
        failed: list[str] = []
        meter = _Meter(self.progress, chain, total)
        for item in items:
            if not chain:
                break
            reasons = await self._pass_on(chain, item, peers, meter)
            failed += [name for name in chain if name in reasons]
            if isinstance(item, DeltaDelivery):
                self.whole.update(reasons)
            chain = [name for name in chain if name not in reasons]
            meter.machines = chain
            meter.finish(item.length)
        for name in chain:
            self._done(name, total)
        return failed

    async def _pass_on(
        self, chain: Sequence[str], item: Delivery, peers: Peers, meter: _Meter
    ) -> dict[str, str]:
        """Send one item along a chain. Returns the machines that did not get it, with the reasons."""
        payload = await asyncio.to_thread(item.make_shared)
        try:
            if item.length <= relay.RELAY:
                return await self._send_small(chain, item, payload)
            digest = await asyncio.to_thread(payload.sha256)
            variables = await asyncio.to_thread(item.variables)
            reasons = await relay.send(
                chain,
                self.machines,
                peers,
                payload,
                digest,
                variables=variables,
                on_bytes=meter.on_bytes,
                seconds=patience_for(item.work),
            )
        except Error:
            reasons = dict.fromkeys(chain, "")  # the first does not answer: send to all directly
        finally:
            payload.close()
        if chain[0] not in reasons:
            self.sent[chain[0]] = self.sent.get(chain[0], 0) + payload.length
        self.relayed |= set(chain[1:]) - set(reasons)
        self.plan.manifest.notes.extend(
            f"{name} was not reached by relay: {reasons[name]}" for name in reasons
        )
        return reasons

    async def _send_small(self, chain: Sequence[str], item: Delivery, payload: Payload) -> dict[str, str]:
        """Send an item that is not worth a chain to all machines directly. Returns those that did not get it."""
        sends = [item.send(self.machines[name], payload, lambda _count: None) for name in chain]
        failed: dict[str, str] = {}
        for name, result in zip(chain, await gather_all(sends), strict=True):
            if isinstance(result, Outcome) and result.is_ok:
                self.sent[name] = self.sent.get(name, 0) + payload.length
            elif isinstance(result, Outcome):
                failed[name] = result.reason
            elif isinstance(result, Error):
                failed[name] = str(result)
            else:
                raise result
        return failed

    async def prune(self) -> None:
        """Remove files that the source does not have from the machines that are up to date."""
        names = [name for name in self.machines if name not in self.failures]
        results = await gather_all([prune(name, self.machines[name], self.plan) for name in names])
        for name, result in zip(names, results, strict=True):
            if isinstance(result, BaseException):
                self._fail(name, result)

    def _done(self, name: str, total: int = 0) -> None:
        self.sent.setdefault(name, 0)
        if self.progress is not None:
            self.progress.update(name, total, total)

    def _fail(self, name: str, error: BaseException) -> None:
        self.failures[name] = error


def _lost(name: str) -> UnreachableError:
    return UnreachableError(
        f"the connection to {name} was lost during the upload", hint="Upload again; only the rest is sent."
    )


class _TryAgain(Exception):  # noqa: N818  # never leaves this module
    """A sink failed; the reason may have gone when asked again."""

    def __init__(self, cause: Error) -> None:
        super().__init__(str(cause))
        self.cause = cause


@dataclass
class _Meter:
    """Sums the bytes of several transfers into one progress that never goes back."""

    progress: Progress | None
    machines: list[str]
    total: int
    before: int = 0
    shown: int = -1

    def on_bytes(self, count: int) -> None:
        """Count bytes of the current item."""
        done = min(self.before + count, self.total)
        if self.progress is None or done <= self.shown:
            return
        self.shown = done
        for name in self.machines:
            self.progress.update(name, done, self.total)

    def finish(self, length: int) -> None:
        """Count the current item as sent."""
        self.before += length


def _groups(needs: dict[str, Findings], count: int) -> list[tuple[list[str], Findings]]:
    """Group machines that need the same files, in the given order. `count` is the number of all files."""
    groups: dict[object, tuple[list[str], Findings]] = {}
    for name, findings in needs.items():
        is_all = len(findings.files) == count
        key = (
            is_all or frozenset(entry.name for entry in findings.files),
            len(findings.folders),
            findings.is_verified,
            tuple(sorted(findings.parts.items())),
            tuple(sorted((name, delta.base, delta.changed) for name, delta in findings.deltas.items())),
            id(findings.known) if findings.known else 0,
        )
        groups.setdefault(key, ([], findings))[0].append(name)
    return list(groups.values())
