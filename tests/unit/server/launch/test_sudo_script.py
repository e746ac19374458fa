"""What `sudo` is in tasks of the jobs whose manual says `sudo -E bash -c '...'`: the command, as it is."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from trainyard.server.launch.kinds import apulis

SHELLS = [shell for shell in ("dash", "bash", "busybox") if shutil.which(shell)]


@pytest.fixture
def script(tmp_path: Path) -> Path:
    folder = tmp_path / "bin 中文 $(x) 'q'"
    folder.mkdir()
    path = folder / "sudo"
    path.write_text(apulis._sudo())
    return path


def said(script: Path, shell: str, *words: str) -> str:
    start = [shell, "sh"] if shell == "busybox" else [shell]
    env = {"PATH": os.environ["PATH"], "KEPT": "a b", "SHELL": "/bin/sh"}
    done = subprocess.run(
        [*start, str(script), *words], env=env, capture_output=True, text=True, input="echo in a shell\n"
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    "options",
    [["-E"], ["-nE"], ["-E", "-u", "root"], ["-Eu", "root"], ["--preserve-env", "--"], ["-E", "-H"]],
)
def test_a_command_runs_with_its_own_words_when_sudo_has_options(script, shell, options):
    words = ["sh", "-c", 'echo "$KEPT|$1|$2"', "me", "two words", "-u"]
    assert said(script, shell, *options, *words) == "a b|two words|-u"


@pytest.mark.parametrize("shell", SHELLS)
def test_variables_are_set_when_they_stand_before_the_command(script, shell):
    assert said(script, shell, "-E", "MORE=x y", "sh", "-c", 'echo "$MORE"') == "x y"


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_is_started_when_there_is_no_command(script, shell):
    assert said(script, shell, "-i") == "in a shell"


def test_the_status_is_the_commands_own_when_it_fails(script):
    assert subprocess.run(["sh", str(script), "-E", "sh", "-c", "exit 7"]).returncode == 7
