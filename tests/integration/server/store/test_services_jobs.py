"""Jobs through the services: who may, what is refused with which reason, and what is written down."""

from __future__ import annotations

import pytest

from people import SPEECH, VISION, People
from trainyard.lib.errors import ConflictError, DeniedError, InvalidError, NotFoundError, StaleError
from trainyard.server.jobs.service import JobQuery, masked
from trainyard.server.launch.launch_facts import LaunchFacts
from trainyard.server.records.tasks import TaskRecord
from trainyard.server.records.workspaces import Role
from trainyard.server.store import audit, events
from trainyard.server.store.jobs import workloads
from trainyard.server.store.jobs.workload_steps import advance
from trainyard.server.store.people import workspaces
from trainyard.server.wakeups import RECONCILER
from trainyard.spec.workload import Desired, MountSpec, RoleSpec, State


async def move(people: People, job_id: str, *states: State, **changes):
    """What the loops would do."""

    def work(connection):
        record = workloads.load(connection, job_id)
        for state in states:
            extra = {"ending": changes.get("ending", State.FAILED)} if state is State.FINISHING else {}
            record = advance(connection, record, state, now=5.0, **extra)
        return record

    return await people.db.write(work)


async def test_a_job_waits_with_its_event_when_it_was_submitted(people: People):
    mark = people.services.wakeups.mark(RECONCILER)
    record = await people.services.jobs.submit(
        people.ann, people.job(name="中文 job", env={"HF_TOKEN": "s3cret"})
    )
    assert (record.state, record.desired, record.workspace_id, record.user_id) == (
        State.WAITING, Desired.RUN, VISION, "u-ann",
    )  # fmt: skip
    assert people.services.wakeups.mark(RECONCILER) == mark + 1
    told = await people.services.events.page(people.ann, job=record.id)
    assert [(event.code, event.actor) for event in told] == [("submitted", "ann")]
    kept = people.db.read_now(lambda c: (audit.page(c), events.page(c)))
    assert kept[0][0].action == "jobs.submit"
    assert "s3cret" not in repr(kept)
    assert "s3cret" not in repr(masked(record.spec))
    assert LaunchFacts(seal=people.services.seal).opened(record.spec.env, "u-ann") == {"HF_TOKEN": "s3cret"}


async def test_jobs_are_in_their_order_when_many_are_submitted_at_once(people: People):
    records = await people.services.jobs.submit_many(
        people.ann, [people.job(name=f"j{n}") for n in range(300)]
    )
    assert [record.name for record in records] == [f"j{n}" for n in range(300)]
    page = await people.services.jobs.list(
        people.ann, JobQuery(limit=120, newest_first=False, with_total=True)
    )
    rest = await people.services.jobs.list(
        people.ann, JobQuery(limit=500, newest_first=False, cursor=page.cursor)
    )
    assert [one.name for one in (*page.items, *rest.items)] == [f"j{n}" for n in range(300)]
    assert (page.total, rest.cursor) == (300, "")
    with pytest.raises(InvalidError):
        await people.services.jobs.submit_many(people.ann, [people.job(), people.job(priority=99)])
    with pytest.raises(InvalidError):
        await people.services.jobs.submit_many(people.ann, [])
    assert await people.db.read(lambda c: workloads.count(c)) == 300


async def test_the_same_job_comes_back_when_a_key_is_repeated_and_an_error_when_it_is_another_job(
    people: People,
):
    first = await people.services.jobs.submit(people.ann, people.job(), idempotency_key="k")
    again = await people.services.jobs.submit(people.ann, people.job(), idempotency_key="k")
    assert first.id == again.id
    other = await people.services.jobs.submit(people.ben, people.job(), idempotency_key="k")
    assert other.id != first.id
    with pytest.raises(ConflictError, match="another request"):
        await people.services.jobs.submit(people.ann, people.job(name="x"), idempotency_key="k")


