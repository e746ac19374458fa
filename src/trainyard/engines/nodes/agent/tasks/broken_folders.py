"""Folders of tasks that cannot be read or removed: they are set aside, so that the agent goes on, and the server is told.

Each is `broken/<attempt>.<task>` in the node's folder: `files` was the task's folder, `why` is one line.
"""

from __future__ import annotations

import contextlib
import os

from .folder import read_regular, write_file

BROKEN = "broken"
MOST = 32  # kept for a look; who makes more of them gets the node's disk no fuller
LONGEST_NAME = 200
LONGEST_REASON = 300


def set_aside(path: str, name: str, why: str) -> bool:
    """Move a folder away from where it disturbs. False where it stays: there are many, or the disk has no room for one."""
    try:
        os.makedirs(BROKEN, mode=0o700, exist_ok=True)
        if len(os.listdir(BROKEN)) >= MOST:
            return False
        place = _free_place(name[:LONGEST_NAME])
        os.mkdir(place, 0o700)
        os.rename(path, f"{place}/files")
    except OSError:
        return False
    with contextlib.suppress(OSError):
        write_file(f"{place}/why", why[:LONGEST_REASON].encode(errors="replace"))
    return True


def _free_place(name: str) -> str:
    number, place = 1, f"{BROKEN}/{name}"
    while os.path.lexists(place):
        number += 1
        place = f"{BROKEN}/{name}.{number}"
    return place


def notices() -> list[str]:
    """A sentence for each that is there; the operator removes one, and it is told no more."""
    try:
        names = sorted(os.listdir(BROKEN))[:MOST]
    except OSError:
        return []
    return [_notice(name) for name in names]


def _notice(name: str) -> str:
    why = "nobody noted why"
    with contextlib.suppress(OSError):
        why = read_regular(f"{BROKEN}/{name}/why", LONGEST_REASON * 4).decode(errors="replace").strip()
    return f"The folder of the task {name} was set aside in {os.path.abspath(f'{BROKEN}/{name}')}: {why}"
