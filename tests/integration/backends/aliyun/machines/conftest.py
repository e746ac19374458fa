"""One emulator for the tests of a module, with real machines; each test works under a name of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from emulation import Emulation, emulated
from trainyard import settings
from trainyard.backends.aliyun.backend import AliyunBackend
from trainyard.lib.clock import Clock

Open = Callable[..., AliyunBackend]


@pytest.fixture(scope="module")
def module_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulation]:
    with emulated(tmp_path_factory.mktemp("cloud") / "state") as emulation:
        yield emulation


@pytest.fixture
def lab(module_lab: Emulation) -> Iterator[Emulation]:
    module_lab.control("DELETE", "calls")
    yield module_lab
    module_lab.control("DELETE", "faults")
    left = [row["InstanceId"] for row in module_lab.instances()]
    if left:
        module_lab.control(
            "POST", "clock", {"advance_seconds": 7200}
        )  # what never booted cannot be deleted before
        module_lab.ecs("DeleteInstances", InstanceId=left, Force=True)


@pytest.fixture
def open_client(lab: Emulation, tmp_path: Path) -> Open:
    """Opens a client of the cloud; the same name is the same computer."""

    def opened(computer: str = "laptop", *, clock: Clock | None = None, **env: str) -> AliyunBackend:
        environ = {"HOME": str(tmp_path / computer), "USER": "alice", **lab.environ(), **env}
        return AliyunBackend(settings.load(environ), clock=clock)

    return opened
