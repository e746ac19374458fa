"""The state of one emulated cloud: all its resources, and the options of its user.

Data and the plainest questions about it. What time does to it is in `timeline.py`, what costs it in `ledger.py`, what is
left of the stock in `stock.py`; `world.py` puts them together.
"""

from __future__ import annotations

import hashlib
import ipaddress
import string
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from decimal import Decimal
from fnmatch import fnmatchcase

from trainyard.emulators.aliyun.api.problems import Problem
from trainyard.emulators.aliyun.cloud.records import (
    AccessGroup,
    Charge,
    Command,
    DeploymentSet,
    Disk,
    Eip,
    FileSystem,
    Group,
    Image,
    Instance,
    Invocation,
    KeyPair,
    PricePoint,
    Snapshot,
    SystemEvent,
    Vpc,
    VSwitch,
)

_SMALLEST = 24  # a loopback range with fewer addresses is soon used up
ALPHABET = string.digits + string.ascii_lowercase

# Ids carry where they were made; these stems are from examples in the provider's documents.
STEMS = {
    "cn-hangzhou": "bp1",
    "cn-beijing": "2ze",
    "cn-shanghai": "uf6",
    "cn-shenzhen": "wz9",
    "cn-zhangjiakou": "8vb",
    "cn-huhehaote": "hp3",
    "cn-hongkong": "j6c",
    "ap-southeast-1": "t4n",
}


@dataclass(slots=True, kw_only=True)
class Timing:
    """How many seconds things take."""

    pending: float = 2
    starting: float = 15
    stopping: float = 10
    deleting: float = 3
    visible: float = 0.5
    """Until a new instance shows in DescribeInstances."""
    agent: float = 3
    """Until Cloud Assistant answers, after Running."""
    recycling: float = 300
    """The notice before a spot instance goes."""
    vpc: float = 1
    vswitch: float = 1
    disk: float = 1
    snapshot: float = 20
    image: float = 60
    address: float = 1
    file_system: float = 3
    mount_target: float = 5
    delivery: float = 60
    """How long Cloud Assistant tries to reach an instance."""

    @classmethod
    def instant(cls) -> Timing:
        """Nothing takes time but the spot notice and the delivery of commands."""
        return cls(
            pending=0,
            starting=0,
            stopping=0,
            deleting=0,
            visible=0,
            agent=0,
            vpc=0,
            vswitch=0,
            disk=0,
            snapshot=0,
            image=0,
            address=0,
            file_system=0,
            mount_target=0,
        )


@dataclass(slots=True, kw_only=True)
class Slowness:
    """Other durations for instances whose name matches a pattern; None leaves the usual one."""

    names: str
    pending: float | None = None
    starting: float | None = None
    stopping: float | None = None
    deleting: float | None = None


@dataclass(slots=True, kw_only=True)
class Quotas:
    """How much one account may have, per region where the provider counts so."""

    vcpus: int = 50_000
    """Pay-as-you-go; 0 is what new accounts have."""
    spot_vcpus: int = 50_000
    disks: int = 5_000
    key_pairs: int = 500
    groups: int = 100
    rules: int = 200
    group_members: int = 2_000
    images: int = 100
    snapshots: int = 1_000
    vpcs: int = 10
    vswitches: int = 150
    eips: int = 20
    file_systems: int = 20
    mount_targets: int = 2
    tags: int = 20
    invocations: int = 10_000


@dataclass(slots=True, kw_only=True)
class Account:
    """What the provider thinks of the customer."""

    balance: Decimal = Decimal(100_000)
    overdue: bool = False
    verified: bool = True
    nas_activated: bool = True
    economical: bool = False
    """Whether a stop without StoppedMode is economical."""
    denied: list[str] = field(default_factory=list)
    """Actions that RAM forbids, as `ecs:RunInstances`; patterns allowed. DescribeInstances then shows nothing."""
    roles: list[str] = field(default_factory=lambda: ["*"])
    """RAM roles that exist; patterns allowed."""


def durations_of(record: Timing | Slowness) -> list[float]:
    """The durations in a record."""
    values = [getattr(record, one.name) for one in fields(record)]
    return [one for one in values if isinstance(one, (int, float))]


