"""TagResources, UntagResources, ListTagResources of ECS and VPC; NAS tags its file systems by the same rules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

from trainyard.emulators.aliyun.api.answers import by_token, read_tags, require_region
from trainyard.emulators.aliyun.api.call import Call, Handler, Value, text, texts
from trainyard.emulators.aliyun.api.problems import Problem, denied, missing, not_found
from trainyard.emulators.aliyun.cloud.records import Tags
from trainyard.emulators.aliyun.cloud.world import World

MOST_RESOURCES = 50
_LIST_PAGE = 50


class Tagged(Protocol):
    """A record that has tags."""

    region: str
    tags: Tags


def _tables(world: World) -> dict[tuple[str, str], dict[str, tuple[str, Tags]]]:
    """Product and resource type → id → its region and its tags."""

    def of(records: Mapping[str, Tagged]) -> dict[str, tuple[str, Tags]]:
        return {name: (one.region, one.tags) for name, one in records.items()}

    return {
        ("ecs", "instance"): of(world.instances),
        ("ecs", "disk"): of(world.disks),
        ("ecs", "snapshot"): of(world.snapshots),
        ("ecs", "image"): of(world.images),
        ("ecs", "securitygroup"): of(world.groups),
        ("ecs", "keypair"): {one.name: (one.region, one.tags) for one in world.key_pairs.values()},
        ("ecs", "eni"): {one.interface: (one.region, one.interface_tags) for one in world.instances.values()},
        ("ecs", "invocation"): of(world.invocations),
        ("vpc", "vpc"): of(world.vpcs),
        ("vpc", "vswitch"): of(world.vswitches),
        ("vpc", "eip"): of(world.eips),
        ("nas", "filesystem"): of(world.file_systems),
    }


def _resources(world: World, call: Call) -> tuple[str, dict[str, Tags]]:
    region, kind = require_region(call), call.required("ResourceType").lower()
    table = _tables(world).get((call.product, kind))
    if table is None:
        raise not_found("InvalidResourceType.NotFound", f"The ResourceType {kind} does not exist.")
    return kind, {name: tags for name, (home, tags) in table.items() if home == region}


def _named(world: World, call: Call) -> list[Tags]:
    ids = call.texts("ResourceId")
    if not ids:
        raise missing("ResourceId")
    if len(ids) > MOST_RESOURCES:
        raise Problem("NumberExceed.ResourceIds", f"At most {MOST_RESOURCES} resources can be given.")
    _, found = _resources(world, call)
    unknown = [one for one in ids if one not in found]
    if unknown:
        raise not_found("InvalidResourceId.NotFound", f"The ResourceIds are not found: {', '.join(unknown)}.")
    return [found[one] for one in ids]


def tag_resources(world: World, call: Call) -> dict[str, Value]:
    """TagResources: adds, and replaces what has the same key."""
    if not call.structs("Tag"):
        raise not_found("MissingParameter.Tags", "Tag is mandatory for this action.")
    tags, targets = read_tags(call.structs("Tag")), _named(world, call)
    most = world.options.quotas.tags
    if any(len({**target, **tags}) > most for target in targets):
        raise denied("QuotaExceed.Tags", f"A resource can have {most} tags.")
    for target in targets:
        target.update(tags)
    return {}


def untag_resources(world: World, call: Call) -> dict[str, Value]:
    """UntagResources: keys that aren't there are passed over."""
    keys = call.texts("TagKey")
    for target in _named(world, call):
        for key in list(target):
            if (call.flag("All") and not keys) or key in keys:
                del target[key]
    return {}


def list_tag_resources(world: World, call: Call) -> dict[str, Value]:
    """ListTagResources: one row for each tag of each resource."""
    kind, found = _resources(world, call)
    ids, wanted = call.texts("ResourceId"), call.structs("Tag")
    filters = {text(one, "TagKey"): texts(one, "TagValues") for one in call.structs("TagFilter")}
    if not ids and not wanted and not filters:
        raise Problem("MissingParameter.TagOwnerUid", "Give ResourceId or Tag.")
    rows = [
        (name, key, value)
        for name, tags in found.items()
        if (not ids or name in ids)
        and all(text(one, "Value") in {"", tags.get(text(one, "Key"))} for one in wanted)
        and all(text(one, "Key") in tags for one in wanted)
        and all(key in tags and (not values or tags[key] in values) for key, values in filters.items())
        for key, value in tags.items()
    ]
    # Tags are always listed by token, fifty to the page.
    paged = replace(call, parameters={"MaxResults": _LIST_PAGE, **call.parameters})
    shown, fields = by_token(
        paged,
        rows,
        lambda row: {"ResourceId": row[0], "ResourceType": kind, "TagKey": row[1], "TagValue": row[2]},
        name=lambda row: f"{row[0]}/{row[1]}",
        most=1000,
        least=_LIST_PAGE,
    )
    return {"TagResources": {"TagResource": shown}, "NextToken": fields["NextToken"]}


ACTIONS: dict[tuple[str, str], Handler] = {
    (product, action): handler
    for product in ("ecs", "vpc", "nas")
    for action, handler in (
        ("TagResources", tag_resources),
        ("UntagResources", untag_resources),
        ("ListTagResources", list_tag_resources),
    )
}
ACTIONS["vpc", "UnTagResources"] = untag_resources  # the product's own spelling
