from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

import pytest

from trainyard.lib.portal import Portal


@pytest.fixture
def portal():
    made = Portal()
    yield made
    made.close()
    made.close()
    assert not any(thread.name == "trainyard-portal" for thread in threading.enumerate())


def test_result_or_failure_comes_back_when_called(portal):
    assert portal.call(asyncio.sleep(0, "x")) == "x"

    async def fail():
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        portal.call(fail())


async def test_call_works_when_a_loop_runs_in_this_thread(portal):
    assert portal.call(asyncio.sleep(0, 5)) == 5


# Ctrl-C belongs to a process of its own: a test runner's worker handles SIGINT in its own way.
CTRL_C = """
import asyncio, os, signal
from trainyard.lib.portal import Portal

order = []

async def work():
    try:
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.Event().wait()
    finally:
        await asyncio.sleep(0.05)  # what interrupting a remote command takes
        order.append("cleaned up")
        {finally_}

portal = Portal()
try:
    portal.call(work())
except KeyboardInterrupt:
    order.append("raised")
assert order == ["cleaned up", "raised"], order
assert portal.call(asyncio.sleep(0, "still usable")) == "still usable"
portal.close()
"""


@pytest.mark.parametrize("finally_", ["pass", "raise ValueError('cleanup failed')"])
def test_cleanup_has_ended_when_ctrl_c_is_raised(finally_):
    done = subprocess.run(
        [sys.executable, "-c", CTRL_C.format(finally_=finally_)], capture_output=True, text=True
    )

    assert done.returncode == 0, done.stderr


def test_background_work_is_cancelled_when_closed():
    portal = Portal()
    started, ended = threading.Event(), threading.Event()

    async def work():
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    future = portal.submit(work())
    assert started.wait(5)
    portal.close()
    assert ended.is_set()
    assert future.cancelled()
