"""What NVIDIA's tools say of devices, read through the real scripts from stand-ins of the tools."""

from __future__ import annotations

import os
import re
import shutil
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as some

import nvidia
from trainyard.runtime import device_metrics, usage

SHELLS = [words for words in (["sh"], ["dash"], ["bash"], ["busybox", "sh"]) if shutil.which(words[0])]
BASIC = ",".join(device_metrics.BASIC)


@pytest.fixture
def tools(tmp_path):
    """The folder that tools are in; one for what a run leaves."""
    folder = tmp_path / "a b'c $(x) 中文"
    folder.mkdir()
    return folder


def run(tools, script, shell=("sh",), **known) -> str:
    lines = "".join(f"{name}='{value}'\n" for name, value in known.items())
    env = {"PATH": f"{tools}:{os.environ['PATH']}", "NOTED": str(tools / "noted")}
    done = subprocess.run(
        [*shell, "-c", lines + script], capture_output=True, text=True, env=env, timeout=60, check=True
    )
    assert done.stderr == ""
    return done.stdout


def devices(tools, shell=("sh",), **known) -> str:
    return run(tools, usage.devices_script(in_detail=True), shell, **known)


def profile(tools, shell=("sh",), **known) -> str:
    return run(tools, device_metrics.profile_script(), shell, **known)


def learnt(text: str) -> dict[str, str]:
    return dict(re.findall(r"^known (\w+) ?(.*)$", text, re.MULTILINE))


NOTE = 'echo "$@" >> "$NOTED"'


def calls(tools) -> list[str]:
    path = tools / "noted"
    lines = path.read_text().splitlines() if path.exists() else []
    path.unlink(missing_ok=True)
    return lines


@pytest.mark.parametrize("shell", SHELLS, ids="-".join)
def test_all_that_nvidia_smi_has_is_read_when_a_driver_knows_it(shell, tools):
    nvidia.install(tools, smi=nvidia.smi())
    text = devices(tools, shell)
    first, second = device_metrics.parse(text)[0], device_metrics.parse(text)[1]
    assert (first.uuid, second.uuid) == nvidia.UUIDS
    assert first.values == {
        "gpu_util": 73, "fb_used": 8000, "gpu_temp": 60, "power_usage": 200.5, "mem_copy_util": 31, "enc_util": 0,
        "dec_util": 4, "fb_free": 8000, "memory_temp": 55, "sm_clock": 1380, "memory_clock": 877,
        "clock_throttle_reasons": 4, "ecc_sbe_volatile_total": 7, "ecc_dbe_volatile_total": 0,
        "ecc_sbe_aggregate_total": 123456789012, "ecc_dbe_aggregate_total": 1, "retired_pages_sbe": 2,
        "retired_pages_dbe": 0, "retired_pages_pending": 0,
    }  # fmt: skip
    # [N/A], [Not Supported], N/A, [Unknown Error], [GPU is lost]: what is not known is not there.
    assert second.values == {"gpu_util": 0, "fb_used": 100, "gpu_temp": 40, "fb_free": 15900}
    busy = [(one.index, one.busy_percent, one.memory_total_mib) for one in usage.parse(text).devices]
    assert busy == [(0, 73, 16000), (1, 0, 16000)]


def test_one_call_is_made_when_it_is_known_what_the_driver_knows(tools):
    nvidia.install(tools, smi=nvidia.smi(before=NOTE))
    known = learnt(devices(tools))
    assert [call.split()[0].partition("=")[0] for call in calls(tools)] == ["--help-query-gpu", "--query-gpu"]
    text = devices(tools, **known)
    assert [call.split()[0].partition("=")[0] for call in calls(tools)] == ["--query-gpu"]
    assert device_metrics.parse(text)[0].values["sm_clock"] == 1380


def test_the_rest_is_read_when_an_old_driver_does_not_know_a_field(tools):
    newer = {"utilization.encoder", "utilization.decoder", "temperature.memory"}
    old = {field: values for field, values in nvidia.CARDS.items() if field not in newer}
    nvidia.install(tools, smi=nvidia.smi(old))
    values = device_metrics.parse(devices(tools))[0].values
    assert values["memory_clock"] == 877
    assert not {"enc_util", "dec_util", "memory_temp"} & values.keys()


