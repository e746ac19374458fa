"""The ssh backend keeps the promises of `backends/api.py`, on real sshds, with one laptop and with two."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from lab import Lab
from sshd import Sshd
from trainyard.backends.api import Renamable, Stoppable
from trainyard.backends.contract import BackendContract
from trainyard.backends.ssh.backend import SshBackend
from trainyard.spec.machine import MachineSpec

pytestmark = [pytest.mark.ssh, pytest.mark.slow]  # three real sshds are started for each


class TestSshBackend(BackendContract):
    spec = MachineSpec(type="local")
    other_spec = MachineSpec(type="ecs.gn6v-c8g1.2xlarge")
    scarce = (MachineSpec(), 4)
    capabilities = frozenset({Stoppable, Renamable})
    stops_before_rename = True

    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path, sshds: Callable[..., list[Sshd]]) -> None:
        self.lab = Lab(tmp_path, sshds(3))

    def open_backend(self) -> SshBackend:
        return SshBackend.from_settings(self.lab.laptop())


class TestSshBackendWithSeveralLaptops(TestSshBackend):
    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path, sshds: Callable[..., list[Sshd]]) -> None:
        self.lab = Lab(tmp_path, sshds(3))
        self.count = 0

    def open_backend(self) -> SshBackend:
        self.count += 1
        return SshBackend.from_settings(self.lab.laptop(f"alice@laptop{self.count}"))
