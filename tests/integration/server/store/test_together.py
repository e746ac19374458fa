"""Several servers on one database: leases, events in order, the same key at once, starting together."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from people import VISION, People
from trainyard.lib.errors import StaleError
from trainyard.server.people.first_start import ensure_admin
from trainyard.server.services import Services
from trainyard.server.store import events, leases, upgrade
from trainyard.server.store.database import Database
from trainyard.server.store.jobs import workloads
from trainyard.server.store.people import users
from trainyard.spec.events import Event


def test_the_next_owner_waits_when_a_lease_is_held(db: Database):
    first = db.write_now(lambda c: leases.take(c, "leader", owner="a", seconds=10, now=100.0))
    assert first is not None
    assert first.epoch == 1
    assert db.write_now(lambda c: leases.take(c, "leader", owner="b", seconds=10, now=105.0)) is None
    assert db.write_now(lambda c: leases.renew(c, "leader", 1, seconds=10, now=108.0))
    assert db.write_now(lambda c: leases.take(c, "leader", owner="b", seconds=10, now=117.0)) is None
    second = db.write_now(lambda c: leases.take(c, "leader", owner="b", seconds=10, now=118.5))
    assert second is not None
    assert second.epoch == 2
    assert not db.write_now(lambda c: leases.renew(c, "leader", 1, seconds=10, now=119.0))
    with pytest.raises(StaleError, match="leader"):
        db.write_now(lambda c: leases.check(c, "leader", 1))
    db.write_now(lambda c: leases.check(c, "leader", 2))
    db.write_now(lambda c: leases.release(c, "leader", 1))  # not ours any more: nothing happens
    assert db.write_now(lambda c: leases.take(c, "leader", owner="a", seconds=10, now=119.0)) is None
    db.write_now(lambda c: leases.release(c, "leader", 2))
    assert db.write_now(lambda c: leases.take(c, "leader", owner="a", seconds=10, now=119.0)) is not None


def test_the_databases_clock_counts_when_no_time_is_given(db: Database):
    import time

    taken = db.write_now(lambda c: leases.take(c, "leader", owner="a", seconds=10))
    assert taken is not None
    assert taken.until == pytest.approx(time.time() + 10, abs=5)
    assert db.read_now(lambda c: leases.find(c, "leader")) == taken


def test_a_lease_cannot_be_taken_when_its_owner_is_in_the_middle_of_a_write(postgres):
    """Without the lock a leader that was late could write beside its follower."""
    db = Database(postgres.database())
    upgrade.ensure(db)
    db.write_now(lambda c: leases.take(c, "leader", owner="a", seconds=1, now=1.0))
    checked, go = threading.Event(), threading.Event()
    order: list[str] = []

    def slow(connection):
        leases.check(connection, "leader", 1)
        checked.set()
        go.wait(10)
        order.append("wrote")

    def take(connection):
        found = leases.take(connection, "leader", owner="b", seconds=1, now=100.0)
        order.append("took")
        return found

    with ThreadPoolExecutor(2) as pool:
        writing = pool.submit(db.write_now, slow)
        checked.wait(10)
        taking = pool.submit(db.write_now, take)
        with pytest.raises(TimeoutError):
            taking.result(0.2)
        go.set()
        writing.result(10)
        assert taking.result(10).epoch == 2
    assert order == ["wrote", "took"]
    db.close()


@pytest.mark.slow  # two hundred transactions with their commits
def test_a_follower_misses_nothing_when_many_write_events_at_once(db: Database):
    writers, each = 6, 30
    seen: list[int] = []
    done = threading.Event()

    def write(writer: int) -> None:
        for number in range(each):
            event = Event(time=1.0, subject="node", subject_id=f"{writer}-{number}", code="x", message="y")
            db.write_now(lambda c, event=event: events.append_many(c, [event, replace(event, code="z")]))

    def follow() -> None:
        last = 0
        while True:
            was_done = done.is_set()
            batch = db.read_now(lambda c, last=last: events.page(c, after_seq=last, limit=7))
            seen.extend(event.seq for event in batch)
            last = batch[-1].seq if batch else last
            if was_done and not batch:
                return

    with ThreadPoolExecutor(writers + 1) as pool:
        reading = pool.submit(follow)
        list(pool.map(write, range(writers)))
        done.set()
        reading.result(60)
    assert seen == sorted(seen)
    stored = db.read_now(lambda c: [event.seq for event in events.page(c, limit=10_000)])
    assert seen == stored
    assert len(seen) == writers * each * 2


def test_what_people_changed_is_told_once_each_when_a_loop_asks(db: Database):
    def put(c):
        for subject, name, actor in (
            ("workload", "a", "ann"), ("workload", "b", ""), ("node", "n", "ann"), ("workload", "a", "ben"),
        ):  # fmt: skip
            events.append(
                c, Event(time=1.0, subject=subject, subject_id=name, code="x", message="y", actor=actor)
            )

    db.write_now(put)
    assert db.read_now(lambda c: events.wishes_since(c, 0)) == ([("workload", "a"), ("node", "n")], 4)
    assert db.write_now(lambda c: events.delete_before(c, 2.0, limit=3)) == 3


async def test_a_job_is_submitted_once_when_the_same_key_comes_many_times_at_once(people: People):
    spec = people.job(name="once")
    other = Services(people.db, people.clock, people.services.wakeups, settings=people.services.settings)
    records = await asyncio.gather(
        *(
            (people.services if number % 2 else other).jobs.submit(people.ann, spec, idempotency_key="k")
            for number in range(8)
        )
    )
    other.close()
    assert len({record.id for record in records}) == 1
    assert await people.db.read(lambda c: workloads.count(c, workspace_ids=[VISION])) == 1


def test_there_is_one_administrator_when_servers_start_together(database_url: str, tmp_path: Path):
    from trainyard.lib.clock import SystemClock

    servers = [Database(database_url) for _ in range(3 if "postgres" in database_url else 1)]

    def start(db: Database):
        upgrade.ensure(db)
        return ensure_admin(db, SystemClock())

    with ThreadPoolExecutor(len(servers)) as pool:
        made = [one for one in pool.map(start, servers) if one is not None]
    assert len(made) == 1
    assert servers[0].read_now(users.count) == 1
    assert made[0].password not in repr(made[0])
    assert made[0].token not in repr(made[0])
    for db in servers:
        db.close()


def test_both_are_written_when_two_wishes_meet(postgres):
    """PostgreSQL lets transactions meet: the row's lock makes the second see the first."""
    import asyncio as loops

    from people import assemble
    from trainyard.lib.clock import SystemClock
    from trainyard.spec.workload import Desired

    async def play(folder: Path) -> None:
        db = Database(postgres.database())
        upgrade.ensure(db)
        people = await assemble(db, SystemClock(), folder)
        record = await people.services.jobs.submit(people.ann, people.job())
        wishes = [people.services.jobs.set_priority(people.ann, record.id, number) for number in range(1, 9)]
        await loops.gather(*wishes, people.services.jobs.set_desired(people.ann, record.id, Desired.PAUSE))
        after = await people.services.jobs.get(people.ann, record.id)
        assert after.desired is Desired.PAUSE
        assert after.version >= 9
        people.services.close()
        db.close()

    loops.run(play(Path("/tmp")))
