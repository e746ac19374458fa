"""Schedules and templates through the services and the leader's clock, on SQLite and PostgreSQL."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from people import VISION, Cast
from trainyard.lib.errors import ConflictError, DeniedError, InvalidError, NotFoundError
from trainyard.server.launch.launch_facts import LaunchFacts
from trainyard.server.leader import leader_lease
from trainyard.server.leader.leader_lease import LeaderTerm, LeadLostError
from trainyard.server.leader.schedule_loop import ScheduleLoop
from trainyard.server.records.workspaces import Role
from trainyard.server.store import leases
from trainyard.server.store.jobs import schedules, workloads
from trainyard.server.store.people import users, workspaces
from trainyard.spec.workload import Desired, NeedSpec, RoleSpec, State, WorkloadSpec


async def schedule_loop(cast: Cast) -> ScheduleLoop:
    lease = await cast.db.write(lambda c: leases.take(c, leader_lease.LEASE, owner="one", seconds=1000))
    assert lease is not None
    return ScheduleLoop(LeaderTerm(cast.db, cast.clock, "one", lease.epoch), cast.services.context)


def jobs(cast: Cast, schedule: str):
    return cast.db.read_now(lambda c: workloads.of_origin(c, f"schedule:{schedule}"))


def opened(cast: Cast, spec: WorkloadSpec) -> dict[str, str]:
    return LaunchFacts(seal=cast.services.seal).opened(spec.env, "u-ann")


def forward(cast: Cast, seconds: float) -> None:
    cast.clock.advance(seconds)


async def test_one_job_is_submitted_for_each_moment_and_one_for_all_that_were_missed(cast: Cast):
    loop = await schedule_loop(cast)
    made = await cast.services.schedules.add(cast.ann, "每晚", "0 * * * *", cast.job(), overlap="allow")
    assert await loop.look() == 0
    forward(cast, made.next_at - cast.clock.now().timestamp())
    assert (await loop.look(), await loop.look()) == (1, 0)
    first = jobs(cast, made.id)
    assert [one.user_id for one in first] == ["u-ann"]
    forward(cast, 5 * 3600)
    assert (await loop.look(), await loop.look()) == (1, 0)
    assert len(jobs(cast, made.id)) == 2
    now = await cast.services.schedules.get(cast.ben, made.id)
    assert now.next_at > cast.clock.now().timestamp()
    assert now.last_job == jobs(cast, made.id)[-1].id


async def test_nothing_is_submitted_twice_when_the_leader_changes_in_between(cast: Cast):
    old = await schedule_loop(cast)
    made = await cast.services.schedules.add(cast.ann, "x", "* * * * *", cast.job(), overlap="allow")
    forward(cast, 61)
    lease = await cast.db.write(lambda c: leases.take(c, leader_lease.LEASE, owner="one", seconds=1000))
    new = ScheduleLoop(LeaderTerm(cast.db, cast.clock, "one", lease.epoch), cast.services.context)
    with pytest.raises(LeadLostError):
        await old.look()
    assert await new.look() == 1
    assert len(jobs(cast, made.id)) == 1


@pytest.mark.parametrize(
    ("overlap", "number", "wanted"), [("skip", 1, Desired.RUN), ("allow", 2, Desired.RUN), ("replace", 2, Desired.CANCEL)]
)  # fmt: skip
async def test_a_job_that_still_runs_is_kept_joined_or_replaced(cast: Cast, overlap, number, wanted):
    loop = await schedule_loop(cast)
    made = await cast.services.schedules.add(cast.ann, "x", "* * * * *", cast.job(), overlap=overlap)
    for _ in range(2):
        forward(cast, 61)
        await loop.look()
    found = jobs(cast, made.id)
    assert (len(found), found[0].desired) == (number, wanted)
    note = (await cast.services.schedules.get(cast.ann, "x")).message
    assert ("Skipped" in note) == (overlap == "skip")
    await cast.db.write(
        lambda c: workloads.advance(c, workloads.load(c, found[0].id), State.CANCELLED, now=5.0)
    )
    forward(cast, 61)
    await loop.look()
    assert len(jobs(cast, made.id)) == number + 1


@pytest.mark.parametrize("what", ["closed", "left"])
async def test_a_schedule_is_paused_with_a_reason_when_its_owner_may_not_submit_any_more(cast: Cast, what):
    loop = await schedule_loop(cast)
    made = await cast.services.schedules.add(cast.ann, "x", "* * * * *", cast.job())

    def work(c):
        if what == "closed":
            users.save(c, replace(users.load(c, "u-ann"), is_active=False))
        else:
            workspaces.remove_member(c, VISION, "u-ann")

    await cast.db.write(work)
    forward(cast, 61)
    assert await loop.look() == 0
    found = await cast.services.schedules.get(cast.chief, "x")
    assert not found.is_active and found.next_at is None and found.message.startswith("Paused:")
    await cast.db.write(
        lambda c: (
            users.save(c, replace(users.load(c, "u-ann"), is_active=True)),
            workspaces.set_member(c, VISION, "u-ann", Role.MEMBER),
        )
    )
    resumed = await cast.services.schedules.change(cast.chief, made.id, is_active=True)
    assert resumed.next_at is not None and resumed.message == ""
    forward(cast, 61)
    assert await loop.look() == 1


async def test_a_schedule_says_so_when_its_job_is_refused_and_goes_on(cast: Cast):
    loop = await schedule_loop(cast)
    made = await cast.services.schedules.add(cast.ann, "x", "* * * * *", cast.job(max_run_seconds=900))
    await cast.services.workspaces.change(cast.chief, VISION, max_run_seconds=60)
    forward(cast, 61)
    assert await loop.look() == 0
    found = await cast.services.schedules.get(cast.ann, made.id)
    assert found.is_active and found.next_at is not None and "Not submitted" in found.message


async def test_a_schedule_is_paused_run_by_hand_changed_and_removed(cast: Cast):
    loop, service = await schedule_loop(cast), cast.services.schedules
    job = await cast.services.jobs.submit(cast.ann, cast.job(env={"HF_TOKEN": "s3cret"}, name="orig"))
    own = await service.add(cast.ann, "own", "0 9 * * mon-fri", from_job=job.id, timezone="Asia/Shanghai")
    assert opened(cast, own.spec) == {"HF_TOKEN": "s3cret"}
    assert datetime.fromtimestamp(own.next_at, UTC).hour == 1
    copied = await service.add(cast.ben, "copied", "@daily", from_job=job.id)
    assert copied.spec.env == {}
    await service.change(cast.ann, "own", is_active=False)
    forward(cast, 8 * 86400)
    await loop.look()
    assert jobs(cast, own.id) == []
    ran = await service.run_now(cast.ann, "own")
    assert (ran.name, ran.origin) == ("orig", f"schedule:{own.id}")
    with pytest.raises(DeniedError):
        await service.run_now(cast.ben, "own")
    with pytest.raises(NotFoundError):
        await service.get(cast.zoe, "own")
    with pytest.raises(DeniedError, match="with their rights"):
        await service.change(cast.chief, "own", spec=cast.job(command="env"))
    changed = await service.change(cast.chief, "own", cron="0 0 1 * *", overlap="replace")
    assert (changed.cron, changed.is_active) == ("0 0 1 * *", False)
    await service.remove(cast.ann, "own")
    assert [one.name for one in await service.list(cast.ann)] == ["copied"]
    assert len(jobs(cast, own.id)) == 1, "its jobs stay"


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
async def test_a_schedule_is_refused_when_it_could_never_work(cast: Cast, wrong):
    spec = cast.job(**wrong.get("spec", {}))
    given = {key: wrong[key] for key in ("timezone", "overlap") if key in wrong}
    with pytest.raises(InvalidError):
        await cast.services.schedules.add(
            cast.ann, wrong.get("name", "x"), wrong.get("line", "@daily"), spec, **given
        )
    assert cast.db.read_now(schedules.list_schedules) == []


async def test_templates_are_ones_own_a_workspaces_or_everybodys(cast: Cast):
    service = cast.services.templates
    spec = cast.job(env={"HF_TOKEN": "s3cret", "A": "1"}, tags={"t": "1"}, roles=(RoleSpec(devices=1),))
    mine = await service.save(cast.ann, "bert", spec)
    again = await service.save(cast.ann, "bert", spec, description="again")
    assert (again.id, again.version, again.description) == (mine.id, 2, "again")
    team = await service.save(cast.ann, "bert", spec, scope="workspace")
    assert "HF_TOKEN" not in team.spec.env
    with pytest.raises(DeniedError):
        await service.save(cast.ann, "bert", spec, scope="all")
    with pytest.raises(DeniedError):
        await service.save(cast.vic, "bert", spec, scope="workspace")
    with pytest.raises(DeniedError):
        await service.save(cast.ben, "bert", spec, scope="workspace")
    for name in ("a/b", ".", ".."):
        with pytest.raises(InvalidError, match="found again"):
            await service.save(cast.ann, name, spec)
    shared = await service.save(cast.root, "bert", spec, scope="all")
    assert [one.id for one in await service.list(cast.zoe)] == [shared.id]
    assert (await service.get(cast.ann, "bert")).id == mine.id
    assert (await service.get(cast.ben, "bert")).id == team.id
    job = await service.submit(
        cast.ann, "bert", {"name": "mine", "env": {"A": "2"}, "tags": {"u": "2"}}, role={"devices": 2}
    )
    assert (job.name, job.origin, job.workspace_id) == ("mine", f"template:{mine.id}", VISION)
    assert opened(cast, job.spec) == {"HF_TOKEN": "s3cret", "A": "2"}
    assert (job.spec.tags, job.spec.roles[0].devices) == ({"t": "1", "u": "2"}, 2)
    with pytest.raises(InvalidError):
        await service.submit(cast.ann, "bert", role={"devices": -1})
    with pytest.raises(DeniedError):
        await service.remove(cast.ben, team.id)
    await service.remove(cast.chief, team.id)
    with pytest.raises(NotFoundError):
        await service.get(cast.zoe, mine.id)


async def test_a_template_has_no_secrets_of_others_when_it_is_made_from_their_job(cast: Cast):
    job = await cast.services.jobs.submit(cast.ann, cast.job(env={"HF_TOKEN": "s3cret", "A": "1"}))
    copy = await cast.services.templates.save(cast.ben, "x", from_job=job.id)
    assert copy.spec.env == {"A": "1"}
    with pytest.raises(NotFoundError):
        await cast.services.templates.save(cast.zoe, "x", from_job=job.id)
    with pytest.raises(InvalidError):
        await cast.services.templates.save(cast.ann, "x")
    with pytest.raises(ConflictError):
        await cast.services.schedules.add(cast.ann, "a", "@daily", cast.job())
        await cast.services.schedules.add(cast.chief, "a", "@daily", cast.job())
        await cast.services.schedules.get(cast.ben, "a")


async def test_the_ids_are_told_when_two_schedules_have_one_name(cast: Cast):
    made = [await cast.services.schedules.add(cast.ann, "same", "@daily", cast.job()) for _ in range(2)]
    with pytest.raises(ConflictError) as refused:
        await cast.services.schedules.get(cast.ann, "same")
    assert all(one.id in refused.value.hint for one in made)


async def test_no_moment_comes_twice_when_the_clock_is_set_back_a_little_and_none_is_awaited_for_a_year(
    cast: Cast,
):
    loop = await schedule_loop(cast)
    made = await cast.services.schedules.add(cast.ann, "x", "0 * * * *", cast.job(), overlap="allow")
    forward(cast, made.next_at - cast.clock.now().timestamp())
    assert await loop.look() == 1
    cast.clock.step(-600)
    assert await loop.look() == 0
    forward(cast, 601)
    assert await loop.look() == 0
    cast.clock.step(366 * 86400)
    assert await loop.look() == 1
    forward(cast, 3600)
    assert await loop.look() == 1
    cast.clock.step(-366 * 86400)
    assert await loop.look() == 0
    forward(cast, 3600)
    assert await loop.look() == 1
    # Planned by another server, whose clock is ahead: ours was never set.
    record = await cast.services.schedules.get(cast.ann, made.id)
    await cast.db.write(
        lambda c: schedules.save_schedule(c, replace(record, next_at=record.next_at + 366 * 86400))
    )
    forward(cast, 601)
    assert await loop.look() == 0
    found = await cast.services.schedules.get(cast.ann, made.id)
    assert found.next_at - cast.clock.now().timestamp() <= 3600
