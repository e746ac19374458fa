"""Searching what a task printed: for a word, or for an expression whose cost is bounded whatever somebody writes in it.

Expressions are RE2's: it reads a text once, from left to right, in memory that is set here. What it cannot do so
(look-around, back-references) is refused by name. Lines are log_views.py's.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trainyard.lib.errors import InvalidError
from trainyard.messages.catalogue import failure
from trainyard.server.logs.log_files import LogStore
from trainyard.server.logs.log_views import PAGE_BYTES, LogLine, lines_of

SCAN_BYTES = 32 * 2**20  # in one search; the next goes on from where it stopped
SEARCH_SECONDS = 5.0  # likewise
EXPRESSION_BYTES = 2 * 2**20  # the memory of one expression, with all that it remembers of lines
# Steps of an expression. Where memory is short each byte costs as many: a line of 64 KiB takes half a second at most.
LARGEST_PROGRAM = 1000

Matches = Callable[[bytes], bool]


@dataclass(frozen=True, slots=True)
class Found:
    """What a search found; it goes on from `next_offset`, unless that is None."""

    lines: tuple[LogLine, ...]
    next_offset: int | None


def matcher(pattern: str, *, is_regex: bool = False, ignores_case: bool = False) -> Matches:
    """What says of a line whether it is looked for. InvalidError where the pattern is none."""
    if not pattern:
        raise InvalidError("There is nothing to search for.", hint="Give a word or an expression.")
    if is_regex:
        return _expression(pattern, ignores_case=ignores_case)
    wanted = pattern.encode(errors="surrogateescape")
    if ignores_case:
        lower = wanted.lower()
        return lambda line: lower in line.lower()
    return lambda line: wanted in line


def search(
    store: LogStore,
    workload_id: str,
    attempt: int,
    task: str,
    matches: Matches,
    *,
    offset: int = 0,
    limit: int = 100,
    scan_bytes: int = SCAN_BYTES,
    seconds: float = SEARCH_SECONDS,
) -> Found:
    """Lines of one task that match, from `offset` on, within `scan_bytes` and `seconds`. Blocks: call it in a thread."""
    size = store.read(workload_id, attempt, task, offset=offset, limit=1).size
    found: list[LogLine] = []
    end, deadline, held = offset + scan_bytes, time.monotonic() + seconds, 0
    for line in lines_of(store, workload_id, attempt, task, offset=offset):
        if line.offset >= end:
            return Found(tuple(found), line.offset)
        if matches(line.data):
            found.append(line)
            held += len(line.data)
        if len(found) >= limit or held >= PAGE_BYTES or time.monotonic() > deadline:
            return Found(tuple(found), line.next_offset if line.next_offset < size else None)
    return Found(tuple(found), None)


# -- expressions


def _expression(pattern: str, *, ignores_case: bool) -> Matches:
    import re2  # noqa: PLC0415  # a server that nobody searches does without it

    if "\n" in pattern or "\0" in pattern:
        raise InvalidError("An expression is one line.", hint="Leave line feeds and NUL out of it.")
    options = re2.Options()
    options.max_mem = EXPRESSION_BYTES
    options.log_errors = False
    options.never_capture = True
    options.case_sensitive = not ignores_case
    try:
        compiled: Any = re2.compile(pattern.encode(errors="replace"), options)
    except re2.error as error:
        raise _refusal(pattern, options, error) from error
    finally:
        re2.purge()  # else it keeps the last 128 expressions, with their memory
    if max(compiled.programsize, compiled.reverseprogramsize) > LARGEST_PROGRAM:
        raise _too_large(pattern)
    return lambda line: compiled.search(line) is not None


# What stands in an expression: an escape, a class as a whole, what looks around or refers back, or any other sign.
_PART = re.compile(
    r"(?P<back>\\[1-9])|\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|(?P<around>\(\?<?[=!])|(?P<named>\(\?P=)|.", re.DOTALL
)
_COUNT = re.compile(r"\{\d+(?:,\d*)?\}")


def _refusal(pattern: str, options: Any, error: Exception) -> InvalidError:
    """Why an expression is none: found in the expression itself, for the library says it in words alone."""
    for part in _PART.finditer(pattern):
        if part["around"]:
            return failure(InvalidError, "expression_looks_around", part=_shown(part["around"]))
        if part["back"] or part["named"]:
            return failure(InvalidError, "expression_refers_back", part=_shown(part[0]))
    if _COUNT.search(pattern) and _is_expression(_COUNT.sub("{1}", pattern), options):
        return _too_large(pattern)
    said = error.args[0] if error.args else ""
    why = said.decode(errors="replace") if isinstance(said, bytes) else str(said)
    return failure(InvalidError, "expression_invalid", expression=_shown(pattern), why=_shortened(why))


def _is_expression(pattern: str, options: Any) -> bool:
    import re2  # noqa: PLC0415  # as above

    try:
        re2.compile(pattern.encode(errors="replace"), options)
    except re2.error:
        return False
    return True


def _too_large(pattern: str) -> InvalidError:
    return failure(InvalidError, "expression_repeats_too_much", expression=_shown(pattern))


def _shortened(text: str) -> str:
    return text if len(text) <= 80 else text[:80] + "…"


def _shown(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:40] + "…")