@pytest.mark.parametrize("who", ["zoe", "vic", "ben"])
async def test_nothing_of_a_job_is_shown_or_done_when_it_is_not_theirs(people: People, who: str):
    record = await people.services.jobs.submit(people.ann, people.job())
    actor, jobs = getattr(people, who), people.services.jobs
    looks = [
        jobs.get(actor, record.id), jobs.tasks(actor, record.id), jobs.explain(actor, record.id),
        people.services.events.page(actor, job=record.id),
    ]  # fmt: skip
    changes = [
        jobs.set_desired(actor, record.id, Desired.CANCEL), jobs.set_priority(actor, record.id, 9),
        jobs.delete(actor, record.id), jobs.approve(actor, record.id), jobs.for_terminal(actor, record.id, "worker-0"),
    ]  # fmt: skip
    for look in looks:
        if who == "zoe":
            with pytest.raises(NotFoundError, match="There is no job"):
                await look
        else:
            await look
    for change in changes:
        with pytest.raises(NotFoundError if who == "zoe" else DeniedError):
            await change
    assert (await jobs.get(people.ann, record.id)).version == 1
    if who != "zoe":
        denied = await people.services.audit.page(people.root)
        assert {entry.outcome for entry in denied.items if entry.actor == who} == {"denied"}


async def test_a_foreign_workspace_is_as_if_there_were_none_when_it_is_named(people: People):
    jobs = people.services.jobs
    await jobs.submit(people.zoe, people.job(name="theirs"))
    for name in ("speech", SPEECH, "no such"):
        with pytest.raises(NotFoundError) as caught:
            await jobs.submit(people.ann, people.job(workspace=name))
        assert caught.value.message == f"There is no workspace {name!r}."
        with pytest.raises(NotFoundError):
            await jobs.list(people.ann, JobQuery(workspace=name))
        with pytest.raises(NotFoundError):
            await jobs.dry_run(people.ann, people.job(workspace=name))
        with pytest.raises(NotFoundError):
            await people.services.workspaces.get(people.ann, name)
    assert (await jobs.list(people.ann)).items == ()
    assert (await jobs.list(people.ann, JobQuery(user="zoe"))).items == ()
    assert len((await jobs.list(people.root)).items) == 1
    seen = await people.services.events.page(people.ann)
    assert [event for event in seen if event.workspace_id == SPEECH] == []


async def test_a_viewer_looks_and_does_not_submit(people: People):
    record = await people.services.jobs.submit(people.ann, people.job())
    assert (await people.services.jobs.get(people.vic, record.id)).id == record.id
    with pytest.raises(DeniedError, match="member"):
        await people.services.jobs.submit(people.vic, people.job())


async def test_the_workspaces_administrator_acts_on_everybodys_jobs(people: People):
    record = await people.services.jobs.submit(people.ann, people.job())
    assert (
        await people.services.jobs.set_desired(people.chief, record.id, Desired.PAUSE)
    ).desired is Desired.PAUSE


async def test_a_token_for_reading_cannot_write_when_its_owner_could(people: People):
    made = await people.services.tokens.create(people.ann, scopes=["jobs:read"])
    reader = await people.services.authentication.authenticate(made.token)
    record = await people.services.jobs.submit(people.ann, people.job())
    assert (await people.services.jobs.get(reader, record.id)).id == record.id
    for attempt in (
        people.services.jobs.submit(reader, people.job()),
        people.services.jobs.set_desired(reader, record.id, Desired.CANCEL),
        people.services.tokens.create(reader),
    ):
        with pytest.raises(DeniedError, match="This token is not for"):
            await attempt


async def test_a_token_for_something_else_lists_nothing_when_its_owner_sees_everything(people: People):
    await people.services.jobs.submit(people.ann, people.job())
    made = await people.services.tokens.create(people.root, scopes=["metrics:read"])
    scraper = await people.services.authentication.authenticate(made.token)
    services = people.services
    assert (await services.jobs.list(people.root)).items
    for service in (services.jobs, services.workspaces, services.schedules, services.codes, services.sweeps):
        await service.list(people.root)
        with pytest.raises(DeniedError, match="token is not for"):
            await service.list(scraper)
    assert scraper.places("metrics:read") is None


