"""Changes that happen as time passes, and the state changes of instances that actions and time share.

`advance` applies everything that is due, in order of time, however long ago the last call was. Nothing here reads a
clock. What a caller may ask for is judged by the actions before they come here.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

from trainyard.emulators.aliyun.cloud import ledger
from trainyard.emulators.aliyun.cloud.catalogue import TYPES
from trainyard.emulators.aliyun.cloud.cloud_state import CloudState
from trainyard.emulators.aliyun.cloud.market import next_hour, spot_price
from trainyard.emulators.aliyun.cloud.records import FileSystem, Instance, Invocation, SystemEvent
from trainyard.emulators.aliyun.cloud.stock import holds

RECYCLING = "Recycling"
STOP_CHARGING, KEEP_CHARGING, NOT_APPLICABLE = "StopCharging", "KeepCharging", "Not-applicable"
UNDELIVERED = frozenset({"Pending", "Scheduled"})  # an invocation that has not reached its instance

# What a thing that has one step to go becomes.
_SETTLED = {
    "disks": {"Creating": "Available", "Attaching": "In_use", "Detaching": "Available"},
    "snapshots": {"progressing": "accomplished"},
    "images": {"Creating": "Available"},
    "vpcs": {"Pending": "Available"},
    "vswitches": {"Pending": "Available"},
    "eips": {"Associating": "InUse", "Unassociating": "Available"},
}


def advance(cloud_state: CloudState, now: datetime) -> None:
    """Apply everything that was due up to `now`; a clock that was set back changes nothing."""
    queue = [
        (due, number, table, name)
        for number, (table, name, due) in enumerate(_dues(cloud_state))
        if due is not None and due <= now
    ]
    heapq.heapify(queue)
    number = len(queue)
    while queue:
        due, _, table, name = heapq.heappop(queue)
        record = getattr(cloud_state, table).get(name)
        if record is None or _due(cloud_state, table, record) != due:
            continue  # an earlier step removed or changed it; its new turn is in the queue
        _step(cloud_state, table, record, due)
        if name in getattr(cloud_state, table):
            following = _due(cloud_state, table, record)
            if following is not None and following <= now:
                number += 1
                heapq.heappush(queue, (following, len(_TABLES) * 1_000_000 + number, table, name))
    cloud_state.clock = now if cloud_state.clock is None else max(cloud_state.clock, now)


def next_change(cloud_state: CloudState) -> datetime | None:
    """When `advance` will next have something to do."""
    return min((due for _, _, due in _dues(cloud_state) if due is not None), default=None)


_TABLES = (*_SETTLED, "file_systems", "invocations", "instances")


def _dues(cloud_state: CloudState) -> Iterator[tuple[str, str, datetime | None]]:
    for table in _TABLES:
        for name, record in getattr(cloud_state, table).items():
            yield table, name, _due(cloud_state, table, record)


def _due(cloud_state: CloudState, table: str, record: Any) -> datetime | None:
    if table == "instances":
        return _instance_due(record)
    if table == "file_systems":
        dues = [record.due, *(target.due for target in record.targets)]
        return min((due for due in dues if due is not None), default=None)
    if table == "invocations":
        return _invocation_due(cloud_state, record)
    due: datetime | None = record.due
    return due


def _step(cloud_state: CloudState, table: str, record: Any, now: datetime) -> None:
    if table == "instances":
        _step_instance(cloud_state, record, now)
    elif table == "file_systems":
        _step_file_system(record, now)
    elif table == "invocations":
        _abort_undelivered(record, now)
    else:
        record.status = _SETTLED[table].get(record.status, record.status)
        record.due = None


def _step_file_system(system: FileSystem, now: datetime) -> None:
    if system.due is not None and system.due <= now:
        system.status, system.due = "Running", None
    for target in system.targets:
        if target.due is not None and target.due <= now:
            target.status, target.due = "Active", None


def _invocation_due(cloud_state: CloudState, invocation: Invocation) -> datetime | None:
    if any(target.status in UNDELIVERED for target in invocation.targets):
        return invocation.created + cloud_state.options.duration("delivery")
    return None


def _abort_undelivered(invocation: Invocation, now: datetime) -> None:
    for target in invocation.targets:
        if target.status in UNDELIVERED:
            target.status, target.finished = "Aborted", now
            target.error_code, target.error = "DeliveryTimeout", "The command could not be delivered in time."


# --- instances


def _instance_due(instance: Instance) -> datetime | None:
    turns = (instance.due, instance.auto_release, instance.reclaim, instance.market_check)
    return min((turn for turn in turns if turn is not None), default=None)


def _step_instance(cloud_state: CloudState, instance: Instance, now: datetime) -> None:
    if instance.auto_release is not None and instance.auto_release <= now:
        release(cloud_state, instance, now)
    elif instance.reclaim is not None and instance.reclaim <= now:
        _reclaim(cloud_state, instance, now)
    elif instance.market_check is not None and instance.market_check <= now:
        _check_market(cloud_state, instance, now)
    else:
        _TURNS[instance.status](cloud_state, instance, now)


def _begin_starting(cloud_state: CloudState, instance: Instance, now: datetime) -> None:
    boot(cloud_state, instance, now)


def _finish_starting(cloud_state: CloudState, instance: Instance, now: datetime) -> None:
    instance.status, instance.due = "Running", None
    if instance.image not in cloud_state.options.images_without_assistant:
        instance.agent_ready = now + cloud_state.options.duration("agent")


def _finish_stopping(cloud_state: CloudState, instance: Instance, now: datetime) -> None:
    if instance.deleting:
        release(cloud_state, instance, now)
    elif instance.rebooting:
        instance.rebooting = False
        boot(cloud_state, instance, now)
    else:
        _halt(cloud_state, instance, now)


def _finish_stopped(cloud_state: CloudState, instance: Instance, now: datetime) -> None:
    release(cloud_state, instance, now)  # a stopped instance waits for nothing else


_TURNS: dict[str, Callable[[CloudState, Instance, datetime], None]] = {
    "Pending": _begin_starting,
    "Starting": _finish_starting,
    "Stopping": _finish_stopping,
    "Stopped": _finish_stopped,
}


def boot(cloud_state: CloudState, instance: Instance, now: datetime) -> None:
    """Let it begin to start; what was changed for the next boot comes true."""
    instance.status = "Starting"
    instance.boot += 1
    instance.started = now
    instance.stopped_mode = NOT_APPLICABLE
    instance.agent_ready = None
    instance.due = now + cloud_state.options.duration("starting", instance.name)
    instance.hostname, instance.next_hostname = instance.next_hostname or instance.hostname, ""
    instance.password, instance.next_password = instance.next_password or instance.password, ""
    if instance.next_keys is not None:
        instance.authorized_keys, instance.next_keys = instance.next_keys, None


def start(cloud_state: CloudState, instance: Instance, now: datetime) -> None:
    """Start a stopped instance; after an economical stop it is billed again and has a new public address."""
    was_economical = instance.stopped_mode == STOP_CHARGING
    if was_economical and instance.bandwidth_out and not instance.eip:
        instance.public_address = cloud_state.new_address()
    boot(cloud_state, instance, now)
    if was_economical:
        ledger.bill_instance(cloud_state, instance, now)
        watch_market(instance, now)


def stop(cloud_state: CloudState, instance: Instance, now: datetime, mode: str) -> None:
    """Begin to stop a running instance."""
    instance.status = "Stopping"
    instance.stop_request = mode
    instance.due = now + cloud_state.options.duration("stopping", instance.name)
    _end_invocations(cloud_state, instance, now, "ExecutionInterrupted")


def reboot(cloud_state: CloudState, instance: Instance, now: datetime) -> None:
    """Stop and start in one."""
    stop(cloud_state, instance, now, KEEP_CHARGING)
    instance.rebooting = True


def _halt(cloud_state: CloudState, instance: Instance, now: datetime) -> None:
    economical = instance.stop_request == STOP_CHARGING and supports_economical(instance)
    instance.status, instance.due = "Stopped", None
    instance.stopped_mode = STOP_CHARGING if economical else KEEP_CHARGING
    if instance.charge != "PostPaid":
        instance.stopped_mode = NOT_APPLICABLE
    instance.stop_request = ""
    instance.agent_ready = None
    if economical:
        ledger.close(cloud_state, instance.id, now)
        instance.public_address = ""
        instance.market_check = None


def supports_economical(instance: Instance) -> bool:
    """Whether a stop can end the billing: not with local disks, not when paid in advance."""
    return instance.charge == "PostPaid" and TYPES[instance.type].has_economical_mode


def begin_deletion(cloud_state: CloudState, instance: Instance, now: datetime) -> None:
    """Delete: billing ends at once, the record lingers a while."""
    if instance.status in {"Running", "Starting"}:  # a start that was on its way does not come to its end
        instance.status = "Stopping"
    instance.deleting = True
    instance.due = now + cloud_state.options.duration("deleting", instance.name)
    instance.auto_release = instance.reclaim = instance.market_check = None
    ledger.close(cloud_state, instance.id, now)
    for disk in cloud_state.disks_of(instance.id):
        if disk.delete_with_instance:
            ledger.close(cloud_state, disk.id, now)
    _end_invocations(cloud_state, instance, now, "InstanceReleased")


def release(cloud_state: CloudState, instance: Instance, now: datetime) -> None:
    """Remove an instance: its disks go or are left over as the disks say, its elastic address stays."""
    for disk in cloud_state.disks_of(instance.id):
        if disk.delete_with_instance:
            ledger.close(cloud_state, disk.id, now)
            del cloud_state.disks[disk.id]
        else:
            disk.instance, disk.device, disk.status, disk.due = "", "", "Available", None
            disk.detached = now
    eip = cloud_state.eips.get(instance.eip)
    if eip is not None:
        eip.instance, eip.status, eip.due = "", "Available", None
        ledger.bill_eip(cloud_state, eip, now)
    ledger.close(cloud_state, instance.id, now)
    _end_invocations(cloud_state, instance, now, "InstanceReleased")
    for event in cloud_state.events:
        if event.instance == instance.id and event.finished is None:
            event.status, event.finished = "Executed", now
    del cloud_state.instances[instance.id]


def _end_invocations(cloud_state: CloudState, instance: Instance, now: datetime, code: str) -> None:
    for invocation in cloud_state.invocations.values():
        for target in invocation.targets:
            if target.instance != instance.id or target.finished is not None:
                continue
            reached = target.status not in UNDELIVERED
            target.status, target.finished = "Failed" if reached else "Aborted", now
            target.error_code = code if reached or code == "InstanceReleased" else "InstanceNotRunning"
            target.error = "The instance stopped or was released before the command had ended."


# --- spot


def watch_market(instance: Instance, now: datetime) -> None:
    """Compare the price with the limit from the next hour on."""
    if instance.spot_strategy == "SpotWithPriceLimit":
        instance.market_check = next_hour(now)


def _check_market(cloud_state: CloudState, instance: Instance, now: datetime) -> None:
    instance.market_check = next_hour(now)
    limit, protected = instance.spot_limit, instance.protected_until
    if limit is None or (protected is not None and now < protected):
        return
    if spot_price(cloud_state, instance.zone, instance.type, now) > limit:
        interrupt(cloud_state, instance, now)


def interrupt(cloud_state: CloudState, instance: Instance, now: datetime) -> None:
    """Give a spot instance notice: it is locked, and goes in five minutes.

    A second notice changes nothing; one that gave its machine back already has nothing to lose.
    """
    if RECYCLING in instance.locks or instance.deleting or not holds(instance):
        return
    instance.locks.append(RECYCLING)
    instance.market_check = None
    instance.reclaim = now + cloud_state.options.duration("recycling")
    cloud_state.events.append(
        SystemEvent(
            id=cloud_state.new_id("e-", instance.region),
            region=instance.region,
            instance=instance.id,
            kind="Instance:PreemptibleInstanceInterruption",
            reason="The preemptible instance is to be reclaimed.",
            published=now,
            not_before=instance.reclaim,
        )
    )


def _reclaim(cloud_state: CloudState, instance: Instance, now: datetime) -> None:
    if instance.spot_behavior != "Stop" or instance.status == "Pending":
        release(cloud_state, instance, now)
        return
    instance.reclaim = None
    instance.locks.remove(RECYCLING)
    for event in cloud_state.events:
        if event.instance == instance.id and event.finished is None:
            event.status, event.finished = "Executed", now
    if instance.status in {"Running", "Starting"}:
        stop(cloud_state, instance, now, STOP_CHARGING)
        return
    instance.stop_request, instance.rebooting = STOP_CHARGING, False
    if instance.status == "Stopped" and holds(instance):
        _halt(cloud_state, instance, now)


def termination_time(instance: Instance) -> str:
    """What the metadata answers under instance/spot/termination-time; empty while there is no notice."""
    return instance.reclaim.strftime("%Y-%m-%dT%H:%M:%SZ") if instance.reclaim else ""


def agent_answers(instance: Instance, now: datetime) -> bool:
    """Whether Cloud Assistant reaches the instance."""
    return instance.status == "Running" and instance.agent_ready is not None and instance.agent_ready <= now


def is_visible(instance: Instance, now: datetime) -> bool:
    """Whether DescribeInstances shows it already."""
    return instance.visible is None or instance.visible <= now
