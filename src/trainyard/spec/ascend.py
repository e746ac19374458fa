"""Ascend NPUs that train together: which they are, the rank tables that tell them, and the variables of each process.

Everything follows from one inventory: servers in order, each with its devices and their addresses in the network of the
devices. Pure text and numbers; who writes the files and starts the processes is the platform's node (engines/nodes).

    servers = (server("192.168.3.6", hccn_addresses(text)), server("192.168.3.2", ...))
    check_rings(servers)
    rank_table(servers, "lab")                       # "tf", "1.0" and "1.2" likewise
    process_environment(servers, "192.168.3.2", 0)   # RANK_ID=8: the first device of the second server

The rank of a process is its place in the table, so a table in another order (`by_address`) gives other ranks: ask for
both with the same order.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from trainyard.lib.errors import InvalidError, NotFoundError

FORMATS = ("lab", "tf", "1.0", "1.2")
BOARD_ARM = "0x0020"
BOARD_X86 = "0x0000"
RING = 4  # devices 0 to 3 and 4 to 7 are wired to each other; between the two rings there is only PCIe
COUNTS = (1, 2, 4, 8)
WHOLE_SERVER = 8

# Where HCCL meets, and how long it tries: CANN's own 120 s are too short where images are still being pulled elsewhere.
CONNECT_SECONDS = 600
SCHEDULER_PORT = 8118  # as MindSpore's own launcher has it

_ADDRESS_LINE = re.compile(r"\s*address_(\d+)\s*=\s*(\S+)\s*\Z")


@dataclass(frozen=True, slots=True)
class Device:
    """One NPU: its number on its server, and its address in the devices' own network."""

    index: int
    address: str
    super_id: str = ""  # its number in a super pod; only format 1.2 has it


@dataclass(frozen=True, slots=True)
class Server:
    """One machine with the devices of it that take part."""

    address: str
    devices: tuple[Device, ...]
    name: str = ""  # what the TensorFlow format knows it by; empty: its address
    super_group: str = "0"  # the super pod that it belongs to; only format 1.2 has it


@dataclass(frozen=True, slots=True)
class Seat:
    """One device in its place among all: what a process has to know of itself."""

    server: Server
    device: Device
    rank: int
    local_rank: int
    size: int
    server_rank: int = field(default=0)


# -- the inventory ---------------------------------------------------------------------------------------------------


def hccn_addresses(text: str) -> dict[int, str]:
    """Device number → address, from the text of /etc/hccn.conf (`address_0=192.168.10.1`; other keys say nothing here)."""
    found: dict[int, str] = {}
    for line in text.splitlines():
        match = _ADDRESS_LINE.match(line.partition("#")[0])
        if match:
            found[int(match[1])] = _checked_address(match[2], f"device {match[1]}")
    return dict(sorted(found.items()))


def entry_addresses(entry: Mapping[str, object]) -> dict[int, str]:
    """Device number → address, from an inventory's entry {"device_ips": {"0": "192.168.10.1", …}}; empty where it has none."""
    wanted = entry.get("device_ips") or {}
    if not isinstance(wanted, Mapping):
        raise InvalidError(
            "device_ips is not a table of device numbers and addresses",
            hint='Write it as {"0" = "192.168.10.1", "1" = "192.168.20.1"}.',
        )
    found: dict[int, str] = {}
    for key, value in wanted.items():
        if not str(key).isdecimal():
            raise InvalidError(
                f"{key!r} in device_ips is no device number", hint="Number devices 0, 1, 2 and so on."
            )
        found[int(str(key))] = _checked_address(str(value), f"device {key}")
    return dict(sorted(found.items()))


def simulated_addresses(server_index: int, devices: int = WHOLE_SERVER) -> dict[int, str]:
    """Addresses as in the manual's own table: a network for each device of a ring, two numbers a server."""
    return {
        index: f"192.168.{10 * (index % RING + 1)}.{2 * server_index + index // RING + 1}"
        for index in range(devices)
    }


def server(
    address: str, addresses: Mapping[int, str], chosen: Sequence[int] | None = None, *, name: str = ""
) -> Server:
    """A server of the inventory; `chosen` are the devices of it that take part, without it all whose address is known."""
    indices = sorted(addresses) if chosen is None else list(chosen)
    missing = [index for index in indices if index not in addresses]
    if missing:
        raise InvalidError(
            f"the address of NPU {missing[0]} of {address} is not known",
            hint="Put it into /etc/hccn.conf there, or into device_ips of the node's entry.",
        )
    devices = tuple(Device(index, addresses[index]) for index in indices)
    return Server(_checked_address(address, "a server"), devices, name)


def check_rings(servers: Sequence[Server]) -> None:
    """Refuse a set of devices that HCCL cannot connect: see the rules in each message."""
    seen: set[tuple[str, int]] = set()
    for each in servers:
        indices = [device.index for device in each.devices]
        for index in indices:
            if (each.address, index) in seen:
                raise InvalidError(f"NPU {index} of {each.address} is there twice")
            seen.add((each.address, index))
        if len(servers) > 1:
            if len(indices) != WHOLE_SERVER:
                raise InvalidError(
                    f"a job on {len(servers)} servers takes all {WHOLE_SERVER} NPUs of each, and {len(indices)} of "
                    f"{each.address} were asked for",
                    hint=f"Ask for {WHOLE_SERVER} NPUs a server, or for one server.",
                )
        else:
            _check_one_server(each.address, indices)
    if not seen:
        raise InvalidError("there is no NPU in the job", hint="Ask for 1, 2, 4 or 8.")


