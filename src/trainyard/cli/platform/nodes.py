"""`nodes`: the machines that run the platform's tasks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import click

from trainyard.cli.duration_option import duration_option
from trainyard.cli.invocation import current
from trainyard.cli.platform.platform_client import age, complete_node, pairs, run
from trainyard.cli.terminal.table import Column, Table
from trainyard.cli.verb import PlainVerb, common_options
from trainyard.lib.errors import Error, InvalidError, TaskErrors

if TYPE_CHECKING:
    from trainyard.client import Client
    from trainyard.client.schemas import Node

STATE_STYLES = {
    "ready": "green",
    "joining": "cyan",
    "lost": "red",
    "refused": "red",
    "cordoned": "yellow",
    "drained": "yellow",
}


@click.group(
    "nodes",
    params=list(common_options(backend=False)),
    subcommand_metavar="[VERB ...]",
    invoke_without_command=True,
)
@click.pass_context
def nodes_command(context: click.Context) -> int:
    """Manage the machines that run the platform's jobs; without a verb, list them."""
    if context.invoked_subcommand is not None:
        return 0
    result: int = context.invoke(ls_command)
    return result


def _names() -> Callable[[Callable[..., int]], Callable[..., int]]:
    return click.argument("names", nargs=-1, required=True, metavar="NAME...", shell_complete=complete_node)


@nodes_command.command("ls", cls=PlainVerb)
def ls_command() -> int:
    """List nodes: what they have, how they are, and why."""
    invocation = current()

    async def work(client: Client) -> list[Node]:
        return [node async for node in client.nodes.list()]

    nodes = run(work)
    if invocation.json:
        from trainyard.cli.jobs.jobs import record_all

        invocation.output.json(record_all(nodes))
        return 0
    if not nodes:
        invocation.output.line("no nodes")
        invocation.output.note("Add one with `trainyard nodes add NAME`.", "dim")
        return 0
    node_table(nodes).print(invocation.output)
    return 0


@nodes_command.command("show", cls=PlainVerb)
@click.argument("name", shell_complete=complete_node)
def show_command(name: str) -> int:
    """Show everything that is known about a node."""
    from trainyard.cli.jobs.jobs import record

    invocation = current()
    node = run(lambda client: client.nodes.get(name))
    shown = record(node)
    if invocation.json:
        invocation.output.json(shown)
        return 0
    for line in node_lines(shown):
        invocation.output.line(line)
    return 0


def node_lines(shown: Mapping[str, object]) -> list[str]:
    """The lines of `show`: one for each thing that is known, and one for each notice of the node."""
    lines, notices = [], []
    for key, value in shown.items():
        if value in (None, "", {}, []):
            continue
        text = ", ".join(map(str, value)) if isinstance(value, list) else value
        if isinstance(value, dict):
            found = value.get("notices")
            notices += found if key == "facts" and isinstance(found, list) else []
            text = ", ".join(f"{k}={v}" for k, v in value.items() if (key, k) != ("facts", "notices"))
        lines.append(f"{key:<14} {text}")
    return [*lines, *(f"{'notice':<14} {one}" for one in notices)]


@nodes_command.command("add", cls=PlainVerb)
@click.argument("name")
@click.argument("host", required=False, metavar="[HOST]")
@click.option("--local", is_flag=True, help="The server's own machine.")
@click.option("--pool", default="default", metavar="NAME", help="The pool it belongs to.")
@click.option(
    "--device",
    "devices",
    multiple=True,
    metavar="TYPE=N",
    help="Devices that it is said to have, to try things out.",
)
@click.option("--label", "labels", multiple=True, metavar="NAME=VALUE", help="A label.")
@click.option(
    "--taint", "taints", multiple=True, metavar="NAME[=VALUE]", help="Only for jobs that tolerate it."
)
@duration_option("--fence", "Silent for so long, it ends its tasks itself.")
def add_command(
    name: str,
    host: str | None,
    local: bool,
    pool: str,
    devices: tuple[str, ...],
    labels: tuple[str, ...],
    taints: tuple[str, ...],
    fence: float | None,
) -> int:
    """Take a machine in: HOST of the server's inventory (`trainyard hosts`), by default one called NAME."""
    from trainyard.client.schemas import NodeJoin

    address: dict[str, object] = {"backend": "local"} if local else {"backend": "ssh", "host": host or name}
    join = NodeJoin(
        name=name,
        address=address,
        pool=pool,
        devices=_counts(devices),
        labels=pairs(labels, "label"),
        taints=taints,
        fence_seconds=round(fence or 0),
    )
    node = run(lambda client: client.nodes.join(join))
    return _tell([node], "is joining")


