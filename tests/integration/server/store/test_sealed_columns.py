"""What the database holds of secrets: nothing that can be read without the key's file."""

from __future__ import annotations

import stat
import threading
from pathlib import Path

import pytest
from sqlalchemy import select, update

from people import Cast
from trainyard.lib.errors import ConflictError, InvalidError
from trainyard.server.cluster.storages import logins
from trainyard.server.jobs.schedules import tick
from trainyard.server.launch import code_checkout
from trainyard.server.launch.launch_facts import LaunchFacts
from trainyard.server.secrets import sealed_columns
from trainyard.server.secrets.sealing import Seal
from trainyard.server.store import tables
from trainyard.server.store.database import Database
from trainyard.server.store.jobs import workloads
from trainyard.spec.sweep import axis_of
from trainyard.spec.workload import CodeSpec, RoleSpec

CANARY = "c4nary"
ENV = {
    "DB_PASS": f"{CANARY}-env",
    "DATABASE_URL": f"postgres://u:{CANARY}-url@h/x",
    "EPOCHS": "3",
    "EMPTY_TOKEN": "",
}
ASKED = {"Envs": ENV, "JobSpecs": [{"ImageConfig": {"Username": "u", "Password": CANARY, "Auth": CANARY}}]}


def dump(db: Database) -> str:
    """Everything that is in the database."""
    return db.read_now(
        lambda c: repr([c.execute(select(table)).all() for table in tables.metadata.sorted_tables])
    )


async def fill(cast: Cast) -> str:
    """Put secrets in through every door; the id of a job."""
    spec = cast.job(env=ENV, roles=(RoleSpec(env=ENV),))
    job = await cast.services.jobs.submit(cast.ann, spec, dlc=ASKED, idempotency_key="k")
    await cast.services.jobs.submit_many(cast.ann, [spec, spec])
    await cast.services.sweeps.submit(cast.ann, spec, [axis_of("LR", ["1", "2"])])
    await cast.services.templates.save(cast.ann, "mine", spec)
    await cast.services.templates.save(cast.ann, "ours", spec, scope="workspace")
    await cast.services.schedules.add(cast.ann, "nightly", "0 3 * * *", spec, overlap="allow")
    await cast.services.schedules.change(cast.ann, "nightly", spec=spec)
    await cast.services.registries.add(cast.root, "r.example.org", username="u", password=CANARY)
    await cast.services.codes.add(cast.ann, "bert", "https://code.example.org/x.git", token=CANARY)
    await cast.services.keys.create(cast.ann)
    return job.id


def opened(cast: Cast, job_id: str) -> dict[str, str]:
    """The variables that its tasks would get."""
    record = cast.db.read_now(lambda c: workloads.load(c, job_id))
    return LaunchFacts(seal=cast.services.seal).opened(record.spec.env, record.user_id)


def check_all_opens(cast: Cast, job_id: str) -> None:
    assert opened(cast, job_id) == ENV
    assert cast.db.read_now(lambda c: logins(c, cast.services.seal))[0].password == CANARY
    wanted = [cast.job(code=CodeSpec(source=_source(cast)))]
    found = cast.db.read_now(lambda c: code_checkout.load(c, wanted, cast.services.seal))
    assert [one.token for one in found.values()] == [CANARY]


def _source(cast: Cast) -> str:
    return str(cast.db.read_now(lambda c: c.execute(select(tables.code_sources.c.id)).scalar()))


async def test_nothing_is_stored_openly_when_secrets_come_through_any_door(cast: Cast):
    job = await fill(cast)
    text = dump(cast.db)
    assert CANARY not in text and "EPOCHS" in text
    assert CANARY not in repr(await cast.services.jobs.list(cast.ann))
    check_all_opens(cast, job)
    mode = stat.S_IMODE(cast.services.seal.path.stat().st_mode)
    assert mode == 0o600


async def test_secrets_follow_their_owner_when_a_template_a_schedule_or_a_clone_submits(cast: Cast):
    job = await fill(cast)
    own = await cast.services.jobs.clone(cast.ann, job, {"command": "env"})
    kept = await cast.services.templates.submit(cast.ann, "mine", {"env": {"MORE": "1"}})
    ran = await cast.services.schedules.run_now(cast.ann, "nightly")
    due = (await cast.services.schedules.get(cast.ann, "nightly")).next_at
    (schedule,) = await cast.services.schedules.list(cast.ann)
    by_clock = cast.db.write_now(lambda c: tick(c, cast.services.context, schedule.id, due + 1))
    assert opened(cast, own.id) == opened(cast, ran.id) == opened(cast, by_clock.id) == ENV
    assert opened(cast, kept.id) == {**ENV, "MORE": "1"}
    for foreign in (
        await cast.services.jobs.clone(cast.ben, job, {"command": "env"}),
        await cast.services.templates.submit(cast.ben, "ours"),
    ):
        assert set(opened(cast, foreign.id)) <= {"EPOCHS", "EMPTY_TOKEN"}
    assert CANARY not in dump(cast.db)


