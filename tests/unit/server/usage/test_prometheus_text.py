"""The text for Prometheus, from values alone; that promtool is content with it is said in integration/platform."""

from __future__ import annotations

import re
from typing import Any

import pytest

from trainyard.runtime import device_metrics
from trainyard.server.records.nodes import NodeRecord
from trainyard.server.records.tasks import TaskRecord
from trainyard.server.records.workloads import WorkloadRecord
from trainyard.server.usage import prometheus_text
from trainyard.server.usage.overview import CurrentTask, Overview
from trainyard.spec.workload import RoleSpec, WorkloadSpec

VALUES = {"cpu": 1.0, "memory": 2.0, "in": 0.0, "out": 0.0, "read": 0.0, "write": 0.0}
NAME = 'a "b" \\ \n中文'


def overview(told: Any = (), **of_node: Any) -> Overview:
    job = WorkloadRecord(
        id="dlc1", name=NAME, kind="job", workspace_id="w", user_id="u", submitted_at=1.0,
        spec=WorkloadSpec(name=NAME, command="x", roles=(RoleSpec(devices=1),)),
    )  # fmt: skip
    task = TaskRecord(
        workload_id="dlc1", attempt=1, name="worker-0", role="worker", number=0, rank=0, node="n1"
    )
    wanted = {"state": "ready", "desired": "ready"} | of_node
    node = NodeRecord(name="n1", created_at=1.0, devices={"V100": 8}, **wanted)
    return Overview(
        tasks=(CurrentTask(workload=job, task=task, values=VALUES, figures=dict(told)),),
        nodes={}, records=(node,), held={"n1": {"V100": 3}}, states={}, changes={},
        workspace_names={"w": "default"}, user_mails={"u": "a@b.example"},
    )  # fmt: skip


def lines(text: str, name: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith(f"{name}{{")]


def test_every_figure_that_is_read_has_a_name_when_it_is_told():
    assert set(prometheus_text._FIGURES) == device_metrics.NAMES


def test_a_figure_is_absent_when_nobody_tells_it():
    text = prometheus_text.render(overview())
    assert "task_dcgm_" not in text
    text = prometheus_text.render(overview({"3": {"gpu_temp": 60.0, "smell": 1.0}}))
    assert set(re.findall(r"task_dcgm_\w+", text)) == {"task_dcgm_gpu_temp"}
    (line,) = lines(text, "task_dcgm_gpu_temp")
    assert 'minor_number="3",device_str="V100"} 60' in line
    assert 'job_name="a \\"b\\" \\\\ \\n中文"' in line
    assert "uuid" not in line


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (123456789012.0, "123456789012"),
        (0.0, "0"),
        (200.5, "200.5"),
        (1 / 3, "0.3333333333"),
        (1e18, "1e+18"),
    ],
)
def test_a_counter_is_told_whole_when_it_is_large(value, shown):
    (line,) = lines(
        prometheus_text.render(overview({"0": {"power_usage": value, "uuid": "GPU-1"}})),
        "task_dcgm_power_usage",
    )
    assert line.endswith(f'uuid="GPU-1"}} {shown}')


@pytest.mark.parametrize(
    ("of_node", "available"),
    [
        ({}, 5),
        ({"unhealthy": {"V100": [7, 6]}}, 3),
        ({"unhealthy": {"V100": list(range(8))}}, 0),
        ({"desired": "cordoned"}, 0),
        ({"state": "lost"}, 0),
    ],
)
def test_devices_are_available_when_a_job_could_have_them(of_node, available):
    text = prometheus_text.render(overview(address={"backend": "ssh", "host": "10.0.0.7"}, **of_node))
    labels = 'instance="n1",device_str="V100",host_ip="10.0.0.7"'
    assert lines(text, "k8s_node_device_available") == [f"k8s_node_device_available{{{labels}}} {available}"]
    assert lines(text, "k8s_node_device_used") == [f"k8s_node_device_used{{{labels}}} 3"]
    reserved = len(of_node.get("unhealthy", {}).get("V100", ()))
    assert lines(text, "k8s_node_device_reserved") == [f"k8s_node_device_reserved{{{labels}}} {reserved}"]