async def test_wishes_are_refused_with_the_reason_when_the_state_does_not_allow_them(people: People):
    jobs = people.services.jobs
    record = await jobs.submit(people.ann, people.job())
    with pytest.raises(ConflictError, match="has not ended"):
        await jobs.delete(people.ann, record.id)
    with pytest.raises(StaleError, match="version 1 by now, not 7"):
        await jobs.set_desired(people.ann, record.id, Desired.PAUSE, version=7)
    paused = await jobs.set_desired(people.ann, record.id, Desired.PAUSE, version=1)
    assert (await jobs.set_desired(people.ann, record.id, Desired.PAUSE)) == paused
    assert (await jobs.set_desired(people.ann, record.id, Desired.RUN)).desired is Desired.RUN
    assert (await jobs.set_priority(people.ann, record.id, 9)).priority == 9
    await move(people, record.id, State.ADMITTED, State.STARTING, State.RUNNING)
    with pytest.raises(ConflictError, match="is running: its priority has no effect"):
        await jobs.set_priority(people.ann, record.id, 1)
    await jobs.set_desired(people.ann, record.id, Desired.CANCEL)
    with pytest.raises(ConflictError, match="is being stopped"):
        await jobs.set_desired(people.ann, record.id, Desired.RUN)
    await move(people, record.id, State.FINISHING, State.CANCELLED)
    assert (await jobs.set_desired(people.ann, record.id, Desired.CANCEL)).state is State.CANCELLED
    with pytest.raises(ConflictError, match="has ended"):
        await jobs.set_desired(people.ann, record.id, Desired.RUN)
    await jobs.delete(people.ann, record.id)
    with pytest.raises(NotFoundError):
        await jobs.get(people.ann, record.id)


async def test_a_job_that_failed_cannot_be_stopped(people: People):
    record = await people.services.jobs.submit(people.ann, people.job())
    await move(people, record.id, State.FAILED)
    with pytest.raises(ConflictError, match="has failed already"):
        await people.services.jobs.set_desired(people.ann, record.id, Desired.CANCEL)


async def test_a_job_waits_for_a_person_when_it_needs_approval(people: People):
    jobs = people.services.jobs
    await people.services.workspaces.change(people.chief, "vision", needs_approval=True)
    record = await jobs.submit(people.ann, people.job())
    assert (record.state, record.desired, record.reason) == (State.HELD, Desired.PAUSE, "needs_approval")
    with pytest.raises(ConflictError, match="waits for approval"):
        await jobs.set_desired(people.ann, record.id, Desired.RUN)
    with pytest.raises(DeniedError):
        await jobs.approve(people.ann, record.id)
    assert "approve" in (await jobs.explain(people.ann, record.id)).remedy
    assert (await jobs.approve(people.chief, record.id)).desired is Desired.RUN
    with pytest.raises(ConflictError):
        await jobs.approve(people.chief, record.id)
    assert (await jobs.submit(people.chief, people.job())).state is State.WAITING
    assert (await jobs.submit(people.chief, people.job(needs_approval=True))).state is State.HELD


async def test_a_held_job_is_its_owners_to_resume_when_it_was_submitted_so(people: People):
    record = await people.services.jobs.submit(people.ann, people.job(), hold=True)
    assert (record.state, record.queued_at) == (State.HELD, None)
    assert (await people.services.jobs.set_desired(people.ann, record.id, Desired.RUN)).desired is Desired.RUN


async def test_secrets_stay_with_their_owner_when_somebody_else_clones_a_job(people: People):
    env = {"DB_PASS": "k", "GITHUB_PAT": "p", "EPOCHS": "3", "DATABASE_URL": "postgres://me:x@db/y"}
    record = await people.services.jobs.submit(people.ann, people.job(env=env, roles=(RoleSpec(env=env),)))
    own = await people.services.jobs.clone(people.ann, record.id, {"name": "again", "priority": 7})
    assert (own.name, own.priority) == ("again", 7)
    facts = LaunchFacts(seal=people.services.seal)
    assert facts.opened(own.spec.env, "u-ann") == facts.opened(own.spec.roles[0].env, "u-ann") == env
    assert "x@db" not in repr(own) and own.spec.env["EPOCHS"] == "3"
    with pytest.raises(ConflictError, match="DB_PASS was sealed"):
        facts.opened(own.spec.env, "u-ben")
    other = await people.services.jobs.clone(people.ben, record.id)
    assert other.spec.env == other.spec.roles[0].env == {"EPOCHS": "3"}
    with pytest.raises(InvalidError, match="no field 'id'"):
        await people.services.jobs.clone(people.ann, record.id, {"id": "x"})


