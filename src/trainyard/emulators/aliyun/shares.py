"""The files of NAS: each file system is a folder, and each of its mount targets that is active a name for that folder.

A machine's `mount -t nfs NAME:/` looks the name up here. What file systems there are is the world's matter.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from trainyard.emulators.aliyun.cloud.world import World
from trainyard.lib.remove_tree import remove_tree

FILES = ".files"


def wanted_shares(world: World) -> dict[str, str]:
    """Name of a mount target → id of its file system; a file system without a target stands under its own id."""
    shares: dict[str, str] = {}
    for system in world.file_systems.values():
        shares[system.id] = system.id
        shares |= {target.domain: system.id for target in system.targets if target.status == "Active"}
    return shares


def reconcile_shares(folder: Path, wanted: Mapping[str, str]) -> None:
    """Make the names and folders what is wanted. A file system that is gone takes its files with it."""
    files = folder / FILES
    files.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():
        if path.is_symlink() and path.name not in wanted:
            path.unlink()
    for path in files.iterdir():
        if path.name not in wanted:
            remove_tree(path)
    for name, system in wanted.items():
        home = files / system
        if not home.is_dir():
            home.mkdir()
            home.chmod(0o777)  # users of machines are not users here; the folder around is its owner's alone
        if name != system and not (folder / name).is_symlink():
            (folder / name).symlink_to(f"{FILES}/{system}")
