"""Starting, stopping, rebooting and deleting instances, one or a hundred at once."""

from __future__ import annotations

from collections.abc import Callable

from trainyard.emulators.aliyun.api.answers import refuse_dry_run, require_region
from trainyard.emulators.aliyun.api.call import Call, Handler, Value
from trainyard.emulators.aliyun.api.problems import Problem, denied, missing
from trainyard.emulators.aliyun.cloud import stock, timeline
from trainyard.emulators.aliyun.cloud.market import spot_price
from trainyard.emulators.aliyun.cloud.records import Instance
from trainyard.emulators.aliyun.cloud.world import World
from trainyard.emulators.aliyun.ecs.instances import check_lock, find_instance

MOST = 100
Check = Callable[[World, Call, Instance], None]
Act = Callable[[World, Call, Instance], None]


def _wrong_status(instance: Instance) -> Problem:
    return denied(
        "IncorrectInstanceStatus",
        f"The current status of the resource does not support this operation: {instance.id} is {instance.status}.",
    )


def _check_start(world: World, call: Call, instance: Instance) -> None:
    check_lock(world, instance)
    if instance.status != "Stopped" or instance.deleting:
        raise _wrong_status(instance)
    if timeline.RECYCLING in instance.locks:
        raise denied("InstanceNotReady", "The instance is being reclaimed.")
    if world.options.account.balance <= 0:
        raise denied("InsufficientBalance", "Your account does not have enough balance.")
    if instance.stopped_mode != timeline.STOP_CHARGING:
        return
    # Its machine was given back, so it needs one anew, at the price of today.
    if instance.spot_limit is not None and instance.spot_limit < spot_price(
        world, instance.zone, instance.type, call.now
    ):
        raise denied(
            "OperationDenied.SpotPriceLowerThanPublicPrice",
            "The SpotPriceLimit is lower than the public price.",
        )
    stock.within_quota(world, instance.zone, instance.type, spot=instance.is_spot, wanted=1, least=1)
    stock.grant(world, instance.zone, instance.type, spot=instance.is_spot, wanted=1, least=1)


def _start(world: World, call: Call, instance: Instance) -> None:
    timeline.start(world, instance, call.now)


def _check_stop(world: World, call: Call, instance: Instance) -> None:
    del call
    check_lock(world, instance)
    if instance.status != "Running":
        raise _wrong_status(instance)


def _stop(world: World, call: Call, instance: Instance) -> None:
    usual = timeline.STOP_CHARGING if world.options.account.economical else timeline.KEEP_CHARGING
    timeline.stop(world, instance, call.now, call.text("StoppedMode") or usual)


def _reboot(world: World, call: Call, instance: Instance) -> None:
    timeline.reboot(world, instance, call.now)


# --- many at once


def _ids(call: Call) -> list[str]:
    ids = call.texts("InstanceId") or ([call.text("InstanceId")] if call.text("InstanceId") else [])
    if not ids:
        raise missing("InstanceId")
    if len(ids) > MOST:
        raise denied("InvalidInstanceId.Malformed", f"The amount of specified instances exceeds {MOST}.")
    return list(dict.fromkeys(ids))


def _batch(world: World, call: Call, check: Check, act: Act) -> dict[str, Value]:
    """All or none by default; with SuccessFirst each on its own, its refusal inside a success."""
    require_region(call)
    mode = call.text("StoppedMode")
    if mode not in {"", timeline.STOP_CHARGING, timeline.KEEP_CHARGING}:
        raise Problem("InvalidParameter.StoppedMode", f"The specified StoppedMode is not valid: {mode}.")
    ids = _ids(call)
    each = call.text("BatchOptimization", "AllTogether") == "SuccessFirst"
    if call.flag("DryRun"):
        for instance_id in ids:
            check(world, call, find_instance(world, call, instance_id))
        raise Problem("DRYRUN.SUCCESS", "This request is a dry run. The request is valid.")
    if not each:
        _check_together(world, call, ids, check)
    rows: list[Value] = []
    for instance_id in ids:
        try:
            rows.append(_one(world, call, instance_id, check, act))
        except Problem as problem:
            if not each:
                raise
            rows.append({"InstanceId": instance_id, "Code": problem.code, "Message": problem.message})
    return {"InstanceResponses": {"InstanceResponse": rows}}


