"""Turns the output bytes of a command into text of bounded length for people."""

from __future__ import annotations

import codecs

KEPT_BYTES = 256 * 2**20  # the most that run() returns; of a longer output, its end


class TextSink:
    """Collects output as text. Bytes that are not UTF-8 become escapes; beyond the bound the beginning is dropped."""

    def __init__(self, limit: int = KEPT_BYTES) -> None:
        self._limit = limit
        self._pieces: list[str] = []
        self._kept = 0
        self._dropped = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")

    def __call__(self, piece: bytes) -> None:
        """Take a piece."""
        text = self._decoder.decode(piece)
        self._pieces.append(text)
        self._kept += len(text)
        while self._kept > self._limit and len(self._pieces) > 1:
            gone = len(self._pieces.pop(0))
            self._kept -= gone
            self._dropped += gone

    def text(self, where: str = "the machine") -> str:
        """Return the text that was kept."""
        self._pieces.append(self._decoder.decode(b"", final=True))
        text = "".join(self._pieces)
        self._pieces = [text]
        if self._dropped:
            return (
                f"[the first {self._dropped:,} characters are left out here; all of it is in {where}]\n{text}"
            )
        return text


def tail_lines(text: str, count: int) -> str:
    """Return the last lines of a text, with a note of how many lines precede them."""
    lines = text.splitlines()
    if len(lines) <= count:
        return text.rstrip("\n")
    return "\n".join([f"… {len(lines) - count} lines before", *lines[-count:]])