@nodes_command.command("cordon", cls=PlainVerb)
@_names()
def cordon_command(names: tuple[str, ...]) -> int:
    """Put nothing new on nodes; what runs there runs on."""
    return _desire(names, "cordoned", "is cordoned")


@nodes_command.command("drain", cls=PlainVerb)
@_names()
def drain_command(names: tuple[str, ...]) -> int:
    """Put nothing new on nodes, and send what runs there back to the queue."""
    return _desire(names, "drained", "is being drained")


@nodes_command.command("ready", cls=PlainVerb)
@_names()
def ready_command(names: tuple[str, ...]) -> int:
    """Use nodes again, also those that were put on the black list."""
    return _desire(names, "ready", "is in use")


@nodes_command.command("rm", cls=PlainVerb)
@click.option("--gone", is_flag=True, help="It will never come back: what ran there may start elsewhere.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@_names()
def rm_command(names: tuple[str, ...], gone: bool, yes: bool) -> int:
    """Forget nodes. Refused while something runs there, unless --gone says that it cannot."""
    if (
        gone
        and not yes
        and not current().output.confirm(
            f"Are {', '.join(names)} gone for good? A job that still runs there would run twice."
        )
    ):
        return 1

    async def one(client: Client, name: str) -> Node:
        node = await client.nodes.get(name)
        await client.nodes.remove(name, force=gone)
        return node

    return _on_each(names, one, "is forgotten")


@nodes_command.command("label", cls=PlainVerb)
@click.argument("name", shell_complete=complete_node)
@click.argument("labels", nargs=-1, required=True, metavar="KEY=VALUE|KEY-...")
def label_command(name: str, labels: tuple[str, ...]) -> int:
    """Set labels of a node with KEY=VALUE, and remove them with KEY-."""
    from trainyard.client.schemas import NodeChange

    async def work(client: Client) -> Node:
        node = await client.nodes.get(name)
        kept = dict(node.labels)
        for word in labels:
            if word.endswith("-") and "=" not in word:
                kept.pop(word[:-1], None)
            else:
                kept |= pairs((word,), "label")
        return await client.nodes.change(name, NodeChange(labels=kept))

    return _tell([run(work)], "is labelled")


@nodes_command.command("set", cls=PlainVerb)
@click.argument("name", shell_complete=complete_node)
@click.option(
    "--images",
    type=click.Choice(["ignore", "refuse", "podman", "docker"]),
    help="Ignore images, or refuse those that it cannot run; or run them by one of these alone.",
)
@click.option(
    "--isolation",
    type=click.Choice(["auto", "required", "off"]),
    help="Keep tasks apart where it can, always, or never.",
)
@click.option("--visible", multiple=True, metavar="FOLDER", help="A folder of it that every task may read.")
@click.option("--no-visible", is_flag=True, help="No folders of it but the system's own.")
@click.option("--address", metavar="ADDRESS", help="Where other nodes reach it; empty: as it says itself.")
@click.option(
    "--device-ip",
    "device_ips",
    multiple=True,
    metavar="N=ADDRESS",
    help="The address of NPU N in the devices' own network; all of them; the word none: as it says itself.",
)
@click.option(
    "--broken",
    multiple=True,
    metavar="TYPE=N[,N...]",
    help="Devices that nobody gets, by their numbers; all of them; the word none: all are well.",
)
def set_command(
    name: str,
    images: str | None,
    isolation: str | None,
    visible: tuple[str, ...],
    no_visible: bool,
    address: str | None,
    device_ips: tuple[str, ...],
    broken: tuple[str, ...],
) -> int:
    """Say what a node does with images, what tasks see of it, where it and its NPUs are reached, and which devices are broken."""
    from trainyard.client.schemas import NodeChange

    options: dict[str, object] = {}
    if images:
        options["images"] = images
    if isolation:
        options["isolation"] = isolation
    if visible or no_visible:
        options["visible"] = list(visible) or None
    if address is not None:
        options["address"] = address or None
    if device_ips:
        options["device_ips"] = _device_ips(device_ips)
    if not options and not broken:
        raise InvalidError("There is nothing to set.", hint="See `trainyard nodes set --help`.")
    change = NodeChange(options=options or None, unhealthy=_broken(broken) if broken else None)
    return _tell([run(lambda client: client.nodes.change(name, change))], "is set")


def _broken(given: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """`V100=3,5`; the word none alone: all are well."""
    if list(given) == ["none"]:
        return {}
    found: dict[str, tuple[int, ...]] = {}
    for text in given:
        kind, _, numbers = text.partition("=")
        words = numbers.split(",")
        if not kind or not all(word.isdecimal() for word in words):
            raise InvalidError(
                f"{text!r} names no devices.", hint="Write --broken V100=3,5, or --broken none."
            )
        found[kind] = (*found.get(kind, ()), *map(int, words))
    return found


def _device_ips(given: Sequence[str]) -> dict[str, str] | None:
    """`0=192.168.10.1` and so on; the word none alone takes them away."""
    if list(given) == ["none"]:
        return None
    found = {}
    for text in given:
        number, equals, address = text.partition("=")
        if not equals or not number.isdecimal():
            raise InvalidError(
                f"{text!r} is no address of a device.", hint="Write --device-ip 0=192.168.10.1."
            )
        found[number] = address
    return found


def _desire(names: Sequence[str], desired: str, done: str) -> int:
    from trainyard.client.schemas import NodeDesired

    return _on_each(names, lambda client, name: client.nodes.set_desired(name, NodeDesired(desired)), done)


def _on_each(names: Sequence[str], one: Callable[[Client, str], Awaitable[Node]], done: str) -> int:
    async def work(client: Client) -> tuple[list[Node], list[Error]]:
        changed: list[Node] = []
        failures: list[Error] = []
        for name in names:
            try:
                changed.append(await one(client, name))
            except Error as error:
                failures.append(error)
        return changed, failures

    changed, failures = run(work)
    _tell(changed, done)
    if len(failures) == 1:
        raise failures[0]
    if failures:
        raise TaskErrors(f"{len(failures)} of {len(names)} nodes refused", failures)
    return 0


def _tell(nodes: Sequence[Node], done: str) -> int:
    from trainyard.cli.jobs.jobs import record_all

    invocation = current()
    if invocation.json:
        invocation.output.json(record_all(nodes))
        return 0
    for node in nodes:
        invocation.output.line(f"{node.name} {done}")
    return 0


def node_table(nodes: Sequence[Node]) -> Table:
    """The table of `ls`."""
    columns = [
        Column("Node", shrink=8),
        Column("State", styles=STATE_STYLES),
        Column("Cores", right=True),
        Column("Memory", right=True, drop=4),
        Column("Devices", drop=6),
        Column("Tasks", right=True, drop=5),
        Column("Pool", shrink=7, drop=3),
        Column("Seen", right=True, drop=2),
        Column("Why", shrink=16, drop=1),
    ]
    rows = [
        [
            node.name,
            node.state if node.desired == "ready" or node.state != "ready" else str(node.desired),
            f"{node.cpu:g}",
            f"{node.memory_mib / 1024:.0f}G",
            ", ".join(
                f"{count} {kind}" + (f" ({len(those)} broken)" if (those := node.unhealthy.get(kind)) else "")
                for kind, count in node.devices.items()
            )
            + (" (declared)" if node.simulated and node.devices else "")
            or "-",
            "-" if node.tasks is None else str(node.tasks),
            node.pool,
            age(node.seen_at),
            node.reason or _driver_says(node) or "-",
        ]
        for node in nodes
    ]
    return Table(columns, rows)


def _driver_says(node: Node) -> str:
    """What a driver said instead of an answer: without it, nobody knows where the devices of a node that is well have gone."""
    said = node.facts.get("device_errors")
    return "; ".join(map(str, said)) if isinstance(said, list | tuple) and not node.simulated else ""


def _counts(words: tuple[str, ...]) -> dict[str, int]:
    found = {}
    for kind, count in pairs(words, "device").items():
        if not count.isdigit():
            raise InvalidError(f"{kind}={count} is no number of devices.", hint="Write it like V100=8.")
        found[kind] = int(count)
    return found
