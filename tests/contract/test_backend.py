"""Every backend keeps the promises of `backends/api.py`. The ssh backend's run, on real sshds, is with its own tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from trainyard import settings
from trainyard.backends.api import Renamable, Stoppable
from trainyard.backends.contract import BackendContract
from trainyard.backends.local import LocalBackend
from trainyard.spec.machine import MachineSpec


class TestLocalBackend(BackendContract):
    spec = MachineSpec(type="local")
    other_spec = MachineSpec(type="ecs.gn6v-c8g1.2xlarge")
    scarce = (MachineSpec(gpus=2), 3)
    capabilities = frozenset({Stoppable, Renamable})
    stops_before_rename = True

    @pytest.fixture(autouse=True)
    def _place(self, isolation: Path) -> None:
        self.home = isolation / ".trainyard"

    def open_backend(self) -> LocalBackend:
        return LocalBackend.from_settings(
            settings.load(
                {
                    **os.environ,
                    "TRAINYARD_HOME": str(self.home),
                    "TRAINYARD_LOCAL_GPUS": "5",
                    "TRAINYARD_STOP_GRACE": "2",
                }
            )
        )


class TestLocalBackendInAHostileFolder(TestLocalBackend):
    @pytest.fixture(autouse=True)
    def _place(self, isolation: Path, hostile_path: Path) -> None:
        self.home = hostile_path
