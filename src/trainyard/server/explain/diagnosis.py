"""Why a program failed, as far as its exit code and its log tell: pure, in English and Chinese.

What lines mean, and in which order they are believed, is failure_patterns.py's. Where a job waits is scheduling's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from trainyard.client.schemas import Diagnosis
from trainyard.server.explain.failure_patterns import EXIT_CODES, NEEDLES, PATTERNS, RAISED

# Colours, and what launchers put before each line: "[rank0]: ", "[1,0]<stderr>:".
_DRESS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|^(?:\[(?:rank\d+|\d+,\d+)\](?:<std(?:err|out)>)?:\s?)")
LONGEST_LINE = 2000  # of a longer one, nobody reads more
# Weak ones stand in their place where an exception says so, and a second time behind exceptions where any other line does.
_LAST = next(place for place, one in enumerate(PATTERNS) if one.code == "exception") + 1
_BELIEVED = (*PATTERNS[:_LAST], *(one for one in PATTERNS if one.weak), *PATTERNS[_LAST:])


def diagnose(
    exit_code: int | None, logs: Iterable[tuple[str, Sequence[str]]], *, chinese: bool = False
) -> Diagnosis:
    """What is known: of the exit code, and of the first line of the most telling kind in the logs of (task, lines)."""
    which = int(chinese)
    meaning = _meaning(exit_code, which)
    best: tuple[int, str, str] | None = None
    for task, lines in logs:
        for line in lines:
            small = line[:LONGEST_LINE].lower()
            if not any(needle in small for needle in NEEDLES):
                continue
            text = _DRESS.sub("", line[:LONGEST_LINE])
            place = _place(text, len(_BELIEVED) if best is None else best[0])
            if place is not None:
                best = (place, task, text.strip())
    if best is None:
        return Diagnosis(exit_code=exit_code, meaning=meaning)
    found = _BELIEVED[best[0]]
    return Diagnosis(
        exit_code=exit_code,
        meaning=meaning,
        code=found.code,
        kind=found.kind,
        task=best[1],
        line=best[2][:500],
        cause=found.meaning[which],
        remedy=found.remedy[which],
    )


def _place(text: str, before: int) -> int | None:
    """Where in what is believed a line stands, if it does before there."""
    for place in range(before):
        pattern = _BELIEVED[place]
        if pattern.weak and place < _LAST and not RAISED.match(text):
            continue  # further down, where it is no exception
        if pattern.line.search(text):
            return place
    return None


def _meaning(exit_code: int | None, which: int) -> str:
    if exit_code is None or exit_code == 0:
        return ""
    known = EXIT_CODES.get(exit_code)
    if known is not None:
        return known[which]
    if 128 < exit_code < 128 + 65:
        return (f"it was ended by signal {exit_code - 128}", f"被信号 {exit_code - 128} 结束")[which]
    return EXIT_CODES[1][which]