@dataclass(slots=True, kw_only=True)
class Options:
    """What a user of the emulator may set when the world is made, and change later."""

    timing: Timing = field(default_factory=Timing)
    slow: list[Slowness] = field(default_factory=list)
    quotas: Quotas = field(default_factory=Quotas)
    account: Account = field(default_factory=Account)
    stock: int = 1_000
    """Machines of each type in each zone that sells it, on demand and again as spot."""
    loopback: str = "127.64.0.0/16"
    """Where the machines' addresses are taken from."""
    machines: bool = True
    """Whether instances have machines; without, they go through their states and nobody answers at their addresses."""
    market: bool = True
    """Whether spot prices move, and take instances whose limit they pass."""
    retired_images: list[str] = field(default_factory=list)
    """Images of the provider that are no longer to be had."""
    images_without_assistant: list[str] = field(default_factory=list)
    """Images whose machines have no Cloud Assistant until it is installed."""

    def check(self) -> None:
        """ValueError where a value makes no sense."""
        spans = [*durations_of(self.timing), *(one for rule in self.slow for one in durations_of(rule))]
        if any(span < 0 for span in spans):
            raise ValueError("nothing takes less than no time")
        network = ipaddress.IPv4Network(self.loopback)
        if not network.is_loopback or network.prefixlen > _SMALLEST:
            raise ValueError(f"{self.loopback} is no part of 127.0.0.0/8 of at least /{_SMALLEST}")

    def duration(self, step: str, name: str = "") -> timedelta:
        """How long `step` takes for an instance called `name`."""
        seconds: float = getattr(self.timing, step)
        for rule in self.slow:
            own = getattr(rule, step, None)
            if own is not None and fnmatchcase(name, rule.names):
                seconds = own
        return timedelta(seconds=seconds)


@dataclass(kw_only=True)
class CloudState:
    """One emulated cloud."""

    seed: str = "trainyard"
    serial: int = 0
    """Counts ids; the next one follows from it and the seed alone."""
    address_serial: int = 0
    clock: datetime | None = None
    """The moment up to which time has passed here."""
    options: Options = field(default_factory=Options)
    instances: dict[str, Instance] = field(default_factory=dict)
    disks: dict[str, Disk] = field(default_factory=dict)
    snapshots: dict[str, Snapshot] = field(default_factory=dict)
    images: dict[str, Image] = field(default_factory=dict)
    key_pairs: dict[str, KeyPair] = field(default_factory=dict)
    groups: dict[str, Group] = field(default_factory=dict)
    vpcs: dict[str, Vpc] = field(default_factory=dict)
    vswitches: dict[str, VSwitch] = field(default_factory=dict)
    eips: dict[str, Eip] = field(default_factory=dict)
    file_systems: dict[str, FileSystem] = field(default_factory=dict)
    access_groups: dict[str, AccessGroup] = field(default_factory=dict)
    deployment_sets: dict[str, DeploymentSet] = field(default_factory=dict)
    commands: dict[str, Command] = field(default_factory=dict)
    invocations: dict[str, Invocation] = field(default_factory=dict)
    events: list[SystemEvent] = field(default_factory=list)
    charges: list[Charge] = field(default_factory=list)
    capacity: dict[str, int] = field(default_factory=dict)
    """Stock where it differs from the option: `zone/type/spot` or `zone/type/demand` → machines in all."""
    advice: dict[str, str] = field(default_factory=dict)
    """StatusCategory that DescribeAvailableResource answers whatever the stock: same keys."""
    texts: dict[str, str] = field(default_factory=dict)
    """Only while it is saved: UserData by digest, since the instances of a job have the same."""
    price_points: dict[str, list[PricePoint]] = field(default_factory=dict)
    """Spot prices that were set by hand, oldest first: `zone/type` → prices."""

    def __post_init__(self) -> None:
        for instance in self.instances.values():
            instance.user_data = self.texts.get(instance.user_data, instance.user_data)
        self.texts = {}

    def new_id(self, prefix: str, region: str = "", length: int = 20) -> str:
        """An id that was never given before: `i-2ze…`."""
        self.serial += 1
        digest = hashlib.sha256(f"{self.seed}:{prefix}:{self.serial}".encode()).digest()
        number = int.from_bytes(digest, "big")
        letters = []
        for _ in range(length):
            number, rest = divmod(number, len(ALPHABET))
            letters.append(ALPHABET[rest])
        stem = STEMS.get(region, "0xi") if region else ""
        return prefix + stem + "".join(letters)[: length - len(stem)]

    def new_address(self) -> str:
        """A loopback address that no machine has."""
        network = ipaddress.ip_network(self.options.loopback)
        taken = set(self._addresses())
        for _ in range(network.num_addresses):
            self.address_serial += 1
            candidate = network[self.address_serial % network.num_addresses]
            # 0 and 255 as last byte read like the names of networks, and some programs refuse them.
            if candidate.packed[-1] not in {0, 255} and str(candidate) not in taken:
                return str(candidate)
        raise Problem("InsufficientPublicIp", "The loopback range of the emulator is used up.", 403)

    def _addresses(self) -> Iterator[str]:
        for instance in self.instances.values():
            yield instance.address
            yield instance.public_address
        for eip in self.eips.values():
            yield eip.address

    def disks_of(self, instance: str) -> list[Disk]:
        """The disks that are attached to an instance."""
        return [disk for disk in self.disks.values() if disk.instance == instance]

    def interfaces_in(self, vswitch: str) -> list[str]:
        """The addresses that are taken in a vSwitch."""
        return [one.inner_address for one in self.instances.values() if one.vswitch == vswitch]

    def targets_in(self, vswitch: str) -> int:
        """How many mount targets of NAS stand in a vSwitch."""
        return sum(
            target.vswitch == vswitch for system in self.file_systems.values() for target in system.targets
        )
