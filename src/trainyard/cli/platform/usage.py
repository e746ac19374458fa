"""`usage` and `budgets`: the costs of jobs and machines, prices per hour, and monthly budgets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from trainyard.cli.invocation import current
from trainyard.cli.jobs.jobs import record, record_all
from trainyard.cli.platform.platform_client import complete_workspace, run
from trainyard.cli.terminal.output import Output
from trainyard.cli.terminal.table import Column, Table
from trainyard.cli.verb import PlainVerb, common_options
from trainyard.lib.errors import DeniedError, InvalidError

if TYPE_CHECKING:
    from trainyard.client import Client
    from trainyard.client.schemas import PoolUse, PriceList, Use, UseReport

OTHER = "other"  # of a type that has no price of its own
BY = ("user", "workspace", "job", "device", "day")


@click.group(
    "usage",
    params=list(common_options(backend=False)),
    subcommand_metavar="[VERB ...]",
    invoke_without_command=True,
)
@click.pass_context
def usage_command(context: click.Context) -> int:
    """What jobs and pools have cost in a month; `usage ls` where no verb is named."""
    return 0 if context.invoked_subcommand else context.invoke(list_command)


@usage_command.command("ls", cls=PlainVerb)
@click.option("--month", default="", metavar="2026-11", help="Another month than this one.")
@click.option(
    "--by", multiple=True, type=click.Choice(BY), help="What the rows are sums over.  [default: user]"
)
@click.option(
    "--workspace", default="", metavar="NAME", shell_complete=complete_workspace, help="Only of this one."
)
@click.option("--user", default="", metavar="NAME", help="Only of this one.")
def list_command(month: str = "", by: tuple[str, ...] = (), workspace: str = "", user: str = "") -> int:
    """Show device hours, idle ones among them, and the cost, dearest first; below it, what machines of pools have cost."""
    invocation = current()
    wanted = by or ("user",)
    found = run(lambda client: client.usage.report(month=month, by=wanted, workspace=workspace, user=user))
    if invocation.json:
        invocation.output.json(record(found))
        return 0
    _print(invocation.output, found, wanted)
    return 0


@usage_command.command("report", cls=PlainVerb)
@click.option("--month", default="", metavar="2026-11", help="Another month than this one.")
@click.option("-o", "--output", "path", default="-", metavar="FILE", help="Write it there; - prints it.")
@click.option("--machines", is_flag=True, help="Machines of pools: a row for each machine and day.")
@click.option(
    "--excel", is_flag=True, help="Begin FILE with the mark by which Excel knows UTF-8: names in 中文."
)
def report_command(month: str, path: str, machines: bool, excel: bool) -> int:
    """Write a month as CSV: a row for each job, day and type of device."""
    text = run(lambda client: client.usage.csv(month=month, machines=machines))
    if path == "-":
        current().output.line(text.rstrip("\n"))
        return 0
    try:
        Path(path).write_text(text, encoding="utf-8-sig" if excel else "utf-8", newline="")
    except OSError as error:
        raise InvalidError(f"Cannot write {path}: {error.strerror}.", hint="Name another file.") from error
    current().output.note(f"{path} has {text.count(chr(10)) - 1} rows")
    return 0


@usage_command.command("prices", cls=PlainVerb)
@click.argument("prices", metavar="[NAME=PRICE...]", nargs=-1)
@click.option("--currency", default="", metavar="CNY", help="What they are in.")
def prices_command(prices: tuple[str, ...], currency: str) -> int:
    """Show or set what an hour costs: of a device by type or of any `other`, of `cpu` (a core), of `memory` (a GiB)."""
    invocation = current()
    given = dict(_price(text) for text in prices)

    async def work(client: Client) -> tuple[PriceList, set[str] | None]:
        known = await client.usage.prices()
        if given or currency:
            named = {"" if k == OTHER else k: v for k, v in given.items() if k not in {"cpu", "memory"}}
            devices = {**known.devices, **named}
            known = await client.usage.set_prices(
                currency=currency or known.currency,
                devices={name: price for name, price in devices.items() if price},
                cpu=given.get("cpu", known.cpu),
                memory=given.get("memory", known.memory),
            )
        return known, await _device_types(client)

    found, types = run(work)
    if invocation.json:
        invocation.output.json(record(found))
        return 0
    rows = [["cpu", f"{found.cpu:g}", "core"], ["memory", f"{found.memory:g}", "GiB"]]
    named = sorted(found.devices.items(), key=lambda one: (not one[0], one[0]))
    rows = [[name or OTHER, f"{price:g}", "device"] for name, price in named] + rows
    columns = [Column("What"), Column(f"{found.currency}/hour", right=True), Column("Of one")]
    Table(columns, rows).print(invocation.output)
    if types is not None:
        _tell_missing(invocation.output, found, types)
    return 0


async def _device_types(client: Client) -> set[str] | None:
    """Of all nodes; None for a token that may not see them."""
    try:
        return {kind async for node in client.nodes.list() for kind in node.devices}
    except DeniedError:
        return None


def _tell_missing(output: Output, found: PriceList, types: set[str]) -> None:
    """A price under a wrong name is no price: the bill would say nothing of it."""
    priced = found.devices.keys()
    for kind in sorted(types - priced if priced and "" not in priced else ()):
        output.note(f"{kind} has no price: its hours cost nothing")
    for kind in sorted(priced - types - {""}):
        output.note(f"no node has {kind} now")


def _price(text: str) -> tuple[str, float]:
    name, equals, number = text.partition("=")
    try:
        if not equals or not name:
            raise ValueError
        return name, float(number)
    except ValueError:
        raise InvalidError(f"{text!r} is no price.", hint="Write V100=12.5.") from None


def _print(output: Output, found: UseReport, by: tuple[str, ...]) -> None:
    if found.rows:
        _print_jobs(output, found, by)
    else:
        output.line(f"nothing was used in {found.month}")
    if found.pools:
        output.line("")
        _print_pools(output, found.pools)


def _print_pools(output: Output, found: Sequence[PoolUse]) -> None:
    """What the provider bills for machines, and how much of it jobs had."""
    columns = [
        Column("Pool", shrink=10),
        Column("Machine h", right=True),
        Column("used", right=True),
        Column("idle", right=True),
        Column("starting", right=True, drop=1),
        Column("Billed", right=True),
    ]
    # Of small sums more digits, so that the parts are seen to be of one sum.
    digits = 2 if all(one.cost >= 1 for one in found) else 4
    rows = [
        [
            one.pool,
            f"{one.machine_hours:.2f}",
            f"{one.used_cost:.{digits}f}",
            f"{one.idle_cost:.{digits}f}",
            f"{one.starting_cost:.{digits}f}",
            f"{one.cost:.{digits}f} {one.currency}".strip(),
        ]
        for one in found
    ]
    Table(columns, rows).print(output)


def _print_jobs(output: Output, found: UseReport, by: tuple[str, ...]) -> None:
    names = [one for one in BY if one in by]
    columns = [
        *(column for name in names for column in _columns(name)),
        Column("Device h", right=True),
        Column("idle", right=True),
        Column("Core h", right=True, drop=2),
        Column("GiB h", right=True, drop=1),
        Column(found.currency, right=True),
    ]
    rows = [_row(one, names) for one in found.rows]
    total = replace(found.total, **{names[0]: "all"})  # type: ignore[arg-type]  # names of fields
    Table(columns, [*rows, _row(total, names)]).print(output)


def _columns(name: str) -> list[Column]:
    """Of what rows are sums over; a job has a name beside its id."""
    first = Column(name.capitalize(), shrink=10)
    return [first, Column("Name", shrink=10, drop=3)] if name == "job" else [first]


def _row(one: Use, names: list[str]) -> list[str]:
    shown = [field for name in names for field in ([name, "job_name"] if name == "job" else [name])]
    return [
        *(str(getattr(one, field)) or "-" for field in shown),
        f"{one.device_hours:.2f}",
        f"{one.idle_device_hours:.2f}",
        f"{one.cpu_hours:.2f}",
        f"{one.memory_gib_hours:.2f}",
        f"{one.cost:.2f}",
    ]


@click.group(
    "budgets",
    params=list(common_options(backend=False)),
    subcommand_metavar="[VERB ...]",
    invoke_without_command=True,
)
@click.pass_context
def budgets_command(context: click.Context) -> int:
    """What a month may cost; `budgets ls` where no verb is named."""
    return 0 if context.invoked_subcommand else context.invoke(list_budgets_command)


@budgets_command.command("ls", cls=PlainVerb)
def list_budgets_command() -> int:
    """Show budgets, and how much of each is used."""
    invocation = current()
    found = run(lambda client: client.usage.budgets())
    if invocation.json:
        invocation.output.json(record_all(found))
        return 0
    if not found:
        invocation.output.line("there are no budgets")
        return 0
    columns = [
        Column("Of"),
        Column("Name", shrink=10),
        Column("Spent", right=True),
        Column("Budget", right=True),
        Column("Used", right=True),
        Column("Then"),
    ]
    rows = [
        [
            one.subject,
            one.name,
            f"{one.spent:.2f}",
            f"{one.amount:.2f} {one.currency}",
            f"{one.spent / one.amount:.0%}",
            one.action,
        ]
        for one in found
    ]
    Table(columns, rows).print(invocation.output)
    return 0


def _subject(workspace: str, user: str) -> tuple[str, str]:
    if bool(workspace) == bool(user):
        raise InvalidError(
            "A budget is of one workspace or of one user.", hint="Give --workspace NAME or --user NAME."
        )
    return ("workspace", workspace) if workspace else ("user", user)


@budgets_command.command("set", cls=PlainVerb)
@click.option(
    "--workspace", default="", metavar="NAME", shell_complete=complete_workspace, help="Of this one."
)
@click.option("--user", default="", metavar="NAME", help="Of this one.")
@click.option(
    "--then",
    "action",
    type=click.Choice(["warn", "hold", "stop"]),
    default="warn",
    help="When it is used up: warn; hold what waits; stop what runs too.  [default: warn]",
)
@click.option("--warn-at", multiple=True, type=float, metavar="SHARE", help="Say so at 0.5, 0.8 of it.")
@click.argument("amount", type=float)
def set_budget_command(
    workspace: str, user: str, action: str, warn_at: tuple[float, ...], amount: float
) -> int:
    """Let a workspace or a user spend AMOUNT in a month."""
    subject, name = _subject(workspace, user)
    run(
        lambda client: client.usage.set_budget(
            subject, name, amount=amount, warn_at=warn_at or (0.5, 0.8), action=action
        )
    )
    current().output.note(f"{name} may spend {amount:g} in a month")
    return 0


@budgets_command.command("rm", cls=PlainVerb)
@click.option(
    "--workspace", default="", metavar="NAME", shell_complete=complete_workspace, help="Of this one."
)
@click.option("--user", default="", metavar="NAME", help="Of this one.")
def remove_budget_command(workspace: str, user: str) -> int:
    """Take a budget away."""
    subject, name = _subject(workspace, user)
    run(lambda client: client.usage.remove_budget(subject, name))
    current().output.note(f"{name} has no budget any more")
    return 0
