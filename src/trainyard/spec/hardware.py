"""Accelerators as data: machine types of the family's documents, and what is in them.

Prices, zones and stock are the cloud backend's. A type that is not here is still accepted: it just has no figures.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MachineType:
    """What a machine type holds."""

    name: str
    cpus: int
    memory_mib: int
    gpus: int
    gpu_model: str


def _type(name: str, cpus: int, memory_gib: int, gpus: int, gpu_model: str) -> MachineType:
    return MachineType(name, cpus, memory_gib * 1024, gpus, gpu_model)


TYPES = {
    machine.name: machine
    for machine in (
        _type("ecs.gn6v-c8g1.2xlarge", 8, 32, 1, "V100"),
        _type("ecs.gn6v-c8g1.8xlarge", 32, 128, 4, "V100"),
        _type("ecs.gn6v-c8g1.16xlarge", 64, 256, 8, "V100"),
        _type("ecs.gn6v-c10g1.20xlarge", 82, 336, 8, "V100"),
        _type("ecs.ebmgn6v.24xlarge", 96, 384, 8, "V100"),
        _type("ecs.gn6e-c12g1.3xlarge", 12, 92, 1, "V100"),
        _type("ecs.gn6e-c12g1.12xlarge", 48, 368, 4, "V100"),
        _type("ecs.gn6e-c12g1.24xlarge", 96, 736, 8, "V100"),
        _type("ecs.gn6i-c4g1.xlarge", 4, 15, 1, "T4"),
        _type("ecs.gn6i-c8g1.2xlarge", 8, 31, 1, "T4"),
        _type("ecs.gn6i-c16g1.4xlarge", 16, 62, 1, "T4"),
        _type("ecs.gn6i-c24g1.6xlarge", 24, 93, 1, "T4"),
        _type("ecs.gn6i-c24g1.12xlarge", 48, 186, 2, "T4"),
        _type("ecs.gn6i-c24g1.24xlarge", 96, 372, 4, "T4"),
        _type("ecs.gn5-c4g1.xlarge", 4, 30, 1, "P100"),
        _type("ecs.gn5-c8g1.2xlarge", 8, 60, 1, "P100"),
        _type("ecs.gn5-c8g1.14xlarge", 54, 480, 8, "P100"),
        _type("ecs.gn5t.14xlarge", 54, 480, 8, "P100"),
        _type("ecs.gn7-c12g1.3xlarge", 12, 94, 1, "A100"),
        _type("ecs.gn7-c13g1.13xlarge", 52, 378, 4, "A100"),
        _type("ecs.gn7-c13g1.26xlarge", 104, 756, 8, "A100"),
        _type("ecs.gn7i-c8g1.2xlarge", 8, 30, 1, "A10"),
        _type("ecs.gn7i-c32g1.8xlarge", 32, 188, 1, "A10"),
        _type("ecs.gn7i-c32g1.32xlarge", 128, 752, 4, "A10"),
        _type("ecs.ebmgn7.26xlarge", 104, 768, 8, "A100"),
        _type("ecs.ebmgn7e.32xlarge", 128, 1024, 8, "A100"),
        _type("local", 0, 0, 0, ""),
    )
}

_MODEL = re.compile(
    r"(?i)\b(H20|H100|H200|H800|A100|A800|A10G?|A30|A40|V100S?|T4|P100|P4|L4|L20|L40S?|B200|Ascend\s*910\w*|910\w*|310\w*)\b"
)


def short_model(name: str) -> str:
    """`Tesla V100-SXM2-16GB` → `V100`; an unknown name comes back as it is."""
    match = _MODEL.search(name)
    return match[1] if match else name.strip()
