"""The vendor's own PAI-DLC client, as a stranger: it submits, lists, follows, stops and deletes jobs of ours."""

from __future__ import annotations

import time

import pytest
from alibabacloud_pai_dlc20201203 import models
from alibabacloud_pai_dlc20201203.client import Client
from alibabacloud_tea_openapi.models import Config
from darabonba.exceptions import DaraException

from platforms import platform

pytestmark = pytest.mark.slow  # a server of its own is started


@pytest.fixture(scope="module")
def up(tmp_path_factory):
    with platform(tmp_path_factory.mktemp("dlc")) as found:
        yield found


@pytest.fixture(scope="module")
def client(up):
    key = up.call("POST", "/api/v1/access-keys", {"name": "sdk"})
    return made_client(up, key["id"], key["secret"])


def made_client(up, key_id: str, secret: str) -> Client:
    return Client(
        Config(
            access_key_id=key_id, access_key_secret=secret, endpoint=up.url.removeprefix("http://"),
            protocol="HTTP", region_id="cn-beijing",
        )
    )  # fmt: skip


def request(up, command: str, *, kind: str = "PyTorchJob", workers: int = 1) -> models.CreateJobRequest:
    workspace = up.call("GET", "/api/v1/workspaces")["items"][0]["id"]
    return models.CreateJobRequest(
        display_name="mnist", job_type=kind, user_command=command, workspace_id=workspace, priority=3,
        job_specs=[
            models.JobSpec(
                type="Worker", pod_count=workers, image="master0:5000/eflops/pytorch:v1",
                resource_config=models.ResourceConfig(cpu="1", memory="64Mi", gpu="0"),
            )
        ],
        envs={"WHO": "sdk"},
    )  # fmt: skip


def until(client: Client, job: str, *statuses: str):
    deadline = time.monotonic() + 60
    while (found := client.get_job(job, models.GetJobRequest()).body).status not in statuses:
        assert time.monotonic() < deadline, found
        time.sleep(0.1)
    return found


def test_a_job_runs_to_its_end_when_the_vendors_client_submits_it(up, client):
    made = client.create_job(request(up, 'echo "hello $WHO"; echo again', workers=2)).body
    assert made.job_id.startswith("dlc")
    assert made.request_id
    ended = until(client, made.job_id, "Succeeded", "Failed")
    assert (ended.status, ended.reason_code, ended.display_name, ended.priority) == (
        "Succeeded", "JobSucceeded", "mnist", 3,
    )  # fmt: skip
    assert ended.reason_message == f"PyTorchJob {made.job_id} is successfully completed."
    assert sorted(pod.pod_id for pod in ended.pods) == [f"{made.job_id}-master-0", f"{made.job_id}-worker-0"]
    logs = client.get_pod_logs(
        made.job_id, f"{made.job_id}-master-0", models.GetPodLogsRequest(max_lines=10)
    ).body
    assert logs.logs[1:] == ["hello sdk", "again"]  # the first says that both have met
    events = client.get_job_events(made.job_id, models.GetJobEventsRequest()).body
    assert len(events.events) >= 4
    pod = client.get_pod_events(made.job_id, f"{made.job_id}-worker-0", models.GetPodEventsRequest()).body
    assert pod.events


def test_jobs_are_listed_by_page_and_status(up, client):
    jobs = [client.create_job(request(up, "true", kind="BatchJob")).body.job_id for _ in range(3)]
    for job in jobs:
        until(client, job, "Succeeded")
    first = client.list_jobs(models.ListJobsRequest(page_size=2, page_number=1, status="Succeeded")).body
    assert len(first.jobs) == 2
    assert first.total_count >= 3
    found = client.list_jobs(models.ListJobsRequest(job_id=jobs[0])).body
    assert [one.job_id for one in found.jobs] == [jobs[0]]
    assert client.list_jobs(models.ListJobsRequest(display_name="NIST")).body.total_count >= 3
    assert client.list_jobs(models.ListJobsRequest(display_name="no such")).body.total_count == 0


def test_a_running_job_is_stopped_once(up, client):
    job = client.create_job(request(up, "sleep 300")).body.job_id
    until(client, job, "Running")
    assert client.stop_job(job).body.job_id == job
    assert until(client, job, "Stopped").reason_code == "StoppedByUser"
    with pytest.raises(DaraException, match="can't be stopped, because it is Stopped"):
        client.stop_job(job)
    client.delete_job(job)
    with pytest.raises(DaraException, match="There is no job"):
        client.get_job(job, models.GetJobRequest())


def test_machine_types_are_listed(client):
    found = client.list_ecs_specs(models.ListEcsSpecsRequest(page_size=100)).body
    assert found.total_count == len(found.ecs_specs)
    assert any(one.gpu for one in found.ecs_specs)


def test_a_wrong_request_names_the_key(up, client):
    wrong = request(up, "true")
    wrong.job_type = "PytorchJob"
    with pytest.raises(DaraException, match="JobType 'PytorchJob' is unknown"):
        client.create_job(wrong)
    wrong = request(up, "true")
    wrong.job_specs[0].resource_config.memory = "lots"
    with pytest.raises(DaraException, match=r"JobSpecs\[0\].ResourceConfig.Memory 'lots' is not an amount"):
        client.create_job(wrong)


def test_a_forged_signature_is_refused(up, client):
    key = up.call("POST", "/api/v1/access-keys", {"name": "other"})
    forger = made_client(up, key["id"], "not the secret")
    with pytest.raises(DaraException, match="signature does not match"):
        forger.list_jobs(models.ListJobsRequest())
    with pytest.raises(DaraException, match="access key is not known"):
        made_client(up, "TYAKNOBODY", "x").list_jobs(models.ListJobsRequest())
    up.call("DELETE", f"/api/v1/tokens/{key['id']}")
    with pytest.raises(DaraException):
        made_client(up, key["id"], key["secret"]).list_jobs(models.ListJobsRequest())
