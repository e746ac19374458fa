"""Network file systems as folders of the node: found where they are mounted already, mounted where we may.

They stay mounted for the tasks to come. Not below the node's folder: whoever removes that must not remove what is in them.
"""

from __future__ import annotations

import binascii
import os
import time
from typing import Any

from trainyard.lib.read_file import read_file

from .. import kernel
from .capabilities import find_program, run_briefly

FOLDER = "/run/trainyard/mounts"
MOUNT_SECONDS = 30.0
PAUSE_SECONDS = 1.0
OPTIONS = "soft,timeo=600,retrans=2,nosuid,nodev"  # a server that is gone must not hold a task for ever
ALWAYS = (
    "nosuid",
    "nodev",
)  # whatever an operator asks for: what tasks put there is nobody's program on the node
TRANSIENT = (
    "refused",
    "timed out",
    "no route",
    "unreachable",
    "no answer",
)  # of a server that is just being started
ESCAPES = ((b"\\040", b" "), (b"\\011", b"\t"), (b"\\012", b"\n"), (b"\\134", b"\\"))


class UnmountedError(Exception):
    """It cannot be reached as a folder; the message says why."""


def folder_of(mount: dict[str, Any], mark: str) -> tuple[str, str]:
    """Where a network file system is on this node, and what has to be opened below. UnmountedError where it is nowhere.

    Of one whose last folders are made for each user or job, the part above them is mounted, once for all.
    """
    source, options = str(mount["source"]), mount.get("options") or {}
    found = mounted_at(source)
    if found:
        return found, ""
    upper = str(options.get("base") or source)
    folder = mounted_at(upper)
    if not folder:
        env = {**os.environ, kernel.MARK: mark}  # it goes with the task, should that have to
        folder = _mount(upper, str(mount["kind"]), str(options.get("options") or OPTIONS), env)
    return folder, source[len(upper.rstrip("/")) :].strip("/")


def _mount(source: str, kind: str, options: str, env: dict[str, str]) -> str:
    if os.getuid():
        raise UnmountedError(f"{source} is not mounted on the node, and only root could do it")
    # Two storages may have the same source, and be mounted in different ways.
    place = f"{FOLDER}/{binascii.crc32(f'{source} {options}'.encode()):08x}"
    os.makedirs(place, mode=0o700, exist_ok=True)
    options += "".join(f",{word}" for word in ALWAYS if word not in options.split(","))
    is_patient = "retry=" not in options
    if is_patient:
        options += ",retry=0"  # we try again ourselves, and know then what the matter is
    words = [find_program("mount"), "-t", kind, "-o", options, source, place]
    deadline = time.monotonic() + MOUNT_SECONDS
    while not is_mounted(place):
        status, said = run_briefly(words, MOUNT_SECONDS, env)
        if status == 0 or is_mounted(place):  # another task may have been quicker
            break
        why = said.strip().rpartition("\n")[2] or f"status {status}"
        is_transient = is_patient and any(word in why.lower() for word in TRANSIENT)
        if not is_transient or time.monotonic() > deadline:
            raise UnmountedError(f"{source} cannot be mounted: {why}")
        time.sleep(PAUSE_SECONDS)
    return place


def mounted_at(source: str) -> str:
    """Where the node's owner has mounted something; empty where it is not."""
    wanted = source.rstrip("/")
    places = (place for device, place in _mounts() if device.rstrip("/") == wanted)
    return next((place for place in places if not place.startswith(f"{FOLDER}/")), "")


def is_mounted(place: str) -> bool:
    """Whether something is mounted at a place of ours. Its server is not asked: that may be gone."""
    return any(one == place for _, one in _mounts())


def _mounts() -> list[tuple[str, str]]:
    lines = read_file("/proc/self/mounts").splitlines()
    return [(_plain(device), _plain(place)) for device, place, *_ in (line.split(b" ") for line in lines)]


def _plain(text: bytes) -> str:
    for escape, letter in ESCAPES:
        text = text.replace(escape, letter)
    return os.fsdecode(text)
