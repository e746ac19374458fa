"""What is left of forgotten tasks: moved away at once, removed by a process of its own, however much it is.

What cannot be removed is set aside, see broken_folders.py.
"""

from __future__ import annotations

import fcntl
import os

from trainyard.lib.remove_tree import remove_tree

from .broken_folders import set_aside

TRASH = "trash"
LONGEST_NAME = 200


class Trash:
    """The agent's side: putting things in, and seeing whether somebody has to empty it."""

    def __init__(self) -> None:
        os.makedirs(TRASH, mode=0o700, exist_ok=True)
        self._number = 0
        self.is_full = bool(os.listdir(TRASH))  # something may be in it; of an agent before us, too

    def put(self, path: str, name: str) -> bool:
        """Take a folder from its place. False where it cannot be moved."""
        self._number += 1
        try:
            os.rename(path, f"{TRASH}/{name[:LONGEST_NAME]}.{os.getpid()}.{self._number}")
        except OSError:
            return False
        self.is_full = True
        return True

    def take(self) -> int:
        """A handle for who is to empty it; -1 where nothing is in it, or somebody does so now."""
        if not self.is_full:
            return -1
        handle = os.open(TRASH, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(handle)
            return -1
        self.is_full = False  # what is put in from now on is for the next
        return handle


def empty() -> None:
    """Remove all that is in the trash. In a process of its own, which holds the lock."""
    for name in os.listdir(TRASH):
        path = f"{TRASH}/{name}"
        problem = remove_tree(path)
        if problem is not None and os.path.lexists(path):
            set_aside(
                path, name, f"it cannot be removed: {problem.strerror}"
            )  # or else the next start tries again
