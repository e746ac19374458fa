"""Security groups and their rules. A rule that is there already is granted again without a word."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from datetime import datetime

from trainyard.emulators.aliyun.api.answers import (
    by_token,
    ecs_tags,
    has_tags,
    json_list,
    minute,
    read_tags,
    refuse_dry_run,
    require_limit,
    require_region,
    second,
)
from trainyard.emulators.aliyun.api.call import Call, Handler, Value, text
from trainyard.emulators.aliyun.api.problems import Problem, denied, missing, not_found
from trainyard.emulators.aliyun.cloud.records import Group, Instance, Rule
from trainyard.emulators.aliyun.cloud.world import World

MOST_RULES_A_CALL = 100
_MOST_GROUPS = 5  # an instance can be in so many
_NAME = re.compile(r"[^\W\d_][\w:.\-]{1,127}")
_PROTOCOLS = {"tcp": "TCP", "udp": "UDP", "icmp": "ICMP", "icmpv6": "ICMPv6", "gre": "GRE", "all": "ALL"}
_FIELDS = (
    "IpProtocol PortRange SourceCidrIp SourceGroupId SourcePortRange DestCidrIp DestGroupId Ipv6SourceCidrIp "
    "Ipv6DestCidrIp Policy Priority NicType Description"
)


def create_group(world: World, call: Call) -> dict[str, Value]:
    """CreateSecurityGroup."""
    region = require_region(call)
    name, kind = call.text("SecurityGroupName"), call.text("SecurityGroupType", "normal")
    vpc = world.vpcs.get(call.required("VpcId"))  # groups of the classic network are no more
    if name and (not _NAME.fullmatch(name) or name.startswith(("http://", "https://"))):
        raise Problem(
            "InvalidSecurityGroupName.Malformed", f"The security group name is not valid: {name!r}."
        )
    if vpc is None or vpc.region != region:
        raise not_found("InvalidVpcId.NotFound", "Specified VPC does not exist.")
    if vpc.status != "Available":
        raise Problem("IncorrectVpcStatus", "Current VPC status does not support this operation.")
    if kind not in {"normal", "enterprise"}:
        raise Problem("InvalidParameter", f"The specified SecurityGroupType is not valid: {kind}.")
    used = sum(group.region == region for group in world.groups.values())
    require_limit(
        used,
        world.options.quotas.groups,
        "QuotaExceed.SecurityGroup",
        "The maximum number of groups is reached.",
    )
    tags = read_tags(call.structs("Tag"))
    group = Group(
        id=world.new_id("sg-", region),
        region=region,
        vpc=vpc.id,
        name=name,
        created=call.now,
        description=call.text("Description"),
        kind=kind,
        inner_access="Accept" if kind == "normal" else "Drop",
        tags=tags,
    )
    world.groups[group.id] = group
    return {"SecurityGroupId": group.id}


def find_group(world: World, call: Call) -> Group:
    """The group that a call names."""
    group = world.groups.get(call.required("SecurityGroupId"))
    if group is None or group.region != require_region(call):
        raise not_found("InvalidSecurityGroupId.NotFound", "The specified SecurityGroupId does not exist.")
    return group


def _members(world: World, group: Group) -> int:
    return sum(group.id in instance.groups for instance in world.instances.values())


def describe_groups(world: World, call: Call) -> dict[str, Value]:
    """DescribeSecurityGroups."""
    region, ids = require_region(call), json_list(call, "SecurityGroupIds")
    refuse_dry_run(call)
    name, fuzzy = call.text("SecurityGroupName"), call.flag("FuzzyQuery")
    rows = [
        group
        for group in world.groups.values()
        if group.region == region
        and (ids is None or group.id in ids)
        and call.text("SecurityGroupId") in {"", group.id}
        and call.text("VpcId") in {"", group.vpc}
        and call.text("SecurityGroupType") in {"", group.kind}
        and (not name or name == group.name or (fuzzy and name.strip("*") in group.name))
        and has_tags(group.tags, call.structs("Tag"))
    ]

    def show(group: Group) -> Value:
        return {
            "SecurityGroupId": group.id,
            "SecurityGroupName": group.name,
            "SecurityGroupType": group.kind,
            "Description": group.description,
            "VpcId": group.vpc,
            "CreationTime": minute(group.created),
            "EcsCount": _members(world, group),
            "AvailableInstanceAmount": world.options.quotas.group_members - _members(world, group),
            "RuleCount": len(group.rules),
            "ResourceGroupId": "",
            "ServiceManaged": False,
            "Tags": ecs_tags(group.tags),
        }

    shown, fields = by_token(call, rows, show, name=lambda group: group.id, most=100)
    return {"SecurityGroups": {"SecurityGroup": shown}, "RegionId": region, **fields}


def describe_group(world: World, call: Call) -> dict[str, Value]:
    """DescribeSecurityGroupAttribute: the rules."""
    group = find_group(world, call)
    direction, nic = call.text("Direction", "all"), call.text("NicType", "intranet")
    rows = [
        rule
        for rule in group.rules
        if direction in {"all", rule.direction} and nic in {"", "intranet", rule.nic}
    ]
    if call.given("MaxResults") or call.given("NextToken"):
        shown, fields = by_token(call, rows, _show_rule, name=lambda rule: rule.id, most=1000)
    else:
        shown, fields = [_show_rule(rule) for rule in rows], {"NextToken": ""}
    return {
        "SecurityGroupId": group.id,
        "SecurityGroupName": group.name,
        "Description": group.description,
        "RegionId": group.region,
        "VpcId": group.vpc,
        "InnerAccessPolicy": group.inner_access,
        "Permissions": {"Permission": shown},
        "NextToken": fields["NextToken"],
    }


def _show_rule(rule: Rule) -> Value:
    return {
        "SecurityGroupRuleId": rule.id,
        "Direction": rule.direction,
        "IpProtocol": rule.protocol,
        "PortRange": rule.ports,
        "SourcePortRange": rule.source_ports,
        "SourceCidrIp": rule.source_cidr,
        "SourceGroupId": rule.source_group,
        "SourceGroupName": "",
        "SourceGroupOwnerAccount": "",
        "DestCidrIp": rule.dest_cidr,
        "DestGroupId": rule.dest_group,
        "DestGroupName": "",
        "DestGroupOwnerAccount": "",
        "Ipv6SourceCidrIp": rule.ipv6_source,
        "Ipv6DestCidrIp": rule.ipv6_dest,
        "Policy": rule.policy,
        "Priority": str(rule.priority),
        "NicType": rule.nic,
        "Description": rule.description,
        "CreateTime": second(rule.created),
    }


# --- rules


def _requested(call: Call) -> list[Mapping[str, Value]]:
    """The rules of a call: a list, or the flat parameters of older callers."""
    rules = call.structs("Permissions")
    flat = {name: call.parameters[name] for name in _FIELDS.split() if call.given(name)}
    if not rules and not flat:
        raise missing("Permissions")
    if len(rules) > MOST_RULES_A_CALL:
        raise Problem("InvalidParameter", f"At most {MOST_RULES_A_CALL} rules can be given in one call.")
    return rules or [flat]


def _read_rule(world: World, given: Mapping[str, Value], direction: str, now: datetime) -> Rule:
    protocol = _PROTOCOLS.get(text(given, "IpProtocol").lower())
    if protocol is None:
        code = "InvalidIpProtocol.ValueNotSupported" if text(given, "IpProtocol") else "MissingParameter"
        raise Problem(code, "The parameter IpProtocol must be one of tcp, udp, icmp, gre or all.")
    policy, nic = text(given, "Policy", "accept").capitalize(), text(given, "NicType", "intranet")
    priority = text(given, "Priority", "1")
    if policy not in {"Accept", "Drop"}:
        raise Problem("InvalidPolicy.Malformed", "The specified parameter Policy is not valid.")
    if not priority.isdigit() or not 1 <= int(priority) <= 100:
        raise Problem(
            "InvalidPriority.ValueNotSupported", "The parameter Priority must lie between 1 and 100."
        )
    if nic not in {"intranet", "internet"}:
        raise Problem("InvalidNicType.ValueNotSupported", "The specified NicType does not exist.")
    rule = Rule(
        id="",
        direction=direction,
        protocol=protocol,
        ports=_ports(protocol, text(given, "PortRange")),
        source_cidr=_cidr(text(given, "SourceCidrIp"), "SourceCidrIp"),
        source_group=text(given, "SourceGroupId"),
        source_ports=text(given, "SourcePortRange"),
        dest_cidr=_cidr(text(given, "DestCidrIp"), "DestCidrIp"),
        dest_group=text(given, "DestGroupId"),
        ipv6_source=text(given, "Ipv6SourceCidrIp"),
        ipv6_dest=text(given, "Ipv6DestCidrIp"),
        policy=policy,
        priority=int(priority),
        description=text(given, "Description"),
        created=now,
    )
    _check_ends(world, rule)
    return rule


def _check_ends(world: World, rule: Rule) -> None:
    if rule.direction == "ingress" and not (rule.source_cidr or rule.source_group or rule.ipv6_source):
        raise Problem(
            "MissingParameter.Source", "One of SourceCidrIp, Ipv6SourceCidrIp and SourceGroupId is needed."
        )
    if rule.direction == "egress" and not (rule.dest_cidr or rule.dest_group or rule.ipv6_dest):
        raise Problem("MissingParameter.Dest", "One of DestCidrIp, Ipv6DestCidrIp and DestGroupId is needed.")
    for other, code in (
        (rule.source_group, "InvalidSourceGroupId.NotFound"),
        (rule.dest_group, "InvalidDestGroupId.NotFound"),
    ):
        if other and other not in world.groups:
            raise not_found(code, f"There is no security group {other}.")


def _ports(protocol: str, given: str) -> str:
    if protocol in {"ICMP", "ICMPv6", "GRE", "ALL"}:
        if given not in {"", "-1/-1"}:
            raise Problem("InvalidIpPortRange.Malformed", f"{protocol} has no ports: -1/-1.")
        return "-1/-1"
    match = re.fullmatch(r"(\d{1,5})/(\d{1,5})", given)
    if not match or not 1 <= int(match[1]) <= int(match[2]) <= 65535:
        raise Problem("InvalidIpPortRange.Malformed", f"The specified PortRange is not valid: {given!r}.")
    return given


def _cidr(given: str, name: str) -> str:
    """A range, kept as it was given: the documents' own example has bits below its mask."""
    if given:
        try:
            ipaddress.IPv4Network(given, strict=False)
        except ValueError as error:
            raise Problem(
                f"Invalid{name}.Malformed", f"The specified {name} is not valid: {given}."
            ) from error
    return given


