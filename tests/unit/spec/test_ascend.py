"""Rank tables and the variables of Ascend's processes, judged by the table of the platform's own manual."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.lib.errors import InvalidError, NotFoundError
from trainyard.spec import ascend

MANUAL = Path(__file__).parents[2] / "e2e" / "seeds" / "ascend_16p.json"
FIRST, SECOND = "192.168.3.6", "192.168.3.2"


@pytest.fixture
def two_servers() -> tuple[ascend.Server, ...]:
    """The manual's servers, in the manual's order: the higher address comes first."""
    return tuple(
        ascend.server(address, ascend.simulated_addresses(number))
        for number, address in enumerate((FIRST, SECOND))
    )


def one_server(*devices: int) -> tuple[ascend.Server]:
    return (ascend.server(FIRST, ascend.simulated_addresses(0), devices),)


def test_the_lab_table_is_the_manuals_byte_for_byte_when_the_servers_are_its_own(two_servers):
    assert ascend.rank_table(two_servers, "lab") == MANUAL.read_text(encoding="utf-8")


def test_the_lab_table_names_only_networks_in_use_when_a_job_has_two_devices():
    table = json.loads(ascend.rank_table(one_server(4, 5), "lab", group="test", board=ascend.BOARD_X86))
    assert (table["board_id"], table["group_list"][0]["group_name"]) == ("0x0000", "test")
    assert table["para_plane_nic_name"] == ["eth4", "eth5"]
    assert table["para_plane_nic_num"] == table["group_list"][0]["device_num"] == "2"
    assert [each["rank_id"] for each in table["group_list"][0]["instance_list"]] == ["0", "1"]


def test_every_value_is_text_in_every_format(two_servers):
    def leaves(value):
        if isinstance(value, dict):
            value = list(value.values())
        return [leaf for each in value for leaf in leaves(each)] if isinstance(value, list) else [value]

    for layout in ascend.FORMATS:
        assert all(
            isinstance(leaf, str) for leaf in leaves(json.loads(ascend.rank_table(two_servers, layout)))
        )


def test_the_tf_table_has_a_server_an_entry_and_no_ranks(two_servers):
    named = [
        ascend.Server(each.address, each.devices, f"job-worker-{index}")
        for index, each in enumerate(two_servers)
    ]
    text = ascend.rank_table(named, "tf")
    (group,) = json.loads(text)["group_list"]
    assert (group["device_count"], group["instance_count"]) == ("16", "2")
    assert [each["pod_name"] for each in group["instance_list"]] == ["job-worker-0", "job-worker-1"]
    assert group["instance_list"][1]["devices"][4] == {"device_id": "4", "device_ip": "192.168.10.4"}
    assert "rank_id" not in text


def test_ranks_follow_the_dictionary_when_a_table_is_sorted(two_servers):
    table = json.loads(ascend.rank_table(two_servers, "1.0", by_address=True))
    assert (table["version"], table["server_count"], table["status"]) == ("1.0", "2", "completed")
    assert [each["server_id"] for each in table["server_list"]] == [SECOND, FIRST]
    assert table["server_list"][0]["host_nic_ip"] == "reserve"
    ranks = [int(device["rank_id"]) for each in table["server_list"] for device in each["device"]]
    assert ranks == list(range(16))
    assert ascend.rank_of(two_servers, FIRST, 0) == 0
    assert ascend.rank_of(two_servers, FIRST, 0, by_address=True) == 8


def test_super_pods_are_named_when_the_format_has_them(two_servers):
    first, second = two_servers
    servers = (first, ascend.Server(second.address, second.devices, super_group="1"))
    table = json.loads(ascend.rank_table(servers, "1.2"))
    assert table["super_pod_list"] == [
        {"super_pod_id": "0", "server_list": [{"server_id": FIRST}]},
        {"super_pod_id": "1", "server_list": [{"server_id": SECOND}]},
    ]
    assert table["server_list"][0]["device"][7]["super_device_id"] == "7"


def test_an_unknown_format_is_refused_with_the_list(two_servers):
    with pytest.raises(InvalidError) as caught:
        ascend.rank_table(two_servers, "3.0")
    assert "1.2" in caught.value.hint


def test_ranks_go_on_when_the_process_is_on_the_second_server(two_servers):
    env = ascend.process_environment(two_servers, SECOND, 3, table="/job/hccl.json")
    assert env == {
        "RANK_ID": "11",
        "RANK_SIZE": "16",
        "DEVICE_ID": "3",
        "DEVICE_NUM": "8",
        "SERVER_ID": "1",
        "HCCL_CONNECT_TIMEOUT": "600",
        "RANK_TABLE_FILE": "/job/hccl.json",
        "MINDSPORE_HCCL_CONFIG_PATH": "/job/hccl.json",
    }


@given(st.permutations(range(4)), st.booleans())
def test_ranks_are_the_same_in_table_and_environment(order, by_address):
    servers = [ascend.server(f"10.0.0.{number}", ascend.simulated_addresses(number)) for number in order]
    table = json.loads(ascend.rank_table(servers, "1.0", by_address=by_address))
    for entry in table["server_list"]:
        for device in entry["device"]:
            env = ascend.process_environment(
                servers, entry["server_id"], int(device["device_id"]), by_address=by_address
            )
            assert env["RANK_ID"] == device["rank_id"]


def test_a_device_that_takes_no_part_has_no_rank(two_servers):
    with pytest.raises(NotFoundError, match=r"NPU 3 of 10\.0\.0\.9"):
        ascend.rank_of(two_servers, "10.0.0.9", 3)


def test_the_scheduler_and_the_workers_meet_beside_rank_0(two_servers):
    scheduler = ascend.mindspore_scheduler_environment(two_servers)
    worker = ascend.mindspore_environment(two_servers, SECOND, 0)
    assert scheduler == {
        "MS_SCHED_HOST": FIRST,
        "MS_SCHED_PORT": "8118",
        "MS_WORKER_NUM": "16",
        "MS_SERVER_NUM": "0",
        "MS_ROLE": "MS_SCHED",
    }
    assert worker == {
        **scheduler,
        "MS_ROLE": "MS_WORKER",
        "MS_NODE_ID": "8",
        "MS_WORKER_IP": SECOND,
        "DEVICE_ID": "0",
    }


@pytest.mark.parametrize(
    "devices", [(5,), (0, 3), (4, 7), (0, 1, 2, 3), (4, 5, 6, 7), tuple(range(8))], ids=str
)
def test_devices_may_train_together_when_they_keep_the_rules(devices):
    ascend.check_rings(one_server(*devices))


@pytest.mark.parametrize(
    ("devices", "reason"),
    [
        ((), "no NPU|0 NPUs"),
        ((0, 1, 2), "3 NPUs"),
        ((0, 4), "two rings"),
        ((1, 2, 3, 4), "two rings"),
        ((0, 1, 2, 3, 4, 5), "6 NPUs"),
        ((0, 0), "twice"),
    ],
    ids=str,
)
def test_devices_are_refused_when_they_break_the_rules(devices, reason):
    with pytest.raises(InvalidError, match=reason):
        ascend.check_rings(one_server(*devices))


def test_several_servers_are_refused_when_one_gives_less_than_all(two_servers):
    ascend.check_rings(two_servers)
    with pytest.raises(InvalidError, match="takes all 8 NPUs of each, and 4 of"):
        ascend.check_rings((two_servers[0], ascend.server(SECOND, ascend.simulated_addresses(1, 4))))
    with pytest.raises(InvalidError, match="no NPU"):
        ascend.check_rings(())


def test_addresses_are_read_when_they_stand_in_the_drivers_file():
    text = """# made by the installer
