"""The program's edges: names of verbs, options in any place, exit codes, no traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import click
import pytest

from trainyard.cli.machines.run import run_command
from trainyard.cli.machines.scp import CopyAddress, _place
from trainyard.cli.main import main
from trainyard.lib.errors import UnsupportedError


@pytest.fixture
def cli(monkeypatch, capfd):
    monkeypatch.setattr("sys.argv", ["trainyard"])

    def run(*words):
        status = main(words)
        captured = capfd.readouterr()
        return status, captured.out, captured.err

    return run


def test_the_nearest_verb_is_suggested_when_it_does_not_exist(cli):
    assert cli("lss") == (2, "", "error: there is no verb 'lss'\nhint: Did you mean `ls`?\n")
    status, _, errors = cli("xyzzy")
    assert status == 2
    assert errors.endswith("hint: See `trainyard --help`.\n")


def test_the_version_is_printed_when_asked(cli):
    status, out, _ = cli("--version")
    assert status == 0
    assert out.startswith("trainyard ")


def test_options_count_the_same_when_they_come_before_or_after_the_verb(cli):
    for words in (["--json", "ls"], ["ls", "--json"], ["--backend", "local", "ls", "--json"]):
        status, out, errors = cli(*words)
        assert (status, json.loads(out), errors) == (0, [], "")


def test_a_wrong_option_is_an_error_in_our_words_when_given(cli):
    assert cli("create", "--nmae", "x") == (
        2,
        "",
        "error: there is no option --nmae\nhint: Did you mean --name?\n",
    )
    status, _, errors = cli("ls", "surplus")
    assert status == 2
    assert errors.startswith("error: ")
    assert "hint: See `trainyard ls --help`." in errors


def test_no_traceback_is_shown_when_something_unforeseen_happens(cli, monkeypatch):
    def explode(*_):
        raise KeyError("boom")

    monkeypatch.setattr("trainyard.settings.load", explode)
    assert cli("ls") == (
        1,
        "",
        "error: internal: KeyError: 'boom'\nhint: Run it again with --debug for the traceback.\n",
    )
    for words in (["--debug", "ls"], ["ls", "--debug"]):
        with pytest.raises(KeyError):
            cli(*words)


def test_the_package_and_what_installs_it_are_named_when_one_is_missing():
    """In a process of its own: here the package has been imported by other tests."""
    program = (
        "import sys; sys.modules['httpx2'] = None; "  # as where only the smallest installation is
        "from trainyard.cli.main import main; sys.exit(main(['jobs', 'ls']))"
    )
    env = {**os.environ, "TRAINYARD_SERVER": "http://127.0.0.1:9", "TRAINYARD_TOKEN": "ty_x"}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (
        UnsupportedError.exit_code,
        (
            "error: this command needs a package that is not installed: httpx2\n"
            "hint: Run `pip install '.[server]'` in the checkout.\n"
        ),
    )


def test_the_backend_is_named_when_it_does_not_exist(cli):
    status, _, errors = cli("ls", "--backend", "moon")
    assert status == 2
    assert "there is no backend 'moon'" in errors


def test_flags_of_both_generations_are_understood_when_written_either_way(cli, monkeypatch):
    from trainyard.cli.machines import create

    seen = []
    monkeypatch.setattr(create.machine_lookup, "run", lambda _invocation, _work: 0)
    gather = create._gather
    monkeypatch.setattr(create, "_gather", lambda *args: seen.append(gather(*args)) or seen[-1])
    words = "create --name x -np 3 -i t -nas -vpc net -cuda --system_disk_size 5 --data-disk-size 6 --skip_setup --confirm_cost"
    assert cli(*words.split())[0] == 0
    assert cli(*words.replace("_", "-").replace("-np", "--machine").split())[0] == 0
    assert seen[0] == seen[1]
    assert seen[0]["machines"] == 3
    assert seen[0]["enable_nas"] is seen[0]["install_cuda"] is seen[0]["confirm_cost"] is True
    assert (seen[0]["vpc_name"], seen[0]["system_disk_size"], seen[0]["data_disk_size"]) == ("net", 5, 6)


@pytest.mark.parametrize(
    ("words", "name", "command", "detached"),
    [
        (["a", "ls", "-l"], "a", ("ls", "-l"), False),
        (["-d", "a", "ls", "-l"], "a", ("ls", "-l"), True),
        (["a", "-d", "ls", "-d"], "a", ("ls", "-d"), True),
        (["a", "--", "ls", "--json"], "a", ("ls", "--json"), False),
        (["--timeout", "5s", "a", "--timeout", "6s", "x"], "a", ("x",), False),
        (["a", "grep --json x"], "a", ("grep --json x",), False),
    ],
)
def test_options_of_the_command_are_the_commands_when_it_has_some(words, name, command, detached):
    context = run_command.make_context("run", list(words))
    assert context.params["name"] == name
    assert context.params["command"] == command
    assert context.params["non_blocking"] is detached


def test_a_time_that_makes_no_sense_is_refused_when_given():
    with pytest.raises(click.BadParameter):
        run_command.make_context("run", ["--timeout", "soon", "a", "b"])


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("task0.a:/x", CopyAddress("task0.a", "/x")),
        ("{a}:", CopyAddress("{a}", "")),
        ("task0.a:b:c", CopyAddress("task0.a", "b:c")),
        ("./a:b", CopyAddress("", "./a:b")),
        ("/x:y", CopyAddress("", "/x:y")),
        (":x", CopyAddress("", ":x")),
        ("plain", CopyAddress("", "plain")),
    ],
)
def test_a_place_is_taken_apart_as_scp_does(text, place):
    assert _place(text) == place