def _authorize(world: World, call: Call, direction: str) -> dict[str, Value]:
    group = find_group(world, call)
    wanted = [_read_rule(world, one, direction, call.now) for one in _requested(call)]
    present = {rule.identity() for rule in group.rules}
    fresh = {rule.identity(): rule for rule in wanted if rule.identity() not in present}
    if len(group.rules) + len(fresh) > world.options.quotas.rules:
        raise denied("AuthorizationLimitExceed", "The limit of authorization records is exceeded.")
    for rule in fresh.values():
        rule.id = world.new_id("sgr-", group.region)
        group.rules.append(rule)
    return {}


def _revoke(world: World, call: Call, direction: str) -> dict[str, Value]:
    """Take rules away; what is not there counts as done, as the provider has it for rules given by content."""
    group = find_group(world, call)
    ids = call.texts("SecurityGroupRuleId")
    if ids:
        known = {rule.id for rule in group.rules}
        if not set(ids) <= known:
            raise denied("InvalidGroupAuthItem.NotFound", "The specified rule does not exist.")
        group.rules = [rule for rule in group.rules if rule.id not in ids]
        return {}
    gone = {_read_rule(world, one, direction, call.now).identity() for one in _requested(call)}
    group.rules = [rule for rule in group.rules if rule.identity() not in gone]
    return {}


