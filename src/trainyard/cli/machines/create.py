"""`create`: makes machines, or finds them by name. It takes the flags of `fastgpu` and of `ecluster`."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trainyard.cli.invocation import Invocation, current
from trainyard.cli.machines import create_file, machine_lookup
from trainyard.cli.machines.ls import machine_table, record
from trainyard.cli.machines.machine_lookup import MachineLookup
from trainyard.cli.terminal.progress import CountBar
from trainyard.cli.verb import Verb
from trainyard.lib.errors import DeniedError, InvalidError
from trainyard.runtime import cost, verbs
from trainyard.settings import Settings
from trainyard.spec.machine import Machine, MachineSpec
from trainyard.spec.names import check_name, parse_task, task_name

if TYPE_CHECKING:
    from trainyard.runtime.self_stop import SelfStop

MOST_MACHINES = 1000  # beyond that it is a typing error

# What only a cloud can do; elsewhere it is noted down and has no effect, so that any command line can be tried anywhere.
CLOUD_ONLY = {
    "install_cuda": "--install-cuda",
    "enable_nas": "--enable-nas",
    "spot": "--spot",
    "vpc_name": "--vpc-name",
    "zone_id": "--zone-id",
    "system_disk_size": "--system-disk-size",
    "data_disk_size": "--data-disk-size",
    "snapshot": "--snapshot",
    "min_machines": "--min-machines",
    "max_hours": "--max-hours",
    "max_price_per_hour": "--max-price-per-hour",
    "spot_price_limit": "--spot-price-limit",
    "ram_role": "--ram-role",
    "autostop_idle": "--autostop-idle",
}
WITHOUT_CLOUD = frozenset({"local", "ssh"})


@click.command("create", cls=Verb)
@click.option("-c", "-f", "--config", "config_file", metavar="FILE", help="Read options from an INI file.")
@click.option(
    "-n", "--name", metavar="NAME", help="The job's name; its machines are task0.NAME, task1.NAME, ..."
)
@click.option("-np", "--machines", "--machine", type=int, metavar="N", help="How many.  [default: 1]")
@click.option("-i", "--instance-type", metavar="TYPE", help="The machine type.")
@click.option("--gpus", type=int, metavar="N", help="GPUs per machine.")
@click.option("--npus", type=int, metavar="N", help="NPUs per machine.")
@click.option("--image-name", "--image", metavar="IMAGE", help="The image of the system disk.")
@click.option("--image-type", metavar="KIND", help="The kind of image, such as ubuntu or centos.")
@click.option("--install-script", metavar="TEXT", help="Shell commands to run on every machine once.")
@click.option("--skip-setup", is_flag=True, default=None, help="Only make the machines.")
@click.option("--spot", is_flag=True, default=None, help="Machines that may be taken back, for less money.")
@click.option("--system-disk-size", type=int, metavar="GB", help="The system disk.")
@click.option("--data-disk-size", type=int, metavar="GB", help="A disk for data.")
@click.option("-nas", "--enable-nas", "--nas", is_flag=True, default=None, help="With shared storage.")
@click.option("--zone-id", metavar="ZONE", help="The zone; any that has such machines.")
@click.option("-vpc", "--vpc-name", "--vpc", metavar="NAME", help="The private network.")
@click.option("-cuda", "--install-cuda", "--cuda-install", is_flag=True, default=None, help="Install CUDA.")
@click.option("--snapshot", metavar="SNAPSHOT", help="What the data disk begins as, by id or name.")
@click.option("--min-machines", type=int, metavar="N", help="Be content with so many of them.")
@click.option(
    "--max-hours", type=float, metavar="H", help="Let the provider release them when nobody renews it."
)
@click.option(
    "--max-price-per-hour", type=str, metavar="PRICE", help="Of one machine; dearer ones are left out."
)
@click.option("--spot-price-limit", type=str, metavar="PRICE", help="The most to pay on the spot market.")
@click.option("--ram-role", metavar="ROLE", help="A role of the account that machines are given.")
@click.option(
    "--autostop-idle", type=float, metavar="MIN", help="They stop when idle for so long; needs --ram-role."
)
@click.option("--dry-run", is_flag=True, default=None, help="Show places and prices, and make nothing.")
@click.option("-y", "--yes", "--confirm-cost", "confirm_cost", is_flag=True, default=None, help="Do not ask.")
def create_command(config_file: str | None, **flags: Any) -> int:
    """Make the machines task0.NAME, task1.NAME and so on, or find them again.

    The same name gives the same machines, with whatever runs there. Long flags may be written with _ instead of -.
    """
    invocation = current()
    options = _gather(invocation, config_file, flags)

    async def work(machines: MachineLookup) -> int:
        place = machines.place
        _remark(invocation, place, options)
        if options.get("dry_run"):
            return await _show_plan(machines, place, options)
        if not await _agree(machines, place, options):
            invocation.output.note("Nothing was done.")
            return 1
        made = await _make(machines, place, options)
        _tell(invocation, place, str(options["name"]), made)
        return 0

    return machine_lookup.run(invocation, work)


def _gather(invocation: Invocation, config_file: str | None, flags: dict[str, Any]) -> dict[str, Any]:
    """Flags go before the file; both before the defaults."""
    options: dict[str, Any] = {}
    if config_file is not None:
        options, remarks = create_file.load(Path(config_file))
        for remark in remarks:
            invocation.output.warn(remark)
    options.update({name: value for name, value in flags.items() if value is not None})
    options.setdefault("machines", 1)
    if not options.get("name"):
        raise InvalidError("the machines need a name", hint="Pass --name NAME, or `name = NAME` in the file.")
    check_name(options["name"], "job name")
    task = parse_task(options["name"])
    if task is not None:
        raise InvalidError(
            f"{options['name']} is the name of a task", hint=f"Pass the job's: --name {task.job}."
        )
    if not 1 <= options["machines"] <= MOST_MACHINES:
        raise InvalidError(
            f"{options['machines']} is not a number of machines", hint=f"Write 1 to {MOST_MACHINES}."
        )
    if options.get("autostop_idle") and not options.get("ram_role"):
        raise InvalidError(
            "--autostop-idle needs --ram-role: nobody else would be there to stop the machines",
            hint="Pass --ram-role ROLE, or use autostop_idle in a script that lives as long.",
        )
    for name in ("gpus", "npus", "system_disk_size", "data_disk_size", "autostop_idle"):
        if (options.get(name) or 0) < 0:
            raise InvalidError(f"{name} cannot be {options[name]}", hint="Write 0 or more.")
    return options


def _remark(invocation: Invocation, place: str, options: dict[str, Any]) -> None:
    idle = [flag for name, flag in CLOUD_ONLY.items() if options.get(name)]
    if place in WITHOUT_CLOUD and idle:
        verb = "has" if len(idle) == 1 else "have"
        invocation.output.warn(f"{', '.join(idle)} {verb} no effect on {place} machines")


async def _show_plan(machines: MachineLookup, place: str, options: dict[str, Any]) -> int:
    output = machines.invocation.output
    names = _names(options)
    plan = await verbs.plan(machines.backend(place), _spec(options, machines.settings), names)
    if machines.invocation.json:
        from dataclasses import asdict

        output.json(None if plan is None else {**asdict(plan), "price_per_hour": plan.price_per_hour})
    elif plan is None:
        output.line(f"{place} machines cost nothing; this would make or find {', '.join(names)}")
    else:
        for line in cost.lines(plan):
            output.line(line)
    return 0


async def _agree(machines: MachineLookup, place: str, options: dict[str, Any]) -> bool:
    """Whether the machines may cost what they cost; asked only where something begins to cost."""
    if options.get("confirm_cost") or machines.settings.skips_cost_question:
        return True
    plan = await verbs.plan(machines.backend(place), _spec(options, machines.settings), _names(options))
    if plan is None or plan.is_free:
        return True
    machines.invocation.output.plan(cost.lines(plan))
    return await machines.confirm(f"Spend {cost.amount(plan.price_per_hour, plan.currency)} an hour?")


def _names(options: dict[str, Any]) -> list[str]:
    return [task_name(options["name"], index) for index in range(options["machines"])]


async def _make(machines: MachineLookup, place: str, options: dict[str, Any]) -> list[Machine]:
    from trainyard.runtime.job import make_job
    from trainyard.runtime.self_stop import SelfStop, StopTerms

    names, spec = _names(options), _spec(options, machines.settings)
    bar = CountBar(machines.invocation.output, "starting")
    bar.update(0, len(names))
    try:
        # Twice the same question to the backend: here to show how far it is, below to set the machines up.
        made = await verbs.acquire(machines.backend(place), spec, names, on_wait=bar.update)
        if options.get("skip_setup"):
            return made
        bar.label = "setting up"
        bar.update(0, len(made))
        job = await make_job(
            machines.context(place),
            name=options["name"],
            num_tasks=len(made),
            install_script=options.get("install_script") or "",
            spec=spec,
        )
        if options.get("autostop_idle") and place not in WITHOUT_CLOUD:
            await _set_self_stop(SelfStop(job=job, terms=StopTerms(idle_minutes=options["autostop_idle"])))
    finally:
        bar.close()
    return [task.machine for task in job.tasks]


async def _set_self_stop(self_stop: SelfStop) -> None:
    if not await self_stop.arrange():
        raise DeniedError(
            "the machines were made, but cannot stop themselves when idle",
            hint="Give the role the right to stop machines and run the same command again, or release them with `trainyard kill`.",
        )


def _spec(options: dict[str, Any], settings: Settings) -> MachineSpec:
    return MachineSpec(
        type=options.get("instance_type") or "",
        image=options.get("image_name") or "",
        image_type=options.get("image_type") or "",
        gpus=options.get("gpus"),
        npus=options.get("npus") or 0,
        spot=bool(options.get("spot")),
        system_disk_gib=options.get("system_disk_size") or 0,
        data_disk_gib=options.get("data_disk_size") or settings.data_disk_gib,
        zone_id=options.get("zone_id") or settings.zone,
        vpc_name=options.get("vpc_name") or "",
        shared_storage=bool(options.get("enable_nas")),
        snapshot=options.get("snapshot") or settings.snapshot,
        with_driver=bool(options.get("install_cuda")),
        min_machines=options.get("min_machines") or 0,
        max_hours=options.get("max_hours") or 0.0,
        max_price_per_hour=_money(options, "max_price_per_hour"),
        spot_price_limit=_money(options, "spot_price_limit"),
        role=options.get("ram_role") or "",
    )


def _money(options: dict[str, Any], name: str) -> Decimal | None:
    text = options.get(name)
    try:
        return Decimal(text) if text else None
    except ArithmeticError as error:
        raise InvalidError(
            f"{name} = {text!r} is not a price", hint="Write a number, for example 26.5."
        ) from error


def _tell(invocation: Invocation, place: str, name: str, made: list[Machine]) -> None:
    output = invocation.output
    if invocation.json:
        output.json([record(machine) for machine in made])
        return
    machine_table(made).print(output)
    program = invocation.program
    first = made[0].name
    group = f"{{{name}}}" if len(made) > 1 else first
    output.note(
        f"\n{len(made)} {place} machine{'' if len(made) == 1 else 's'} ready.\n"
        f"  {program} ssh {first}\n"
        f"  {program} run {group} 'nvidia-smi || nproc'\n"
        f"  {program} kill {group}"
    )
