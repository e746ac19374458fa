"""The folders of storages on a node, and the places for them in a task's view.

Whoever writes in a storage may put links into it, and a view is made by a program that follows them, with rights of the node.
So what lies below a storage is opened step by step and by no link; and that each folder came where it belongs, and no other,
is looked at before the task begins: see `check`.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from importlib import import_module
from typing import Any

from trainyard.lib import process_tree
from trainyard.lib.private_folder import make_private

from . import storage_owner
from .sandbox_user import TaskUser

NETWORK = "nfs"
SYSTEM = ("/", "/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/proc", "/run", "/sbin",
          "/sys", "/usr", "/var")  # fmt: skip
STORAGES = "storages"  # of the platform's own folder, what people may see
UNGUARDED = ("open", "off")
FOLDER = os.O_PATH | os.O_CLOEXEC
CHECK_SECONDS = 60.0  # on a node that is very busy
LOOK_SECONDS = 0.001


class RefusalError(Exception):
    """The node cannot give a task what it needs; the message is a sentence for its user."""


class MountedStorage:
    """A storage's folder, held open, and where it is to be seen."""

    __slots__ = ("handle", "read_only", "source", "target")

    def __init__(self, source: str, target: str, handle: int, *, read_only: bool) -> None:
        self.source = source
        self.target = target
        self.handle = handle
        self.read_only = read_only


class StorageMounts:
    """All storages of one task."""

    def __init__(self, view: dict[str, Any], mark: str, user: TaskUser | None) -> None:
        self._view = view
        self._mark = mark
        self._user = user  # whose the folders are that are made for it; None: ours
        self._placed: list[MountedStorage] | None = None

    def all(self) -> list[MountedStorage]:
        """Every storage, upper folders first, each with a place for it. RefusalError where one cannot be shown."""
        if self._placed is None:
            self._placed = []
            for mount in sorted(self._view["mounts"], key=lambda one: one["target"].count("/")):
                placed = self._place(mount)
                self.make_room(placed.target, is_file=False)
                self._placed.append(placed)
        return self._placed

    def handles(self) -> list[int]:
        """What is held open."""
        return [one.handle for one in self._placed or ()]

    def _place(self, mount: dict[str, Any]) -> MountedStorage:
        options = mount.get("options") or {}
        target = os.path.normpath(mount["target"])
        if not target.startswith("/") or target in SYSTEM:
            raise RefusalError(
                f"a storage cannot be shown at {mount['target']}: the node's own files are there"
            )
        base, below = (
            _found(mount, self._mark) if mount["kind"] == NETWORK else _parts(source_of(mount), options)
        )
        path = "/".join(part for part in (below, str(options.get("path") or "")) if part)
        is_made = bool(options.get("create"))
        if is_made:
            try:
                make_private(base)
            except OSError as error:
                raise RefusalError(
                    f"the folder {base} of the storage at {target} cannot be made: {error.strerror}"
                ) from error
        try:
            handle = os.open(base, FOLDER)
        except OSError as error:
            said = f"the node has no {base} for the storage at {target}"
            if not isinstance(error, FileNotFoundError):
                said = f"the folder {base} of the storage at {target} cannot be had: {error.strerror}"
            raise RefusalError(said) from error
        shown = str(options.get("path") or below)
        handle = _walk(handle, path, f"the folder {shown} of the storage at {target}", makes=is_made)
        real = os.readlink(f"/proc/self/fd/{handle}")
        self._guard(real, target, handle)
        if self._user is not None and not mount["read_only"]:
            if is_made and not options.get("shared"):
                storage_owner.make_private(handle, self._user)
            else:
                storage_owner.make_shared(handle, is_ours=is_made)
        return MountedStorage(real, target, handle, read_only=bool(mount["read_only"]))

    def _guard(self, real: str, target: str, handle: int) -> None:
        """What is the platform's own is nobody's storage, whatever led to it."""
        if self._view.get("isolation") in UNGUARDED:
            return
        for own in map(os.path.realpath, (os.getcwd(), *self._view.get("hidden", ()))):
            is_inside = _is_in(real, own) and not _is_in(real, f"{own}/{STORAGES}")
            if is_inside or _is_in(own, real):
                os.close(handle)
                raise RefusalError(
                    f"the storage at {target} cannot be shown: the platform's own files are there"
                )

    def is_inside(self, target: str) -> bool:
        """Whether a place lies in a storage: what is missing there is made in it, see `make_room`."""
        return any(target.startswith(f"{one.target}/") for one in self._placed or ())

    def make_room(self, target: str, *, is_file: bool) -> None:
        """Make a place inside of the storage that a target lies in, where it lies in one. RefusalError where that leads elsewhere."""
        above = [one for one in self._placed or () if target.startswith(f"{one.target}/")]
        if not above:
            return
        upper = max(above, key=lambda one: len(one.target))
        what = f"{target} inside of the storage at {upper.target}"
        parts = target[len(upper.target) + 1 :].split("/")
        folders = parts[:-1] if is_file else parts
        handle = _walk(os.dup(upper.handle), "/".join(folders), what, makes=not upper.read_only)
        try:
            if is_file:
                _make_file(handle, parts[-1], what, makes=not upper.read_only)
        finally:
            os.close(handle)


