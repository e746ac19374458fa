"""Security groups, which decide who may reach the machines. Ours is made if missing and admits nothing by default.

Safer than the family's tools, whose group is open to the world on some ports: ssh is opened to the caller's own address,
services only if asked for. Members of a group reach each other.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

from trainyard.backends.aliyun.access.network import NETWORK_TAGS, TAG, Vpc, serially, settle, until
from trainyard.backends.aliyun.api.client import Client
from trainyard.backends.aliyun.api.paging import batches, fetch_all
from trainyard.backends.aliyun.api.wire import Answer, Parameter, parse_time, rows, tags, text
from trainyard.lib.errors import InvalidError, NotFoundError

SSH_PORT = "22/22"
STALE = timedelta(days=7)
# What the family's tools opened to the whole world; here only if asked for.
SERVICE_PORTS = {"notebook": "8888/8899", "tensorboard": "6006/6016", "redis": "6379/6379"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A security group: who may reach its members."""

    id: str
    name: str
    vpc_id: str
    kind: str = "normal"
    is_ours: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One thing that a security group lets in."""

    id: str
    protocol: str
    ports: str
    source: str  # a range, or the id of another group
    description: str = ""
    created: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Who reaches the members of a group."""

    rules: tuple[Rule, ...]
    is_isolating: bool = False  # members do not reach each other unless a rule says so


def group_name(vpc: Vpc) -> str:
    """Ours, beside the family's own group, which is open to the world on some ports."""
    return f"{vpc.name}-trainyard"


async def find_group(client: Client, vpc: Vpc) -> Group | None:
    """Our group in this VPC; the oldest, where two clients made one each."""
    named = await _groups_named(client, vpc)
    return named[0] if named else None


async def _groups_named(client: Client, vpc: Vpc) -> list[Group]:
    parameters: dict[str, Parameter] = {"VpcId": vpc.id, "SecurityGroupName": group_name(vpc)}
    found = await fetch_all(client, "ecs", "DescribeSecurityGroups", parameters)
    named = [row for row in found if text(row, "SecurityGroupName") == group_name(vpc)]
    return [
        _read_group(row)
        for row in sorted(named, key=lambda row: (text(row, "CreationTime"), text(row, "SecurityGroupId")))
    ]


async def ensure_group(client: Client, vpc: Vpc) -> Group:
    """Our security group, made if missing. From outside nothing is open in it yet; see `ensure_access`."""
    group = await find_group(client, vpc)
    if group is not None:
        client.journal.settle(_group_purpose(client, vpc), host=client.host("ecs"))
    else:
        async with serially(client, f"group {client.region} {vpc.id}"):
            group = await find_group(client, vpc) or await _create_group(client, vpc)
    return group


def _group_purpose(client: Client, vpc: Vpc) -> str:
    return f"group {client.region} {vpc.id} {group_name(vpc)}"


async def _create_group(client: Client, vpc: Vpc) -> Group:
    name = group_name(vpc)
    parameters: dict[str, Parameter] = {
        "VpcId": vpc.id,
        "SecurityGroupName": name,
        "SecurityGroupType": "normal",
        "Tag": NETWORK_TAGS,
    }
    purpose = _group_purpose(client, vpc)
    made = await client.create(
        "ecs", "CreateSecurityGroup", parameters, purpose=purpose, about=f"the security group {name}"
    )
    group_id = text(made.answer, "SecurityGroupId")
    look = partial(_groups_named, client, vpc)
    await until(
        client,
        f"the security group {name}",
        look,
        is_done=lambda named: group_id in {group.id for group in named},
    )
    client.journal.clear(made.token)
    # Members of two groups would not reach each other.
    return await settle(client, group_id, look, partial(_delete_group, client, group_id, name))


async def _delete_group(client: Client, group_id: str, name: str) -> None:
    await client.call(
        "ecs", "DeleteSecurityGroup", {"SecurityGroupId": group_id}, about=f"the security group {name}"
    )


async def fetch_access(client: Client, group: Group) -> Access:
    """What the group lets in, and whether its members may talk to each other."""
    parameters: dict[str, Parameter] = {
        "SecurityGroupId": group.id,
        "NicType": "intranet",
        "Direction": "ingress",
        "MaxResults": 1000,
    }
    answer = await client.call("ecs", "DescribeSecurityGroupAttribute", parameters)
    # A group has some two hundred rules at most, so one page holds them.
    found = rows(answer, "Permissions.Permission")
    rules = tuple(
        Rule(
            id=text(row, "SecurityGroupRuleId"),
            protocol=text(row, "IpProtocol").upper(),
            ports=text(row, "PortRange"),
            source=_shown_source(row),
            description=text(row, "Description"),
            created=parse_time(text(row, "CreateTime")),
        )
        for row in found
        if text(row, "Policy").lower() != "drop"
    )
    is_isolating = group.kind == "enterprise" or text(answer, "InnerAccessPolicy").lower() == "drop"
    return Access(rules=rules, is_isolating=is_isolating)


