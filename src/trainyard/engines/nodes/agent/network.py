"""Network file systems as folders of the node: found where they are mounted already, mounted where we may.

They stay mounted for the tasks to come. Not below the node's folder: whoever removes that must not remove what is in them.
"""

from __future__ import annotations

import binascii
import os
from typing import Any

from . import kernel
from .ground import find_program, run_briefly

FOLDER = "/run/trainyard/mounts"
MOUNT_SECONDS = 60.0
OPTIONS = "soft,timeo=600,retrans=2,nosuid,nodev"  # a server that is gone must not hold a task for ever
ESCAPES = ((b"\\040", b" "), (b"\\011", b"\t"), (b"\\012", b"\n"), (b"\\134", b"\\"))


class UnmountedError(Exception):
    """It cannot be reached as a folder; the message says why."""


def folder_of(mount: dict[str, Any]) -> str:
    """Where a network file system is on this node. UnmountedError where it is nowhere."""
    source = str(mount["source"])
    found = mounted_at(source)
    if found:
        return found
    if os.getuid():
        raise UnmountedError(f"{source} is not mounted on the node, and only root could do it")
    program = find_program("mount")
    place = f"{FOLDER}/{binascii.crc32(source.encode()):08x}"
    os.makedirs(place, mode=0o700, exist_ok=True)
    options = (mount.get("options") or {}).get("options") or OPTIONS
    words = [program, "-t", str(mount["kind"]), "-o", options, source, place]
    status, said = run_briefly(words, MOUNT_SECONDS)
    found = mounted_at(source)  # another task may have been quicker
    if found:
        return found
    raise UnmountedError(
        f"{source} cannot be mounted: {said.strip().rpartition(chr(10))[2] or f'status {status}'}"
    )


def mounted_at(source: str) -> str:
    """Where something is mounted; empty where it is not."""
    wanted = os.fsencode(source.rstrip("/"))
    for line in kernel.read_file("/proc/self/mounts").splitlines():
        device, place, _ = line.split(b" ", 2)
        if _plain(device).rstrip(b"/") == wanted:
            return os.fsdecode(_plain(place))
    return ""


def _plain(text: bytes) -> bytes:
    for escape, letter in ESCAPES:
        text = text.replace(escape, letter)
    return text
