"""The Alibaba Cloud backend keeps the promises of `backends/api.py`, on the emulator, with one computer and with two."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from emulation import Emulation, emulated
from trainyard import settings
from trainyard.backends.aliyun.backend import AliyunBackend
from trainyard.backends.api import (
    Catalogued,
    Cleanable,
    Firewalled,
    Mountable,
    Priced,
    Renamable,
    Stoppable,
    Surveyed,
)
from trainyard.backends.contract import BackendContract
from trainyard.spec.machine import MachineSpec

pytestmark = [pytest.mark.ssh, pytest.mark.slow, pytest.mark.timeout(180)]  # machines that boot real sshds

SCARCE = "ecs.gn6i-c4g1.xlarge"


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulation]:
    with emulated(tmp_path_factory.mktemp("cloud") / "state") as emulation:
        for zone in emulation.ecs("DescribeZones")["Zones"]["Zone"]:
            wish = {"zone": zone["ZoneId"], "type": SCARCE, "spot": False, "free": 2}
            emulation.control("POST", "stock", wish)
        yield emulation


class TestAliyunBackend(BackendContract):
    spec = MachineSpec(type="ecs.g7.large")
    other_spec = MachineSpec(type="ecs.c7.xlarge")
    scarce = (MachineSpec(type=SCARCE), 4)
    capabilities = frozenset(
        {Stoppable, Renamable, Firewalled, Mountable, Catalogued, Priced, Surveyed, Cleanable}
    )

    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path, cloud: Emulation) -> None:
        self.home, self.cloud = tmp_path, cloud

    def open_backend(self) -> AliyunBackend:
        environ = {"HOME": str(self.home), "USER": "alice", **self.cloud.environ()}
        return AliyunBackend.from_settings(settings.load(environ))


class TestAliyunBackendWithSeveralComputers(TestAliyunBackend):
    """Each client has files of its own: locks, journal and keys are not shared; the provider decides."""

    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path, cloud: Emulation) -> None:
        self.home, self.cloud, self.count = tmp_path, cloud, 0

    def open_backend(self) -> AliyunBackend:
        self.count += 1
        home = self.home / str(self.count)
        environ = {"HOME": str(home), "USER": "alice", **self.cloud.environ()}
        return AliyunBackend.from_settings(settings.load(environ))