def test_new_names_of_a_field_are_understood_when_a_driver_has_only_these(tools):
    cards = dict(nvidia.CARDS)
    cards["clocks_event_reasons.active"] = cards.pop("clocks_throttle_reasons.active")
    nvidia.install(tools, smi=nvidia.smi(cards))
    assert device_metrics.parse(devices(tools))[0].values["clock_throttle_reasons"] == 4


def test_the_basic_figures_are_read_when_a_driver_lists_what_it_refuses(tools):
    basic = {field: nvidia.CARDS[field] for field in device_metrics.BASIC}
    nvidia.install(tools, smi=nvidia.smi(basic, listed=nvidia.CARDS))
    text = devices(tools)
    assert device_metrics.parse(text)[0].values == {
        "gpu_util": 73,
        "fb_used": 8000,
        "gpu_temp": 60,
        "power_usage": 200.5,
    }
    assert learnt(text) == {"gpu_fields": BASIC}  # so it is not tried again at once
    # A driver that was exchanged has to be asked anew.
    assert learnt(devices(tools, gpu_fields=f"{BASIC},uuid")) == {"gpu_fields": ""}


@pytest.mark.parametrize(
    "words",
    [
        "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 535.129",
        "No devices were found",
        "Unable to determine the device handle for GPU 0000:83:00.0: GPU is lost.  Reboot the system.",
        "",
    ],
)
def test_nothing_is_claimed_when_the_driver_is_broken(words, tools):
    nvidia.install(
        tools,
        smi=f"#!/bin/sh\ncat <<'END'\n{words}\nEND\nexit 9\n",
        dcgmi=f"#!/bin/sh\necho '{words}'\nexit 255\n",
    )
    text = devices(tools) + profile(tools)
    assert device_metrics.parse(text) == {}
    assert usage.parse(text).devices == ()
    assert learnt(text) == {"gpu_fields": "", "dcgm_fields": "none"}


@pytest.mark.parametrize("shell", SHELLS, ids="-".join)
def test_what_dcgm_has_goes_to_the_device_of_the_same_uuid_when_it_counts_otherwise(shell, tools):
    nvidia.install(tools, smi=nvidia.smi(), dcgmi=nvidia.dcgmi())
    # The stand-in can watch neither all of the first group nor all of the others.
    groups = "156,202,230 200,201 409,419 1001,1002,1004 1006,1007"
    script = re.sub(r"^dcgm_groups='[^']*'", f"dcgm_groups='{groups}'", device_metrics.profile_script())
    text = run(tools, script, shell)
    assert learnt(text) == {"dcgm_fields": "156,202,230,200,201,1001,1002,1004"}
    found = device_metrics.parse(devices(tools, shell) + text)
    for index in (0, 1):
        values = found[index].values
        wanted = {
            "total_energy_consumption": 156,
            "pcie_rx_throughput": 201,
            "sm_active": 1002,
            "tensor_active": 1004,
        }
        assert {name: values[name] for name in wanted} == {
            name: float(f"{number}.{index}") for name, number in wanted.items()
        }
        assert "xid_errors" not in values  # N/A
        assert "fp64_active" not in values  # cannot be watched
    assert found[0].values["power_usage"] == 200.5


def test_dcgm_is_asked_once_when_it_is_known_what_it_knows(tools):
    every = [number for group in device_metrics.GROUPS for number in group]
    nvidia.install(tools, smi=nvidia.smi(), dcgmi=nvidia.dcgmi(every, before=NOTE))
    first = profile(tools)
    assert len(calls(tools)) == len(device_metrics.GROUPS) + 1
    assert device_metrics.parse(devices(tools) + first)[0].values.keys() >= {"fp16_active", "nvlink_rx_bytes"}
    profile(tools, **learnt(first))
    assert calls(tools) == [f"dmon -e 54,{','.join(map(str, every))} -d 1000 -c 3"]
    profile(tools, dcgm_fields="none")
    assert calls(tools) == []


