"""Finds the snapshot for a data disk by its id or name."""

from __future__ import annotations

from dataclasses import dataclass

from trainyard.backends.aliyun.api.client import Client
from trainyard.backends.aliyun.api.paging import fetch_all
from trainyard.backends.aliyun.api.wire import Parameter, json_list, number, text
from trainyard.lib.errors import ConflictError, InvalidError, NotFoundError

READY = "accomplished"


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """One snapshot, and how large a disk must be at least."""

    id: str
    gib: int


async def find_snapshot(client: Client, wanted: str, *, gib: int = 0) -> Snapshot:
    """The snapshot of this id, or the newest of this name, for a disk of so many GiB (0: any)."""
    parameters: dict[str, Parameter] = {"SnapshotIds": json_list([wanted])}
    if not wanted.startswith("s-"):
        parameters = {"SnapshotName": wanted}
    found = await fetch_all(client, "ecs", "DescribeSnapshots", parameters)
    exact = [row for row in found if wanted in {text(row, "SnapshotId"), text(row, "SnapshotName")}]
    if not exact:
        raise NotFoundError(
            f"there is no snapshot {wanted} in {client.region}",
            hint="Correct --snapshot: its id or its name.",
        )
    ready = [row for row in exact if text(row, "Status") == READY]
    if not ready:
        raise ConflictError(f"the snapshot {wanted} is not finished yet", hint="Try again later.")
    newest = max(ready, key=lambda row: text(row, "CreationTime"))
    least = int(number(newest, "SourceDiskSize"))
    if 0 < gib < least:
        raise InvalidError(
            f"the snapshot {wanted} needs a disk of {least} GiB, and {gib} were asked for",
            hint=f"Pass --data-disk-size {least} or more, or leave it out.",
        )
    return Snapshot(id=text(newest, "SnapshotId"), gib=least)
