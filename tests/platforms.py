"""A platform for a test: `trainyard up` as its own process, with its own HOME and folder, gone with all jobs after it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

READY_SECONDS = 60.0
END_SECONDS = 30.0


class Up:
    """A running `trainyard up`; may be killed and started again on the same folder and port."""

    def __init__(self, folder: Path, *options: str, env: dict[str, str] | None = None) -> None:
        self.folder = folder
        self.data = folder / "platform"
        self.home = folder / "home"
        self.home.mkdir(parents=True, exist_ok=True)
        self.options = options
        self.python = [sys.executable]  # what runs it
        self.env = {
            **{
                name: value
                for name, value in os.environ.items()
                if not name.startswith(("TRAINYARD_", "ALIYUN_"))
            },
            "HOME": str(self.home),
            "TRAINYARD_HOME": str(self.home / ".trainyard"),
            **(env or {}),
        }
        self.process: subprocess.Popen[str] | None = None
        self.ready: dict[str, str] = {}
        self.token = ""
        self.password = ""

    def start(self, *, port: int = 0) -> None:
        self.log = (self.folder / "up.err").open("a")
        self.process = subprocess.Popen(
            [*self.python, "-m", "trainyard.cli.main", "up", "--data", str(self.data), "--port", str(port),
             "--json", *self.options],
            env=self.env, stdout=subprocess.PIPE, stderr=self.log, text=True, start_new_session=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, (self.folder / "up.err").read_text()
        self.ready = json.loads(line)
        self.token = self.ready["token"] or self.token

    @property
    def url(self) -> str:
        return self.ready["url"]

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def kill(self, number: int = signal.SIGKILL) -> None:
        assert self.process is not None
        self.process.send_signal(number)
        self.process.wait(timeout=END_SECONDS)
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.log.close()
        self.process = None

    def call(self, method: str, path: str, body: Any = None, *, token: str = "", **headers: str) -> Any:
        request = urllib.request.Request(
            self.url + path, method=method, data=None if body is None else json.dumps(body).encode(),
            headers={"authorization": f"Bearer {token or self.token}", "content-type": "application/json", **headers},
        )  # fmt: skip
        with urllib.request.urlopen(request, timeout=30) as answer:
            data = answer.read()
        return json.loads(data) if data else None

    def own_password(self) -> str:
        """The administrator's password, once it is no longer the one of the first start."""
        if not self.password:
            own = "chosen by the test"
            self.call("PUT", "/api/v1/session/password", {"old": self.ready["password"], "new": own})
            self.password = own
        return self.password

    def submit(self, command: str, **given: Any) -> str:
        roles = given.pop("roles", [{"cpu": 0.1}])
        name = given.pop("name", "job")
        return str(
            self.call("POST", "/api/v1/jobs", {"name": name, "command": command, "roles": roles, **given})[
                "id"
            ]
        )

    def job(self, job: str) -> Any:
        return self.call("GET", f"/api/v1/jobs/{job}")

    def until(self, job: str, *states: str, seconds: float = 60.0) -> Any:
        deadline = time.monotonic() + seconds
        while (found := self.job(job))["state"] not in states:
            assert time.monotonic() < deadline, found
            time.sleep(0.05)
        return found

    def lines(self, job: str) -> list[str]:
        return [line["text"] for line in self.call("GET", f"/api/v1/jobs/{job}/logs?limit=1000")["items"]]


@contextlib.contextmanager
def platform(folder: Path, *options: str, env: dict[str, str] | None = None) -> Iterator[Up]:
    """Start one, and see that nothing of it is left."""
    up = Up(folder, *options, env=env)
    up.start()
    try:
        yield up
    finally:
        if up.process is None:
            with contextlib.suppress(AssertionError, OSError):
                up.start(port=0)
        if up.process is not None:
            with contextlib.suppress(OSError, urllib.error.URLError, AssertionError):
                stop_all(up)
            up.kill(signal.SIGTERM)
        _end_agents(folder)


def stop_all(up: Up) -> None:
    """Cancel every job that goes on, and wait for the end of all: a platform for the next test."""
    live = "&".join(
        f"state={state}" for state in ("held", "waiting", "admitted", "starting", "running", "retained")
    )
    for job in up.call("GET", f"/api/v1/jobs?limit=200&{live}")["items"]:
        with contextlib.suppress(urllib.error.HTTPError):
            up.call("PUT", f"/api/v1/jobs/{job['id']}/desired", {"desired": "cancel"})
    deadline = time.monotonic() + END_SECONDS
    while up.call("GET", f"/api/v1/jobs?limit=5&{live}&state=finishing")["items"]:
        if time.monotonic() > deadline:
            return
        time.sleep(0.05)


def _end_agents(folder: Path) -> None:
    """Agents outlive servers by design; a test's go with its folder."""
    deadline = time.monotonic() + END_SECONDS
    while found := list(processes_of(str(folder))):
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM if time.monotonic() < deadline - 5 else signal.SIGKILL)
        assert time.monotonic() < deadline, found
        time.sleep(0.05)


def processes_of(text: str) -> Iterator[int]:
    """Processes whose command line or environment names this folder, but for us and our parents."""
    own = {os.getpid(), os.getppid()}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) not in own:
            with contextlib.suppress(OSError):
                if (
                    text.encode() in (entry / "cmdline").read_bytes()
                    and b"pytest" not in (entry / "cmdline").read_bytes().split(b"\0")[0]
                ):
                    yield int(entry.name)
