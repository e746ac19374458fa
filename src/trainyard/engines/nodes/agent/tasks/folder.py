"""The files of tasks on a node: what each was told to do, what became of it, what it printed.

    <root>/tasks/<attempt>/<task>/task.json   what to do
                                  command     the user's script
                                  log         what it printed
                                  state       a line of JSON for each thing that happened; locked by the task's
                                              supervisor. A folder without it was never taken
                                  work/       its working folder, where the user named none
                                  beside/     a file for each command that people run beside it, named by its pid
    <root>/ended/<attempt>                    it was told to end; it is refused from then on
    <root>/contact                            when a server was heard last

Who writes `state` holds its lock: a state that says neither "cleared" nor is locked belongs to a supervisor that died.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import stat
import time
from typing import Any

from trainyard.lib import process_tree
from trainyard.lib.remove_tree import remove_tree

from .. import kernel

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,150}\Z")
STATE_BYTES = 8192  # room that is taken at birth, so that a full disk loses no status
LONGEST_MESSAGE = 1000
MOST_TEXT = 65536
MOST_ORDER = 64 << 20  # bytes of a task.json that are read
MOST_STATE = 1 << 20  # bytes of a state; a supervisor writes no more than a few lines
# What lines of a state hold. What is of another kind was not written by a supervisor, and is passed over.
KINDS: dict[str, type] = {
    "at": str, "view": str, "reason": str, "message": str, "pid": int, "child": int, "code": int, "signal": int,
    "clearing": bool, "fenced": bool, "told": bool, "started": float, "since": float, "ended": float, "lasted": float,
}  # fmt: skip
# What every order has; see engine.py, and Tasks.launch.
ORDER: dict[str, type | tuple[type, ...]] = {
    "boot": str, "mark": str, "workload": str, "number": int, "name": str, "env": dict,
    "fence": (int, float), "grace": (int, float), "working_dir": str,
}  # fmt: skip
MOST_NUMBER = 1e15  # a time in seconds and a count of bytes are far below

TASKS = "tasks"
ENDED = "ended"
CONTACT = "contact"
RESERVE = "reserve"
RESERVE_BYTES = 1024 * 1024  # also room for the next version of this program, see agent.sh


def check_name(name: str) -> str:
    """A name that can be a file's; ValueError otherwise."""
    if not NAME.match(name):
        raise ValueError(f"{name!r} cannot be the name of an attempt or a task")
    return name


def boot_seconds() -> float:
    """Seconds since boot, sleep included; the same clock in every process."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def keep_reserve() -> None:
    """Take a little of the disk while there is some, for what must be written when there is none."""
    if os.path.exists(RESERVE) and os.stat(RESERVE).st_blocks * 512 >= RESERVE_BYTES:
        return
    with contextlib.suppress(OSError):
        handle = os.open(RESERVE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(handle, 0, RESERVE_BYTES)
        finally:
            os.close(handle)


def write_file(path: str, data: bytes) -> None:
    """Replace a file: readers see the old one or the new one. On a full disk our reserve is given up for it."""
    try:
        _write_file(path, data)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not os.path.exists(RESERVE):
            raise
        os.unlink(RESERVE)
        _write_file(path, data)


def _write_file(path: str, data: bytes) -> None:
    temporary = f"{path}.new"
    _write_new(temporary, data)
    os.rename(temporary, path)


def open_regular(path: str, flags: int = os.O_RDONLY) -> int:
    """Open a file that a task may have put something else in the place of; OSError for a link, a pipe or a device."""
    handle = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "is no file", path)
    return handle


def read_regular(path: str, most: int) -> bytes:
    """The beginning of such a file, `most` bytes of it."""
    handle = open_regular(path)
    try:
        data = piece = os.read(handle, min(most, MOST_TEXT))
        while piece and len(data) < most:
            piece = os.read(handle, min(most - len(data), MOST_TEXT))
            data += piece
        return data
    finally:
        os.close(handle)


def read_json(path: str) -> dict[str, Any] | None:
    """A JSON object; None where there is none that can be read."""
    try:
        value = json.loads(read_regular(path, MOST_ORDER))
    except (OSError, ValueError, RecursionError):  # a task may have nested it without end
        return None
    return value if isinstance(value, dict) else None


class TaskFolder:
    """One task's folder, relative to the node's folder, which is every process's working folder here."""

    def __init__(self, attempt: str, name: str) -> None:
        self.attempt = check_name(attempt)
        self.name = check_name(name)
        self.path = f"{TASKS}/{attempt}/{name}"

    def file(self, name: str) -> str:
        """The path of one of its files."""
        return f"{self.path}/{name}"

    def create(self, order: dict[str, Any]) -> int:
        """Take an order. Returns the locked state file; OSError where the disk is full, and then nothing is left."""
        try:
            _make_folder(self.path)
            _write_new(self.file("command"), order.pop("command").encode(errors="surrogateescape") + b"\n")
            _write_new(self.file("task.json"), json.dumps(order).encode())
            state = self.lock(creates=True)  # last: with it the order is taken
        except OSError:
            self.remove()
            raise
        try:
            kernel.reserve(state, STATE_BYTES)
        except OSError:
            os.close(state)
            self.remove()
            raise
        return state

    def lock(self, *, creates: bool = False) -> int:
        """Open the state file and lock it; BlockingIOError while a supervisor has it."""
        flags = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC | (os.O_CREAT if creates else 0)
        handle = os.open(self.file("state"), flags, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(handle)
            raise
        return handle

    def is_locked(self) -> bool:
        """Whether its supervisor lives."""
        try:
            os.close(self.lock())
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def order(self) -> dict[str, Any] | None:
        """What it was told to do; None where somebody has removed or broken it."""
        found = read_json(self.file("task.json"))
        is_whole = found is not None and all(isinstance(found.get(key), kind) for key, kind in ORDER.items())
        return found if is_whole else None

    def has_state(self) -> bool:
        """Whether its state is a file, as a supervisor made it."""
        try:
            return stat.S_ISREG(os.lstat(self.file("state")).st_mode)
        except OSError:
            return False

    def history(self) -> dict[str, Any]:
        """All lines of the state file as one: `at` is the last, other keys stay from the line that had them, notes are all."""
        known: dict[str, Any] = {"at": "created"}
        try:
            lines = read_regular(self.file("state"), MOST_STATE).split(b"\n")
        except OSError:
            return known
        for line in lines[:-1]:  # what follows the last newline is half a line
            with contextlib.suppress(ValueError, RecursionError):
                found = json.loads(line)
                if not isinstance(found, dict):
                    continue
                found = {key: value for key, value in found.items() if _is_sane(key, value)}
                if "note" in found:
                    known.setdefault("notes", []).append(found["note"])
                else:
                    known.update(found)
        return known

    def text(self, name: str) -> str:
        """What one of its files says; empty where there is none. A task may have put something else in its place."""
        try:
            return read_regular(self.file(name), MOST_TEXT).decode(errors="replace")
        except OSError:
            return ""

    def log_size(self) -> int:
        """How many bytes it has printed."""
        try:
            found = os.lstat(self.file("log"))
        except OSError:
            return 0
        return found.st_size if stat.S_ISREG(found.st_mode) else 0

    def remove(self) -> None:
        """Delete all of it."""
        remove_tree(self.path)
        with contextlib.suppress(OSError):  # its attempt has other tasks here
            os.rmdir(os.path.dirname(self.path))


def _is_sane(key: str, value: Any) -> bool:
    """Whether a value of a state is of the kind that supervisors write: the server is told of it."""
    if key == "before":
        return isinstance(value, list) and len(value) == 3 and all(map(_is_number, value))
    if key == "over":
        is_pair = isinstance(value, list) and len(value) == 2
        return is_pair and isinstance(value[0], str) and isinstance(value[1], int) and _is_number(value[1])
    if key == "note":
        is_note = isinstance(value, list) and len(value) == 3 and _is_number(value[2])
        return is_note and isinstance(value[0], str) and isinstance(value[1], str)
    kind = KINDS.get(key)
    return _is_number(value) if kind is float else kind is not None and isinstance(value, kind)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and abs(value) < MOST_NUMBER


def make_folders(path: str) -> None:
    """Make a folder and those above it. `os.makedirs` calls itself for each, and a user may name a thousand."""
    missing = []
    while path and not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path.rstrip("/"))
    for one in reversed(missing):
        with contextlib.suppress(FileExistsError):
            os.mkdir(one)


