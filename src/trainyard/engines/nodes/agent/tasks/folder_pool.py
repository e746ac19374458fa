"""Folders of tasks that are forgotten, kept for tasks to come: making and deleting files costs more than writing them anew.

A spare has the files that every task has, empty, and nothing else. None of them is called `state`: a folder that
was put into its place, and not taken yet, is one that never was a task's.
"""

from __future__ import annotations

import contextlib
import os
import stat

from trainyard.lib.remove_tree import remove_tree

from .folder import OLD_STATE, TASKS, TaskFolder

SPARES = "spare"
MOST = 128  # as many as are forgotten at once
FILES = frozenset({"command", "task.json", "log", "state"})
EMPTIED = ("command", "task.json", "log")  # whose words, variables and output may be secret


class FolderPool:
    """What is kept; nothing of it outlives the agent."""

    def __init__(self) -> None:
        remove_tree(SPARES)
        os.makedirs(SPARES, mode=0o700, exist_ok=True)
        self._free: list[tuple[str, str]] = []  # its path, and the name of the task's folder in it
        self._number = 0

    def keep(self, folder: TaskFolder) -> bool:
        """Take the folder of an attempt with this one task, where it holds no more than every task's does."""
        if len(self._free) >= MOST:
            return False
        self._number += 1
        path = f"{SPARES}/{self._number}"
        with contextlib.suppress(OSError):
            if _is_plain(folder):
                os.rename(folder.file("state"), folder.file(OLD_STATE))  # from here on it is nobody's
                os.rename(f"{TASKS}/{folder.attempt}", path)
                # Only now: a folder in its own place is a task's until the server has heard that it is forgotten.
                for name in EMPTIED:
                    with contextlib.suppress(FileNotFoundError):  # one that never began has no log
                        os.truncate(f"{path}/{folder.name}/{name}", 0)
                self._free.append((path, folder.name))
                return True
        return False

    def give(self, folder: TaskFolder) -> bool:
        """Put a spare at the place of a new attempt with this one task; False where there is none."""
        if not self._free:
            return False
        path, name = self._free.pop()
        try:
            if name != folder.name:
                os.rename(f"{path}/{name}", f"{path}/{folder.name}")
            os.rename(path, f"{TASKS}/{folder.attempt}")
        except OSError:
            remove_tree(path)
            return False
        return True


def _is_plain(folder: TaskFolder) -> bool:
    """Whether a folder has only files of ours, which nobody has put something else in the place of."""
    user = os.getuid()
    with os.scandir(folder.path) as entries:
        for entry in entries:
            if entry.name == "work":
                os.rmdir(entry.path)  # made anew: who was in it may have changed its rights
                continue
            found = entry.stat(follow_symlinks=False)
            is_ours = found.st_mode == stat.S_IFREG | 0o600 and found.st_nlink == 1 and found.st_uid == user
            if entry.name not in FILES or not is_ours:
                return False
    return True
