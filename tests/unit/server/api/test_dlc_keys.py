"""Every key of a params file: what it does to the job, from the file to the WorkloadSpec."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from trainyard.cli.dlc.job_keys import (
    CLOUD_ONLY,
    COUNTS,
    KNOWN,
    OF_ROLE,
    ROLES,
    parse_file,
    request_of,
    shown,
)
from trainyard.lib.errors import InvalidError
from trainyard.server.api.dlc.job_options import parse_arguments
from trainyard.server.api.dlc.translate import spec_of
from trainyard.server.api.dlc.views import job_view
from trainyard.server.jobs import submission
from trainyard.server.launch.sandbox_spec import SandboxFacts, view_of
from trainyard.server.records.workloads import WorkloadRecord
from trainyard.server.secrets.masking import sealed_request
from trainyard.server.secrets.sealing import Seal
from trainyard.spec.workload import CodeSpec, MountSpec, Restart, Retain, Success, WorkloadSpec


def job(text: str, **more: str) -> WorkloadSpec:
    values = {"name": "n", "kind": "BatchJob", "command": "run", "workspace_id": "ws1", **more}
    spec = spec_of(request_of({**values, **parse_file(text, "file")}).body)
    submission.check(spec)
    return spec


def worker(spec: WorkloadSpec) -> Any:
    return next(role for role in spec.roles if role.name == "worker")


# One line of the table: what stands in the file, what of the job tells of it, and what it tells.
TABLE: list[tuple[str, Callable[[WorkloadSpec], object], object]] = [
    ("name=bert 中文", lambda s: s.name, "bert 中文"),
    ("kind=TFJob", lambda s: s.kind, "TFJob"),
    ('command=a="b c" d=e', lambda s: s.command, 'a="b c" d=e'),
    ("workspace_id=ws9", lambda s: s.workspace, "ws9"),
    ("priority=7", lambda s: s.priority, 7),
    ("name=x", lambda s: s.priority, 1),
    ("worker_count=3", lambda s: worker(s).replicas, 3),
    ("workers=3", lambda s: worker(s).replicas, 3),
    ("kind=TFJob\nps=2\nworkers=1", lambda s: [role.replicas for role in s.roles if role.name == "ps"], [2]),
    ("kind=TFJob\nps_count=2\nworkers=1", lambda s: [role.replicas for role in s.roles if role.name == "ps"], [2]),
    ("kind=TFJob\nworkers=1\nchief=true", lambda s: "chief" in {role.name for role in s.roles}, True),
    ("kind=TFJob\nworkers=1\nevaluators=1", lambda s: "evaluator" in {role.name for role in s.roles}, True),
    ("kind=TFJob\nworkers=1\ngraphlearns=1", lambda s: "graphlearn" in {role.name for role in s.roles}, True),
    ("kind=PyTorchJob\nmasters=1\nworkers=2", lambda s: [(r.name, r.replicas) for r in s.roles], [("master", 1), ("worker", 2)]),
    ("kind=RayJob\nheads=1\nworkers=2", lambda s: [(r.name, r.replicas) for r in s.roles], [("head", 1), ("worker", 2)]),
    ("worker_image=a/b:1", lambda s: worker(s).image, "a/b:1"),
    ("worker_cpu=2.5", lambda s: worker(s).cpu, 2.5),
    ("worker_gpu=2", lambda s: worker(s).devices, 2),
    ("worker_gpu=2\nworker_gpu_type=V100", lambda s: worker(s).device, "V100"),
    ("worker_memory=4", lambda s: worker(s).memory_mib, 4096),
    ("worker_memory=512Mi", lambda s: worker(s).memory_mib, 512),
    ("worker_shared_memory=2", lambda s: worker(s).shared_memory_mib, 2048),
    ("worker_shared_memory=2Gi", lambda s: worker(s).shared_memory_mib, 2048),
    ("worker_spec=ecs.gn6v-c8g1.2xlarge", lambda s: (worker(s).cpu, worker(s).devices, worker(s).device), (8.0, 1, "V100")),
    ("worker_restart_policy=OnFailure", lambda s: s.restart, Restart.ON_FAILURE),
    ("data_sources=data1, data2", lambda s: s.mounts, (MountSpec(source="data1"), MountSpec(source="data2"))),
    ("data_source_uris=nas://h/p::/mnt/a", lambda s: s.mounts, (MountSpec(source="nas://h/p", target="/mnt/a"),)),
    ("code_source=code-1\ncode_branch=dev\ncode_commit=abcd1234", lambda s: s.code, CodeSpec(source="code-1", branch="dev", commit="abcd1234")),
    ("code_source=https://h/r.git", lambda s: s.code, CodeSpec(url="https://h/r.git")),
    ("thirdparty_libs=numpy==1.26, torch", lambda s: s.requirements, ("numpy==1.26", "torch")),
    ("thirdparty_lib_dir=/mnt/user/x", lambda s: s.requirements_dir, "/mnt/user/x"),
    ("envs=A=1,B=x=y", lambda s: s.env, {"A": "1", "B": "x=y"}),
    ("tags=team=a,run=2", lambda s: s.tags, {"team": "a", "run": "2"}),
    ("job_max_running_time_minutes=90", lambda s: s.max_run_seconds, 5400),
    ("job_max_running_time_minutes=0", lambda s: s.max_run_seconds, 0),
    ("job_reserved_minutes=5", lambda s: (s.retain_seconds, s.retain), (300, Retain.ALWAYS)),
    ("job_reserved_minutes=5\njob_reserved_policy=OnFailure", lambda s: s.retain, Retain.ON_FAILURE),
    ("job_reserved_minutes=5\njob_reserved_policy=OnSucceed", lambda s: s.retain, Retain.ON_SUCCESS),
    ("kind=TFJob\nsuccess_policy=ChiefWorker", lambda s: s.success, Success.FIRST),
    ("kind=TFJob\nsuccess_policy=AllWorkers", lambda s: s.success, Success.ALL),
    ("node_names=n1, n2", lambda s: worker(s).nodes, ("n1", "n2")),
    ("oversold_type=AcceptQuotaOverSold", lambda s: s.preemptible, True),
    ("oversold_type=ForceQuotaOverSold", lambda s: s.preemptible, True),
    ("oversold_type=ForbiddenQuotaOverSold", lambda s: s.preemptible, False),
    ("enable_preemptible_job=true", lambda s: s.preemptible, True),
    ("aimaster_enable=true\naimaster_args=--enable-job-hang-detection", lambda s: (s.hang_seconds, s.max_retries), (1800, 0)),
    ("aimaster_enable=true\naimaster_args=--enable-job-restart True --max-num-of-job-restart 5 --job-hang-interval=600 --enable-job-hang-detection --fault-tolerant-policy ExitCodeAndErrorMsg",
     lambda s: (s.hang_seconds, s.restart, s.max_retries), (600, Restart.EXIT_CODE, 5)),
    ("aimaster_enable=true\naimaster_args=--enable-job-restart", lambda s: (s.hang_seconds, s.restart, s.max_retries), (0, Restart.ON_FAILURE, 3)),
    ("aimaster_enable=false\naimaster_args=--enable-job-restart", lambda s: (s.hang_seconds, s.max_retries), (0, 0)),
    ("driver=535.104\nworker_gpu=1", lambda s: worker(s).labels, {"driver": "535.104"}),
    ("working_dir=/mnt/user/me", lambda s: s.working_dir, "/mnt/user/me"),
    ("resource_id=quota1", lambda s: s.name, "n"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "look", "wanted"), TABLE, ids=[row[0].replace("\n", " ") for row in TABLE])
def test_a_key_reaches_the_job(text, look, wanted):
    assert look(job(text)) == wanted


def test_every_key_is_in_the_table_or_steers_the_command_alone():
    told = {line.partition("=")[0] for text, *_ in TABLE for line in text.splitlines()}
    of_command = {"interactive", "exit_code_on_stopped", "image_repo_username", "image_repo_password"}
    left = set(KNOWN) - told - of_command - CLOUD_ONLY
    of_roles = {f"{role}_{key}" for role in ROLES for key in OF_ROLE}
    assert left - of_roles - set(COUNTS) == set()


@pytest.mark.parametrize("role", ["master", "ps", "chief", "evaluator", "graphlearn"])
def test_a_role_has_its_own_values_when_they_are_given(role):
    kind = "PyTorchJob" if role == "master" else "TFJob"
    text = f"kind={kind}\n{role}_count=1\n{role}_cpu=3\n{role}_memory=2\n{role}_image=own\nworkers=1\nworker_image=w"
    found = {one.name: one for one in job(text).roles}
    assert (found[role].cpu, found[role].memory_mib, found[role].image) == (3.0, 2048, "own")
    assert found["worker"].image == "w"


def test_the_command_itself_is_steered_when_it_is_interactive():
    wanted = request_of({"command": "x", "interactive": "true", "exit_code_on_stopped": "7"})
    assert (wanted.is_interactive, wanted.exit_code_on_stopped) == (True, 7)


@pytest.mark.parametrize("key", sorted(CLOUD_ONLY))
def test_a_key_of_the_cloud_is_passed_over_with_a_note(key):
    assert any(key in remark for remark in request_of({"command": "x", key: "y"}).remarks)


def test_an_unknown_key_is_told_with_the_nearest():
    assert "did you mean worker_count?" in request_of({"command": "x", "worker_cuont": "1"}).remarks[0]


def test_a_sign_in_for_an_image_reaches_the_node_and_nobody_else(tmp_path):
    values = {
        "command": "x",
        "worker_image": "r.example.org/a:1",
        "image_repo_username": "u",
        "image_repo_password": "p",
    }
    body = request_of(values).body
    spec, seal = spec_of(body), Seal(tmp_path / "key")
    record = WorkloadRecord(
        id="d",
        name="n",
        kind="PyTorchJob",
        workspace_id="w",
        user_id="u",
        spec=spec,
        submitted_at=0.0,
        dlc=sealed_request(body, seal, "u"),
    )
    view = view_of(record, spec.roles[0], None, None, SandboxFacts(seal=seal))
    assert view is not None
    assert (view.username, view.password) == ("u", "p")
    assert "password='p'" not in repr(view)
    assert shown(body)["JobSpecs"][0]["ImageConfig"] == {"Username": "u", "Password": "***"}
    assert job_view(record, now=1.0)["JobSpecs"][0]["ImageConfig"]["Password"] == "***"


def test_image_sign_ins_and_variables_are_hidden_when_a_job_of_the_compatible_door_is_shown():
    body = {
        "JobSpecs": [{"Image": "i", "ImageConfig": {"Username": "u", "Auth": "dTpw", "DockerRegistry": "r"}}],
        "CredentialConfig": {"AliyunEnvRoleKey": "k", "Enabled": True},
    }
    spec = WorkloadSpec(name="n", env={"GITHUB_PAT": "p4t", "EPOCHS": "3"})
    record = WorkloadRecord(
        id="d", name="n", kind="PyTorchJob", workspace_id="w", user_id="u", spec=spec, submitted_at=0.0, dlc=body
    )  # fmt: skip
    view = job_view(record, now=1.0)
    assert view["JobSpecs"][0]["ImageConfig"] == {"Username": "u", "Auth": "***", "DockerRegistry": "r"}
    assert view["Envs"] == {"GITHUB_PAT": "***", "EPOCHS": "3"}
    assert shown(body)["CredentialConfig"] == {"AliyunEnvRoleKey": "***", "Enabled": True}


@pytest.mark.parametrize(
    "text",
    [
        "priority=10",
        "priority=high",
        "worker_count=-1",
        "worker_count=0",
        "masters=1\nmaster_count=2\nkind=PyTorchJob",
        "ps=1",
        "kind=PyTorchJob\nheads=1",
        "worker_gpu=0.5",
        "job_reserved_policy=Sometimes",
        "worker_memory=much",
        "worker_spec=ecs.nothing",
        "worker_spec=ecs.g6.large\nworker_cpu=2",
        "worker_spec=ecs.g6.large\nresource_id=quota1",
        "oversold_type=Perhaps",
        "job_reserved_minutes=1\njob_reserved_policy=Sometimes",
        "success_policy=Somebody",
        "kind=NoJob",
        "worker_restart_policy=Perhaps",
        "chief=perhaps",
        "envs=A",
        "tags=A",
        "code_branch=main",
        "code_source=x\ncode_commit=main",
        "data_source_uris=nas://h/p",
        "data_source_uris=nas://h/p::/a,nas://h/q::/a",
        "thirdparty_libs=--pre",
        "aimaster_enable=true\naimaster_args=--enable-job-restrat",
        "aimaster_enable=true\naimaster_args=--job-hang-interval soon",
        "aimaster_enable=true\naimaster_args=--fault-tolerant-policy Never",
        "aimaster_enable=true\naimaster_args=restart",
        "node_names=a b",
        "working_dir=../x",
        "job_max_running_time_minutes=long",
    ],
)
def test_a_value_is_refused_at_submit_when_it_cannot_be(text):
    with pytest.raises(InvalidError):
        job(text)


def test_workers_are_elastic_when_the_request_says_so():
    body = request_of({"command": "x", "kind": "BatchJob", "workers": "4"}).body
    body["ElasticSpec"] = {"EnableElasticTraining": True, "MinParallelism": 2, "MaxParallelism": 6}
    found = worker(spec_of(body))
    assert (found.minimum, found.replicas) == (2, 6)
    body["ElasticSpec"]["MinParallelism"] = 9
    with pytest.raises(InvalidError):
        spec_of(body)


def test_arguments_are_read_in_every_spelling():
    assert parse_arguments("--enable-job-restart --job-hang-interval=5 --enable_local_detection False") == {
        "enable-job-restart": "true", "job-hang-interval": "5", "enable-local-detection": "false",
    }  # fmt: skip


def roles_of(text: str) -> dict[str, Any]:
    return {role.name: role for role in job(text, kind="TFJob").roles}


def test_a_role_has_what_the_workers_have_when_it_says_only_something_else():
    found = roles_of(
        "chief=true\nworkers=2\nps=1\nworker_image=a/b:1\nworker_cpu=4\nworker_memory=8\nchief_command=lead\nps_cpu=2"
    )
    chief, server = found["chief"], found["ps"]
    assert (chief.image, chief.cpu, chief.memory_mib, chief.command) == ("a/b:1", 4.0, 8192, "lead")
    assert (server.image, server.cpu, server.memory_mib) == ("a/b:1", 2.0, 0), "amounts go together"


def test_a_command_of_the_workers_is_theirs_alone():
    found = roles_of("chief=true\nworkers=1\nworker_command=work")
    assert (found["worker"].command, found["chief"].command) == ("work", "")


def test_arguments_without_their_switch_are_told():
    values = {"name": "n", "command": "x", "workspace_id": "w", "aimaster_args": "--enable-job-restart"}
    assert any("aimaster_enable" in one for one in request_of(values).remarks)
    assert not request_of({**values, "aimaster_enable": "true"}).remarks
