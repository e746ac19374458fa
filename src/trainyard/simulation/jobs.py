"""Simulated jobs: workloads with a known run time, and their CSV form. traces.py generates them.

A `Job` is a scheduler's `Request` plus what only the future knows: how long it really runs, which of its attempts
fail on the way, how often it saves its work.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache

from trainyard.lib.errors import InvalidError
from trainyard.lib.units import parse_duration, parse_size
from trainyard.scheduling.model import Request, Role

MIB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One workload of a trace. Times are seconds; amounts are those of one replica."""

    id: str
    submitted: float
    duration: float  # of running that it needs, with all replicas
    replicas: int = 1
    minimum: int | None = None  # elastic: it starts with so many, and runs longer
    devices: int = 1
    device: str = ""
    cpu: int = 0  # thousandths of a core
    memory: int = 0  # MiB
    user: str = "user"
    workspace: str = "default"
    priority: int = 5
    limit: float | None = None  # what the user said it would take at most
    preemptible: bool = False
    same_switch: bool = False
    pool: str = ""
    checkpoint: float = 0.0  # it saves its work so often; 0: never, so that whoever stops it costs all of it
    failures: tuple[
        float, ...
    ] = ()  # attempts before the last: each breaks after so many seconds and is tried again
    outcome: str = "completed"  # how the last attempt ends: completed, failed or cancelled

    @property
    def total_devices(self) -> int:
        """Devices of all replicas."""
        return self.replicas * self.devices

    @property
    def work(self) -> float:
        """Device-seconds that it takes where nobody stops it."""
        return self.total_devices * (self.duration + sum(self.failures))

    def request(self, expected: float | None = None) -> Request:
        """What the scheduler gets to see of it, with how long it will probably run."""
        return Request(
            id=self.id,
            roles=_roles(
                self.replicas, self.minimum, self.cpu, self.memory, self.device, self.devices, self.pool
            ),
            workspace=self.workspace,
            user=self.user,
            priority=self.priority,
            submitted=self.submitted,
            limit=self.limit,
            expected=expected,
            preemptible=self.preemptible,
            same_switch=self.same_switch,
        )


@lru_cache(maxsize=4096)
def _roles(
    replicas: int, minimum: int | None, cpu: int, memory: int, device: str, devices: int, pool: str
) -> tuple[Role, ...]:
    """One object for all jobs that ask for the same: there are few different ones."""
    return (
        Role(
            replicas=replicas,
            minimum=minimum,
            cpu=cpu,
            memory=memory,
            device=device,
            devices=devices,
            pool=pool,
        ),
    )


# -- CSV -------------------------------------------------------------------------------------------------------------

OUTCOMES = ("completed", "failed", "cancelled")
COLUMNS: dict[str, str] = {
    "id": "a name of its own; without the column: job-1, job-2 …",
    "submitted": "when it joins the queue: seconds from the start, or `90s`, `30m`, `2h`, `1d` (required)",
    "duration": "how long it really runs, written likewise (required)",
    "replicas": "how many parts start together (1)",
    "minimum": "the least that it can start with, if it is elastic",
    "devices": "devices of each replica (1)",
    "device": "their type, where the cluster has several",
    "cpus": "cores of each replica, fractions allowed (0)",
    "memory": "memory of each replica, like `64GiB` (0)",
    "user": "who submits it (`user`)",
    "workspace": "for which workspace (`default`)",
    "priority": "larger goes first (5)",
    "limit": "the longest running time that the user announces; empty: none",
    "preemptible": "`yes` if it may be stopped to make room (`no`)",
    "same_switch": "`yes` if all replicas must be under one switch (`no`)",
    "pool": "only in this pool",
    "checkpoint": "how often it saves its work, like `30m`; empty: never",
    "failures": "attempts that break first, like `10m;2h`, each tried again",
    "outcome": "how it ends: `completed`, `failed` or `cancelled` (`completed`)",
}
REQUIRED = ("submitted", "duration")


def parse_jobs(text: str, *, name: str = "jobs.csv") -> list[Job]:
    """Read a CSV text with a header line. InvalidError names the line, and the nearest column where one is misspelt."""
    reader = csv.reader(io.StringIO(text), strict=True)
    try:
        header = [title.strip().lower() for title in next(reader, [])]
        _check_header(header, name)
        jobs: list[Job] = []
        for row in reader:
            if row and any(cell.strip() for cell in row):
                jobs.append(_parse_row(header, row, f"{name} line {reader.line_num}", len(jobs) + 1))
    except csv.Error as error:
        raise InvalidError(
            f"{name} line {reader.line_num} is no CSV: {error}", hint="Check its quotes and commas."
        ) from error
    _check_ids(jobs, name)
    return jobs


def format_jobs(jobs: Iterable[Job]) -> str:
    """The CSV text of jobs; columns that all leave at their default are left out."""
    rows = [_cells_of(job) for job in jobs]
    defaults = _cells_of(Job(id="", submitted=0.0, duration=0.0))
    kept = [
        title
        for title in COLUMNS
        if title in {"id", *REQUIRED} or any(row[title] != defaults[title] for row in rows)
    ]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(kept)
    writer.writerows([row[title] for title in kept] for row in rows)
    return out.getvalue()


