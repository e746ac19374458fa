"""`ls`: lists machines, in the format of the name under which the program was called."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime

import click

from trainyard.cli.invocation import current
from trainyard.cli.machines import machine_lookup
from trainyard.cli.machines.machine_lookup import MachineLookup
from trainyard.cli.terminal.output import Output, exit_code_of, printable, wrap
from trainyard.cli.terminal.table import Column, Table
from trainyard.cli.verb import Verb
from trainyard.spec.machine import Machine, MachineState

STATE_STYLES = {
    "running": "green",
    "stopped": "dim",
    "stopping": "yellow",
    "pending": "yellow",
    "lost": "red",
}
FAMILY_WIDTH = 120  # of the 1.0.x table: as wide as its dashes


@click.command("ls", cls=Verb)
@click.option("-a", "--all", "everybody", is_flag=True, help="Machines of everybody, with owner and id.")
@click.option("--stop", "with_stopped", is_flag=True, help="Stopped machines too.")
@click.option("--all-regions", is_flag=True, help="Wherever the account has machines.")
def ls_command(everybody: bool, with_stopped: bool, all_regions: bool) -> int:
    """List machines: name, age in hours, addresses, GPUs, type and state; in a cloud also what they cost."""
    invocation = current()
    output = invocation.output

    async def work(machines: MachineLookup) -> int:
        listed = await (
            machines.everybody(everywhere=all_regions, foreign=everybody)
            if everybody or all_regions
            else machines.machines()
        )
        if invocation.json:
            output.json([record(machine) for machine in listed if with_stopped or not _is_stopped(machine)])
        else:
            shown = [machine for machine in listed if with_stopped or not _is_stopped(machine)]
            hidden = [machine for machine in listed if machine not in shown]
            _print(output, invocation.program, shown, everybody=everybody, home=machines.home)
            if hidden:
                names = ", ".join(printable(machine.name) for machine in hidden)
                output.line(wrap(f"stopped: {names}", output.width or 10**6, 9), "dim")
            for machine in listed:
                if note := machine.details.get("cost_note"):
                    output.note(printable(note), "dim")
        for failure in machines.failures.values():
            output.failure(failure)
        return max(map(exit_code_of, machines.failures.values()), default=0)

    return machine_lookup.run(invocation, work)


def record(machine: Machine) -> dict[str, object]:
    """Everything that is known about a machine, for programs."""
    data = asdict(machine)
    data["age_hours"] = _hours(machine)
    data["gpu"] = machine.gpu_text
    for key in ("created", "started"):
        data[key] = data[key].isoformat() if data[key] else None
    return data


def machine_table(machines: Sequence[Machine], *, everybody: bool = False, separator: str = "  ") -> Table:
    """The table of `ls`; `create` shows it too."""
    places = {machine.backend for machine in machines}
    columns: dict[str, tuple[Column, Callable[[Machine], str]]] = {
        "Name": (Column("Name", shrink=0), lambda machine: machine.name),
        "Age(hr)": (Column("Age(hr)", right=True, drop=5), _age),
        "Public IP": (Column("Public IP", drop=7), lambda machine: machine.public_address or "-"),
        "Private IP": (Column("Private IP", drop=2), lambda machine: machine.address or "-"),
        "GPU": (Column("GPU", drop=6), lambda machine: machine.gpu_text),
        "Type": (Column("Type", shrink=12, drop=4), lambda machine: machine.type or "-"),
        "State": (Column("State", drop=9, styles=STATE_STYLES), lambda machine: str(machine.state)),
    }
    columns |= _cost_columns(machines)
    if len({machine.region for machine in machines if machine.region}) > 1:
        columns["Region"] = (Column("Region", drop=6), lambda machine: machine.region or "-")
    if len(places) > 1:
        columns["From"] = (Column("From", drop=3), lambda machine: machine.backend)
    if everybody:
        columns["Key-Owner"] = (
            Column("Key-Owner", shrink=12, drop=8),
            lambda machine: machine.owner or "-",
        )
        columns["instance_id"] = (Column("instance_id", drop=1), lambda machine: machine.id)
    rows = [[value(machine) for _, value in columns.values()] for machine in machines]
    return Table([column for column, _ in columns.values()], rows, separator=separator)


def _cost_columns(machines: Sequence[Machine]) -> dict[str, tuple[Column, Callable[[Machine], str]]]:
    """What machines cost, where some do."""

    def detail(key: str) -> Callable[[Machine], str]:
        return lambda machine: machine.details.get(key, "-")

    columns: dict[str, tuple[Column, Callable[[Machine], str]]] = {}
    currencies = {machine.details["currency"] for machine in machines if "currency" in machine.details}
    if currencies:
        unit = f"({currencies.pop()})" if len(currencies) == 1 else ""
        columns["Price"] = (Column(f"Per hour{unit}", right=True, drop=8), detail("price_per_hour_now"))
        columns["Spent"] = (Column("Spent", right=True, drop=7), detail("spent"))
    if any(machine.spot for machine in machines):
        columns["Spot"] = (Column("Spot", drop=4), lambda machine: "spot" if machine.spot else "-")
    if any("release_time" in machine.details for machine in machines):
        columns["Released at"] = (Column("Released at", drop=5), detail("release_time"))
    return columns


def _print(output: Output, program: str, machines: Sequence[Machine], *, everybody: bool, home: str) -> None:
    if program == "fastgpu":
        _print_second_generation(output, machines, everybody=everybody, home=home)
    elif program == "ecluster":
        _print_first_generation(output, machines, home=home)
    elif machines:
        machine_table(machines, everybody=everybody).print(output)
    else:
        output.line("no machines")
        output.note("Make some with `trainyard create --name NAME --machines 2`.", "dim")


def _print_second_generation(
    output: Output, machines: Sequence[Machine], *, everybody: bool, home: str
) -> None:
    """`fastgpu ls` as the manual of 1.1.x shows it."""
    columns = [
        Column("Instance Name"),
        Column("Age(hr)", right=True, drop=4),
        Column("Public IP", drop=6),
        Column("Private IP", drop=2),
        Column("GPU", drop=5),
        Column("Instance Type", shrink=13, drop=3),
    ]
    rows = [
        [
            machine.name,
            _age(machine),
            machine.public_address or "-",
            machine.address or "-",
            machine.gpu_text,
            machine.type or "-",
        ]
        for machine in machines
    ]
    running = all(machine.state is MachineState.RUNNING for machine in machines)
    if not running:
        columns.append(Column("State", styles=STATE_STYLES))
        rows = [[*row, str(machine.state)] for row, machine in zip(rows, machines, strict=True)]
    if everybody:
        columns += [Column("Key-Owner", shrink=12, drop=7), Column("instance_id", drop=1)]
        rows = [[*row, machine.owner or "-", machine.id] for row, machine in zip(rows, machines, strict=True)]
    table = Table(columns, rows, separator=" | ")
    dashes = "-" * table.total(output.width)
    header, *lines = table.lines(output, output.width)
    output.line(f"region={_region(machines) or home}")
    output.line("Running Instances:" if running else "Instances:")
    output.line(dashes)
    output.line(header)
    output.line(dashes)
    for line in lines:
        output.line(line)
        output.line(dashes)


def _print_first_generation(output: Output, machines: Sequence[Machine], *, home: str) -> None:
    """`ecluster ls` as the manual of 1.0.x shows it; narrower terminals lose columns from the right."""
    header = ["name", "hours_live", "instance_type", "public_ip", "key/owner", "private_ip", "instance_id"]
    rows = [
        [
            printable(machine.name),
            _age(machine),
            machine.type or "-",
            machine.public_address or "-",
            machine.owner or "-",
            machine.address or "-",
            machine.id,
        ]
        for machine in machines
    ]
    all_run = all(machine.state is MachineState.RUNNING for machine in machines)
    if not all_run:
        header.append("state")
        rows = [[*row, str(machine.state)] for row, machine in zip(rows, machines, strict=True)]
    width = output.width
    output.line(f"region={_region(machines) or home}")
    layout = "{:15s} {:>10s} {:>15s} {:>15s} {:>15s} {:>15s} {:>15s}" + ("" if all_run else " {:>8s}")
    dashes = "-" * FAMILY_WIDTH
    shown = layout.format(*header)
    lines = [layout.format(*row) for row in rows]
    if width and max(map(len, [dashes, *lines])) > width:
        columns = [
            Column("name"),
            Column("hours_live", right=True, drop=5),
            Column("instance_type", right=True, shrink=13, drop=4),
            Column("public_ip", right=True, drop=6),
            Column("key/owner", right=True, shrink=12, drop=3),
            Column("private_ip", right=True, drop=2),
            Column("instance_id", right=True, drop=1),
            *([] if all_run else [Column("state", right=True, styles=STATE_STYLES)]),
        ]
        table = Table(columns, rows, separator=" ")
        shown, *lines = table.lines(output, width)
        dashes = "-" * table.total(width)
    for line in (dashes, shown, dashes, *lines):
        output.line(line)


def _is_stopped(machine: Machine) -> bool:
    return machine.state is MachineState.STOPPED


def _hours(machine: Machine) -> float | None:
    if machine.created is None:
        return None
    return round(max(0.0, (datetime.now(UTC) - machine.created).total_seconds() / 3600), 1)


def _age(machine: Machine) -> str:
    hours = _hours(machine)
    return "-" if hours is None else f"{hours:.1f}"


def _region(machines: Sequence[Machine]) -> str:
    regions = dict.fromkeys(machine.region or machine.backend for machine in machines)
    return ",".join(regions)
