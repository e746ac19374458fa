"""Secrets through the services: who may keep and use one, and that no value comes out."""

from __future__ import annotations

import pytest
from sqlalchemy import select

from people import VISION, Cast
from trainyard.lib.errors import ConflictError, DeniedError, InvalidError, NotFoundError
from trainyard.server.launch import job_secrets
from trainyard.server.secrets import sealed_columns
from trainyard.server.secrets import service as service_module
from trainyard.server.store import audit, tables
from trainyard.server.store.jobs import workloads
from trainyard.server.store.people import workspaces
from trainyard.server.store.people.secrets import note_used
from trainyard.spec.workload import SecretSpec

VALUE = "s3cret-v4lue"


def values(cast: Cast, job_id: str) -> dict[str, str]:
    """What the launch of a job would get as variables."""

    def work(connection):
        record = workloads.load(connection, job_id)
        found = job_secrets.load(connection, [record], cast.services.seal)
        return job_secrets.variables_of(record.spec, found.get(job_id))

    return cast.db.read_now(work)


async def submit(cast: Cast, actor, *secrets: SecretSpec) -> str:
    return (await cast.services.jobs.submit(actor, cast.job(secrets=secrets))).id


async def test_a_secret_is_used_by_its_users_jobs_only(cast: Cast):
    await cast.services.secrets.put(cast.ann, "HF_TOKEN", VALUE)
    job = await submit(cast, cast.ann, SecretSpec(name="HF_TOKEN"), SecretSpec(name="HF_TOKEN", variable="X"))
    assert values(cast, job) == {"HF_TOKEN": VALUE, "X": VALUE}
    for other in (cast.ben, cast.chief, cast.root):
        with pytest.raises(NotFoundError, match="no secret 'HF_TOKEN'"):
            await submit(cast, other, SecretSpec(name="HF_TOKEN"))
        with pytest.raises(NotFoundError):
            await cast.services.jobs.clone(other, job, {"command": "env"})
        assert [one.name for one in await cast.services.secrets.list(other)] == []
    own = await cast.services.jobs.clone(cast.ann, job)
    assert values(cast, own.id)["X"] == VALUE


async def test_a_workspaces_secret_is_its_members_and_a_users_own_goes_first(cast: Cast):
    await cast.services.secrets.put(cast.ann, "KEY", VALUE, workspace="vision")
    job = await submit(cast, cast.ben, SecretSpec(name="KEY"))
    assert values(cast, job) == {"KEY": VALUE}
    await cast.services.secrets.put(cast.ben, "KEY", "mine-instead")
    assert values(cast, job) == {"KEY": "mine-instead"}
    with pytest.raises(NotFoundError):
        await submit(cast, cast.zoe, SecretSpec(name="KEY"))
    with pytest.raises(NotFoundError):
        await cast.services.secrets.put(cast.zoe, "KEY", VALUE, workspace="vision")
    with pytest.raises(DeniedError):
        await cast.services.secrets.put(cast.vic, "NEW", VALUE, workspace="vision")
    assert [one.name for one in await cast.services.secrets.list(cast.vic)] == ["KEY"]
    await cast.services.secrets.remove(cast.ben, "KEY")
    cast.db.write_now(lambda c: workspaces.remove_member(c, VISION, "u-ben"))
    with pytest.raises(job_secrets.SecretMissingError, match="KEY is not there any more"):
        values(cast, job)


async def test_others_cannot_change_or_remove_a_workspaces_secret_but_who_manages_it(cast: Cast):
    await cast.services.secrets.put(cast.ann, "KEY", VALUE, workspace="vision")
    with pytest.raises(DeniedError, match="made by somebody else"):
        await cast.services.secrets.put(cast.ben, "KEY", "evil", workspace="vision")
    with pytest.raises(DeniedError):
        await cast.services.secrets.remove(cast.ben, "KEY", workspace="vision")
    await cast.services.secrets.put(cast.chief, "KEY", "new", workspace="vision")
    await cast.services.secrets.remove(cast.chief, "KEY", workspace="vision")
    with pytest.raises(NotFoundError):
        await cast.services.secrets.remove(cast.chief, "KEY", workspace="vision")


async def test_a_job_cannot_start_any_more_when_its_secret_was_removed(cast: Cast):
    await cast.services.secrets.put(cast.ann, "KEY", VALUE)
    job = await submit(cast, cast.ann, SecretSpec(name="KEY", file="/run/secrets/key"))
    await cast.services.secrets.remove(cast.ann, "KEY")

    def files(connection):
        record = workloads.load(connection, job)
        found = job_secrets.load(connection, [record], cast.services.seal)
        return job_secrets.files_of(record.spec, found.get(job))

    with pytest.raises(job_secrets.SecretMissingError, match="KEY"):
        cast.db.read_now(files)


async def test_no_value_comes_out_when_a_secret_is_kept_listed_used_and_rotated(cast: Cast):
    made = await cast.services.secrets.put(cast.ann, "KEY", VALUE)
    again = await cast.services.secrets.put(cast.ann, "KEY", VALUE + "2")
    assert again.id == made.id
    job = await submit(cast, cast.ann, SecretSpec(name="KEY"))
    cast.db.write_now(lambda c: note_used(c, [made.id], 7.0))
    (listed,) = await cast.services.secrets.list(cast.ann)
    assert listed.last_used_at == 7.0
    everything = [table for table in tables.metadata.sorted_tables]
    text = repr(cast.db.read_now(lambda c: [c.execute(select(table)).all() for table in everything]))
    text += repr((made, again, listed, cast.db.read_now(lambda c: audit.page(c))))
    assert VALUE not in text
    sealed_columns.rotate(cast.db, cast.services.seal, settle_seconds=0)
    assert values(cast, job) == {"KEY": VALUE + "2"}


@pytest.mark.parametrize(
    "wrong",
    [
        SecretSpec(name=""), SecretSpec(name="a/b"), SecretSpec(name="x" * 65), SecretSpec(name="a", variable="1x"),
        SecretSpec(name="a-b"), SecretSpec(name="a", file="relative"), SecretSpec(name="a", file="/proc/x"),
        SecretSpec(name="a", file="/a/../b"), SecretSpec(name="a", file="/"), SecretSpec(name="a", file="/a/"),
        SecretSpec(name="a", variable="A", file="/a"), SecretSpec(name="a", file="/a\nb"),
    ],
)  # fmt: skip
async def test_a_secret_of_a_job_is_refused_when_it_cannot_be(cast: Cast, wrong: SecretSpec):
    with pytest.raises(InvalidError):
        await submit(cast, cast.ann, wrong)


async def test_values_and_numbers_are_bounded(cast: Cast, monkeypatch: pytest.MonkeyPatch):
    for value in ("", "a\0b", "x" * (64 * 1024 + 1), "\udc80"):
        with pytest.raises(InvalidError):
            await cast.services.secrets.put(cast.ann, "A", value)
    with pytest.raises(InvalidError):
        await submit(cast, cast.ann, SecretSpec(name="A"), SecretSpec(name="B", variable="A"))
    monkeypatch.setattr(service_module, "MOST", 1)
    await cast.services.secrets.put(cast.ann, "A", "x")
    with pytest.raises(ConflictError, match="1 secrets already"):
        await cast.services.secrets.put(cast.ann, "B", "x")
    await cast.services.secrets.put(cast.ann, "A", "y")
