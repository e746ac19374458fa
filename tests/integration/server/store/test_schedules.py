"""Schedules and templates through the services and the leader's clock, on SQLite and PostgreSQL."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from people import VISION, People
from trainyard.lib.errors import ConflictError, DeniedError, InvalidError, NotFoundError
from trainyard.server.launch.launch_facts import LaunchFacts
from trainyard.server.leader import leader_lease
from trainyard.server.leader.leader_lease import LeaderTerm, LeadLostError
from trainyard.server.leader.schedule_loop import ScheduleLoop
from trainyard.server.records.workspaces import Role
from trainyard.server.store import leases
from trainyard.server.store.jobs import schedules, workloads
from trainyard.server.store.jobs.workload_steps import advance
from trainyard.server.store.people import users, workspaces
from trainyard.spec.workload import Desired, NeedSpec, RoleSpec, State, WorkloadSpec


async def schedule_loop(people: People) -> ScheduleLoop:
    lease = await people.db.write(lambda c: leases.take(c, leader_lease.LEASE, owner="one", seconds=1000))
    assert lease is not None
    return ScheduleLoop(LeaderTerm(people.db, people.clock, "one", lease.epoch), people.services.context)


def jobs(people: People, schedule: str):
    return people.db.read_now(lambda c: workloads.of_origin(c, f"schedule:{schedule}"))


def opened(people: People, spec: WorkloadSpec) -> dict[str, str]:
    return LaunchFacts(seal=people.services.seal).opened(spec.env, "u-ann")


def forward(people: People, seconds: float) -> None:
    people.clock.advance(seconds)


async def test_one_job_is_submitted_for_each_moment_and_one_for_all_that_were_missed(people: People):
    loop = await schedule_loop(people)
    made = await people.services.schedules.add(people.ann, "每晚", "0 * * * *", people.job(), overlap="allow")
    assert await loop.look() == 0
    forward(people, made.next_at - people.clock.now().timestamp())
    assert (await loop.look(), await loop.look()) == (1, 0)
    first = jobs(people, made.id)
    assert [one.user_id for one in first] == ["u-ann"]
    forward(people, 5 * 3600)
    assert (await loop.look(), await loop.look()) == (1, 0)
    assert len(jobs(people, made.id)) == 2
    now = await people.services.schedules.get(people.ben, made.id)
    assert now.next_at > people.clock.now().timestamp()
    assert now.last_job == jobs(people, made.id)[-1].id


async def test_nothing_is_submitted_twice_when_the_leader_changes_in_between(people: People):
    old = await schedule_loop(people)
    made = await people.services.schedules.add(people.ann, "x", "* * * * *", people.job(), overlap="allow")
    forward(people, 61)
    lease = await people.db.write(lambda c: leases.take(c, leader_lease.LEASE, owner="one", seconds=1000))
    new = ScheduleLoop(LeaderTerm(people.db, people.clock, "one", lease.epoch), people.services.context)
    with pytest.raises(LeadLostError):
        await old.look()
    assert await new.look() == 1
    assert len(jobs(people, made.id)) == 1


@pytest.mark.parametrize(
    ("overlap", "number", "wanted"), [("skip", 1, Desired.RUN), ("allow", 2, Desired.RUN), ("replace", 2, Desired.CANCEL)]
)  # fmt: skip
async def test_a_job_that_still_runs_is_kept_joined_or_replaced(people: People, overlap, number, wanted):
    loop = await schedule_loop(people)
    made = await people.services.schedules.add(people.ann, "x", "* * * * *", people.job(), overlap=overlap)
    for _ in range(2):
        forward(people, 61)
        await loop.look()
    found = jobs(people, made.id)
    assert (len(found), found[0].desired) == (number, wanted)
    note = (await people.services.schedules.get(people.ann, "x")).message
    assert ("Skipped" in note) == (overlap == "skip")
    await people.db.write(lambda c: advance(c, workloads.load(c, found[0].id), State.CANCELLED, now=5.0))
    forward(people, 61)
    await loop.look()
    assert len(jobs(people, made.id)) == number + 1


@pytest.mark.parametrize("what", ["closed", "left"])
async def test_a_schedule_is_paused_with_a_reason_when_its_owner_may_not_submit_any_more(
    people: People, what
):
    loop = await schedule_loop(people)
    made = await people.services.schedules.add(people.ann, "x", "* * * * *", people.job())

    def work(c):
        if what == "closed":
            users.save(c, replace(users.load(c, "u-ann"), is_active=False))
        else:
            workspaces.remove_member(c, VISION, "u-ann")

    await people.db.write(work)
    forward(people, 61)
    assert await loop.look() == 0
    found = await people.services.schedules.get(people.chief, "x")
    assert not found.is_active and found.next_at is None and found.message.startswith("Paused:")
    await people.db.write(
        lambda c: (
            users.save(c, replace(users.load(c, "u-ann"), is_active=True)),
            workspaces.set_member(c, VISION, "u-ann", Role.MEMBER),
        )
    )
    resumed = await people.services.schedules.change(people.chief, made.id, is_active=True)
    assert resumed.next_at is not None and resumed.message == ""
    forward(people, 61)
    assert await loop.look() == 1


async def test_a_schedule_says_so_when_its_job_is_refused_and_goes_on(people: People):
    loop = await schedule_loop(people)
    made = await people.services.schedules.add(people.ann, "x", "* * * * *", people.job(max_run_seconds=900))
    await people.services.workspaces.change(people.chief, VISION, max_run_seconds=60)
    forward(people, 61)
    assert await loop.look() == 0
    found = await people.services.schedules.get(people.ann, made.id)
    assert found.is_active and found.next_at is not None and "Not submitted" in found.message


async def test_a_schedule_is_paused_run_by_hand_changed_and_removed(people: People):
    loop, service = await schedule_loop(people), people.services.schedules
    job = await people.services.jobs.submit(people.ann, people.job(env={"HF_TOKEN": "s3cret"}, name="orig"))
    own = await service.add(people.ann, "own", "0 9 * * mon-fri", from_job=job.id, timezone="Asia/Shanghai")
    assert opened(people, own.spec) == {"HF_TOKEN": "s3cret"}
    assert datetime.fromtimestamp(own.next_at, UTC).hour == 1
    copied = await service.add(people.ben, "copied", "@daily", from_job=job.id)
    assert copied.spec.env == {}
    await service.change(people.ann, "own", is_active=False)
    forward(people, 8 * 86400)
    await loop.look()
    assert jobs(people, own.id) == []
    ran = await service.run_now(people.ann, "own")
    assert (ran.name, ran.origin) == ("orig", f"schedule:{own.id}")
    with pytest.raises(DeniedError):
        await service.run_now(people.ben, "own")
    with pytest.raises(NotFoundError):
        await service.get(people.zoe, "own")
    with pytest.raises(DeniedError, match="with their rights"):
        await service.change(people.chief, "own", spec=people.job(command="env"))
    changed = await service.change(people.chief, "own", cron="0 0 1 * *", overlap="replace")
    assert (changed.cron, changed.is_active) == ("0 0 1 * *", False)
    await service.remove(people.ann, "own")
    assert [one.name for one in await service.list(people.ann)] == ["copied"]
    assert len(jobs(people, own.id)) == 1, "its jobs stay"


@pytest.mark.parametrize(
    "wrong",
    [
        {"line": "0 0 31 feb *"},
        {"line": "nonsense"},
        {"timezone": "Mars/Olympus"},
        {"overlap": "maybe"},
        {"name": ""},
        {"name": "a/b"},
        {"name": ".."},
        {"spec": {"command": ""}},
        {"spec": {"after": (NeedSpec(job="dlcx"),)}},
    ],
)
async def test_a_schedule_is_refused_when_it_could_never_work(people: People, wrong):
    spec = people.job(**wrong.get("spec", {}))
    given = {key: wrong[key] for key in ("timezone", "overlap") if key in wrong}
    with pytest.raises(InvalidError):
        await people.services.schedules.add(
            people.ann, wrong.get("name", "x"), wrong.get("line", "@daily"), spec, **given
        )
    assert people.db.read_now(schedules.list_schedules) == []


async def test_templates_are_ones_own_a_workspaces_or_everybodys(people: People):
    service = people.services.templates
    spec = people.job(env={"HF_TOKEN": "s3cret", "A": "1"}, tags={"t": "1"}, roles=(RoleSpec(devices=1),))
    mine = await service.save(people.ann, "bert", spec)
    again = await service.save(people.ann, "bert", spec, description="again")
    assert (again.id, again.version, again.description) == (mine.id, 2, "again")
    team = await service.save(people.ann, "bert", spec, scope="workspace")
    assert "HF_TOKEN" not in team.spec.env
    with pytest.raises(DeniedError):
        await service.save(people.ann, "bert", spec, scope="all")
    with pytest.raises(DeniedError):
        await service.save(people.vic, "bert", spec, scope="workspace")
    with pytest.raises(DeniedError):
        await service.save(people.ben, "bert", spec, scope="workspace")
    for name in ("a/b", ".", ".."):
        with pytest.raises(InvalidError, match="found again"):
            await service.save(people.ann, name, spec)
    shared = await service.save(people.root, "bert", spec, scope="all")
    assert [one.id for one in await service.list(people.zoe)] == [shared.id]
    assert (await service.get(people.ann, "bert")).id == mine.id
    assert (await service.get(people.ben, "bert")).id == team.id
    job = await service.submit(
        people.ann, "bert", {"name": "mine", "env": {"A": "2"}, "tags": {"u": "2"}}, role={"devices": 2}
    )
    assert (job.name, job.origin, job.workspace_id) == ("mine", f"template:{mine.id}", VISION)
    assert opened(people, job.spec) == {"HF_TOKEN": "s3cret", "A": "2"}
    assert (job.spec.tags, job.spec.roles[0].devices) == ({"t": "1", "u": "2"}, 2)
    with pytest.raises(InvalidError):
        await service.submit(people.ann, "bert", role={"devices": -1})
    with pytest.raises(DeniedError):
        await service.remove(people.ben, team.id)
    await service.remove(people.chief, team.id)
    with pytest.raises(NotFoundError):
        await service.get(people.zoe, mine.id)


async def test_a_template_has_no_secrets_of_others_when_it_is_made_from_their_job(people: People):
    job = await people.services.jobs.submit(people.ann, people.job(env={"HF_TOKEN": "s3cret", "A": "1"}))
    copy = await people.services.templates.save(people.ben, "x", from_job=job.id)
    assert copy.spec.env == {"A": "1"}
    with pytest.raises(NotFoundError):
        await people.services.templates.save(people.zoe, "x", from_job=job.id)
    with pytest.raises(InvalidError):
        await people.services.templates.save(people.ann, "x")
    with pytest.raises(ConflictError):
        await people.services.schedules.add(people.ann, "a", "@daily", people.job())
        await people.services.schedules.add(people.chief, "a", "@daily", people.job())
        await people.services.schedules.get(people.ben, "a")


async def test_the_ids_are_told_when_two_schedules_have_one_name(people: People):
    made = [await people.services.schedules.add(people.ann, "same", "@daily", people.job()) for _ in range(2)]
    with pytest.raises(ConflictError) as refused:
        await people.services.schedules.get(people.ann, "same")
    assert all(one.id in refused.value.hint for one in made)


async def test_no_moment_comes_twice_when_the_clock_is_set_back_a_little_and_none_is_awaited_for_a_year(
    people: People,
):
    loop = await schedule_loop(people)
    made = await people.services.schedules.add(people.ann, "x", "0 * * * *", people.job(), overlap="allow")
    forward(people, made.next_at - people.clock.now().timestamp())
    assert await loop.look() == 1
    people.clock.step(-600)
    assert await loop.look() == 0
    forward(people, 601)
    assert await loop.look() == 0
    people.clock.step(366 * 86400)
    assert await loop.look() == 1
    forward(people, 3600)
    assert await loop.look() == 1
    people.clock.step(-366 * 86400)
    assert await loop.look() == 0
    forward(people, 3600)
    assert await loop.look() == 1
    # Planned by another server, whose clock is ahead: ours was never set.
    record = await people.services.schedules.get(people.ann, made.id)
    await people.db.write(
        lambda c: schedules.save_schedule(c, replace(record, next_at=record.next_at + 366 * 86400))
    )
    forward(people, 601)
    assert await loop.look() == 0
    found = await people.services.schedules.get(people.ann, made.id)
    assert found.next_at - people.clock.now().timestamp() <= 3600
