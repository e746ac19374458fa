"""What Prometheus reads: the overview of usage/metrics.py as text. Names and labels are those of the older platforms.

Their misspellings (`preemptive_availabe`) and odd names (`pcie_replay_counter`) stay: people's dashboards ask for them. What ends
in `_total` and is no counter has no type, because a gauge must not be called so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from trainyard.server.records.latencies import BOUNDS
from trainyard.server.records.nodes import NodeRecord
from trainyard.server.usage.overview import CurrentTask, Overview, has_own_network
from trainyard.spec.workload import RoleSpec, State, role_of

MIB = 1 << 20
TYPE = "text/plain; version=0.0.4; charset=utf-8"

CHANGES = "job_state_change_latency_seconds"
FIGURE = "task_dcgm_"

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
    "k8s_node_device_available": ("gauge", "Devices of a node that a job could have now."),
    "k8s_node_device_used": ("gauge", "Devices of a node that jobs have."),
    "k8s_node_device_reserved": ("gauge", "Devices of a node that nobody gets, because they are not well."),
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
# Of devices of tasks, as NVIDIA's tools tell them; what is not told of any is left out altogether.
_FIGURES: Mapping[str, tuple[str, str]] = {
    "sm_clock": ("gauge", "Clock of the multiprocessors in MHz."),
    "memory_clock": ("gauge", "Clock of the memory in MHz."),
    "clock_throttle_reasons": ("gauge", "What keeps clocks low, as bits of NVML."),
    "gpu_temp": ("gauge", "Temperature in degrees Celsius."),
    "memory_temp": ("gauge", "Temperature of the memory in degrees Celsius."),
    "power_usage": ("gauge", "Power in watts."),
    "total_energy_consumption": ("gauge", "Energy since the driver was loaded, in millijoules."),
    "gpu_util": ("gauge", "Percent of the time in which anything ran."),
    "mem_copy_util": ("gauge", "Percent of the time in which memory was read or written."),
    "enc_util": ("gauge", "Use of the encoder in percent."),
    "dec_util": ("gauge", "Use of the decoder in percent."),
    "fb_free": ("gauge", "Free memory in MiB."),
    "fb_used": ("gauge", "Memory in use in MiB."),
    "pcie_tx_throughput": ("gauge", "Sent over PCIe, in KB by the second."),
    "pcie_rx_throughput": ("gauge", "Received over PCIe, in KB by the second."),
    "pcie_replay_counter": ("gauge", "What was sent again over PCIe."),
    "xid_errors": ("gauge", "The number of the last XID error; 0 where there was none."),
    "power_violation": ("gauge", "For how long power kept clocks low, in DCGM's unit."),
    "thermal_violation": ("gauge", "For how long heat kept clocks low, in DCGM's unit."),
    "sync_boost_violation": ("gauge", "For how long other devices kept clocks low, in DCGM's unit."),
    "board_limit_violation": ("gauge", "For how long the board's limit kept clocks low, in DCGM's unit."),
    "low_util_violation": ("gauge", "For how long little use kept clocks low, in DCGM's unit."),
    "reliability_violation": ("gauge", "For how long reliability kept clocks low, in DCGM's unit."),
    "app_clock_violation": ("gauge", "For how long anything kept clocks low, in DCGM's unit."),
    "ecc_sbe_volatile_total": ("counter", "Corrected memory errors since the driver was loaded."),
    "ecc_dbe_volatile_total": ("counter", "Uncorrected memory errors since the driver was loaded."),
    "ecc_sbe_aggregate_total": ("counter", "Corrected memory errors ever."),
    "ecc_dbe_aggregate_total": ("counter", "Uncorrected memory errors ever."),
    "retired_pages_sbe": ("gauge", "Pages out of use because of corrected errors."),
    "retired_pages_dbe": ("gauge", "Pages out of use because of uncorrected errors."),
    "retired_pages_pending": ("gauge", "Whether pages go out of use with the next start."),
    "nvlink_flit_crc_error_count_total": ("counter", "Checksum errors of NVLink's flow control."),
    "nvlink_data_crc_error_count_total": ("counter", "Checksum errors of NVLink's data."),
    "nvlink_replay_error_count_total": ("counter", "What was sent again over NVLink."),
    "nvlink_recovery_error_count_total": ("counter", "Recoveries of NVLink."),
    "nvlink_bandwidth_total": ("untyped", "DCGM's figure for all lanes of NVLink."),
    "gr_engine_active": ("gauge", "Share of the time in which anything ran (0 to 1)."),
    "sm_active": ("gauge", "Share of the time in which a multiprocessor had work (0 to 1)."),
    "sm_occupancy": ("gauge", "Share of the warps that multiprocessors could hold (0 to 1)."),
    "tensor_active": ("gauge", "Share of the cycles in which tensor cores worked (0 to 1)."),
    "dram_active": ("gauge", "Share of the cycles in which memory was read or written (0 to 1)."),
    "fp64_active": ("gauge", "Share of the cycles in which fp64 units worked (0 to 1)."),
    "fp32_active": ("gauge", "Share of the cycles in which fp32 units worked (0 to 1)."),
    "fp16_active": ("gauge", "Share of the cycles in which fp16 units worked (0 to 1)."),
    "pcie_tx_bytes": ("gauge", "Bytes sent over PCIe by the second."),
    "pcie_rx_bytes": ("gauge", "Bytes received over PCIe by the second."),
    "nvlink_tx_bytes": ("gauge", "Bytes sent over NVLink by the second."),
    "nvlink_rx_bytes": ("gauge", "Bytes received over NVLink by the second."),
}


def render(overview: Overview) -> str:
    """The whole text."""
    samples: dict[str, list[Sample]] = {name: [] for name in _HELP}
    figures: dict[str, list[Sample]] = {name: [] for name in _FIGURES}
    nodes = {one.name: one for one in overview.records}
    for one in overview.tasks:
        for sample in _of_task(one, overview, nodes):
            samples[sample[0]].append(sample)
        for name, sample in _of_devices(one, overview, nodes):
            figures[name].append(sample)
    for sample in (*_of_nodes(overview), *_of_workspaces(overview)):
        samples[sample[0]].append(sample)
    samples[CHANGES] += _of_changes(overview)
    for state in sorted(State):  # those with none too: who watches for failures sees the first of them
        count = overview.states.get(state.value, 0)
        samples["trainyard_jobs"].append(("trainyard_jobs", {"state": state.value}, count))
    lines: list[str] = []
    for name, found in samples.items():
        lines += _family(name, *_HELP[name], found)
    for name, found in figures.items():
        if found:
            lines += _family(FIGURE + name, *_FIGURES[name], found)
    return "\n".join(lines) + "\n"


def _family(name: str, kind: str, text: str, found: Iterable[Sample]) -> list[str]:
    return [f"# HELP {name} {text}", f"# TYPE {name} {kind}", *map(_line, found)]


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
    # A counter is told whole: what it grew by is lost in ten digits.
    is_whole = float(value).is_integer() and abs(value) < 1e15
    return f"{name}{{{shown}}} {value:.0f}" if is_whole else f"{name}{{{shown}}} {value:.10g}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _of_task(one: CurrentTask, overview: Overview, nodes: Mapping[str, NodeRecord]) -> Iterable[Sample]:
    values = one.values
    role = role_of(one.workload.spec, one.task.role)
    node = nodes.get(one.task.node)
    labels = _labels(one, overview)
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
        own = labels | _device_labels(one, index, nodes)
        if device.get("busy") is not None:
            yield "task_device_percent", own, device["busy"]
        if device.get("memory") is not None and device.get("total"):
            yield "task_device_mem_percent", own, 100 * device["memory"] / device["total"]


def _of_devices(
    one: CurrentTask, overview: Overview, nodes: Mapping[str, NodeRecord]
) -> Iterable[tuple[str, Sample]]:
    """Each with its name in `_FIGURES`."""
    for index, device in one.figures.items():
        own = _labels(one, overview) | _device_labels(one, index, nodes)
        if device.get("uuid"):
            own["uuid"] = device["uuid"]
        for name in _FIGURES:
            if name in device:
                yield name, (FIGURE + name, own, device[name])


def _labels(one: CurrentTask, overview: Overview) -> dict[str, str]:
    job = one.workload
    return {
        "job_id": job.id,
        "job_name": job.name,
        "pod_name": f"{job.id}-{one.task.name}",
        "instance": one.task.node,
        "user_email": overview.user_mails.get(job.user_id, ""),
        "vc_name": overview.workspace_names.get(job.workspace_id, ""),
    }


def _device_labels(one: CurrentTask, index: str, nodes: Mapping[str, NodeRecord]) -> dict[str, str]:
    role = role_of(one.workload.spec, one.task.role)
    return {"minor_number": index, "device_str": kind_of(role, nodes.get(one.task.node))}


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
            if node.address.get("host"):
                own["host_ip"] = str(node.address["host"])
            used, reserved = given(overview.held, node, kind), len(node.unhealthy.get(kind, ()))
            yield "k8s_node_device_total", own, count
            yield "k8s_node_device_available", own, max(0, count - used - reserved) if is_open(node) else 0
            yield "k8s_node_device_used", own, used
            yield "k8s_node_device_reserved", own, reserved


def is_open(node: NodeRecord) -> bool:
    """Whether it takes new work."""
    return node.state == "ready" and node.desired == "ready"


def given(held: Mapping[str, Mapping[str, int]], node: NodeRecord, kind: str) -> int:
    """How many devices of a type are given away; who named no type has the node's first."""
    here = held.get(node.name, {})
    first = next(iter(node.devices), "")
    return here.get(kind, 0) + (here.get("", 0) if kind == first else 0)


def _of_workspaces(overview: Overview) -> Iterable[Sample]:
    """All devices, seen from each workspace; what its quota leaves of them is the quota's own table."""
    totals: dict[str, list[int]] = {}
    for node in overview.records:
        for kind, count in node.devices.items():
            total = totals.setdefault(kind, [0, 0, 0])
            total[0] += count
            total[1] += count - given(overview.held, node, kind) if is_open(node) else 0
            total[2] += 0 if is_open(node) else count
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
