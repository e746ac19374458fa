"""Jobs over REST: submit, list, look, change; what is shown is what OpenAPI says."""

from __future__ import annotations

import json

import pytest
from pydantic import TypeAdapter

from trainyard.client.schemas import Job, JobDetail
from trainyard.lib.errors import ConflictError, InvalidError, NotFoundError
from trainyard.spec.workload import Desired, RoleSpec, State, WorkloadSpec


async def test_a_job_is_submitted_and_found_again_when_a_client_asks(client):
    job = await client.jobs.submit(
        WorkloadSpec(name="first", command="true", roles=(RoleSpec(cpu=2.0, replicas=3),))
    )
    assert job.state is State.WAITING and job.user == "admin" and job.workspace == "default"
    assert (job.replicas, job.cpu) == (3, 6.0)
    found = await client.jobs.get(job.id)
    assert found.spec.command == "true"
    assert [each.id async for each in client.jobs.list()] == [job.id]


async def test_answers_have_the_shapes_that_openapi_says(rig, client):
    job = await client.jobs.submit(WorkloadSpec(name="first", command="true"))
    async with rig.http() as http:
        listed = (await http.get("/jobs")).json()["items"][0]
        shown = (await http.get(f"/jobs/{job.id}")).json()
    TypeAdapter(Job).validate_python(listed)
    TypeAdapter(JobDetail).validate_python(shown)
    assert set(listed) == set(Job.__dataclass_fields__)
    assert set(shown) == set(JobDetail.__dataclass_fields__)


async def test_a_job_is_submitted_once_when_the_same_key_is_sent_twice(rig):
    async with rig.http() as http:
        body = {"name": "once", "command": "true"}
        first = await http.post("/jobs", json=body, headers={"Idempotency-Key": "k1"})
        again = await http.post("/jobs", json=body, headers={"Idempotency-Key": "k1"})
        other = await http.post("/jobs", json={**body, "name": "other"}, headers={"Idempotency-Key": "k1"})
    assert first.status_code == again.status_code == 201
    assert first.json()["id"] == again.json()["id"]
    assert first.headers["Location"].endswith(first.json()["id"])
    assert other.status_code in {409, 422}


async def test_many_are_submitted_all_or_none_when_one_is_wrong(client):
    good = [WorkloadSpec(name=f"j{n}", command="true") for n in range(5)]
    made = await client.jobs.submit_many(good)
    assert len({job.id for job in made}) == 5
    with pytest.raises(InvalidError):
        await client.jobs.submit_many([*good, WorkloadSpec(name="bad", command="true", priority=77)])
    assert len([job async for job in client.jobs.list()]) == 5


async def test_pages_give_every_job_once_when_there_are_many(client):
    made = await client.jobs.submit_many([WorkloadSpec(name=f"j{n}", command="true") for n in range(25)])
    page = await client.jobs.page(limit=10)
    assert len(page.items) == 10 and page.next
    ids = [job.id async for job in client.jobs.list(limit=10)]
    assert ids == sorted((job.id for job in made), reverse=True)
    oldest = [job.id async for job in client.jobs.list(limit=10, order="oldest")]
    assert oldest == ids[::-1]


async def test_lists_are_filtered_when_criteria_are_given(rig, client):
    first, second = await client.jobs.submit_many(
        [WorkloadSpec(name="alpha", command="true"), WorkloadSpec(name="beta 中文", command="true")]
    )
    rig.start(first.id)
    by_state = [job.id async for job in client.jobs.list(state=["running"])]
    by_name = [job.id async for job in client.jobs.list(name="中")]
    nobody = [job.id async for job in client.jobs.list(user="nobody")]
    mine = [job.id async for job in client.jobs.list(user="me")]
    assert (by_state, by_name, nobody) == ([first.id], [second.id], [])
    assert set(mine) == {first.id, second.id}


async def test_a_list_is_answered_from_memory_until_something_has_changed(rig, client):
    job = await client.jobs.submit(WorkloadSpec(name="first", command="true"))
    async with rig.http() as http:
        first = await http.get("/jobs")
        second = await http.get("/jobs", headers={"If-None-Match": first.headers["ETag"]})
        rig.start(job.id)
        third = await http.get("/jobs", headers={"If-None-Match": first.headers["ETag"]})
    assert (first.status_code, second.status_code, third.status_code) == (200, 304, 200)
    assert third.json()["items"][0]["state"] == "running"


