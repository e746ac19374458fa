"""The global options of one call of the program. It imports little, because `--help` uses it too."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import click

from trainyard.cli.terminal.output import Output


class Invocation:
    """One call: how it was named, where it prints, and the options that every verb takes."""

    __slots__ = ("backend", "debug", "json", "now", "output", "program")

    def __init__(self, program: str, output: Output) -> None:
        self.program = program
        self.output = output
        self.backend = ""
        self.json = False
        self.debug = False
        self.now: Callable[[], datetime] = lambda: datetime.now(
            UTC
        )  # or by the clock of a server that was asked


def find_invocation() -> Invocation | None:
    """The call that is being served; None where a shell only asks how a word goes on."""
    context = click.get_current_context(silent=True)
    return None if context is None else context.find_object(Invocation)


def current() -> Invocation:
    """The call that is being served."""
    invocation = find_invocation()
    if invocation is None:  # only where somebody runs a verb without `main`
        raise click.UsageError("this verb has to be run through the trainyard program")
    return invocation
