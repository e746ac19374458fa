"""The class World: the emulated cloud with its time, its requested machines and its storage on disk.

The data is in `cloud_state.py`; the control routes' knobs are methods here, so that their caller needs no other module.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

from trainyard.emulators.aliyun.api.call import MachineWish
from trainyard.emulators.aliyun.api.problems import Problem, not_found
from trainyard.emulators.aliyun.cloud import ledger, market, saved_state, stock, timeline
from trainyard.emulators.aliyun.cloud.catalogue import TYPES, ZONES
from trainyard.emulators.aliyun.cloud.cloud_state import CloudState
from trainyard.emulators.aliyun.cloud.records import Instance
from trainyard.lib.files import write_atomic

_SHORT = 100  # characters that are not worth a digest
_DIGEST = "sha256:"  # base64 has no colon, so this is never UserData itself


@lru_cache(maxsize=64)
def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


class World(CloudState):
    """One emulated cloud that lives."""

    read_console: Callable[[str], bytes] = staticmethod(lambda _instance_id: b"")
    """What a machine has printed on its console since its last boot; set by whoever has the machines."""

    def advance(self, now: datetime) -> None:
        """Apply everything that is due up to `now`."""
        timeline.advance(self, now)

    def next_change(self) -> datetime | None:
        """When `advance` will next have something to do; None: only a call can change anything."""
        return timeline.next_change(self)

    def machines(self, now: datetime) -> list[MachineWish]:
        """The machines that should exist on this computer."""
        del now  # `advance` has been told already; all follows from the records
        if not self.options.machines:
            return []
        systems = {disk.instance: disk.id for disk in self.disks.values() if disk.kind == "system"}
        wanted = [one for one in self.instances.values() if not one.deleting]
        return [_wish(self, one, systems.get(one.id, "")) for one in wanted]

    def save(self, path: Path) -> None:
        """Write everything to a file, at once or not at all."""
        write_atomic(path, json.dumps(self.dump(), ensure_ascii=False, separators=(",", ":")))

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a world that `save` wrote."""
        world: Self = saved_state.decode(cls, json.loads(path.read_text(encoding="utf-8")))
        return world

    def dump(self) -> dict[str, Any]:
        """Everything, as JSON can hold it: to be saved, and for people who look inside.

        UserData stands once however many instances have it: a job of 256 would write megabytes at each call.
        """
        whole: dict[str, Any] = saved_state.encode(self)
        for instance in whole["instances"].values():
            text = instance["user_data"]
            if len(text) > _SHORT:
                digest = _DIGEST + _digest(text)
                whole["texts"][digest] = text
                instance["user_data"] = digest
        return whole

    # What the control routes turn. Each is safe to repeat.

    def interrupt(self, instance_id: str, now: datetime) -> None:
        """Give a spot instance its five minutes' notice."""
        instance = self._instance(instance_id)
        if instance.is_spot:
            timeline.interrupt(self, instance, now)

    def stock(self, zone: str, instance_type: str, *, spot: bool) -> int:
        """How many machines are left."""
        _require_sold(zone, instance_type)
        return stock.free(self, zone, instance_type, spot=spot)

    def set_stock(self, zone: str, instance_type: str, *, spot: bool, free: int) -> None:
        """Leave exactly so many machines; what is held stays held."""
        _require_sold(zone, instance_type)
        stock.set_free(self, zone, instance_type, spot=spot, count=free)

    def set_advice(self, zone: str, instance_type: str, *, spot: bool, category: str | None) -> None:
        """Let DescribeAvailableResource claim a StatusCategory whatever is true; None ends it."""
        _require_sold(zone, instance_type)
        stock.set_advice(self, zone, instance_type, spot=spot, category=category)

    def set_spot_price(self, zone: str, instance_type: str, *, price: Decimal | None, now: datetime) -> None:
        """Fix a spot price from now on; None gives it back to the market."""
        _require_sold(zone, instance_type)
        market.set_spot_price(self, zone, instance_type, price, now)

    def occupy(self, vswitch_id: str, addresses: int) -> None:
        """Take addresses of a vSwitch, as other products' things do."""
        if vswitch_id not in self.vswitches:
            raise not_found("InvalidVSwitchId.NotFound", f"There is no vSwitch {vswitch_id}.")
        self.vswitches[vswitch_id].occupied = addresses

    def lock(self, instance_id: str, reason: str) -> None:
        """Lock an instance: `financial` or `security`."""
        locks = self._instance(instance_id).locks
        if reason not in locks:
            locks.append(reason)

    def unlock(self, instance_id: str, reason: str) -> None:
        """Take a lock off."""
        locks = self._instance(instance_id).locks
        if reason in locks:
            locks.remove(reason)

    def set_options(self, changes: dict[str, Any]) -> None:
        """Change options: a tree such as {"timing": {"starting": 0}, "quotas": {"vcpus": 0}}."""
        whole = saved_state.encode(self.options)
        _merge(whole, changes)
        try:
            options = saved_state.decode(type(self.options), whole, strict=True)
            options.check()
        except (TypeError, ValueError, AttributeError) as error:
            raise Problem("InvalidParameter", f"The options cannot be so: {error}.") from error
        self.options = options

    def spent(self, now: datetime, thing: str = "") -> Decimal:
        """What a thing has cost so far; without one, everything that ever was."""
        return ledger.spent(self, now, thing)

    def rate(self, now: datetime, thing: str = "") -> Decimal:
        """What a thing costs per hour at this moment; without one, everything."""
        return ledger.rate(self, now, thing)

    def statement(self, now: datetime) -> list[ledger.Line]:
        """The whole bill."""
        return ledger.statement(self, now)

    def termination_time(self, instance_id: str) -> str:
        """What the metadata answers under instance/spot/termination-time; empty: nothing is planned."""
        return timeline.termination_time(self._instance(instance_id))

    def _instance(self, instance_id: str) -> Instance:
        if instance_id not in self.instances:
            raise not_found("InvalidInstanceId.NotFound", f"There is no instance {instance_id}.")
        return self.instances[instance_id]


def _merge(whole: dict[str, Any], changes: dict[str, Any]) -> None:
    for name, value in changes.items():
        if name not in whole:
            raise not_found("InvalidParameter", f"There is no option {name}.")
        if isinstance(value, dict) and isinstance(whole[name], dict):
            _merge(whole[name], value)
        else:
            whole[name] = value


def _require_sold(zone: str, instance_type: str) -> None:
    if zone not in ZONES:
        raise not_found("InvalidZoneId.NotFound", f"There is no zone {zone}.")
    if instance_type not in TYPES:
        raise not_found("InvalidInstanceType.ValueNotSupported", f"There is no type {instance_type}.")


def _wish(world: World, instance: Instance, disk: str) -> MachineWish:
    eip = world.eips.get(instance.eip)
    return MachineWish(
        instance_id=instance.id,
        address=instance.address,
        public_address=eip.address if eip else instance.public_address,
        hostname=instance.hostname,
        running=instance.status in {"Starting", "Running"},
        authorized_keys=tuple(instance.authorized_keys),
        password=instance.password,
        user_data=_decoded(instance.user_data),
        boot=instance.boot,
        disk=disk,
    )


@lru_cache(maxsize=64)  # the instances of a job have the same, and wishes are asked for often
def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=False)
    except binascii.Error:
        return b""  # the real cloud hands over what it was given, and cloud-init makes nothing of it
