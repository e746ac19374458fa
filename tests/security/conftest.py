"""A server's REST application in this process, and a real PostgreSQL, for the suites that attack."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from postgres import postgres  # noqa: F401  # a fixture
from rest_server import Rig


@pytest.fixture
def make_rig(tmp_path: Path) -> Iterator[Callable[..., Rig]]:
    """A factory: servers of one platform or of several."""
    made: list[Rig] = []

    def make(name: str = "data", **options: Any) -> Rig:
        made.append(Rig(tmp_path / name, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()