async def test_a_sealed_text_opens_nothing_when_somebody_else_submits_it(cast: Cast):
    job = await fill(cast)
    record = cast.db.read_now(lambda c: workloads.load(c, job))
    stolen = record.spec.env["DB_PASS"]
    other = await cast.services.jobs.submit(cast.ben, cast.job(env={"X": stolen, "Y_TOKEN": stolen}))
    assert opened(cast, other.id) == {"X": stolen, "Y_TOKEN": stolen}, "it is a text like any other"
    moved = cast.db.read_now(lambda c: workloads.load(c, other.id)).spec.env
    assert moved["X"] != stolen


async def test_a_sweep_over_a_secret_is_refused(cast: Cast):
    with pytest.raises(InvalidError, match="API_KEY is a secret"):
        await cast.services.sweeps.submit(cast.ann, cast.job(), [axis_of("API_KEY", ["a", "b"])])


async def test_an_older_databases_secrets_are_sealed_once_when_a_server_starts(cast: Cast, database_url: str):
    job = await fill(cast)
    old = {"name": "job", "env": ENV, "roles": [{"env": ENV}, {}], "unknown": {"to": "us"}}

    def make_old(c) -> None:
        c.execute(update(tables.workloads).values(spec=old, dlc=ASKED))
        c.execute(update(tables.schedules).values(spec=old))
        c.execute(update(tables.templates).values(body=old))
        c.execute(tables.settings.delete().where(tables.settings.c.key == sealed_columns.DONE))

    cast.db.write_now(make_old)
    assert CANARY in dump(cast.db)
    changed = sealed_columns.ensure_sealed(cast.db, cast.services.seal)
    assert changed >= 5
    assert CANARY not in dump(cast.db) and "unknown" in dump(cast.db)
    check_all_opens(cast, job)
    before = dump(cast.db)
    assert sealed_columns.ensure_sealed(cast.db, cast.services.seal) == 0
    assert dump(cast.db) == before
    if database_url.startswith("sqlite"):
        file = Path(database_url.partition(":///")[2])
        for one in file.parent.glob(f"{file.name}*"):
            assert CANARY.encode() not in one.read_bytes(), one


async def test_all_is_sealed_anew_and_the_old_key_opens_nothing_when_the_key_is_rotated(
    cast: Cast, tmp_path: Path
):
    job, seal = await fill(cast), cast.services.seal
    old = Seal(tmp_path / "old.key")
    old.path.write_bytes(seal.path.read_bytes())
    assert sealed_columns.rotate(cast.db, seal, settle_seconds=0) >= 6
    check_all_opens(cast, job)
    assert not seal.previous.exists() and seal.path.read_bytes() != old.path.read_bytes()
    record = cast.db.read_now(lambda c: workloads.load(c, job))
    with pytest.raises(ConflictError, match="another key file"):
        LaunchFacts(seal=old).opened(record.spec.env, record.user_id)
    assert CANARY not in dump(cast.db)


async def test_both_keys_open_when_a_rotation_was_broken_off_anywhere(
    cast: Cast, monkeypatch: pytest.MonkeyPatch
):
    job, seal = await fill(cast), cast.services.seal
    first = seal.path.read_bytes()
    seal.previous.write_bytes(first)  # died before the new key was there
    check_all_opens(cast, job)
    seal.begin_rotation()
    second = seal.path.read_bytes()
    assert second != first
    check_all_opens(cast, job)
    monkeypatch.setattr(sealed_columns, "ROWS", 2)
    sealed_columns._walk_wholes(cast.db, tables.tokens.c.sealed, lambda value, _owner: value)
    sealed_columns._walk_texts(
        cast.db,
        sealed_columns._TEXTS[0],
        lambda text, owner: seal.close_text(seal.try_open_text(text, owner), owner),
    )  # died here, with one table of several done
    check_all_opens(cast, job)
    later = await cast.services.jobs.submit(cast.ann, cast.job(env=ENV))
    sealed_columns.rotate(cast.db, seal, settle_seconds=0)
    assert seal.path.read_bytes() == second, "it goes on with the key that it had begun with"
    check_all_opens(cast, job)
    assert opened(cast, later.id) == ENV and len(seal.keys()) == 1


def test_one_key_is_made_when_several_servers_start_at_once(tmp_path: Path):
    seals = [Seal(tmp_path / "new" / "key") for _ in range(8)]
    found: list[bytes] = []
    threads = [threading.Thread(target=lambda one=one: found.append(one.keys()[0])) for one in seals]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1 and len(found) == 8
    assert [one.name for one in (tmp_path / "new").iterdir()] == ["key"]


def test_half_a_key_is_refused(tmp_path: Path):
    (tmp_path / "key").write_bytes(b"short")
    with pytest.raises(InvalidError, match="5 bytes"):
        Seal(tmp_path / "key").close_up(b"x", "o")
