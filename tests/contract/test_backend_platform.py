"""The platform backend keeps the promises of `backends/api.py`, on a real platform."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from platforms import Up, platform
from trainyard import settings
from trainyard.backends.api import Stoppable
from trainyard.backends.contract import BackendContract
from trainyard.backends.platform.backend import PlatformBackend
from trainyard.spec.machine import MachineSpec

pytestmark = [pytest.mark.slow]  # a whole platform is started for them


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with platform(tmp_path_factory.mktemp("platform")) as running:
        yield running


class TestPlatformBackend(BackendContract):
    spec = MachineSpec(type="0.1c0g")
    other_spec = MachineSpec(type="0.2c0g")
    scarce = (MachineSpec(type="0.1c0g"), 4000)
    capabilities = frozenset({Stoppable})
    ready_seconds = 60.0

    @pytest.fixture(autouse=True)
    def _place(self, up: Up, isolation: Path) -> None:
        self.up = up
        self.home = isolation / ".trainyard"

    def open_backend(self) -> PlatformBackend:
        return PlatformBackend.from_settings(
            settings.load(
                {
                    **os.environ,
                    "TRAINYARD_HOME": str(self.home),
                    "TRAINYARD_SERVER": self.up.url,
                    "TRAINYARD_TOKEN": self.up.token,
                }
            )
        )
