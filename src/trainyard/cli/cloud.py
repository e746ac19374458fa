"""`addip`, `mount`, `queryimage`, `querygpu`: what clouds have and other backends mostly do not. They say so."""

from __future__ import annotations

from collections.abc import Sequence

import click

from trainyard.cli import fleet
from trainyard.cli.fleet import DEFAULT_BACKEND, Fleet
from trainyard.cli.invocation import Invocation, current
from trainyard.cli.table import Column, Table
from trainyard.cli.verb import Verb, names_argument
from trainyard.lib.errors import InvalidError, UnsupportedError
from trainyard.runtime import verbs


@click.command("addip", cls=Verb)
@click.option("-a", "--all", "everything", is_flag=True, help="For all machines.")
@names_argument(many=True, required=False)
def addip_command(names: tuple[str, ...], everything: bool) -> int:
    """Let this computer's public address through the firewall of machines."""
    invocation = current()
    if everything == bool(names):
        raise InvalidError(
            "addip needs names, or -a for all machines", hint="Write `addip -a`, or `addip NAME`."
        )

    async def work(machines: Fleet) -> int:
        chosen = await (machines.machines() if everything else machines.select(names))
        groups = machines.by_backend(chosen) or [(machines.backend(machines.chosen or DEFAULT_BACKEND), [])]
        answers = [(backend.name, await verbs.admit_address(backend, part)) for backend, part in groups]
        if invocation.json:
            invocation.output.json([{"backend": name, "address": address} for name, address in answers])
        for name, address in answers if not invocation.json else []:
            invocation.output.line(f"{address} may reach the {name} machines")
        return 0

    return fleet.run(invocation, work)


@click.command("mount", cls=Verb)
@names_argument(many=True)
def mount_command(names: tuple[str, ...]) -> int:
    """Mount the shared storage on machines."""
    invocation = current()

    async def work(machines: Fleet) -> int:
        for backend, part in machines.by_backend(await machines.select(names)):
            place = await verbs.mount(backend, part)
            if invocation.json:
                invocation.output.json([{"name": machine.name, "mounted": place} for machine in part])
            else:
                for machine in part:
                    invocation.output.line(f"mounted {place} on {machine.name}")
        return 0

    return fleet.run(invocation, work)


@click.command("queryimage", cls=Verb)
def queryimage_command() -> int:
    """List the images that `create --image-name` takes."""
    invocation = current()

    async def work(machines: Fleet) -> int:
        rows: list[dict[str, str]] = []
        refusals = []
        for name in machines.names:
            try:
                rows += await verbs.images(machines.backend(name))
            except UnsupportedError as error:
                refusals.append(error)
        return _answer(invocation, rows, refusals)

    return fleet.run(invocation, work)


@click.command("querygpu", cls=Verb)
def querygpu_command() -> int:
    """List the GPUs there are, or the machine types that have some."""
    invocation = current()

    async def work(machines: Fleet) -> int:
        rows: list[dict[str, str]] = []
        refusals = []
        for name in machines.names:
            try:
                rows += await verbs.machine_types(machines.backend(name))
            except UnsupportedError as error:
                refusals.append(error)
        return _answer(invocation, rows, refusals)

    return fleet.run(invocation, work)


def _answer(
    invocation: Invocation, rows: Sequence[dict[str, str]], refusals: Sequence[UnsupportedError]
) -> int:
    """Rows of whoever has an answer; nobody has one: say why."""
    if refusals and not rows:
        raise refusals[0]
    if invocation.json:
        invocation.output.json(list(rows))
        return 0
    titles = list(dict.fromkeys(key for row in rows for key in row))
    if not rows:
        invocation.output.line("none")
        return 0
    columns = [
        Column(title, drop=0 if place == 0 else len(titles) - place) for place, title in enumerate(titles)
    ]
    Table(columns, [[row.get(title, "-") for title in titles] for row in rows]).print(invocation.output)
    return 0
