"""The offers of the emulated provider: regions, zones, types with their GPUs, disks, list prices.

Figures are those of the provider's pages (GPU families) or of the same order (the rest). What is left of it is
`stock.py`'s matter, the spot market `market.py`'s; images stand in `public_images.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

CURRENCY = "CNY"


@dataclass(frozen=True, slots=True)
class Region:
    """A region, its zones by letter, and its prices against those of Beijing."""

    id: str
    name: str
    zones: str
    factor: Decimal

    def zone_ids(self) -> list[str]:
        """`cn-beijing-h`; outside China the letter follows directly."""
        joint = "" if self.id[-1].isdigit() else "-"
        return [f"{self.id}{joint}{letter}" for letter in self.zones]

    @property
    def endpoint(self) -> str:
        """Where ECS of this region answers."""
        return "ecs-cn-hangzhou.aliyuncs.com" if self.id == "cn-hangzhou" else f"ecs.{self.id}.aliyuncs.com"


REGIONS = {
    region.id: region
    for region in (
        Region("cn-qingdao", "华北1（青岛）", "bc", Decimal(1)),
        Region("cn-beijing", "华北2（北京）", "fghijkl", Decimal(1)),
        Region("cn-zhangjiakou", "华北3（张家口）", "abc", Decimal("0.75")),
        Region("cn-huhehaote", "华北5（呼和浩特）", "ab", Decimal("0.85")),
        Region("cn-wulanchabu", "华北6（乌兰察布）", "abc", Decimal("0.9")),
        Region("cn-hangzhou", "华东1（杭州）", "bghijk", Decimal(1)),
        Region("cn-shanghai", "华东2（上海）", "beglmn", Decimal(1)),
        Region("cn-shenzhen", "华南1（深圳）", "cdef", Decimal(1)),
        Region("cn-guangzhou", "华南3（广州）", "ab", Decimal("1.05")),
        Region("cn-hongkong", "中国香港", "bcd", Decimal("1.6")),
        Region("ap-southeast-1", "新加坡", "abc", Decimal("1.9")),
        Region("ap-northeast-1", "日本（东京）", "abc", Decimal("1.8")),
        Region("us-west-1", "美国（硅谷）", "ab", Decimal("1.5")),
        Region("us-east-1", "美国（弗吉尼亚）", "ab", Decimal("0.75")),
        Region("eu-central-1", "德国（法兰克福）", "abc", Decimal("1.6")),
    )
}

ZONES = {zone: region for region in REGIONS.values() for zone in region.zone_ids()}


@dataclass(frozen=True, slots=True)
class Type:
    """An instance type."""

    name: str
    cpus: int
    memory_gib: float
    price: Decimal
    """Per hour in Beijing, Linux, without disks."""
    gpus: int = 0
    gpu: str = ""
    gpu_memory: int = 0
    gigabits: float = 1
    local_disks: int = 0
    local_gib: int = 0

    @property
    def family(self) -> str:
        """`ecs.gn6v-c8g1.2xlarge` → `ecs.gn6v`."""
        return "ecs." + self.name.split(".")[1].split("-")[0]

    @property
    def is_essd_only(self) -> bool:
        """Newer families take no older kinds of disk."""
        return self.family in ESSD_ONLY

    @property
    def has_economical_mode(self) -> bool:
        """Local disks forbid it."""
        return not self.local_disks

    @property
    def eri(self) -> int:
        """How many eRDMA interfaces it can have."""
        return 1 if self.family in ERDMA else 0

    @property
    def is_metal(self) -> bool:
        """Whether nothing stands between the guest and the hardware."""
        return self.family.startswith("ecs.ebm")


def _families(*names: str) -> frozenset[str]:
    return frozenset(f"ecs.{name}" for name in names)


ESSD_ONLY = _families(
    "g7",
    "c7",
    "r7",
    "g8i",
    "c8i",
    "gn7",
    "gn7i",
    "gn7s",
    "gn7e",
    "gn8is",
    "gn8v",
    "ebmgn7",
    "ebmgn7i",
    "ebmgn7e",
    "ebmgn7ex",
    "ebmgn8is",
    "ebmgn8ia",
    "ebmgn8v",
)
ERDMA = _families("g8i", "c8i", "gn8is", "gn8v", "ebmgn8is", "ebmgn8ia", "ebmgn8v", "ebmgn7ex")
ENTRY_DISKS = frozenset({"ecs.e", "ecs.u1"})

# name, vCPU, GiB, price · for GPU types: GPUs, model, GiB each, Gbit/s, local disks, GiB of them
_CPU_TYPES = """
ecs.e-c1m2.large 2 4 0.16
ecs.u1-c1m2.large 2 4 0.27
ecs.t6-c1m1.large 2 2 0.15
ecs.t5-lc1m2.small 1 2 0.12
ecs.c6.large 2 4 0.39
ecs.c6.xlarge 4 8 0.78
ecs.g6.large 2 8 0.5
ecs.g6.xlarge 4 16 1.0
ecs.g6.2xlarge 8 32 2.0
ecs.g5.large 2 8 0.5
ecs.c7.large 2 4 0.41
ecs.c7.xlarge 4 8 0.82
ecs.c7.2xlarge 8 16 1.64
ecs.c7.4xlarge 16 32 3.28
ecs.g7.large 2 8 0.52
ecs.g7.xlarge 4 16 1.04
ecs.g7.2xlarge 8 32 2.08
ecs.g7.8xlarge 32 128 8.32
ecs.r7.large 2 16 0.69
ecs.c8i.large 2 4 0.43
ecs.g8i.large 2 8 0.55
ecs.g8i.xlarge 4 16 1.1
"""

_GPU_TYPES = """
ecs.gn5-c4g1.xlarge 4 30 12.71 1 P100 16 3 1 440
ecs.gn5-c8g1.2xlarge 8 60 15.56 1 P100 16 3 1 440
ecs.gn5-c8g1.4xlarge 16 120 31.12 2 P100 16 5 2 440
ecs.gn5-c8g1.8xlarge 32 240 62.24 4 P100 16 10 4 440
ecs.gn5-c8g1.14xlarge 54 480 147.76 8 P100 16 25 8 440
ecs.gn5t.14xlarge 54 480 187.7 8 P100 16 25 8 440
ecs.gn5i-c2g1.large 2 8 8.2 1 P4 8 1
ecs.gn5i-c4g1.xlarge 4 16 9.1 1 P4 8 1.5
ecs.gn5i-c8g1.2xlarge 8 32 10.4 1 P4 8 2
ecs.gn5i-c28g1.14xlarge 56 224 36.8 2 P4 8 10
ecs.gn6i-c4g1.xlarge 4 15 11.63 1 T4 16 4
ecs.gn6i-c8g1.2xlarge 8 31 14 1 T4 16 5
ecs.gn6i-c16g1.4xlarge 16 62 16.41 1 T4 16 6
ecs.gn6i-c24g1.6xlarge 24 93 17.19 1 T4 16 7.5
ecs.gn6i-c40g1.10xlarge 40 155 22.5 1 T4 16 10
ecs.gn6i-c24g1.12xlarge 48 186 34.38 2 T4 16 15
ecs.gn6i-c24g1.24xlarge 96 372 68.75 4 T4 16 30
ecs.gn6v-c8g1.2xlarge 8 32 26.46 1 V100 16 2.5
ecs.gn6v-c8g1.4xlarge 16 64 52.92 2 V100 16 5
ecs.gn6v-c8g1.8xlarge 32 128 105.84 4 V100 16 10
ecs.gn6v-c8g1.16xlarge 64 256 211.68 8 V100 16 20
ecs.gn6v-c10g1.20xlarge 82 336 219.64 8 V100 16 35
ecs.gn6e-c12g1.3xlarge 12 92 19.74 1 V100 32 5
ecs.gn6e-c12g1.6xlarge 24 184 39.48 2 V100 32 8
ecs.gn6e-c12g1.12xlarge 48 368 78.96 4 V100 32 16
ecs.gn6e-c12g1.24xlarge 96 736 157.92 8 V100 32 32
ecs.gn7-c12g1.3xlarge 12 94 31.58 1 A100 40 4
ecs.gn7-c13g1.13xlarge 52 378 126.32 4 A100 40 16
ecs.gn7-c13g1.26xlarge 104 756 252.64 8 A100 40 30
ecs.gn7i-c8g1.2xlarge 8 30 9.53 1 A10 24 16
ecs.gn7i-c16g1.4xlarge 16 60 10.18 1 A10 24 16
ecs.gn7i-c32g1.8xlarge 32 188 12.71 1 A10 24 16
ecs.gn7i-c48g1.12xlarge 48 310 15.4 1 A10 24 16
ecs.gn7i-c56g1.14xlarge 56 346 16.8 1 A10 24 16
ecs.gn7i-c32g1.16xlarge 64 376 25.42 2 A10 24 32
ecs.gn7i-c32g1.32xlarge 128 752 50.84 4 A10 24 64
ecs.gn7i-2x.8xlarge 32 128 20.19 2 A10 24 16
ecs.gn7i-4x.8xlarge 32 128 36.3 4 A10 24 32
ecs.gn7i-4x.16xlarge 64 256 40.38 4 A10 24 64
ecs.gn7i-8x.16xlarge 64 256 72.6 8 A10 24 32
ecs.gn7i-8x.32xlarge 128 512 80.75 8 A10 24 64
ecs.gn7s-c8g1.2xlarge 8 60 13.2 1 A30 24 16
ecs.gn7s-c16g1.4xlarge 16 120 15.1 1 A30 24 16
ecs.gn7s-c32g1.32xlarge 128 1000 76 4 A30 24 64
ecs.gn7e-c16g1.4xlarge 16 125 34.74 1 A100 80 8
ecs.gn7e-c16g1.8xlarge 32 250 69.48 2 A100 80 16
ecs.gn7e-c16g1.16xlarge 64 500 138.97 4 A100 80 32
ecs.gn7e-c16g1.32xlarge 128 1000 277.93 8 A100 80 64
ecs.gn8is.2xlarge 8 64 17.9 1 L20 48 8
ecs.gn8is.4xlarge 16 128 19.5 1 L20 48 16
ecs.gn8is-2x.8xlarge 32 256 39 2 L20 48 32
ecs.gn8is-4x.16xlarge 64 512 78 4 L20 48 64
ecs.gn8is-8x.32xlarge 128 1024 156 8 L20 48 100
ecs.gn8v.4xlarge 16 96 34.2 1 H20 96 12
ecs.gn8v.6xlarge 24 128 35.79 1 H20 96 15
ecs.gn8v-2x.8xlarge 32 192 71.58 2 H20 96 20
ecs.gn8v-2x.12xlarge 48 256 73.9 2 H20 96 25
ecs.gn8v-4x.8xlarge 32 384 140.1 4 H20 96 20
ecs.gn8v-4x.24xlarge 96 512 148 4 H20 96 50
ecs.gn8v-8x.16xlarge 64 768 281 8 H20 96 32
ecs.gn8v-8x.48xlarge 192 1024 297 8 H20 96 100
ecs.ebmgn6i.24xlarge 96 384 72.5 4 T4 16 30
ecs.ebmgn6v.24xlarge 96 384 237.12 8 V100 16 30
ecs.ebmgn6e.24xlarge 96 768 172.4 8 V100 32 32
ecs.ebmgn7.26xlarge 104 768 252.64 8 A100 40 30
ecs.ebmgn7i.32xlarge 128 768 50.84 4 A10 24 64
ecs.ebmgn7e.32xlarge 128 1024 277.93 8 A100 80 64
ecs.ebmgn8is.32xlarge 128 1024 160 8 L20 48 160
ecs.ebmgn8ia.64xlarge 256 1536 96 4 L20 48 160
ecs.ebmgn8v.48xlarge 192 1024 300 8 H20 96 170
"""


def _parse(line: str) -> Type:
    name, cpus, memory, price, *rest = line.split()
    if not rest:
        return Type(name, int(cpus), float(memory), Decimal(price), gigabits=max(1, int(cpus) / 4))
    gpus, gpu, gpu_memory, gigabits, *local = rest
    disks, size = (int(one) for one in local) if local else (0, 0)
    return Type(
        name,
        int(cpus),
        float(memory),
        Decimal(price),
        int(gpus),
        gpu,
        int(gpu_memory),
        float(gigabits),
        disks,
        size,
    )


TYPES = {
    kind.name: kind
    for kind in (_parse(line) for line in (_CPU_TYPES + _GPU_TYPES).splitlines() if line.strip())
}

# Which zones sell a GPU family, by letter. CPU families are sold everywhere.
_SOLD: dict[str, dict[str, str]] = {
    "gn5": {
        "cn-beijing": "f",
        "cn-hangzhou": "g",
        "cn-shanghai": "b",
        "cn-shenzhen": "c",
        "cn-zhangjiakou": "a",
    },
    "gn5t": {"cn-huhehaote": "a"},
    "gn5i": {"cn-beijing": "f", "cn-hangzhou": "gh", "cn-shanghai": "b", "us-east-1": "a"},
    "gn6i": {
        "cn-beijing": "ghik",
        "cn-hangzhou": "hijk",
        "cn-shanghai": "eg",
        "cn-shenzhen": "def",
        "cn-zhangjiakou": "abc",
        "cn-guangzhou": "ab",
        "cn-hongkong": "bc",
        "ap-southeast-1": "abc",
        "us-east-1": "ab",
        "us-west-1": "b",
        "eu-central-1": "ab",
        "ap-northeast-1": "b",
        "cn-huhehaote": "b",
    },
    "gn6v": {
        "cn-beijing": "ghi",
        "cn-hangzhou": "hi",
        "cn-shanghai": "eg",
        "cn-shenzhen": "de",
        "cn-zhangjiakou": "ab",
        "cn-huhehaote": "ab",
        "ap-southeast-1": "bc",
        "us-west-1": "ab",
    },
    "gn6e": {
        "cn-beijing": "hi",
        "cn-hangzhou": "i",
        "cn-shanghai": "g",
        "cn-zhangjiakou": "bc",
        "cn-huhehaote": "a",
        "ap-southeast-1": "b",
    },
    "gn7": {"cn-beijing": "i", "cn-shanghai": "l", "cn-shenzhen": "f", "ap-southeast-1": "c"},
    "gn7i": {
        "cn-beijing": "ijkl",
        "cn-hangzhou": "jk",
        "cn-shanghai": "lmn",
        "cn-shenzhen": "def",
        "cn-wulanchabu": "abc",
        "cn-hongkong": "d",
        "ap-southeast-1": "bc",
    },
    "gn7s": {"cn-beijing": "l", "cn-hangzhou": "k"},
    "gn7e": {"cn-beijing": "kl", "cn-shanghai": "m", "cn-shenzhen": "f", "cn-wulanchabu": "b"},
    "gn8is": {"cn-beijing": "l", "cn-hangzhou": "jk", "cn-shanghai": "mn", "ap-southeast-1": "c"},
    "gn8v": {"cn-beijing": "l", "cn-hangzhou": "k", "cn-wulanchabu": "ac", "ap-southeast-1": "c"},
    "ebmgn6i": {"cn-beijing": "h", "cn-hangzhou": "i"},
    "ebmgn6v": {"cn-beijing": "h", "cn-zhangjiakou": "b", "cn-shanghai": "g"},
    "ebmgn6e": {"cn-beijing": "i", "cn-zhangjiakou": "c", "cn-shanghai": "g"},
    "ebmgn7": {"cn-beijing": "i", "cn-shanghai": "l"},
    "ebmgn7i": {"cn-beijing": "jk", "cn-shenzhen": "f"},
    "ebmgn7e": {"cn-beijing": "l", "cn-shenzhen": "f", "cn-wulanchabu": "b"},
    "ebmgn8is": {"cn-hangzhou": "k"},
    "ebmgn8ia": {"cn-hangzhou": "k"},
    "ebmgn8v": {"cn-wulanchabu": "c"},
}


def is_sold(kind: Type, zone: str) -> bool:
    """Whether a zone has ever sold the type; stock is another question."""
    letters = _SOLD.get(kind.family.removeprefix("ecs."))
    return letters is None or zone[-1] in letters.get(ZONES[zone].id, "")


# Category → least and largest size in GiB, and CNY for a GiB and month.
DISKS: dict[str, tuple[int, int, Decimal]] = {
    "cloud": (5, 2_000, Decimal("0.3")),
    "cloud_efficiency": (20, 32_768, Decimal("0.35")),
    "cloud_ssd": (20, 32_768, Decimal(1)),
    "cloud_essd": (20, 65_536, Decimal(1)),
    "cloud_auto": (1, 65_536, Decimal("0.8")),
    "cloud_essd_entry": (10, 32_768, Decimal("0.5")),
}
LEVELS: dict[str, tuple[int, Decimal]] = {
    "PL0": (1, Decimal("0.5")),
    "PL1": (20, Decimal(1)),
    "PL2": (461, Decimal(2)),
    "PL3": (1_261, Decimal(4)),
}
ESSD_KINDS = frozenset({"cloud_essd", "cloud_auto"})
SYSTEM_SIZES = (20, 2_048)
HOURS_PER_MONTH = 720
SNAPSHOT_PRICE = Decimal("0.12")  # a GiB and month
EIP_PRICE = Decimal("0.02")  # an hour, while bound to nothing
BANDWIDTH_PRICE = Decimal("0.063")  # a Mbit/s and hour, paid by bandwidth


def disk_categories(kind: Type) -> list[str]:
    """What disks a type takes."""
    if kind.is_essd_only:
        return sorted(ESSD_KINDS)
    entry = {"cloud_essd_entry"} if kind.family in ENTRY_DISKS else set()
    return sorted({"cloud_efficiency", "cloud_ssd", *ESSD_KINDS, *entry})


def instance_price(kind: Type, region: str) -> Decimal:
    """Per hour on demand."""
    return (kind.price * REGIONS[region].factor).quantize(Decimal("0.001"))


def disk_price(category: str, size: int, level: str, region: str) -> Decimal:
    """Per hour."""
    month = LEVELS[level][1] if category == "cloud_essd" and level in LEVELS else DISKS[category][2]
    return (month * size * REGIONS[region].factor / HOURS_PER_MONTH).quantize(Decimal("0.000001"))