def _make_folder(path: str) -> None:
    try:
        os.mkdir(path, 0o700)
    except FileNotFoundError:
        os.makedirs(path, mode=0o700, exist_ok=True)
    except FileExistsError:
        pass


def _write_new(path: str, data: bytes) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(handle, rest) :]
    finally:
        os.close(handle)


def note(state: int, *lines: dict[str, Any]) -> None:
    """Add lines to a state file, all or none."""
    os.write(state, b"".join(json.dumps(line).encode() + b"\n" for line in lines))


def all_folders() -> tuple[list[TaskFolder], list[TaskFolder]]:
    """Every task that was taken, and the folders that were only half made."""
    found: list[TaskFolder] = []
    half: list[TaskFolder] = []
    for attempt in _names(TASKS):
        for name in _names(f"{TASKS}/{attempt}"):
            folder = TaskFolder(attempt, name)
            (found if os.path.lexists(folder.file("state")) else half).append(folder)
    return found, half


def _names(path: str) -> list[str]:
    """What is in a folder; nothing where it is none."""
    try:
        return [name for name in os.listdir(path) if NAME.match(name)]
    except (FileNotFoundError, NotADirectoryError):
        return []


def write_tombstone(attempt: str, grace: float) -> float:
    """Note that an attempt has to end; the earliest end that anybody asked for counts. Returns it, in seconds of boot."""
    path = f"{ENDED}/{check_name(attempt)}"
    deadline = boot_seconds() + grace
    known = read_json(path)
    if known is not None and known.get("boot") == process_tree.boot_id():
        deadline = min(deadline, float(known["deadline"]))
    write_file(path, json.dumps({"boot": process_tree.boot_id(), "deadline": deadline}).encode())
    return deadline


def find_tombstone(attempt: str) -> float | None:
    """When an attempt has to be gone; None where nobody has asked it to."""
    path = f"{ENDED}/{check_name(attempt)}"
    known = read_json(path)
    if known is not None:
        return float(known["deadline"]) if known.get("boot") == process_tree.boot_id() else 0.0
    return 0.0 if os.path.exists(path) else None


def write_contact(*, left: bool = False) -> None:
    """Note that a server was heard just now, or that it said goodbye."""
    write_in_place(CONTACT, b"%24.3f %d\n" % (boot_seconds(), left))


def write_in_place(path: str, data: bytes) -> None:
    """Write a few bytes over those that a file has: once it is there, a full disk does not hinder it."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.pwrite(handle, data, 0)
    finally:
        os.close(handle)


def silent_seconds() -> float:
    """How long no server was heard; 0 where the last one said goodbye."""
    try:
        with open(CONTACT, "rb") as file:
            at, left = file.read().split()
    except (OSError, ValueError):
        return 0.0
    return 0.0 if left == b"1" else boot_seconds() - float(at)
