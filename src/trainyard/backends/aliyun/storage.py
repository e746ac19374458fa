"""Shared storage: the user's own NAS file system, made if missing, with a mount target in the machines' network.

Trainyard never deletes the file system, so files stay until the user does. `mount.sh` mounts it on the machines.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from trainyard.backends.aliyun.access.network import NETWORK_TAGS, serially, until
from trainyard.backends.aliyun.api.client import Client
from trainyard.backends.aliyun.api.errors import is_outcome_unknown
from trainyard.backends.aliyun.api.paging import fetch_all
from trainyard.backends.aliyun.api.wire import Answer, Parameter, rows, text
from trainyard.lib.errors import CapacityError, Error, InvalidError
from trainyard.lib.shell import quote

FOLDER = "/fastgpu"
LINK = "/ncluster"  # the older name of the same folder
STORAGE_TYPES = ("Performance", "Capacity")  # not every zone sells both
SCRIPT = Path(__file__).with_name("mount.sh")


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """A file system, and where machines of one network mount it from."""

    id: str
    domain: str


def storage_name(prefix: str, user: str) -> str:
    """`ncluster-root`, as the family's tools describe it."""
    return f"{prefix}-{user}"


async def ensure_storage(client: Client, name: str, *, zone_id: str, vpc_id: str, vswitch_id: str) -> Storage:
    """The file system of this name with a mount target in this network, made if missing, ready to be mounted."""
    async with serially(client, f"storage {client.region} {name}"):
        system = await _find(client, name) or await _create(client, name, zone_id)
        client.journal.settle(_purpose(client, name), host=client.host("nas"))
        system_id = text(system, "FileSystemId")
        if not _targets(system, vpc_id):
            await _create_target(client, system_id, vpc_id, vswitch_id)
        look = partial(_ready_target, client, name, vpc_id)
        target = await until(client, f"the shared storage {name}", look)
        return Storage(id=system_id, domain=text(target, "MountTargetDomain"))


async def _find(client: Client, name: str) -> Answer | None:
    """The oldest of this name."""
    found = await fetch_all(client, "nas", "DescribeFileSystems", {"FileSystemType": "all"})
    named = [row for row in found if text(row, "Description") == name and text(row, "ProtocolType") == "NFS"]
    return min(named, key=lambda row: (text(row, "CreateTime"), text(row, "FileSystemId")), default=None)


async def _create(client: Client, name: str, zone_id: str) -> Answer:
    for place, kind in enumerate(STORAGE_TYPES):
        parameters: dict[str, Parameter] = {
            "FileSystemType": "standard",
            "ProtocolType": "NFS",
            "StorageType": kind,
            "ZoneId": zone_id,
            "Description": name,
            "Tag": NETWORK_TAGS,
        }
        about = f"the shared storage {name}"
        try:
            await client.create(
                "nas", "CreateFileSystem", parameters, purpose=_purpose(client, name), about=about
            )
            break
        except (CapacityError, InvalidError):
            if place == len(STORAGE_TYPES) - 1:
                raise
    return await until(client, f"the shared storage {name}", partial(_find, client, name))


async def _create_target(client: Client, system_id: str, vpc_id: str, vswitch_id: str) -> None:
    parameters: dict[str, Parameter] = {
        "FileSystemId": system_id,
        "NetworkType": "Vpc",
        "VpcId": vpc_id,
        "VSwitchId": vswitch_id,
        "AccessGroupName": "DEFAULT_VPC_GROUP_NAME",
    }
    try:
        await client.call("nas", "CreateMountTarget", parameters, about=f"the shared storage {system_id}")
    except Error as error:
        if not is_outcome_unknown(error):
            raise
        # It has no token. Either it is there now, and will be found, or the wait for it says that it is not.


def _targets(system: Answer, vpc_id: str) -> list[Answer]:
    return [row for row in rows(system, "MountTargets.MountTarget") if text(row, "VpcId") == vpc_id]


async def _ready_target(client: Client, name: str, vpc_id: str) -> Answer | None:
    system = await _find(client, name)
    targets = _targets(system, vpc_id) if system else []
    return next((row for row in targets if text(row, "Status") == "Active"), None)


def _purpose(client: Client, name: str) -> str:
    return f"storage {client.region} {name}"


def mount_script(storage: Storage) -> str:
    """Return the script that mounts the storage on a machine. It may run again at any time."""
    head = f"domain={quote(storage.domain)}\nfolder={FOLDER}\nlink={LINK}\n"
    return head + SCRIPT.read_text(encoding="utf-8")
