"""The main program: finds the command, imports and runs it, and prints errors.

`trainyard`, `fastgpu` and `ecluster` are three names of this program; `ls` prints a different table for each.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import click

from trainyard.cli.invocation import Invocation
from trainyard.cli.terminal.output import Output, exit_code_of
from trainyard.cli.verb import common_options
from trainyard.cli.verb_list import SECTIONS, VERBS

INTERRUPTED = 130
BROKEN_PIPE = 141  # as if SIGPIPE had ended it, which is what shells expect of a filter's source
FAMILY = frozenset({"trainyard", "fastgpu", "ecluster"})
INTRODUCTION = """\
Put training onto machines, and manage what runs there.

NAME is a machine (task0.bert), a part of its name that fits no other, or {bert} for all tasks of the job bert.
"""


class LazyGroup(click.Group):
    """A group whose verbs are imported when they are used, and described from a table until then."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  # click's signature
        """All verbs, in the order of the table."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002  # same
        """Import a verb."""
        if cmd_name not in VERBS:
            return None
        module = import_module(f"trainyard.cli.{VERBS[cmd_name][0]}")
        command: click.Command = getattr(module, f"{cmd_name}_command")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the verb; one that does not exist is answered with the nearest."""
        if args[0] not in VERBS and not ctx.resilient_parsing:
            from difflib import get_close_matches

            near = get_close_matches(args[0], VERBS, n=1, cutoff=0.5)
            hint = f"Did you mean `{near[0]}`?" if near else ""
            raise UnknownVerbError(args[0], hint or f"See `{ctx.info_name} --help`.")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002  # same
        """The table, by section."""
        for title, verbs in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(f"{verb:<10}", text) for verb, (_, text) in verbs.items()])


class UnknownVerbError(click.UsageError):
    """There is no such verb."""

    def __init__(self, verb: str, hint: str) -> None:
        super().__init__(f"there is no verb {verb!r}")
        self.hint = hint


def make_group() -> LazyGroup:
    """The program's command tree."""
    return LazyGroup(
        "trainyard",
        help=INTRODUCTION,
        params=[
            *common_options(before_verb=True),
            click.Option(
                ["-V", "--version"],
                is_flag=True,
                is_eager=True,
                expose_value=False,
                callback=_print_version,
                help="Show the version.",
            ),
        ],
        context_settings={
            "help_option_names": ["-h", "--help"],
            # --instance_type and --instance-type are one option, as in both generations of the family.
            "token_normalize_func": _kebab,
        },
        options_metavar="[OPTIONS]",
        subcommand_metavar="VERB ...",
        epilog="`VERB --help` tells more about one of them.",
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; returns its exit status. Never shows a traceback without --debug."""
    program = os.path.basename(sys.argv[0])  # noqa: PTH119  # pathlib costs as much as the whole help
    args = list(sys.argv[1:] if arguments is None else arguments)
    output = Output(os.environ, program=program if program in FAMILY else "trainyard")
    invocation = Invocation(program if program in FAMILY else "trainyard", output)
    try:
        status = _serve(args, invocation)
        output.flush()
        return status
    except BrokenPipeError:
        return _quiet_end()
    except KeyboardInterrupt:
        output.note("interrupted")
        return INTERRUPTED
    except Exception as error:  # the one place where errors become text
        if invocation.debug or "--debug" in args:
            raise
        try:
            status = _fail(error, output, invocation.program)
            output.flush()
            return status
        except OSError:  # the disk is full, or the reader has gone: there is nowhere left to say so
            _quiet_end()
            return exit_code_of(error)


def _serve(args: list[str], invocation: Invocation) -> int:
    group = make_group()
    program = invocation.program
    variable = f"_{program.upper().replace('-', '_')}_COMPLETE"
    instruction = os.environ.get(variable)
    if instruction:
        from click.shell_completion import shell_complete

        return shell_complete(group, {"obj": invocation}, program, variable, instruction)
    try:
        with group.make_context(program, args or ["--help"], obj=invocation) as context:
            result: Any = group.invoke(context)
    except click.exceptions.Exit as stop:
        return stop.exit_code
    return result if isinstance(result, int) else 0


def _fail(error: Exception, output: Output, program: str) -> int:
    if isinstance(error, click.ClickException):
        from trainyard.lib.errors import InvalidError

        output.failure(InvalidError(_sentence(error), hint=_usage_hint(error, program)))
        return 2
    from trainyard.lib.errors import Error, TaskErrors, UnsupportedError

    if isinstance(error, ModuleNotFoundError) and not (error.name or "trainyard").startswith("trainyard"):
        error = UnsupportedError(
            f"this command needs a package that is not installed: {error.name}",
            hint="Run `pip install '.[server]'` in the checkout.",
        )
    output.failure(error)
    if not isinstance(error, (Error, TaskErrors, OSError)):
        output.note("hint: Run it again with --debug for the traceback.")
    return exit_code_of(error)


def _sentence(error: click.ClickException) -> str:
    if isinstance(error, click.NoSuchOption):
        return f"there is no option {error.option_name}"
    message = error.format_message().split("\n")[0].rstrip(".")
    return message[:1].lower() + message[1:]


def _usage_hint(error: click.ClickException, program: str) -> str:
    if isinstance(error, UnknownVerbError):
        return error.hint
    if isinstance(error, click.NoSuchOption) and error.possibilities:
        from difflib import get_close_matches

        near = get_close_matches(error.option_name, error.possibilities, n=1, cutoff=0.0)
        return f"Did you mean {near[0]}?"
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else program
    return f"See `{path} --help`."


def _quiet_end() -> int:
    """Handle a closed output pipe. Python would report it once more when it flushes at exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    return BROKEN_PIPE


def _kebab(token: str) -> str:
    return token.replace("_", "-")


def _print_version(context: click.Context, _option: click.Parameter, value: bool) -> None:
    if value and not context.resilient_parsing:
        from importlib.metadata import version

        invocation = context.find_object(Invocation)
        if invocation is not None:
            invocation.output.line(f"trainyard {version('trainyard')}")
        context.exit()


if __name__ == "__main__":
    sys.exit(main())
