"""Every kind of job: its roles, who decides, and what each task is given. Without a node, a store or a clock."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from trainyard.lib.errors import InvalidError
from trainyard.scheduling import Node, Scheduler, Snapshot
from trainyard.server.cluster.scheduler_snapshot import request_from
from trainyard.server.launch import kinds, rendezvous
from trainyard.server.launch.kinds import JobOwner, TaskGang, TaskPlace
from trainyard.server.launch.kinds.parts import part_of
from trainyard.server.launch.kinds.sshkeys import derive, key_pair
from trainyard.server.validation import check_spec
from trainyard.spec.workload import CommandOn, Launcher, RoleSpec, Success, WorkloadSpec

NPU = "huawei_npu_arm64"


def spec_of(kind: str, *roles: RoleSpec, **more: Any) -> WorkloadSpec:
    return kinds.fit(WorkloadSpec(name="j", command="train", kind=kind, roles=roles or (RoleSpec(),), **more))


def gang_of(kind: str, *roles: RoleSpec, nodes: int = 99, **more: Any) -> TaskGang:
    """All tasks of such a job, each on a node of its own as far as there are so many."""
    spec = spec_of(kind, *roles, **more)
    places = []
    for role in spec.roles:
        for number in range(role.replicas):
            rank = len(places)
            node = rank % nodes
            places.append(
                TaskPlace(
                    name=f"{role.name}-{number}", role=role.name, number=number, rank=rank, node=f"n{node}",
                    address=f"10.0.0.{node + 1}", devices=tuple(range(role.devices)), device_type=role.device,
                    device_addresses={index: f"192.168.{index}.{rank}" for index in range(role.devices)},
                    cpu=role.cpu, runs=kinds.runs_command(spec, role, number),
                )
            )  # fmt: skip
    gang = TaskGang(
        job_id="dlc1", attempt_id="dlc1.1", job_name="j", spec=spec, places=tuple(places),
        person=JobOwner(name="ada@lab.cn", email="ada@lab.cn"), workspace="vision", token="t",
    )  # fmt: skip
    return rendezvous.with_ports(gang)


def given(gang: TaskGang, name: str) -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
    """Variables, those that are known late, and files of one task."""
    place = next(place for place in gang.places if place.name == name)
    part = part_of(gang, place)
    return dict(part.env), dict(part.late), dict(part.files)


@dataclass(frozen=True)
class Task:
    role: str
    number: int = 0


def roles_of(spec: WorkloadSpec) -> list[tuple[str, int]]:
    return [(role.name, role.replicas) for role in spec.roles]


@pytest.mark.parametrize(
    ("kind", "asked", "got"),
    [
        ("PyTorchJob", [("worker", 4)], [("master", 1), ("worker", 3)]),
        ("PyTorchJob", [("worker", 1)], [("master", 1)]),
        ("PyTorchJob", [("worker", 2), ("master", 1)], [("master", 1), ("worker", 2)]),
        ("XGBoostJob", [("worker", 2)], [("master", 1), ("worker", 1)]),
        ("MPIJob", [("worker", 2)], [("master", 1), ("worker", 1)]),
        ("MPIJob", [("worker", 2), ("launcher", 1)], [("launcher", 1), ("worker", 2)]),
        (
            "TFJob",
            [("worker", 2), ("evaluator", 1), ("ps", 1), ("chief", 1)],
            [("chief", 1), ("ps", 1), ("worker", 2), ("evaluator", 1)],
        ),
        ("RayJob", [("worker", 3)], [("head", 1), ("worker", 2)]),
        ("BatchJob", [("worker", 3)], [("worker", 3)]),
        ("ElasticBatchJob", [("worker", 3)], [("worker", 3)]),
        ("PSDistJob", [("worker", 2)], [("ps", 1), ("worker", 2)]),
        ("Distributed Job", [("worker", 2)], [("ps", 1), ("worker", 2)]),
        ("Regular Job", [("worker", 1)], [("worker", 1)]),
        ("job", [("b", 1), ("a", 2)], [("b", 1), ("a", 2)]),
    ],
)
def test_roles_stand_in_their_order_with_those_that_a_kind_needs(kind, asked, got):
    spec = spec_of(kind, *(RoleSpec(name=name, replicas=count) for name, count in asked))
    assert roles_of(spec) == got
    assert kinds.fit(spec) == spec, "fitting twice is fitting once"


def test_an_elastic_worker_keeps_its_minimum_when_one_becomes_the_master():
    spec = spec_of("PyTorchJob", RoleSpec(replicas=4, minimum=2))
    assert [(role.minimum, role.replicas) for role in spec.roles] == [(None, 1), (1, 3)]


def test_the_master_alone_is_enough_when_the_minimum_of_all_is_one():
    spec = spec_of("PyTorchJob", RoleSpec(replicas=2, minimum=1))
    check_spec(spec)
    scheduler = Scheduler(Snapshot(nodes=(Node(name="a", cpu=1000),)), 0.0)
    request = request_from(
        spec, id="j", workspace="w", user="u", priority=5, submitted=0.0, preemptible=False
    )
    scheduler.submit(request)
    (admitted,) = scheduler.cycle(0.0).admits
    assert [slot.role for slot in admitted.slots] == ["master"]


@pytest.mark.parametrize(
    ("written", "near"),
    [("PytorchJobs", "PyTorchJob"), ("tf-job", "TFJob"), ("MPI", "MPIJob"), ("PSDist", "PSDistJob")],
)
def test_an_unknown_kind_is_refused_with_the_nearest(written, near):
    with pytest.raises(InvalidError, match=f"did you mean {near}"):
        kinds.fit(WorkloadSpec(name="j", kind=written))


def test_kinds_are_known_however_their_letters_are_written():
    assert kinds.find_kind("pytorchjob").name == "PyTorchJob"
    assert kinds.find_kind("").name == "job"


def test_start_order_follows_the_kind_and_only_roles_that_are_there():
    spec = spec_of("TFJob", RoleSpec(name="worker", replicas=2), RoleSpec(name="ps"))
    assert {role.name: role.after for role in spec.roles} == {"ps": (), "worker": ("ps",)}
    own = spec_of("PyTorchJob", RoleSpec(name="master"), RoleSpec(name="worker", after=("x",)))
    assert {role.name: role.after for role in own.roles} == {"master": (), "worker": ("x",)}


@pytest.mark.parametrize(
    ("spec", "tasks", "decide"),
    [
        (spec_of("PyTorchJob", RoleSpec(replicas=2)), ["master", "worker"], ["master", "worker"]),
        (spec_of("TFJob", RoleSpec(), RoleSpec(name="ps")), ["ps", "worker"], ["worker"]),
        (spec_of("TFJob", RoleSpec(), RoleSpec(name="ps"), success=Success.FIRST), ["ps", "worker"], ["worker"]),
        (
            spec_of("TFJob", RoleSpec(), RoleSpec(name="chief"), success=Success.FIRST),
            ["chief", "worker"],
            ["chief"],
        ),
        (spec_of("MPIJob", RoleSpec(), RoleSpec(name="launcher")), ["launcher", "worker"], ["launcher"]),
        (spec_of("PSDistJob", RoleSpec()), ["ps", "worker"], ["ps"]),
        (spec_of("PSDistJob", RoleSpec(device=NPU, devices=8)), ["ps", "worker"], ["worker"]),
        (spec_of("PSDistJob", RoleSpec(), command_on=CommandOn.ALL), ["ps", "worker"], ["ps", "worker"]),
        (spec_of("RayJob", RoleSpec(replicas=2)), ["head", "worker"], ["head"]),
        (spec_of("job", RoleSpec(replicas=2), launcher=Launcher.MPIRUN), ["worker"], ["worker"]),
    ],
)  # fmt: skip
def test_those_decide_who_end_by_themselves(spec, tasks, decide):
    found = kinds.decisive(spec, [Task(role) for role in tasks])
    assert [task.role for task in found] == decide


def test_whoever_fails_ends_the_job_unless_it_is_plain_or_rays():
    tasks = [Task("ps"), Task("worker")]
    assert len(kinds.fatal(spec_of("PSDistJob", RoleSpec()), tasks)) == 2
    assert len(kinds.fatal(spec_of("job", RoleSpec(replicas=2), success=Success.FIRST), tasks)) == 1


def test_pytorch_tasks_get_the_number_of_nodes_and_their_own():
    gang = gang_of("PyTorchJob", RoleSpec(replicas=2, devices=8, device="V100"))
    env, late, files = given(gang, "worker-0")
    assert env.items() >= {
        "WORLD_SIZE": "2", "RANK": "1", "NPROC_PER_NODE": "8", "PET_NNODES": "2", "PET_NODE_RANK": "1",
        "PET_NPROC_PER_NODE": "8", "PYTHONUNBUFFERED": "1", "NNODES": "2", "NODE_RANK": "1",
    }.items()  # fmt: skip
    assert late == {
        "MASTER_ADDR": "%host:master-0%",
        "MASTER_PORT": "%port:master-0:MASTER_PORT%",
        "PET_MASTER_ADDR": "%host:master-0%",
        "PET_MASTER_PORT": "%port:master-0:MASTER_PORT%",
    }
    assert files == {}
    assert part_of(gang, gang.places[0]).ports == {"MASTER_PORT": 23456}
    assert part_of(gang, gang.places[1]).ports == {}


def test_a_pytorch_job_of_one_task_needs_nothing_before_its_command():
    gang = gang_of("PyTorchJob", RoleSpec())
    part = part_of(gang, gang.first)
    assert (part.env["MASTER_ADDR"], part.env["RANK"], part.env["WORLD_SIZE"]) == ("127.0.0.1", "0", "1")
    assert part.ports == {"MASTER_PORT": 23456}
    assert not part.late
    assert not part.files
    assert not rendezvous.is_met(gang)


def test_xgboost_has_its_own_port_and_counts_all_tasks():
    gang = gang_of("XGBoostJob", RoleSpec(replicas=3))
    env, late, _ = given(gang, "worker-1")
    assert (env["WORLD_SIZE"], env["RANK"]) == ("3", "2")
    assert late.keys() == {"MASTER_ADDR", "MASTER_PORT"}
    assert part_of(gang, gang.first).ports == {"MASTER_PORT": 9999}


def test_a_cluster_of_tensorflow_has_all_but_the_evaluator():
    gang = gang_of(
        "TFJob", RoleSpec(name="chief"), RoleSpec(name="ps", replicas=2), RoleSpec(name="worker"),
        RoleSpec(name="evaluator"),
    )  # fmt: skip
    config = json.loads(given(gang, "evaluator-0")[1]["TF_CONFIG"])
    assert config["task"] == {"type": "evaluator", "index": 0}
    assert config["environment"] == "cloud"
    assert {name: len(hosts) for name, hosts in config["cluster"].items()} == {
        "chief": 1,
        "ps": 2,
        "worker": 1,
    }
    assert config["cluster"]["ps"][1] == "%host:ps-1%:%port:ps-1:TRAINYARD_TF_PORT%"


def test_mpi_host_files_list_the_workers_and_not_the_launcher():
    gang = gang_of(
        "MPIJob", RoleSpec(name="launcher"), RoleSpec(name="worker", replicas=2, devices=4, device="V100")
    )
    env, late, files = given(gang, "launcher-0")
    assert files["/etc/mpi/hostfile"] == "%name:worker-0% slots=4\n%name:worker-1% slots=4\n"
    assert files["/etc/mpi/hostfile.hydra"] == "%name:worker-0%:4\n%name:worker-1%:4\n"
    assert late["OMPI_MCA_orte_default_hostfile"] == "%path:/etc/mpi/hostfile%"
    assert late["OMPI_MCA_plm_rsh_agent"] == "%path:/etc/mpi/kubexec.sh|ssh%"
    assert env["K_MPI_JOB_ROLE"] == "launcher"
    assert given(gang, "worker-1")[0]["K_MPI_JOB_ROLE"] == "worker"
    assert env["TRAINYARD_NUM_SLOTS"] == "8"


def test_the_first_worker_is_a_host_too_when_it_runs_mpirun():
    gang = gang_of("MPIJob", RoleSpec(replicas=2, cpu=3))
    assert (
        given(gang, "master-0")[2]["/etc/mpi/hostfile"]
        == "%name:master-0% slots=3\n%name:worker-0% slots=3\n"
    )
    assert [place.runs for place in gang.places] == [True, False]


def test_the_manuals_nvidia_job_has_its_variables_and_files():
    gang = gang_of("PSDistJob", RoleSpec(replicas=2, devices=8, device="V100"))
    env, late, files = given(gang, "ps-0")
    assert env.items() >= {
        "DLWS_JOB_ID": "dlc1", "DLWS_USER_NAME": "ada", "DLWS_USER_EMAIL": "ada@lab.cn", "DLWS_VC_NAME": "vision",
        "DLWS_NUM_PS": "1", "DLWS_NUM_WORKER": "2", "DLWS_WORKER_NUM": "2", "DLWS_ROLE_NAME": "ps",
        "DLWS_ROLE_IDX": "0", "DLTS_ROLE_IDX": "0", "DLWS_NUM_GPU_PER_WORKER": "8", "DLWS_GPU_TYPE": "V100",
        "DLWS_IS_NPU_JOB": "false", "DLWS_HOST_NETWORK": "enable", "DLWS_LAUNCH_CMD": "train",
        "POD_NAME": "dlc1-ps0", "POD_IP": "10.0.0.1", "NVIDIA_VISIBLE_DEVICES": "",
    }.items()  # fmt: skip
    ports = {place.name: place.ssh_port for place in gang.places}
    assert ports["worker-0"] == ports["worker-1"], "horovodrun has one port for all"
    for number in (0, 1):  # where each really is: somebody else may have the port
        assert late[f"DLWS_SD_worker{number}_SSH_PORT"] == f"%port:worker-{number}:ssh%"
    assert 40000 <= ports["worker-0"] < 50000
    assert late["DLWS_SD_worker1_IP"] == "%address:worker-1%"
    assert late["DLWS_SD_SELF_IP"] == late["DLWS_SD_ps0_IP"], "scripts look for themselves among all"
    assert (late["DLWS_UID"], late["DLWS_GID"]) == ("%id:user%", "%id:group%")
    assert late["PATH"] == "%folder:/pod/bin/sudo%:%env:PATH%", "the manual's commands begin with sudo -E"
    assert files["/pod/bin/sudo"].startswith("#!")
    assert files["/job/hostfile"] == "%name:worker-0:worker-0% slots=8\n%name:worker-1:worker-1% slots=8\n"
    assert files["/home/ada/ib_config"] == files["/job/ib_config"]
    assert files["/job/ib_config"].startswith("%name:worker-0:ib-worker-0% slots=8\n")
    assert "export DLWS_SD_ps0_IP=" in files["/dlts-runtime/env/init.env"]
    assert [place.name for place in gang.places if place.runs] == ["ps-0"]


def test_the_manuals_npu_job_runs_in_every_worker_with_rank_tables():
    gang = gang_of("PSDistJob", RoleSpec(replicas=2, devices=8, device=NPU))
    env, late, files = given(gang, "worker-1")
    assert [place.name for place in gang.places if place.runs] == ["worker-0", "worker-1"]
    assert (env["DLWS_IS_NPU_JOB"], env["VISIBLE_IDS"]) == ("true", "0,1,2,3,4,5,6,7")
    assert env["NPU_IPS"].startswith("0:192.168.0.2,1:192.168.1.2")
    table = json.loads(files["/home/ada/.npu/dlc1/hccl_ms.json"])
    entries = table["group_list"][0]["instance_list"]
    assert [entry["rank_id"] for entry in entries] == [str(rank) for rank in range(16)]
    assert [entry["server_id"] for entry in entries] == ["10.0.0.2"] * 8 + ["10.0.0.3"] * 8
    assert table["group_list"][0]["group_name"] == "test"
    assert files["/home/ada/.npu/dlc1/npu_1.info"].endswith("host=10.0.0.3\n")
    assert late["RANK_TABLE_FILE"] == "%path:/home/ada/.npu/dlc1/hccl_1.0.json%"
    assert late["MINDSPORE_HCCL_CONFIG_PATH"] == "%path:/home/ada/.npu/dlc1/hccl_ms.json%"
    assert (env["RANK_SIZE"], env["SERVER_ID"]) == ("16", "1")


def test_a_regular_job_is_a_master_alone():
    gang = gang_of("RegularJob", RoleSpec(devices=2, device="V100"))
    env, _, files = given(gang, "worker-0")
    assert env.items() >= {"DLWS_ROLE_NAME": "master", "DLWS_NUM_PS": "0", "DLWS_NUM_WORKER": "1"}.items()
    assert "DLWS_WORKER_NUM" not in env
    assert env["POD_NAME"] == "dlc1"
    assert files["/job/hostfile"] == "%name:worker-0:master% slots=2\n"


def test_jobs_on_npus_of_other_kinds_get_rank_tables_of_both_ages():
    gang = gang_of("PyTorchJob", RoleSpec(replicas=2, devices=8, device="Ascend910"))
    env, late, files = given(gang, "worker-0")
    assert (env["RANK_SIZE"], env["DEVICE_NUM"], env["SERVER_ID"], env["MS_WORKER_NUM"]) == (
        "16",
        "8",
        "1",
        "16",
    )
    new, old = (
        json.loads(files[f"/user/serverid/devindex/config/{name}.json"]) for name in ("hccl", "hccl_lab")
    )
    assert new["version"] == "1.0"
    assert old["deploy_mode"] == "lab"
    assert late["RANK_TABLE_FILE"] == "%path:/user/serverid/devindex/config/hccl.json%"
    assert late["MINDSPORE_HCCL_CONFIG_PATH"] == "%path:/user/serverid/devindex/config/hccl_lab.json%"
    assert late["MS_SCHED_HOST"] == "%address:master-0%"


def test_hccl_is_told_its_address_and_asks_for_no_list_of_others():
    gang = gang_of("PyTorchJob", RoleSpec(replicas=2, device="Ascend910", devices=8))
    env = given(gang, "worker-0")[0]
    assert env.items() >= {"HCCL_IF_IP": "10.0.0.2", "HCCL_WHITELIST_DISABLE": "1", "SERVER_ID": "1"}.items()


def test_the_workers_decide_when_the_command_runs_in_them_whatever_the_user_wants():
    spec = spec_of("PSDistJob", RoleSpec(replicas=2), command_on=CommandOn.WORKERS, success=Success.FIRST)
    assert spec.success is Success.ALL


@pytest.mark.parametrize(
    ("kind", "role", "said"),
    [
        (
            "PyTorchJob",
            RoleSpec(name="wroker"),
            "There is no role 'wroker' in PyTorchJob; did you mean worker?",
        ),
        ("BatchJob", RoleSpec(name="ps"), "There is no role 'ps' in BatchJob."),
        ("MPIJob", RoleSpec(name="launcher", replicas=2), "There is one launcher in MPIJob, not 2."),
        ("RayJob", RoleSpec(name="head", replicas=3), "There is one head in RayJob, not 3."),
        ("RegularJob", RoleSpec(replicas=2), "There is one worker in RegularJob, not 2."),
    ],
)
def test_roles_that_a_kind_does_not_have_are_refused(kind, role, said):
    with pytest.raises(InvalidError) as refused:
        spec_of(kind, role)
    assert refused.value.message == said


def test_no_replicas_stay_none_when_a_worker_would_be_promoted():
    assert spec_of("PyTorchJob", RoleSpec(replicas=0)).roles == (RoleSpec(replicas=0),)
    assert len(spec_of("job", RoleSpec(name="anything"), RoleSpec(name="else")).roles) == 2


def test_ray_workers_join_the_head_and_the_command_runs_beside_it():
    gang = gang_of("RayJob", RoleSpec(replicas=2, cpu=4))
    head, worker = (part_of(gang, place) for place in gang.places)
    assert "\nray start --head --port=" in head.command
    assert head.command.endswith("\n( train\n)\n")
    assert "--block" in worker.command
    assert head.env["RAY_AUTH_TOKEN"] == worker.env["RAY_AUTH_TOKEN"] == "t"
    assert worker.late["RAY_NODE_IP"] == "%address:worker-0%"
    assert worker.late["RAY_ADDRESS"] == "%host:head-0%:%port:head-0:RAY_PORT%"


def test_batch_tasks_know_their_number_and_do_not_wait_for_each_other():
    gang = gang_of("BatchJob", RoleSpec(replicas=3))
    assert given(gang, "worker-2")[0].items() >= {"RANK": "2", "WORLD_SIZE": "3"}.items()
    assert not rendezvous.is_met(gang)


@pytest.mark.parametrize("launcher", [Launcher.MPIRUN, Launcher.HOROVODRUN])
def test_a_launcher_that_starts_all_runs_once_and_reaches_the_others(launcher):
    gang = gang_of("job", RoleSpec(replicas=3), launcher=launcher)
    assert [place.runs for place in gang.places] == [True, False, False]
    assert all(place.ssh_port for place in gang.places)
    assert gang.spec.success is Success.FIRST
    assert "TRAINYARD_HOSTFILE" in given(gang, "worker-0")[1]


@pytest.mark.parametrize("launcher", [Launcher.OWN, Launcher.TORCHRUN])
@pytest.mark.parametrize("device", ["Ascend910", "V100"])
def test_a_launcher_in_every_task_counts_only_those_that_train(launcher, device):
    """The parameter server stands by, whatever the devices: nobody may wait for it, or look for the others there."""
    workers = RoleSpec(replicas=2, device=device, devices=8)
    gang = gang_of("PSDistJob", workers, launcher=launcher)
    assert [place.name for place in gang.places if place.runs] == ["worker-0", "worker-1"]
    for rank, name in enumerate(("worker-0", "worker-1")):
        env, late, _ = given(gang, name)
        wanted = {"NNODES": "2", "NODE_RANK": str(rank), "WORLD_SIZE": "2", "RANK": str(rank)}
        assert env.items() >= wanted.items()
        assert late["MASTER_ADDR"] == "%host:worker-0%"
        assert late["MASTER_PORT"] == "%port:worker-0:MASTER_PORT%"
    takes = [place.name for place in gang.places if "MASTER_PORT" in part_of(gang, place).ports]
    assert "worker-0" in takes
    assert "worker-1" not in takes


def test_every_task_meets_at_the_first_that_runs_the_command():
    gang = gang_of("PyTorchJob", RoleSpec(replicas=3))
    entries = {place.name: entry_of(gang, place.name) for place in gang.places}
    assert entries["master-0"].meets == ("worker-0", "worker-1")
    assert not entries["master-0"].reports
    assert entries["worker-1"].reports
    assert [peer.task for peer in entries["worker-1"].peers] == ["master-0", "worker-1"]
    assert len({entry.token for entry in entries.values()}) == 1
    assert len({entry.barrier_ports for entry in entries.values()}) == 1


def test_the_launcher_waits_for_the_ssh_of_those_that_stand_by():
    gang = gang_of("PSDistJob", RoleSpec(replicas=2))
    first, other = entry_of(gang, "ps-0"), entry_of(gang, "worker-0")
    assert first.waits_for == ("worker-0", "worker-1")
    assert not first.stands_by
    assert other.stands_by
    assert (other.waits_for, other.meets, other.reports) == ((), (), False)
    assert first.ssh_key == other.ssh_key
    assert "PRIVATE" not in repr(first)
    assert first.token not in repr(first)


def test_the_workers_meet_among_themselves_when_the_server_stands_by():
    gang = gang_of("PSDistJob", RoleSpec(replicas=2, devices=8, device=NPU))
    first, other, server = (entry_of(gang, name) for name in ("worker-0", "worker-1", "ps-0"))
    assert (first.meets, first.waits_for) == (("worker-1",), ("ps-0",))
    assert other.reports
    assert server.stands_by
    assert first.peers[0].task == other.peers[0].task == "worker-0"


def entry_of(gang: TaskGang, name: str) -> Any:
    place = next(place for place in gang.places if place.name == name)
    kind = kinds.find_kind(gang.spec.kind)
    return rendezvous.entry_of(gang, place, part_of(gang, place), kind, secret=b"s")


def test_tasks_have_addresses_of_their_own_when_they_share_a_machine():
    gang = gang_of("PSDistJob", RoleSpec(replicas=2), nodes=1)
    launcher = entry_of(gang, "ps-0")
    addresses = {peer.task: peer.address for peer in launcher.peers}
    assert addresses["ps-0"] == "127.0.0.1"
    assert addresses["worker-0"].startswith("127.")
    assert len(set(addresses.values())) == 3
    assert len({place.ssh_port for place in gang.places}) == 1
    assert launcher.ssh_address == rendezvous.own_address(gang.seed, 0)


def test_tasks_have_ports_of_their_own_when_some_share_a_node_and_others_do_not():
    gang = gang_of("PSDistJob", RoleSpec(replicas=3), nodes=2)
    ports = {place.name: place.ssh_port for place in gang.places}
    places = {place.name: (place.address, place.ssh_port) for place in gang.places}
    assert len(set(places.values())) == 4
    assert ports["worker-0"] == ports["worker-1"], "workers come before the parameter server"


def test_a_node_without_an_address_is_named_when_others_have_to_reach_it():
    gang = gang_of("PyTorchJob", RoleSpec(replicas=2))
    places = (
        gang.places[0],
        TaskPlace(name="worker-0", role="worker", number=0, rank=1, node="n9", address="127.0.0.1"),
    )
    broken = TaskGang(job_id="dlc1", attempt_id="dlc1.1", job_name="j", spec=gang.spec, places=places)
    with pytest.raises(InvalidError, match="the node n9 has no address"):
        rendezvous.address_for(broken, places[0], places[1])


def test_keys_come_out_the_same_again_and_differ_between_attempts(tmp_path):
    one, again = (key_pair(derive(b"secret", "ssh dlc1.1"), "dlc1") for _ in range(2))
    other = key_pair(derive(b"secret", "ssh dlc1.2"), "dlc1")
    assert one == again
    assert one[1] != other[1]
    private = load_ssh_private_key(one[0].encode(), None)
    assert private.public_key() == load_ssh_public_key(one[1].encode())
