"""Who has overheard a signed request sends it again: at once, changed a little, after a restart, to another server, after many others."""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from platforms import Up, platform
from postgres import Postgres
from signed_requests import as_bytes, signed, statuses
from trainyard.server.auth.nonces import CLOCK_SECONDS, MARGIN_SECONDS, REMEMBERED, Nonces
from trainyard.server.store import nonces, upgrade
from trainyard.server.store.database import Database

# Each is sent again in five ways: a thousand replays of each kind of database.
REQUESTS = 200


@contextlib.contextmanager
def servers(kind: str, folder: Path, postgres: Postgres) -> Iterator[tuple[Up, Up]]:
    """Two servers of one platform; of SQLite, which has one server, the same twice."""
    if kind == "sqlite":
        with platform(folder / "one") as up:
            yield up, up
        return
    database = ("--database", postgres.database())
    with platform(folder / "one", *database) as one:
        (folder / "two" / "platform").mkdir(parents=True)
        # The secrets of access keys are sealed with a file that all servers of a platform share.
        key = one.call("POST", "/api/v1/access-keys", {"name": "first"})
        assert key["id"]
        sealing = (one.data / "sealing.key").read_bytes()
        (folder / "two" / "platform" / "sealing.key").write_bytes(sealing)
        with platform(folder / "two", *database) as two:
            yield one, two


def blanked(request: bytes) -> bytes:
    """The same nonce with a blank behind it that a signature does not cover."""
    return re.sub(rb"x-acs-signature-nonce: \w+", lambda found: found[0] + b"\xa0", request)


@pytest.mark.slow  # servers that are killed and started again
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_none_of_a_thousand_replays_is_taken_when_servers_die_and_others_take_over(kind, tmp_path, postgres):
    with servers(kind, tmp_path, postgres) as (one, two):
        key = one.call("POST", "/api/v1/access-keys", {"name": "mine"})
        requests = [as_bytes(signed(key["id"], key["secret"])) for _ in range(REQUESTS)]

        def send(up: Up, which: list[bytes]) -> list[int]:
            return asyncio.run(statuses(up.port, which))

        assert set(send(one, requests)) == {200}
        one.kill(signal.SIGKILL)
        one.start(port=0)
        for up in (one, two):
            for again in (requests, [blanked(each) for each in requests]):
                assert set(send(up, again)) == {401}
        fresh = [as_bytes(signed(key["id"], key["secret"])) for _ in range(REQUESTS)]

        async def both() -> list[list[int]]:
            return await asyncio.gather(statuses(one.port, fresh), statuses(two.port, fresh))

        for pair in zip(*asyncio.run(both()), strict=True):
            assert sorted(pair) == [200, 401]


@pytest.mark.slow  # a database is filled
@pytest.mark.parametrize("remembered", [1000, pytest.param(REMEMBERED, marks=pytest.mark.deep)])
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_the_first_nonce_is_known_when_more_came_after_it_than_are_remembered(
    kind, remembered, tmp_path, postgres, monkeypatch
):
    """As many as a server remembers take a minute on a busy machine: here it remembers fewer."""
    monkeypatch.setattr("trainyard.server.auth.nonces.REMEMBERED", remembered)
    db = Database(f"sqlite:///{tmp_path / 'x.db'}" if kind == "sqlite" else postgres.emptied())
    upgrade.ensure(db)
    try:
        used = Nonces(db)
        assert await used.use("key", "first", 1000.0)
        for part in range(11):
            many = range(remembered // 10)
            taken = await asyncio.gather(*(used.use("key", f"{part}-{n}", 1000.0) for n in many))
            assert all(taken)
        assert len(used._seen) <= remembered
        assert not await used.use("key", "first", 1000.0)
        assert await used.use("other key", "first", 1000.0)
        # Once its time is over it goes: no request of that time is taken any more whatever its nonce, or the server's clock.
        over = 1000.0 + CLOCK_SECONDS + MARGIN_SECONDS
        await db.write(lambda c: nonces.delete_before(c, over))
        assert not await Nonces(db).use("key", "first", 1000.0)
        await db.write(lambda c: nonces.delete_before(c, over + 1))
        assert not await Nonces(db).use("key", "first", 1000.0)
        assert await Nonces(db).use("key", "of a later time", 1001.0)
    finally:
        db.close()


async def test_one_of_many_is_taken_when_they_arrive_together(tmp_path):
    db = Database(f"sqlite:///{tmp_path / 'x.db'}")
    upgrade.ensure(db)
    try:
        several = [Nonces(db) for _ in range(4)]  # as servers that share a database
        taken = await asyncio.gather(
            *(one.use("key", str(n), 1000.0) for n in range(50) for one in several for _ in range(3))
        )
        assert sum(taken) == 50
    finally:
        db.close()


async def test_a_request_is_refused_when_its_nonce_cannot_be_kept(tmp_path):
    db = Database(f"sqlite:///{tmp_path / 'x.db'}")  # without tables
    try:
        used = Nonces(db)
        found = await asyncio.gather(
            *(used.use("key", str(n), 1000.0) for n in range(3)), return_exceptions=True
        )
        assert all(isinstance(each, Exception) for each in found)
        upgrade.ensure(db)
        assert await used.use("key", "later", 1000.0)
    finally:
        db.close()


@pytest.mark.parametrize(
    "changes",
    [
        {"x_acs_signature_nonce": ""},
        {"x_acs_date": "2020-01-01T00:00:00Z"},
        {"x_acs_date": "0001-01-01T00:00:00Z"},
        {"x_acs_date": "9999-12-31T23:59:59Z"},
        {"x_acs_date": "now"},
    ],
)
async def test_a_request_is_refused_when_it_could_be_sent_again_for_ever(make_rig, changes):
    rig = make_rig()
    key = await rig.services.keys.create(await rig.services.authentication.authenticate(rig.admin.token))
    async with rig.vendor_http() as http:
        assert (await http.get("/api/v1/ecsspecs", headers=signed(key.id, key.secret))).status_code == 200
        answer = await http.get("/api/v1/ecsspecs", headers=signed(key.id, key.secret, **changes))
    assert answer.status_code == 401
