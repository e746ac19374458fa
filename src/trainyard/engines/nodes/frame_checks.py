"""What a node says, value by value: frames that are not too large and not too deep, names, bounded numbers, clean texts.

A node may be anybody's. ValueError where an agent of ours never says that; what a node may speak of is reports.py's matter.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from trainyard.engines.nodes.agent.wire import Frames

logger = logging.getLogger(__name__)

Key = tuple[str, str]  # attempt_id, task

# An agent tells of all its tasks in one header, a few hundred bytes each, and sends at most a megabyte of logs in one frame.
LONGEST_HEADER = 16 * 1024 * 1024
LONGEST_PAYLOAD = 2 * 1024 * 1024
DEEPEST = 8  # a note stands in a list in a list in a task in a list in a frame
MOST_VALUES = 1_000_000  # of a header: an empty list is two bytes on the way and seventy in memory
LONGEST_TEXT = 16_384  # of a message about a task
LONGEST_LINE = 1000
LONGEST_NAME = 200
MOST_NOTICES = 64  # of what a node says of itself
MOST_STRANGERS = 10_000  # tasks in one report that have to be looked up
MOST_NOTES = 256  # of one task
LARGEST = 2**53  # bytes, and whatever else is counted
LARGEST_COLUMN = 2**31 - 1  # what every database takes for a number
LATEST = 1e11  # a time

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,150}\Z")
_ATTEMPT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,150}\.[0-9]{1,9}\Z")
_CODE = re.compile(r"[a-z][a-z0-9_]{0,63}\Z")
_ADDRESS = re.compile(r"[A-Za-z0-9.:%_-]{0,255}\Z")


def frames_of_node() -> Frames:
    """What comes from a node, in frames that an agent of ours could have sent."""
    return Frames(LONGEST_HEADER, LONGEST_PAYLOAD, check=check_header)


def check_header(line: bytes) -> None:
    """ValueError where reading it would take more than it is worth. Nothing here recurses."""
    if sum(map(line.count, (b",", b"[", b"{", b'"'))) > MOST_VALUES:
        raise ValueError("a header of too many values")
    if line.count(b"[") + line.count(b"{") <= DEEPEST:
        return
    pieces = line.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
    outside = re.sub(rb"[^\[\]{}]", b"", b"".join(pieces[::2]))
    for _ in range(DEEPEST):
        outside = outside.replace(b"[]", b"").replace(b"{}", b"")
    if outside:
        raise ValueError("a header that is nested too deep")


def task_key(attempt: object, task: object) -> Key:
    """Which task something is said of."""
    if not isinstance(attempt, str) or not _ATTEMPT.match(attempt):
        raise ValueError("no name of an attempt")
    if not isinstance(task, str) or not _NAME.match(task):
        raise ValueError("no name of a task")
    return attempt, task


def place_of(key: Key) -> tuple[str, int]:
    """The workload and the number of the attempt. A node that says others is not asked."""
    workload, _, number = key[0].rpartition(".")
    return workload, int(number)


def whole(value: object, most: int = LARGEST) -> int:
    """A count."""
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError("no count")
    return value


def number(value: Any, most: float = LARGEST) -> float:
    """A number that is not below zero."""
    if type(value) not in {int, float} or not 0 <= value <= most:  # not a number fails it, too
        raise ValueError("no number")
    return float(value)


def span(value: Any) -> float:
    """Seconds that have passed; clocks may make them a little less than none."""
    if type(value) not in {int, float} or not -LATEST <= value <= LATEST:
        raise ValueError("no span of time")
    return max(0.0, float(value))


def moment(value: object) -> float:
    """A time of the node's clock."""
    return number(value, LATEST)


def items(value: object, most: int = MOST_VALUES) -> list[Any]:
    """A list."""
    if not isinstance(value, list) or len(value) > most:
        raise ValueError("no list, or a long one")
    return value


def text(value: object, longest: int = LONGEST_TEXT) -> str:
    """A text that can be stored and shown: no NUL, no control characters, no halves of characters."""
    if not isinstance(value, str):
        raise ValueError("no text")  # noqa: TRY004  # it is what came from outside that is wrong
    value = value[:longest]
    if value.replace("\n", "").replace("\t", "").isprintable():
        return value
    return "".join(char if char in "\n\t" or char.isprintable() else "?" for char in value)


def line(value: object, longest: int = LONGEST_LINE) -> str:
    """A text of one line."""
    return text(value, longest).replace("\n", " ").replace("\t", " ")


def event_code(value: object) -> str:
    """The code of a note."""
    if not isinstance(value, str) or not _CODE.match(value):
        raise ValueError("no code of an event")
    return value


def address(value: object) -> str:
    """Where others reach a node; it comes into their files of hosts."""
    if not isinstance(value, str) or not _ADDRESS.match(value):
        raise ValueError("no address")
    return value


def lines(value: object, most: int) -> tuple[str, ...]:
    """The first few of some texts."""
    return tuple(line(one) for one in items(list(value) if isinstance(value, tuple) else value)[:most])


class Refusals:
    """What one node said that is not its to say: counted, and told in the log without filling it."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._told = 0
        self.counts: Counter[str] = Counter()

    def note(self, what: str, key: Sequence[str]) -> None:
        """One more; the first, second, fourth, eighth … is told."""
        self.counts[what] += 1
        if self.counts.total() >= 2 * self._told:
            self._told = self.counts.total()
            logger.warning(
                "the node %s spoke of what was not placed on it, %d times by now; last: %s of %s",
                self._node,
                self._told,
                what,
                "/".join(key),
            )

    @property
    def notice(self) -> str:
        """For the operator. Without a count: whoever sees it anew takes it for another one."""
        if not self.counts:
            return ""
        return f"It spoke of tasks that were not placed on it ({', '.join(sorted(self.counts))}); that was refused."


def condition(header: Mapping[str, Any]) -> dict[str, Any]:
    """What a node says of its disk and of itself, in a welcome or a pong."""
    free, total = items(header["disk"])
    return {
        "time": moment(header["time"]),
        "disk": [min(whole(one), LARGEST_COLUMN) for one in (free, total)],
        "notices": lines(header.get("notices", []), MOST_NOTICES),
        "refusal": line(header.get("refusal", "")),
    }


def welcome(header: Mapping[str, Any]) -> dict[str, Any]:
    """What an agent says of itself when it takes a server."""
    said = {name: line(header[name], LONGEST_NAME) for name in ("version", "boot", "python")}
    return {**said, **condition(header)}


def refusal_of(said: object) -> tuple[str, str] | None:
    """Why a node did not take a launch: a code and a sentence. None: it has taken it."""
    if said is None:
        return None
    code, message = items(said)
    return line(code, LONGEST_NAME), text(message)


def names(said: object) -> frozenset[str]:
    """Of tasks."""
    return frozenset(line(one) for one in items(said))
