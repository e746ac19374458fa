"""Frames: a line of JSON, and as many bytes after it as its `size` says. The same both ways; the server has its own copy."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

# How `beside` says that the task does not run there: the words tell it from what a command itself may end with.
NO_TASK = 66
NOT_THERE = "trainyard: the task does not run on this node\n"

LONGEST_PAYLOAD = 64 * 1024 * 1024  # of pieces of logs, a megabyte at most
LONGEST_HEADER = 256 * 1024 * 1024  # hundreds of commands of a megabyte


def frame(header: dict[str, Any], payload: bytes = b"") -> bytes:
    """One frame as bytes."""
    if payload:
        header["size"] = len(payload)
    return json.dumps(header, separators=(",", ":")).encode() + b"\n" + payload


def _read_header(line: bytes) -> dict[str, Any]:
    try:
        header = json.loads(line)
    except RecursionError as error:
        raise ValueError("a header that is nested without end") from error
    if isinstance(header, dict):
        return header
    raise ValueError("a header that is no object")


class Frames:
    """Bytes in, whole frames out."""

    def __init__(
        self,
        longest_header: int = LONGEST_HEADER,
        longest_payload: int = LONGEST_PAYLOAD,
        check: Callable[[bytes], None] | None = None,
    ) -> None:
        """`check` looks at a header before it is read; ValueError refuses it."""
        self._longest_header = longest_header
        self._longest_payload = longest_payload
        self._check = check
        self._buffer = bytearray()
        self._searched = 0
        self._header: dict[str, Any] | None = None

    def feed(self, data: bytes) -> list[tuple[dict[str, Any], bytes]]:
        """Take what has come; the frames that it completes. ValueError where the other side does not speak this."""
        self._buffer += data
        found: list[tuple[dict[str, Any], bytes]] = []
        while True:
            if self._header is None:
                end = self._buffer.find(b"\n", self._searched)
                if end < 0:
                    self._searched = len(self._buffer)
                    if self._searched > self._longest_header:
                        raise ValueError("a header without end")
                    return found
                if end > self._longest_header:
                    raise ValueError("a header without end")
                line = bytes(self._buffer[:end])
                if self._check is not None:
                    self._check(line)
                self._header = _read_header(line)
                del self._buffer[: end + 1]
                self._searched = 0
            size = int(self._header.get("size", 0))
            if not 0 <= size <= self._longest_payload:
                raise ValueError("a payload without end")
            if len(self._buffer) < size:
                return found
            found.append((self._header, bytes(self._buffer[:size])))
            del self._buffer[:size]
            self._header = None
