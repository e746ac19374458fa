"""`launch`: starts one process for each device of this machine. Tasks of a platform have the same program."""

from __future__ import annotations

from typing import Any

import click

from trainyard.cli.invocation import current
from trainyard.cli.verb import PlainVerb
from trainyard.engines.nodes.agent.launcher import OPTIONS, LaunchError, run
from trainyard.lib.errors import InvalidError
from trainyard.spec.launching import launch_lines


def _options() -> list[click.Option]:
    made = []
    for option in OPTIONS:
        if option.default is False:
            made.append(click.Option([option.name], is_flag=True, help=option.text))
        elif option.default == ():
            made.append(click.Option([option.name], multiple=True, metavar=option.metavar, help=option.text))
        else:
            kind = type(option.default)
            made.append(
                click.Option(
                    [option.name], type=kind, default=option.default, metavar=option.metavar, help=option.text
                )
            )
    return made


@click.command("launch", cls=PlainVerb, context_settings={"allow_interspersed_args": False})
@click.argument("command", nargs=-1, type=click.UNPROCESSED, required=True)
def launch_command(command: tuple[str, ...], **settings: Any) -> int:
    """Start COMMAND once for each device of this machine, each with its rank and its device.

    One word is shell text, several are a program and its arguments. When one process fails the others are ended, and its
    exit status is the result. On several machines, run it on each; see --nodes, --node-rank and --rank-table. With --json every line is an object: process and line.
    """
    try:
        return run({**settings, "json": current().json}, command, launch_lines())
    except LaunchError as error:
        raise InvalidError(error.message, hint=error.hint) from error


launch_command.params[:0] = _options()
