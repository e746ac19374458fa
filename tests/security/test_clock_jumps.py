"""Somebody, or a time server, sets the clock of a running platform: ahead by hours and a year, back by minutes and to 1970.

No job is lost, run twice or stopped for it, no bill and no time grows by it, schedules go on, and nothing opens twice what
opens once. How limits, leases and budgets count is tried besides in tests/integration/loops and tests/integration/platform.
"""

from __future__ import annotations

import asyncio
import signal
import time
import urllib.error
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from clocks import Clock, Clocks, clocks  # noqa: F401  # a fixture
from platforms import Up, platform
from postgres import running
from signed_requests import as_bytes, signed, statuses
from trainyard.lib.clock import ManualClock
from trainyard.server.auth.nonces import CLOCK_SECONDS, MARGIN_SECONDS, Nonces
from trainyard.server.leader import clock_trust
from trainyard.server.leader.leader_lease import LEASE, LEASE_SECONDS, LeaderTerm
from trainyard.server.leader.retention import Retention
from trainyard.server.logs.log_files import LogStore
from trainyard.server.records.tokens import TokenRecord
from trainyard.server.records.users import UserRecord
from trainyard.server.settings import ServerSettings
from trainyard.server.store import leases, nonces, settings, upgrade
from trainyard.server.store.database import Database
from trainyard.server.store.people import tokens, users
from trainyard.server.usage.costs import BOOKED

MINUTE, HOUR, YEAR = 60.0, 3600.0, 366 * 86400.0
BEGINNING = 86400.0  # of 1970, where nowhere on earth it is 1969
SOON = 20.0


def to_1970() -> float:
    return BEGINNING - time.time()


def to_half_past(ahead: float) -> float:
    """About so far ahead, in the middle of an hour: none begins while a test looks."""
    moment = time.time() + ahead
    return ahead + (HOUR / 2 - moment % HOUR)


def seen(up: Up, ahead: float) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=ahead)


def until(check: Callable[[], Any], seconds: float = SOON) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := check()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


def seconds_of(job: dict[str, Any]) -> float:
    return (moment(job["stopped_at"]) - moment(job["started_at"])).total_seconds()


class Stepped:
    """A platform and its clock."""

    def __init__(self, up: Up, clock: Clock, folder: Path) -> None:
        self.up = up
        self.clock = clock
        self.folder = folder
        self.runs = 0

    def submit(self, command: str, **given: Any) -> str:
        # Who steps is the platform, not the job.
        return self.up.submit(command, env={"LD_PRELOAD": ""}, **given)

    def submit_waiting(self, **given: Any) -> tuple[str, Callable[[], None]]:
        """A job that writes down that it runs, and ends when it may."""
        self.runs += 1
        flag, ledger = self.folder / f"go-{self.runs}", self.folder / f"ran-{self.runs}"
        self.folder.chmod(0o777)
        job = self.submit(
            f'echo "$TRAINYARD_JOB_ID" >> {ledger}; until test -e {flag}; do sleep 0.05; done', **given
        )
        self.up.until(job, "running")
        until(ledger.exists)

        def end() -> None:
            flag.touch()
            found = self.up.until(job, "succeeded", "failed", "cancelled")
            assert (found["state"], found["attempt"]) == ("succeeded", 1), found
            assert ledger.read_text().split() == [job]

        return job, end

    def run_one(self) -> dict[str, Any]:
        """Several turns, and a job that comes to its end at the time that the clock shows."""
        found = self.up.until(self.submit("true"), "succeeded", "failed")
        assert (found["state"], found["attempt"]) == ("succeeded", 1), found
        return found


@pytest.fixture(scope="module")
def stepped(tmp_path_factory: pytest.TempPathFactory, clocks: Clocks) -> Iterator[Stepped]:  # noqa: F811  # the fixture
    clock, folder = clocks.make(), tmp_path_factory.mktemp("stepped")
    if not clock.env:
        pytest.skip("there is no C compiler")
    with platform(folder / "yard", env=clock.env) as up:
        up.call(
            "PATCH", "/api/v1/nodes/local", {"options": {"isolation": "off"}}
        )  # the flags are outside of what tasks see
        yield Stepped(up, clock, folder)
        clock.set(0.0)


