"""The network of the machines: a VPC, and a vSwitch in each zone that is used. Made if missing.

Names and ranges are those of the family's tools: 192.168.0.0/16, a /20 for each zone, named after the zone's last letter.
`security_groups.py` decides who may reach the machines; `leftover_network.py` finds unused parts.
"""

from __future__ import annotations

import ipaddress
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

from trainyard.backends.aliyun.api.client import Client
from trainyard.backends.aliyun.api.errors import code_of
from trainyard.backends.aliyun.api.paging import fetch_all
from trainyard.backends.aliyun.api.wire import Answer, Parameter, number, tags, text
from trainyard.backends.aliyun.locks import hold
from trainyard.lib.errors import CapacityError, ConflictError, NotFoundError, UnreachableError

T = TypeVar("T")

TAG = "trainyard"  # on everything that we make; what does not have it is never removed
NETWORK_TAGS: Sequence[Parameter] = ({"Key": TAG, "Value": "network"},)
VPC_RANGE = "192.168.0.0/16"
VSWITCH_PREFIX = 20  # 4,092 addresses; sixteen of them fit into the VPC
READY = frozenset({"Available", "Created"})  # the documents name both
POLL_SECONDS = 1.0  # the provider asks for no more
READY_SECONDS = 120.0
RACE_SECONDS = 10.0  # for another computer to see ours and to remove its own


@dataclass(frozen=True, slots=True, kw_only=True)
class Vpc:
    """A private network."""

    id: str
    name: str
    range: str
    status: str
    is_ours: bool = False  # made by us, so `cleanup` may remove it


@dataclass(frozen=True, slots=True, kw_only=True)
class VSwitch:
    """The part of a network that lies in one zone."""

    id: str
    name: str
    vpc_id: str
    zone_id: str
    range: str
    status: str
    free: int  # addresses
    is_ours: bool = False


# -- VPC ----------------------------------------------------------------------------------------------------------------


async def find_vpc(client: Client, name: str) -> Vpc | None:
    """The VPC of this name; the oldest, where two clients made one each."""
    named = await _vpcs_named(client, name)
    return named[0] if named else None


async def _vpcs_named(client: Client, name: str) -> list[Vpc]:
    found = await fetch_all(client, "vpc", "DescribeVpcs", {"VpcName": name})
    named = [row for row in found if text(row, "VpcName") == name]
    return [
        _read_vpc(row)
        for row in sorted(named, key=lambda row: (text(row, "CreationTime"), text(row, "VpcId")))
    ]


async def ensure_vpc(client: Client, name: str) -> Vpc:
    """The VPC of this name, made if missing, ready for use."""
    vpc = await find_vpc(client, name)
    if vpc is not None:
        client.journal.settle(_vpc_purpose(client, name), host=client.host("vpc"))
    if vpc is None or not _is_ready(vpc):
        async with serially(client, f"vpc {client.region} {name}"):
            made = await find_vpc(client, name) or await _create_vpc(client, name)
            if not _is_ready(made):
                look = partial(_vpc_by_id, client, made.id)
                made = await until(client, f"the network {name}", look, is_done=_is_ready)
            return made
    return vpc


def _vpc_purpose(client: Client, name: str) -> str:
    return f"vpc {client.region} {name}"


async def _create_vpc(client: Client, name: str) -> Vpc:
    parameters: dict[str, Parameter] = {"VpcName": name, "CidrBlock": VPC_RANGE, "Tag": NETWORK_TAGS}
    made = await client.create(
        "vpc", "CreateVpc", parameters, purpose=_vpc_purpose(client, name), about=f"the network {name}"
    )
    vpc_id = text(made.answer, "VpcId")
    look = partial(_vpcs_named, client, name)
    await until(
        client, f"the network {name}", look, is_done=lambda named: vpc_id in {vpc.id for vpc in named}
    )
    client.journal.clear(made.token)
    return await settle(client, vpc_id, look, partial(_delete_vpc, client, vpc_id, name))


