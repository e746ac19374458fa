"""`ssh` and `tmux`: connect the user's terminal to a machine."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import click

from trainyard.cli.invocation import current
from trainyard.cli.machines import machine_lookup
from trainyard.cli.machines.machine_lookup import MachineLookup, require_running
from trainyard.cli.verb import CommandLineVerb, Verb, names_argument
from trainyard.lib.errors import InvalidError, UnsupportedError
from trainyard.lib.shell import quote
from trainyard.spec.machine import Machine
from trainyard.spec.names import session_name
from trainyard.transport.api import Attachable, Preparable


@click.command("ssh", cls=CommandLineVerb)
@click.option("-t", "--terminal", is_flag=True, help="Give the command a terminal.")
@names_argument()
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def ssh_command(name: str, command: tuple[str, ...], terminal: bool) -> int:
    """Log in to a machine, or run COMMAND there beside the task's shell.

    The words of COMMAND are joined by blanks, as ssh itself does. To use the shell of the task, with its folder and
    environment, see `run` and `tmux`.
    """
    script = " ".join(command)
    return _hand_over(name, lambda _machine: script, terminal=terminal or not command)


@click.command("tmux", cls=Verb)
@names_argument()
def tmux_command(name: str) -> int:
    """Attach your terminal to the task's shell, where its commands and their output are to be seen.

    Ctrl-b d leaves, and everything runs on. Where there is no session yet, this logs in like `ssh`.
    """
    if not sys.stdin.isatty():
        raise InvalidError(
            "tmux needs a terminal, and standard input is none",
            hint=f"Follow the output with `trainyard logs -f {name}`.",
        )
    body = Path(__file__).with_name("attach.sh").read_text(encoding="utf-8")
    return _hand_over(
        name, lambda machine: f"name={quote(session_name(machine.name))}\n{body}", terminal=True
    )


def _hand_over(name: str, script: Callable[[Machine], str], *, terminal: bool) -> int:
    invocation = current()

    async def work(machines: MachineLookup) -> list[str]:
        machine = await machines.select_one(name)
        require_running([machine])
        transport = machines.backend(machine.backend).transport(machine)
        if not isinstance(transport, Attachable):
            raise UnsupportedError(f"the {machine.backend} backend gives no terminal on {machine.name}")
        if isinstance(transport, Preparable):
            await transport.prepare()
        return list(transport.argv(script(machine), terminal=terminal))

    argv = machine_lookup.run(invocation, work)
    if invocation.json:
        invocation.output.json({"argv": argv})
        return 0
    invocation.output.flush()
    return os.execvp(argv[0], argv)  # noqa: S606  # the terminal is theirs from here on