@pytest.fixture
def lab(stepped: Stepped) -> Iterator[Stepped]:
    stepped.clock.set(0.0)
    yield stepped
    stepped.clock.set(0.0)


def test_a_job_runs_on_once_when_the_clock_is_set_ahead_and_back_again_and_again(lab: Stepped):
    _job, end = lab.submit_waiting(max_run_seconds=1800)
    for ahead in (HOUR, YEAR, -10 * MINUTE, -2 * HOUR, to_1970(), 0.0):
        lab.clock.set(ahead)
        shown = moment(lab.run_one()["submitted_at"])
        assert abs(shown - seen(lab.up, ahead)) < timedelta(seconds=30)
    end()


@pytest.mark.parametrize(
    ("before", "after"), [
        (0.0, YEAR),
        (0.0, 5 * MINUTE),
        (0.0, -MINUTE / 2),
        (0.0, -5 * MINUTE),
        (0.0, -2 * HOUR),
        (YEAR, 0.0),
        (-2 * HOUR, 0.0),
    ]
)  # fmt: skip
def test_a_job_has_run_for_as_long_as_it_ran_when_the_clock_is_set_meanwhile(lab: Stepped, before, after):
    lab.clock.set(before)
    began = time.monotonic()
    job, end = lab.submit_waiting()
    lab.clock.set(after)
    end()
    took = time.monotonic() - began
    found = until(lambda: (one := lab.up.job(job))["state"] == "succeeded" and one)
    assert 0.0 <= seconds_of(found) <= took + 1.0
    tasks = lab.up.call("GET", f"/api/v1/jobs/{job}/tasks")["items"]
    for task in tasks:
        ran = (moment(task["ended_at"]) - moment(task["started_at"])).total_seconds()
        assert 0.0 <= ran <= took + 1.0


def test_sessions_end_when_they_should_and_nobody_is_locked_out_when_the_clock_is_set(lab: Stepped):
    up = lab.up
    sign_in = {"username": "admin", "password": up.own_password(), "kind": "token"}

    def status(token: str) -> int:
        try:
            up.call("GET", "/api/v1/session", token=token)
        except urllib.error.HTTPError as error:
            return error.code
        return 200

    short = up.call("POST", "/api/v1/tokens", {"name": "short", "expires_in_seconds": 600})["token"]
    gone = up.call("POST", "/api/v1/tokens", {"name": "gone"})
    up.call("DELETE", f"/api/v1/tokens/{gone['id']}")
    for ahead, wanted in (
        (0.0, 200),
        (HOUR, 401),
        (YEAR, 401),
        (-HOUR, 200),
        (to_1970(), 200),
        (599.0 + 30, 401),
    ):
        lab.clock.set(ahead)
        assert (status(short), status(gone["token"])) == (wanted, 401), ahead
        made = up.call("POST", "/api/v1/session", sign_in)["token"]
        assert status(made) == 200
        # Of those made now, none lives longer than was said by more than the clock was set.
        brief = up.call("POST", "/api/v1/tokens", {"name": "brief", "expires_in_seconds": 60})["token"]
        lab.clock.set(ahead + 61)
        assert (status(brief), status(made)) == (401, 200)