@pytest.mark.parametrize("has_dcgm", [False, True])
def test_nvidia_smi_tells_the_traffic_when_dcgm_does_not_run(has_dcgm, tools):
    nvidia.install(tools, smi=nvidia.smi())
    if has_dcgm:
        nvidia.install(
            tools,
            dcgmi="#!/bin/sh\necho 'Error: unable to establish a connection to the specified host'\nexit 255\n",
        )
    found = device_metrics.parse(devices(tools) + profile(tools))
    names = ("pcie_replay_counter", "pcie_rx_throughput", "pcie_tx_throughput")
    assert [found[0].values.get(name) for name in names] == [3, 12000, 40000]
    assert [found[1].values.get(name) for name in names] == [None, None, None]


DCGM_ROWS = """\
gpu 0, A, 1, 2, 3, 4, 5
gpu 7, A, 1, 2, 3, 4, 5
columns dcgm 1001,1002,230
dcgm 7 N/A 0.888 N/A N/W
dcgm 0 N/A N/A N/A 0
dcgm 7 N/A N/A 0.777 9223372036854775792
dcgm 0 N/A 140737488355328.000 0.5 2147483632
dcgm 3 N/A 0.1 0.2 0
dcgm 0 N/A 0.3
dcgm 0 N/A 0.3 0.3 0.3 0.3
dcgm 99999999999999999999 N/A 0.3 0.3 0.3
dcgm
columns dmon rxpci
dmon 0 1 2
dmon x 1
dmon
"""


def test_figures_of_several_rows_complete_each_other_when_each_has_gaps():
    found = device_metrics.parse(DCGM_ROWS)
    assert found.keys() == {0, 7}
    assert {name: found[7].values.get(name) for name in ("gr_engine_active", "sm_active", "xid_errors")} == {
        "gr_engine_active": 0.888,
        "sm_active": 0.777,
        "xid_errors": None,
    }
    assert "gr_engine_active" not in found[0].values
    assert (found[0].values["sm_active"], found[0].values["xid_errors"]) == (0.5, 0)


@pytest.mark.parametrize(
    "text",
    [
        "columns gpu index,name\ngpu 0",
        "columns gpu \ngpu 0, a",
        "columns\ngpu x, y",
        "columns gpu\ngpu ,,,,,,,",
        "gpu 0, only, three",
        "gpu -1, a, 1, 2, 3, 4, 5",
        "gpu ²,a,1,2,3,4,5",
        "dcgm 0 1 2\ndmon 0 1",
        f"columns gpu {BASIC}\ngpu 0, a, 1, 2",
    ],
)
def test_a_line_is_skipped_when_it_is_none_of_the_tools(text):
    assert all(not one.values for one in device_metrics.parse(text).values())
    assert usage.parse(text).devices == ()


WORDS = [
    "gpu",
    "dcgm",
    "dmon",
    "columns",
    BASIC,
    "1002",
    "0",
    "-1",
    "N/A",
    ",",
    ", ",
    " ",
    "\n",
    "9" * 400,
    "-" + "9" * 400,
]


@given(some.lists(some.sampled_from(WORDS) | some.text(max_size=3), max_size=30).map("".join))
def test_nothing_breaks_when_a_node_sends_anything(text):
    for one in device_metrics.parse(text).values():
        assert all(abs(value) < 2**63 for value in one.values.values())
    usage.parse(text)


def test_a_name_stays_whole_when_it_has_commas_and_more_columns_follow():
    text = f"columns gpu {BASIC},memory.free\ngpu 3, Tesla, the 2nd, 1, 2, 30, 4, 5, 28\n"
    (one,) = usage.parse(text).devices
    assert (one.index, one.model, one.memory_total_mib) == (3, "Tesla, the 2nd", 30)
    assert device_metrics.parse(text)[3].values["fb_free"] == 28


def test_no_more_than_before_is_asked_when_nobody_wants_details(tools):
    nvidia.install(tools, smi=nvidia.smi(before=NOTE))
    text = run(tools, usage.devices_script())
    assert calls(tools) == [f"--query-gpu={BASIC} --format=csv,noheader,nounits"]
    assert "known" not in text