def authorize(world: World, call: Call) -> dict[str, Value]:
    """AuthorizeSecurityGroup."""
    return _authorize(world, call, "ingress")


def authorize_egress(world: World, call: Call) -> dict[str, Value]:
    """AuthorizeSecurityGroupEgress."""
    return _authorize(world, call, "egress")


def revoke(world: World, call: Call) -> dict[str, Value]:
    """RevokeSecurityGroup."""
    return _revoke(world, call, "ingress")


def revoke_egress(world: World, call: Call) -> dict[str, Value]:
    """RevokeSecurityGroupEgress."""
    return _revoke(world, call, "egress")


def modify_group(world: World, call: Call) -> dict[str, Value]:
    """ModifySecurityGroupAttribute: the name and the description."""
    group = find_group(world, call)
    group.name = call.text("SecurityGroupName", group.name)
    group.description = call.text("Description", group.description)
    return {}


def modify_policy(world: World, call: Call) -> dict[str, Value]:
    """ModifySecurityGroupPolicy: whether members of a group reach each other."""
    group, policy = find_group(world, call), call.required("InnerAccessPolicy").capitalize()
    if policy not in {"Accept", "Drop"}:
        raise Problem("InvalidPolicy.Malformed", "The specified InnerAccessPolicy is not valid.")
    if group.kind == "enterprise" and policy == "Accept":
        raise denied(
            "InvalidOperation.EnterpriseGroup", "Members of an enterprise group are always isolated."
        )
    group.inner_access = policy
    return {}


def modify_rule(world: World, call: Call) -> dict[str, Value]:
    """ModifySecurityGroupRule: what isn't named stays."""
    group, rule_id = find_group(world, call), call.required("SecurityGroupRuleId")
    old = next((rule for rule in group.rules if rule.id == rule_id), None)
    if old is None:
        raise denied("InvalidGroupAuthItem.NotFound", "The specified rule does not exist.")
    given = {
        "IpProtocol": old.protocol,
        "PortRange": old.ports,
        "SourceCidrIp": old.source_cidr,
        "SourceGroupId": old.source_group,
        "SourcePortRange": old.source_ports,
        "DestCidrIp": old.dest_cidr,
        "Ipv6SourceCidrIp": old.ipv6_source,
        "Ipv6DestCidrIp": old.ipv6_dest,
        "Policy": old.policy,
        "Priority": str(old.priority),
        "Description": old.description,
    }
    new = _read_rule(world, {**given, **call.parameters}, old.direction, old.created)
    new.id = old.id
    if any(rule.identity() == new.identity() for rule in group.rules if rule.id != old.id):
        raise denied("InvalidSecurityGroupRule.RuleRepeat", "The security group has this rule already.")
    group.rules[group.rules.index(old)] = new
    return {}


