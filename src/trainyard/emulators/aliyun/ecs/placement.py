"""Deployment sets, and groups that are launched over several zones and types in one call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from trainyard.emulators.aliyun.api.answers import by_number, json_list, require_region, second
from trainyard.emulators.aliyun.api.call import Call, Handler, Value, number, real, struct, text
from trainyard.emulators.aliyun.api.problems import Problem, missing, not_found
from trainyard.emulators.aliyun.cloud.records import DeploymentSet
from trainyard.emulators.aliyun.cloud.world import World
from trainyard.emulators.aliyun.ecs.launch import MOST_INSTANCES, run_instances

_STRATEGIES = frozenset({"Availability", "AvailabilityGroup", "LowLatency"})
# Fields of LaunchConfiguration that RunInstances knows under another name.
_RENAMED = {
    "SystemDiskCategory": "Category",
    "SystemDiskSize": "Size",
    "SystemDiskPerformanceLevel": "PerformanceLevel",
    "SystemDiskName": "DiskName",
    "SystemDiskDescription": "Description",
}


def create_set(world: World, call: Call) -> dict[str, Value]:
    """CreateDeploymentSet."""
    region, strategy = require_region(call), call.text("Strategy", "Availability")
    if strategy not in _STRATEGIES:
        raise Problem("InvalidParameter.Strategy", f"The specified Strategy is not valid: {strategy}.")
    made = DeploymentSet(
        id=world.new_id("ds-", region),
        region=region,
        name=call.text("DeploymentSetName"),
        strategy=strategy,
        created=call.now,
        description=call.text("Description"),
    )
    world.deployment_sets[made.id] = made
    return {"DeploymentSetId": made.id}


def describe_sets(world: World, call: Call) -> dict[str, Value]:
    """DescribeDeploymentSets."""
    region, ids = require_region(call), json_list(call, "DeploymentSetIds")
    rows = [
        one
        for one in world.deployment_sets.values()
        if one.region == region
        and (ids is None or one.id in ids)
        and call.text("DeploymentSetName") in {"", one.name}
        and call.text("Strategy") in {"", one.strategy}
    ]

    def show(one: DeploymentSet) -> Value:
        members = [instance.id for instance in world.instances.values() if instance.deployment_set == one.id]
        return {
            "DeploymentSetId": one.id,
            "DeploymentSetName": one.name,
            "DeploymentSetDescription": one.description,
            "Strategy": one.strategy,
            "DeploymentStrategy": one.strategy,
            "Domain": "default",
            "Granularity": "host",
            "CreationTime": second(one.created),
            "InstanceAmount": len(members),
            "InstanceIds": {"InstanceId": members},
        }

    shown, fields = by_number(call, rows, show)
    return {"DeploymentSets": {"DeploymentSet": shown}, "RegionId": region, **fields}


def delete_set(world: World, call: Call) -> dict[str, Value]:
    """DeleteDeploymentSet: only an empty one."""
    name = call.required("DeploymentSetId")
    if name not in world.deployment_sets:
        raise not_found("InvalidDeploymentSetId.NotFound", "The specified deployment set does not exist.")
    if any(instance.deployment_set == name for instance in world.instances.values()):
        raise Problem("OperationDenied.ResourceNotEmpty", "The deployment set has instances.")
    del world.deployment_sets[name]
    return {}


# --- groups launched at once


def provision(world: World, call: Call) -> dict[str, Value]:
    """CreateAutoProvisioningGroup of the type `instant`: the candidates in turn until the number is reached."""
    region = require_region(call)
    if call.text("AutoProvisioningGroupType", "instant") != "instant":
        raise Problem("InvalidParameter", "Only instant groups are emulated.")
    candidates = call.structs("LaunchTemplateConfig")
    if not candidates:
        raise missing("LaunchTemplateConfig")
    wanted = number(call.parameters, "TotalTargetCapacity")
    spot_share = number(call.parameters, "SpotTargetCapacity")
    plain_share = number(call.parameters, "PayAsYouGoTargetCapacity")
    is_spot = call.text("DefaultTargetCapacityType", "Spot") == "Spot"
    spot_share += (wanted - spot_share - plain_share) if is_spot else 0
    results: list[Value] = []
    ordered = sorted(candidates, key=lambda one: number(one, "Priority"))
    _launch(world, call, ordered, spot_share, spot=True, results=results)
    _launch(world, call, ordered, wanted - spot_share, spot=False, results=results)
    return {
        "AutoProvisioningGroupId": world.new_id("apg-", region),
        "LaunchResults": {"LaunchResult": results},
    }


def _launch(
    world: World,
    call: Call,
    candidates: list[Mapping[str, Value]],
    wanted: int,
    *,
    spot: bool,
    results: list[Value],
) -> None:
    for candidate in candidates:
        if wanted <= 0:
            return
        vswitch = world.vswitches.get(text(candidate, "VSwitchId"))
        row: dict[str, Value] = {
            "InstanceType": text(candidate, "InstanceType"),
            "ZoneId": vswitch.zone if vswitch else "",
            "SpotStrategy": "SpotAsPriceGo" if spot else "NoSpot",
        }
        amount = min(wanted, number(candidate, "MaxQuantity", wanted), MOST_INSTANCES)
        try:
            body = run_instances(world, _as_run(call, candidate, amount, spot=spot))
        except Problem as problem:
            code = "NoInstanceStock" if problem.code == "OperationDenied.NoStock" else problem.code
            results.append({**row, "Amount": 0, "ErrorCode": code, "ErrorMsg": problem.message})
            continue
        ids = struct(body, "InstanceIdSets")["InstanceIdSet"]
        made = len(ids) if isinstance(ids, list) else 0
        wanted -= made
        results.append({**row, "Amount": made, "InstanceIds": {"InstanceId": ids}})


def _as_run(call: Call, candidate: Mapping[str, Value], amount: int, *, spot: bool) -> Call:
    """The RunInstances that one candidate comes to."""
    common = dict(call.struct("LaunchConfiguration"))
    disk = dict(struct(common, "SystemDisk"))
    for old, new in _RENAMED.items():
        if old in common:
            disk[new] = common.pop(old)
    parameters = {
        **common,
        "RegionId": call.region,
        "SystemDisk": disk,
        "InstanceType": text(candidate, "InstanceType"),
        "VSwitchId": text(candidate, "VSwitchId"),
        "Amount": amount,
        "MinAmount": 1,
        "SpotStrategy": "NoSpot",
    }
    if spot:
        limit = real(candidate, "MaxPrice")
        parameters["SpotStrategy"] = "SpotWithPriceLimit" if limit else "SpotAsPriceGo"
        parameters["SpotPriceLimit"] = limit
    return replace(call, action="RunInstances", parameters=parameters)


ACTIONS: dict[tuple[str, str], Handler] = {
    ("ecs", "CreateDeploymentSet"): create_set,
    ("ecs", "DescribeDeploymentSets"): describe_sets,
    ("ecs", "DeleteDeploymentSet"): delete_set,
    ("ecs", "CreateAutoProvisioningGroup"): provision,
}
