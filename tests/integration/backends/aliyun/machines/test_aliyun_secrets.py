"""Secrets are nowhere to be seen: not in what is printed, with --debug too, not in files, not in the list of processes."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from emulation import PROGRAM, Emulation, emulated

# Some twenty whole programs.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

KIND = "ecs.g7.large"
CREATE = ["create", "--name", "quiet", "-i", KIND, "-y", "--skip-setup"]
COMMANDS = [
    ["ls"],
    ["ls", "-a", "--json"],
    [*CREATE, "--dry-run"],
    CREATE,
    ["create", "--name", "quiet", "-i", "ecs.no.such", "-y"],
    ["stop", "task0.quiet"],
    ["kill", "-y", "task0.quiet"],
    ["addip", "-a", "--cidr", "no range"],
    ["queryimage"],
    ["cleanup", "-y"],
]


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulation]:
    with emulated(tmp_path_factory.mktemp("cloud") / "state", "--set", "machines=false") as emulation:
        yield emulation


class Watched:
    """A shell in which nothing may be seen that should not."""

    def __init__(self, cloud: Emulation, home: Path, keys: dict[str, str]) -> None:
        self.home = home
        # The emulator's own variables, but for its keys.
        self.env = {name: value for name, value in cloud.environ().items() if "KEY" not in name}
        self.env = {**os.environ, **self.env, "HOME": str(home), "USER": "alice", **keys}
        self.env["TRAINYARD_HOME"] = str(home / "trainyard")
        self.secrets = [value for name, value in keys.items() if not name.endswith("KEY_ID")]

    def run(self, *words: str) -> str:
        """Run it; everything that it said."""
        before = pids()
        process = subprocess.Popen(
            [*PROGRAM, *words, "--debug"],
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        lines = set()
        while process.poll() is None:
            lines |= command_lines(pids() - before)
            time.sleep(0.05)
        said = process.communicate()[0]
        for secret in self.secrets:
            assert secret not in said, f"{words}: {said}"
            assert not any(secret in line for line in lines), words
        return said

    def check_files(self) -> None:
        """What was written down, and what was left in other places."""
        for path in self.home.rglob("*"):
            if path.is_file():
                content = path.read_bytes()
                assert not any(secret.encode() in content for secret in self.secrets), path


def pids() -> set[str]:
    """Of all processes."""
    return {name for name in os.listdir("/proc") if name.isdecimal()}


def command_lines(of: set[str]) -> set[str]:
    """As `ps` shows them to everybody."""
    found = set()
    for pid in of:
        try:
            found.add(Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue  # gone meanwhile
    return found


def session_keys(cloud: Emulation) -> dict[str, str]:
    arn = f"acs:ram::{cloud.ready['account_id']}:role/trainer"
    given = cloud.call("sts", "AssumeRole", RoleArn=arn, RoleSessionName="me", DurationSeconds=900)[
        "Credentials"
    ]
    return {
        "ALIBABA_CLOUD_ACCESS_KEY_ID": given["AccessKeyId"],
        "ALIBABA_CLOUD_ACCESS_KEY_SECRET": given["AccessKeySecret"],
        "ALIBABA_CLOUD_SECURITY_TOKEN": given["SecurityToken"],
    }


def own_keys(cloud: Emulation) -> dict[str, str]:
    return {name: value for name, value in cloud.environ().items() if "KEY" in name}


@pytest.mark.parametrize("keys", [own_keys, session_keys], ids=["own", "session"])
def test_no_secret_is_seen_when_everything_is_told(cloud, tmp_path, keys):
    watched = Watched(cloud, tmp_path, keys(cloud))
    said = [watched.run(*words) for words in COMMANDS]
    assert "task0.quiet" in said[3]
    assert "ConflictError" in said[4]
    watched.check_files()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"ALIYUN_ACCESS_KEY_SECRET": "wrongSecretThatNobodyMaySee123"}, "DeniedError"),
        ({"ALIYUN_ACCESS_KEY_ID": "LTAInobody"}, "DeniedError"),
        ({"TRAINYARD_ALIYUN_ENDPOINT": "127.0.0.1:1"}, "UnreachableError"),
    ],
    ids=["signature", "key", "endpoint"],
)
def test_no_secret_is_seen_when_calls_fail(cloud, tmp_path, changes, words):
    watched = Watched(cloud, tmp_path, own_keys(cloud))
    watched.env |= changes
    watched.secrets = [watched.env["ALIYUN_ACCESS_KEY_SECRET"], *watched.secrets]
    said = watched.run(*CREATE)
    assert words in said
    assert "Traceback" in said  # it was asked for
    watched.check_files()


def test_no_secret_is_seen_when_the_session_has_ended(cloud, tmp_path):
    watched = Watched(cloud, tmp_path, session_keys(cloud))
    cloud.control("POST", "clock", {"advance_seconds": 1000})
    assert "DeniedError" in watched.run("ls", "--backend", "aliyun")
    cloud.control("PUT", "faults", [{"action": "*", "kind": "html", "times": 30}])
    watched.run("ls", "--backend", "aliyun")
    cloud.control("DELETE", "faults")
