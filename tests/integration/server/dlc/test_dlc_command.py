"""The `dlc` command as its users type it: configuration, the seed's params file, tables that scripts take apart."""

from __future__ import annotations

import json
import re
import stat
import subprocess
import sys
import urllib.error
from datetime import datetime, timedelta, timezone

import pytest

from lab import entry
from platforms import platform
from sshd import start_sshds
from trainyard.backends.ssh import inventory

pytestmark = pytest.mark.slow  # a server of its own is started

# What the log of a task of several begins with, as it always did.
MET = "Network is under initialization... Network successfully initialized.\n"
SAMPLE = """\
name=yourtaskname
kind=PyTorchJob
worker_count=1
worker_cpu=4
worker_gpu=0
worker_memory=4
worker_shared_memory=4
worker_image=master0:5000/eflops/pytorch:v1
command=echo "hello world"
priority=1
workspace_id=your-workspace-id
interactive=false
"""


class Dlc:
    def __init__(self, up, home) -> None:
        self.up = up
        self.home = home
        self.workspace = ""

    def __call__(self, *words: str, ok: bool = True, stdin: str = "") -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "trainyard.cli.dlc.main", *words], input=stdin, text=True, capture_output=True,
            env={**self.up.env, "HOME": str(self.home)}, timeout=60,
        )  # fmt: skip
        assert (done.returncode == 0) == ok, (words, done.stdout, done.stderr)
        assert "Traceback" not in done.stderr
        return done


@pytest.fixture(scope="module")
def up(tmp_path_factory):
    with platform(tmp_path_factory.mktemp("up")) as found:
        yield found


@pytest.fixture(scope="module")
def dlc(up, tmp_path_factory):
    """Configured once: no test changes that."""
    made = Dlc(up, tmp_path_factory.mktemp("dlc"))
    endpoint = up.url.removeprefix("http://")
    made(
        "config",
        "--username",
        "admin",
        "--region",
        "cn-beijing",
        "--endpoint",
        endpoint,
        "--password",
        up.own_password(),
    )
    return made


def workspace_of(dlc) -> str:
    if not dlc.workspace:
        found = re.findall(r"\|\s+(ws\w+)\s+\|", dlc("get", "workspace").stdout)
        assert found
        dlc.workspace = found[0]
    return dlc.workspace


def submitted(dlc, tmp_path, text: str) -> str:
    file = tmp_path / "sample_job.params"
    file.write_text(text.replace("your-workspace-id", workspace_of(dlc)))
    done = dlc("create", "job", "--params_file", str(file))
    found = re.findall(r"\|\s+(dlc[0-9a-z]+)\s+\|", done.stdout)
    assert len(found) == 1, done.stdout
    assert json.loads(done.stdout[: done.stdout.index("\n+")])["DisplayName"]
    return found[0]


def test_the_seeds_params_file_runs_unchanged(dlc, up, tmp_path):
    job = submitted(dlc, tmp_path, SAMPLE)
    assert len(job) == 16
    up.until(job, "succeeded")
    shown = json.loads(dlc("get", "job", job).stdout)
    assert (shown["Status"], shown["ReasonCode"]) == ("Succeeded", "JobSucceeded")
    assert dlc("get", "job", job).stdout.startswith('{\n   "')
    assert dlc("logs", job).stdout == "hello world\n"
    assert dlc("logs", job, f"{job}-master-0").stdout == "hello world\n"
    row = next(line.split() for line in dlc("get", "job").stdout.splitlines() if job in line)
    assert (row[0], row[1], row[7]) == ("yourtaskname", job, "Succeeded")


@pytest.mark.ssh
def test_the_seeds_params_file_runs_on_three_hosts(tmp_path):
    hosts = start_sshds(3, tmp_path, first_address=90)
    try:
        with platform(tmp_path / "up", "--no-local-node") as up:
            path = up.home / ".trainyard" / "hosts.toml"
            path.parent.mkdir()
            for number, host in enumerate(hosts):
                inventory.add(path, entry(f"gpu{number}", host, tmp_path / "leases"))
                address = {"backend": "ssh", "host": f"gpu{number}"}
                up.call("POST", "/api/v1/nodes", {"name": f"gpu{number}", "address": address})
                # Whether this computer has podman or not: there is no such image.
                up.call("PATCH", f"/api/v1/nodes/gpu{number}", {"options": {"images": "ignore"}})
            made = Dlc(up, tmp_path)
            made("config", "--username", "admin", "--endpoint", up.url, "--password", up.own_password())
            one = submitted(made, tmp_path, SAMPLE)
            # Four cores each: a node has room for two, so three need more than one node.
            three = submitted(
                made, tmp_path, SAMPLE.replace("worker_count=1", "worker_count=3").replace("cpu=4", "cpu=8")
            )
            for job in (one, three):
                up.until(job, "succeeded")
            assert made("logs", one).stdout == "hello world\n"
            tasks = up.call("GET", f"/api/v1/jobs/{three}/tasks")["items"]
            assert {task["node"] for task in tasks} == {"gpu0", "gpu1", "gpu2"}
            for task in ("master-0", "worker-0", "worker-1"):
                assert made("logs", three, task).stdout == f"{MET}hello world\n"
    finally:
        for host in hosts:
            host.close()


