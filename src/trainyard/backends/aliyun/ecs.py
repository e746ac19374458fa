"""Converts between machines and ECS instances: names, tags, the parameters of a launch, instance to Machine.

Pure except for `fetch_machines`. `launch/` finds capacity and launches; `power.py` stops and deletes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from trainyard.backends.aliyun.access.network import TAG
from trainyard.backends.aliyun.api.client import Client
from trainyard.backends.aliyun.api.paging import BATCH, fetch_all
from trainyard.backends.aliyun.api.wire import Answer, Parameter, number, parse_time, rows, tags, text, texts
from trainyard.backends.aliyun.costs import PRICE_TAG, money, price_text, read_rates, spent
from trainyard.backends.aliyun.launch.catalogue import SPOT, Candidate, Disk
from trainyard.lib.errors import ConflictError, InvalidError
from trainyard.spec.hardware import short_model
from trainyard.spec.machine import Device, DeviceKind, Machine, MachineSpec, MachineState
from trainyard.spec.names import parse_task, sort_key, task_name

NAME = "aliyun"
MACHINE = "machine"  # the value of our tag on machines; "network" is on what they stand on
USER_TAG = "trainyard-user"
CLIENT_TAG = "trainyard-client"
HOST_KEY_TAG = "trainyard-host-key"  # on machines of earlier versions, which were given a key
TOKEN_TAG = "trainyard-token"  # noqa: S105  # of the launch, no secret
STORAGE_TAG = "trainyard-storage"
HOURS_TAG = "trainyard-max-hours"
KEPT_TAG = (
    "trainyard-kept"  # yes or no: which of several machines of one name stays; see `race_resolution.py`
)
RECYCLING = "Recycling"  # the lock of a spot machine that has been given notice
LABEL = "label:"  # in front of the user's own
BANDWIDTH_MBIT = 50  # as the family has it; paid by traffic
LEAST_AUTO_RELEASE = timedelta(minutes=31)  # the provider refuses less than thirty minutes ahead
KEPT, GIVEN_UP = "yes", "no"
_PREFERENCE = {KEPT: 0, "": 1, GIVEN_UP: 2}
STATES = {
    "Pending": MachineState.PENDING,
    "Starting": MachineState.PENDING,
    "Running": MachineState.RUNNING,
    "Stopping": MachineState.STOPPING,
    "Stopped": MachineState.STOPPED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """How machines are logged in to: the emulator may have another port and user than the cloud."""

    user: str = "root"
    port: int = 22
    home: str = "/root"


# -- names --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Series:
    """Names that one launch can give: task0.bert to task9.bert. `form` is how the provider wants to be told."""

    names: tuple[str, ...]
    form: str


def series(names: Sequence[str]) -> list[Series]:
    """The fewest launches that give these names: numbers that follow each other and have the same number of digits.

    With digits that change in the middle the provider would have to count from 9 to 10, and whether it pads is not said.
    """
    found: list[list[str]] = []
    for name in sorted(names, key=sort_key):
        last = found[-1] if found else []
        if last and len(last) < BATCH and _follows(last[-1], name):
            last.append(name)
        else:
            found.append([name])
    return [Series(tuple(each), _form(each)) for each in found]


def _follows(before: str, name: str) -> bool:
    one, two = parse_task(before), parse_task(name)
    return (
        one is not None
        and two is not None
        and one.job == two.job
        and two.number == one.number + 1
        and len(str(one.number)) == len(str(two.number))
    )


def _form(names: Sequence[str]) -> str:
    first = parse_task(names[0])
    if len(names) == 1 or first is None:
        return names[0]
    return task_name(first.job, 0).replace("0", f"[{first.number},{len(str(first.number))}]", 1)


# -- launches -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What all machines of one request have in common."""

    spec: MachineSpec
    image_id: str
    system_disk: Disk
    data_disk: Disk | None
    group_id: str
    key_pair: str
    user_data: str
    user: str
    client: str


def launch_parameters(
    launch: Launch, candidate: Candidate, *, vswitch_id: str, names: Series, now: datetime, least: int = 0
) -> dict[str, Parameter]:
    """The parameters of RunInstances. With `least`, fewer than all names are welcome."""
    spec = launch.spec
    parameters: dict[str, Parameter] = {
        "ImageId": launch.image_id,
        "InstanceType": candidate.type,
        "VSwitchId": vswitch_id,
        "SecurityGroupId": launch.group_id,
        "InstanceName": names.form,
        "Amount": len(names.names),
        "MinAmount": least or None,
        "InstanceChargeType": "PostPaid",
        "InternetChargeType": "PayByTraffic",
        "InternetMaxBandwidthOut": BANDWIDTH_MBIT,
        "KeyPairName": launch.key_pair,
        "UserData": launch.user_data,
        "RamRoleName": spec.role or None,
        "SystemDisk": launch.system_disk.parameters(),
        "DataDisk": _data_disks(launch),
        "Tag": _tag_list(launch, candidate),
        **_spot_parameters(spec, candidate),
    }
    if spec.max_hours:
        parameters["AutoReleaseTime"] = release_time(spec.max_hours, now)
    return parameters


