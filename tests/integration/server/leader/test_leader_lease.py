"""Who leads, and goes on to lead whatever became of the term before."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from trainyard.lib.clock import ManualClock, SystemClock
from trainyard.lib.errors import UnreachableError
from trainyard.server.leader import leader_lease
from trainyard.server.leader.leader_lease import (
    LEASE,
    LEASE_SECONDS,
    LeaderTerm,
    LeadLostError,
    WatchedLease,
    lead,
)
from trainyard.server.store import leases, tables
from trainyard.server.store.database import Database


@pytest.fixture
def db(tmp_path):
    made = Database(f"sqlite:///{tmp_path / 'x.db'}")
    made.write_now(tables.metadata.create_all)
    yield made
    made.close()


@pytest.mark.parametrize(
    "failure",
    [LeadLostError(), UnreachableError("the database does not answer"), KeyError("a mistake of ours")],
    ids=["lost", "silent", "mistake"],
)
@pytest.mark.parametrize("is_grouped", [False, True], ids=["alone", "in a group"])
async def test_a_server_leads_again_when_a_term_has_failed(db, failure, is_grouped, monkeypatch, caplog):
    monkeypatch.setattr(leader_lease, "RENEW_SECONDS", 0.02)
    terms: list[int] = []
    has_led = asyncio.Event()

    async def fail() -> None:
        raise failure

    async def work(term: LeaderTerm) -> None:
        terms.append(term.epoch)
        if len(terms) > 2:
            has_led.set()
            await asyncio.Event().wait()
        if is_grouped:
            async with asyncio.TaskGroup() as outer, asyncio.TaskGroup() as inner:
                outer.create_task(asyncio.Event().wait())
                inner.create_task(fail())
        await fail()

    leading = asyncio.create_task(lead(db, SystemClock(), "one", work))
    try:
        async with asyncio.timeout(20):
            await has_led.wait()
    finally:
        leading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await leading
    assert len(set(terms)) == 3, "each term has a number of its own"
    assert ("Traceback" in caplog.text) == isinstance(failure, KeyError), (
        "only what is unheard of is told whole"
    )


async def test_a_term_ends_when_its_writes_find_another_leader(db, monkeypatch):
    monkeypatch.setattr(leader_lease, "RENEW_SECONDS", 0.02)
    terms: list[LeaderTerm] = []
    ends: list[str] = []

    async def work(term: LeaderTerm) -> None:
        terms.append(term)
        if len(terms) == 1:  # it sleeps through its lease, and another takes it
            await db.write(lambda c: leases.release(c, leader_lease.LEASE, term.epoch))
            other = await db.write(lambda c: leases.take(c, leader_lease.LEASE, owner="other", seconds=0.2))
            assert other is not None
            async with asyncio.TaskGroup() as group:
                group.create_task(term.write(lambda c: ends.append("written")))
        await asyncio.Event().wait()

    leading = asyncio.create_task(lead(db, SystemClock(), "one", work))
    try:
        async with asyncio.timeout(20):
            while len(terms) < 2:
                await asyncio.sleep(0.01)
    finally:
        leading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await leading
    assert ends == [], "nothing was written by the one who does not lead"
    assert terms[1].epoch > terms[0].epoch + 1


async def test_a_lease_is_taken_over_when_its_owner_is_gone_and_the_databases_clock_was_set_back(db):
    clock = ManualClock()
    two_hours = 7200.0  # ahead: as the clock was before it was set back
    await db.write(lambda c: leases.take(c, LEASE, owner="other", seconds=two_hours))
    watched = WatchedLease(clock)
    assert await watched.take(db, "one") is None
    clock.advance(LEASE_SECONDS * 0.9)
    await db.write(lambda c: leases.renew(c, LEASE, 1, seconds=two_hours))
    assert await watched.take(db, "one") is None
    clock.advance(LEASE_SECONDS * 0.9)
    assert await watched.take(db, "one") is None, "it was renewed since it was seen first"
    clock.advance(LEASE_SECONDS * 0.2)
    await db.write(lambda c: leases.renew(c, LEASE, 1, seconds=two_hours))
    assert await watched.take(db, "one") is None, "it was renewed at the last moment"
    clock.advance(LEASE_SECONDS * 1.1)
    taken = await watched.take(db, "one")
    assert taken is not None
    assert taken.epoch == 2
