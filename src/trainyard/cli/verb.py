"""Shared by all commands: options that may stand before or after the command, and completion of names."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from trainyard.cli.invocation import Invocation

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

Function = TypeVar("Function", bound=Callable[..., Any])


def common_options(*, before_verb: bool = False, backend: bool = True) -> list[click.Option]:
    """--json, --backend and --debug, which every verb takes; noted in the invocation."""
    return [
        click.Option(
            ["--json"], is_flag=True, expose_value=False, callback=_note("json"), help="Print JSON."
        ),
        click.Option(
            ["--backend"],
            metavar="NAME",
            expose_value=False,
            callback=_note("backend"),
            hidden=not backend,
            help="Which machines: local, ssh or aliyun.",
        ),
        click.Option(
            ["--debug"],
            is_flag=True,
            expose_value=False,
            callback=_note("debug"),
            hidden=not before_verb,
            help="Show the traceback of an error.",
        ),
    ]


def _note(name: str) -> Callable[[click.Context, click.Parameter, Any], Any]:
    def callback(context: click.Context, _option: click.Parameter, value: Any) -> Any:
        invocation = context.find_object(Invocation)
        if value and invocation is not None:
            setattr(invocation, name, value)
        return value

    return callback


class Verb(click.Command):
    """A command with the common options."""

    looks_at_machines = True

    def __init__(self, *args: Any, **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.params.extend(common_options(backend=self.looks_at_machines))


class PlainVerb(Verb):
    """A verb that looks at no machines, so that --backend says nothing to it."""

    looks_at_machines = False


class CommandLineVerb(Verb):
    """A verb whose last argument is somebody else's command line: options end where that begins.

    `run -d NAME ls -l` and `run NAME -d ls -l` both give `-d` to us and `-l` to ls.
    """

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        """Mark the beginning of the command line, then parse as usual."""
        with_value = {
            spelling
            for param in self.get_params(context)
            if isinstance(param, click.Option) and not param.is_flag and not param.count
            for spelling in param.opts
        }
        positionals, place = 0, 0
        while place < len(args) and args[place] != "--":
            if args[place].startswith("-") and args[place] != "-":
                place += 1 + (args[place].replace("_", "-") in with_value)
                continue
            positionals += 1
            if positionals == 2:
                args = [*args[:place], "--", *args[place:]]
                break
            place += 1
        return super().parse_args(context, args)


def names_argument(*, many: bool = False, required: bool = True) -> Callable[[Function], Function]:
    """The NAME argument: a machine, a part of its name that fits no other, or {job}."""
    return click.argument(
        "names" if many else "name",
        metavar=("NAME..." if required else "[NAME]...") if many else "NAME",
        nargs=-1 if many else 1,
        required=required,
        shell_complete=complete_name,
    )


def complete_name(_context: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Machines of this computer and their jobs; a completion must be quick, so nothing is asked over the network."""
    from click.shell_completion import CompletionItem

    from trainyard.cli.completion_names import local_names

    return [CompletionItem(name) for name in local_names() if name.startswith(incomplete)]
