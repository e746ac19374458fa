"""What the database holds of secrets: nothing that can be read without the key's file."""

from __future__ import annotations

import stat
import threading
from pathlib import Path

import pytest
from sqlalchemy import select, update

from people import People
from trainyard.lib.errors import ConflictError, InvalidError
from trainyard.server.cluster.storages import logins
from trainyard.server.jobs.schedules import tick
from trainyard.server.launch.launch_facts import LaunchFacts
from trainyard.server.leader.launch_facts_loader import load_sources
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


async def fill(people: People) -> str:
    """Put secrets in through every door; the id of a job."""
    spec = people.job(env=ENV, roles=(RoleSpec(env=ENV),))
    job = await people.services.jobs.submit(people.ann, spec, dlc=ASKED, idempotency_key="k")
    await people.services.jobs.submit_many(people.ann, [spec, spec])
    await people.services.sweeps.submit(people.ann, spec, [axis_of("LR", ["1", "2"])])
    await people.services.templates.save(people.ann, "mine", spec)
    await people.services.templates.save(people.ann, "ours", spec, scope="workspace")
    await people.services.schedules.add(people.ann, "nightly", "0 3 * * *", spec, overlap="allow")
    await people.services.schedules.change(people.ann, "nightly", spec=spec)
    await people.services.registries.add(people.root, "r.example.org", username="u", password=CANARY)
    await people.services.codes.add(people.ann, "bert", "https://code.example.org/x.git", token=CANARY)
    await people.services.keys.create(people.ann)
    return job.id


def opened(people: People, job_id: str) -> dict[str, str]:
    """The variables that its tasks would get."""
    record = people.db.read_now(lambda c: workloads.load(c, job_id))
    return LaunchFacts(seal=people.services.seal).opened(record.spec.env, record.user_id)


def check_all_opens(people: People, job_id: str) -> None:
    assert opened(people, job_id) == ENV
    assert people.db.read_now(lambda c: logins(c, people.services.seal))[0].password == CANARY
    wanted = [people.job(code=CodeSpec(source=_source(people)))]
    found = people.db.read_now(lambda c: load_sources(c, wanted, people.services.seal))
    assert [one.token for one in found.values()] == [CANARY]


def _source(people: People) -> str:
    return str(people.db.read_now(lambda c: c.execute(select(tables.code_sources.c.id)).scalar()))


async def test_nothing_is_stored_openly_when_secrets_come_through_any_door(people: People):
    job = await fill(people)
    text = dump(people.db)
    assert CANARY not in text and "EPOCHS" in text
    assert CANARY not in repr(await people.services.jobs.list(people.ann))
    check_all_opens(people, job)
    mode = stat.S_IMODE(people.services.seal.path.stat().st_mode)
    assert mode == 0o600


async def test_secrets_follow_their_owner_when_a_template_a_schedule_or_a_clone_submits(people: People):
    job = await fill(people)
    own = await people.services.jobs.clone(people.ann, job, {"command": "env"})
    kept = await people.services.templates.submit(people.ann, "mine", {"env": {"MORE": "1"}})
    ran = await people.services.schedules.run_now(people.ann, "nightly")
    due = (await people.services.schedules.get(people.ann, "nightly")).next_at
    (schedule,) = await people.services.schedules.list(people.ann)
    by_clock = people.db.write_now(lambda c: tick(c, people.services.context, schedule.id, due + 1))
    assert opened(people, own.id) == opened(people, ran.id) == opened(people, by_clock.id) == ENV
    assert opened(people, kept.id) == {**ENV, "MORE": "1"}
    for foreign in (
        await people.services.jobs.clone(people.ben, job, {"command": "env"}),
        await people.services.templates.submit(people.ben, "ours"),
    ):
        assert set(opened(people, foreign.id)) <= {"EPOCHS", "EMPTY_TOKEN"}
    assert CANARY not in dump(people.db)