def _check_header(header: Sequence[str], name: str) -> None:
    if not any(header):
        raise InvalidError(
            f"{name} is empty", hint=f"Begin it with a header: {','.join(REQUIRED)},devices,user."
        )
    for title in header:
        if title not in COLUMNS:
            near = get_close_matches(title, COLUMNS, n=1, cutoff=0.5)
            hint = f"Did you mean {near[0]!r}?" if near else f"Columns are {', '.join(COLUMNS)}."
            raise InvalidError(f"{name} line 1 has a column {title!r}, which means nothing here", hint=hint)
    twice = sorted({title for title in header if header.count(title) > 1})
    if twice:
        raise InvalidError(f"{name} line 1 has the column {twice[0]!r} twice", hint="Remove one of them.")
    missing = [title for title in REQUIRED if title not in header]
    if missing:
        raise InvalidError(
            f"{name} has no column {missing[0]!r}", hint="Add it to the header and to every line."
        )


def _parse_row(header: Sequence[str], row: Sequence[str], where: str, number: int) -> Job:
    if len(row) > len(header):
        raise InvalidError(
            f"{where} has {len(row)} cells under {len(header)} columns", hint="Quote cells that hold a comma."
        )
    cells = {title: cell.strip() for title, cell in zip(header, row, strict=False) if cell.strip()}
    for title in REQUIRED:
        if title not in cells:
            raise InvalidError(f"{where} has no {title}", hint="Write seconds, or 90s, 30m, 2h, 1d.")
    values: dict[str, object] = {"id": f"job-{number}"}
    for title, cell in cells.items():
        field, parse, hint = _PARSERS[title]
        try:
            values[field] = parse(cell)
        except ValueError as error:
            raise InvalidError(f"{where} has {cell!r} as its {title}", hint=hint) from error
    job = Job(**values)  # type: ignore[arg-type]  # _PARSERS gives each field its type
    if job.minimum is not None and job.minimum > job.replicas:
        raise InvalidError(
            f"{where} has a minimum of {job.minimum} of {job.replicas} replicas", hint="Make it smaller."
        )
    return job


def _check_ids(jobs: Sequence[Job], name: str) -> None:
    seen: set[str] = set()
    for job in jobs:
        if job.id in seen:
            raise InvalidError(f"{name} has two jobs {job.id!r}", hint="Give each an id of its own.")
        seen.add(job.id)


def _seconds(cell: str) -> float:
    return parse_duration(cell).total_seconds()


def _positive(cell: str) -> int:
    value = int(cell)
    if value < 1:
        raise ValueError(cell)
    return value


def _count(cell: str) -> int:
    value = int(cell)
    if value < 0:
        raise ValueError(cell)
    return value


def _thousandths(cell: str) -> int:
    value = round(float(cell) * 1000)
    if value < 0:
        raise ValueError(cell)
    return value


def _yes(cell: str) -> bool:
    if cell.lower() not in _YES | _NO:
        raise ValueError(cell)
    return cell.lower() in _YES


def _outcome(cell: str) -> str:
    if cell.lower() not in OUTCOMES:
        raise ValueError(cell)
    return cell.lower()


def _durations(cell: str) -> tuple[float, ...]:
    return tuple(_seconds(part) for part in cell.split(";") if part.strip())


_YES = frozenset({"yes", "true", "1", "y"})
_NO = frozenset({"no", "false", "0", "n"})
_TIME_HINT = "Write seconds, or 90s, 30m, 2h, 1d."
_PARSERS: dict[str, tuple[str, Callable[[str], object], str]] = {
    "id": ("id", str, ""),
    "submitted": ("submitted", _seconds, _TIME_HINT),
    "duration": ("duration", _seconds, _TIME_HINT),
    "replicas": ("replicas", _positive, "Write a whole number of at least 1."),
    "minimum": ("minimum", _positive, "Write a whole number of at least 1."),
    "devices": ("devices", _count, "Write a whole number."),
    "device": ("device", str, ""),
    "cpus": ("cpu", _thousandths, "Write a number of cores, like 8 or 0.5."),
    "memory": ("memory", lambda cell: parse_size(cell) // MIB, "Write it like 64GiB."),
    "user": ("user", str, ""),
    "workspace": ("workspace", str, ""),
    "priority": ("priority", int, "Write a whole number."),
    "limit": ("limit", _seconds, _TIME_HINT),
    "preemptible": ("preemptible", _yes, "Write yes or no."),
    "same_switch": ("same_switch", _yes, "Write yes or no."),
    "pool": ("pool", str, ""),
    "checkpoint": ("checkpoint", _seconds, _TIME_HINT),
    "failures": ("failures", _durations, "Write times with semicolons between them, like 10m;2h."),
    "outcome": ("outcome", _outcome, f"Write one of {', '.join(OUTCOMES)}."),
}


def _cells_of(job: Job) -> dict[str, str]:
    return {
        "id": job.id,
        "submitted": _number(job.submitted),
        "duration": _number(job.duration),
        "replicas": str(job.replicas),
        "minimum": "" if job.minimum is None else str(job.minimum),
        "devices": str(job.devices),
        "device": job.device,
        "cpus": _number(job.cpu / 1000),
        "memory": f"{job.memory}MiB" if job.memory else "0",
        "user": job.user,
        "workspace": job.workspace,
        "priority": str(job.priority),
        "limit": "" if job.limit is None else _number(job.limit),
        "preemptible": "yes" if job.preemptible else "no",
        "same_switch": "yes" if job.same_switch else "no",
        "pool": job.pool,
        "checkpoint": _number(job.checkpoint) if job.checkpoint else "",
        "failures": ";".join(map(_number, job.failures)),
        "outcome": job.outcome,
    }


def _number(value: float) -> str:
    return f"{value:.3f}".rstrip("0").rstrip(".")
