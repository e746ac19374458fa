"""Storages, images and views as people meet them: on a real platform, with an administrator and an ordinary user."""

from __future__ import annotations

import os
import shutil
import stat
import urllib.error
from typing import Any

import pytest

from conftest import Program
from platforms import Up

PASSWORD = "correct horse battery"  # of a test's own user

pytestmark = [
    pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed"),
    pytest.mark.slow,  # a real platform, with real jobs
]


def member(up: Up, name: str) -> str:
    up.call("POST", "/api/v1/users", {"name": name, "password": PASSWORD})
    workspace = up.call("GET", "/api/v1/workspaces")["items"][0]
    up.call("PUT", f"/api/v1/workspaces/{workspace['id']}/members/{name}", {"role": "member"})
    given = {"username": name, "password": PASSWORD, "kind": "token"}
    return str(up.call("POST", "/api/v1/session", given)["token"])


@pytest.fixture(scope="module")
def ada(up: Up) -> str:
    """The token of somebody who is no administrator."""
    return member(up, "ada")


@pytest.fixture(scope="module")
def bob(up: Up) -> str:
    """The token of a colleague."""
    return member(up, "bob")


def run(up: Up, command: str, token: str = "", *, role: Any = None, **given: Any) -> tuple[Any, str]:
    body = {"name": "j", "command": command, "roles": [{"cpu": 0.5, **(role or {})}], **given}
    job = up.call("POST", "/api/v1/jobs", body, token=token)["id"]
    return up.until(job, "succeeded", "failed"), "\n".join(up.lines(job))


def codes(up: Up, job: Any) -> list[str]:
    return [event["code"] for event in up.call("GET", f"/api/v1/jobs/{job['id']}/events?limit=100")["items"]]


def test_a_script_on_the_users_own_storage_runs_for_an_administrator(up: Up):
    run(up, "echo 'print(6 * 7)' > /mnt/user/admin/mnt.py")
    job, text = run(up, "python3 /mnt/user/admin/mnt.py")
    assert (job["state"], text) == ("succeeded", "42")


def test_an_ordinary_user_sees_their_own_and_nothing_of_the_platform(up: Up, ada: str):
    run(up, "echo precious > /mnt/user/admin/secret; echo shared > /data/set")
    job, text = run(
        up,
        f"whoami; cat '{up.data}/platform.db' '{up.data}/sealing.key' '{up.data}/admin.token' /mnt/user/admin/secret 2>/dev/null; "
        "ls /mnt/user; ls /home; echo own > ~/f; cat /work/f; cat /data/set; cd /job && pwd",
        ada,
    )
    assert job["state"] == "succeeded"
    assert text.split() == ["ada", "ada", "ada", "own", "shared", "/job"]


def test_colleagues_share_what_is_shared_and_nothing_else_when_the_node_is_roots(up: Up, ada: str, bob: str):
    if os.getuid():
        pytest.skip("tasks are users of their own only where the node is root's")
    told = "id -u; share=$(echo /mnt/share/*); umask"
    _, first = run(
        up,
        f"{told}; echo ada > $share/common; mkdir $share/folder; echo hers > ~/hers; chmod 777 ~/hers",
        ada,
    )
    job, second = run(
        up, f"{told}; echo bob >> $share/common; echo too > $share/folder/x; cat $share/common", bob
    )
    assert job["state"] == "succeeded", second
    (hers, umask), (his, *rest) = first.split(), second.split()
    assert umask == "0002" and rest == ["0002", "ada", "bob"]
    assert 2_000_000 < int(hers) != int(his) > 2_000_000
    homes = up.data / "storages" / "work"
    for name, uid in (("ada", hers), ("bob", his)):
        found = (homes / name).stat()
        assert (found.st_uid, stat.S_IMODE(found.st_mode)) == (int(uid), 0o700)
    assert (homes / "ada" / "hers").stat().st_uid == int(hers)


def test_a_job_that_uses_more_memory_than_its_own_fails_and_says_so(up: Up, ada: str):
    job, _ = run(up, "exec python3 -c 'bytearray(300 << 20)'", ada, role={"memory_mib": 64})
    assert job["state"] == "failed"
    assert "out of memory: it used more than its 64 MiB" in job["message"]


