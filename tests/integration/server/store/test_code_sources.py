"""Code sources through the services: who may, what is refused, and that tokens stay sealed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from people import SPEECH, VISION, Cast
from trainyard.lib.errors import ConflictError, DeniedError, InvalidError, NotFoundError
from trainyard.server.auth.actor import Actor
from trainyard.server.launch import code_checkout
from trainyard.server.records.workspaces import Role
from trainyard.server.secrets.sealing import Seal
from trainyard.server.store import audit
from trainyard.server.store.jobs import code_sources
from trainyard.spec.workload import CodeSpec

URL = "https://code.example.org/team/bert.git"


async def test_a_source_is_used_by_a_job_and_its_token_is_only_opened_for_launches(
    cast: Cast, tmp_path: Path
):
    made = await cast.services.codes.add(
        cast.ann, "bert 中文", URL, branch="main", commit="abcd", token="s3cret"
    )
    job = await cast.services.jobs.submit(cast.ben, cast.job(code=CodeSpec(source="bert 中文")))
    assert job.spec.code == CodeSpec(source=made.id)
    seal = cast.services.seal
    found = await cast.db.read(lambda c: code_checkout.load(c, [job.spec], seal))
    assert code_checkout.code_of(job.spec.code, found) == {
        "url": URL, "branch": "main", "commit": "abcd", "target": "", "token": "s3cret",
    }  # fmt: skip
    other = code_checkout.code_of(replace(job.spec.code, branch="dev", target="x"), found)
    assert (other["branch"], other["commit"], other["target"]) == ("dev", "", "x")
    assert code_checkout.code_of(job.spec.code, {})["url"] == "", "a source that is gone is told as such"
    wrong = await cast.db.read(lambda c: code_checkout.load(c, [job.spec], Seal(tmp_path / "other.key")))
    assert code_checkout.code_of(job.spec.code, wrong)["token"] == ""
    kept = cast.db.read_now(lambda c: (code_sources.list_sources(c), audit.page(c)))
    assert b"s3cret" not in (kept[0][0].sealed or b"")
    assert "s3cret" not in repr(kept) + repr(made) + repr(found)


async def test_a_token_does_not_follow_when_the_address_changes(cast: Cast):
    service = cast.services.codes
    made = await service.add(cast.ann, "bert", URL, token="s3cret")
    assert (await service.change(cast.ann, "bert", branch="dev")).sealed == made.sealed
    moved = await service.change(cast.ann, "bert", url="https://evil.example.org/x.git")
    assert moved.sealed is None
    assert (await service.change(cast.ann, made.id, token="new")).sealed is not None
    assert (await service.change(cast.ann, made.id, token="")).sealed is None


async def test_sources_are_their_workspaces_own(cast: Cast):
    service = cast.services.codes
    made = await service.add(cast.ann, "bert", URL)
    with pytest.raises(ConflictError):
        await service.add(cast.ben, "bert", URL)
    await service.add(cast.zoe, "bert", URL)
    assert [one.id for one in await service.list(cast.vic)] == [made.id]
    with pytest.raises(DeniedError):
        await service.remove(cast.vic, "bert")
    for look in (service.get(cast.zoe, made.id), service.remove(cast.zoe, made.id)):
        with pytest.raises(NotFoundError):
            await look
    both = Actor(user_id="u-ann", name="ann", roles={VISION: Role.MEMBER, SPEECH: Role.MEMBER})
    with pytest.raises(ConflictError, match="called 'bert'"):
        await service.get(both, "bert")
    with pytest.raises(NotFoundError, match="no code source"):
        await cast.services.jobs.submit(both, cast.job(workspace=SPEECH, code=CodeSpec(source=made.id)))
    await service.remove(cast.ann, "bert")
    assert await service.list(cast.ann) == []


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
async def test_a_job_is_refused_when_its_code_cannot_be(cast: Cast, code):
    with pytest.raises(InvalidError):
        await cast.services.jobs.submit(cast.ann, cast.job(code=code))


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
async def test_a_job_is_refused_when_a_package_cannot_be(cast: Cast, words):
    with pytest.raises(InvalidError):
        await cast.services.jobs.submit(cast.ann, cast.job(requirements=words))


async def test_packages_are_taken_when_they_are_written_as_pip_takes_them(cast: Cast):
    words = (
        "numpy", "Numpy>=1.26,<2", "torch == 2.1.*", "a[b,c]~=1.0", "x>=1; python_version < '3.12'", "y (>=1,<2)",
        "z @ https://code.example.org/z.tar.gz", "git+https://code.example.org/a.git@main#egg=a", "./wheels/a.whl",
        "a.whl", "b # why", "c==1 --hash=sha256:00", "d===1+local", "e!=1",
    )  # fmt: skip
    job = await cast.services.jobs.submit(cast.ann, cast.job(requirements=words))
    assert job.spec.requirements == words


async def test_the_ids_are_told_when_two_code_sources_have_one_name(cast: Cast):
    made = [
        await cast.services.codes.add(cast.root, "same", URL, workspace=workspace)
        for workspace in (VISION, SPEECH)
    ]
    with pytest.raises(ConflictError) as refused:
        await cast.services.codes.get(cast.root, "same")
    assert all(one.id in refused.value.hint for one in made)
