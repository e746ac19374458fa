"""One emulator for the tests of a module; each test finds it without faults, in a cloud that may hold others' things."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cloud import make_client

from emulation import Emulation, emulated
from trainyard.backends.aliyun.api.client import Client


@pytest.fixture(scope="module")
def module_cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulation]:
    with emulated(tmp_path_factory.mktemp("cloud") / "state") as emulation:
        yield emulation


@pytest.fixture
def emulated_cloud(module_cloud: Emulation) -> Iterator[Emulation]:
    module_cloud.control("DELETE", "calls")
    yield module_cloud
    module_cloud.control("DELETE", "faults")


@pytest.fixture
def emulated_client(emulated_cloud: Emulation, isolation: Path) -> Client:
    return make_client(emulated_cloud, isolation)