def test_the_configuration_is_its_owners_alone(dlc):
    file = dlc.home / ".dlc" / "config"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


def test_a_wrong_password_is_one_line(up, tmp_path):
    made = Dlc(up, tmp_path)
    done = made("config", "--username", "admin", "--password", "x", "--endpoint", up.url, ok=False)
    assert done.stderr.startswith("[FAILED] code: 401")
    assert done.stderr.count("\n") == 1


def test_a_job_is_stopped_once(dlc, up, tmp_path):
    job = submitted(dlc, tmp_path, SAMPLE.replace('echo "hello world"', "sleep 300"))
    up.until(job, "running")
    refused = dlc("stop", "job", job, ok=False)
    assert "nobody to ask" in refused.stderr
    assert dlc("stop", "job", job, "-f").stdout == f"[OK] Job [{job}] was stopped successfully\n"
    up.until(job, "cancelled")
    again = dlc("stop", "job", job, "--force", ok=False)
    assert re.fullmatch(
        r"\[FAILED\] code: 400, Job can't be stopped, because it is Stopped request id: [0-9A-F-]{36}\n",
        again.stderr,
    )
    assert dlc("delete", "job", job, "-f").stdout == f"[OK] Job [{job}] was deleted successfully\n"


def test_an_interactive_job_ends_with_its_result(dlc, tmp_path):
    file = tmp_path / "job"
    file.write_text(
        f"name=x\ncommand=exit 7\nworkspace_id={workspace_of(dlc)}\ninteractive=true\nkind=BatchJob\n"
    )
    done = dlc("create", "job", "--params_file", str(file), ok=False)
    assert done.returncode == 7
    assert re.search(r"Job dlc\w+ is \[Failed\]", done.stdout)


def test_the_public_spelling_works_too(dlc, up):
    done = dlc(
        "submit", "pytorchjob", "--name=two words", "--workers=2", "--worker_cpu", "1", "--worker_memory", "64Mi",
        "--command", "echo $TRAINYARD_RANK", "--workspace_id", workspace_of(dlc), "--envs", "A=1,B=2",
    )  # fmt: skip
    job = re.findall(r"\|\s+(dlc[0-9a-z]+)\s+\|", done.stdout)[0]
    up.until(job, "succeeded")
    assert dlc("logs", job, "worker-0").stdout == f"{MET}1\n"
    pod = json.loads(dlc("get", "pod", job, f"{job}-worker-0").stdout)
    assert (pod["Status"], pod["Type"]) == ("Succeeded", "worker")
    listed = dlc("get", "jobs", "--display_name", "two").stdout
    assert "two_words" in listed


def test_an_unknown_key_warns_with_the_nearest(dlc, up, tmp_path):
    file = tmp_path / "job"
    file.write_text(
        f"name=x\ncomand=no\ncommand=true\nvpc_id=v\nworkspace_id={workspace_of(dlc)}\n# a remark\n"
    )
    done = dlc("create", "job", "--params_file", str(file))
    assert "unknown key comand is passed over; did you mean command?" in done.stderr
    assert "vpc_id is for the public cloud" in done.stderr


def test_no_log_is_said_plainly(dlc, up, tmp_path):
    job = submitted(dlc, tmp_path, SAMPLE.replace('echo "hello world"', "sleep 2"))
    up.until(job, "running")
    assert dlc("logs", job).stderr == "[WARN] No logs found for the pod\n"
    followed = dlc("logs", "-f", job)
    assert followed.stderr == "[WARN] No logs found for the pod\n"


def test_a_log_is_followed_whole_when_it_is_longer_than_one_answer_and_the_job_starts_again(
    dlc, up, tmp_path
):
    many = 130_000
    mark = tmp_path / "tried once"
    command = (
        f"seq 1 {many}; sleep 0.5; printf 'no newline \\377'; [ -e '{mark}' ] || {{ touch '{mark}'; exit 137; }};"
        " echo; echo last"
    )
    job = up.submit(command, name="long", max_retries=1)
    seen = dlc("logs", "-f", job).stdout.splitlines()
    assert up.job(job)["state"] == "succeeded"
    once = [*map(str, range(1, many + 1)), "no newline \ufffd"]
    # Who comes late begins with the start that runs then.
    assert seen in ([*once, *once, "last"], [*once, "last"])


