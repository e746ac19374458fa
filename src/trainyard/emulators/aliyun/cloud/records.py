"""Everything that can exist in the emulated cloud, as plain data.

What becomes of these things is `timeline.py`'s matter, what may be done to them the actions'. A record is saved as it
stands here (`saved_state.py`), so a field that is added needs a default.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal

Tags = dict[str, str]


@dataclass(slots=True, kw_only=True)
class Instance:
    """A virtual server."""

    id: str
    region: str
    zone: str
    type: str
    name: str
    hostname: str
    image: str
    created: datetime
    vpc: str
    vswitch: str
    groups: list[str]
    address: str
    """The private address that the API shows: a loopback address at which the machine answers."""
    inner_address: str
    """The address inside the vSwitch's range: kept for counting only."""
    interface: str
    """Id of the primary network interface."""
    interface_tags: Tags = field(default_factory=dict)
    status: str = "Pending"
    description: str = ""
    public_address: str = ""
    eip: str = ""
    bandwidth_in: int = 0
    bandwidth_out: int = 0
    internet_charge: str = "PayByTraffic"
    charge: str = "PostPaid"
    spot_strategy: str = "NoSpot"
    spot_limit: Decimal | None = None
    spot_duration: int = 1
    spot_behavior: str = "Terminate"
    key_pair: str = ""
    authorized_keys: list[str] = field(default_factory=list)
    password: str = ""
    user_data: str = ""
    """As it was sent, in base64."""
    ram_role: str = ""
    deployment_set: str = ""
    deletion_protection: bool = False
    login_as_non_root: bool = False
    http_tokens: str = "optional"
    resource_group: str = ""
    tags: Tags = field(default_factory=dict)
    started: datetime | None = None
    expires: datetime | None = None
    auto_release: datetime | None = None
    stopped_mode: str = "Not-applicable"
    locks: list[str] = field(default_factory=list)
    boot: int = 0
    visible: datetime | None = None
    """When DescribeInstances begins to show it."""
    due: datetime | None = None
    """When the present status passes into the next."""
    reclaim: datetime | None = None
    """When a spot instance under notice goes."""
    market_check: datetime | None = None
    """When the spot price is next compared with the limit."""
    protected_until: datetime | None = None
    agent_ready: datetime | None = None
    rebooting: bool = False
    deleting: bool = False
    stop_request: str = ""
    """The StoppedMode that the stop under way was asked for."""
    next_hostname: str = ""
    next_keys: list[str] | None = None
    next_password: str = ""

    @property
    def is_spot(self) -> bool:
        """Whether it is preemptible."""
        return self.spot_strategy != "NoSpot"


@dataclass(slots=True, kw_only=True)
class Disk:
    """A block device; belongs to an instance or stands alone."""

    id: str
    region: str
    zone: str
    category: str
    size: int
    kind: str
    """system or data."""
    created: datetime
    performance_level: str = ""
    name: str = ""
    description: str = ""
    instance: str = ""
    device: str = ""
    delete_with_instance: bool = True
    portable: bool = True
    image: str = ""
    snapshot: str = ""
    status: str = "In_use"
    attached: datetime | None = None
    detached: datetime | None = None
    tags: Tags = field(default_factory=dict)
    encrypted: bool = False
    charge: str = "PostPaid"
    due: datetime | None = None


@dataclass(slots=True, kw_only=True)
class Snapshot:
    """A copy of a disk at one moment."""

    id: str
    region: str
    name: str
    disk: str
    disk_kind: str
    size: int
    created: datetime
    description: str = ""
    status: str = "progressing"
    tags: Tags = field(default_factory=dict)
    due: datetime | None = None


@dataclass(slots=True, kw_only=True)
class Image:
    """Something to boot from; the provider's own stand in the catalogue, the account's in the world."""

    id: str
    name: str
    region: str = ""
    """Empty: in every region."""
    family: str = ""
    owner: str = "system"
    created: datetime
    size: int = 40
    os_name: str = ""
    platform: str = ""
    architecture: str = "x86_64"
    os_type: str = "linux"
    boot_mode: str = "BIOS"
    description: str = ""
    version: str = ""
    status: str = "Available"
    snapshots: list[str] = field(default_factory=list)
    tags: Tags = field(default_factory=dict)
    copied: bool = False
    due: datetime | None = None


@dataclass(slots=True, kw_only=True)
class KeyPair:
    """A public key under a name, in one region."""

    id: str
    region: str
    name: str
    fingerprint: str
    public_key: str
    created: datetime
    tags: Tags = field(default_factory=dict)


def _range(given: str) -> str:
    return str(ipaddress.IPv4Network(given, strict=False)) if given else ""


@dataclass(slots=True, kw_only=True)
class Rule:
    """One line of a security group."""

    id: str
    direction: str
    protocol: str
    ports: str
    source_cidr: str = ""
    source_group: str = ""
    source_ports: str = ""
    dest_cidr: str = ""
    dest_group: str = ""
    ipv6_source: str = ""
    ipv6_dest: str = ""
    policy: str = "Accept"
    priority: int = 1
    nic: str = "intranet"
    description: str = ""
    created: datetime

    def identity(self) -> tuple[str | int, ...]:
        """What makes two rules the same rule; the description doesn't, nor how a range is written."""
        return (
            self.direction,
            self.protocol,
            self.ports,
            _range(self.source_cidr),
            self.source_group,
            self.source_ports,
            _range(self.dest_cidr),
            self.dest_group,
            self.ipv6_source,
            self.ipv6_dest,
            self.policy,
            self.priority,
            self.nic,
        )


