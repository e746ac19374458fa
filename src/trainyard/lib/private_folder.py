"""Folders for this account alone.

Python 3.8 and its standard library only: the program on a node has this module too, see engines/nodes/agent_bundle.py.
"""

from __future__ import annotations

import contextlib
import os


def make_private(path: str | os.PathLike[str]) -> None:
    """Make a folder and those above it that are missing, each for this account alone, whatever the umask says."""
    folder, missing = os.fspath(path), []
    while not os.path.exists(folder):  # noqa: PTH110  # pathlib costs an agent's start
        missing.append(folder)
        folder = os.path.dirname(folder)  # noqa: PTH120
    for name in reversed(missing):
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o700)  # noqa: PTH102