address_1=192.168.20.1
netmask_1=255.255.255.0
 address_0 = 192.168.10.1   # the first
address_x=1
send_arp_status_0=1
"""
    assert ascend.hccn_addresses(text) == {0: "192.168.10.1", 1: "192.168.20.1"}
    assert ascend.hccn_addresses("") == {}


def test_addresses_are_read_when_they_stand_in_the_inventory():
    entry = {"device_ips": {"10": "192.168.10.3", "2": "192.168.10.1"}, "other": 1}
    assert ascend.entry_addresses(entry) == {2: "192.168.10.1", 10: "192.168.10.3"}
    assert ascend.entry_addresses({}) == {}


@pytest.mark.parametrize("wrong", [{"zero": "1.2.3.4"}, {"0": 'x"y'}, {"0": "a b"}, ["1.2.3.4"]], ids=str)
def test_an_inventory_is_refused_when_it_makes_no_sense(wrong):
    with pytest.raises(InvalidError):
        ascend.entry_addresses({"device_ips": wrong})


def test_a_device_is_refused_when_nobody_knows_its_address():
    with pytest.raises(InvalidError, match="NPU 6 of") as caught:
        ascend.server(FIRST, ascend.simulated_addresses(0, 4), (0, 6))
    assert "hccn.conf" in caught.value.hint
