"""Jobs on Ascend NPUs, of whatever kind: their rank tables, and the variables of a node. The tables are spec/ascend.py's."""

from __future__ import annotations

import re

from trainyard.server.launch.kinds.gang import TaskGang, TaskPart, TaskPlace, path
from trainyard.spec.ascend import Server, rank_table, server, task_environment

TABLE = "/user/serverid/devindex/config/hccl.json"  # where the vendor's own platform has it
LAB_TABLE = "/user/serverid/devindex/config/hccl_lab.json"  # for MindSpore up to 0.5
LOOPBACK = "127.0.0.1"  # of a node that has said no address: it can only be spoken to from itself
_NPU = re.compile(r"npu|ascend|910|310", re.IGNORECASE)


def is_npu(device_type: str) -> bool:
    """Whether a type of device is an NPU."""
    return bool(_NPU.search(device_type))


def servers_of(gang: TaskGang) -> tuple[Server, ...]:
    """The inventory of the attempt, in the order of ranks; empty where no device has an address."""
    places = [place for place in gang.places if place.devices and is_npu(place.device_type)]
    if not any(place.device_addresses for place in places):
        return ()
    return tuple(
        server(
            place.address or LOOPBACK,
            place.device_addresses,
            place.devices,
            name=f"{gang.job_id}-{place.name}",
        )
        for place in places
    )


def table(servers: tuple[Server, ...], layout: str, *, group: str = "") -> str:
    """A rank table."""
    return rank_table(servers, layout, group=group)


def _tables(gang: TaskGang) -> dict[str, str]:
    servers = servers_of(gang)
    return {TABLE: table(servers, "1.0"), LAB_TABLE: table(servers, "lab")} if servers else {}


def part(gang: TaskGang, place: TaskPlace) -> TaskPart:
    """What a task on NPUs gets beside what its kind gives it."""
    if not (place.devices and is_npu(place.device_type)):
        return TaskPart()
    places = gang.once("with_devices", lambda: [one for one in gang.places if one.devices])
    size = gang.once("ranks", lambda: sum(len(one.devices) for one in places))
    number = next(number for number, one in enumerate(places) if one is place)
    env = task_environment(number, size, len(place.devices), place.address)
    late = {"MS_SCHED_HOST": f"%address:{places[0].name}%"}  # MindSpore looks no name up
    files = {}
    if tables := gang.once("rank_tables", lambda: _tables(gang)):
        files = dict(tables)
        late |= {"RANK_TABLE_FILE": path(TABLE), "MINDSPORE_HCCL_CONFIG_PATH": path(LAB_TABLE)}
    return TaskPart(env=env, late=late, files=files)
