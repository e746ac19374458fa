"""`secrets`: values that jobs get and that cannot be read again."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from trainyard.cli.invocation import current
from trainyard.cli.platform.platform_client import complete_workspace, run
from trainyard.cli.terminal.table import Column, Table
from trainyard.cli.verb import PlainVerb, common_options
from trainyard.lib.errors import InvalidError

if TYPE_CHECKING:
    from trainyard.client import Client
    from trainyard.client.secret_schemas import Secret

LARGEST = 64 * 1024  # bytes; the server takes no more


@click.group(
    "secrets",
    params=list(common_options(backend=False)),
    subcommand_metavar="[VERB ...]",
    invoke_without_command=True,
)
@click.pass_context
def secrets_command(context: click.Context) -> int:
    """Keep secrets for jobs; without a verb, list their names. Values are sealed, and never shown again."""
    if context.invoked_subcommand is not None:
        return 0
    result: int = context.invoke(ls_command)
    return result


_workspace = click.option(
    "--workspace",
    default="",
    metavar="NAME",
    shell_complete=complete_workspace,
    help="The workspace's, for jobs of all its members.  [default: your own]",
)


@secrets_command.command("set", cls=PlainVerb)
@click.argument("name", metavar="NAME")
@_workspace
@click.option(
    "--from-file",
    "path",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Take all of this file, as it is.",
)
def set_command(name: str, workspace: str, path: Path | None) -> int:
    """Keep a secret under NAME, or give it another value.

    The value is asked for without being shown, read from standard input (one newline at its end is left out), or from a
    file. It is never on the command line, where every user of this computer could read it.
    """
    from trainyard.cli.jobs.jobs import record

    invocation = current()
    value = _read(path)
    made = run(lambda client: client.secrets.put(name, value, workspace=workspace))
    if invocation.json:
        invocation.output.json(record(made))
    else:
        invocation.output.line(f"{name} is kept")
    return 0


@secrets_command.command("ls", cls=PlainVerb)
def ls_command() -> int:
    """List the names of your secrets and of your workspaces'."""
    from trainyard.cli.jobs.jobs import record_all

    invocation = current()

    async def work(client: Client) -> list[Secret]:
        return [one async for one in client.secrets.list()]

    found = run(work)
    if invocation.json:
        invocation.output.json(record_all(found))
        return 0
    if not found:
        invocation.output.line("no secrets")
        return 0
    _table(found).print(invocation.output)
    return 0


@secrets_command.command("rm", cls=PlainVerb)
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@_workspace
def rm_command(names: tuple[str, ...], workspace: str) -> int:
    """Forget secrets. Jobs that name them cannot start any more; those that run keep what they got."""

    async def work(client: Client) -> None:
        for name in names:
            await client.secrets.remove(name, workspace=workspace)

    run(work)
    for name in names:
        current().output.line(f"{name} is forgotten")
    return 0


def _table(found: list[Secret]) -> Table:
    from trainyard.cli.platform.platform_client import age

    columns = [
        Column("Secret", shrink=12),
        Column("Whose", shrink=8),
        Column("Made by", drop=2),
        Column("Changed", right=True, drop=1),
        Column("Used", right=True),
    ]
    rows = [
        [
            one.name,
            one.workspace or one.workspace_id or "mine",
            one.user,
            age(one.changed_at),
            age(one.last_used_at) if one.last_used_at else "-",
        ]
        for one in found
    ]
    return Table(columns, rows)


def _read(path: Path | None) -> str:
    if path is None and sys.stdin.isatty():
        return str(click.prompt("Value", hide_input=True, err=True))
    if path is None:
        data = sys.stdin.buffer.read(LARGEST + 2)
        data = data.removesuffix(b"\n").removesuffix(b"\r")
    else:
        with path.open("rb") as file:
            data = file.read(LARGEST + 1)
    if not data:
        raise InvalidError(
            "No value was given.", hint="Type it, send it on standard input, or give --from-file."
        )
    if len(data) > LARGEST:
        raise InvalidError(f"The value has more than {LARGEST} bytes.", hint="Keep large files in a storage.")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise InvalidError("The value is no text.", hint="Encode it first: `base64 FILE`.") from error
