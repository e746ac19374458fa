"""Starting, stopping and deleting instances for good, through states in which the provider refuses them.

All functions take ids of one region and may be repeated. A stop waits until it is done, because only then the provider
says whether it still charges. A start does not wait.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trainyard.backends.aliyun.api.client import Client
from trainyard.backends.aliyun.api.errors import code_of
from trainyard.backends.aliyun.api.paging import batches, fetch_by_ids
from trainyard.backends.aliyun.api.wire import Parameter, text
from trainyard.lib.aio import finish
from trainyard.lib.errors import CapacityError, ConflictError, NotFoundError, UnreachableError

POLL_SECONDS = 1.0  # the provider asks for no more
SETTLE_SECONDS = 600.0  # a start was seen to take eight minutes, a graceful stop several
FRESH_SECONDS = 30.0  # within which what was just made may not be known everywhere
TAGGED_A_CALL = 50


async def fetch_statuses(client: Client, ids: Sequence[str]) -> dict[str, str]:
    """Return the status by id: Running, Stopped … Deleted instances are left out."""
    rows = await fetch_by_ids(client, "ecs", "DescribeInstances", ids)
    return {text(row, "InstanceId"): text(row, "Status") for row in rows}


async def delete(client: Client, ids: Sequence[str], *, is_fresh: bool = False) -> None:
    """Delete instances, even if commands run on them, and wait until they are gone.

    `is_fresh`: made a moment ago, so that "there is no such instance" may mean: not yet.
    """
    deadline = client.clock.monotonic() + SETTLE_SECONDS
    fresh_until = client.clock.monotonic() + (FRESH_SECONDS if is_fresh else 0.0)
    left = list(dict.fromkeys(ids))
    accepted: set[str] = set()
    while left:
        await _delete_each(client, [each for each in left if each not in accepted], accepted)
        there = await fetch_statuses(client, left)
        waits_for_sight = client.clock.monotonic() < fresh_until
        left = [each for each in left if each in there or (waits_for_sight and each not in accepted)]
        if left:
            _check_deadline(client, deadline, left, "deleted")
            await client.clock.sleep(POLL_SECONDS)


async def _delete_each(client: Client, ids: Sequence[str], accepted: set[str]) -> None:
    """A hundred in a call; where one of them stands in the way of the others, one by one."""
    for batch in batches(ids):
        if await _try_delete(client, batch):
            accepted.update(batch)
        elif len(batch) > 1:
            for each in batch:
                if await _try_delete(client, [each]):
                    accepted.add(each)


async def _try_delete(client: Client, ids: Sequence[str]) -> bool:
    parameters: dict[str, Parameter] = {"InstanceId": ids, "Force": True}
    try:
        await client.call("ecs", "DeleteInstances", parameters, about=_about(ids))
    except NotFoundError:
        return False
    except ConflictError as error:
        if not code_of(error).startswith("IncorrectInstanceStatus"):
            raise
        return False  # being stopped, or being deleted already
    return True


async def stop(client: Client, ids: Sequence[str]) -> None:
    """Stop instances so that they cost as little as they can, and wait until they are stopped."""
    deadline = client.clock.monotonic() + SETTLE_SECONDS
    while True:
        there = await fetch_statuses(client, ids)
        left = [each for each, status in there.items() if status != "Stopped"]
        if not left:
            return
        running = [each for each in left if there[each] == "Running"]
        await _act(client, "StopInstances", running, {"StoppedMode": "StopCharging"}, done=[])
        _check_deadline(client, deadline, left, "stopped")
        if not running:
            await client.clock.sleep(POLL_SECONDS)


async def start(client: Client, ids: Sequence[str]) -> list[str]:
    """Start instances; returns those that this call has started. One that cannot be had fails all.

    Those that are being stopped are waited for; a start itself is not. When one cannot be had, those that were started
    before it are stopped again.
    """
    deadline = client.clock.monotonic() + SETTLE_SECONDS
    started: list[str] = []
    while True:
        there = await fetch_statuses(client, ids)
        stopped = [each for each, status in there.items() if status == "Stopped"]
        try:
            await _act(client, "StartInstances", stopped, {}, done=started)
        except CapacityError:
            await finish(stop(client, started))
            raise
        left = [
            each
            for each, status in there.items()
            if status == "Stopping" or (each in stopped and each not in started)
        ]
        if not left:
            return started
        _check_deadline(client, deadline, left, "started")
        await client.clock.sleep(POLL_SECONDS)


async def _act(
    client: Client, action: str, ids: Sequence[str], parameters: Mapping[str, Parameter], *, done: list[str]
) -> None:
    """A hundred in a call; `done` gets those for which it was accepted. Where somebody was quicker, look again."""
    for batch in batches(ids):
        try:
            await client.call("ecs", action, {**parameters, "InstanceId": batch}, about=_about(batch))
        except (ConflictError, NotFoundError) as error:
            if not code_of(error).startswith(("IncorrectInstanceStatus", "InvalidInstanceId")):
                raise
            continue
        done += batch


async def write_tag(client: Client, key: str, values: Mapping[str, str]) -> None:
    """Put a tag on instances, each with its own value (id → value). Those with the same one share a call."""
    for value in dict.fromkeys(values.values()):
        same = [each for each, its in values.items() if its == value]
        for batch in batches(same, TAGGED_A_CALL):
            parameters: dict[str, Parameter] = {
                "ResourceType": "instance",
                "ResourceId": batch,
                "Tag": [{"Key": key, "Value": value}],
            }
            await client.call("ecs", "TagResources", parameters, about=_about(batch))


def _check_deadline(client: Client, deadline: float, left: Sequence[str], what: str) -> None:
    if client.clock.monotonic() >= deadline:
        raise UnreachableError(
            f"after {SETTLE_SECONDS:.0f} s these machines are still not {what}: {', '.join(left)}",
            hint="See `trainyard ls -a --stop`, then run the same command again.",
        )


def _about(ids: Sequence[str]) -> str:
    return ids[0] if len(ids) == 1 else f"{len(ids)} machines"
