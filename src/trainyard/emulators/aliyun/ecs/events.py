"""System events: planned and finished actions of the provider on instances."""

from __future__ import annotations

from trainyard.emulators.aliyun.api.answers import by_number, by_token, require_region, second
from trainyard.emulators.aliyun.api.call import Call, Handler, Value
from trainyard.emulators.aliyun.cloud.records import Instance, SystemEvent
from trainyard.emulators.aliyun.cloud.world import World
from trainyard.emulators.aliyun.ecs.instances import visible_instances

_PREFIX = "Instance:"
_CODES = {"Scheduled": 24, "Executing": 26, "Executed": 20, "Canceled": 22}
_STATUS_CODES = {"Pending": 0, "Starting": 16, "Running": 1, "Stopping": 32, "Stopped": 2}


def _show(event: SystemEvent) -> dict[str, Value]:
    name = event.kind.removeprefix(_PREFIX)
    return {
        "EventId": event.id,
        "InstanceId": event.instance,
        "ResourceType": "instance",
        "EventType": {"Name": name, "Code": 1},
        "EventCycleStatus": {"Name": event.status, "Code": _CODES.get(event.status, 0)},
        "EventPublishTime": second(event.published),
        "NotBefore": second(event.not_before),
        "EventFinishTime": second(event.finished),
        "ImpactLevel": "100",
        "Reason": event.reason,
        "ReasonCode": name,
    }


def describe_history(world: World, call: Call) -> dict[str, Value]:
    """DescribeInstanceHistoryEvents."""
    region, statuses = require_region(call), call.texts("InstanceEventCycleStatus")
    ids = call.texts("ResourceId") or ([call.text("InstanceId")] if call.text("InstanceId") else [])
    wanted = [one.removeprefix(_PREFIX) for one in call.texts("InstanceEventType")]
    rows = [
        event
        for event in reversed(world.events)
        if event.region == region
        and (not ids or event.instance in ids)
        and (not statuses or event.status in statuses)
        and call.text("EventCycleStatus") in {"", event.status}
        and (not wanted or event.kind.removeprefix(_PREFIX) in wanted)
    ]
    shown, fields = by_token(call, rows, _show, name=lambda event: event.id, most=100)
    return {"InstanceSystemEventSet": {"InstanceSystemEventType": shown}, **fields}


def describe_full_status(world: World, call: Call) -> dict[str, Value]:
    """DescribeInstancesFullStatus: the status with the events to come."""
    ids = call.texts("InstanceId") or None
    rows = [one for one in visible_instances(world, call, ids) if call.text("Status") in {"", one.status}]

    def show(instance: Instance) -> Value:
        coming = [
            {key: value for key, value in _show(event).items() if key not in _HISTORY_ONLY}
            for event in world.events
            if event.instance == instance.id and event.finished is None
        ]
        return {
            "InstanceId": instance.id,
            "Status": {"Name": instance.status, "Code": _STATUS_CODES.get(instance.status, 0)},
            "HealthStatus": {"Name": "Ok", "Code": 0},
            "ScheduledSystemEventSet": {"ScheduledSystemEventType": coming},
        }

    shown, fields = by_number(call, rows, show, most=100)
    return {"InstanceFullStatusSet": {"InstanceFullStatusType": shown}, **fields}


_HISTORY_ONLY = frozenset({"InstanceId", "ResourceType", "EventFinishTime", "ReasonCode"})

ACTIONS: dict[tuple[str, str], Handler] = {
    ("ecs", "DescribeInstanceHistoryEvents"): describe_history,
    ("ecs", "DescribeInstancesFullStatus"): describe_full_status,
}
