"""What Prometheus reads: the overview of services/metrics.py as text. Names and labels are those of the older platforms.

Their misspellings (`preemptive_availabe`) stay: people's dashboards ask for them. What ends in `_total` and is no counter has
no type, because a gauge must not be called so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from trainyard.server.services.metrics import Now, Overview, has_own_network
from trainyard.server.store.latencies import BOUNDS
from trainyard.server.store.nodes import NodeRecord
from trainyard.spec.workload import RoleSpec, State, role_of

MIB = 1 << 20
TYPE = "text/plain; version=0.0.4; charset=utf-8"

CHANGES = "job_state_change_latency_seconds"

Sample = tuple[str, Mapping[str, str], float]

_HELP: Mapping[str, tuple[str, str]] = {
    "task_cpu_percent": ("gauge", "Use of processors by a task, in percent of one core."),
    "task_mem_usage_byte": ("gauge", "Memory of a task."),
    "task_mem_limit_byte": ("gauge", "Memory that a task may use; 0 where it has no limit."),
    "task_mem_usage_percent": ("gauge", "Memory of a task in percent of its limit, or of its node."),
    "task_net_in_byte": (
        "gauge",
        "Bytes that a task receives in a second; all that its node does where scope is node.",
    ),
    "task_net_out_byte": (
        "gauge",
        "Bytes that a task sends in a second; all that its node does where scope is node.",
    ),
    "task_block_in_byte": ("gauge", "Bytes that a task reads from disks in a second."),
    "task_block_out_byte": ("gauge", "Bytes that a task writes to disks in a second."),
    "task_device_percent": ("gauge", "Use of a device of a task."),
    "task_device_mem_percent": ("gauge", "Memory in use of a device of a task."),
    "k8s_node_device_total": ("untyped", "Devices of a node."),
    "k8s_node_device_available": ("gauge", "Devices of a node that nobody has."),
    "k8s_vc_device_total": ("untyped", "Devices that a workspace may use."),
    "k8s_vc_device_available": ("gauge", "Devices that are free for a workspace."),
    "k8s_vc_device_preemptive_availabe": ("gauge", "Devices that are free, or held by what gives way."),
    "k8s_vc_device_unschedulable": ("gauge", "Devices on nodes that take no new work."),
    CHANGES: (
        "histogram",
        "From a job's submission to its first start (running), and from there to its end (finished).",
    ),
    "trainyard_jobs": ("gauge", "Jobs in each state."),
    "trainyard_node_cpu_cores": ("gauge", "Cores of a node that are busy."),
    "trainyard_node_memory_bytes": ("gauge", "Memory of a node that is in use."),
    "trainyard_node_up": ("gauge", "Whether a node answers."),
}


def render(overview: Overview) -> str:
    """The whole text."""
    samples: dict[str, list[Sample]] = {name: [] for name in _HELP}
    nodes = {one.name: one for one in overview.records}
    for one in overview.tasks:
        for sample in _of_task(one, overview, nodes):
            samples[sample[0]].append(sample)
    for sample in (*_of_nodes(overview), *_of_workspaces(overview)):
        samples[sample[0]].append(sample)
    samples[CHANGES] += _of_changes(overview)
    for state in sorted(State):  # those with none too: who watches for failures sees the first of them
        count = overview.states.get(state.value, 0)
        samples["trainyard_jobs"].append(("trainyard_jobs", {"state": state.value}, count))
    lines = []
    for name, found in samples.items():
        kind, text = _HELP[name]
        lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}", *map(_line, found)]
    return "\n".join(lines) + "\n"


def _of_changes(overview: Overview) -> Iterable[Sample]:
    for state, found in overview.changes.items():
        labels = {"current_state": state}
        for bound, count in zip(BOUNDS, found.counts, strict=True):
            yield f"{CHANGES}_bucket", {**labels, "le": f"{bound:g}"}, count
        yield f"{CHANGES}_bucket", {**labels, "le": "+Inf"}, found.count
        yield f"{CHANGES}_sum", labels, found.total
        yield f"{CHANGES}_count", labels, found.count


def _line(sample: Sample) -> str:
    name, labels, value = sample
    shown = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
    return f"{name}{{{shown}}} {value:.10g}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _of_task(one: Now, overview: Overview, nodes: Mapping[str, NodeRecord]) -> Iterable[Sample]:
    values, job = one.values, one.workload
    role = role_of(job.spec, one.task.role)
    node = nodes.get(one.task.node)
    labels = {
        "job_id": job.id,
        "job_name": job.name,
        "pod_name": f"{job.id}-{one.task.name}",
        "instance": one.task.node,
        "user_email": overview.user_mails.get(job.user_id, ""),
        "vc_name": overview.workspace_names.get(job.workspace_id, ""),
    }
    memory, limit = values["memory"] * MIB, role.memory_mib * MIB
    whole = limit or (node.memory_mib * MIB if node is not None else 0)
    yield "task_cpu_percent", labels, values["cpu"] * 100
    yield "task_mem_usage_byte", labels, memory
    yield "task_mem_limit_byte", labels, limit
    yield "task_mem_usage_percent", labels, 100 * memory / whole if whole else 0.0
    scoped = {**labels, "scope": "task" if has_own_network(values) else "node"}
    yield "task_net_in_byte", scoped, values["in"]
    yield "task_net_out_byte", scoped, values["out"]
    yield "task_block_in_byte", labels, values["read"]
    yield "task_block_out_byte", labels, values["write"]
    for index, device in values.get("devices", {}).items():
        own = {**labels, "minor_number": index, "device_str": kind_of(role, node)}
        if device.get("busy") is not None:
            yield "task_device_percent", own, device["busy"]
        if device.get("memory") is not None and device.get("total"):
            yield "task_device_mem_percent", own, 100 * device["memory"] / device["total"]


def kind_of(role: RoleSpec, node: NodeRecord | None) -> str:
    """The type of a task's devices: who named none has the node's first."""
    return role.device or next(iter(node.devices if node is not None else ()), "")


def _of_nodes(overview: Overview) -> Iterable[Sample]:
    for node in overview.records:
        labels = {"instance": node.name}
        yield "trainyard_node_up", labels, float(node.state == "ready")
        values = overview.nodes.get(node.name)
        if values is not None:
            yield "trainyard_node_cpu_cores", labels, values["cpu"]
            yield "trainyard_node_memory_bytes", labels, values["memory"] * MIB
        for kind, count in node.devices.items():
            own = {**labels, "device_str": kind}
            yield "k8s_node_device_total", own, count
            yield "k8s_node_device_available", own, count - given(overview.held, node, kind)


def given(held: Mapping[str, Mapping[str, int]], node: NodeRecord, kind: str) -> int:
    """How many devices of a type are given away; who named no type has the node's first."""
    here = held.get(node.name, {})
    first = next(iter(node.devices), "")
    return here.get(kind, 0) + (here.get("", 0) if kind == first else 0)


