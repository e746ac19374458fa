"""A node as it is stored: what it has, what people want of it, how it is, and what it does with images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

IGNORE, REFUSE, PODMAN, DOCKER = IMAGES = ("ignore", "refuse", "podman", "docker")
NODES = "nodes"  # the engine of machines that people or pools bring
# A label that the scheduler sees on nodes where a task that names an image starts.
RUNS_IMAGES = "trainyard/images"


class NodeDesired(StrEnum):
    """What people want of a node. Only services write it."""

    READY = "ready"
    CORDONED = "cordoned"  # keeps what runs, takes nothing new
    DRAINED = "drained"  # what runs is asked to go, and requeued
    GONE = "gone"  # it does not come back: its tasks are lost for good, and it is forgotten


class NodeCondition(StrEnum):
    """Where a node is. Only loops write it."""

    JOINING = "joining"
    READY = "ready"
    LOST = "lost"  # it does not answer
    REFUSED = "refused"  # it answers, but cannot be used: `reason` says why


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRecord:
    """One row of nodes. CPU is in thousandths of a core."""

    name: str
    created_at: float
    engine: str = NODES
    address: Mapping[str, Any] = field(default_factory=dict)
    pool: str = "default"
    cpu: int = 0
    memory_mib: int = 0
    reserved_cpu: int = 0
    reserved_memory_mib: int = 0
    devices: Mapping[str, int] = field(default_factory=dict)
    simulated: bool = False
    unhealthy: Mapping[str, Sequence[int]] = field(default_factory=dict)  # by type, those that nobody gets
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[str, ...] = ()
    topology: tuple[str, ...] = ()
    desired: str = NodeDesired.READY
    state: str = NodeCondition.JOINING
    reason: str = ""
    boot_id: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    failures: int = 0
    avoid_until: float | None = None
    fence_seconds: int = 0
    seen_at: float | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    version: int = 1


def is_own_computer(record: NodeRecord) -> bool:
    """Whether a node is the computer that the server runs on."""
    return str(record.address.get("backend", "local")) == "local"


def images_on(record: NodeRecord) -> str:
    """What a node does with images: run them in containers, by what it has or by one of both; or ignore them, as the server's own."""
    return str(record.options.get("images") or (IGNORE if is_own_computer(record) else REFUSE))


def can_run_images(record: NodeRecord) -> bool:
    """Whether a task that names an image starts there."""
    return images_on(record) == IGNORE or bool(record.facts.get("containers"))
