"""A yard of emulated machines, once per kind of isolation that works for whoever runs the tests."""

from __future__ import annotations

import asyncio

import pytest
from emulator_lab import STRONG, close_lab, make_lab

from trainyard.emulators.aliyun.machines import Isolation, folder


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    """Machines do not look for their folder while a test counts their processes."""
    monkeypatch.setattr(folder, "LOOK_SECONDS", 600.0)


@pytest.fixture(params=[STRONG, Isolation.HOME], ids=str)
async def lab(request, isolation, tmp_path):
    lab = await make_lab(tmp_path, request.param)
    try:
        yield lab
    finally:
        await close_lab(lab)


@pytest.fixture
async def strong_lab(isolation, tmp_path):
    """Machines with a view of their own."""
    lab = await make_lab(tmp_path, STRONG)
    try:
        yield lab
    finally:
        await close_lab(lab)


@pytest.fixture
def eventually():
    """Wait for a condition, at most some seconds."""

    async def wait(condition, seconds=20.0):
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while not condition():
            assert loop.time() < end, "it never came to be"
            await asyncio.sleep(0.01)

    return wait
