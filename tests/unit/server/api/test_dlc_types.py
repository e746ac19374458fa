"""Requests of DLC's clients whose values have the wrong type: refused by the name of their key, never half understood."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from trainyard.lib.errors import InvalidError
from trainyard.server.api.dlc.translate import spec_of

BODY: dict[str, Any] = {
    "DisplayName": "n",
    "JobType": "BatchJob",
    "UserCommand": "true",
    "WorkspaceId": "ws1",
    "Priority": 1,
    "CodeSource": {"CodeSourceId": "code", "Branch": "", "Commit": ""},
    "DataSources": [{"DataSourceId": "data1", "MountPath": ""}],
    "ThirdpartyLibs": ["numpy"],
    "Envs": {"A": "1"},
    "JobMaxRunningTimeMinutes": 0,
    "Settings": {
        "Tags": {"t": "1"},
        "JobReservedMinutes": 0,
        "EnableErrorMonitoringInAIMaster": True,
        "ErrorMonitoringArgs": "",
        "Driver": "",
        "MaxRestartTimes": 0,
    },
    "ElasticSpec": {"EnableElasticTraining": True, "MinParallelism": 1, "MaxParallelism": 2},
    "JobSpecs": [
        {
            "Type": "Worker",
            "PodCount": 2,
            "Image": "",
            "EcsSpec": "",
            "UserCommand": "",
            "RestartPolicy": "",
            "UseSpotInstance": False,
            "ResourceConfig": {"CPU": "1", "GPU": "0", "GPUType": "", "Memory": "1", "SharedMemory": "1"},
            "AssignNodeSpec": {"EnableAssignNode": True, "NodeNames": ""},
            "ImageConfig": {"Username": "u", "Password": "p"},
        }
    ],
}
NUMBERS = {"Priority", "JobMaxRunningTimeMinutes", "JobReservedMinutes", "MaxRestartTimes", "MinParallelism",
           "MaxParallelism", "PodCount", "CPU", "GPU", "Memory", "SharedMemory"}  # fmt: skip
SWITCHES = {"EnableErrorMonitoringInAIMaster", "EnableElasticTraining", "UseSpotInstance", "EnableAssignNode"}


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    below = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for key, one in below for found in places(one, (*path, key)))]


def changed(path: tuple[Any, ...], value: object) -> dict[str, Any]:
    body = copy.deepcopy(BODY)
    holder: Any = body
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = value
    return body


LEAVES = [
    path for path in places(BODY)[1:] if not isinstance(path[-1], int) and path[-1] not in {"Tags", "Envs"}
]


@pytest.mark.parametrize("path", LEAVES, ids=lambda path: ".".join(map(str, path)))
def test_a_request_is_refused_by_the_name_of_a_key_when_its_value_is_of_no_use(path):
    is_number, is_switch = path[-1] in NUMBERS, path[-1] in SWITCHES
    wrong: list[object] = [[[1]], 7 if is_switch else [1]]
    if is_number:
        wrong += ["²", "abc", -1, 10**400, "9" * 400, "nan", {"a": 1}, True]
    if is_switch:
        wrong += ["abc", {"a": 1}]
    for value in wrong:
        with pytest.raises(InvalidError) as caught:
            spec_of(changed(path, value))
        assert str(path[-1]) in caught.value.message


def test_the_request_that_the_others_are_made_of_is_a_job():
    assert spec_of(BODY).roles[0].replicas == 2


@pytest.mark.parametrize(
    ("written", "is_preemptible"), [("true", True), ("false", False), (True, True), (None, False)]
)
def test_a_switch_means_the_same_when_it_is_written_as_a_text(written, is_preemptible):
    assert spec_of(changed(("JobSpecs", 0, "UseSpotInstance"), written)).preemptible is is_preemptible


def test_roles_are_refused_when_their_restart_policies_differ():
    body = copy.deepcopy(BODY)
    body |= {"JobType": "PyTorchJob", "ElasticSpec": {}}
    body["JobSpecs"] = [
        {"Type": "Master", "PodCount": 1, "RestartPolicy": "Never"},
        {"Type": "Worker", "PodCount": 1, "RestartPolicy": "OnFailure"},
    ]
    with pytest.raises(InvalidError, match="Never, OnFailure"):
        spec_of(body)