def _of_workspaces(overview: Overview) -> Iterable[Sample]:
    """All devices, seen from each workspace; what its quota leaves of them is the quota's own table."""
    totals: dict[str, list[int]] = {}
    for node in overview.records:
        is_open = node.state == "ready" and node.desired == "ready"
        for kind, count in node.devices.items():
            total = totals.setdefault(kind, [0, 0, 0])
            total[0] += count
            total[1] += count - given(overview.held, node, kind) if is_open else 0
            total[2] += 0 if is_open else count
    yielding = _giving_way(overview)
    for name in overview.workspace_names.values():
        for kind, (total_count, free, closed) in totals.items():
            labels = {"vc_name": name, "device_str": kind}
            yield "k8s_vc_device_total", labels, total_count
            yield "k8s_vc_device_available", labels, free
            yield "k8s_vc_device_preemptive_availabe", labels, free + yielding.get(kind, 0)
            yield "k8s_vc_device_unschedulable", labels, closed


def _giving_way(overview: Overview) -> dict[str, int]:
    nodes = {one.name: one for one in overview.records}
    found: dict[str, int] = {}
    for one in overview.tasks:
        if one.workload.preemptible and one.task.devices:
            kind = kind_of(role_of(one.workload.spec, one.task.role), nodes.get(one.task.node))
            found[kind] = found.get(kind, 0) + len(one.task.devices)
    return found
