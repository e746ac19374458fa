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
from trainyard.engines.nodes import frame_checks
from trainyard.engines.nodes.frame_checks import Key, Refusals, place_of, task_key
from trainyard.lib.errors import ConflictError, DiskFullError
from trainyard.spec.exit_reasons import exit_reason

# Attempts that were forgotten lately: what a node said of them before it heard of that is no lie.
MOST_FORGOTTEN = 4096

MOST_CODE, MOST_SIGNAL = 255, 64

STARTED, ENDED, CLEARED, SENT_AWAY = 1, 2, 4, 8


class NodeReports:
    """The tasks of one node, as far as they were told over the connection that is up.

    A node speaks of tasks that were placed on it, and of no others. Who asks `strangers` learns whose placement is not known
    here yet, and says of which it is by `allow`: of attempts that an earlier server started, and that may be over long since.
    """

    def __init__(self, node: str, sink: LogSink, expected: Iterable[Key] = ()) -> None:
        self._node = node
        self._sink = sink
        self.expected: set[Key] = set(expected)
        self._said: dict[Key, int] = {}
        self._noted: dict[Key, int] = {}  # how many notes of a task were passed on
        self._placed: set[Key] = set()  # here; with `expected`, all that the node may speak of
        self._forgotten: dict[str, None] = {}
        self.refusals = Refusals(node)
        self._taken: dict[Key, int] = {}
        self._refused: set[Key] = set()  # logs that the sink had no room for
        self.place = ""  # the node's address
        self.skew = 0.0  # how far its clock is ahead
        self.was_seen = False

    def launched(self, key: Key) -> None:
        """A task is about to be sent to the node; its log may come before its first report."""
        self._placed.add(key)
        self._forgotten.pop(key[0], None)
        self._noted.setdefault(key, 0)

    def is_placed(self, key: Key) -> bool:
        """Whether the node may speak of a task."""
        return key in self._placed or key in self.expected

    def strangers(self, tasks: object) -> set[Key]:
        """Of what tasks a report speaks whose placement is not known here. ValueError where it is no report."""
        keys = {task_key(task["a"], task["t"]) for task in frame_checks.items(tasks)}
        unknown = {key for key in keys if not self.is_placed(key)}
        if len(unknown) > frame_checks.MOST_STRANGERS:
            raise ValueError("a report of tasks that nobody knows")
        return unknown

    def allow(self, keys: Iterable[Key]) -> None:
        """These were placed on the node, at some time."""
        self._placed.update(keys)

    def has_more(self, attempt_id: str) -> bool:
        """Whether the node has told of tasks of an attempt, and not yet all that they printed."""
        return any(key[0] == attempt_id and not said & CLEARED for key, said in self._said.items())

    def is_own(self, key: Key, what: str) -> bool:
        """Whether the node may say this; if not, it is counted."""
        if self.is_placed(key):
            return True
        if key[0] not in self._forgotten:
            self.refusals.note(what, key)
        return False

    def can_enter(self, key: Key) -> bool:
        """Whether its program runs, or has ended by itself and its files are kept for a look."""
        return self._said.get(key) in {STARTED, STARTED | ENDED, STARTED | ENDED | CLEARED}

    def forget(self, attempt_ids: Iterable[str]) -> None:
        """Nothing more comes of these attempts."""
        gone = set(attempt_ids)
        for known in (self._said, self._taken, self._noted):
            for key in [key for key in known if key[0] in gone]:
                del known[key]
        self._placed = {key for key in self._placed if key[0] not in gone}
        self._forgotten.update(dict.fromkeys(gone))
        while len(self._forgotten) > MOST_FORGOTTEN:
            del self._forgotten[next(iter(self._forgotten))]
        self._refused = {key for key in self._refused if key[0] not in gone}
        self.expected = {key for key in self.expected if key[0] not in gone}

    def take(self, tasks: Sequence[dict[str, Any]], *, is_all: bool) -> list[Observation]:
        """Reports of tasks; `is_all`: the node has no others."""
        found: list[Observation] = []
        tasks = [task for task in tasks if self.is_own(task_key(task["a"], task["t"]), "tasks")]
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
        if (task["w"], task["n"]) != place_of(key):
            self.refusals.note("another workload's name", key)
            return
        said, at = self._said.get(key, 0), task["at"]
        if at == "unknown":
            yield TaskUnknown(attempt, name, self._node, "its node was started anew since")
            self._said[key] = said | CLEARED
            return
        if "started" in task and at != "old" and not said & STARTED:
            ran = frame_checks.span(task.get("ran", 0.0))
            yield TaskStarted(
                attempt, name, frame_checks.moment(task["started"]) - self.skew, self.place, ran
            )
            said |= STARTED
        yield from self._notes(key, task.get("notes", []))
        if "code" in task and not said & ENDED:
            yield TaskEnded(
                attempt,
                name,
                frame_checks.whole(task["code"], MOST_CODE),
                frame_checks.whole(task["signal"], MOST_SIGNAL),
                self._sink.cleaned(attempt, frame_checks.text(task["message"])),
                frame_checks.moment(task["ended"]) - self.skew,
                reason=exit_reason(task.get("reason")),
                is_fenced=bool(task.get("fenced")),
                was_told=bool(task.get("told")),
                ran_seconds=frame_checks.span(task["lasted"]) if "lasted" in task else None,
            )
            said |= ENDED | (SENT_AWAY if task.get("told") or task.get("fenced") else 0)
        if at == "cleared" and not said & CLEARED:
            yield TaskCleared(attempt, name, frame_checks.whole(task["bytes"]))
            said |= CLEARED
        self._said[key] = said

    def _notes(self, key: Key, said: object) -> Iterable[Observation]:
        """Notes that are new. Those of a task that another server has launched were told to that one."""
        notes = frame_checks.items(said)[: frame_checks.MOST_NOTES]
        known = self._noted.setdefault(key, len(notes))
        for code, message, time in notes[known:]:
            cleaned = self._sink.cleaned(key[0], frame_checks.text(message))
            yield TaskNoted(
                *key, frame_checks.event_code(code), cleaned, frame_checks.moment(time) - self.skew
            )
        self._noted[key] = max(known, len(notes))

    def offsets(self) -> list[list[Any]]:
        """From where each log is wanted."""
        return [[*key, self._sink.size(*place_of(key), key[1])] for key in self._said]

    def keep(self, parts: object, payload: bytes, time: float) -> None:
        """Hand pieces of logs to the sink."""
        at = 0
        for attempt, name, offset, length in frame_checks.items(parts):
            key = task_key(attempt, name)
            end = frame_checks.whole(offset) + frame_checks.whole(length, len(payload) - at)
            data, at = payload[at : at + length], at + length
            if key in self._refused:
                continue
            if self.is_own(key, "logs"):
                try:
                    self._keep(key, offset, data, time)
                except DiskFullError:
                    # The node keeps it meanwhile. But what somebody has stopped must come to its end without room, too.
                    if not self._said.get(key, 0) & SENT_AWAY:
                        self._refused.add(key)
                        continue
            self._taken[key] = end

    def wanted_again(self) -> list[list[Any]]:
        """From where logs are wanted that there was no room for; to be asked now and then, and sent to the node."""
        again, self._refused = sorted(self._refused), set()
        return [[*key, self._sink.size(*place_of(key), key[1])] for key in again if self.is_placed(key)]

    def _keep(self, key: Key, offset: int, data: bytes, time: float) -> None:
        (workload, number), name = place_of(key), key[1]
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
