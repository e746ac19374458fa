"""What the engine's tests share."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from engine_lab import EngineLab, lab_in


@pytest.fixture
async def lab(isolation: Path, hostile_path: Path) -> AsyncIterator[EngineLab]:
    """A lab whose one node has a home with a hostile name."""
    async with lab_in(hostile_path / "home") as lab:
        yield lab
