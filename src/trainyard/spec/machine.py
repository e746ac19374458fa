"""MachineSpec: what is asked for. Machine: what a backend says there is. Both frozen, both printable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from enum import StrEnum


class MachineState(StrEnum):
    """Where a machine is in its life. RELEASED machines are not listed by any backend."""

    PENDING = "pending"  # promised, not yet reachable
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"  # files kept, nothing runs
    LOST = "lost"  # the backend knows the name, but the machine does not answer
    RELEASED = "released"


class DeviceKind(StrEnum):
    """Who makes the accelerator, which decides the variable that selects it."""

    GPU = "gpu"
    NPU = "npu"


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator of a machine."""

    kind: DeviceKind
    index: int
    model: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineSpec:
    """What a user asked for. Empty and zero mean: no wish."""

    type: str = ""
    image: str = ""
    image_type: str = ""
    gpus: int | None = None  # None: as the type says, where the backend knows the type
    npus: int = 0
    spot: bool = False
    system_disk_gib: int = 0
    data_disk_gib: int = 0
    zone_id: str = ""
    vpc_name: str = ""
    shared_storage: bool = False
    snapshot: str = ""  # what the data disk begins as
    with_driver: bool = False  # an image that has the GPU driver, where there is one
    min_machines: int = 0  # with how many of those asked for one is content; 0: all or none
    max_hours: float = 0.0  # after which they are released by the provider unless a client renews it
    max_price_per_hour: Decimal | None = None  # of one machine
    spot_price_limit: Decimal | None = None  # likewise, on the spot market; None: whatever it costs
    role: str = ""  # the provider's role that a machine is given, by which it may stop itself
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A place that runs commands, as its backend described it at `seen`. Crosses processes; has no behaviour."""

    name: str
    id: str
    backend: str
    state: MachineState
    address: str = ""  # where the other machines of the job reach it
    public_address: str = ""  # where the client reaches it
    user: str = ""
    home: str = ""
    type: str = ""
    image: str = ""
    cpus: int = 0
    memory_mib: int = 0
    devices: tuple[Device, ...] = ()
    region: str = ""
    zone: str = ""
    spot: bool = False
    owner: str = ""  # who made it: user@client
    created: datetime | None = None
    started: datetime | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    details: Mapping[str, str] = field(default_factory=dict)  # the backend's own words, for --json

    @property
    def gpu_text(self) -> str:
        """`V100 x 8`, `2 GPU`, or `-`."""
        if not self.devices:
            return "-"
        model = self.devices[0].model
        return (
            f"{model} x {len(self.devices)}"
            if model
            else f"{len(self.devices)} {self.devices[0].kind.upper()}"
        )
