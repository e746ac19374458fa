"""Unpacks a tar stream from a machine below one folder, and never outside of it.

Names that lead out of the folder are refused, and so are names that were not asked for. Nothing is written through a
link, because `target_folder.py` opens every folder and links are made last. A file gets its name only when it is complete.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from trainyard.lib.errors import InvalidError, UnreachableError
from trainyard.transport.copy.api import Notes
from trainyard.transport.copy.archive import BLOCK
from trainyard.transport.copy.tar_header import NO_ARCHIVE, RECORDS, Member, clean, remember
from trainyard.transport.copy.target_folder import NewFile, TargetFolder, refusal, shown

_LONGEST_RECORD = 1024 * 1024  # a name or a set of attributes; more is no archive
_PLAIN = b"07\0"  # kinds of members that are regular files


class Extraction:
    """Takes the stream by `feed`. Call `finish` at its end, or `abort` if it was cut.

    `wanted` holds the names that were asked for; None where that was everything. `times` gives the exact times (ns) of
    names, which headers round to seconds. `renamed` replaces every name: the archive then holds one file. `keep` says
    which local files stay as they are.
    """

    def __init__(
        self,
        tree: TargetFolder,
        *,
        wanted: Collection[bytes] | None = None,
        times: Mapping[bytes, int] | None = None,
        renamed: bytes = b"",
        keep: Callable[[bytes], bool] = lambda _name: False,
        on_bytes: Callable[[int], None] = lambda _count: None,
    ) -> None:
        self.notes = Notes()
        self.files = 0
        self._tree = tree
        self._wanted = wanted
        self._times = times or {}
        self._renamed = renamed
        self._keep = keep
        self._on_bytes = on_bytes
        self._buffer = bytearray()
        self._folders: dict[bytes, tuple[int, int]] = {}
        self._links: dict[bytes, tuple[bytes, int]] = {}
        self._long: dict[str, bytes] = {}
        self._record = b""  # the type of a long record being read
        self._long_text = bytearray()
        self._file: NewFile | None = None
        self._member: Member | None = None
        self._left = 0  # bytes of the current member's content still to come
        self._padding = 0
        self._ended = False

    def feed(self, data: bytes) -> None:
        """Take the next bytes. Blocking."""
        view = memoryview(data)
        while view and not self._ended:
            if self._left or self._padding:
                view = view[self._take_content(view) :]
                continue
            wanted = BLOCK - len(self._buffer)
            self._buffer += view[:wanted]
            view = view[wanted:]
            if len(self._buffer) == BLOCK:
                header = bytes(self._buffer)
                self._buffer.clear()
                self._begin(header)

    def finish(self) -> None:
        """Make the links, set the times of folders. UnreachableError where the archive was cut."""
        if not self._ended:
            self.abort()
            raise UnreachableError(
                "the stream of files ended early", hint="Download again; only the rest comes."
            )
        for name, (target, mtime_ns) in self._links.items():
            if not self._tree.make_link(name, target, mtime_ns):
                self.notes.add(f"{shown(name)} is a folder here and a link there; it was left alone")
        for name, (mode, mtime_ns) in reversed(self._folders.items()):
            self._tree.settle_folder(name, mode, mtime_ns)

    def abort(self) -> None:
        """Remove incomplete files."""
        if self._file is not None:
            self._file.discard()
            self._file = None

    def _begin(self, header: bytes) -> None:
        if header == bytes(BLOCK):
            self._ended = True
            return
        member = Member(header, self._long)
        self._left = member.size
        self._padding = -member.size % BLOCK
        if member.kind in RECORDS:
            if member.size > _LONGEST_RECORD:
                raise InvalidError(NO_ARCHIVE)
            self._record = member.kind
            self._long_text.clear()
        else:
            self._long.clear()
            self._member = member
            name = self._place(member)
            if name is not None and member.kind in _PLAIN:
                self._file = self._tree.create(name)
            elif name is not None:
                self._special(member, name)
        if not self._left:
            self._complete()

    def _take_content(self, view: memoryview) -> int:
        count = min(self._left, len(view))
        if count:
            piece = view[:count]
            if self._record:
                self._long_text += piece
            elif self._file is not None:
                self._file.write(piece)
                self._on_bytes(count)
            self._left -= count
            if not self._left:
                self._complete()
            return count
        count = min(self._padding, len(view))
        self._padding -= count
        return count

    def _complete(self) -> None:
        if self._record:
            kind, self._record = self._record, b""
            remember(kind, bytes(self._long_text), self._long)
            return
        member, self._member = self._member, None
        if self._file is not None and member is not None:
            self._file.complete(member.mode, self._mtime_ns(member))
            self._file = None
            self.files += 1

    def _mtime_ns(self, member: Member) -> int:
        exact = self._times.get(member.clean_name, 0)
        return exact if exact // 1_000_000_000 == member.mtime else member.mtime * 1_000_000_000

    def _special(self, member: Member, name: bytes) -> None:
        if member.kind == b"5":
            self._tree.folder(name)
            self._folders[name] = (member.mode | 0o700, self._mtime_ns(member))
        elif member.kind == b"2" and (not member.link or b"\0" in member.link):
            self.notes.add(f"{shown(member.name)} is a link to nothing that could exist and was skipped")
        elif member.kind == b"2":
            self._links[name] = (member.link, self._mtime_ns(member))
        elif member.kind == b"1":
            if not refusal(member.link):
                self._tree.make_hard_link(clean(member.link), name)
        else:
            self.notes.add(f"{shown(member.name)} is a device or a pipe and was skipped")

    def _place(self, member: Member) -> bytes | None:
        """Return the name for a member; None if it must not or need not be written."""
        if self._renamed:
            if member.kind in _PLAIN and not self.files:
                return self._renamed
            self.notes.add(f"the machine sent {shown(member.name)}, which nobody asked for")
            return None
        name = clean(member.name)
        reason = refusal(member.name) or refusal(name)
        if not reason and self._wanted is not None and name not in self._wanted:
            reason = "came without being asked for and was refused"
        if not reason and not name and member.kind != b"5":
            reason = "would replace the target itself and was refused"
        if reason:
            self.notes.add(f"{shown(member.name)} {reason}")
            return None
        return None if self._keep(name) else name
