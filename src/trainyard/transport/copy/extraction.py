"""The archive reader: a tar stream from a machine → files below one folder, and never outside of it.

Names that climb out are refused; nothing is written through a link, because links are made last and links that stand
where a folder belongs are replaced; a file appears under its name only when it is complete.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping
from contextlib import suppress

from trainyard.lib.errors import ConflictError, InvalidError, UnreachableError
from trainyard.lib.ids import new_id
from trainyard.transport.copy.archive import BLOCK

PART = b".trainyard-part-"
NO_ARCHIVE = "the machine sent something that is no archive"
_LONGEST_RECORD = 1024 * 1024  # a name or a set of attributes; more is no archive


class Extraction:
    """Feed it the stream; `finish` when it has ended, `abort` when it has not.

    `times` gives the exact times (ns) of names, which headers round to seconds. `renamed` replaces every name: the
    archive then holds one file. `keep` says which names are to be left as they are here.
    """

    def __init__(
        self,
        root: bytes,
        *,
        times: Mapping[bytes, int] | None = None,
        renamed: bytes = b"",
        keep: Callable[[bytes], bool] = lambda _name: False,
        on_bytes: Callable[[int], None] = lambda _count: None,
    ) -> None:
        self.notes: list[str] = []
        self.files = 0
        self._root = root
        self._times = times or {}
        self._renamed = renamed
        self._keep = keep
        self._on_bytes = on_bytes
        self._buffer = bytearray()
        self._folders: set[bytes] = set()
        self._folder_times: list[tuple[bytes, int, int]] = []
        self._links: list[tuple[bytes, bytes, int]] = []
        self._long: dict[str, bytes] = {}
        self._record = b""  # the type of a long record being read
        self._file = -1
        self._temporary = b""
        self._member: _Member | None = None
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
        for path, target, mtime_ns in self._links:
            self._make_link(path, target, mtime_ns)
        for path, mode, mtime_ns in reversed(self._folder_times):
            os.chmod(path, mode)  # noqa: PTH101  # bytes
            os.utime(path, ns=(mtime_ns, mtime_ns))

    def abort(self) -> None:
        """Leave no half file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
            with suppress(FileNotFoundError):
                os.unlink(self._temporary)  # noqa: PTH108  # bytes

    def _begin(self, header: bytes) -> None:
        if header == bytes(BLOCK):
            self._ended = True
            return
        member = _Member(header, self._long)
        self._left = member.size
        self._padding = -member.size % BLOCK
        if member.kind in b"LKxg":
            if member.size > _LONGEST_RECORD:
                raise InvalidError(NO_ARCHIVE)
            self._record = member.kind
            self._long_text = bytearray()
            return
        self._long.clear()
        self._member = member
        path = self._place(member.name)
        if path is None:
            self._member = None
        elif member.kind in b"07\0":
            self._open(path)
        else:
            self._special(member, path)
        if not self._left:
            self._complete()

    def _take_content(self, view: memoryview) -> int:
        count = min(self._left, len(view))
        if count:
            piece = view[:count]
            if self._record:
                self._long_text += piece
            elif self._file >= 0:
                _write_all(self._file, piece)
                self._on_bytes(count)
            self._left -= count
            if not self._left:
                self._complete()
            return count
        count = min(self._padding, len(view))
        self._padding -= count
        return count

    _long_text: bytearray

    def _complete(self) -> None:
        if self._record:
            kind, self._record = self._record, b""
            _remember(kind, bytes(self._long_text), self._long)
            return
        member, self._member = self._member, None
        if self._file < 0 or member is None:
            return
        mtime_ns = self._mtime_ns(member)
        os.fchmod(self._file, member.mode | 0o600)
        os.utime(self._file, ns=(mtime_ns, mtime_ns))
        os.close(self._file)
        self._file = -1
        self.files += 1
        try:
            os.replace(self._temporary, self._final)  # noqa: PTH105  # bytes
        except (IsADirectoryError, NotADirectoryError) as error:
            os.unlink(self._temporary)  # noqa: PTH108
            raise ConflictError(
                f"{os.fsdecode(self._final)!r} is a folder here and a file there", hint="Move it away first."
            ) from error

    _final: bytes

    def _mtime_ns(self, member: _Member) -> int:
        exact = self._times.get(member.clean_name, 0)
        return exact if exact // 1_000_000_000 == member.mtime else member.mtime * 1_000_000_000

    def _open(self, path: bytes) -> None:
        self._final = path
        folder = path.rpartition(b"/")[0]
        # Not the file's own name with something added: that may be longer than a name can be.
        self._temporary = folder + b"/" + PART + new_id().encode()
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._file = os.open(self._temporary, flags, 0o600)

    def _special(self, member: _Member, path: bytes) -> None:
        if member.kind == b"5":
            _ensure_folder(path, self._folders)
            self._folder_times.append((path, member.mode | 0o700, self._mtime_ns(member)))
        elif member.kind == b"2":
            self._links.append((path, member.link, self._mtime_ns(member)))
        elif member.kind == b"1":
            source = self._place(member.link)
            if source is not None and stat.S_ISREG(os.lstat(source).st_mode):
                _replace(path, lambda temporary: os.link(source, temporary))
        else:
            self.notes.append(f"{os.fsdecode(member.name)!r} is a device or a pipe and was skipped")

    def _place(self, name: bytes) -> bytes | None:
        """Where a member goes; None where it must not or need not go anywhere. Makes the folders above it."""
        if self._renamed:
            return ensure_parents(self._root, self._renamed, self._folders)
        if not is_below(name):
            self.notes.append(f"{os.fsdecode(name)!r} would land outside of the target and was refused")
            return None
        clean = _clean(name)
        if clean and self._keep(clean):
            return None
        return ensure_parents(self._root, clean, self._folders)

    def _make_link(self, path: bytes, target: bytes, mtime_ns: int) -> None:
        if os.path.isdir(path) and not os.path.islink(path):  # noqa: PTH112, PTH114  # bytes
            self.notes.append(f"{os.fsdecode(path)!r} is a folder here and a link there; it was left alone")
            return
        _replace(path, lambda temporary: os.symlink(target, temporary))  # noqa: PTH211  # bytes
        os.utime(path, ns=(mtime_ns, mtime_ns), follow_symlinks=False)


