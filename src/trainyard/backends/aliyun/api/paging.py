"""Fetches all pages of a list, and splits ids into batches, because the provider never returns all rows at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from trainyard.backends.aliyun.api.client import Client
from trainyard.backends.aliyun.api.errors import code_of
from trainyard.backends.aliyun.api.wire import Answer, Parameter, json_list, rows, text
from trainyard.lib.errors import Error, UnreachableError

T = TypeVar("T")

BATCH = 100  # ids in one call, at most
MOST_PAGES = 1000  # a list that does not end is the provider's mistake, and not waited for


@dataclass(frozen=True, slots=True)
class Listing:
    """How one action lists: where its rows are, how many fit on a page, and by what the next page is asked for."""

    rows: str
    key: str  # what tells one row from another
    size: int
    by_token: bool = True


LISTINGS = {
    ("ecs", "DescribeInstances"): Listing("Instances.Instance", "InstanceId", 100),
    ("ecs", "DescribeSecurityGroups"): Listing("SecurityGroups.SecurityGroup", "SecurityGroupId", 100),
    ("ecs", "DescribeDisks"): Listing("Disks.Disk", "DiskId", 500),
    ("ecs", "DescribeInstanceTypes"): Listing("InstanceTypes.InstanceType", "InstanceTypeId", 1600),
    ("ecs", "DescribeInvocationResults"): Listing(
        "Invocation.InvocationResults.InvocationResult", "InstanceId", 50
    ),
    ("ecs", "DescribeNetworkInterfaces"): Listing(
        "NetworkInterfaceSets.NetworkInterfaceSet", "NetworkInterfaceId", 100
    ),
    ("ecs", "DescribeImages"): Listing("Images.Image", "ImageId", 100, by_token=False),
    ("ecs", "DescribeSnapshots"): Listing("Snapshots.Snapshot", "SnapshotId", 100, by_token=False),
    ("ecs", "DescribeKeyPairs"): Listing("KeyPairs.KeyPair", "KeyPairName", 50, by_token=False),
    ("ecs", "DescribeInstanceStatus"): Listing(
        "InstanceStatuses.InstanceStatus", "InstanceId", 50, by_token=False
    ),
    ("vpc", "DescribeVpcs"): Listing("Vpcs.Vpc", "VpcId", 50, by_token=False),
    ("vpc", "DescribeVSwitches"): Listing("VSwitches.VSwitch", "VSwitchId", 50, by_token=False),
    ("vpc", "DescribeEipAddresses"): Listing("EipAddresses.EipAddress", "AllocationId", 50, by_token=False),
    ("nas", "DescribeFileSystems"): Listing("FileSystems.FileSystem", "FileSystemId", 100, by_token=False),
    ("nas", "DescribeMountTargets"): Listing(
        "MountTargets.MountTarget", "MountTargetDomain", 100, by_token=False
    ),
}


async def fetch_all(
    client: Client, product: str, action: str, parameters: Mapping[str, Parameter] | None = None
) -> list[Answer]:
    """Every row of a list, over all its pages, each once though rows move while we read."""
    listing = LISTINGS[product, action]
    found: dict[str, Answer] = {}
    mark = ""
    for page in range(1, MOST_PAGES + 1):
        paging: dict[str, Parameter] = (
            {"MaxResults": listing.size, "NextToken": mark or None}
            if listing.by_token
            else {"PageSize": listing.size, "PageNumber": page}
        )
        answer = await client.call(product, action, {**(parameters or {}), **paging})
        new = rows(answer, listing.rows)
        for row in new:
            found[text(row, listing.key) or f"#{len(found)}"] = (
                row  # the later sight of it is the fresher one
            )
        next_mark = text(answer, "NextToken") or text(answer, f"{listing.rows.partition('.')[0]}.NextToken")
        is_last = not next_mark or next_mark == mark if listing.by_token else len(new) < listing.size
        if is_last:
            return list(found.values())
        mark = next_mark
    raise UnreachableError(f"{action} does not come to an end", hint="Try again later.")


async def fetch_by_ids(
    client: Client,
    product: str,
    action: str,
    ids: Sequence[str],
    *,
    parameter: str = "InstanceIds",
    parameters: Mapping[str, Parameter] | None = None,
) -> list[Answer]:
    """The rows of these ids, a hundred a call. No ids, no call: an empty filter would mean something else."""
    found: list[Answer] = []
    for batch in batches(ids):
        found += await fetch_all(client, product, action, {**(parameters or {}), parameter: json_list(batch)})
    return found


def batches(items: Sequence[T], size: int = BATCH) -> Iterator[Sequence[T]]:
    """In order, `size` at a time."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


async def check_list_permission(
    client: Client, product: str = "ecs", action: str = "DescribeInstances"
) -> None:
    """Tell an empty list from a forbidden one: without the right the provider shows nothing and says nothing.

    Call it when a list came back empty and that matters; raises DeniedError where the right is missing.
    """
    try:
        await client.call(product, action, {"DryRun": True})
    except Error as error:
        if code_of(error) not in {"DryRunOperation", "DRYRUN.SUCCESS"}:
            raise
