"""Every action that the emulated products have; those of STS are the wire's, which knows the keys."""

from __future__ import annotations

from trainyard.emulators.aliyun.api.call import Handler
from trainyard.emulators.aliyun.ecs import (
    assistant,
    disks,
    events,
    groups,
    images,
    instances,
    keys,
    launch,
    placement,
    power,
    prices,
    regions,
    roles,
    snapshots,
    system_disk,
    tags,
)
from trainyard.emulators.aliyun.nas import storage
from trainyard.emulators.aliyun.vpc import addresses, network

ACTIONS: dict[tuple[str, str], Handler] = {
    **launch.ACTIONS,
    **instances.ACTIONS,
    **power.ACTIONS,
    **roles.ACTIONS,
    **disks.ACTIONS,
    **system_disk.ACTIONS,
    **snapshots.ACTIONS,
    **images.ACTIONS,
    **keys.ACTIONS,
    **groups.ACTIONS,
    **tags.ACTIONS,
    **regions.ACTIONS,
    **prices.ACTIONS,
    **assistant.ACTIONS,
    **events.ACTIONS,
    **placement.ACTIONS,
    **network.ACTIONS,
    **addresses.ACTIONS,
    **storage.ACTIONS,
}
