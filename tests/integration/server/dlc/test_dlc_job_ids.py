"""Jobs are `job…` for the platform and `dlc…` for DLC's clients, and everybody finds a job by either id."""

from __future__ import annotations

import time

import pytest

from rest_server import Rig
from trainyard.server.records.workloads import WorkloadRecord
from trainyard.server.store.jobs import workloads
from trainyard.spec.workload import WorkloadSpec

THEIRS = {"x-acs-version": "2020-12-03"}
OLD = "dlcmwiu5hku0627f"
BODY = {
    "DisplayName": "n", "JobType": "BatchJob", "UserCommand": "true", "Priority": 1,
    "JobSpecs": [{"Type": "Worker", "PodCount": 1, "ResourceConfig": {"CPU": "1", "Memory": "1"}}],
}  # fmt: skip


@pytest.fixture
def rig(tmp_path):
    made = Rig(tmp_path / "server")
    yield made
    made.close()


@pytest.fixture
async def http(rig):
    async with rig.vendor_http() as client:
        client.headers["Authorization"] = f"Bearer {rig.admin.token}"
        yield client


async def submitted(http) -> str:
    made = await http.post("/api/v1/jobs", json=BODY, headers=THEIRS)
    assert made.status_code == 200, made.text
    return made.json()["JobId"]


def store_old_job(rig) -> None:
    """A job as an older version wrote it."""

    def work(connection):
        newest = workloads.list_page(connection, limit=1)[0]
        spec = WorkloadSpec(name="old", command="true", workspace=newest.workspace_id)
        record = WorkloadRecord(
            id=OLD, name="old", kind="job", workspace_id=newest.workspace_id, user_id=newest.user_id, spec=spec,
            submitted_at=time.time(),
        )  # fmt: skip
        workloads.insert(connection, record)

    rig.db.write_now(work)


async def test_a_job_has_its_own_id_here_and_theirs_there(rig, http):
    theirs = await submitted(http)
    own = "job" + theirs.removeprefix("dlc")
    assert theirs.startswith("dlc")
    assert [one["id"] for one in (await http.get("/api/v1/jobs")).json()["items"]] == [own]
    for given in (own, theirs):
        assert (await http.get(f"/api/v1/jobs/{given}", headers=THEIRS)).json()["JobId"] == theirs
        assert (await http.get(f"/api/v1/jobs/{given}")).json()["id"] == own
        tasks = await http.get(f"/api/v1/jobs/{given}/events")
        assert tasks.status_code == 200, tasks.text


async def test_pods_are_found_by_both_ids(rig, http):
    theirs = await submitted(http)
    own = "job" + theirs.removeprefix("dlc")
    rig.start(own, "worker-0")
    rig.print(own, "worker-0", b"hello\n")
    shown = (await http.get(f"/api/v1/jobs/{theirs}", headers=THEIRS)).json()["Pods"][0]
    assert (shown["PodId"], shown["PodUid"]) == (f"{theirs}-worker-0", f"{theirs}.1.worker-0")
    for job in (own, theirs):
        for pod, uid in ((f"{own}-worker-0", f"{own}.1.worker-0"), (shown["PodId"], shown["PodUid"])):
            path = f"/api/v1/jobs/{job}/pods/{pod}/logs"
            found = (await http.get(path, params={"PodUid": uid}, headers=THEIRS)).json()
            assert (found["Logs"], found["PodId"], found["JobId"]) == (["hello"], shown["PodId"], theirs)


async def test_a_job_of_an_older_version_keeps_its_id(rig, http):
    newer = await submitted(http)
    store_old_job(rig)
    assert (await http.get(f"/api/v1/jobs/{OLD}", headers=THEIRS)).json()["JobId"] == OLD
    assert (await http.get(f"/api/v1/jobs/{OLD}")).json()["id"] == OLD
    listed = (await http.get("/api/v1/jobs", headers=THEIRS)).json()["Jobs"]
    assert [one["JobId"] for one in listed] == [newer, OLD]
    for part in (OLD, "job" + OLD[3:], OLD[3:]):
        found = (await http.get("/api/v1/jobs", params={"JobId": part}, headers=THEIRS)).json()["Jobs"]
        assert [one["JobId"] for one in found] == [OLD]
    stopped = await http.post(f"/api/v1/jobs/{OLD}/stop", headers=THEIRS)
    assert stopped.json()["JobId"] == OLD


async def test_a_job_that_is_not_there_is_named_as_it_was_asked_for(http):
    missing = await http.get("/api/v1/jobs/dlc0000000000000", headers=THEIRS)
    assert missing.status_code == 404
    assert "There is no job 'dlc0000000000000'" in missing.json()["Message"]
    assert (await http.get("/api/v1/jobs/dlc0000000000000")).status_code == 404
    assert (await http.get("/api/v1/jobs/dlc")).status_code == 404
