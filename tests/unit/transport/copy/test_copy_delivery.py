from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass, field

import pytest

from trainyard.lib.errors import DeniedError
from trainyard.transport.copy.delivery import WINDOW, Stock
from trainyard.transport.copy.payload import make_payload


@dataclass
class Item:
    """Something that takes memory while it is in stock."""

    alive: list[int]
    most: list[int]
    number: int
    fails: bool = False
    made: int = field(default=0)

    def make(self):
        if self.fails:
            raise DeniedError("cannot be read")
        self.made += 1
        self.alive.append(self.number)
        self.most.append(len(self.alive))
        payload = make_payload(lambda descriptor: os.write(descriptor, b"x"))
        release, payload._release = payload._release, lambda: (self.alive.remove(self.number), release())
        return payload


@pytest.fixture
def items():
    alive, most = [], []
    return [Item(alive, most, number) for number in range(8)]


async def walk(stock: Stock, pace) -> None:
    for index in range(len(stock.items)):
        await stock.take(index)
        await pace(index)
        stock.give(index)


async def test_each_archive_is_made_once_and_freed_when_all_have_read_it(items):
    stock = Stock(items, users=3)
    await asyncio.gather(*[walk(stock, lambda _index: asyncio.sleep(0)) for _ in range(3)])
    await stock.settled()
    assert [item.made for item in items] == [1] * 8
    assert items[0].alive == []


async def test_memory_stays_bounded_when_one_machine_is_slow(items):
    stock = Stock(items, users=2)
    gate = asyncio.Event()

    async def slow(_index: int) -> None:
        await gate.wait()

    quick = asyncio.ensure_future(walk(stock, lambda _index: asyncio.sleep(0)))
    hanging = asyncio.ensure_future(walk(stock, slow))
    done, _ = await asyncio.wait([quick], timeout=0.1)
    assert not done
    assert len(items[0].alive) == WINDOW
    gate.set()
    await asyncio.gather(quick, hanging)
    await stock.settled()
    assert max(items[0].most) <= WINDOW
    assert items[0].alive == []


async def test_others_go_on_when_a_machine_leaves(items):
    stock = Stock(items, users=2)
    await stock.take(0)
    for index in range(len(items)):  # it failed, and gives back all that it will never take
        stock.give(index)
    await asyncio.wait_for(walk(stock, lambda _index: asyncio.sleep(0)), 5)
    await stock.settled()
    assert items[0].alive == []


async def test_nothing_stays_in_memory_when_everybody_is_cancelled(items):
    stock = Stock(items, users=2)

    async def forever(_index: int) -> None:
        await asyncio.Event().wait()

    async def user() -> None:
        try:
            await walk(stock, forever)
        finally:
            for index in range(len(items)):
                stock.give(index)

    tasks = [asyncio.ensure_future(user()) for _ in range(2)]
    while not items[0].alive:
        await asyncio.sleep(0.001)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await stock.settled()
    assert items[0].alive == []


async def test_every_machine_hears_of_it_when_a_file_cannot_be_read(items):
    items[1].fails = True
    stock = Stock(items, users=2)
    results = await asyncio.gather(
        *[walk(stock, lambda _index: asyncio.sleep(0)) for _ in range(2)], return_exceptions=True
    )
    assert [type(result) for result in results] == [DeniedError, DeniedError]
    assert results[0] is results[1]
