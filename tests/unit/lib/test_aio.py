from __future__ import annotations

import asyncio

import pytest

from trainyard.lib import aio


async def test_healthy_ones_finish_when_one_fails():
    done = []

    async def work(number):
        await asyncio.sleep(0)
        if number == 1:
            raise ValueError("one")
        await asyncio.sleep(0)
        done.append(number)
        return number

    results = await aio.gather_all(work(number) for number in range(3))
    assert results[0] == 0
    assert isinstance(results[1], ValueError)
    assert results[2] == 2
    assert done == [0, 2]


async def test_all_are_cancelled_when_the_call_is():
    ended = []

    async def work(number):
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(number)

    task = asyncio.ensure_future(aio.gather_all([work(0), work(1)]))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sorted(ended) == [0, 1]


async def test_no_more_run_at_once_when_bounded():
    running, most = 0, 0

    async def work(item):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        if item == 5:
            raise ValueError(item)
        return item * 2

    results = await aio.map_bounded(work, range(20), limit=3)
    assert most == 3
    assert [result for result in results if not isinstance(result, ValueError)] == [
        item * 2 for item in range(20) if item != 5
    ]


async def test_cleanup_ends_when_the_caller_is_cancelled():
    gate, cleaned = asyncio.Event(), []

    async def cleanup():
        await gate.wait()
        cleaned.append(True)
        raise ValueError("nobody may be bothered with this one")

    task = asyncio.ensure_future(aio.finish(cleanup()))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.sleep(0)
    assert not task.done()
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert cleaned


async def test_cleanup_gives_its_result_when_nobody_cancels():
    assert await aio.finish(asyncio.sleep(0, "x")) == "x"


async def test_task_is_gone_when_ended():
    await aio.end_task(None)
    task = asyncio.ensure_future(asyncio.Event().wait())
    await aio.end_task(task)
    assert task.cancelled()

    async def fail():
        raise ValueError

    failed = asyncio.ensure_future(fail())
    await asyncio.sleep(0)
    await aio.end_task(failed)
    assert failed.done()