def _is_in(path: str, folder: str) -> bool:
    return f"{path}/".startswith(f"{folder.rstrip('/')}/")


def source_of(mount: dict[str, Any]) -> str:
    """Where a mount's files are on the node; one that is not absolute is below the node's folder."""
    return os.path.abspath(str(mount["source"]))


def check(pid: int, placed: list[MountedStorage]) -> None:
    """Wait until a view is made, and see that each storage is at its place: what we hold, and nothing that came there meanwhile.

    RefusalError where it is not; nothing where its making has failed, which it says by itself.
    """
    deadline = time.monotonic() + CHECK_SECONDS
    for one in placed:
        wanted = os.fstat(one.handle)
        is_made = False
        while not _is_at(pid, one.target, wanted):
            if not process_tree.start_time(pid):
                return
            if is_made or time.monotonic() > deadline:
                raise RefusalError(f"the storage at {one.target} is not what it should be")
            is_made = _is_made(pid)  # and then one look more
            time.sleep(LOOK_SECONDS)


def _is_made(pid: int) -> bool:
    """Whether a process sees its view, and no longer the node or what a view is made from."""
    try:
        seen, here = os.stat(f"/proc/{pid}/root/"), os.stat("/")
    except OSError:
        return False
    is_elsewhere = (seen.st_dev, seen.st_ino) != (here.st_dev, here.st_ino)
    return is_elsewhere and not os.path.exists(f"/proc/{pid}/root/newroot")


def _is_at(pid: int, target: str, wanted: os.stat_result) -> bool:
    try:
        found = os.stat(f"/proc/{pid}/root{target}")
    except PermissionError:
        return os.getuid() != 0  # it has no more rights than its user
    except OSError:
        return False
    return (found.st_dev, found.st_ino) == (wanted.st_dev, wanted.st_ino)


def _parts(source: str, options: dict[str, Any]) -> tuple[str, str]:
    """What of a source is the operator's own, and what lies below that."""
    base = os.path.abspath(str(options["base"])) if options.get("base") else source
    return base, source[len(base.rstrip("/")) :].strip("/")


def _found(mount: dict[str, Any], mark: str) -> tuple[str, str]:
    network = import_module(".network_storages", __package__)  # few tasks have such a storage
    try:
        folder, below = network.folder_of(mount, mark)
        return str(folder), str(below)
    except network.UnmountedError as error:
        raise RefusalError(f"the storage at {mount['target']} cannot be shown: {error}") from error


def _walk(handle: int, path: str, what: str, *, makes: bool) -> int:
    """Open a folder below one, by no link; the first is closed."""
    for part in path.split("/"):
        if part in ("", "."):
            continue
        problem, inner = "leads out of it", -1
        try:
            if part != "..":
                if makes:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(part, 0o700, dir_fd=handle)
                        _inherit(part, handle)
                inner = os.open(part, FOLDER | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=handle)
        except (NotADirectoryError, FileExistsError):
            problem = "is a link or no folder"
        except FileNotFoundError:
            problem = "is not there"
        except OSError as error:
            problem = f"cannot be had: {error.strerror}"
        os.close(handle)
        if inner < 0:
            raise RefusalError(f"{what} {problem}")
        handle = inner
    return handle


def _inherit(name: str, above: int) -> None:
    """What root makes in a user's folder is the user's."""
    if os.getuid() == 0:
        storage_owner.inherit(name, above)


def _make_file(handle: int, name: str, what: str, *, makes: bool) -> None:
    """See that a file is there, which is no link."""
    try:
        if makes:
            with contextlib.suppress(FileExistsError):
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
                os.close(os.open(name, flags, 0o600, dir_fd=handle))
                _inherit(name, handle)
        found = os.stat(name, dir_fd=handle, follow_symlinks=False)
    except OSError as error:
        raise RefusalError(f"{what} cannot be had: {error.strerror}") from error
    if not stat.S_ISREG(found.st_mode):
        raise RefusalError(f"{what} is a link or no file")