def _member(world: World, call: Call) -> Instance:
    instance = world.instances.get(call.required("InstanceId"))
    if instance is None or instance.deleting:
        raise not_found("InvalidInstanceId.NotFound", "The specified InstanceId does not exist.")
    if instance.status not in {"Running", "Stopped"}:
        raise denied("IncorrectInstanceStatus", "The current status of the resource does not support this.")
    return instance


def join_group(world: World, call: Call) -> dict[str, Value]:
    """JoinSecurityGroup."""
    group, instance = world.groups.get(call.required("SecurityGroupId")), _member(world, call)
    if group is None or group.vpc != instance.vpc:
        raise not_found("InvalidSecurityGroupId.NotFound", "The specified SecurityGroupId does not exist.")
    if group.id in instance.groups:
        raise denied("InvalidInstanceId.AlreadyExists", "The instance is in the security group already.")
    if len(instance.groups) >= _MOST_GROUPS:
        raise denied(
            "InstanceSecurityGroupLimitExceeded", f"An instance is in {_MOST_GROUPS} groups at most."
        )
    if _members(world, group) >= world.options.quotas.group_members:
        raise denied("SecurityGroupInstanceLimitExceed", "The security group has as many members as it can.")
    instance.groups = [*instance.groups, group.id]
    return {}


def leave_group(world: World, call: Call) -> dict[str, Value]:
    """LeaveSecurityGroup: one group must be left."""
    group, instance = call.required("SecurityGroupId"), _member(world, call)
    if group not in instance.groups:
        raise denied("InstanceNotInSecurityGroup", "The instance is not in the security group.")
    if len(instance.groups) == 1:
        raise denied("InstanceLastSecurityGroup", "The instance would be in no security group.")
    instance.groups = [one for one in instance.groups if one != group]
    return {}


def describe_references(world: World, call: Call) -> dict[str, Value]:
    """DescribeSecurityGroupReferences: which groups' rules name the given ones."""
    require_region(call)
    rows: list[Value] = []
    for wanted in call.texts("SecurityGroupId"):
        naming: list[Value] = [
            {"AliUid": call.account, "SecurityGroupId": other.id}
            for other in world.groups.values()
            if any(wanted in {rule.source_group, rule.dest_group} for rule in other.rules)
        ]
        if naming:
            rows.append(
                {
                    "SecurityGroupId": wanted,
                    "ReferencingSecurityGroups": {"ReferencingSecurityGroup": naming},
                }
            )
    return {"SecurityGroupReferences": {"SecurityGroupReference": rows}}


def delete_group(world: World, call: Call) -> dict[str, Value]:
    """DeleteSecurityGroup: refused while it has members or another group names it."""
    group = find_group(world, call)
    if _members(world, group):
        raise denied("DependencyViolation", "There is still instance(s) in the specified security group.")
    for other in world.groups.values():
        named = {end for rule in other.rules for end in (rule.source_group, rule.dest_group)}
        if other.id != group.id and group.id in named:
            raise denied("DependencyViolation", f"The security group is named by rules of {other.id}.")
    del world.groups[group.id]
    return {}


ACTIONS: dict[tuple[str, str], Handler] = {
    ("ecs", "CreateSecurityGroup"): create_group,
    ("ecs", "DescribeSecurityGroups"): describe_groups,
    ("ecs", "DescribeSecurityGroupAttribute"): describe_group,
    ("ecs", "AuthorizeSecurityGroup"): authorize,
    ("ecs", "AuthorizeSecurityGroupEgress"): authorize_egress,
    ("ecs", "RevokeSecurityGroup"): revoke,
    ("ecs", "RevokeSecurityGroupEgress"): revoke_egress,
    ("ecs", "ModifySecurityGroupAttribute"): modify_group,
    ("ecs", "ModifySecurityGroupPolicy"): modify_policy,
    ("ecs", "ModifySecurityGroupRule"): modify_rule,
    ("ecs", "JoinSecurityGroup"): join_group,
    ("ecs", "LeaveSecurityGroup"): leave_group,
    ("ecs", "DescribeSecurityGroupReferences"): describe_references,
    ("ecs", "DeleteSecurityGroup"): delete_group,
}