async def test_secrets_are_shown_to_nobody_when_people_may_see_the_job(people: People):
    env = {"HF_TOKEN": "s3cret", "EPOCHS": "3"}
    asked = {
        "Envs": env,
        "JobSpecs": [{"ImageConfig": {"Username": "u", "Password": "s3cret"}}],
        "Priority": 3,
    }
    spec = people.job(env=env, roles=(RoleSpec(env=env),))
    record = await people.services.jobs.submit(people.ann, spec, dlc=asked)
    for actor in (people.ann, people.ben, people.vic, people.chief, people.root):
        seen = await people.services.jobs.get(actor, record.id)
        assert "s3cret" not in repr(seen)
        assert (seen.spec.env["EPOCHS"], seen.dlc["Priority"]) == ("3", 3)
        assert "s3cret" not in repr(await people.services.jobs.list(actor))
    assert "s3cret" not in repr(await people.services.jobs.set_priority(people.chief, record.id, 9))
    stored = people.db.read_now(lambda c: workloads.load(c, record.id))
    assert "s3cret" not in repr(stored)
    assert LaunchFacts(seal=people.services.seal).opened(stored.spec.env, "u-ann") == env
    password = stored.dlc["JobSpecs"][0]["ImageConfig"]["Password"]
    assert people.services.seal.try_open_text(password, "u-ann") == "s3cret"


async def test_a_workspaces_time_limit_holds_when_a_job_has_none_of_its_own(people: People):
    await people.services.workspaces.change(people.chief, "vision", max_run_seconds=3600)
    assert (await people.services.jobs.submit(people.ann, people.job())).spec.max_run_seconds == 3600
    with pytest.raises(InvalidError, match="3600 s at most"):
        await people.services.jobs.submit(people.ann, people.job(max_run_seconds=7200))


async def test_a_workspace_has_to_be_named_when_there_are_several(people: People):
    def join(connection):
        workspaces.set_member(connection, SPEECH, "u-ann", Role.MEMBER)

    people.db.write_now(join)
    people.services.authentication.forget()
    ann = await people.again(people.ann)
    with pytest.raises(InvalidError, match="several workspaces: speech, vision"):
        await people.services.jobs.submit(ann, people.job())
    assert (await people.services.jobs.submit(ann, people.job(workspace="speech"))).workspace_id == SPEECH


async def test_the_reason_position_and_remedy_are_told_when_a_job_waits(people: People):
    jobs = people.services.jobs
    big = RoleSpec(cpu=4, devices=4)
    first = await jobs.submit(people.zoe, people.job(name="secret name", roles=(big,)))
    mine = await jobs.submit(people.ann, people.job(roles=(RoleSpec(cpu=64),)))
    told = await jobs.explain(people.ann, mine.id)
    assert (told.reason, told.position, told.starts_now) == ("NeverFits", 1, False)
    assert "No set of nodes" in told.sentence
    assert "集群" in (await jobs.explain(people.ann, mine.id, language="zh")).sentence
    assert (await jobs.explain(people.zoe, first.id)).starts_now
    with pytest.raises(InvalidError, match="klingon"):
        await jobs.explain(people.ann, mine.id, language="klingon")


async def test_names_of_other_workspaces_are_not_told_when_one_of_theirs_is_ahead(people: People):
    jobs = people.services.jobs
    await people.services.jobs.submit(
        people.zoe, people.job(name="secret name", roles=(RoleSpec(devices=4),))
    )
    running = (await jobs.list(people.zoe)).items[0]
    await move(people, running.id, State.ADMITTED, State.STARTING, State.RUNNING)
    people.db.write_now(
        lambda c: workloads.insert_tasks(
            c,
            [TaskRecord(workload_id=running.id, attempt=1, name="worker-0", role="worker", number=0, rank=0,
                                  node="n1", devices=(0, 1, 2, 3))],
        )
    )  # fmt: skip
    waiting = await jobs.submit(
        people.zoe, people.job(name="secret name", roles=(RoleSpec(devices=4),), priority=9)
    )
    mine = await jobs.submit(people.ann, people.job(roles=(RoleSpec(devices=4),), priority=1))
    told = await jobs.explain(people.ann, mine.id)
    assert told.reason
    assert "secret" not in repr(told)
    assert waiting.id not in repr(told)
    assert "secret" not in repr(await jobs.dry_run(people.ann, people.job(roles=(RoleSpec(devices=1),))))