def test_a_span_of_time_of_a_log_is_printed_when_it_is_asked_for(dlc, up, tmp_path):
    job = up.submit("echo early; sleep 2.5; echo late", name="span")
    up.until(job, "succeeded")
    times = {line["text"]: line["time"] for line in up.call("GET", f"/api/v1/jobs/{job}/logs")["items"]}
    early, late = (datetime.fromisoformat(times[text]) for text in ("early", "late"))
    between = early + (late - early) / 2
    elsewhere = between.astimezone(timezone(timedelta(hours=8)))
    for moment in (between.strftime("%Y-%m-%dT%H:%M:%SZ"), elsewhere.isoformat()):
        assert dlc("logs", job, "--start_time", moment).stdout == "late\n", moment
        assert dlc("logs", job, "--end_time", moment).stdout == "early\n", moment
    assert dlc("logs", job, "--start_time", "2001-01-01T00:00:00").stdout == "early\nlate\n"
    assert dlc("logs", job, "--end_time", "2001-01-01").stderr == "[WARN] No logs found for the pod\n"
    refused = dlc("logs", job, "--start_time", "yesterday", ok=False)
    assert "'yesterday' is not a time" in refused.stderr + refused.stdout


def test_quotas_types_events_and_help_are_shown(dlc, up, tmp_path):
    job = submitted(dlc, tmp_path, SAMPLE)
    up.until(job, "succeeded")
    quotas = json.loads(dlc("get", "quota").stdout)
    assert quotas["TotalCount"] >= 1
    whole = next(one["Min"] for one in quotas["Quotas"] if not one["ParentQuotaId"])
    assert float(whole["CPU"]) < 1000, "cores, as jobs ask for them"
    assert whole["Memory"].endswith("Gi")
    assert "ecs.gn6v-c8g1.16xlarge" in dlc("get", "specs").stdout
    assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d ", dlc("get", "job", job, "--events_only").stdout)
    assert json.loads(dlc("describe", "job", job).stdout)["Events"]
    assert "--params_file" in dlc("help", "create", "job").stdout
    assert "_DLC_COMPLETE" in dlc("completion", "bash").stdout
    assert dlc("--version").stdout.strip()


def test_jobs_are_found_by_a_pattern_when_they_are_on_no_first_page(dlc, up):
    oldest = up.submit("true", name="needle 中文", needs_approval=True)
    for number in range(3):
        up.submit("true", name=f"hay {number}", needs_approval=True)
    table = dlc("get", "job", "--page_size", "2", "--display_name_regex", "^needle").stdout
    assert oldest.replace("job", "dlc", 1) in table
    assert len(table.splitlines()) == 2
    found = dlc("get", "job", "--page_size", "2", "--page_num", "2", "--display_name_regex", "^hay").stdout
    assert len(found.splitlines()) == 2
    assert len(dlc("get", "job", "--resource_id", "nobodys").stdout.splitlines()) == 1


@pytest.mark.parametrize("priority", ["abc", [1], {"a": 1}, "\u00b2", 10])
def test_a_priority_is_refused_when_it_is_none(up, priority):
    job = up.submit("true", needs_approval=True)
    assert status(up, "PUT", f"/api/v1/jobs/{job}", {"Priority": priority}) == 400
    assert status(up, "GET", "/api/v1/jobs?PageNumber=%C2%B2") == 400


def status(up, method: str, path: str, body: object = None) -> int:
    with pytest.raises(urllib.error.HTTPError) as refused:
        up.call(method, path, body, **{"x-acs-version": "2020-12-03"})
    with refused.value as answer:
        return answer.code


def test_an_access_key_signs(up, tmp_path):
    key = up.call("POST", "/api/v1/access-keys", {"name": "cli"})
    made = Dlc(up, tmp_path)
    flags = ("-a", key["id"], "-k", key["secret"], "-e", up.url, "-I")
    assert "default" in made("get", "workspace", *flags).stdout
    assert "default" in made(*flags, "get", "workspace").stdout
    assert not (tmp_path / ".dlc").exists()
    assert (
        "access key is not known"
        in made("get", "workspace", "-a", "x", "-k", "y", "-e", up.url, ok=False).stderr
    )


def test_an_endpoint_that_is_silent_is_one_line(up, tmp_path):
    made = Dlc(up, tmp_path)
    done = made("get", "workspace", "-a", "x", "-k", "y", "-e", "127.0.0.1:1", ok=False)
    assert re.fullmatch(r"\[FAILED\] The platform at http://127.0.0.1:1 does not answer: .*\n", done.stderr)
