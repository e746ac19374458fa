"""Held under faults: whatever goes wrong and whenever the client dies, nothing is made twice, lost or paid for twice.

`TRAINYARD_CHAOS_SEEDS=1-50` runs other seeds than the usual ones, `TRAINYARD_CHAOS_STEPS=40` longer.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from chaos import JOB, MOST, Chaos

from emulation import Emulation, emulated
from fast_clock import hurry

RATE = 12.0  # a throttled minute takes seconds


def wanted_seeds() -> Iterator[object]:
    """`1,5,10-20`; unless some are named, one here and others in `make test-deep`."""
    asked = os.environ.get("TRAINYARD_CHAOS_SEEDS")
    if asked is None:
        yield from (1, pytest.param(2, marks=pytest.mark.deep), pytest.param(3, marks=pytest.mark.deep))
        return
    for part in asked.split(","):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


STEPS = int(os.environ.get("TRAINYARD_CHAOS_STEPS", "8"))

# A dozen whole programs a seed, each against real machines, and throttled minutes that are waited out.
pytestmark = [pytest.mark.ssh, pytest.mark.slow, pytest.mark.timeout(120 + 30 * STEPS)]


@pytest.fixture
def chaos_cloud(tmp_path: Path) -> Iterator[Emulation]:
    timing = ("pending=0.5", "starting=1", "stopping=1", "deleting=1", "visible=1")
    options = [word for each in timing for word in ("--set", f"timing.{each}")]
    with emulated(tmp_path / "state", *options) as cloud:
        yield cloud


@pytest.mark.parametrize("seed", list(wanted_seeds()))
def test_nothing_is_lost_or_paid_for_twice_when_everything_goes_wrong(
    seed: int, chaos_cloud: Emulation, tmp_path: Path
) -> None:
    home = tmp_path / "person"
    home.mkdir()
    chaos = Chaos(chaos_cloud, home, hurry(chaos_cloud, RATE), seed)
    try:
        for _ in range(STEPS):
            chaos.step()
        chaos.calm()
        chaos.check_accounted()
        chaos.quietly("create", "--name", JOB, "-i", "ecs.g7.large", "-y", "-np", str(MOST))
        chaos.check_accounted()
        names = sorted(one["name"] for one in chaos.state()["instances"].values())
        assert names == [f"task{index}.{JOB}" for index in range(MOST)]
        assert chaos.launches() == []
        assert "ran" in chaos.quietly("run", f"{{{JOB}}}", "echo ran").output
        chaos.quietly("kill", "-y", f"{{{JOB}}}")
        chaos.check_bill()
        chaos.quietly("cleanup", "-y")
        state = chaos.state()
        left = {
            table: list(state[table])
            for table in ("instances", "disks", "vpcs", "vswitches", "groups", "key_pairs")
        }
        assert not any(left.values()), left
        assert float(chaos_cloud.control("GET", "bill")["per_hour"]) == 0
    except BaseException:
        print("\n".join(f"{number}. {step}" for number, step in enumerate(chaos.steps)))
        raise
