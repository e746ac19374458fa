"""Secrets out of what tasks print, before it is stored: stars of the same length, so that offsets stay what they were.

Output comes in pieces that end anywhere. The beginning of a secret at a piece's end is starred at once; where the next piece
shows that it was none, the stored bytes are put right. It takes as long as the output is long, times the number of secrets.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

LEAST = 6  # characters: what is shorter is in every other line by chance
LEAST_OF_LINE = 12  # of a line of several: such files have lines like `apiVersion: v1`
LONGEST = 512  # bytes that are looked for as one; a longer secret is several such
MOST = 256  # of one job
BEGINNING = 3  # bytes of a secret at a piece's end that are taken for its beginning
SHOWN = "******"  # in messages, where no length matters
_PASSWORD = re.compile(r"://[^\s/:@]*:([^\s/@]+)@")


def texts_of(values: Iterable[str]) -> list[str]:
    """What to look for: values, lines of those that have several, and passwords inside of addresses; longest first."""
    found: set[str] = set()
    for value in values:
        lines = [line.strip() for line in value.splitlines()]
        least = LEAST if len(lines) == 1 else LEAST_OF_LINE
        found |= {line for line in lines if len(line) >= least}
        found |= {password for password in _PASSWORD.findall(value) if len(password) >= LEAST}
    return sorted((one for one in found if one.strip("*")), key=lambda one: (-len(one), one))[:MOST]


class Mask:
    """The secrets of one job."""

    def __init__(self, values: Collection[str]) -> None:
        self._texts = texts_of(values)
        pieces = {piece for text in self._texts for piece in _pieces(text.encode(errors="surrogateescape"))}
        self.pieces = sorted(pieces, key=lambda one: (-len(one), one))
        self.kept = max((len(piece) for piece in self.pieces), default=1) - 1  # of what came before

    def cleaned(self, text: str) -> str:
        """A message without the secrets."""
        for one in self._texts:
            text = text.replace(one, SHOWN)
        return text


@dataclass(slots=True)
class MaskedEnd:
    """The end of one log, as it came and as it was stored."""

    size: int = 0  # of the output so far
    raw: bytes = b""
    sure: bytes = b""  # with stars for whole secrets
    shown: bytes = b""  # and for what may become one

    def feed(self, mask: Mask, data: bytes) -> tuple[bytes, bytes]:
        """What to store for `data`, and what the end of what is stored should have been."""
        text = self.raw + data
        stored = bytearray(self.sure + data)
        for piece in mask.pieces:
            at = text.find(piece)
            while at >= 0:
                stored[at : at + len(piece)] = b"*" * len(piece)
                at = text.find(piece, at + len(piece))
        sure = bytes(stored)
        begun = max((_begun(text, piece) for piece in mask.pieces), default=0)
        if begun:
            stored[-begun:] = b"*" * begun
        before, shown = len(self.raw), bytes(stored)
        end = max(0, len(text) - mask.kept)
        self.raw, self.sure, self.shown = text[end:], sure[end:], shown[end:]
        self.size += len(data)
        return shown[before:], shown[:before]


def _begun(text: bytes, piece: bytes) -> int:
    """How much of a secret stands at the end of a text, where it is enough to be taken for one."""
    for length in range(min(len(piece) - 1, len(text)), BEGINNING - 1, -1):
        if text.endswith(piece[:length]):
            return length
    return 0


def _pieces(secret: bytes) -> list[bytes]:
    found = [secret[at : at + LONGEST] for at in range(0, len(secret), LONGEST)]
    if len(found) > 1 and len(found[-1]) < LEAST:
        found[-2:] = [secret[-LONGEST:]]
    return found