class _Member:
    """One header, with the long names and attributes that came before it."""

    def __init__(self, header: bytes, long: Mapping[str, bytes]) -> None:
        checksum = b"%o" % (sum(header[:148]) + sum(header[156:]) + 256)
        if header[148:156].strip(b" \0").lstrip(b"0") != checksum:
            raise InvalidError(NO_ARCHIVE)
        self.kind = header[156:157]
        name = _text(header[:100])
        if header[257:263] == b"ustar\0" and header[345] and self.kind not in b"LKxg":
            name = _text(header[345:500]) + b"/" + name
        self.name = long.get("path", name)
        self.link = long.get("linkpath", _text(header[157:257]))
        self.mode = _number(header[100:108]) & 0o777
        is_content = self.kind in b"07\0LKxg"
        self.size = int(long["size"]) if "size" in long else _number(header[124:136])
        if not is_content:
            self.size = 0
        self.mtime = int(float(long["mtime"])) if "mtime" in long else _number(header[136:148])

    @property
    def clean_name(self) -> bytes:
        """Without dots and slashes that mean nothing."""
        return _clean(self.name)


def is_below(name: bytes) -> bool:
    """Whether a relative name stays inside the folder that it is relative to."""
    return not name.startswith(b"/") and b".." not in name.split(b"/")


def ensure_parents(root: bytes, name: bytes, known: set[bytes]) -> bytes:
    """The path of `name` in `root`, with every folder above it made. `known` remembers which are there.

    What stands in the way of a folder, a link above all, is removed: going through it might lead anywhere.
    """
    if root not in known:
        os.makedirs(root, exist_ok=True)  # noqa: PTH103  # bytes; the target itself may be a link
        known.add(root)
    path = root
    parts = name.split(b"/") if name else []
    for part in parts[:-1]:
        path += b"/" + part
        _ensure_folder(path, known)
    return path + b"/" + parts[-1] if parts else path


def _ensure_folder(path: bytes, known: set[bytes]) -> None:
    if path in known:
        return
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        mode = 0
    if mode and not stat.S_ISDIR(mode):
        os.unlink(path)  # noqa: PTH108  # bytes
    if not stat.S_ISDIR(mode):
        os.mkdir(path)  # noqa: PTH102  # bytes
    known.add(path)


def _clean(name: bytes) -> bytes:
    return b"/".join(part for part in name.split(b"/") if part not in (b"", b"."))


def _text(field: bytes) -> bytes:
    return field.partition(b"\0")[0]


def _number(field: bytes) -> int:
    if field[0] & 0x80:  # GNU's binary form for what eleven octal digits cannot hold
        return int.from_bytes(field[1:], "big") if field[0] == 0x80 else 0
    return int(field.strip(b" \0") or b"0", 8)


def _remember(kind: bytes, text: bytes, long: dict[str, bytes]) -> None:
    if kind == b"L":
        long["path"] = _text(text)
    elif kind == b"K":
        long["linkpath"] = _text(text)
    elif kind == b"x":
        while text:
            digits = text.partition(b" ")[0]
            record, text = text[len(digits) + 1 : int(digits) - 1], text[int(digits) :]
            key, _, value = record.partition(b"=")
            if key in (b"path", b"linkpath", b"size", b"mtime"):
                long[key.decode()] = value


def _replace(path: bytes, make: Callable[[bytes], None]) -> None:
    temporary = path.rpartition(b"/")[0] + b"/" + PART + new_id().encode()
    make(temporary)
    os.replace(temporary, path)  # noqa: PTH105  # bytes


def _write_all(descriptor: int, view: memoryview) -> None:
    while view:
        view = view[os.write(descriptor, view) :]
