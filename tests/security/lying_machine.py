"""A machine that answers the questions of a download as an attacker would, and what must stay as it is meanwhile."""

from __future__ import annotations

import gzip
import io
import os
import re
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trainyard.transport.api import NO_ENV, Completed, Process, TerminalSize
from trainyard.transport.local import LocalTransport

MTIME = 1_600_000_000
KINDS = {
    "file": tarfile.REGTYPE,
    "link": tarfile.SYMTYPE,
    "hard": tarfile.LNKTYPE,
    "folder": tarfile.DIRTYPE,
    "fifo": tarfile.FIFOTYPE,
    "char": tarfile.CHRTYPE,
    "block": tarfile.BLKTYPE,
}


def archive(*members: tuple[str, str, object]) -> bytes:
    """(name, kind, content or link target) → tar, with whatever names."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as writer:
        for name, kind, value in members:
            info = tarfile.TarInfo(name)
            info.type = KINDS[kind]
            info.mode = 0o755 if kind == "folder" else 0o640
            info.mtime = MTIME
            if kind in ("link", "hard"):
                info.linkname = str(value)
            content = value if isinstance(value, bytes) else b""
            info.size = len(content)
            writer.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def lines(*entries: tuple[str, str, int]) -> bytes:
    """(kind, name, size) → what `find` prints for them; the folder itself comes first."""
    made = [f"d 755 4096 {MTIME}.0000000000 ."]
    made += [f"{kind} 640 {size} {MTIME}.0000000000 ./{name}" for kind, name, size in entries]
    return b"".join(line.encode() + b"\0" for line in made)


@dataclass
class LyingMachine:
    """Answers by path: `listings` has the words and bytes behind our mark, `matches` is for patterns, `archive` is what
    its tar prints and `rest` what it says is in any large file.
    """

    home: Path
    listings: Mapping[str, tuple[str, bytes]] = field(default_factory=dict)
    matches: Sequence[bytes] = ()
    archive: bytes = b""
    rest: bytes = b""
    asked: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.home.mkdir(parents=True, exist_ok=True)
        self._local = LocalTransport(self.home, {"HOME": str(self.home), "PATH": os.environ["PATH"]})

    async def run(
        self,
        script: str,
        *,
        stdin: bytes = b"",
        env: Mapping[str, str] = NO_ENV,
        timeout: float | None = None,
    ) -> Completed:
        mark = _variable(script, "mark")
        source = _variable(script, "source").removeprefix("./")
        self.asked.append(source)
        if _variable(script, "pattern") == "1":
            words, data = "matches", b"".join(match + b"\0" for match in self.matches)
        else:
            words, data = self.listings.get(source, ("missing", b""))
        return Completed(0, f"{mark} {words}\n".encode() + data, b"")

    async def spawn(
        self, script: str, *, env: Mapping[str, str] = NO_ENV, terminal: TerminalSize | None = None
    ) -> Process:
        is_rest = _variable(script, "what") == "rest"
        answer = self.home / ("rest" if is_rest else "archive")
        answer.write_bytes(self.rest if is_rest else self.archive)
        return await self._local.spawn(f"cat {answer}")

    async def aclose(self) -> None:
        await self._local.aclose()


def folder_listing(*entries: tuple[str, str, int]) -> tuple[str, bytes]:
    """The answer for a folder."""
    return "folder", gzip.compress(lines(*entries))


def _variable(script: str, name: str) -> str:
    found = re.search(rf"^{name}='?([^'\n]*)'?$", script, re.MULTILINE)
    return found[1] if found else ""


def snapshot(folder: Path, *, without: Path) -> dict[str, tuple[object, ...]]:
    """Everything below `folder` but what is in `without`: kinds, modes, times, contents, links."""
    found: dict[str, tuple[object, ...]] = {}
    for root, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if Path(root, name) != without]
        for name in (*folders, *files):
            path = Path(root, name)
            facts = path.lstat()
            if path.is_symlink():
                content: object = os.readlink(path)
            else:
                content = path.read_bytes() if path.is_file() else None
            # The folder that holds the target changes when the target is made.
            when = 0 if path in without.parents else facts.st_mtime_ns
            found[str(path)] = (facts.st_mode, when, content)
    return found