def _check_together(world: World, call: Call, ids: list[str], check: Check) -> None:
    """Judge all before any is touched: together they must also fit the stock and the quota."""
    found = [find_instance(world, call, one) for one in ids]
    for instance in found:
        check(world, call, instance)
    if check is not _check_start:
        return
    back = [one for one in found if one.stopped_mode == timeline.STOP_CHARGING]
    for zone, kind, spot in {(one.zone, one.type, one.is_spot) for one in back}:
        count = sum((one.zone, one.type, one.is_spot) == (zone, kind, spot) for one in back)
        stock.within_quota(world, zone, kind, spot=spot, wanted=count, least=count)
        stock.grant(world, zone, kind, spot=spot, wanted=count, least=count)


def _one(world: World, call: Call, instance_id: str, check: Check, act: Act) -> Value:
    instance = find_instance(world, call, instance_id)
    before = instance.status
    check(world, call, instance)
    act(world, call, instance)
    return {
        "InstanceId": instance_id,
        "Code": "200",
        "Message": "success",
        "PreviousStatus": before,
        "CurrentStatus": instance.status,
    }


def start_instances(world: World, call: Call) -> dict[str, Value]:
    """StartInstances."""
    return _batch(world, call, _check_start, _start)


def stop_instances(world: World, call: Call) -> dict[str, Value]:
    """StopInstances: an economical stop that the type can't have becomes an ordinary one without a word."""
    return _batch(world, call, _check_stop, _stop)


def reboot_instances(world: World, call: Call) -> dict[str, Value]:
    """RebootInstances."""
    return _batch(world, call, _check_stop, _reboot)


def _single(check: Check, act: Act) -> Handler:
    def handle(world: World, call: Call) -> dict[str, Value]:
        instance = find_instance(world, call, call.required("InstanceId"))
        check(world, call, instance)
        refuse_dry_run(call)
        act(world, call, instance)
        return {}

    return handle


# --- deleting


def _check_delete(call: Call, instance: Instance) -> None:
    if instance.deletion_protection:
        raise denied("InvalidOperation.DeletionProtection", f"{instance.id} is protected against deletion.")
    if instance.charge != "PostPaid" and not call.flag("TerminateSubscription"):
        raise denied("ChargeTypeViolation", "The operation is not permitted due to the charge type.")
    if "security" in instance.locks:
        raise denied("InstanceLockedForSecurity", "The instance is locked due to security.")
    if instance.status == "Pending" or (instance.status == "Starting" and instance.boot == 1):
        raise denied(
            "IncorrectInstanceStatus.Initializing",
            "The specified instance status does not support this operation.",
        )
    allowed = {"Stopped", "Running", "Starting"} if call.flag("Force") else {"Stopped"}
    if instance.status not in allowed or instance.deleting:
        raise _wrong_status(instance)


def delete_instances(world: World, call: Call) -> dict[str, Value]:
    """DeleteInstances: all or none."""
    require_region(call)
    found = [find_instance(world, call, one) for one in _ids(call)]
    for instance in found:
        _check_delete(call, instance)
    refuse_dry_run(call)
    for instance in found:
        timeline.begin_deletion(world, instance, call.now)
    return {}


def delete_instance(world: World, call: Call) -> dict[str, Value]:
    """DeleteInstance."""
    instance = find_instance(world, call, call.required("InstanceId"))
    _check_delete(call, instance)
    refuse_dry_run(call)
    timeline.begin_deletion(world, instance, call.now)
    return {}


ACTIONS: dict[tuple[str, str], Handler] = {
    ("ecs", "StartInstances"): start_instances,
    ("ecs", "StopInstances"): stop_instances,
    ("ecs", "RebootInstances"): reboot_instances,
    ("ecs", "StartInstance"): _single(_check_start, _start),
    ("ecs", "StopInstance"): _single(_check_stop, _stop),
    ("ecs", "RebootInstance"): _single(_check_stop, _reboot),
    ("ecs", "DeleteInstances"): delete_instances,
    ("ecs", "DeleteInstance"): delete_instance,
}
