"""What a node says of its tasks, turned into observations; their logs, handed to the sink. No I/O but the sink's."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from trainyard.engines.api import (
    LogSink,
    Observation,
    TaskCleared,
    TaskEnded,
    TaskNoted,
    TaskStarted,
    TaskUnknown,
)
from trainyard.lib.errors import ConflictError, DiskFullError

Key = tuple[str, str]  # attempt_id, task

STARTED, ENDED, CLEARED, SENT_AWAY = 1, 2, 4, 8


class Reports:
    """The tasks of one node, as far as they were told over the connection that is up."""

    def __init__(self, node: str, sink: LogSink, expected: Iterable[Key] = ()) -> None:
        self._node = node
        self._sink = sink
        self.expected: set[Key] = set(expected)
        self._said: dict[Key, int] = {}
        self._noted: dict[Key, int] = {}  # how many notes of a task were passed on
        self._logs: dict[
            Key, tuple[str, int]
        ] = {}  # workload and number of the attempt, as the sink wants them
        self._taken: dict[Key, int] = {}
        self._refused: set[Key] = set()  # logs that the sink had no room for
        self.place = ""  # the node's address
        self.skew = 0.0  # how far its clock is ahead
        self.was_seen = False

    def launched(self, key: Key, workload_id: str, attempt: int) -> None:
        """A task is about to be sent to the node; its log may come before its first report."""
        self._logs[key] = (workload_id, attempt)
        self._noted.setdefault(key, 0)

    def can_enter(self, key: Key) -> bool:
        """Whether its program runs, or has ended by itself and its files are kept for a look."""
        return self._said.get(key) in {STARTED, STARTED | ENDED, STARTED | ENDED | CLEARED}

    def forget(self, attempt_ids: Iterable[str]) -> None:
        """Nothing more comes of these attempts."""
        gone = set(attempt_ids)
        for known in (self._said, self._logs, self._taken, self._noted):
            for key in [key for key in known if key[0] in gone]:
                del known[key]
        self._refused = {key for key in self._refused if key[0] not in gone}
        self.expected = {key for key in self.expected if key[0] not in gone}

    def take(self, tasks: Sequence[dict[str, Any]], *, is_all: bool) -> list[Observation]:
        """Reports of tasks; `is_all`: the node has no others."""
        found: list[Observation] = []
        if is_all:
            self.was_seen = True
            self._said.clear()
            self._taken.clear()
            self._refused.clear()
            there = {(task["a"], task["t"]) for task in tasks}
            for attempt, name in sorted(self.expected - there):
                found.append(TaskUnknown(attempt, name, self._node, "its node has no files of it"))
            self.expected &= there
        for task in tasks:
            found += self._observe(task)
        return found

    def _observe(self, task: dict[str, Any]) -> Iterable[Observation]:
        key = attempt, name = task["a"], task["t"]
        self._logs[key] = (task["w"], task["n"])
        said, at = self._said.get(key, 0), task["at"]
        if at == "unknown":
            yield TaskUnknown(attempt, name, self._node, "its node was started anew since")
            self._said[key] = said | CLEARED
            return
        if "started" in task and at != "old" and not said & STARTED:
            ran = max(0.0, task.get("ran", 0.0))
            yield TaskStarted(attempt, name, task["started"] - self.skew, self.place, ran)
            said |= STARTED
        yield from self._notes(key, task.get("notes", ()))
        if "code" in task and not said & ENDED:
            yield TaskEnded(
                attempt,
                name,
                task["code"],
                task["signal"],
                self._sink.cleaned(attempt, task["message"]),
                task["ended"] - self.skew,
                is_fenced=bool(task.get("fenced")),
                was_told=bool(task.get("told")),
                ran_seconds=max(0.0, task["lasted"]) if "lasted" in task else None,
            )
            said |= ENDED | (SENT_AWAY if task.get("told") or task.get("fenced") else 0)
        if at == "cleared" and not said & CLEARED:
            yield TaskCleared(attempt, name, task["bytes"])
            said |= CLEARED
        self._said[key] = said

    def _notes(self, key: Key, notes: Sequence[Sequence[Any]]) -> Iterable[Observation]:
        """Notes that are new. Those of a task that another server has launched were told to that one."""
        known = self._noted.setdefault(key, len(notes))
        self._noted[key] = max(known, len(notes))
        for code, message, time in notes[known:]:
            yield TaskNoted(*key, code, self._sink.cleaned(key[0], message), time - self.skew)

    def offsets(self) -> list[list[Any]]:
        """From where each log is wanted."""
        return [[*key, self._sink.size(*self._logs[key], key[1])] for key in self._said]

    def keep(self, parts: Sequence[Sequence[Any]], payload: bytes, time: float) -> None:
        """Hand pieces of logs to the sink."""
        at = 0
        for attempt, name, offset, length in parts:
            key = (attempt, name)
            data, at = payload[at : at + length], at + length
            if key in self._refused:
                continue
            if key in self._logs:
                try:
                    self._keep(*self._logs[key], name, offset, data, time)
                except DiskFullError:
                    # The node keeps it meanwhile. But what somebody has stopped must come to its end without room, too.
                    if not self._said.get(key, 0) & SENT_AWAY:
                        self._refused.add(key)
                        continue
            self._taken[key] = offset + length

    def wanted_again(self) -> list[list[Any]]:
        """From where logs are wanted that there was no room for; to be asked now and then, and sent to the node."""
        again, self._refused = sorted(self._refused), set()
        return [[*key, self._sink.size(*self._logs[key], key[1])] for key in again if key in self._logs]

    def _keep(self, workload: str, number: int, name: str, offset: int, data: bytes, time: float) -> None:
        try:
            self._sink.append(workload, number, name, offset, data, time)
        except ConflictError:  # the sink lost what the node had given away as safe
            self._sink.skip(workload, number, name, offset, time)
            self._sink.append(workload, number, name, offset, data, time)

    def taken(self) -> list[list[Any]]:
        """How far logs were kept since the last time it was asked."""
        parts = [[*key, offset] for key, offset in self._taken.items()]
        self._taken.clear()
        return parts