async def fetch_rules(client: Client, group: Group) -> tuple[Rule, ...]:
    """What the group lets in."""
    return (await fetch_access(client, group)).rules


async def ensure_access(
    client: Client, vpc: Vpc, group: Group, ranges: Sequence[str] = (), *, owner: str = ""
) -> None:
    """Let members reach each other, on any port as NCCL and MPI choose theirs, and these ranges reach ssh.

    `owner` (user@computer) is written on the rule. When it comes from a new address, its rules of more than a week ago go:
    somebody else may have those addresses by now, and a group has room for some two hundred.
    """
    access = await fetch_access(client, group)
    ssh = [rule for rule in access.rules if rule.ports == SSH_PORT and rule.protocol in {"TCP", "ALL"}]
    missing = [each for each in map(checked_range, ranges) if each not in {rule.source for rule in ssh}]
    if missing:
        label = rule_label(owner)
        old = [
            rule for rule in ssh if owner and rule.description == label and _is_old(rule, client.clock.now())
        ]
        await revoke(client, group, old)
        await admit(client, group, missing, description=label)
    inside = {rule.source for rule in access.rules if rule.protocol == "ALL"}
    if access.is_isolating and vpc.range not in inside:
        await admit(client, group, [vpc.range], ports={"all": "-1/-1"}, protocol="ALL")


def rule_label(owner: str) -> str:
    """What is written on a rule, so that people know whose it is."""
    return f"trainyard {owner}".strip()[:512]


def _is_old(rule: Rule, now: datetime) -> bool:
    return rule.created is not None and now - rule.created > STALE


async def revoke(client: Client, group: Group, rules: Sequence[Rule]) -> None:
    """Remove rules. It is no error if one is gone already."""
    ids = [rule.id for rule in rules if rule.id]
    for batch in batches(ids):
        parameters: dict[str, Parameter] = {"SecurityGroupId": group.id, "SecurityGroupRuleId": batch}
        try:
            await client.call(
                "ecs", "RevokeSecurityGroup", parameters, about=f"the security group {group.name}"
            )
        except NotFoundError:
            continue


async def admit(
    client: Client,
    group: Group,
    ranges: Sequence[str],
    *,
    ports: Mapping[str, str] | None = None,
    protocol: str = "TCP",
    description: str = "trainyard",
) -> None:
    """Admit these ranges to ssh, or to the ports that are named. May be repeated."""
    permissions: list[Parameter] = [
        {
            "IpProtocol": protocol,
            "PortRange": port,
            "Policy": "accept",
            "Priority": "1",
            _source_key(each): each,
            "Description": description,
        }
        for each in map(checked_range, ranges)
        for port in (ports or {"ssh": SSH_PORT}).values()
    ]
    for batch in batches(permissions):
        parameters: dict[str, Parameter] = {"SecurityGroupId": group.id, "Permissions": batch}
        await client.call(
            "ecs", "AuthorizeSecurityGroup", parameters, about=f"the security group {group.name}"
        )


def _shown_source(row: Answer) -> str:
    """A single address is shown without its mask."""
    block = text(row, "SourceCidrIp") or text(row, "Ipv6SourceCidrIp")
    try:
        return str(ipaddress.ip_network(block, strict=False))
    except ValueError:  # another group, a prefix list
        return block or text(row, "SourceGroupId")


def checked_range(given: str) -> str:
    """`1.2.3.4` → `1.2.3.4/32`; InvalidError for what is no range, and for one with bits below its mask."""
    try:
        return str(ipaddress.ip_network(given.strip()))
    except ValueError as error:
        raise InvalidError(
            f"{given!r} is not an address or a range of addresses",
            hint="Write it like 203.0.113.7 or 203.0.113.0/24.",
        ) from error


def _source_key(block: str) -> str:
    return "Ipv6SourceCidrIp" if ":" in block else "SourceCidrIp"


async def fetch_groups(client: Client, *, vpc_id: str = "", only_ours: bool = True) -> tuple[Group, ...]:
    """The security groups of the region, or of one VPC; those that we made unless all are asked for."""
    parameters: dict[str, Parameter] = {"VpcId": vpc_id or None}
    if only_ours:
        parameters["Tag"] = NETWORK_TAGS
    return tuple(
        _read_group(row) for row in await fetch_all(client, "ecs", "DescribeSecurityGroups", parameters)
    )


def _read_group(row: Answer) -> Group:
    return Group(
        id=text(row, "SecurityGroupId"),
        name=text(row, "SecurityGroupName"),
        vpc_id=text(row, "VpcId"),
        kind=text(row, "SecurityGroupType") or "normal",
        is_ours=TAG in tags(row),
    )
