"""`help`: prints the same text as `--help`."""

from __future__ import annotations

import click

from trainyard.cli.invocation import current
from trainyard.cli.verb import PlainVerb


@click.command("help", cls=PlainVerb)
@click.argument("verb", required=False)
@click.pass_context
def help_command(context: click.Context, verb: str | None) -> None:
    """Show the help of the program, or of one VERB."""
    root = context.find_root()
    group = root.command
    if verb and isinstance(group, click.Group):
        _name, command, _rest = group.resolve_command(root, [verb])
        if command is not None:
            with click.Context(command, info_name=verb, parent=root) as inner:
                _print(command.get_help(inner))
                return
    _print(group.get_help(root))


def _print(text: str) -> None:
    invocation = current()
    if invocation.json:
        invocation.output.json({"help": text})
    else:
        invocation.output.line(text)
