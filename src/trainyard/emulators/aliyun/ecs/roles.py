"""RAM roles of instances: through them a machine may call the cloud itself."""

from __future__ import annotations

from fnmatch import fnmatchcase

from trainyard.emulators.aliyun.api.answers import by_number, json_list, require_region
from trainyard.emulators.aliyun.api.call import Call, Handler, Value
from trainyard.emulators.aliyun.api.problems import not_found
from trainyard.emulators.aliyun.cloud.records import Instance
from trainyard.emulators.aliyun.cloud.world import World

_DONE = ("200", "success")


def attach(world: World, call: Call) -> dict[str, Value]:
    """AttachInstanceRamRole: to instances that have none."""
    role = call.required("RamRoleName")
    if not any(fnmatchcase(role, one) for one in world.options.account.roles):
        raise not_found("InvalidRamRole.NotFound", f"The specified RAM role does not exist: {role}.")

    def give(instance: Instance) -> tuple[str, str]:
        if instance.ram_role:
            return "RamRole.NotEmpty", "The instance has a RAM role already."
        instance.ram_role = role
        return _DONE

    outcomes = {name: give(one) if one else _UNKNOWN for name, one in _named(world, call).items()}
    return _results("Attach", role, outcomes)


def detach(world: World, call: Call) -> dict[str, Value]:
    """DetachInstanceRamRole: the named one, or whichever there is."""
    role = call.text("RamRoleName")

    def take(instance: Instance) -> tuple[str, str]:
        if not instance.ram_role or role not in {"", instance.ram_role}:
            return "InvalidInstanceId.NotAttachedRamRole", "The instance does not have this RAM role."
        instance.ram_role = ""
        return _DONE

    outcomes = {name: take(one) if one else _UNKNOWN for name, one in _named(world, call).items()}
    return _results("Detach", role, outcomes)


_UNKNOWN = ("InvalidInstanceId.NotFound", "The specified InstanceId does not exist.")


def _named(world: World, call: Call) -> dict[str, Instance | None]:
    ids = json_list(call, "InstanceIds") or []
    return {name: world.instances.get(name) for name in ids}


def _results(verb: str, role: str, outcomes: dict[str, tuple[str, str]]) -> dict[str, Value]:
    rows: Value = [
        {"InstanceId": name, "Code": code, "Message": message, "Success": code == "200"}
        for name, (code, message) in outcomes.items()
    ]
    return {
        "TotalCount": len(outcomes),
        "FailCount": sum(code != "200" for code, _ in outcomes.values()),
        "RamRoleName": role,
        f"{verb}InstanceRamRoleResults": {f"{verb}InstanceRamRoleResult": rows},
    }


def describe(world: World, call: Call) -> dict[str, Value]:
    """DescribeInstanceRamRole."""
    region, ids = require_region(call), json_list(call, "InstanceIds")
    rows = [
        one
        for one in world.instances.values()
        if one.region == region
        and (ids is None or one.id in ids)
        and (bool(one.ram_role) if ids is None else True)
        and call.text("RamRoleName") in {"", one.ram_role}
    ]
    shown, fields = by_number(
        call, rows, lambda one: {"InstanceId": one.id, "RamRoleName": one.ram_role}, most=100
    )
    return {
        "InstanceRamRoleSets": {"InstanceRamRoleSet": shown},
        "RegionId": region,
        "TotalCount": fields["TotalCount"],
    }


ACTIONS: dict[tuple[str, str], Handler] = {
    ("ecs", "AttachInstanceRamRole"): attach,
    ("ecs", "DetachInstanceRamRole"): detach,
    ("ecs", "DescribeInstanceRamRole"): describe,
}
