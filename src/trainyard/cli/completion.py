"""`completion`: prints the script that lets a shell complete commands, options and names."""

from __future__ import annotations

import click

from trainyard.cli.invocation import current
from trainyard.cli.verb import PlainVerb

WHERE = {
    "bash": 'eval "$({program} completion bash)"   # in ~/.bashrc',
    "zsh": 'eval "$({program} completion zsh)"   # in ~/.zshrc, after compinit',
    "fish": "{program} completion fish > ~/.config/fish/completions/{program}.fish",
}


@click.command("completion", cls=PlainVerb)
@click.argument("shell", type=click.Choice(sorted(WHERE)))
@click.pass_context
def completion_command(context: click.Context, shell: str) -> int:
    """Print the script that completes verbs and names in SHELL.

    Bash: put `eval "$(trainyard completion bash)"` into ~/.bashrc. Zsh: likewise into ~/.zshrc, after compinit. Fish:
    write it to ~/.config/fish/completions/trainyard.fish.
    """
    from click.shell_completion import get_completion_class

    invocation = current()
    completer = get_completion_class(shell)
    if completer is None:
        raise click.UsageError(f"there is no completion for {shell}")
    program = invocation.program
    variable = f"_{program.upper().replace('-', '_')}_COMPLETE"
    script = completer(context.find_root().command, {}, program, variable).source()
    if invocation.json:
        invocation.output.json({"shell": shell, "script": script})
    else:
        invocation.output.line(script)
        if invocation.output.is_terminal:
            invocation.output.note(f"# {WHERE[shell].format(program=program)}", "dim")
    return 0
