"""Secrets through the services: who may keep and use one, and that no value comes out."""

from __future__ import annotations

import pytest
from sqlalchemy import select

from people import VISION, People
from trainyard.lib.errors import ConflictError, DeniedError, InvalidError, NotFoundError
from trainyard.server.launch import job_secrets
from trainyard.server.leader.launch_facts_loader import load_secrets
from trainyard.server.people import secrets as service_module
from trainyard.server.secrets import sealed_columns
from trainyard.server.store import audit, tables
from trainyard.server.store.jobs import workloads
from trainyard.server.store.people import workspaces
from trainyard.server.store.people.secrets import note_used
from trainyard.spec.workload import SecretSpec

VALUE = "s3cret-v4lue"


def values(people: People, job_id: str) -> dict[str, str]:
    """What the launch of a job would get as variables."""

    def work(connection):
        record = workloads.load(connection, job_id)
        found = load_secrets(connection, [record], people.services.seal)
        return job_secrets.variables_of(record.spec, found.get(job_id))

    return people.db.read_now(work)


async def submit(people: People, actor, *secrets: SecretSpec) -> str:
    return (await people.services.jobs.submit(actor, people.job(secrets=secrets))).id


async def test_a_secret_is_used_by_its_users_jobs_only(people: People):
    await people.services.secrets.put(people.ann, "HF_TOKEN", VALUE)
    job = await submit(
        people, people.ann, SecretSpec(name="HF_TOKEN"), SecretSpec(name="HF_TOKEN", variable="X")
    )
    assert values(people, job) == {"HF_TOKEN": VALUE, "X": VALUE}
    for other in (people.ben, people.chief, people.root):
        with pytest.raises(NotFoundError, match="no secret 'HF_TOKEN'"):
            await submit(people, other, SecretSpec(name="HF_TOKEN"))
        with pytest.raises(NotFoundError):
            await people.services.jobs.clone(other, job, {"command": "env"})
        assert [one.name for one in await people.services.secrets.list(other)] == []
    own = await people.services.jobs.clone(people.ann, job)
    assert values(people, own.id)["X"] == VALUE


async def test_a_workspaces_secret_is_its_members_and_a_users_own_goes_first(people: People):
    await people.services.secrets.put(people.ann, "KEY", VALUE, workspace="vision")
    job = await submit(people, people.ben, SecretSpec(name="KEY"))
    assert values(people, job) == {"KEY": VALUE}
    await people.services.secrets.put(people.ben, "KEY", "mine-instead")
    assert values(people, job) == {"KEY": "mine-instead"}
    with pytest.raises(NotFoundError):
        await submit(people, people.zoe, SecretSpec(name="KEY"))
    with pytest.raises(NotFoundError):
        await people.services.secrets.put(people.zoe, "KEY", VALUE, workspace="vision")
    with pytest.raises(DeniedError):
        await people.services.secrets.put(people.vic, "NEW", VALUE, workspace="vision")
    assert [one.name for one in await people.services.secrets.list(people.vic)] == ["KEY"]
    await people.services.secrets.remove(people.ben, "KEY")
    people.db.write_now(lambda c: workspaces.remove_member(c, VISION, "u-ben"))
    with pytest.raises(job_secrets.SecretMissingError, match="KEY is not there any more"):
        values(people, job)


async def test_others_cannot_change_or_remove_a_workspaces_secret_but_who_manages_it(people: People):
    await people.services.secrets.put(people.ann, "KEY", VALUE, workspace="vision")
    with pytest.raises(DeniedError, match="made by somebody else"):
        await people.services.secrets.put(people.ben, "KEY", "evil", workspace="vision")
    with pytest.raises(DeniedError):
        await people.services.secrets.remove(people.ben, "KEY", workspace="vision")
    await people.services.secrets.put(people.chief, "KEY", "new", workspace="vision")
    await people.services.secrets.remove(people.chief, "KEY", workspace="vision")
    with pytest.raises(NotFoundError):
        await people.services.secrets.remove(people.chief, "KEY", workspace="vision")


async def test_a_job_cannot_start_any_more_when_its_secret_was_removed(people: People):
    await people.services.secrets.put(people.ann, "KEY", VALUE)
    job = await submit(people, people.ann, SecretSpec(name="KEY", file="/run/secrets/key"))
    await people.services.secrets.remove(people.ann, "KEY")

    def files(connection):
        record = workloads.load(connection, job)
        found = load_secrets(connection, [record], people.services.seal)
        return job_secrets.files_of(record.spec, found.get(job))

    with pytest.raises(job_secrets.SecretMissingError, match="KEY"):
        people.db.read_now(files)


async def test_no_value_comes_out_when_a_secret_is_kept_listed_used_and_rotated(people: People):
    made = await people.services.secrets.put(people.ann, "KEY", VALUE)
    again = await people.services.secrets.put(people.ann, "KEY", VALUE + "2")
    assert again.id == made.id
    job = await submit(people, people.ann, SecretSpec(name="KEY"))
    people.db.write_now(lambda c: note_used(c, [made.id], 7.0))
    (listed,) = await people.services.secrets.list(people.ann)
    assert listed.last_used_at == 7.0
    everything = [table for table in tables.metadata.sorted_tables]
    text = repr(people.db.read_now(lambda c: [c.execute(select(table)).all() for table in everything]))
    text += repr((made, again, listed, people.db.read_now(lambda c: audit.page(c))))
    assert VALUE not in text
    sealed_columns.rotate(people.db, people.services.seal, settle_seconds=0)
    assert values(people, job) == {"KEY": VALUE + "2"}


@pytest.mark.parametrize(
    "wrong",
    [
        SecretSpec(name=""), SecretSpec(name="a/b"), SecretSpec(name="x" * 65), SecretSpec(name="a", variable="1x"),
        SecretSpec(name="a-b"), SecretSpec(name="a", file="relative"), SecretSpec(name="a", file="/proc/x"),
        SecretSpec(name="a", file="/a/../b"), SecretSpec(name="a", file="/"), SecretSpec(name="a", file="/a/"),
        SecretSpec(name="a", variable="A", file="/a"), SecretSpec(name="a", file="/a\nb"),
    ],
)  # fmt: skip
async def test_a_secret_of_a_job_is_refused_when_it_cannot_be(people: People, wrong: SecretSpec):
    with pytest.raises(InvalidError):
        await submit(people, people.ann, wrong)


async def test_values_and_numbers_are_bounded(people: People, monkeypatch: pytest.MonkeyPatch):
    for value in ("", "a\0b", "x" * (64 * 1024 + 1), "\udc80"):
        with pytest.raises(InvalidError):
            await people.services.secrets.put(people.ann, "A", value)
    with pytest.raises(InvalidError):
        await submit(people, people.ann, SecretSpec(name="A"), SecretSpec(name="B", variable="A"))
    monkeypatch.setattr(service_module, "MOST", 1)
    await people.services.secrets.put(people.ann, "A", "x")
    with pytest.raises(ConflictError, match="1 secrets already"):
        await people.services.secrets.put(people.ann, "B", "x")
    await people.services.secrets.put(people.ann, "A", "y")
