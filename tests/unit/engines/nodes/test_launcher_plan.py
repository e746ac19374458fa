"""Who the processes of a launcher are: ranks, devices and variables, from what the environment says."""

from __future__ import annotations

import json

import pytest

from trainyard.engines.nodes.agent import launcher
from trainyard.spec import ascend

DEFAULTS = {option.name[2:].replace("-", "_"): option.default for option in launcher.OPTIONS}
FIRST, SECOND = "192.168.3.6", "192.168.3.2"


def settings(**changes):
    return {**DEFAULTS, "wait": 0.0, "log_dir": "", **changes}


def members(environ, **changes):
    plan = launcher.make_plan(settings(**changes), environ)
    return launcher.make_members(settings(**changes), plan, ["true"], environ)


def variables(environ, *names, **changes):
    return [tuple(member.env[name] for name in names) for member in members(environ, **changes)]


@pytest.fixture
def two_servers():
    return tuple(
        ascend.server(address, ascend.simulated_addresses(number))
        for number, address in enumerate((FIRST, SECOND))
    )


@pytest.fixture
def table(two_servers, tmp_path):
    def write(layout, **options):
        path = tmp_path / "hccl.json"
        path.write_text(ascend.rank_table(two_servers, layout, **options))
        return str(path)

    return write


def test_one_process_is_started_when_there_is_no_device():
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "RANK_ID", "RANK_SIZE", "DEVICE_ID", "DEVICE_NUM")
    assert variables({"CUDA_VISIBLE_DEVICES": ""}, *names) == [("0", "0", "1", "0", "1", "0", "1")]


