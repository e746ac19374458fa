"""The help of every verb, as committed pictures; what the table of verbs promises."""

from __future__ import annotations

import subprocess
import sys

import click
import pytest

import screens
from trainyard.cli.invocation import Invocation
from trainyard.cli.main import make_group
from trainyard.cli.terminal.output import Output
from trainyard.cli.verb_list import VERBS


def command(*path: str) -> tuple[click.Context, click.Command]:
    found: click.Command = make_group()
    context = click.Context(found, info_name="trainyard", obj=Invocation("trainyard", Output({})), terminal_width=80,
                            help_option_names=["-h", "--help"])  # fmt: skip
    for name in path:
        assert isinstance(found, click.Group)
        found = found.get_command(context, name) or pytest.fail(f"there is no verb {name}")
        context = click.Context(found, info_name=name, parent=context)
    return context, found


def every_path() -> list[tuple[str, ...]]:
    _, hosts = command("hosts")
    assert isinstance(hosts, click.Group)
    return [(verb,) for verb in VERBS] + [("hosts", name) for name in sorted(hosts.commands)]


@pytest.mark.parametrize("path", every_path(), ids=" ".join)
def test_help_of_a_verb_is_as_committed_when_asked(request, path):
    context, found = command(*path)
    text = found.get_help(context) + "\n"
    assert all(len(line) <= 80 for line in text.splitlines())
    screens.check(request.config, f"help_{'_'.join(path)}_80", text)


@pytest.mark.parametrize("path", every_path(), ids=" ".join)
def test_every_verb_takes_json_backend_and_debug_when_they_come_after_it(path):
    _, found = command(*path)
    spellings = {spelling for param in found.params for spelling in param.opts}
    assert {"--json", "--backend", "--debug"} <= spellings


@pytest.mark.parametrize("path", every_path(), ids=" ".join)
def test_every_option_has_a_text_when_it_is_shown(path):
    _, found = command(*path)
    assert found.help
    assert found.help.split("\n")[0].endswith(".")
    assert all(param.help for param in found.params if isinstance(param, click.Option) and not param.hidden)


def test_help_imports_none_of_the_machinery_when_printed():
    code = (
        "import sys; from trainyard.cli.main import main; sys.argv=['trainyard', '--help']; main();"
        "heavy = {'asyncio', 'dataclasses', 'asyncssh', 'pathspec', 'pathlib', 'subprocess'} & set(sys.modules);"
        "sys.exit(', '.join(heavy) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
