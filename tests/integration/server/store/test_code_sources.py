"""Code sources through the services: who may, what is refused, and that tokens stay sealed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from people import SPEECH, VISION, People
from trainyard.lib.errors import ConflictError, DeniedError, InvalidError, NotFoundError
from trainyard.server.auth.actor import Actor
from trainyard.server.launch import code_checkout
from trainyard.server.leader.launch_facts_loader import load_sources
from trainyard.server.records.workspaces import Role
from trainyard.server.secrets.sealing import Seal
from trainyard.server.store import audit
from trainyard.server.store.jobs import code_sources
from trainyard.spec.workload import CodeSpec

URL = "https://code.example.org/team/bert.git"


async def test_a_source_is_used_by_a_job_and_its_token_is_only_opened_for_launches(
    people: People, tmp_path: Path
):
    made = await people.services.codes.add(
        people.ann, "bert 中文", URL, branch="main", commit="abcd", token="s3cret"
    )
    job = await people.services.jobs.submit(people.ben, people.job(code=CodeSpec(source="bert 中文")))
    assert job.spec.code == CodeSpec(source=made.id)
    seal = people.services.seal
    found = await people.db.read(lambda c: load_sources(c, [job.spec], seal))
    assert code_checkout.code_of(job.spec.code, found) == {
        "url": URL, "branch": "main", "commit": "abcd", "target": "", "token": "s3cret",
    }  # fmt: skip
    other = code_checkout.code_of(replace(job.spec.code, branch="dev", target="x"), found)
    assert (other["branch"], other["commit"], other["target"]) == ("dev", "", "x")
    assert code_checkout.code_of(job.spec.code, {})["url"] == "", "a source that is gone is told as such"
    wrong = await people.db.read(lambda c: load_sources(c, [job.spec], Seal(tmp_path / "other.key")))
    assert code_checkout.code_of(job.spec.code, wrong)["token"] == ""
    kept = people.db.read_now(lambda c: (code_sources.list_sources(c), audit.page(c)))
    assert b"s3cret" not in (kept[0][0].sealed or b"")
    assert "s3cret" not in repr(kept) + repr(made) + repr(found)


async def test_a_token_does_not_follow_when_the_address_changes(people: People):
    service = people.services.codes
    made = await service.add(people.ann, "bert", URL, token="s3cret")
    assert (await service.change(people.ann, "bert", branch="dev")).sealed == made.sealed
    moved = await service.change(people.ann, "bert", url="https://evil.example.org/x.git")
    assert moved.sealed is None
    assert (await service.change(people.ann, made.id, token="new")).sealed is not None
    assert (await service.change(people.ann, made.id, token="")).sealed is None


async def test_sources_are_their_workspaces_own(people: People):
    service = people.services.codes
    made = await service.add(people.ann, "bert", URL)
    with pytest.raises(ConflictError):
        await service.add(people.ben, "bert", URL)
    await service.add(people.zoe, "bert", URL)
    assert [one.id for one in await service.list(people.vic)] == [made.id]
    with pytest.raises(DeniedError):
        await service.remove(people.vic, "bert")
    for look in (service.get(people.zoe, made.id), service.remove(people.zoe, made.id)):
        with pytest.raises(NotFoundError):
            await look
    both = Actor(user_id="u-ann", name="ann", roles={VISION: Role.MEMBER, SPEECH: Role.MEMBER})
    with pytest.raises(ConflictError, match="called 'bert'"):
        await service.get(both, "bert")
    with pytest.raises(NotFoundError, match="no code source"):
        await people.services.jobs.submit(both, people.job(workspace=SPEECH, code=CodeSpec(source=made.id)))
    await service.remove(people.ann, "bert")
    assert await service.list(people.ann) == []


@pytest.mark.parametrize(
    "code",
    [
        CodeSpec(),
        CodeSpec(url=URL, source="x"),
        CodeSpec(url="https://user:pass@code.example.org/x.git"),
        CodeSpec(url="--upload-pack=x"),
        CodeSpec(url="ext::sh -c x"),
        CodeSpec(url=URL, branch="-x"),
        CodeSpec(url=URL, branch="a b"),
        CodeSpec(url=URL, commit="main"),
        CodeSpec(url=URL, target="../x"),
        CodeSpec(url=URL, target="x\n"),
    ],
)
async def test_a_job_is_refused_when_its_code_cannot_be(people: People, code):
    with pytest.raises(InvalidError):
        await people.services.jobs.submit(people.ann, people.job(code=code))


@pytest.mark.parametrize(
    "words",
    [
        ("--pre",),
        ("",),
        ("a\nb",),
        ("foo bar",),
        ("x ;;;",),
        ("numpy=1",),
        ("numpy>=",),
        ("$(id)",),
        ("[x]",),
    ],
)
async def test_a_job_is_refused_when_a_package_cannot_be(people: People, words):
    with pytest.raises(InvalidError):
        await people.services.jobs.submit(people.ann, people.job(requirements=words))


async def test_packages_are_taken_when_they_are_written_as_pip_takes_them(people: People):
    words = (
        "numpy", "Numpy>=1.26,<2", "torch == 2.1.*", "a[b,c]~=1.0", "x>=1; python_version < '3.12'", "y (>=1,<2)",
        "z @ https://code.example.org/z.tar.gz", "git+https://code.example.org/a.git@main#egg=a", "./wheels/a.whl",
        "a.whl", "b # why", "c==1 --hash=sha256:00", "d===1+local", "e!=1",
    )  # fmt: skip
    job = await people.services.jobs.submit(people.ann, people.job(requirements=words))
    assert job.spec.requirements == words


async def test_the_ids_are_told_when_two_code_sources_have_one_name(people: People):
    made = [
        await people.services.codes.add(people.root, "same", URL, workspace=workspace)
        for workspace in (VISION, SPEECH)
    ]
    with pytest.raises(ConflictError) as refused:
        await people.services.codes.get(people.root, "same")
    assert all(one.id in refused.value.hint for one in made)
