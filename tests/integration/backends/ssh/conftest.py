"""A lab of real sshds for each test that asks for one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from lab import Lab
from sshd import Sshd


@pytest.fixture
async def make_lab(tmp_path: Path, sshds: Callable[..., list[Sshd]]) -> AsyncIterator[Callable[..., Lab]]:
    """A factory: `make_lab(3)` gives a lab with hosts h0, h1, h2; options go to the sshds."""
    labs: list[Lab] = []

    def make(count: int = 1, **options: object) -> Lab:
        lab = Lab(tmp_path, sshds(count, **options))
        labs.append(lab)
        return lab

    yield make
    for lab in labs:
        await lab.aclose()
