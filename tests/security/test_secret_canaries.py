"""Secrets go in through every door that takes one; then everything that a colleague, a thief of copies or another user of the
computer can read is searched for them: answers, command lines, logs, events, the database and its copies, files.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import signal
import sqlite3
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from platforms import Up, platform
from signed_requests import signed

pytestmark = pytest.mark.slow  # a real platform, its jobs and a restart
MARK = "k4nary" + secrets.token_hex(6)  # in every secret of ours
DESCRIPTION = Path(__file__).parents[2] / "docs" / "reference" / "openapi.json"
DLC = (
    "/api/v1/jobs",
    "/api/v1/jobs/{job}",
    "/api/v1/jobs/{job}/events",
    "/api/v1/jobs/{job}/pods/{pod}/logs",
)
WORDS = (
    "jobs", "jobs show {job}", "jobs show {dlc}", "jobs logs {job}", "jobs explain {failed}",
    "jobs tasks {job}", "queue", "templates", "templates show ours", "schedules", "schedules show nightly", "code",
    "code show bert", "secrets", "registries", "pools", "nodes", "workspaces", "usage", "jobs sweeps",
)  # fmt: skip


def canary(door: str) -> str:
    """A secret that says where it went in."""
    return f"{MARK}-{door}"


@dataclass
class World:
    """A platform with secrets in it, and who may ask."""

    up: Up
    folder: Path
    ann: str = ""  # the token of whose secrets they are
    ben: str = ""  # of a colleague
    keys: dict[str, tuple[str, str]] = field(default_factory=dict)
    ids: dict[str, str] = field(default_factory=dict)
    needles: list[str] = field(default_factory=lambda: [MARK])  # and secrets that the server makes

    def find(self, data: bytes, where: str) -> list[str]:
        """The secrets in some bytes, with where they were."""
        found = [f"{needle[:30]} in {where}" for needle in self.needles if needle.encode() in data]
        return found + [f"{text.decode()} in {where}" for text in re.findall(MARK.encode() + rb"-\w+", data)]

    def get(self, path: str, headers: dict[str, str], refused: list[str] | None = None) -> bytes:
        """An answer, whatever its status; in `refused` are the paths that had none with what was asked for."""
        request = urllib.request.Request(self.up.url + path, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                is_stream = "event-stream" in answer.headers.get("content-type", "")
                return answer.read1(1 << 20) if is_stream else answer.read()
        except urllib.error.HTTPError as error:
            if refused is not None:
                refused.append(path)
            with error:
                return error.read()


def member(world: World, name: str) -> str:
    """A member of the only workspace; their token."""
    up = world.up
    up.call("POST", "/api/v1/users", {"name": name, "password": canary(f"password-{name}")})
    place = up.call("GET", "/api/v1/workspaces")["items"][0]["id"]
    up.call("PUT", f"/api/v1/workspaces/{place}/members/{name}", {"role": "member"})
    given = {"username": name, "password": canary(f"password-{name}"), "kind": "token"}
    token = str(up.call("POST", "/api/v1/session", given)["token"])
    made = up.call("POST", "/api/v1/tokens", {"name": "mine"}, token=token)
    key = up.call("POST", "/api/v1/access-keys", {"name": "k"}, token=token)
    world.needles += [token, made["token"], key["secret"]]
    world.keys[name] = (key["id"], key["secret"])
    return token


ENV = {
    "DB_PASS": canary("env"), "GITHUB_PAT": canary("pat"), "DATABASE_URL": f"postgres://me:{canary('url')}@db/x",
    "EPOCHS": "3",
}  # fmt: skip
SHOUT = 'echo "$HF_TOKEN $DB_PASS $GITHUB_PAT $DATABASE_URL $DB_PASS"; printf %s "$TEAM_KEY"; cat "$TRAINYARD_SECRET_KUBE"'


def fill(world: World) -> None:
    """Put a secret in through every door."""
    up, ann = world.up, world.ann
    place = up.call("GET", "/api/v1/workspaces")["items"][0]["id"]
    for name, value, of in (
        ("HF_TOKEN", canary("store"), ""), ("kube", f"a: 1\ntoken: {canary('file')}\n", ""), ("TEAM_KEY", canary("team"), place),
    ):  # fmt: skip
        up.call(
            "PUT", f"/api/v1/secrets/{name}" + (f"?workspace={of}" if of else ""), {"value": value}, token=ann
        )
    registry = {"host": "r.example.org", "username": "u", "password": canary("registry")}
    up.call("POST", "/api/v1/registries", registry)
    code = {"name": "bert", "url": "https://127.0.0.1:9/x.git", "token": canary("code")}
    up.call("POST", "/api/v1/code-sources", code, token=ann)
    pool = {"name": "cloud", "backend": "aliyun", "types": ["ecs.g6.large"], "most": 1}
    up.call("POST", "/api/v1/pools", pool)
    kept = [{"name": "HF_TOKEN"}, {"name": "TEAM_KEY"}, {"name": "kube", "file": "/run/secrets/kube"}]
    spec = {
        "name": "job",
        "roles": [{"cpu": 0.1, "env": {"ROLE_TOKEN": canary("role")}}],
        "env": ENV,
        "secrets": kept,
    }
    loud = {**spec, "command": f"while :; do {SHOUT}; echo; echo round ${{#HF_TOKEN}}; sleep 0.2; done"}
    failing = {**spec, "command": f'{SHOUT}; echo "RuntimeError: bad token $HF_TOKEN" >&2; exit 3'}
    world.ids["job"] = up.call("POST", "/api/v1/jobs", loud, token=ann, **{"idempotency-key": "once"})["id"]
    world.ids["failed"] = up.call("POST", "/api/v1/jobs", failing, token=ann)["id"]
    fetching = {**spec, "command": "true", "code": {"source": "bert"}}
    world.ids["fetching"] = up.call("POST", "/api/v1/jobs", fetching, token=ann)["id"]
    up.call("POST", "/api/v1/jobs/bulk", {"jobs": [{**spec, "command": "true"}]}, token=ann)
    sweep = {"job": {**spec, "command": "true"}, "sweep": {"lr": ["1", "2"]}}
    world.ids["sweep_id"] = up.call("POST", "/api/v1/sweeps", sweep, token=ann)["id"]
    quiet = {**spec, "command": "true"}
    for name, scope in (("mine", "personal"), ("ours", "workspace")):
        up.call("POST", "/api/v1/templates", {"name": name, "job": quiet, "scope": scope}, token=ann)
    timed = {"name": "nightly", "cron": "0 3 * * *", "job": quiet}
    up.call("POST", "/api/v1/schedules", timed, token=ann)
    up.call("POST", "/api/v1/schedules/nightly/runs", token=ann)
    world.ids["dlc"] = dlc_job(world)


def dlc_job(world: World) -> str:
    """A job through the compatible door, with variables and a sign-in for its image."""
    sign_in = {"Username": "u", "Password": canary("imagepassword"), "Auth": canary("imageauth")}
    body = json.dumps({
        "DisplayName": "dlc", "JobType": "PyTorchJob", "UserCommand": "echo $DLC_TOKEN",
        "Envs": {"DLC_TOKEN": canary("dlcenv")},
        "JobSpecs": [{"Type": "Worker", "PodCount": 1, "Image": "r.example.org/a:1", "ImageConfig": sign_in,
                      "ResourceConfig": {"CPU": "1", "Memory": "64Mi"}}],
    }).encode()  # fmt: skip
    host = world.up.url.removeprefix("http://")
    headers = signed(*world.keys["ann"], "POST", "/api/v1/jobs", body=body, host=host)
    request = urllib.request.Request(
        f"{world.up.url}/api/v1/jobs", data=body, headers={**headers, "content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=20) as answer:
        return str(json.loads(answer.read())["JobId"])


def wait_for_output(world: World, more: int = 3) -> None:
    """Until the loud job has printed a few rounds more."""
    before, deadline = rounds(world), time.monotonic() + 60
    while rounds(world) < before + more:
        assert time.monotonic() < deadline, world.up.job(world.ids["job"])
        time.sleep(0.1)


def rounds(world: World) -> int:
    path = f"/api/v1/jobs/{world.ids['job']}/logs/download"
    return world.get(path, {"authorization": f"Bearer {world.up.token}"}).count(b"round ")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("canaries")
    env = {
        "TRAINYARD_SERVER_OIDC_SECRET": canary("oidc"),
        "ALIYUN_ACCESS_KEY_ID": canary("cloudid"),
        "ALIYUN_ACCESS_KEY_SECRET": canary("cloudsecret"),
        "TRAINYARD_ALIYUN_ENDPOINT": "127.0.0.1:9",  # nobody is there
    }
    with platform(folder, env=env) as up:
        made = World(up, folder)
        made.ann, made.ben = member(made, "ann"), member(made, "ben")
        fill(made)
        up.until(made.ids["job"], "running")
        for name in ("failed", "fetching"):
            up.until(made.ids[name], "failed", "succeeded")
        up.until(made.ids["dlc"], "failed", "succeeded")
        wait_for_output(made)
        yield made


def test_tasks_have_their_secrets_and_the_search_finds_what_is_there(world: World):
    lines = "\n".join(world.up.lines(world.ids["job"]))
    assert f"round {len(canary('store'))}" in lines and "*" * 20 in lines
    assert world.find(f"x {canary('env')} y".encode(), "here"), "else this suite proves nothing"


def test_no_command_line_has_a_secret_while_jobs_run(world: World):
    found, deadline = [], time.monotonic() + 2
    while time.monotonic() < deadline:
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    found += world.find((entry / "cmdline").read_bytes(), f"the command line of {entry.name}")
    assert found == []


def paths(world: World) -> Iterator[str]:
    """Every GET of the description, of things that there are."""
    described = json.loads(DESCRIPTION.read_text())["paths"]
    things: dict[str, list[str]] = {
        "job_id": [world.ids[name] for name in ("job", "failed", "fetching", "dlc")], "sweep_id": [world.ids["sweep_id"]],
        "source_id": ["bert"], "schedule_id": ["nightly"], "template_id": ["mine", "ours"], "name": ["local", "cloud"],
        "storage": ["data"], "workspace": [world.up.call("GET", "/api/v1/workspaces")["items"][0]["id"]],
        "user": ["ann"], "request_id": ["x"],
    }  # fmt: skip
    for path, methods in described.items():
        if "get" in methods:
            name = re.search(r"{(\w+)}", path)
            for thing in things[name[1]] if name else [""]:
                yield re.sub(r"{\w+}", thing, path) + ("?text=k4nary" if path.endswith("/search") else "")


def test_no_answer_has_a_secret_whoever_asks(world: World):
    found, refused = [], []
    for who, token in (("ben", world.ben), ("ann", world.ann), ("admin", world.up.token)):
        refused = []
        for path in paths(world):
            body = world.get(path, {"authorization": f"Bearer {token}"}, refused)
            found += world.find(body, f"{path} for {who}")
    assert found == []
    assert {re.sub(r"/(mine|local|cloud|x)\b.*", "", path) for path in refused} <= {
        "/api/v1/templates", "/api/v1/nodes", "/api/v1/pools", "/api/v1/requests",
    }, "an administrator is shown everything else"  # fmt: skip


def test_no_answer_of_the_compatible_door_has_a_secret(world: World):
    found, refused, host = [], [], world.up.url.removeprefix("http://")
    for who, key in world.keys.items():
        for template in DLC:
            for job in (world.ids["job"], world.ids["dlc"]):
                shown = f"/api/v1/jobs/{job}"
                pods = json.loads(world.get(shown, signed(*key, "GET", shown, host=host)))["Pods"]
                path = template.format(job=job, pod=pods[0]["PodId"])
                body = world.get(path, signed(*key, "GET", path, host=host), refused)
                found += world.find(body, f"{path} for {who}")
    assert (found, refused) == ([], [])


def test_no_clone_template_or_schedule_gives_a_secret_to_a_colleague(world: World):
    printing = {"command": "env; cat /run/secrets/* 2>/dev/null; true", "env": {"MORE": "1"}}
    cloned = []
    for path, body in (
        (f"/api/v1/jobs/{world.ids['dlc']}/clones", {"command": "env"}),
        (f"/api/v1/jobs/{world.ids['dlc']}/clones", printing),
    ):
        cloned.append(world.up.call("POST", path, body, token=world.ben)["id"])
    for name in ("job", "failed"):
        with pytest.raises(urllib.error.HTTPError) as refused:  # they name secrets that ben has not
            world.up.call("POST", f"/api/v1/jobs/{world.ids[name]}/clones", printing, token=world.ben)
        assert refused.value.code == 404
        refused.value.close()
    for job in cloned:
        world.up.until(job, "succeeded", "failed")
        text = "\n".join(world.up.lines(job)).encode()
        assert b"TRAINYARD_JOB_ID" in text
        assert world.find(text, job) == []
        assert b"******" not in text, "there was nothing to hide"


def run(world: World, token: str, *words: str) -> bytes:
    env = {**world.up.env, "TRAINYARD_SERVER": world.up.url, "TRAINYARD_TOKEN": token}
    env = {name: value for name, value in env.items() if MARK not in value}
    done = subprocess.run(
        [sys.executable, "-m", "trainyard.cli.main", *words], env=env, capture_output=True, timeout=60
    )
    assert done.returncode == 0, (words, done.stderr)
    return done.stdout + done.stderr


def search_commands(world: World, lines: Sequence[str], *flags: str) -> list[str]:
    found = []
    for line in lines:
        words = [*line.format(**world.ids).split(), *flags]
        found += world.find(run(world, world.ben, *words), " ".join(("trainyard", *words)))
    return found


def test_no_command_prints_a_secret(world: World):
    assert search_commands(world, WORDS[1:4], "--json") == []
    assert world.find(run(world, world.ann, "jobs", "show", world.ids["job"]), "what ann is shown") == []


@pytest.mark.deep  # forty programs are started
def test_no_command_at_all_prints_a_secret(world: World):
    assert search_commands(world, WORDS) + search_commands(world, WORDS, "--json") == []


def files(world: World) -> Iterator[Path]:
    """Every file of the platform but the tasks' own, which are on their node until they have ended and are removed."""
    for top, _folders, names in os.walk(world.folder):
        for name in names:
            path = Path(top) / name
            if not {"tasks", "trash"} & set(path.parts) and path.is_file() and not path.is_symlink():
                yield path


