"""A new system disk for an instance that is stopped: it boots from another image, and for the first time again."""

from __future__ import annotations

from trainyard.emulators.aliyun.api.call import Call, Handler, Value
from trainyard.emulators.aliyun.api.problems import denied
from trainyard.emulators.aliyun.cloud import ledger
from trainyard.emulators.aliyun.cloud.catalogue import TYPES
from trainyard.emulators.aliyun.cloud.world import World
from trainyard.emulators.aliyun.ecs.disks import plan_system
from trainyard.emulators.aliyun.ecs.images import find_image, suits
from trainyard.emulators.aliyun.ecs.instances import check_lock, find_instance
from trainyard.emulators.aliyun.ecs.launch import check_password, read_key


def replace_system_disk(world: World, call: Call) -> dict[str, Value]:
    """ReplaceSystemDisk: the old one goes with all that is on it; data disks, addresses and UserData stay."""
    instance = find_instance(world, call, call.required("InstanceId"))
    check_lock(world, instance)
    if instance.status != "Stopped" or instance.deleting:
        raise denied("IncorrectInstanceStatus", f"The instance is {instance.status}, not Stopped.")
    image, kind = find_image(world, instance.region, call.required("ImageId")), TYPES[instance.type]
    if not suits(image, kind):
        raise denied("ImageNotSupportInstanceType", f"The image {image.id} does not support {kind.name}.")
    old = next(disk for disk in world.disks_of(instance.id) if disk.kind == "system")
    given = {"Category": old.category, "Size": old.size, **call.struct("SystemDisk")}
    disk = plan_system(kind, instance.zone, image, given)
    pair = read_key(world, call, instance.region)
    if call.text("Password"):
        check_password(call.text("Password"))
        instance.next_password = call.text("Password")
    if pair is not None:
        instance.key_pair, instance.next_keys = pair.name, [pair.public_key]
    ledger.close(world, old.id, call.now)
    del world.disks[old.id]
    disk.id, disk.instance = world.new_id("d-", instance.region), instance.id
    disk.created = disk.attached = call.now
    world.disks[disk.id] = disk
    ledger.bill_disk(world, disk, call.now)
    instance.image = image.id
    return {"DiskId": disk.id}


ACTIONS: dict[tuple[str, str], Handler] = {("ecs", "ReplaceSystemDisk"): replace_system_disk}