async def test_lists_have_positions_when_jobs_wait(people: People):
    jobs = people.services.jobs
    records = await jobs.submit_many(people.ann, [people.job(roles=(RoleSpec(cpu=4),)) for _ in range(4)])
    listed = (await jobs.list(people.ann, JobQuery(newest_first=False))).items
    positions = [record.wait and record.wait["position"] for record in listed]
    for _ in range(100):  # the first look may be on its way
        if positions == [None, 1, 2, 3]:
            break
        listed = (await jobs.list(people.ann, JobQuery(newest_first=False))).items
        positions = [record.wait and record.wait["position"] for record in listed]
    assert positions == [None, 1, 2, 3]  # the first one is about to start
    assert all(record.message.endswith(".") for record in listed[1:]), "why each waits"
    assert [record.id for record in listed] == [record.id for record in records]
    assert listed[1].version == 1


async def test_a_dry_run_refuses_what_would_be_refused_when_it_is_submitted(people: People):
    with pytest.raises(InvalidError, match="There is no storage 'none'"):
        await people.services.jobs.dry_run(people.ann, people.job(mounts=(MountSpec(source="none"),)))


async def test_it_is_said_that_no_node_runs_images_when_a_job_has_one(people: People):
    asked = people.job(roles=(RoleSpec(image="a/b:1"),))
    told = await people.services.jobs.dry_run(people.ann, asked)
    assert not told.starts_now
    assert "no podman or docker" in told.sentence and "--images ignore" in told.remedy
    record = await people.services.jobs.submit(people.ann, asked)
    assert (await people.services.jobs.explain(people.ann, record.id)).sentence == told.sentence


async def test_a_dry_run_says_where_and_keeps_nothing(people: People):
    told = await people.services.jobs.dry_run(people.ann, people.job(roles=(RoleSpec(devices=2),)))
    assert (told.starts_now, told.nodes) == (True, ("n1",))
    told = await people.services.jobs.dry_run(people.ann, people.job(roles=(RoleSpec(devices=5),)))
    assert (told.starts_now, told.reason) == (False, "NeverFits")
    assert (await people.services.jobs.list(people.root)).items == ()


async def test_the_quota_is_shown_with_what_is_used(people: People):
    record = await people.services.jobs.submit(
        people.ann, people.job(roles=(RoleSpec(cpu=1.5, devices=2, device="V100"),))
    )
    await move(people, record.id, State.ADMITTED, State.STARTING)
    people.db.write_now(
        lambda c: workloads.insert_tasks(
            c,
            [TaskRecord(workload_id=record.id, attempt=1, name="worker-0", role="worker", number=0, rank=0,
                                  node="n1", devices=(0, 1))],
        )
    )  # fmt: skip
    await people.services.jobs.submit(people.ben, people.job())
    await people.services.workspaces.change(
        people.root, "vision", quota={"nominal": {"V100": 2}, "borrow": {"V100": 1}}
    )
    tree = {view.name: view for view in await people.services.quota.tree(people.ann)}
    assert tree.keys() == {"cluster", "vision"}
    vision = tree["vision"]
    assert vision.used == {"cpu": 1500, "memory": 0, "V100": 2}
    assert (vision.nominal, vision.limit, vision.waiting, vision.running) == ({"V100": 2}, {"V100": 3}, 1, 1)
    assert vision.users == {"ann": {"cpu": 1500, "memory": 0, "V100": 2}}
    assert tree["cluster"].nominal == {"cpu": 4000, "memory": 8192, "V100": 4}
    assert {view.name for view in await people.services.quota.tree(people.root)} == {
        "cluster",
        "default",
        "speech",
        "vision",
    }


@pytest.mark.parametrize("said", ["Nvidia", "nvidia_gpu_amd64", "gpu"])
async def test_a_job_gets_the_model_there_is_when_it_says_what_forms_call_devices(people: People, said: str):
    record = await people.services.jobs.submit(
        people.ann, people.job(roles=(RoleSpec(devices=1, device=said),))
    )
    assert record.spec.roles[0].device == "V100"


async def test_a_job_waits_for_what_it_named_when_there_is_nothing_of_the_kind(people: People):
    asked = people.job(kind="PSDistJob", roles=(RoleSpec(devices=8, device="huawei_npu_arm64"),))
    record = await people.services.jobs.submit(people.ann, asked)
    assert [role.device for role in record.spec.roles if role.devices] == ["huawei_npu_arm64"]
    told = await people.services.jobs.dry_run(
        people.ann, people.job(roles=(RoleSpec(devices=1, device="A100"),))
    )
    assert told.reason == "NeverFits", "a model is meant as it is said"