def search_files(world: World) -> list[str]:
    found = []
    for path in files(world):
        with contextlib.suppress(FileNotFoundError):
            found += world.find(path.read_bytes(), str(path.relative_to(world.folder)))
    return found


def dump(database: Path) -> bytes:
    with contextlib.closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        return "\n".join(connection.iterdump()).encode()


def test_no_file_dump_or_backup_has_a_secret_also_after_a_new_key_and_a_restart(world: World):
    up, backup = world.up, world.folder / "copies" / "backup.db"
    backup.parent.mkdir()
    assert search_files(world) == []
    text = run(world, "", "admin", "rotate-key", "--data", str(up.data))
    assert b"with a new key" in text, text
    wait_for_output(world)
    up.kill(signal.SIGKILL)
    up.start(port=up.port)
    wait_for_output(world)
    said = run(world, "", "admin", "backup", str(backup), "--data", str(up.data))
    assert b"which is not in it" in said
    assert world.find(dump(backup) + dump(up.data / "platform.db"), "a dump") == []
    # Access keys that were sealed with the old key are still good.
    host = up.url.removeprefix("http://")
    body = world.get("/api/v1/jobs", signed(*world.keys["ben"], "GET", "/api/v1/jobs", host=host))
    assert world.ids["dlc"].encode() in body
    up.call("PUT", f"/api/v1/jobs/{world.ids['job']}/desired", {"desired": "cancel"})
    up.until(world.ids["job"], "cancelled")
    assert search_files(world) == []


def test_nothing_is_left_on_the_node_when_jobs_have_ended(world: World):
    with contextlib.suppress(urllib.error.HTTPError):
        world.up.call("PUT", f"/api/v1/jobs/{world.ids['job']}/desired", {"desired": "cancel"})
    deadline, found = time.monotonic() + 30, ["not looked yet"]
    while found and time.monotonic() < deadline:
        found = []
        for path in world.folder.rglob("*"):
            with contextlib.suppress(OSError):
                if path.is_file() and not path.is_symlink():
                    found += world.find(path.read_bytes(), str(path))
        time.sleep(0.2)
    assert found == []