def _check_one_server(address: str, indices: Sequence[int]) -> None:
    if len(indices) not in COUNTS:
        raise InvalidError(
            f"{len(indices)} NPUs cannot train together on {address}", hint="Ask for 1, 2, 4 or 8."
        )
    rings = {index // RING for index in indices}
    if len(indices) <= RING and len(rings) > 1:
        listed = ", ".join(map(str, sorted(indices)))
        raise InvalidError(
            f"the NPUs {listed} of {address} lie in two rings",
            hint=f"Take all {len(indices)} from 0 to 3, or from 4 to 7.",
        )


# -- ranks -----------------------------------------------------------------------------------------------------------


def ordered(servers: Sequence[Server], *, by_address: bool = False) -> tuple[Server, ...]:
    """The servers as they are given, or in the order of the dictionary by address, which tables of 1.0 ask for."""
    return tuple(sorted(servers, key=lambda each: each.address)) if by_address else tuple(servers)


def seats(servers: Sequence[Server], *, by_address: bool = False) -> Iterator[Seat]:
    """Every device with its rank, in the order of ranks."""
    chosen = ordered(servers, by_address=by_address)
    size = sum(len(each.devices) for each in chosen)
    rank = 0
    for server_rank, each in enumerate(chosen):
        for local_rank, device in enumerate(each.devices):
            yield Seat(each, device, rank, local_rank, size, server_rank)
            rank += 1


def find_seat(servers: Sequence[Server], address: str, device: int, *, by_address: bool = False) -> Seat:
    """Where a device sits; NotFoundError where it takes no part."""
    for seat in seats(servers, by_address=by_address):
        if seat.server.address == address and seat.device.index == device:
            return seat
    raise NotFoundError(f"NPU {device} of {address} is not in the rank table")


def rank_of(servers: Sequence[Server], address: str, device: int, *, by_address: bool = False) -> int:
    """The rank of a device: the number of those before it, on its own server and on all before."""
    return find_seat(servers, address, device, by_address=by_address).rank


# -- rank tables -----------------------------------------------------------------------------------------------------


def rank_table(
    servers: Sequence[Server],
    layout: str = "1.0",
    *,
    by_address: bool = False,
    group: str = "",
    board: str = BOARD_ARM,
) -> str:
    """The rank table as text: `layout` is lab (MindSpore up to 0.5), tf, 1.0 or 1.2. `group` and `board` are lab's and tf's."""
    chosen = ordered(servers, by_address=by_address)
    if layout == "lab":
        return _lab_table(chosen, group, board)
    if layout == "tf":
        return _pretty(_tf_table(chosen, group))
    if layout in {"1.0", "1.2"}:
        return _pretty(_versioned_table(chosen, layout))
    raise InvalidError(
        f"there is no rank table of the format {layout!r}", hint=f"Formats are {', '.join(FORMATS)}."
    )


def _pretty(table: Mapping[str, object]) -> str:
    return json.dumps(table, indent=4) + "\n"


def _lab_table(servers: Sequence[Server], group: str, board: str) -> str:
    """One entry a device, in the manual's own layout: its devices stand on one line, and all numbers are texts."""
    size = str(sum(len(each.devices) for each in servers))
    networks = sorted({device.index for each in servers for device in each.devices})
    body = json.dumps(
        {
            "board_id": board,
            "chip_info": "910",
            "deploy_mode": "lab",
            "group_count": "1",
            "group_list": [
                {
                    "device_num": size,
                    "server_num": str(len(servers)),
                    "group_name": group,
                    "instance_count": size,
                    "instance_list": [_lab_entry(seat) for seat in seats(servers)],
                }
            ],
            "para_plane_nic_location": "device",
            "para_plane_nic_name": [f"eth{index}" for index in networks],
            "para_plane_nic_num": str(len(networks)),
            "status": "completed",
        },
        indent=4,
    )
    return _ONE_DEVICE.sub(r"[{\1,\2}]", body) + "\n"


_ONE_DEVICE = re.compile(r'\[\s+\{\s+("device_id": "[^"]*"),\s+("device_ip": "[^"]*")\s+\}\s+\]')


def _lab_entry(seat: Seat) -> dict[str, object]:
    return {
        "devices": [_pair(seat.device)],
        "rank_id": str(seat.rank),
        "server_id": seat.server.address,
    }


def _pair(device: Device) -> dict[str, str]:
    return {"device_id": str(device.index), "device_ip": device.address}


def _tf_table(servers: Sequence[Server], group: str) -> dict[str, object]:
    """One entry a server, without ranks: a process finds itself by its server's name and its place among the devices."""
    return {
        "status": "completed",
        "group_count": "1",
        "group_list": [
            {
                "group_name": group,
                "device_count": str(sum(len(each.devices) for each in servers)),
                "instance_count": str(len(servers)),
                "instance_list": [
                    {
                        "pod_name": each.name or each.address,
                        "server_id": each.address,
                        "devices": [_pair(device) for device in each.devices],
                    }
                    for each in servers
                ],
            }
        ],
    }


def _versioned_table(servers: Sequence[Server], version: str) -> dict[str, object]:
    entries: list[list[dict[str, str]]] = [[] for _ in servers]
    for seat in seats(servers):
        entry = {**_pair(seat.device), "rank_id": str(seat.rank)}
        if version == "1.2":
            entry["super_device_id"] = seat.device.super_id or str(seat.device.index)
        entries[seat.server_rank].append(entry)
    table: dict[str, object] = {
        "version": version,
        "server_count": str(len(servers)),
        "server_list": [
            {"server_id": each.address, "device": devices, "host_nic_ip": "reserve"}
            for each, devices in zip(servers, entries, strict=True)
        ],
        "status": "completed",
    }
    if version == "1.2":
        groups: dict[str, list[dict[str, str]]] = {}
        for each in servers:
            groups.setdefault(each.super_group, []).append({"server_id": each.address})
        table["super_pod_list"] = [
            {"super_pod_id": name, "server_list": members} for name, members in groups.items()
        ]
    return table


# -- variables -------------------------------------------------------------------------------------------------------


def rank_table_variables(path: str) -> dict[str, str]:
    """Where the rank table is, under both names: MindSpore up to 0.3 asks for the second. The content must suit it."""
    return {"RANK_TABLE_FILE": path, "MINDSPORE_HCCL_CONFIG_PATH": path}


def task_environment(number: int, size: int, devices: int, address: str) -> dict[str, str]:
    """What all processes of a task have in common, before a launcher has given each its device."""
    return {
        "RANK_SIZE": str(size),
        "DEVICE_NUM": str(devices),
        "SERVER_ID": str(number),
        "HCCL_CONNECT_TIMEOUT": str(CONNECT_SECONDS),
        "HCCL_WHITELIST_DISABLE": "1",  # nobody has such a list for the nodes of a job
        **({"HCCL_IF_IP": address} if address else {}),
        **mindspore_cluster(size, SCHEDULER_PORT),
        "MS_LOCAL_WORKER": str(devices),
        "MS_NODE_RANK": str(number),
    }


def mindspore_cluster(size: int, port: int) -> dict[str, str]:
    """What all processes of MindSpore's dynamic cluster agree on, but for the scheduler's address."""
    return {"MS_SCHED_PORT": str(port), "MS_WORKER_NUM": str(size), "MS_SERVER_NUM": "0"}


def process_environment(
    servers: Sequence[Server], address: str, device: int, *, table: str = "", by_address: bool = False
) -> dict[str, str]:
    """What the process of one device gets, whatever framework it runs; `table` is the path of the rank table."""
    seat = find_seat(servers, address, device, by_address=by_address)
    return {
        "RANK_ID": str(seat.rank),
        "RANK_SIZE": str(seat.size),
        "DEVICE_ID": str(seat.device.index),
        "DEVICE_NUM": str(len(seat.server.devices)),
        "SERVER_ID": str(seat.server_rank),
        "HCCL_CONNECT_TIMEOUT": str(CONNECT_SECONDS),
        **(rank_table_variables(table) if table else {}),
    }


def mindspore_environment(
    servers: Sequence[Server],
    address: str,
    device: int,
    *,
    port: int = SCHEDULER_PORT,
    by_address: bool = False,
) -> dict[str, str]:
    """MindSpore's dynamic cluster, without a rank table: a worker, which reports to the scheduler beside rank 0."""
    seat = find_seat(servers, address, device, by_address=by_address)
    return {
        **_mindspore_cluster(servers, port, by_address=by_address),
        "MS_ROLE": "MS_WORKER",
        "MS_NODE_ID": str(seat.rank),
        "MS_WORKER_IP": address,
        "DEVICE_ID": str(seat.device.index),
    }


def mindspore_scheduler_environment(
    servers: Sequence[Server], *, port: int = SCHEDULER_PORT, by_address: bool = False
) -> dict[str, str]:
    """The one scheduler of a dynamic cluster: the same program, on the server of rank 0, in another role."""
    return {**_mindspore_cluster(servers, port, by_address=by_address), "MS_ROLE": "MS_SCHED"}


def _mindspore_cluster(servers: Sequence[Server], port: int, *, by_address: bool) -> dict[str, str]:
    first = next(seats(servers, by_address=by_address))
    return {
        "MS_SCHED_HOST": first.server.address,
        **mindspore_cluster(first.size, port),
    }


def _checked_address(text: str, what: str) -> str:
    """An address goes into JSON, into environments and into host files: no blanks, quotes or commas."""
    if not re.fullmatch(r"[0-9A-Za-z.:%_-]+", text):
        raise InvalidError(f"{text!r} is no address for {what}", hint="Write it as 192.168.10.1.")
    return text
