"""`code`: repositories that jobs of a workspace check out before they begin."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from trainyard import settings as settings_module
from trainyard.cli.invocation import current
from trainyard.cli.platform.platform_client import complete_workspace, run
from trainyard.cli.terminal.table import Column, Table
from trainyard.cli.verb import PlainVerb, common_options
from trainyard.lib.errors import InvalidError

if TYPE_CHECKING:
    from trainyard.client import Client
    from trainyard.client.job_sources import CodeSource


@click.group(
    "code",
    params=list(common_options(backend=False)),
    subcommand_metavar="[VERB ...]",
    invoke_without_command=True,
)
@click.pass_context
def code_command(context: click.Context) -> int:
    """Manage the repositories that jobs check out; without a verb, list them. SOURCE is an id or a name."""
    if context.invoked_subcommand is not None:
        return 0
    result: int = context.invoke(ls_command)
    return result


def _token_options(function: Any) -> Any:
    for option in (
        click.option("--token-env", metavar="NAME", help="The variable here that holds the token of a private one."),
        click.option("--token-stdin", is_flag=True, help="Read the token from standard input."),
        click.option("--target", metavar="FOLDER", help="Where tasks have it.  [default: its name]"),
        click.option("--commit", metavar="COMMIT", help="This commit."),
        click.option("--branch", metavar="NAME", help="This branch or tag.  [default: the repository's own]"),
    ):  # fmt: skip
        function = option(function)
    return function


@code_command.command("ls", cls=PlainVerb)
def ls_command() -> int:
    """List the code sources of your workspaces."""

    async def work(client: Client) -> list[CodeSource]:
        return [one async for one in client.codes.list()]

    return _show(run(work))


@code_command.command("show", cls=PlainVerb)
@click.argument("source", metavar="SOURCE")
def show_command(source: str) -> int:
    """Show one."""
    return _show([run(lambda client: client.codes.get(source))])


@code_command.command("add", cls=PlainVerb)
@click.option(
    "--workspace", default="", metavar="NAME", shell_complete=complete_workspace, help="Whose it is."
)
@_token_options
@click.argument("name", metavar="NAME")
@click.argument("url", metavar="URL")
def add_command(name: str, url: str, workspace: str, **options: Any) -> int:
    """Take a repository in: `code add bert https://host/team/bert.git`. Tokens are sealed, and never shown."""
    given = {key: value for key, value in _given(options).items() if value}
    made = run(lambda client: client.codes.add(name, url, workspace=workspace, **given))
    current().output.line(made.id)
    return 0


@code_command.command("set", cls=PlainVerb)
@click.option("--name", metavar="NAME", help="Another name.")
@click.option("--url", metavar="URL", help="Another address; the old token does not go there.")
@_token_options
@click.argument("source", metavar="SOURCE")
def set_command(source: str, **options: Any) -> int:
    """Change one; an empty text takes away what was there."""
    given = _given(options)
    if not given:
        raise InvalidError("There is nothing to change.", hint="See `trainyard code set --help`.")
    run(lambda client: client.codes.change(source, **given))
    current().output.line(f"{source} is changed")
    return 0


@code_command.command("rm", cls=PlainVerb)
@click.argument("source", metavar="SOURCE")
def rm_command(source: str) -> int:
    """Forget one. Jobs that name it cannot start any more."""
    run(lambda client: client.codes.remove(source))
    current().output.line(f"{source} is removed")
    return 0


def _given(options: dict[str, Any]) -> dict[str, str]:
    found = {
        key: value for key, value in options.items() if value is not None and not key.startswith("token")
    }
    name = options["token_env"]
    if options["token_stdin"]:
        found["token"] = sys.stdin.readline().strip()
    elif name:
        here = settings_module.pick([name])
        if name not in here:
            raise InvalidError(f"{name} is not set here.", hint=f"Export {name}, or use --token-stdin.")
        found["token"] = here[name]
    return found


def _show(found: Sequence[CodeSource]) -> int:
    from trainyard.cli.jobs.jobs import record_all

    invocation = current()
    if invocation.json:
        invocation.output.json(record_all(found))
        return 0
    rows = [
        [
            one.id,
            one.name,
            one.workspace,
            one.url,
            one.commit or one.branch or "-",
            "yes" if one.has_token else "-",
        ]
        for one in found
    ]
    columns = [Column("Id", drop=2), Column("Name", shrink=8), Column("Workspace", shrink=8, drop=1)]
    Table([*columns, Column("Url", shrink=20), Column("At", shrink=8), Column("Token")], rows).print(
        invocation.output
    )
    return 0
