"""An emulated cloud with real machines for the tests of this folder, and platforms whose only nodes are bought there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pool_lab import Lab

from emulation import Emulation, emulated
from platforms import platform


@pytest.fixture(scope="module")
def module_cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulation]:
    with emulated(tmp_path_factory.mktemp("cloud") / "state") as emulation:
        yield emulation


@pytest.fixture
def cloud(module_cloud: Emulation) -> Iterator[Emulation]:
    yield module_cloud
    module_cloud.control("DELETE", "faults")
    left = [row["InstanceId"] for row in module_cloud.instances()]
    if left:
        module_cloud.ecs("DeleteInstances", InstanceId=left, Force=True)


@pytest.fixture(scope="module")
def module_lab(module_cloud: Emulation, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """An empty platform: nothing runs on the server's own machine."""
    cloud, tmp_path = module_cloud, tmp_path_factory.mktemp("yard")
    env = {**cloud.environ(), "TRAINYARD_SERVER_BOOK_SECONDS": "0.5", "TRAINYARD_SERVER_POOL_SECONDS": "0.2"}
    with platform(tmp_path / "p", "--no-local-node", env=env) as up:
        yield Lab(up, cloud)


@pytest.fixture
def lab(module_lab: Lab, cloud: Emulation) -> Iterator[Lab]:
    """The same for each test, with a pool's name of its own."""
    module_lab.begin()
    yield module_lab
    module_lab.end()
