"""What tasks use, from the node's /proc and a driver's words to REST, the vendor's metrics and Prometheus."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request

import pytest
from alibabacloud_pai_dlc20201203 import models
from alibabacloud_pai_dlc20201203.client import Client
from alibabacloud_tea_openapi.models import Config

import nvidia
from platforms import Up, platform
from trainyard.runtime.device_metrics import GROUPS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]  # readings come by the second

PROFILED = [number for group in GROUPS for number in group]
BUSY = "exec python3 -c 'x = bytearray(80_000_000)\nwhile True: pass'"


@pytest.fixture(scope="module")
def up(tmp_path_factory):
    folder = tmp_path_factory.mktemp("metrics")
    tools = folder / "bin"
    nvidia.install(tools, smi=nvidia.smi(), dcgmi=nvidia.dcgmi(PROFILED))
    env = {"PATH": f"{tools}:{os.environ['PATH']}", "TRAINYARD_SERVER_SAMPLE_SECONDS": "1"}
    with platform(folder, env=env) as running:
        yield running


def submit(up: Up, command: str, **more: object) -> str:
    role = {"cpu": 0.5, "memory_mib": 200, **more}
    body = {"name": "busy", "command": command, "roles": [role]}
    return up.call("POST", "/api/v1/jobs", body)["id"]


def wait_for(look, seconds: float = 60.0):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        found = look()
        if found:
            return found
        time.sleep(0.2)
    raise AssertionError("it did not come")


def series(up: Up, job: str, metric: str) -> list[dict]:
    return up.call("GET", f"/api/v1/jobs/{job}/metrics?metric={metric}")["series"]


@pytest.fixture(scope="module")
def job(up):
    """A job that keeps one core busy, with one of two devices."""
    job_id = submit(up, BUSY, devices=1)
    wait_for(lambda: series(up, job_id, "gpu"))
    yield job_id
    up.call("PUT", f"/api/v1/jobs/{job_id}/desired", {"desired": "cancel"})


def test_processors_and_memory_are_told_when_a_task_is_busy(up, job):
    (cpu,) = wait_for(lambda: [one for one in series(up, job, "cpu") if one["points"][-1][1] > 0.02])
    assert (cpu["task"], cpu["attempt"], cpu["unit"], cpu["device"]) == ("worker-0", 1, "cores", None)
    assert cpu["points"][-1][1] < 2
    # The first readings may be of a program that has not taken it yet.
    (memory,) = wait_for(lambda: [one for one in series(up, job, "memory") if one["points"][-1][1] > 70])
    assert memory["points"][-1][1] < 200  # what it took, and not what every process of the node has


def test_it_is_said_once_that_a_job_runs_when_it_is_explained(up, job):
    assert up.call("GET", f"/api/v1/jobs/{job}/explanation")["sentence"] == "It runs."


def test_a_task_gets_the_readings_of_its_own_devices_when_the_node_has_more(up, job):
    gpus = series(up, job, "gpu")
    (task,) = up.call("GET", f"/api/v1/jobs/{job}/tasks")["items"]
    assert [one["device"] for one in gpus] == task["devices"]
    assert gpus[0]["points"][-1][1] == {0: 73, 1: 0}[task["devices"][0]]


def test_a_node_is_told_as_a_whole_when_it_is_asked_for(up, job):
    found = wait_for(lambda: up.call("GET", "/api/v1/nodes/local/metrics?metric=gpu&metric=cpu")["series"])
    assert {one["device"] for one in found if one["metric"] == "gpu"} == {0, 1}
    assert any(one["metric"] == "cpu" and one["points"][-1][1] > 0 for one in found)


def test_traffic_says_whose_it_is_when_a_task_has_a_network_of_its_own_and_when_it_has_none(up, job):
    for metric in ("in", "out"):
        (one,) = wait_for(lambda metric=metric: series(up, job, metric))
        assert one["of"] == "node"
    (cpu,) = series(up, job, "cpu")
    assert cpu["of"] == "task"
    if subprocess.run(["unshare", "-rn", "true"], capture_output=True).returncode:
        pytest.skip("nobody may have a network of their own here")
    apart = submit(up, "exec unshare -rn sleep 300")
    try:
        (one,) = wait_for(lambda: [one for one in series(up, apart, "in") if one["of"] == "task"])
        assert one["points"][-1][1] == 0  # nobody talks to it
        lines = [line for line in scrape(up).splitlines() if line.startswith("task_net_in_byte{")]
        scopes = {apart: "task", job: "node"}
        for wanted, scope in scopes.items():
            assert any(f'job_id="{wanted}"' in line and f'scope="{scope}"' in line for line in lines)
    finally:
        up.call("PUT", f"/api/v1/jobs/{apart}/desired", {"desired": "cancel"})


def test_minutes_and_hours_are_there_when_they_are_asked_for(up, job):
    for step in (10, 60, 3600):
        found = up.call("GET", f"/api/v1/jobs/{job}/metrics?metric=cpu&step={step}")
        assert found["step"] == step
        assert all(point[0] % step == 0 for one in found["series"] for point in one["points"])
        assert found["series"]


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("metric=smell", "no metric 'smell'"),
        ("step=7", "no readings of 7 s"),
        ("step=-1", "step"),
        ("since=yesterday", "since"),
        ("since=2026-01-02T00:00:00Z&until=2026-01-01T00:00:00Z", "later than `until`"),
    ],
)
def test_a_question_is_refused_when_there_is_no_such_reading(up, job, query, words):
    with pytest.raises(urllib.error.HTTPError) as caught:
        up.call("GET", f"/api/v1/jobs/{job}/metrics?{query}")
    with caught.value as answer:
        assert answer.code == 422
        assert words in json.loads(answer.read())["message"]


def test_the_last_hour_is_told_when_the_end_is_in_the_future(up, job):
    found = up.call("GET", f"/api/v1/jobs/{job}/metrics?metric=cpu&until=2099-01-01T00:00:00")
    assert found["series"]
    (memory,) = series(up, job, "gpu_memory")
    assert memory["most"] == 16000


def scrape(up: Up) -> str:
    request = urllib.request.Request(
        f"{up.url}/api/v1/metrics", headers={"Authorization": f"Bearer {up.token}"}
    )
    with urllib.request.urlopen(request) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        return answer.read().decode()


def test_prometheus_reads_it_when_it_scrapes(up, job):
    text = wait_for(lambda: found if "task_device_percent{" in (found := scrape(up)) else "")
    assert f'job_id="{job}"' in text
    for name in ("task_cpu_percent", "task_mem_usage_byte", "k8s_vc_device_total", "trainyard_jobs"):
        assert f"\n{name}{{" in text
    assert "\ntask_device_percent{" in text
    assert all('device_str="V100"' in line for line in text.splitlines() if line.startswith("task_device_"))
    assert 'trainyard_jobs{state="failed"} 0' in text
    assert re.search(r'\njob_state_change_latency_seconds_count\{current_state="running"\} [1-9]', text)
    assert re.search(
        r'\njob_state_change_latency_seconds_bucket\{current_state="finished",le="\+Inf"\} \d', text
    )
    assert 'k8s_node_device_available{instance="local",device_str="V100"} 1' in text


def figures(text: str) -> dict[str, tuple[dict[str, str], float]]:
    """name → labels and value of what devices of tasks say."""
    lines = re.findall(r"^task_dcgm_(\w+)\{(.*)\} (\S+)$", text, re.MULTILINE)
    return {
        name: (dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', labels)), float(value))
        for name, labels, value in lines
    }


def test_figures_of_the_drivers_are_told_when_a_task_has_a_device(up, job):
    text = wait_for(lambda: found if "task_dcgm_sm_active{" in (found := scrape(up)) else "")
    found = figures(text)
    (task,) = up.call("GET", f"/api/v1/jobs/{job}/tasks")["items"]
    (index,) = task["devices"]
    labels, value = found["fb_free"]
    assert value == float(nvidia.CARDS["memory.free"][index])
    assert labels | {"user_email": ""} == {
        "job_id": job, "job_name": "busy", "pod_name": f"{job}-worker-0", "instance": "local", "user_email": "",
        "vc_name": "default", "minor_number": str(index), "device_str": "V100", "uuid": nvidia.UUIDS[index],
    }  # fmt: skip
    assert found["sm_active"][1] == float(f"1002.{index}")
    assert found["nvlink_bandwidth_total"][1] == float(f"449.{index}")
    assert "xid_errors" not in found  # not known: not 0
    if index == 0:
        assert found["ecc_sbe_aggregate_total"][1] == 123456789012
        assert found["clock_throttle_reasons"][1] == 4
    else:
        assert "sm_clock" not in found
    # Of a device that nobody has, nothing is told, and no name without a figure.
    assert f'uuid="{nvidia.UUIDS[1 - index]}"' not in text
    assert "# TYPE task_dcgm_xid_errors" not in text


B_11 = {
    "task_": "cpu_percent mem_usage_byte mem_usage_percent mem_limit_byte net_in_byte net_out_byte block_in_byte block_out_byte",
    "task_device_": "percent mem_percent",
    "k8s_node_device_": "total available used reserved",
    "k8s_vc_device_": "total available preemptive_availabe unschedulable",
}


def test_every_name_of_the_older_platforms_is_there_when_their_dashboards_ask(up, job):
    text = wait_for(lambda: found if "task_dcgm_sm_active{" in (found := scrape(up)) else "")
    for prefix, names in B_11.items():
        for name in names.split():
            (line, *_) = re.findall(rf"^{prefix}{name}{{.*$", text, re.MULTILINE)
            wanted = {"task_": ["job_name", "instance", "user_email", "vc_name"]}
            wanted["task_device_"] = [*wanted["task_"], "minor_number", "device_str"]
            wanted |= {
                "k8s_node_device_": ["instance", "device_str"],
                "k8s_vc_device_": ["vc_name", "device_str"],
            }
            assert all(f'{label}="' in line for label in wanted[prefix]), line
    for kind in ("bucket", "sum", "count"):
        assert f"\njob_state_change_latency_seconds_{kind}{{" in text


def test_promtool_finds_nothing_wrong_when_it_checks_the_text(up, job):
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed")
    text = wait_for(lambda: found if "task_dcgm_sm_active{" in (found := scrape(up)) else "")
    done = subprocess.run([promtool, "check", "metrics"], input=text, text=True, capture_output=True)
    # A name that the older platforms' dashboards ask for; all else is as it should be.
    kept = "task_dcgm_pcie_replay_counter metric name should not include type 'counter'"
    assert (done.stderr + done.stdout).splitlines() == [kept]
    without = (
        "\n".join(line for line in text.splitlines() if "task_dcgm_pcie_replay_counter" not in line) + "\n"
    )
    done = subprocess.run([promtool, "check", "metrics"], input=without, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr + done.stdout


def test_readings_are_nobodys_when_a_stranger_asks(up, job):
    request = urllib.request.Request(f"{up.url}/api/v1/metrics")
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request)
    with caught.value as answer:
        assert answer.code == 401


def vendor(up: Up) -> Client:
    key = up.call("POST", "/api/v1/access-keys", {"name": "metrics"})
    return Client(
        Config(
            access_key_id=key["id"],
            access_key_secret=key["secret"],
            endpoint=up.url.removeprefix("http://"),
            protocol="http",
        )
    )


def test_the_vendors_client_reads_the_metrics_when_it_asks(up, job):
    client = vendor(up)
    for kind in ("CpuCoreUsage", "GpuCoreUsage", "GpuMemoryUsage", "MemoryUsage", "NetworkInputRate"):
        request = models.GetJobMetricsRequest(metric_type=kind, time_step="1m")
        found = client.get_job_metrics(job, request).body
        (pod,) = found.pod_metrics
        assert pod.pod_id == f"dlc{job.removeprefix('job')}-worker-0"
        assert all(point.time % 60_000 == 0 and point.value >= 0 for point in pod.metrics)
        assert pod.metrics
        if kind == "GpuMemoryUsage":
            assert pod.metrics[-1].value in {50.0, 0.62, 0.63}  # percent of 16000 MiB
    with pytest.raises(Exception, match="MetricType 'Smell' is unknown"):
        client.get_job_metrics(job, models.GetJobMetricsRequest(metric_type="Smell"))


@pytest.mark.parametrize("verb", [["jobs", "top"], ["top"]])
def test_a_table_with_bars_is_shown_when_a_job_is_looked_at(up, job, verb, tmp_path):
    run_cli = [sys.executable, "-m", "trainyard.cli.main"]
    env = {**up.env, "COLUMNS": "80", "TRAINYARD_SERVER": up.url, "TRAINYARD_TOKEN": up.token}
    done = subprocess.run([*run_cli, *verb, job], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    head, row = done.stdout.splitlines()[:2]
    assert head.split()[:5] == ["Job", "Task", "CPU", "Memory", "GPU%"]
    assert row.split()[:2] == ["busy", "worker-0"]
    assert "*" in row  # what the node receives
    assert "of the whole node" in done.stderr
    assert all(len(line) <= 80 for line in done.stdout.splitlines())
    shown = subprocess.run([*run_cli, *verb, "--json", job], env=env, capture_output=True, text=True)
    (record,) = json.loads(shown.stdout)
    assert record["job"] == job
    assert 0 < record["now"]["memory"] < 200
    assert record["of_node"] == ["in", "out"]
