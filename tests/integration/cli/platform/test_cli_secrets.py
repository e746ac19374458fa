"""Secrets as people meet them: kept by the command line, found by tasks, and seen by nobody."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from conftest import Program
from platforms import Up

PASSWORD = "correct horse battery"  # of a test's own user
VALUE = "s3cret v4lue $(x) 'q' %env:HOME%"

pytestmark = pytest.mark.slow  # a real platform, with real jobs


@pytest.fixture(scope="module")
def eve(up: Up) -> str:
    """The token of somebody who is no administrator."""
    up.call("POST", "/api/v1/users", {"name": "eve", "password": PASSWORD})
    workspace = up.call("GET", "/api/v1/workspaces")["items"][0]
    up.call("PUT", f"/api/v1/workspaces/{workspace['id']}/members/eve", {"role": "member"})
    given = {"username": "eve", "password": PASSWORD, "kind": "token"}
    return str(up.call("POST", "/api/v1/session", given)["token"])


def test_a_secret_is_kept_used_as_variable_and_file_and_removed(program: Program, tmp_path: Path):
    assert program("secrets", "set", "HF_TOKEN", stdin=VALUE + "\n").returncode == 0
    file = tmp_path / "kube config"
    file.write_text("line one\nline two\n")
    assert program("secrets", "set", "kube", "--from-file", str(file)).returncode == 0
    shown = program("secrets").stdout + json.dumps(program.json("secrets", "ls"))
    assert "HF_TOKEN" in shown and "kube" in shown and "v4lue" not in shown and "line one" not in shown
    command = 'test "$MINE" = "$WANT" && test "$HF_TOKEN" = "$WANT" && cat "$TRAINYARD_SECRET_KUBE" | wc -c && stat -c %a "$TRAINYARD_SECRET_KUBE"'
    done = program(
        "jobs", "submit", "--name", "s", "--secret", "HF_TOKEN", "--secret", "HF_TOKEN=MINE", "--secret-file",
        "kube=/run/secrets/kube", "--env", f"WANT={VALUE}", "--follow", "--", command,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert {"18", "600"} <= set(done.stdout.split())
    used = {one["name"]: one["last_used_at"] for one in program.json("secrets", "ls")}
    assert used["HF_TOKEN"] and used["kube"]
    assert program("secrets", "rm", "HF_TOKEN", "kube").returncode == 0
    refused = program("jobs", "submit", "--secret", "HF_TOKEN", "--", "true")
    assert refused.returncode != 0 and "no secret 'HF_TOKEN'" in refused.stderr
    assert program("secrets").stdout.strip() == "no secrets"


def test_a_document_names_secrets_and_tasks_have_their_files_in_a_view_of_their_own(
    up: Up, eve: str, program: Program
):
    if shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed")
    theirs = {"TRAINYARD_TOKEN": eve}
    assert program("secrets", "set", "kube", stdin="a%path:/x%b", **theirs).returncode == 0
    document = (
        "name: s\ncpu: 0.5\ncommand: cat /run/secrets/kube /etc/kube.conf; echo; echo $kube\n"
        "secrets: [kube, {name: kube, file: /run/secrets/kube}, {name: kube, file: /etc/kube.conf}]\n"
    )
    done = program("jobs", "submit", "-f", "-", "--follow", stdin=document, **theirs)
    assert done.returncode == 0, done.stdout + done.stderr
    # What a job prints of its secrets is not kept: three times eleven stars.
    assert done.stdout.count("*") == 33 and "%path" not in done.stdout
    assert "below" not in done.stdout, "the files are where they were wanted"


def test_a_job_fails_with_a_clear_reason_when_its_secret_is_gone_at_its_start(up: Up, eve: str):
    up.call("PUT", "/api/v1/secrets/GONE", {"value": "s3cret v4lue"}, token=eve)
    body = {"name": "j", "command": "true", "roles": [{"cpu": 0.1}], "secrets": [{"name": "GONE"}]}
    job = up.call("POST", "/api/v1/jobs?hold=true", body, token=eve)["id"]
    up.call("DELETE", "/api/v1/secrets/GONE", token=eve)
    up.call("PUT", f"/api/v1/jobs/{job}/desired", {"desired": "run"}, token=eve)
    ended = up.until(job, "succeeded", "failed")
    assert (ended["state"], ended["attempt"]) == ("failed", 1)
    assert "The secret GONE is not there any more" in ended["message"]


def test_a_value_on_the_command_line_is_no_option_and_binary_is_refused(program: Program, tmp_path: Path):
    assert program("secrets", "set", "A", "value").returncode == 2
    file = tmp_path / "key.bin"
    file.write_bytes(b"\xff\xfe\x00")
    done = program("secrets", "set", "A", "--from-file", str(file))
    assert done.returncode != 0 and "no text" in done.stderr
    assert program("secrets", "set", "A", stdin="").returncode != 0
