"""`cleanup`: lists things that remain when machines are gone, asks, and removes them."""

from __future__ import annotations

from dataclasses import asdict

import click

from trainyard.cli.invocation import current
from trainyard.cli.machines import machine_lookup
from trainyard.cli.machines.machine_lookup import MachineLookup
from trainyard.cli.terminal.table import Column, Table
from trainyard.cli.verb import Verb
from trainyard.runtime import verbs
from trainyard.spec.plan import Leftover


@click.command("cleanup", cls=Verb)
@click.option("--dry-run", is_flag=True, help="Only list it.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def cleanup_command(dry_run: bool, yes: bool) -> int:
    """Remove what nobody uses any more: networks, firewalls, keys and disks that machines left behind.

    Only what this program has made is touched.
    """
    invocation = current()
    output = invocation.output

    async def work(machines: MachineLookup) -> int:
        backend = machines.backend(machines.place)
        found = list(await verbs.leftovers(backend))
        if not found:
            if invocation.json:
                output.json([])
            else:
                output.line("nothing is left behind")
            return 0
        if not invocation.json:
            output.plan(_table(found).lines(output, output.note_width))
        if dry_run:
            if invocation.json:
                output.json([asdict(each) for each in found])
            return 0
        if not yes and not await machines.confirm(f"Remove {len(found)} of them?"):
            output.note("Nothing was done.")
            return 1
        kept = list(await verbs.remove_leftovers(backend, found))
        removed = [each for each in found if each not in kept]
        if invocation.json:
            output.json([asdict(each) for each in removed])
        else:
            for each in removed:
                output.line(f"removed {each.kind} {each.name}")
        for each in kept:
            output.warn(f"the {each.kind} {each.name} is in use again and stays")
        return 0

    return machine_lookup.run(invocation, work)


def _table(found: list[Leftover]) -> Table:
    columns = [
        Column("What"),
        Column("Name", shrink=12),
        Column("Id", drop=1),
        Column("Where", drop=2),
        Column("Note", drop=3),
    ]
    return Table(columns, [[each.kind, each.name, each.id, each.place, each.note or "-"] for each in found])