def test_a_signed_request_is_taken_once_when_the_clock_is_set_back_to_its_time(lab: Stepped):
    key = lab.up.call("POST", "/api/v1/access-keys", {"name": "mine"})

    def send(request: bytes) -> int:
        return asyncio.run(statuses(lab.up.port, [request]))[0]

    def at(ahead: float) -> bytes:
        date = seen(lab.up, ahead).strftime("%Y-%m-%dT%H:%M:%SZ")
        return as_bytes(signed(key["id"], key["secret"], x_acs_date=date))

    for ahead in (0.0, YEAR, -2 * HOUR, to_1970()):
        lab.clock.set(ahead)
        request = at(ahead)
        assert (send(request), send(request)) == (200, 401)
        for later in (ahead + 2 * HOUR, ahead + 5 * MINUTE, ahead - 5 * MINUTE, ahead):
            lab.clock.set(later)
            assert send(request) == 401
        assert send(at(ahead)) == 200  # who signs anew is served
    lab.clock.set(YEAR)
    assert send(at(0.0)) == 401  # it is not fresh
    lab.clock.set(0.0)
    assert send(at(0.0)) == 200


def test_a_schedule_submits_one_job_for_a_year_and_goes_on_when_the_clock_is_set_back(lab: Stepped):
    up = lab.up
    lab.clock.set(to_half_past(0.0))
    spec = {"name": "hourly", "command": "true", "roles": [{"cpu": 0.1}], "env": {"LD_PRELOAD": ""}}
    made = up.call(
        "POST", "/api/v1/schedules", {"name": "每时", "cron": "0 * * * *", "overlap": "allow", "job": spec}
    )

    def schedule() -> dict[str, Any]:
        return up.call("GET", f"/api/v1/schedules/{made['id']}")

    def number() -> int:
        return len(
            [job for job in up.call("GET", "/api/v1/jobs?limit=200")["items"] if job["name"] == "hourly"]
        )

    def is_next_soon(ahead: float) -> bool:
        # Not the next hour, where its job was submitted while the clock was ahead.
        wait = (moment(schedule()["next_at"]) - seen(up, ahead)).total_seconds()
        return 0 < wait <= 2 * HOUR

    try:
        for ahead, jobs in ((YEAR, 1), (0.0, 1), (to_1970(), 1), (0.0, 2)):
            there = to_half_past(ahead)
            lab.clock.set(there)
            until(lambda jobs=jobs: number() == jobs)
            until(lambda there=there: is_next_soon(there))
            time.sleep(1.5)  # one more look of the leader at the clock
            assert number() == jobs
        assert schedule()["is_active"]
    finally:
        up.call("DELETE", f"/api/v1/schedules/{made['id']}")


def test_a_server_that_started_a_year_ahead_recovers_when_its_clock_is_set_right(
    tmp_path,
    clocks: Clocks,  # noqa: F811  # the fixture
):
    clock = clocks.make()
    if not clock.env:
        pytest.skip("there is no C compiler")
    clock.set(YEAR)
    with platform(tmp_path / "yard", env=clock.env) as up:
        lab = Stepped(up, clock, tmp_path)
        lab.run_one()
        clock.set(0.0)
        assert abs(moment(lab.run_one()["submitted_at"]) - seen(up, 0.0)) < timedelta(seconds=30)
        up.kill()  # its lease is good for a year
        up.start()
        lab.run_one()


# -- without processes: what takes a server hours


@pytest.fixture
def term(tmp_path) -> Iterator[LeaderTerm]:
    db = Database(f"sqlite:///{tmp_path / 'x.db'}")
    upgrade.ensure(db)
    lease = db.write_now(lambda c: leases.take(c, LEASE, owner="us", seconds=1000))
    assert lease is not None
    yield LeaderTerm(db, ManualClock(), "us", lease.epoch)
    db.close()


