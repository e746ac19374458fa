"""`top`: the resource use of machines, shown once or live."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict

import click

from trainyard.cli.duration_option import duration_option
from trainyard.cli.invocation import current
from trainyard.cli.machines import machine_lookup
from trainyard.cli.machines.machine_lookup import MachineLookup
from trainyard.cli.terminal.live_screen import can_watch, watch
from trainyard.cli.terminal.table import Column, Table
from trainyard.cli.verb import Verb, names_argument
from trainyard.lib.aio import gather_all
from trainyard.lib.errors import Error
from trainyard.runtime.usage import DeviceUsage, Usage, fetch_usage
from trainyard.spec.machine import Machine, MachineState

JOB_ID = re.compile(r"(?:job|dlc)[0-9a-z]{13}")  # dlc: as `dlc` shows them
Reading = Usage | str  # or why there is none


@click.command("top", cls=Verb)
@click.option("--once", is_flag=True, help="Show it once, as without a terminal.")
@duration_option("--interval", "Seconds between two looks.  [default: 2]")
@names_argument(many=True, required=False)
def top_command(names: tuple[str, ...], once: bool, interval: float | None) -> int:
    """Show what machines use: processors, memory, GPUs. All that run, or those named. `q` or Ctrl-C ends it.

    On local machines, CPU and Memory are those of the machine's own processes. Ids of jobs show the tasks of a
    platform's jobs, as `trainyard jobs top` does.
    """
    if names and all(JOB_ID.fullmatch(name) for name in names):
        from trainyard.cli.jobs.job_top import show

        return show(names, once=once, interval=interval)
    invocation = current()
    output = invocation.output

    async def work(machines: MachineLookup) -> int:
        chosen = await (machines.select(names) if names else machines.machines())
        running = [machine for machine in chosen if machine.state is MachineState.RUNNING or names]
        readings = await _read(machines, running, {})
        if invocation.json:
            output.json(_records(running, readings))
            return 0
        if not running:
            output.line("no machines run")
            return 0
        if once or not can_watch(output):
            _table(running, readings).print(output)
            return 0

        def draw(found: dict[str, Reading]) -> str:
            lines = _table(running, found).lines(output, output.width)
            return "\n".join([output.paint(lines[0], "bold"), *lines[1 : output.rows - 1]])

        await watch(
            output, readings, lambda before: _read(machines, running, before), draw, interval=interval
        )
        return 0

    try:
        return machine_lookup.run(invocation, work)
    except KeyboardInterrupt:
        return 0


async def _read(
    machines: MachineLookup, running: Sequence[Machine], before: dict[str, Reading]
) -> dict[str, Reading]:
    async def one(machine: Machine) -> Usage:
        if machine.state is not MachineState.RUNNING:
            raise Error(str(machine.state))
        previous = before.get(machine.name)
        transport = machines.backend(machine.backend).transport(machine)
        return await fetch_usage(transport, previous if isinstance(previous, Usage) else None)

    results = await gather_all([one(machine) for machine in running])
    readings: dict[str, Reading] = {}
    for machine, result in zip(running, results, strict=True):
        if isinstance(result, (Error, TimeoutError)):
            readings[machine.name] = getattr(result, "message", "") or "does not answer"
        elif isinstance(result, BaseException):
            raise result
        else:
            readings[machine.name] = result
    return readings


def _table(running: Sequence[Machine], readings: dict[str, Reading]) -> Table:
    columns = [
        Column("Name"),
        Column("CPU%", right=True),
        Column("Memory", right=True),
        Column("Load", right=True, drop=2),
        Column("Disk", right=True, drop=1),
        Column("GPU"),
        Column("GPU%", right=True),
        Column("GPU memory", right=True, drop=3),
    ]
    rows: list[list[str]] = []
    for machine in running:
        reading = readings[machine.name]
        if isinstance(reading, str):
            rows.append([machine.name, "-", "-", "-", "-", reading, "", ""])
            continue
        devices: list[DeviceUsage | None] = list(reading.devices) or [None]
        for place, device in enumerate(devices):
            own = _own(machine.name, reading) if place == 0 else ["", "", "", "", ""]
            rows.append([*own, *_device(device)])
    return Table(columns, rows)


def _own(name: str, usage: Usage) -> list[str]:
    cpu = usage.cpu_percent if usage.own_cpu_percent is None else usage.own_cpu_percent
    memory = usage.memory_used_mib if usage.own_memory_mib is None else usage.own_memory_mib
    return [
        name,
        "-" if cpu is None else f"{cpu:.0f}",
        _of(memory, usage.memory_total_mib),
        f"{usage.load[0]:.1f}" if usage.load else "-",
        _of(usage.disk_used_mib, usage.disk_total_mib),
    ]


def _device(device: DeviceUsage | None) -> list[str]:
    if device is None:
        return ["-", "-", "-"]
    busy = "-" if device.busy_percent is None else f"{device.busy_percent:.0f}"
    label = f"{device.index} {device.model}".strip()
    return [label, busy, _of(device.memory_used_mib, device.memory_total_mib)]


def _of(used: int | None, total: int | None) -> str:
    if used is None:
        return "-"
    return f"{used / 1024:.1f}/{total / 1024:.0f}G" if total else f"{used / 1024:.1f}G"


def _records(running: Sequence[Machine], readings: dict[str, Reading]) -> list[dict[str, object]]:
    records: list[dict[str, object]] = []
    for machine in running:
        reading = readings[machine.name]
        known = {"error": reading} if isinstance(reading, str) else asdict(reading)
        known.pop("counters", None)
        records.append({"name": machine.name, "backend": machine.backend, **known})
    return records
