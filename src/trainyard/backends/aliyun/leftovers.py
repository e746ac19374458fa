"""Things that remain when machines are gone, for `trainyard cleanup`: unused network (`leftover_network.py`) and disks."""

from __future__ import annotations

from collections.abc import Sequence

from trainyard.backends.aliyun import leftover_network
from trainyard.backends.aliyun.access.network import TAG
from trainyard.backends.aliyun.api.client import Client
from trainyard.backends.aliyun.api.errors import code_of
from trainyard.backends.aliyun.api.paging import fetch_all
from trainyard.backends.aliyun.api.wire import Parameter, number, rows, text
from trainyard.backends.aliyun.ecs import MACHINE
from trainyard.lib.errors import ConflictError, DeniedError, InvalidError, NotFoundError
from trainyard.spec.plan import Leftover

DISK = "disk"


async def find(client: Client) -> list[Leftover]:
    """Find our unused things in this region; those that cost money come first."""
    tag: Sequence[Parameter] = [{"Key": TAG, "Value": MACHINE}]
    mounted = await _mounted(client)
    disks = await fetch_all(client, "ecs", "DescribeDisks", {"Tag": tag, "Status": "Available"})
    return [
        *(
            Leftover(
                kind=DISK,
                id=text(row, "DiskId"),
                name=text(row, "DiskName") or text(row, "DiskId"),
                place=client.region,
                note=f"{number(row, 'Size')} GiB, costs money",
            )
            for row in disks
        ),
        *(
            Leftover(kind=idle.kind, id=idle.id, name=idle.name, place=idle.region)
            for idle in await leftover_network.find_idle(client)
            if idle.id not in mounted
        ),
    ]


async def _mounted(client: Client) -> set[str]:
    """Networks from which shared storage is mounted: its files are somebody's, so they stay."""
    try:
        systems = await fetch_all(client, "nas", "DescribeFileSystems", {"FileSystemType": "all"})
    except (DeniedError, NotFoundError, InvalidError):
        return set()  # the account has no such service, or we may not look; the provider refuses then
    targets = [row for system in systems for row in rows(system, "MountTargets.MountTarget")]
    return {text(row, key) for row in targets for key in ("VpcId", "VswId")}


async def remove(client: Client, leftovers: Sequence[Leftover]) -> list[Leftover]:
    """Remove the listed things. Returns those that are in use again."""
    kept: list[Leftover] = []
    for disk in (each for each in leftovers if each.kind == DISK):
        try:
            await client.in_region(disk.place).call("ecs", "DeleteDisk", {"DiskId": disk.id}, about=disk.id)
        except NotFoundError:
            continue
        except ConflictError as error:
            if not code_of(error):
                raise
            kept.append(disk)
    network = {each.id: each for each in leftovers if each.kind != DISK}
    idle = [
        leftover_network.Idle(kind=each.kind, id=each.id, name=each.name, region=each.place)
        for each in network.values()
    ]
    return [*kept, *(network[each.id] for each in await leftover_network.remove(client, idle))]