@pytest.mark.parametrize("away", [YEAR, -YEAR, -HOUR])
async def test_nothing_is_removed_when_a_server_starts_with_a_clock_that_does_not_go_with_its_books(
    term: LeaderTerm, tmp_path, away
):
    now = term.clock.now().timestamp()
    token = TokenRecord(id="t", user_id="u", digest="d", scopes=("*",), created_at=now - 10 * YEAR, expires_at=now - 5 * YEAR)  # fmt: skip
    term.db.write_now(lambda c: users.insert_user(c, UserRecord(id="u", name="u", created_at=now)))
    term.db.write_now(lambda c: tokens.insert_token(c, token))
    term.db.write_now(lambda c: settings.save(c, BOOKED, now - away))
    keeper = Retention(term, LogStore(tmp_path / "logs"), ServerSettings(data=tmp_path))

    async def is_there() -> bool:
        await keeper.look()
        return await term.db.read(lambda c: tokens.find_by_digest(c, "d")) is not None

    assert await is_there()
    term.clock.advance(clock_trust.START_SECONDS - 1)  # type: ignore[attr-defined]  # a clock of ours
    assert await is_there()
    term.clock.advance(1)  # type: ignore[attr-defined]
    assert not await is_there()


async def test_a_nonce_that_was_forgotten_is_refused_when_the_clock_is_set_back_and_nobody_else_is(
    term: LeaderTerm,
):
    kept = CLOCK_SECONDS + MARGIN_SECONDS

    async def use(nonce: str, at: float) -> bool:
        return await Nonces(term.db).use("key", nonce, at)  # a server that was just started

    now = time.time()
    assert await use("early", now - 2 * HOUR)
    assert await use("recorded", now)
    await term.write(lambda c: nonces.delete_before(c, now + kept + 1))
    assert not await use("recorded", now)
    assert not await use("early", now - 2 * HOUR)
    assert await use("fresh", now + 1)
    # A year ahead, for long enough that what was signed there is forgotten, too: the time between is still to come.
    assert await use("ahead", now + YEAR)
    await term.write(lambda c: nonces.delete_before(c, now + YEAR + kept + 1))
    assert not await use("ahead", now + YEAR)
    assert await use("back again", now + 3 * HOUR)
    assert not await use("recorded", now)
    for step in range(3 * nonces.MOST_SPANS):  # as often as anybody sets a clock
        at = now - YEAR - step * 2 * nonces.JOINED_SECONDS
        await term.db.write(lambda c, at=at, step=step: nonces.insert_new(c, {b"%d" % step: at}))
        await term.write(lambda c, at=at: nonces.delete_before(c, at + 1))
    assert len(await term.db.read(lambda c: settings.find(c, nonces.FORGOTTEN))) == nonces.MOST_SPANS
    assert await use("still taken", now + 4 * HOUR)


# -- two servers


@pytest.mark.deep  # a database and two servers, and leases that run out
@pytest.mark.parametrize("ahead", [YEAR, -YEAR])
@pytest.mark.parametrize("whose", ["server", "database"])
def test_the_lease_goes_to_the_other_server_when_the_leader_dies_and_clocks_were_set(
    tmp_path,
    clocks: Clocks,  # noqa: F811  # the fixture
    ahead,
    whose,
):
    times = {"server": clocks.make(), "database": clocks.make()}
    with running(times["database"].env) as postgres:
        url = postgres.database()
        with platform(tmp_path / "one", "--database", url, env=times["server"].env) as one:
            two = Up(tmp_path / "two", "--database", url, "--no-local-node")
            two.data = one.data
            two.start()
            db = Database(url)
            try:

                def lease() -> Any:
                    return db.read_now(lambda c: leases.find(c, LEASE))

                first = held = lease()
                for step in (ahead, 0.0):
                    times[whose].set(step)
                    time.sleep(LEASE_SECONDS + 2)  # as long as it takes to lose one
                    # Set ahead, the database's clock ends a lease: then it may go to the other server, once.
                    before, held = held, lease()
                    assert held.epoch - before.epoch in ({0, 1} if whose == "database" else {0})
                (one if held.owner == first.owner else two).kill(signal.SIGKILL)
                taken = until(lambda: (found := lease()).epoch > held.epoch and found, 3 * LEASE_SECONDS)
                assert taken.owner != held.owner
                assert taken.epoch == held.epoch + 1
            finally:
                db.close()
                if two.process is not None:
                    two.kill(signal.SIGTERM)
