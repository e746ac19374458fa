"""How an image gets onto a node, with a stand-in for the program that fetches it: what it is asked for, and how it is told."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from trainyard.engines.nodes.agent.containers.images import Fetcher, cause_of, has_host
from trainyard.engines.nodes.agent.sandbox.storage_mounts import RefusalError
from trainyard.engines.nodes.agent.tasks.folder import TaskFolder


class Deaf:
    """Nobody asks us to go."""

    is_told = False

    def pause(self, seconds: float | None) -> None:
        """The stand-in has ended, or will in a moment."""


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        ("Error: unable to retrieve auth token: invalid username/password: unauthorized", "unauthorized"),
        ("manifest unknown: manifest unknown", "not found"),
        ("write /var/lib/x: no space left on device", "disk full"),
        ("dial tcp 127.0.0.1:9: connect: connection refused", "not reached"),
        ('Error: short-name "a/b" did not resolve to an alias', "no such name"),
        (
            "pull access denied for a/b, repository does not exist or may require 'docker login'",
            "not found, or unauthorized",
        ),
        (
            'Error response from daemon: Head "http://h/v2/a/manifests/1": no basic auth credentials',
            "unauthorized",
        ),
        ("toomanyrequests: You have reached your pull rate limit.", "too many requests"),
        ("dial tcp 10.40.42.9:40404: i/o timeout", "not reached"),
        (
            "Cannot connect to the Docker daemon at unix:///x. Is the docker daemon running?",
            "docker does not answer",
        ),
        ("Error: something else", "failed"),
    ],
)
def test_the_cause_is_named_when_an_image_cannot_be_fetched(said: str, cause: str):
    assert cause_of(said) == cause


def test_a_registry_is_known_by_its_name():
    assert [has_host(one) for one in ("a:1", "a/b:1", "localhost/b", "h.example/b", "h:5000/b/c:1")] == [
        False, False, True, True, True,
    ]  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TaskFolder:
    monkeypatch.chdir(tmp_path)
    found = TaskFolder("w1.1", "worker-0")
    Path(found.path).mkdir(parents=True)
    Path(found.file("state")).touch()
    return found


def program(tmp_path: Path, body: str) -> str:
    """A stand-in that notes what it is asked for, has no image, and does `body` to fetch one."""
    path = tmp_path / "program"
    path.write_text(f'#!/bin/sh\necho "$*" >> asked\n[ "$1" != image ] || exit 1\n{body}\n')
    path.chmod(0o755)
    return str(path)


def fetch(folder: TaskFolder, kind: str, path: str, **view: str) -> list[str]:
    Fetcher(folder, {"image": "a/b:1", **view}, (kind, path)).ensure(Deaf())  # type: ignore[arg-type]
    return asked()


def asked() -> list[str]:
    return [line for line in Path("asked").read_text().splitlines() if not line.startswith("image")]


def test_the_registry_that_everybody_means_is_tried_when_a_name_has_none(folder: TaskFolder, tmp_path: Path):
    body = 'case "$*" in *docker.io/a/b:1) exit 0;; esac; echo "short-name did not resolve"; exit 125'
    assert fetch(folder, "podman", program(tmp_path, body)) == [
        "pull -q -- a/b:1",
        "pull -q -- docker.io/a/b:1",
    ]
    codes = [json.loads(line)["note"][0] for line in Path(folder.file("state")).read_text().splitlines()]
    assert codes == ["image_pulling", "image_pulled"]


def test_docker_is_asked_three_times_when_the_registry_is_not_reached(folder: TaskFolder, tmp_path: Path):
    path = program(tmp_path, "echo connection refused; exit 1")
    with pytest.raises(RefusalError, match=r"cannot be fetched \(not reached\): connection refused"):
        fetch(folder, "docker", path)
    assert asked() == ["pull -q -- a/b:1"] * 3


@pytest.mark.parametrize(
    ("image", "hosts"),
    [("h:5000/a/b:1", {"h:5000"}), ("a/b:1", {"docker.io", "https://index.docker.io/v1/"})],
)
def test_a_sign_in_is_there_for_the_images_registry_and_gone_afterwards(
    folder: TaskFolder, tmp_path: Path, image: str, hosts: set[str]
):
    path = program(tmp_path, f'cp "$3" {tmp_path}/copy; ls -l "$3" | cut -c1-10 > {tmp_path}/mode')
    view = {"image": image, "username": "robot", "password": "p$(x) 中"}
    Fetcher(folder, view, ("podman", path)).ensure(Deaf())  # type: ignore[arg-type]
    auths = json.loads((tmp_path / "copy").read_text())["auths"]
    assert set(auths) == hosts
    assert {base64.b64decode(one["auth"]).decode() for one in auths.values()} == {"robot:p$(x) 中"}
    assert (tmp_path / "mode").read_text() == "-rw-------\n"
    assert not Path(folder.file("registry")).exists()