def _data_disks(launch: Launch) -> Sequence[Parameter]:
    if launch.data_disk is None:
        return []
    disk = {**launch.data_disk.parameters(), "DeleteWithInstance": True}
    return [{**disk, "SnapshotId": launch.spec.snapshot or None}]


def _tag_list(launch: Launch, candidate: Candidate) -> Sequence[Parameter]:
    found = {
        TAG: MACHINE,
        USER_TAG: launch.user,
        CLIENT_TAG: launch.client,
        PRICE_TAG: price_text(candidate.price),
        STORAGE_TAG: "shared" if launch.spec.shared_storage else "",
        HOURS_TAG: f"{launch.spec.max_hours:g}" if launch.spec.max_hours else "",
    }
    found |= {f"{LABEL}{name}": value for name, value in launch.spec.labels.items()}
    return [{"Key": key, "Value": value} for key, value in found.items() if value]


def _spot_parameters(spec: MachineSpec, candidate: Candidate) -> dict[str, Parameter]:
    if not candidate.is_spot:
        return {"SpotStrategy": "NoSpot"}
    if spec.spot_price_limit is None:
        return {"SpotStrategy": SPOT, "SpotDuration": 1}
    return {
        "SpotStrategy": "SpotWithPriceLimit",
        "SpotPriceLimit": round(spec.spot_price_limit, 3),
        "SpotDuration": 1,  # the first hour is safe
    }


def release_time(max_hours: float, now: datetime) -> datetime:
    """When the provider is to release machines by itself."""
    if max_hours < 0:
        raise InvalidError(f"max_hours cannot be {max_hours}", hint="Write hours, for example max_hours=8.")
    return now + max(LEAST_AUTO_RELEASE, timedelta(hours=max_hours))


# -- machines -----------------------------------------------------------------------------------------------------------


async def fetch_machines(
    client: Client, *, user: str, login: Login, everybody: bool = False
) -> tuple[Machine, ...]:
    """Our machines of the region, or all of the account."""
    wanted: Sequence[Parameter] = [{"Key": TAG, "Value": MACHINE}, {"Key": USER_TAG, "Value": user}]
    parameters: dict[str, Parameter] = {} if everybody else {"Tag": wanted}
    found = await fetch_all(client, "ecs", "DescribeInstances", parameters)
    now = client.clock.now()
    return tuple(sorted((describe(row, login=login, now=now) for row in found), key=machine_key))


def machine_key(machine: Machine) -> tuple[tuple[str, int, str], str, str]:
    """By name; of two with one name the older first."""
    created = machine.created.isoformat() if machine.created else ""
    return sort_key(machine.name), created, machine.id


def describe(row: Answer, *, login: Login, now: datetime) -> Machine:
    """An instance as a machine."""
    own = tags(row)
    created, started = parse_time(text(row, "CreationTime")), parse_time(text(row, "StartTime"))
    state = STATES.get(text(row, "Status"), MachineState.PENDING)
    gpus = int(number(row, "GPUAmount"))
    model = short_model(text(row, "GPUSpec")) if gpus else ""
    owner = "@".join(word for word in (own.get(USER_TAG, ""), own.get(CLIENT_TAG, "")) if word)
    public = text(row, "EipAddress.IpAddress") or _first(texts(row, "PublicIpAddress.IpAddress"))
    private = _first(texts(row, "VpcAttributes.PrivateIpAddress.IpAddress"))
    return Machine(
        name=text(row, "InstanceName"),
        id=text(row, "InstanceId"),
        backend=NAME,
        state=state,
        address=private,
        public_address=public,
        user=login.user,
        home=login.home,
        type=text(row, "InstanceType"),
        image=text(row, "ImageId"),
        cpus=int(number(row, "Cpu")),
        memory_mib=int(number(row, "Memory")),
        devices=tuple(Device(DeviceKind.GPU, index, model) for index in range(gpus)),
        region=text(row, "RegionId"),
        zone=text(row, "ZoneId"),
        spot=text(row, "SpotStrategy") not in {"", "NoSpot"},
        owner=owner or text(row, "KeyPairName"),
        created=created,
        started=started if state is MachineState.RUNNING else None,
        labels={key.removeprefix(LABEL): value for key, value in own.items() if key.startswith(LABEL)},
        details=_details(row, own, state=state, login=login, now=now),
    )