async def test_a_sealed_text_opens_nothing_when_somebody_else_submits_it(people: People):
    job = await fill(people)
    record = people.db.read_now(lambda c: workloads.load(c, job))
    stolen = record.spec.env["DB_PASS"]
    other = await people.services.jobs.submit(people.ben, people.job(env={"X": stolen, "Y_TOKEN": stolen}))
    assert opened(people, other.id) == {"X": stolen, "Y_TOKEN": stolen}, "it is a text like any other"
    moved = people.db.read_now(lambda c: workloads.load(c, other.id)).spec.env
    assert moved["X"] != stolen


async def test_a_sweep_over_a_secret_is_refused(people: People):
    with pytest.raises(InvalidError, match="API_KEY is a secret"):
        await people.services.sweeps.submit(people.ann, people.job(), [axis_of("API_KEY", ["a", "b"])])


async def test_an_older_databases_secrets_are_sealed_once_when_a_server_starts(
    people: People, database_url: str
):
    job = await fill(people)
    old = {"name": "job", "env": ENV, "roles": [{"env": ENV}, {}], "unknown": {"to": "us"}}

    def make_old(c) -> None:
        c.execute(update(tables.workloads).values(spec=old, dlc=ASKED))
        c.execute(update(tables.schedules).values(spec=old))
        c.execute(update(tables.templates).values(body=old))
        c.execute(tables.settings.delete().where(tables.settings.c.key == sealed_columns.DONE))

    people.db.write_now(make_old)
    assert CANARY in dump(people.db)
    changed = sealed_columns.ensure_sealed(people.db, people.services.seal)
    assert changed >= 5
    assert CANARY not in dump(people.db) and "unknown" in dump(people.db)
    check_all_opens(people, job)
    before = dump(people.db)
    assert sealed_columns.ensure_sealed(people.db, people.services.seal) == 0
    assert dump(people.db) == before
    if database_url.startswith("sqlite"):
        file = Path(database_url.partition(":///")[2])
        for one in file.parent.glob(f"{file.name}*"):
            assert CANARY.encode() not in one.read_bytes(), one


async def test_all_is_sealed_anew_and_the_old_key_opens_nothing_when_the_key_is_rotated(
    people: People, tmp_path: Path
):
    job, seal = await fill(people), people.services.seal
    old = Seal(tmp_path / "old.key")
    old.path.write_bytes(seal.path.read_bytes())
    assert sealed_columns.rotate(people.db, seal, settle_seconds=0) >= 6
    check_all_opens(people, job)
    assert not seal.previous.exists() and seal.path.read_bytes() != old.path.read_bytes()
    record = people.db.read_now(lambda c: workloads.load(c, job))
    with pytest.raises(ConflictError, match="another key file"):
        LaunchFacts(seal=old).opened(record.spec.env, record.user_id)
    assert CANARY not in dump(people.db)


async def test_both_keys_open_when_a_rotation_was_broken_off_anywhere(
    people: People, monkeypatch: pytest.MonkeyPatch
):
    job, seal = await fill(people), people.services.seal
    first = seal.path.read_bytes()
    seal.previous.write_bytes(first)  # died before the new key was there
    check_all_opens(people, job)
    seal.begin_rotation()
    second = seal.path.read_bytes()
    assert second != first
    check_all_opens(people, job)
    monkeypatch.setattr(sealed_columns, "ROWS", 2)
    sealed_columns._walk_wholes(people.db, tables.tokens.c.sealed, lambda value, _owner: value)
    sealed_columns._walk_texts(
        people.db,
        sealed_columns._TEXTS[0],
        lambda text, owner: seal.close_text(seal.try_open_text(text, owner), owner),
    )  # died here, with one table of several done
    check_all_opens(people, job)
    later = await people.services.jobs.submit(people.ann, people.job(env=ENV))
    sealed_columns.rotate(people.db, seal, settle_seconds=0)
    assert seal.path.read_bytes() == second, "it goes on with the key that it had begun with"
    check_all_opens(people, job)
    assert opened(people, later.id) == ENV and len(seal.keys()) == 1


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
