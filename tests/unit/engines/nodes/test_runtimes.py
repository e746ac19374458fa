"""What runs containers on a node, found out of programs that stand in for them: which kind it is, and why it cannot be used."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainyard.engines.nodes.agent.containers.container_supervisor import IS_AWAY, ended_of
from trainyard.engines.nodes.agent.sandbox import capabilities
from trainyard.engines.nodes.agent.sandbox.capabilities import find_runtime, last_line

PODMAN = "echo podman version 4.3.1"
STAND_IN = f"echo 'Emulate Docker CLI using podman.' >&2; {PODMAN}"
DOCKER = 'if [ "$1" = version ]; then echo 20.10; else echo Docker version 20.10; fi'
AWAY = "Cannot connect to the Docker daemon at unix:///run/docker.sock. Is the docker daemon running?"
FORBIDDEN = "permission denied while trying to connect to the Docker daemon socket at unix:///run/docker.sock"


def refusing(words: str) -> str:
    return f'if [ "$1" = version ]; then echo; echo "{words}" >&2; exit 1; fi; echo Docker version 20.10'


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder with programs."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(capabilities, "PATHS", "")
    return tmp_path


@pytest.mark.parametrize(
    ("programs", "wanted", "kind", "name"),
    [
        ({"podman": PODMAN, "docker": DOCKER}, "", "podman", "podman"),
        ({"podman": PODMAN, "docker": DOCKER}, "docker", "docker", "docker"),
        ({"podman": PODMAN, "docker": DOCKER}, "refuse", "podman", "podman"),
        ({"podman": "exit 1", "docker": DOCKER}, "", "docker", "docker"),
        ({"docker": DOCKER}, "podman", "", ""),
        ({"docker": STAND_IN}, "", "podman", "docker"),
        ({"podman": DOCKER}, "", "docker", "podman"),
        ({}, "", "", ""),
    ],
)
def test_the_kind_is_what_a_program_says_of_itself_whatever_it_is_called(
    node: Path, programs: dict[str, str], wanted: str, kind: str, name: str
):
    for called, body in programs.items():
        (node / called).write_text(f"#!/bin/sh\n{body}\n")
        (node / called).chmod(0o755)
    found = find_runtime(wanted)
    assert (found.kind, found.path) == (kind, str(node / name) if name else "")


@pytest.mark.parametrize(("words", "is_away"), [(AWAY, True), (FORBIDDEN, False)])
def test_it_is_known_why_docker_cannot_be_used_and_whether_waiting_helps(
    node: Path, words: str, is_away: bool
):
    (node / "docker").write_text(f"#!/bin/sh\n{refusing(words)}\n")
    (node / "docker").chmod(0o755)
    found = find_runtime()
    assert (found.kind, found.problem) == ("", f"docker says: {words}")
    assert bool(IS_AWAY.search(found.problem)) == is_away


def test_what_a_program_said_last_is_no_word_on_how_to_use_it():
    assert (
        last_line("docker: Error: no\n\nRun 'docker run --help' for more information\n")
        == "docker: Error: no"
    )
    assert last_line("docker: Error: no.\nSee 'docker run --help'.\n") == "docker: Error: no."
    assert last_line("\n") == ""


@pytest.mark.parametrize(
    ("said", "status"),
    [([], None), (["began", "ended 7"], 7), (["began", "ended x"], None), (["ended"], None)],
)
def test_the_end_of_a_container_is_what_its_first_process_wrote(said: list[str], status: int | None):
    assert ended_of(said) == status