async def _delete_vpc(client: Client, vpc_id: str, name: str) -> None:
    await client.call("vpc", "DeleteVpc", {"VpcId": vpc_id}, about=f"the network {name}")


async def _vpc_by_id(client: Client, vpc_id: str) -> Vpc | None:
    found = await fetch_all(client, "vpc", "DescribeVpcs", {"VpcId": vpc_id})
    return _read_vpc(found[0]) if found else None


def _read_vpc(row: Answer) -> Vpc:
    return Vpc(
        id=text(row, "VpcId"),
        name=text(row, "VpcName"),
        range=text(row, "CidrBlock") or VPC_RANGE,
        status=text(row, "Status"),
        is_ours=TAG in tags(row),
    )


# -- vSwitches ----------------------------------------------------------------------------------------------------------


async def fetch_vswitches(client: Client, vpc_id: str) -> tuple[VSwitch, ...]:
    """All vSwitches of a VPC, by zone and name."""
    found = await fetch_all(client, "vpc", "DescribeVSwitches", {"VpcId": vpc_id})
    vswitches = [_read_vswitch(row) for row in found]
    return tuple(sorted(vswitches, key=lambda each: (each.zone_id, each.name, each.id)))


async def ensure_vswitch(client: Client, vpc: Vpc, zone_id: str, *, addresses: int = 1) -> VSwitch:
    """A vSwitch in this zone with room for so many machines, made if missing, ready for use.

    One at a time in a VPC, as the provider demands: within this computer by a lock, beyond it by trying again.
    """
    vswitch = _roomiest(await fetch_vswitches(client, vpc.id), zone_id, addresses)
    if vswitch is not None:
        client.journal.settle(_vswitch_purpose(client, vpc, vswitch.name), host=client.host("vpc"))
    if vswitch is None or not _is_ready(vswitch):
        async with serially(client, f"vswitches {client.region} {vpc.id}"):
            there = await fetch_vswitches(client, vpc.id)
            made = _roomiest(there, zone_id, addresses) or await _create_vswitch(client, vpc, zone_id, there)
            if not _is_ready(made):
                look = partial(_vswitch_by_id, client, made.id)
                made = await until(client, f"the vSwitch {made.name}", look, is_done=_is_ready)
            return made
    return vswitch


def _roomiest(vswitches: Iterable[VSwitch], zone_id: str, addresses: int) -> VSwitch | None:
    fitting = [each for each in vswitches if each.zone_id == zone_id and each.free >= addresses]
    return max(fitting, key=lambda each: each.free) if fitting else None


def _vswitch_purpose(client: Client, vpc: Vpc, name: str) -> str:
    return f"vswitch {client.region} {vpc.id} {name}"


async def _create_vswitch(client: Client, vpc: Vpc, zone_id: str, there: Sequence[VSwitch]) -> VSwitch:
    name = f"{vpc.name}-{zone_id[-1]}"
    if same := sum(each.zone_id == zone_id for each in there):
        name += f"-{same + 1}"
    for block in free_ranges(vpc.range, [each.range for each in there]):
        parameters: dict[str, Parameter] = {
            "VpcId": vpc.id,
            "ZoneId": zone_id,
            "CidrBlock": block,
            "VSwitchName": name,
            "Tag": NETWORK_TAGS,
        }
        purpose = _vswitch_purpose(client, vpc, name)
        try:
            made = await client.create(
                "vpc", "CreateVSwitch", parameters, purpose=purpose, about=f"the vSwitch {name}"
            )
        except ConflictError as error:
            if code_of(error) == "InvalidCidrBlock.Overlapped":
                continue  # taken meanwhile, from another computer
            raise
        look = partial(_vswitch_by_id, client, text(made.answer, "VSwitchId"))
        seen = await until(client, f"the vSwitch {name}", look)
        client.journal.clear(made.token)
        return seen
    raise CapacityError(
        f"the network {vpc.name} has no free range of addresses left for a vSwitch in {zone_id}",
        hint="Remove idle vSwitches with `trainyard cleanup`, or name another network with --vpc_name.",
    )