@dataclass(slots=True, kw_only=True)
class Group:
    """A security group."""

    id: str
    region: str
    vpc: str
    name: str
    created: datetime
    description: str = ""
    kind: str = "normal"
    inner_access: str = "Accept"
    rules: list[Rule] = field(default_factory=list)
    tags: Tags = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class Vpc:
    """A private network."""

    id: str
    region: str
    cidr: str
    router: str
    route_table: str
    created: datetime
    name: str = ""
    description: str = ""
    status: str = "Pending"
    tags: Tags = field(default_factory=dict)
    due: datetime | None = None


@dataclass(slots=True, kw_only=True)
class VSwitch:
    """A subnet in one zone."""

    id: str
    region: str
    vpc: str
    zone: str
    cidr: str
    created: datetime
    name: str = ""
    description: str = ""
    status: str = "Pending"
    occupied: int = 0
    """Addresses taken by things that the emulator doesn't have: set by tests, to fill a subnet."""
    tags: Tags = field(default_factory=dict)
    due: datetime | None = None


@dataclass(slots=True, kw_only=True)
class Eip:
    """An elastic address; outlives the instance it is bound to."""

    id: str
    region: str
    address: str
    bandwidth: int
    created: datetime
    internet_charge: str = "PayByTraffic"
    name: str = ""
    description: str = ""
    instance: str = ""
    status: str = "Available"
    tags: Tags = field(default_factory=dict)
    due: datetime | None = None


@dataclass(slots=True, kw_only=True)
class MountTarget:
    """Where a file system can be mounted from."""

    domain: str
    vpc: str
    vswitch: str
    access_group: str
    network: str = "Vpc"
    status: str = "Pending"
    due: datetime | None = None


@dataclass(slots=True, kw_only=True)
class FileSystem:
    """A NAS file system."""

    id: str
    region: str
    zone: str
    kind: str
    protocol: str
    storage: str
    created: datetime
    description: str = ""
    capacity: int = 0
    status: str = "Pending"
    targets: list[MountTarget] = field(default_factory=list)
    tags: Tags = field(default_factory=dict)
    due: datetime | None = None


@dataclass(slots=True, kw_only=True)
class AccessRule:
    """Who may mount."""

    id: str
    source_cidr: str
    access: str = "RDWR"
    user: str = "no_squash"
    priority: int = 1


@dataclass(slots=True, kw_only=True)
class AccessGroup:
    """A named list of access rules of NAS."""

    region: str
    name: str
    kind: str = "Vpc"
    file_system_kind: str = "standard"
    description: str = ""
    created: datetime
    rules: list[AccessRule] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class DeploymentSet:
    """A wish for how instances are spread."""

    id: str
    region: str
    name: str
    strategy: str
    created: datetime
    description: str = ""


@dataclass(slots=True, kw_only=True)
class Command:
    """A script of Cloud Assistant."""

    id: str
    region: str
    name: str
    kind: str
    content: str
    """In base64: scripts are bytes, and a saved state is text."""
    created: datetime
    description: str = ""
    working_dir: str = ""
    timeout: int = 60
    has_parameters: bool = False
    kept: bool = True


@dataclass(slots=True, kw_only=True)
class Target:
    """What one instance makes of an invocation."""

    instance: str
    status: str = "Pending"
    exit_code: int | None = None
    output: str = ""
    """In base64, the last 24 KB."""
    dropped: int = 0
    error_code: str = ""
    error: str = ""
    started: datetime | None = None
    finished: datetime | None = None
    stopped: datetime | None = None


@dataclass(slots=True, kw_only=True)
class Invocation:
    """A script or a file on its way to instances."""

    id: str
    region: str
    command: str
    """Id of the command; empty for a file."""
    created: datetime
    script: str = ""
    """In base64, its parameters filled in."""
    kind: str = "RunShellScript"
    name: str = ""
    description: str = ""
    timeout: int = 60
    working_dir: str = ""
    username: str = ""
    termination: str = "Process"
    repeat: str = "Once"
    file: dict[str, str] = field(default_factory=dict)
    """Name, TargetDir, Content (base64), FileMode, FileOwner, FileGroup, Overwrite."""
    targets: list[Target] = field(default_factory=list)
    tags: Tags = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class SystemEvent:
    """Something that the provider does to an instance."""

    id: str
    region: str
    instance: str
    kind: str
    reason: str
    published: datetime
    not_before: datetime
    status: str = "Scheduled"
    finished: datetime | None = None


@dataclass(slots=True, kw_only=True)
class Charge:
    """A stretch of time over which a thing costs money."""

    thing: str
    """Id of what is billed."""
    kind: str
    """instance, disk, bandwidth, address, snapshot."""
    what: str
    """The type, category or size, for people."""
    start: datetime
    end: datetime | None = None
    rate: Decimal = Decimal(0)
    """Per hour; of a spot instance the price while it is protected."""
    spot_zone: str = ""
    """Set for a spot instance: the market whose price is paid after `fixed_until`."""
    fixed_until: datetime | None = None
    """Until then the price stays what it was at the start."""


@dataclass(slots=True, kw_only=True)
class PricePoint:
    """A spot price that was set by hand; None: the market's again."""

    start: datetime
    price: Decimal | None
