"""`storages` and `registries`: shared folders for tasks, and logins for the registries of their images."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from trainyard.cli.invocation import current
from trainyard.cli.platform.platform_client import age, run
from trainyard.cli.terminal.table import Column, Table
from trainyard.cli.verb import PlainVerb, common_options
from trainyard.lib.errors import InvalidError

if TYPE_CHECKING:
    from trainyard.client import Client
    from trainyard.client.storage_schemas import Registry, Storage


@click.group(
    "storages",
    params=list(common_options(backend=False)),
    subcommand_metavar="[VERB ...]",
    invoke_without_command=True,
)
@click.pass_context
def storages_command(context: click.Context) -> int:
    """Manage the folders that tasks see; without a verb, list them."""
    if context.invoked_subcommand is not None:
        return 0
    result: int = context.invoke(ls_command)
    return result


@storages_command.command("ls", cls=PlainVerb)
def ls_command() -> int:
    """List storages: where they are, and where tasks see them."""
    invocation = current()

    async def work(client: Client) -> list[Storage]:
        return [storage async for storage in client.storages.list()]

    found = run(work)
    if invocation.json:
        from trainyard.cli.jobs.jobs import record_all

        invocation.output.json(record_all(found))
        return 0
    if not found:
        invocation.output.line("no storages")
        invocation.output.note("Add one with `trainyard storages add NAME SOURCE TARGET`.", "dim")
        return 0
    _table(found).print(invocation.output)
    return 0


@storages_command.command("show", cls=PlainVerb)
@click.argument("storage")
def show_command(storage: str) -> int:
    """Show a storage, by its name or id."""
    from trainyard.cli.jobs.jobs import record

    invocation = current()
    shown = record(run(lambda client: client.storages.get(storage)))
    if invocation.json:
        invocation.output.json(shown)
        return 0
    for key, value in shown.items():
        if value not in (None, "", {}, []):
            text = ", ".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, dict) else value
            invocation.output.line(f"{key:<14} {text}")
    return 0


@storages_command.command("add", cls=PlainVerb)
@click.argument("name")
@click.argument("source")
@click.argument("target")
@click.option("--kind", type=click.Choice(["folder", "nfs"]), default="folder", help="What SOURCE is.")
@click.option("--workspace", default="", metavar="NAME", help="Only for this workspace.")
@click.option("--read-only", is_flag=True, help="Tasks only read it.")
@click.option("--default", "default", is_flag=True, help="Every task sees it, asked or not.")
@click.option("--options", default="", metavar="TEXT", help="For mounting it, such as vers=4,soft.")
def add_command(
    name: str,
    source: str,
    target: str,
    kind: str,
    workspace: str,
    read_only: bool,
    default: bool,
    options: str,
) -> int:
    """Add a storage: SOURCE is a folder of the nodes or host:/path, TARGET is where tasks see it.

    Both may hold {user}, {group}, {workspace}, {job} and {day}. A SOURCE that does not begin with / is below the
    platform's own folder.
    """
    from trainyard.client.storage_schemas import StorageCreate

    create = StorageCreate(
        name=name,
        source=source,
        target=target,
        kind=kind,
        workspace=workspace,
        read_only=read_only,
        default=default,
        options={"options": options} if options else {},
    )
    return _tell(run(lambda client: client.storages.add(create)), name, f"is at {target}")


@storages_command.command("rm", cls=PlainVerb)
@click.argument("storages", nargs=-1, required=True, metavar="STORAGE...")
def rm_command(storages: tuple[str, ...]) -> int:
    """Forget storages, by name or id. Their files stay where they are."""

    async def work(client: Client) -> None:
        for storage in storages:
            await client.storages.remove(storage)

    run(work)
    for storage in storages:
        current().output.line(f"{storage} is forgotten")
    return 0


@click.group(
    "registries",
    params=list(common_options(backend=False)),
    subcommand_metavar="[VERB ...]",
    invoke_without_command=True,
)
@click.pass_context
def registries_command(context: click.Context) -> int:
    """Manage sign-ins for images; without a verb, list them."""
    if context.invoked_subcommand is not None:
        return 0
    result: int = context.invoke(ls_registries)
    return result


@registries_command.command("ls", cls=PlainVerb)
def ls_registries() -> int:
    """List sign-ins, without their passwords."""
    invocation = current()

    async def work(client: Client) -> list[Registry]:
        return [registry async for registry in client.registries.list()]

    found = run(work)
    if invocation.json:
        from trainyard.cli.jobs.jobs import record_all

        invocation.output.json(record_all(found))
        return 0
    if not found:
        invocation.output.line("no registries")
        return 0
    columns = [
        Column("Registry", shrink=12),
        Column("User", shrink=8),
        Column("Workspace", drop=2),
        Column("Age", right=True, drop=1),
    ]
    rows = [
        [one.host, one.username, one.workspace or one.workspace_id or "all", age(one.created_at)]
        for one in found
    ]
    Table(columns, rows).print(invocation.output)
    return 0


@registries_command.command("add", cls=PlainVerb)
@click.argument("host")
@click.option("--username", required=True, metavar="NAME", help="Who signs in.")
@click.option("--workspace", default="", metavar="NAME", help="Only for images of this workspace's jobs.")
def add_registry(host: str, username: str, workspace: str) -> int:
    """Keep a sign-in for images of HOST. The password is asked for, or read from standard input."""
    from trainyard.client.storage_schemas import RegistryCreate

    invocation = current()
    password = _password()
    create = RegistryCreate(host=host, username=username, password=password, workspace=workspace)
    registry = run(lambda client: client.registries.add(create))
    if invocation.json:
        from trainyard.cli.jobs.jobs import record

        invocation.output.json(record(registry))
        return 0
    invocation.output.line(f"{host} is kept")
    return 0


@registries_command.command("rm", cls=PlainVerb)
@click.argument("registries", nargs=-1, required=True, metavar="HOST...")
def rm_registries(registries: tuple[str, ...]) -> int:
    """Forget sign-ins, by host or id."""

    async def work(client: Client) -> None:
        for registry in registries:
            await client.registries.remove(registry)

    run(work)
    for registry in registries:
        current().output.line(f"{registry} is forgotten")
    return 0


def _password() -> str:
    if sys.stdin.isatty():
        password = str(click.prompt("Password", hide_input=True, err=True))
    else:
        password = sys.stdin.readline().rstrip("\n")
    if not password:
        raise InvalidError("No password was given.", hint="Type it, or send it on standard input.")
    return password


def _tell(storage: Storage, name: str, done: str) -> int:
    from trainyard.cli.jobs.jobs import record

    invocation = current()
    if invocation.json:
        invocation.output.json(record(storage))
        return 0
    invocation.output.line(f"{name} {done}")
    return 0


def _table(found: Sequence[Storage]) -> Table:
    columns = [
        Column("Storage", shrink=8),
        Column("Kind", drop=3),
        Column("Source", shrink=12),
        Column("Target", shrink=12),
        Column("Workspace", drop=1),
        Column("Use", drop=2),
    ]
    rows = [
        [
            one.name,
            one.kind,
            one.source,
            one.target,
            one.workspace or one.workspace_id or "all",
            ", ".join(filter(None, ["default" if one.default else "", "read-only" if one.read_only else ""]))
            or "-",
        ]
        for one in found
    ]
    return Table(columns, rows)
