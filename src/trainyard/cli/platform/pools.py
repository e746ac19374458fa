"""`pools`: machines that the platform buys when its queue needs them, and gives back when they are idle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from trainyard.cli.duration_option import duration_option
from trainyard.cli.invocation import current
from trainyard.cli.platform.platform_client import age, complete_pool, pairs, run
from trainyard.cli.terminal.table import Column, Table
from trainyard.cli.verb import PlainVerb, common_options

if TYPE_CHECKING:
    from trainyard.client import Client
    from trainyard.client.pool_schemas import Pool

Function = TypeVar("Function", bound=Callable[..., Any])

STATE_STYLES = {
    "ready": "green",
    "removing": "yellow",
    "joined": "green",
    "wanted": "cyan",
    "joining": "cyan",
    "draining": "yellow",
    "releasing": "yellow",
    "released": "dim",
}


@click.group(
    "pools",
    params=list(common_options(backend=False)),
    subcommand_metavar="[VERB ...]",
    invoke_without_command=True,
)
@click.pass_context
def pools_command(context: click.Context) -> int:
    """Manage pools of machines that are bought when the queue needs them; without a verb, list them."""
    if context.invoked_subcommand is not None:
        return 0
    result: int = context.invoke(ls_command)
    return result


def _options() -> Callable[[Function], Function]:
    """What `create` and `set` have in common."""
    options = [
        click.option("--type", "types", multiple=True, metavar="TYPE", help="A machine type; the first is preferred."),
        click.option("--zone", "zones", multiple=True, metavar="ZONE", help="Only there, in this order."),
        click.option("--spot/--no-spot", default=None, help="Buy on the spot market."),
        click.option("--price-limit", type=float, metavar="AMOUNT", help="For an hour of a machine; 0: none."),
        click.option("--most", type=click.IntRange(0), metavar="N", help="So many machines at once."),
        click.option("--least", type=click.IntRange(0), metavar="N", help="So many are kept even when idle."),
        duration_option("--idle", "Idle for so long, a machine is released (10m)."),
        click.option("--label", "labels", multiple=True, metavar="NAME=VALUE", help="A label of its nodes."),
        click.option("--taint", "taints", multiple=True, metavar="NAME[=VALUE]", help="Only for jobs that tolerate it."),
        click.option("--option", "options", multiple=True, metavar="NAME=VALUE", help="Of its machines: image, system_disk_gib ..."),
    ]  # fmt: skip

    def add(function: Function) -> Function:
        for option in reversed(options):
            function = option(function)
        return function

    return add


@pools_command.command("ls", cls=PlainVerb)
def ls_command() -> int:
    """List pools: how many machines they have, what those have cost, and why none could be bought."""
    invocation = current()

    async def work(client: Client) -> list[Pool]:
        return [pool async for pool in client.pools.list()]

    pools = run(work)
    if invocation.json:
        from trainyard.cli.jobs.jobs import record_all

        invocation.output.json(record_all(pools))
        return 0
    if not pools:
        invocation.output.line("no pools")
        invocation.output.note("Make one with `trainyard pools create NAME --type TYPE --most N`.", "dim")
        return 0
    _pool_table(pools).print(invocation.output)
    machines = [machine for pool in pools for machine in pool.machines]
    if machines:
        invocation.output.line()
        _machine_table(pools).print(invocation.output)
    _tell_troubles(pools)
    return 0


@pools_command.command("show", cls=PlainVerb)
@click.argument("name", shell_complete=complete_pool)
def show_command(name: str) -> int:
    """Show everything about a pool, also the machines that it had lately."""
    from trainyard.cli.jobs.jobs import record

    invocation = current()
    pool = run(lambda client: client.pools.get(name))
    shown = record(pool)
    if invocation.json:
        invocation.output.json(shown)
        return 0
    for key, value in shown.items():
        if value in (None, "", {}, []) or key == "machines":
            continue
        text = ", ".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, dict) else value
        text = ", ".join(map(str, value)) if isinstance(value, list) else text
        invocation.output.line(f"{key:<14} {text}")
    if pool.machines:
        invocation.output.line()
        _machine_table([pool]).print(invocation.output)
    return 0


@pools_command.command("create", cls=PlainVerb)
@click.argument("name")
@_options()
def create_command(name: str, **given: Any) -> int:
    """Make a pool. Nothing is bought before a job needs it, but for what --least keeps."""
    from trainyard.client.pool_schemas import PoolCreate

    fields = _fields(given)
    if not fields.get("types") or fields.get("most") is None:
        raise click.UsageError("a pool needs --type and --most")
    if not fields.get("price_limit"):
        fields.pop("price_limit", None)
    pool = run(lambda client: client.pools.create(PoolCreate(name=name, **fields)))
    return _tell(pool, "is made; machines come when jobs need them")


@pools_command.command("set", cls=PlainVerb)
@click.argument("name", shell_complete=complete_pool)
@_options()
@click.option("--any-zone", is_flag=True, help="Wherever there is stock again.")
def set_command(name: str, any_zone: bool, **given: Any) -> int:
    """Change a pool. Machines that are there stay as they are; --most 0 lets them go as they fall idle."""
    from trainyard.client.pool_schemas import PoolChange

    fields = _fields(given)
    if any_zone:
        fields["zones"] = ()
    pool = run(lambda client: client.pools.change(name, PoolChange(**fields)))
    return _tell(pool, "is changed")


@pools_command.command("rm", cls=PlainVerb)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.argument("name", shell_complete=complete_pool)
def rm_command(name: str, yes: bool) -> int:
    """Remove a pool: what runs on its machines goes back to the queue, they are released, then it is gone."""
    invocation = current()
    pool = run(lambda client: client.pools.get(name))
    if pool.size and not yes:
        question = f"{name} has {pool.size} machines; what runs there goes back to the queue. Remove it?"
        if not invocation.output.confirm(question):
            return 1
    run(lambda client: client.pools.remove(name))
    return _tell(pool, "goes, when its machines have gone" if pool.size else "is gone")


def _fields(given: dict[str, Any]) -> dict[str, Any]:
    """What was said, under the names of the API."""
    fields: dict[str, Any] = {
        name: given[name] for name in ("spot", "price_limit", "most", "least") if given[name] is not None
    }
    fields |= {name: given[name] for name in ("types", "zones", "taints") if given[name]}
    if given["idle"] is not None:
        fields["idle_seconds"] = round(given["idle"])
    if given["labels"]:
        fields["labels"] = pairs(given["labels"], "label")
    if given["options"]:
        fields["options"] = {name: _value(text) for name, text in pairs(given["options"], "option").items()}
    return fields


def _value(text: str) -> str | int | bool:
    if text.isdigit():
        return int(text)
    return {"true": True, "false": False}.get(text.lower(), text)


def _tell(pool: Pool, done: str) -> int:
    from trainyard.cli.jobs.jobs import record

    invocation = current()
    if invocation.json:
        invocation.output.json(record(pool))
        return 0
    invocation.output.line(f"{pool.name} {done}")
    return 0


def _tell_troubles(pools: Sequence[Pool]) -> None:
    """Why pools could not buy, in full: no column is wide enough."""
    output = current().output
    troubled = [pool for pool in pools if pool.message]
    if troubled:
        output.line()
    for pool in troubled:
        output.line(f"{pool.name}: {pool.message}", "yellow")


def _pool_table(pools: Sequence[Pool]) -> Table:
    columns = [
        Column("Pool", shrink=8),
        Column("State", styles=STATE_STYLES, drop=5),
        Column("Machines", right=True),
        Column("Types", shrink=12, drop=3),
        Column("Spot", drop=4),
        Column("Per hour", right=True, drop=6),
        Column("Cost", right=True),
    ]
    rows = [
        [
            pool.name,
            pool.state,
            f"{pool.size} of {pool.least}-{pool.most}",
            ", ".join(pool.types),
            "yes" if pool.spot else "-",
            _money(pool.price, pool.currency) if pool.price else "-",
            _money(pool.cost, pool.currency),
        ]
        for pool in pools
    ]
    if len(pools) > 1:
        total = sum(pool.cost for pool in pools)
        size = sum(pool.size for pool in pools)
        rows.append(["total", "", str(size), "", "", "", _money(total, pools[0].currency)])
    return Table(columns, rows)


def _machine_table(pools: Sequence[Pool]) -> Table:
    columns = [
        Column("Machine", shrink=12),
        Column("State", styles=STATE_STYLES),
        Column("Type", shrink=10, drop=4),
        Column("Zone", drop=3),
        Column("Per hour", right=True, drop=5),
        Column("Cost", right=True, drop=7),
        Column("Age", right=True, drop=2),
        Column("Why", shrink=16, drop=1),
    ]
    rows = [
        [
            machine.name,
            machine.state,
            machine.type or "-",
            machine.zone or "-",
            _money(machine.price, pool.currency) if machine.price else "-",
            _money(machine.cost, pool.currency),
            age(machine.wanted_at),
            machine.message or "-",
        ]
        for pool in pools
        for machine in pool.machines
    ]
    return Table(columns, rows)


def _money(amount: float, currency: str) -> str:
    digits = 2 if amount == 0 or amount >= 0.1 else 4
    return f"{amount:.{digits}f} {currency}".strip()
