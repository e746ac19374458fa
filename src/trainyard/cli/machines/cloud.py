"""`addip`, `mount`, `queryimage`, `querygpu`: commands for capabilities that mostly cloud backends have."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import click

from trainyard.backends.api import Backend
from trainyard.cli.invocation import Invocation, current
from trainyard.cli.machines import machine_lookup
from trainyard.cli.machines.machine_lookup import MachineLookup
from trainyard.cli.terminal.table import Column, Table
from trainyard.cli.verb import Verb, names_argument
from trainyard.lib.errors import InvalidError, UnsupportedError
from trainyard.runtime import verbs
from trainyard.settings import Settings
from trainyard.spec.machine import Machine

SHRINKING, NARROW = "In stock", 16  # the column that may be as long as the provider has zones


@click.command("addip", cls=Verb)
@click.option("-a", "--all", "everything", is_flag=True, help="For all machines.")
@click.option("--cidr", default="", metavar="RANGE", help="Another address or range than this computer's.")
@click.option(
    "--service", "services", multiple=True, metavar="NAME", help="Not only ssh: notebook, tensorboard ..."
)
@names_argument(many=True, required=False)
def addip_command(names: tuple[str, ...], everything: bool, cidr: str, services: tuple[str, ...]) -> int:
    """Let this computer's public address through the firewall of machines, to ssh."""
    invocation = current()
    if everything == bool(names):
        raise InvalidError(
            "addip needs names, or -a for all machines", hint="Write `addip -a`, or `addip NAME`."
        )

    async def work(machines: MachineLookup) -> int:
        groups: list[tuple[Backend, list[Machine]]] = [(machines.backend(machines.place), [])]
        if not everything:
            groups = machines.by_backend(await machines.select(names))
        answers = [
            (backend.name, await verbs.admit_address(backend, part, cidr, services=services))
            for backend, part in groups
        ]
        if invocation.json:
            invocation.output.json([{"backend": name, "address": address} for name, address in answers])
        for name, address in answers if not invocation.json else []:
            invocation.output.line(f"{address} may reach the {name} machines")
        return 0

    return machine_lookup.run(invocation, work)


@click.command("mount", cls=Verb)
@names_argument(many=True)
def mount_command(names: tuple[str, ...]) -> int:
    """Mount the shared storage on machines."""
    invocation = current()

    async def work(machines: MachineLookup) -> int:
        for backend, part in machines.by_backend(await machines.select(names)):
            place = await verbs.mount(backend, part)
            if invocation.json:
                invocation.output.json([{"name": machine.name, "mounted": place} for machine in part])
            else:
                for machine in part:
                    invocation.output.line(f"mounted {place} on {machine.name}")
        return 0

    return machine_lookup.run(invocation, work)


@click.command("queryimage", cls=Verb)
def queryimage_command() -> int:
    """List the images that `create --image-name` takes."""
    invocation = current()

    async def work(machines: MachineLookup) -> int:
        return await _query(machines, verbs.images)

    return machine_lookup.run(invocation, work)


@click.command("querygpu", cls=Verb)
def querygpu_command() -> int:
    """List the GPUs there are, or the machine types that have some."""
    invocation = current()

    async def work(machines: MachineLookup) -> int:
        async def ask(backend: Backend) -> Sequence[dict[str, str]]:
            try:
                return await verbs.machine_types(backend)
            except UnsupportedError:
                if backend.name not in DEVICES:
                    raise
                return await DEVICES[backend.name](machines.settings)

        return await _query(machines, ask)

    return machine_lookup.run(invocation, work)


async def _local_devices(settings: Settings) -> list[dict[str, str]]:
    """This computer's own, and which machine holds each."""
    from trainyard.backends.local import LocalBackend
    from trainyard.backends.local.devices import find_devices

    devices = await asyncio.to_thread(
        find_devices,
        gpus=settings.local_gpus,
        npus=settings.local_npus,
        search_path=settings.environ.get("PATH", ""),
    )
    held = {
        (device.kind, device.index): machine.name
        for machine in await LocalBackend(settings).machines()
        for device in machine.devices
    }
    return [
        {
            "Where": "local",
            "Device": f"{device.kind.upper()} {device.index}",
            "Model": device.model or "-",
            "Held by": held.get((device.kind, device.index), "-"),
        }
        for device in (*devices.gpus, *devices.npus)
    ]


async def _host_devices(settings: Settings) -> list[dict[str, str]]:
    """What the hosts had when they were probed last."""
    from trainyard.backends.ssh.hosts import list_hosts

    return [
        {
            "Where": report.host.name,
            "Device": f"{device.kind.upper()} {device.index}",
            "Model": device.model or "-",
            "Held by": report.lease.name if report.lease else "-",
        }
        for report in await list_hosts(settings)
        for device in (report.facts.devices if report.facts else ())
    ]


# Backends without machine types to choose from: the devices themselves are what there is.
DEVICES: dict[str, Callable[[Settings], Awaitable[list[dict[str, str]]]]] = {
    "local": _local_devices,
    "ssh": _host_devices,
}


async def _query(
    machines: MachineLookup, ask: Callable[[Backend], Awaitable[Sequence[dict[str, str]]]]
) -> int:
    rows: list[dict[str, str]] = []
    refusals = []
    for name in machines.names:
        try:
            rows += await ask(machines.backend(name))
        except UnsupportedError as error:
            refusals.append(error)
    return _answer(machines.invocation, rows, refusals)


def _answer(
    invocation: Invocation, rows: Sequence[dict[str, str]], refusals: Sequence[UnsupportedError]
) -> int:
    """Print the rows of all backends that answered. If none did, raise the reason."""
    if refusals and not rows:
        raise refusals[0]
    if invocation.json:
        invocation.output.json(list(rows))
        return 0
    titles = list(dict.fromkeys(key for row in rows for key in row))
    if not rows:
        invocation.output.line("none found")
        return 0
    columns = [
        Column(title, drop=len(titles) - place if place else 0, shrink=NARROW if title == SHRINKING else 0)
        for place, title in enumerate(titles)
    ]
    Table(columns, [[row.get(title, "-") for title in titles] for row in rows]).print(invocation.output)
    return 0