def free_ranges(whole: str, taken: Sequence[str]) -> Iterator[str]:
    """The ranges for a new vSwitch, lowest first: those of the family's tools, clear of all that are taken."""
    network = ipaddress.IPv4Network(whole)
    used = [ipaddress.IPv4Network(each) for each in taken if each]
    # A network smaller than ours is cut into four.
    prefix = max(VSWITCH_PREFIX, network.prefixlen + 2) if network.prefixlen > 18 else VSWITCH_PREFIX
    for block in network.subnets(new_prefix=min(prefix, 29)):
        if not any(block.overlaps(each) for each in used):
            yield str(block)


async def _vswitch_by_id(client: Client, vswitch_id: str) -> VSwitch | None:
    found = await fetch_all(client, "vpc", "DescribeVSwitches", {"VSwitchId": vswitch_id})
    return _read_vswitch(found[0]) if found else None


def _read_vswitch(row: Answer) -> VSwitch:
    return VSwitch(
        id=text(row, "VSwitchId"),
        name=text(row, "VSwitchName"),
        vpc_id=text(row, "VpcId"),
        zone_id=text(row, "ZoneId"),
        range=text(row, "CidrBlock"),
        status=text(row, "Status"),
        free=int(number(row, "AvailableIpAddressCount")),
        is_ours=TAG in tags(row),
    )


# -- waiting ------------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def serially(client: Client, name: str) -> AsyncIterator[None]:
    """One client of this person at a time for this name; what they make is looked for again inside."""
    async with hold(client.folder / "locks", f"{client.host('vpc')} {name}"):
        yield


async def until(
    client: Client,
    what: str,
    look: Callable[[], Awaitable[T | None]],
    *,
    is_done: Callable[[T], bool] = lambda _: True,
) -> T:
    """Look until it is there: what was made shows up in lists a moment later."""
    deadline = client.clock.monotonic() + READY_SECONDS
    while True:
        found = await look()
        if found is not None and is_done(found):
            return found
        if client.clock.monotonic() >= deadline:
            raise UnreachableError(
                f"{what} is not ready after {READY_SECONDS:.0f} s", hint="Run the same command again later."
            )
        await client.clock.sleep(POLL_SECONDS)


class Named(Protocol):
    """Something of which computers may make two under one name."""

    @property
    def id(self) -> str:
        """What tells them apart."""
        ...


N = TypeVar("N", bound=Named)


async def settle(
    client: Client,
    mine: str,
    look: Callable[[], Awaitable[Sequence[N]]],
    remove: Callable[[], Awaitable[None]],
) -> N:
    """Choose one of several things with the same name, sorted by age, for all computers. Remove ours if it loses.

    Ours is listed by now. A client that does not see it has chosen its own, so a client that sees another's gives up
    its own. If both may see each other, the client with the first one waits for the other to give up.
    """
    deadline = client.clock.monotonic() + RACE_SECONDS
    while True:
        there = await look()
        own = next((each for each in there if each.id == mine), None)
        others = [each for each in there if each.id != mine]
        if own is not None and not others:
            return own
        if own is None or there[0].id != mine or client.clock.monotonic() >= deadline:
            break
        await client.clock.sleep(POLL_SECONDS)
    if own is None:
        if others:
            return others[0]
        raise NotFoundError("somebody has removed what was just made", hint="Run the same command again.")
    try:
        await remove()
    except NotFoundError:
        return others[0]
    except ConflictError:  # somebody has put something into it already
        return own
    return others[0]


def _is_ready(thing: Vpc | VSwitch) -> bool:
    return thing.status in READY