@pytest.mark.parametrize(
    ("environ", "devices"),
    [
        ({"CUDA_VISIBLE_DEVICES": "4,6"}, ["0", "1"]),  # CUDA counts what it sees
        ({"ASCEND_RT_VISIBLE_DEVICES": "4-7"}, ["0", "1", "2", "3"]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-8d31-a,GPU-8d31-b"}, ["0", "1"]),
        ({"NVIDIA_VISIBLE_DEVICES": "all", "TRAINYARD_NUM_DEVICES": "2"}, ["0", "1"]),
        ({"NVIDIA_VISIBLE_DEVICES": "void"}, ["0"]),
        # As tasks of the platform have it: the other maker's devices are hidden.
        ({"ASCEND_RT_VISIBLE_DEVICES": "", "CUDA_VISIBLE_DEVICES": "4,6"}, ["0", "1"]),
        ({"ASCEND_RT_VISIBLE_DEVICES": "4,6", "CUDA_VISIBLE_DEVICES": ""}, ["0", "1"]),
        ({"CUDA_VISIBLE_DEVICES": "", "NVIDIA_VISIBLE_DEVICES": "0,1"}, ["0"]),  # a process's own word counts
        ({"VISIBLE_IDS": "0,1", "TRAINYARD_NUM_DEVICES": "8"}, ["0", "1"]),
        ({"DLWS_NUM_GPU_PER_WORKER": "2"}, ["0", "1"]),
        ({"PET_NPROC_PER_NODE": "auto", "NPROC_PER_NODE": "2"}, ["0", "1"]),
    ],
    ids=str,
)
def test_a_process_for_each_device_is_started_when_something_says_which(environ, devices):
    assert [device for (device,) in variables(environ, "DEVICE_ID")] == devices


def test_devices_are_called_by_their_numbers_when_a_person_chose_them():
    assert variables({}, "DEVICE_ID", "LOCAL_RANK", devices="4-5,7") == [("4", "0"), ("5", "1"), ("7", "2")]


@pytest.mark.parametrize("text", ["0,9x", "7-4", "0,0", ",", "0-2,1", "$(x)"])
def test_devices_are_refused_when_they_cannot_be_meant(text):
    with pytest.raises(launcher.LaunchError, match="device"):
        members({}, devices=text)


def test_a_device_is_taken_by_its_name_when_it_has_one():
    assert variables({}, "LOCAL_RANK", devices="GPU-8d31/0,MIG-a.b") == [("0",), ("1",)]


def test_processes_are_refused_when_there_would_be_fewer_than_none():
    with pytest.raises(launcher.LaunchError, match="-1 processes"):
        members({}, processes=-1)


def test_a_process_sees_its_own_device_alone_when_asked():
    environ = {"CUDA_VISIBLE_DEVICES": "4,6"}
    assert variables(environ, "CUDA_VISIBLE_DEVICES", "DEVICE_ID", one_device=True) == [
        ("4", "0"),
        ("6", "0"),
    ]
    environ |= {"ASCEND_RT_VISIBLE_DEVICES": ""}
    assert variables(environ, "CUDA_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES", one_device=True) == [
        ("4", ""),
        ("6", ""),
    ]
    (first, _) = members({}, devices="2,3", one_device=True)
    assert first.env["ASCEND_RT_VISIBLE_DEVICES"] == first.env["CUDA_VISIBLE_DEVICES"] == "2"


@pytest.mark.parametrize(
    "environ",
    [
        {"NNODES": "2", "NODE_RANK": "1"},
        {"PET_NNODES": "2:4", "PET_NODE_RANK": "1"},
        {"DLWS_NUM_WORKER": "2", "DLWS_ROLE_IDX": "1"},
        {"WORLD_SIZE": "2", "RANK": "1"},
        {"NNODES": "2", "NODE_RANK": "1", "WORLD_SIZE": "16", "RANK": "8"},
    ],
    ids=str,
)
def test_ranks_go_on_when_this_is_the_second_machine(environ):
    names = ("RANK", "RANK_ID", "LOCAL_RANK", "DEVICE_ID", "WORLD_SIZE", "RANK_SIZE")
    got = variables(environ, *names, processes=8)
    assert got == [(str(8 + i), str(8 + i), str(i), str(i), "16", "16") for i in range(8)]


def test_options_win_when_the_environment_says_otherwise():
    environ = {"NNODES": "2", "NODE_RANK": "1", "CUDA_VISIBLE_DEVICES": "0,1"}
    assert variables(environ, "RANK", "WORLD_SIZE", nodes=3, node_rank=2, processes=1) == [("2", "3")]


def test_a_machine_is_refused_when_it_is_not_among_all():
    with pytest.raises(launcher.LaunchError, match="machine 2 cannot be one of 2"):
        members({"NNODES": "2", "NODE_RANK": "2"})


def test_two_launchers_do_not_meet_when_they_run_on_one_machine():
    first, second = ({**members({})[0].env} for _ in range(2))
    assert first["MASTER_ADDR"] == second["MASTER_ADDR"] == "127.0.0.1"
    assert first["MASTER_PORT"] != second["MASTER_PORT"]
    given = members({"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "23456"})[0].env
    assert (given["MASTER_ADDR"], given["MASTER_PORT"]) == ("10.0.0.1", "23456")


def test_processes_meet_at_the_first_worker_when_the_first_task_is_no_worker():
    environ = {
        "DLWS_NUM_WORKER": "2",
        "DLWS_ROLE_IDX": "1",
        "DLWS_SD_worker0_IP": "10.0.0.2",
        "MASTER_ADDR": "10.0.0.1",  # the parameter server's
        "MASTER_PORT": "",
    }
    (member,) = members(environ, processes=1, mindspore=True)
    assert (member.env["MASTER_ADDR"], member.env["MASTER_PORT"]) == ("10.0.0.2", "29500")
    assert (member.env["MS_SCHED_HOST"], member.env["MS_SCHED_PORT"]) == ("10.0.0.2", "8118")


@pytest.mark.parametrize("layout", ["lab", "1.0", "1.2"])
@pytest.mark.parametrize("by_address", [False, True])
def test_ranks_are_the_tables_when_there_is_one(two_servers, table, layout, by_address):
    path = table(layout, by_address=by_address)
    for address in (FIRST, SECOND):
        environ = {"RANK_TABLE_FILE": path, "POD_IP": address, "NNODES": "2", "NODE_RANK": "0"}
        for device, member in enumerate(members(environ)):
            wanted = ascend.process_environment(
                two_servers, address, device, table=path, by_address=by_address
            )
            shared = set(wanted) - {"HCCL_CONNECT_TIMEOUT", "MINDSPORE_HCCL_CONFIG_PATH"}
            assert {name: member.env[name] for name in shared} == {name: wanted[name] for name in shared}


def test_a_table_without_ranks_says_nothing_about_them(table):
    environ = {"RANK_TABLE_FILE": table("tf"), "POD_IP": SECOND, "NNODES": "2", "NODE_RANK": "1"}
    assert variables(environ, "RANK_ID", processes=2) == [("2",), ("3",)]


def test_the_server_is_found_by_its_address_when_nobody_says_which(tmp_path):
    servers = [
        ascend.server(address, ascend.simulated_addresses(0)) for address in ("192.0.2.1", "127.0.0.1")
    ]
    path = tmp_path / "hccl.json"
    path.write_text(ascend.rank_table(servers, "1.0"))
    assert variables({"RANK_TABLE_FILE": str(path)}, "RANK_ID", "SERVER_ID")[0] == ("8", "1")


def test_the_server_is_found_by_its_number_when_several_addresses_are_ours(tmp_path):
    servers = [
        ascend.server(address, ascend.simulated_addresses(0)) for address in ("127.0.0.2", "127.0.0.1")
    ]
    path = tmp_path / "hccl.json"
    path.write_text(ascend.rank_table(servers, "lab"))
    environ = {"RANK_TABLE_FILE": str(path), "SERVER_ID": "1"}
    assert variables(environ, "RANK_ID", "SERVER_ID")[0] == ("8", "1")


@pytest.mark.parametrize("layout", ["lab", "1.0"])
def test_servers_are_told_apart_by_number_when_they_share_a_machine(tmp_path, layout):
    servers = [ascend.server("127.0.0.1", ascend.simulated_addresses(number)) for number in (0, 1)]
    path = tmp_path / "hccl.json"
    path.write_text(ascend.rank_table(servers, layout))
    for number in (0, 1):
        environ = {"RANK_TABLE_FILE": str(path), "NNODES": "2", "NODE_RANK": str(number)}
        got = variables(environ, "RANK_ID", "DEVICE_ID", "RANK_SIZE", "DEVICE_NUM")
        assert got == [(str(8 * number + index), str(index), "16", "8") for index in range(8)]


def test_a_parameter_server_is_not_counted_when_the_job_has_one():
    environ = {"NNODES": "3", "NODE_RANK": "2", "DLWS_NUM_WORKER": "2", "DLWS_ROLE_IDX": "1"}
    assert variables(environ, "RANK", "WORLD_SIZE", processes=8)[0] == ("8", "16")


def test_a_table_is_refused_when_this_machine_is_not_in_it(table):
    with pytest.raises(launcher.LaunchError, match="no address of this machine") as caught:
        members({"RANK_TABLE_FILE": table("1.0")})
    assert "--server" in caught.value.hint
    with pytest.raises(launcher.LaunchError, match=r"no server 10\.0\.0\.1"):
        members({}, rank_table=table("1.0"), server="10.0.0.1")
    with pytest.raises(launcher.LaunchError, match="8 devices for"):
        members({}, rank_table=table("1.0"), server=FIRST, processes=4)


def test_a_table_is_refused_when_it_stays_unfinished_or_missing(tmp_path):
    path = tmp_path / "hccl.json"
    path.write_text(json.dumps({"status": "initializing"}))
    with pytest.raises(launcher.LaunchError, match="is not complete"):
        members({"RANK_TABLE_FILE": str(path)})
    path.write_text('{"status": "completed", "server_list": [{}]}')
    with pytest.raises(launcher.LaunchError, match="cannot be read"):
        members({"RANK_TABLE_FILE": str(path)})
    path.unlink()
    with pytest.raises(launcher.LaunchError, match="is not there"):
        members({}, rank_table=str(path))
    assert len(members({"RANK_TABLE_FILE": str(path), "CUDA_VISIBLE_DEVICES": ""})) == 1


def test_a_dynamic_cluster_is_as_the_inventory_makes_it_when_mindspore_is_wanted(two_servers):
    names = ("MS_ROLE", "MS_SCHED_HOST", "MS_SCHED_PORT", "MS_WORKER_NUM", "MS_SERVER_NUM")
    for node, address in enumerate((FIRST, SECOND)):
        environ = {"NNODES": "2", "NODE_RANK": str(node), "MASTER_ADDR": FIRST, "POD_IP": address}
        got = members(environ, processes=8, mindspore=True)
        scheduler = ascend.mindspore_scheduler_environment(two_servers)
        assert [member.label for member in got if member.is_extra] == ["scheduler"] * (node == 0)
        if node == 0:
            assert {name: got[0].env[name] for name in names} == {name: scheduler[name] for name in names}
            assert "MS_NODE_ID" not in got[0].env
        for device, member in enumerate(got[-8:]):
            wanted = ascend.mindspore_environment(two_servers, address, device)
            assert {name: member.env[name] for name in wanted} == wanted


def test_mindspore_is_given_an_address_when_the_job_has_a_name():
    environ = {"NNODES": "2", "NODE_RANK": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
    (worker,) = members(environ, processes=1, mindspore=True)
    assert worker.env["MS_SCHED_HOST"] == "127.0.0.1"
    scheduler, _ = members({**environ, "NODE_RANK": "0"}, processes=1, mindspore=True)
    assert scheduler.env["MS_SCHED_HOST"] == "0.0.0.0"  # others on this machine know it by another address
    (worker,) = members({**environ, "MS_SCHED_HOST": "fd00::1"}, processes=1, mindspore=True)
    assert worker.env["MS_SCHED_HOST"] == "fd00::1"


def test_folders_do_not_collide_when_storage_is_shared(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("1")
    (tmp_path / "data").mkdir()
    folders = []
    for node in (0, 1):
        environ = {"NNODES": "2", "NODE_RANK": str(node)}
        got = members(environ, processes=2, work_dir="run {node}/{device}-{rank}", copy=("*.py", "*"))
        folders += [member.folder for member in got]
    assert [folder.removeprefix(f"{tmp_path}/") for folder in folders] == [
        *("run 0/0-0", "run 0/1-1", "run 1/0-2", "run 1/1-3")
    ]
    assert all((tmp_path / folder / "train.py").exists() for folder in folders)
    with pytest.raises(launcher.LaunchError, match="several processes would run in"):
        members({}, processes=2, work_dir="same")


def test_lines_of_the_first_alone_are_shown_when_asked():
    assert [member.is_shown for member in members({}, processes=3, show="first")] == [True, False, False]
    assert [member.is_shown for member in members({}, processes=2, show="none")] == [False, False]
    with pytest.raises(launcher.LaunchError, match="'some'"):
        members({}, show="some")