def test_an_image_is_ignored_with_one_event_on_the_servers_own_machine(up: Up, ada: str):
    job, _ = run(up, "echo in", ada, role={"image": "nv-pytorch:21.05-py3", "replicas": 2, "cpu": 0.1})
    assert job["state"] == "succeeded"
    assert codes(up, job).count("image_ignored") == 1


def test_what_is_wrong_with_a_mount_is_said_at_submit(up: Up, ada: str):
    for mounts, why in (
        ([{"source": "nope"}], "There is no storage"),
        ([{"source": "data", "target": "/etc"}], "would hide"),
        (
            [{"source": "data", "target": "/a"}, {"source": "user", "target": "/a"}],
            "can't have the same mount path",
        ),
    ):
        with pytest.raises(urllib.error.HTTPError) as refused:
            run(up, "true", ada, mounts=mounts)
        assert refused.value.code == 422
        assert why in refused.value.read().decode()


def test_a_workspace_is_named_when_a_storage_or_a_sign_in_is_for_it_alone(program: Program, up: Up):
    made = up.call("POST", "/api/v1/workspaces", {"name": "视觉 team"})
    program("storages", "add", "pictures", "/x", "/pictures", "--workspace", "视觉 team")
    program("registries", "add", "reg.example", "--username", "r", "--workspace", "视觉 team", stdin="s\n")
    for noun, name in (("storages", "pictures"), ("registries", "reg.example")):
        [row] = [line for line in program(noun).stdout.splitlines() if line.startswith(name)]
        assert "视觉 team" in row and made["id"] not in row
        [one] = [one for one in program.json(noun, "ls") if name in (one.get("name"), one.get("host"))]
        assert (one["workspace"], one["workspace_id"]) == ("视觉 team", made["id"])
        program(noun, "rm", name)
    assert "all" in program("storages").stdout


def test_storages_are_added_used_and_forgotten(program: Program, up: Up, ada: str):
    folder = up.folder / "sets of data"
    folder.mkdir()
    (folder / "deep").mkdir()
    (folder / "deep" / "set").write_text("numbers\n")
    done = program("storages", "add", "sets", str(folder), "/sets", "--read-only")
    assert (done.returncode, done.stdout) == (0, "sets is at /sets\n")
    assert program("storages", "add", "sets", "/x", "/y").returncode == 4
    assert "sets" in program("storages").stdout
    shown = program.json("storages", "show", "sets")
    assert isinstance(shown, dict)
    assert (shown["target"], shown["read_only"]) == ("/sets", True)
    mounts = [{"source": "sets", "path": "deep"}]
    job, text = run(up, "cat /sets/set; touch /sets/x 2>/dev/null || echo locked", ada, mounts=mounts)
    assert (job["state"], text) == ("succeeded", "numbers\nlocked")
    denied = program("storages", "add", "mine", "/", "/all", TRAINYARD_TOKEN=ada)
    assert denied.returncode == 5
    assert program("storages", "rm", "sets").stdout == "sets is forgotten\n"
    assert program("storages", "show", "sets").returncode == 3


def test_a_sign_in_of_a_registry_is_kept_without_ever_being_shown(program: Program, up: Up):
    done = program("registries", "add", "reg.example:5000", "--username", "robot", stdin="s3cret\n")
    assert (done.returncode, done.stdout) == (0, "reg.example:5000 is kept\n")
    listed = program("registries", "ls", "--json").stdout
    assert "robot" in listed and "s3cret" not in listed
    assert b"s3cret" not in (up.data / "platform.db").read_bytes()
    assert program("registries", "rm", "reg.example:5000").returncode == 0
    assert program("registries").stdout == "no registries\n"


def test_a_node_is_told_what_to_do_with_images_and_views(program: Program, up: Up, ada: str):
    assert program("nodes", "set", "local").returncode == 2
    done = program(
        "nodes", "set", "local", "--isolation", "off", "--images", "ignore", "--visible", str(up.folder)
    )
    assert (done.returncode, done.stdout) == (0, "local is set\n")
    try:
        job, text = run(up, f"ls -d '{up.folder}'", ada)
        assert (job["state"], text) == ("succeeded", str(up.folder))
    finally:
        program("nodes", "set", "local", "--isolation", "auto", "--no-visible")
    shown = program.json("nodes", "show", "local")
    assert isinstance(shown, dict)
    assert shown["options"] == {"isolation": "auto", "images": "ignore"}