async def test_a_job_is_stopped_paused_and_resumed_when_asked(rig, client):
    job = await client.jobs.submit(WorkloadSpec(name="first", command="true"))
    assert (await client.jobs.set_desired(job.id, Desired.PAUSE)).desired is Desired.PAUSE
    assert (await client.jobs.set_desired(job.id, Desired.RUN)).desired is Desired.RUN
    assert (await client.jobs.set_desired(job.id, Desired.CANCEL)).desired is Desired.CANCEL
    with pytest.raises(ConflictError, match="being stopped"):
        await client.jobs.set_desired(job.id, Desired.PAUSE)


async def test_a_change_is_refused_when_the_version_has_moved_on(client):
    job = await client.jobs.submit(WorkloadSpec(name="first", command="true"))
    changed = await client.jobs.set_priority(job.id, 7, version=job.version)
    assert changed.priority == 7 and changed.version > job.version
    with pytest.raises(ConflictError) as stale:
        await client.jobs.set_priority(job.id, 8, version=job.version)
    assert stale.value.code == "stale"


async def test_a_priority_is_refused_with_a_reason_when_the_job_runs(rig, client):
    job = await client.jobs.submit(WorkloadSpec(name="first", command="true"))
    rig.start(job.id)
    with pytest.raises(ConflictError, match="no effect"):
        await client.jobs.set_priority(job.id, 9)


async def test_a_clone_has_the_changes_and_the_rest_of_the_original(client):
    job = await client.jobs.submit(WorkloadSpec(name="first", command="echo 1", env={"A": "1"}))
    clone = await client.jobs.clone(job.id, {"name": "second", "priority": 2})
    assert (clone.name, clone.priority, clone.spec.command) == ("second", 2, "echo 1")
    assert clone.spec.env == {"A": "1"} and clone.id != job.id


async def test_an_ended_job_is_deleted_and_a_running_one_is_not(rig, client):
    job = await client.jobs.submit(WorkloadSpec(name="first", command="true"))
    rig.start(job.id)
    with pytest.raises(ConflictError):
        await client.jobs.delete(job.id)
    rig.finish(job.id)
    await client.jobs.delete(job.id)
    with pytest.raises(NotFoundError):
        await client.jobs.get(job.id)


async def test_a_held_job_waits_for_approval(client):
    job = await client.jobs.submit(WorkloadSpec(name="first", command="true", needs_approval=True))
    assert job.state is State.HELD
    assert (await client.jobs.approve(job.id)).desired is Desired.RUN


async def test_secrets_are_not_shown_when_a_job_is(rig, client):
    spec = WorkloadSpec(
        name="s", command="true", env={"WANDB_API_KEY": "hush", "MY_PASSWORD": "hush", "A": "1"}
    )
    job = await client.jobs.submit(spec)
    async with rig.http() as http:
        texts = [
            (await http.get(path)).text
            for path in ("/jobs", f"/jobs/{job.id}", f"/jobs/{job.id}/events", "/audit")
        ]
    assert not [text for text in texts if "hush" in text]
    assert (await client.jobs.get(job.id)).spec.env["A"] == "1"


async def test_a_dry_run_keeps_nothing(client):
    said = await client.jobs.dry_run(WorkloadSpec(name="try", command="true"))
    assert said.sentence
    assert not [job async for job in client.jobs.list()]


async def test_an_explanation_tells_why_a_job_waits(client):
    job = await client.jobs.submit(
        WorkloadSpec(name="large", command="true", roles=(RoleSpec(cpu=10_000.0),))
    )
    said = await client.jobs.explain(job.id)
    assert said.state == "waiting" and said.sentence


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"name": "x", "comand": "true"}, "comand"),
        ({"name": "x", "command": "true", "priority": "high"}, "priority"),
        ({"name": "x", "command": "true", "roles": [{"replicas": "many"}]}, "roles.0.replicas"),
        ({}, "name"),
    ],
)
async def test_a_wrong_field_is_named_when_a_body_is_refused(rig, body, field):
    async with rig.http() as http:
        answer = await http.post("/jobs", json=body)
    assert answer.status_code == 422
    said = answer.json()
    assert said["code"] == "invalid" and field in said["fields"] and said["hint"]


async def test_a_command_may_speak_of_nul_and_a_text_may_not_hold_one(rig):
    async with rig.http() as http:
        fine = await http.post("/jobs", json={"name": "x", "command": "printf '\\u0000'"})
        refused = await http.post(
            "/jobs",
            content=json.dumps({"name": "x\0", "command": "true"}),
            headers={"Content-Type": "application/json"},
        )
    assert fine.status_code == 201, fine.text
    assert refused.status_code == 422
