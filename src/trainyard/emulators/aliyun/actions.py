"""Every action that the emulated products have."""

from __future__ import annotations

from trainyard.emulators.aliyun.call import Handler
from trainyard.emulators.aliyun.ecs import disks, images, instances, keys, launch, power
from trainyard.emulators.aliyun.vpc import network

ACTIONS: dict[tuple[str, str], Handler] = {
    **launch.ACTIONS,
    **instances.ACTIONS,
    **power.ACTIONS,
    **disks.ACTIONS,
    **images.ACTIONS,
    **keys.ACTIONS,
    **network.ACTIONS,
}
