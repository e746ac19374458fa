"""Jobs that wait for jobs, through the services and the leader's loop, with nodes in memory."""

from __future__ import annotations

import pytest
from test_reconciler import Lab

from trainyard.lib.errors import ConflictError, InvalidError, NotFoundError
from trainyard.server.auth.actor import Actor
from trainyard.server.records.workspaces import Role, WorkspaceRecord
from trainyard.server.services import Services
from trainyard.server.settings import ServerSettings
from trainyard.server.store import events
from trainyard.server.store.jobs import dependencies
from trainyard.server.store.people import workspaces
from trainyard.spec.workload import FINAL, Condition, Desired, NeedSpec, State, WorkloadSpec

ME = Actor(user_id="u", name="me", roles={"w": Role.ADMIN})


class Town(Lab):
    """A yard with services."""

    def open(self, folder) -> None:
        self.services = Services(self.db, self.clock, self.wakeups, settings=ServerSettings(data=folder))

    async def ask(self, command: str = "0", *after: NeedSpec | str, actor: Actor = ME, **given) -> str:
        needs = tuple(one if isinstance(one, NeedSpec) else NeedSpec(job=one) for one in after)
        spec = WorkloadSpec(name="job", command=command, workspace="w", after=needs, **given)
        return (await self.services.jobs.submit(actor, spec)).id

    def codes(self, job: str) -> list[str]:
        return [one.code for one in self.db.read_now(lambda c: events.page(c, subject_id=job, limit=1000))]

    async def until(self, job, *states, **given):
        try:
            return await super().until(job, *states, **given)
        except TimeoutError:
            raise AssertionError(self.codes(job), await self.get(job)) from None

    async def end(self, job: str) -> None:
        await self.until(job, State.RUNNING)
        self.world.step()
        await self.until(job, *FINAL)


@pytest.fixture
async def town(tmp_path):
    made = Town(tmp_path)
    made.open(tmp_path)
    yield made
    if made.leading is not None:
        await made.kill()
    made.services.close()
    made.db.close()


async def test_a_job_queues_when_all_that_it_waits_for_has_ended_well(town):
    await town.lead()
    first, second = await town.ask(), await town.ask()
    late = await town.ask("0", first, NeedSpec(job=second, condition=Condition.ENDED))
    record = await town.get(late)
    assert (record.state, record.reason, record.desired) == (State.HELD, "waits_for_jobs", Desired.RUN)
    assert first in record.message
    said = await town.services.jobs.explain(ME, late)
    assert said.reason == "waits_for_jobs"
    assert second in said.sentence
    await town.until(first, State.RUNNING)
    await town.until(second, State.RUNNING)
    town.world.step()
    town.world.step()
    await town.until(late, State.RUNNING)
    town.world.step()
    assert (await town.until(late, *FINAL)).state is State.SUCCEEDED
    assert not town.db.read_now(dependencies.are_any)


async def test_a_chain_is_cancelled_when_its_first_job_fails(town):
    await town.lead()
    first = await town.ask("3")
    second = await town.ask("0", first)
    third = await town.ask("0", second)
    after_all = await town.ask("0", NeedSpec(job=third, condition=Condition.ENDED))
    on_failure = await town.ask("0", NeedSpec(job=first, condition=Condition.FAILED))
    await town.end(first)
    ended = await town.until(second, *FINAL)
    assert (ended.state, ended.reason) == (State.CANCELLED, "need_not_met")
    assert f"needed {first} to succeed, which has failed" in ended.message
    assert (await town.until(third, *FINAL)).state is State.CANCELLED
    await town.until(after_all, State.RUNNING)
    await town.until(on_failure, State.RUNNING)


async def test_nobody_is_forgotten_when_the_leader_dies_before_the_needs_are_looked_at(town):
    await town.lead()
    first = await town.ask()
    await town.until(first, State.RUNNING)
    lates = [await town.ask("0", first) for _ in range(3)]
    await town.kill()
    town.world.step()
    await town.lead()
    for late in lates:
        await town.until(late, State.RUNNING)
        assert town.codes(late).count("queued") == 1


async def test_a_job_stays_held_when_it_is_paused_and_its_needs_are_met(town):
    await town.lead()
    first = await town.ask()
    late = await town.ask("0", first)
    await town.services.jobs.set_desired(ME, late, Desired.PAUSE)
    await town.services.jobs.set_desired(ME, late, Desired.RUN)
    assert (await town.get(late)).state is State.HELD
    await town.services.jobs.set_desired(ME, late, Desired.PAUSE)
    await town.end(first)
    while (await town.get(late)).reason != "paused":  # bounded by the test's own limit
        await town.services.wakeups.wait("events", timeout=0.05)
    await town.services.jobs.set_desired(ME, late, Desired.RUN)
    await town.until(late, State.RUNNING)


async def test_a_job_waits_on_when_it_was_approved_before_its_needs_were_met(town):
    await town.lead()
    first = await town.ask()
    late = await town.ask("0", first, needs_approval=True)
    assert (await town.get(late)).reason == "needs_approval"
    await town.services.jobs.approve(ME, late)
    record = await town.get(late)
    assert (record.state, record.reason) == (State.HELD, "waits_for_jobs")
    await town.end(first)
    await town.until(late, State.RUNNING)


async def test_an_approval_is_still_needed_when_the_needs_are_met_first(town):
    await town.lead()
    first = await town.ask()
    late = await town.ask("0", first, needs_approval=True)
    await town.end(first)
    while town.db.read_now(dependencies.are_any):
        await town.services.wakeups.wait("events", timeout=0.05)
    assert (await town.get(late)).reason == "needs_approval"
    await town.services.jobs.approve(ME, late)
    await town.until(late, State.RUNNING)


async def test_a_waiting_job_is_stopped_when_its_owner_says_so(town):
    await town.lead()
    first = await town.ask()
    late = await town.ask("0", first)
    await town.services.jobs.set_desired(ME, late, Desired.CANCEL)
    assert (await town.until(late, *FINAL)).state is State.CANCELLED
    await town.end(first)
    assert late not in town.world.ran


async def test_a_need_is_refused_when_it_cannot_be_met(town):
    await town.lead()
    first = await town.ask()
    await town.end(first)
    with pytest.raises(ConflictError, match="can never be failed"):
        await town.ask("0", NeedSpec(job=first, condition=Condition.FAILED))
    with pytest.raises(NotFoundError, match="no job 'dlcnothing'"):
        await town.ask("0", "dlcnothing")
    with pytest.raises(InvalidError, match="twice"):
        await town.ask("0", first, first)
    met = await town.ask("0", first)
    assert (await town.get(met)).state is not State.HELD
    await town.db.write(
        lambda c: workspaces.insert_workspace(c, WorkspaceRecord(id="x", name="others", created_at=0.0))
    )
    other = Actor(user_id="u", name="me", roles={"x": Role.MEMBER})
    with pytest.raises(NotFoundError):
        spec = WorkloadSpec(name="job", command="0", workspace="x", after=(NeedSpec(job=met),))
        await town.services.jobs.submit(other, spec)
