"""As whom a task runs on a node whose agent is root: a number of the platform's user, who has no rights on the node.

The server gives each of its users a number, the same on every node, so that files on shared storages are theirs everywhere.
All tasks have one group in common; folders that people share are its. Where the agent is no root, tasks run as it does.
"""

from __future__ import annotations

import os
import stat
from typing import Any, NamedTuple

from .device_files import device_nodes

# No system gives numbers so high to people or services by itself. This one is the group of all tasks, and the user of a task
# whose server does not say whose it is; users of the platform have higher ones.
FIRST = 2_000_000
UNGUARDED = ("open", "off")
UMASK = 0o002  # what is made in a shared folder is for all who share it; a private folder lets nobody else in
PRIVATE, SHARED = 0o700, 0o2775
# What tables of accounts say of everybody's accounts, where those of the system cannot be known.
NAMES = {
    "passwd": "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n",
    "group": "root:x:0:\nnogroup:x:65534:\n",
}


class TaskUser(NamedTuple):
    """The numbers of a task's user."""

    uid: int
    gid: int = FIRST
    groups: tuple[int, ...] = ()  # more groups: those that may use its devices

    def words(self, setpriv: str) -> list[str]:
        """What turns root into this user inside of a view, for good, and runs the words that follow."""
        groups = ["--groups", ",".join(map(str, self.groups))] if self.groups else ["--clear-groups"]
        numbers = ["--reuid", str(self.uid), "--regid", str(self.gid), *groups]
        return [setpriv, *numbers, "--bounding-set=-all", "--inh-caps=-all", "--"]

    def names(self, table: str, name: str, home: str, shell: str, others: str) -> str:
        """A table of accounts in which the user stands first: it is the first with a number whom programs take it for."""
        line = (
            f"{name}:x:{self.gid}:" if table == "group" else f"{name}:x:{self.uid}:{self.gid}::{home}:{shell}"
        )
        return f"{line}\n{others}"

    def give(self, path: str) -> None:
        """Make something of ours the user's; a link itself and not what it leads to."""
        os.chown(path, self.uid, self.gid, follow_symlinks=False)

    def give_stream(self, handle: int) -> None:
        """Let the user open a pipe or a terminal anew, as `echo > /dev/stderr` does."""
        kind = os.fstat(handle).st_mode
        if stat.S_ISFIFO(kind) or (stat.S_ISCHR(kind) and os.isatty(handle)):
            os.fchown(handle, self.uid, self.gid)

    def become(self) -> None:
        """Be this user from now on: there is no way back."""
        os.umask(UMASK)
        os.setgroups(list(self.groups))
        os.setresgid(self.gid, self.gid, self.gid)
        os.setresuid(self.uid, self.uid, self.uid)


def user_of(order: dict[str, Any]) -> TaskUser | None:
    """As whom a task runs; None: as the agent does, because that is no root or the task is to see all of the node."""
    view = order.get("view")
    if os.getuid() or view is None or view.get("isolation") in UNGUARDED:
        return None
    uid = int(view.get("uid") or FIRST)
    if uid < FIRST:
        raise ValueError(f"{uid} is no number of a platform's user")
    return TaskUser(uid, groups=tuple(sorted(_device_groups(device_nodes(order)[0]))))


def _device_groups(paths: list[str]) -> set[int]:
    found = set()
    for path in paths:
        inner = [f"{path}/{name}" for name in os.listdir(path)] if os.path.isdir(path) else [path]
        for node in map(os.stat, inner):
            if stat.S_ISCHR(node.st_mode) and node.st_gid and node.st_mode & stat.S_IWGRP:
                found.add(node.st_gid)
    return found