def _details(
    row: Answer, own: Mapping[str, str], *, state: MachineState, login: Login, now: datetime
) -> dict[str, str]:
    locks = [text(lock, "LockReason") for lock in rows(row, "OperationLocks.LockReason")]
    found = {
        "ssh_port": str(login.port),
        "host_key": own.get(HOST_KEY_TAG, ""),
        "hostname": text(row, "HostName"),
        "key_pair": text(row, "KeyPairName"),
        "vpc_id": text(row, "VpcAttributes.VpcId"),
        "vswitch_id": text(row, "VpcAttributes.VSwitchId"),
        "security_group_ids": ",".join(texts(row, "SecurityGroupIds.SecurityGroupId")),
        "instance_charge_type": text(row, "InstanceChargeType"),
        "internet_charge_type": text(row, "InternetChargeType"),
        "internet_max_bandwidth_in": str(int(number(row, "InternetMaxBandwidthIn"))),
        "internet_max_bandwidth_out": str(int(number(row, "InternetMaxBandwidthOut"))),
        "serial_number": text(row, "SerialNumber"),
        "vlan_id": text(row, "VlanId"),
        "deployment_set_id": text(row, "DeploymentSetId"),
        "stopped_mode": text(row, "StoppedMode") if state is MachineState.STOPPED else "",
        "release_time": text(row, "AutoReleaseTime"),
        "locks": ",".join(lock for lock in locks if lock),
        "notice": "the provider takes this spot machine back within five minutes"
        if RECYCLING in locks
        else "",
        "launch": own.get(TOKEN_TAG, ""),
        "shared_storage": own.get(STORAGE_TAG, ""),
        "max_hours": own.get(HOURS_TAG, ""),
        "kept": own.get(KEPT_TAG, "") if own.get(KEPT_TAG) in _PREFERENCE else "",
        "started": text(row, "StartTime"),
        **_costs(row, own, state=state, now=now),
    }
    return {key: value for key, value in found.items() if value}


def _costs(row: Answer, own: Mapping[str, str], *, state: MachineState, now: datetime) -> dict[str, str]:
    rates = read_rates(own)
    created = parse_time(text(row, "CreationTime"))
    if rates is None or created is None:
        return {}
    is_stopped = state is MachineState.STOPPED
    is_charged_in_full = is_stopped and text(row, "StoppedMode") != "StopCharging"
    amount = spent(
        rates,
        own,
        created=created,
        started=parse_time(text(row, "StartTime")),
        is_stopped=is_stopped,
        is_charged_in_full=is_charged_in_full,
        now=now,
    )
    name = text(row, "InstanceName")
    current = rates.stopped if is_stopped and not is_charged_in_full else rates.running
    note = ""
    if is_charged_in_full:
        note = f"{name} is stopped but goes on costing {money(current)} {rates.currency} an hour: its type cannot stop costing"
    elif is_stopped:
        note = f"{name} goes on costing {money(current)} {rates.currency} an hour for its disks"
    return {
        "cost_note": note,
        "currency": rates.currency,
        "price_per_hour": money(rates.running),
        "exact_price_per_hour": f"{rates.running.normalize():f}",
        "stopped_price_per_hour": money(rates.stopped),
        "exact_stopped_price_per_hour": f"{rates.stopped.normalize():f}",
        "price_per_hour_now": money(current),
        "spent": money(amount),
    }


def check_fit(machine: Machine, spec: MachineSpec) -> None:
    """Refuse a machine that is not what was asked for."""
    hint = f"Choose another name, or run `trainyard kill {machine.name}` first."
    asked = wanted_types(spec)
    if asked and machine.type not in asked:
        raise ConflictError(
            f"the machine {machine.name!r} has the type {machine.type!r}, not {spec.type!r}", hint=hint
        )
    if spec.gpus is not None and spec.gpus != len(machine.devices):
        raise ConflictError(
            f"the machine {machine.name!r} has {len(machine.devices)} GPUs, not {spec.gpus}", hint=hint
        )


def wanted_types(spec: MachineSpec) -> list[str]:
    """`ecs.a,ecs.b`: either will do, the first rather than the second."""
    return [word.strip() for word in spec.type.split(",") if word.strip()]


def one_of_each(machines: Sequence[Machine]) -> dict[str, Machine]:
    """By name; of two with one name the one that is kept, else the older."""
    found: dict[str, Machine] = {}
    for machine in sorted(
        machines, key=lambda each: (_PREFERENCE[each.details.get("kept", "")], machine_key(each))
    ):
        found.setdefault(machine.name, machine)
    return found


def by_region(machines: Sequence[Machine]) -> Iterator[tuple[str, list[Machine]]]:
    """Machines apart by region, each once."""
    unique = list({machine.id: machine for machine in machines}.values())
    for region in dict.fromkeys(machine.region for machine in unique):
        yield region, [machine for machine in unique if machine.region == region]


def _first(found: Sequence[str]) -> str:
    return found[0] if found else ""
