"""Jobs with images on a platform, as their users see them: gangs that meet inside of containers, storages, refusals."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import Any

import container_lab
import pytest
from container_lab import LIMITS, WITH_PYTHON, Containers

import platforms

pytestmark = pytest.mark.slow  # a platform and images of its own for the module, and real containers
# What docker does no differently, and takes seconds.
PODMAN_ALONE = pytest.mark.parametrize("containers", ["podman"], indirect=True)
NO_SSHD = "localhost/trainyard-test-no-sshd:1"
MEET = """
import os, socket, time
place = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
if os.environ["RANK"] == "0":
    with socket.create_server(("", place[1]), reuse_port=True) as server:
        other, _ = server.accept()
        other.sendall(b"met " + other.recv(100))
else:
    end = time.monotonic() + 30
    while True:
        try:
            other = socket.create_connection(place)
            break
        except ConnectionRefusedError:
            if time.monotonic() > end:
                raise
            time.sleep(0.02)
    other.sendall(os.environ["RANK"].encode())
    print(other.recv(100).decode(), socket.gethostbyname("master-0"), socket.gethostbyname("worker-0"))
"""
PASSWORD = "correct horse battery"  # of a test's own user


@pytest.fixture(scope="module", params=["podman", "docker"])
def containers(request: pytest.FixtureRequest) -> Iterator[Containers]:
    """What runs containers on the node: a podman, then a docker."""
    with container_lab.lasting(request.param) as found:
        found.make(WITH_PYTHON, container_lab.python_image())
        yield found


@pytest.fixture(scope="module")
def up(containers: Containers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[platforms.Up]:
    folder = tmp_path_factory.mktemp("gangs 中文 $(x) 'q'")
    with platforms.platform(folder, "--cpu", "64", env=containers.env) as found:
        images = "docker" if containers.kind == "docker" else "refuse"
        found.call("PATCH", "/api/v1/nodes/local", {"options": {"images": images}})
        yield found


def run(up: platforms.Up, command: str, *, image: str = WITH_PYTHON, **given: Any) -> tuple[Any, list[str]]:
    role = {"name": "worker", "cpu": 0.1, "image": image}
    roles = given.pop("roles", [{**role, "replicas": 2}])
    job = up.submit(command, roles=[{**role, **one} for one in roles], **given)
    return up.until(job, "succeeded", "failed", seconds=90), up.lines(job)


def test_tasks_meet_and_know_each_other_by_name_when_they_are_containers(up):
    job, lines = run(up, f"python3 -c '{MEET}' || exit; echo $WORLD_SIZE $PET_NNODES", kind="PyTorchJob")
    assert job["state"] == "succeeded", lines
    assert "met 1 127.0.0.1 127.0.0.1" in lines
    assert lines.count("2 2") == 2


@pytest.mark.skipif(not os.path.exists("/usr/sbin/sshd"), reason="no sshd here")
def test_tasks_reach_each_other_by_ssh_when_their_image_has_it(up):
    command = (
        "cat /etc/mpi/hostfile | cut -d- -f2-; ssh worker-0 'echo in $TRAINYARD_TASK; ls -d /sbin /srv 2>/dev/null'; "
        "ssh worker-0 'exit 7'; echo $?"
    )
    job, lines = run(up, command, kind="MPIJob")
    assert job["state"] == "succeeded", lines
    assert lines[-4:] == ["master-0 slots=1", "worker-0 slots=1", "in worker-0", "7"]


@pytest.mark.skipif(
    not os.path.exists("/usr/sbin/sshd") or os.getuid() != 0, reason="no sshd, or no root here"
)
def test_tasks_reach_each_other_by_ssh_when_they_are_users_without_rights(up):
    up.call("POST", "/api/v1/users", {"name": "ada", "password": PASSWORD})
    workspace = up.call("GET", "/api/v1/workspaces")["items"][0]
    up.call("PUT", f"/api/v1/workspaces/{workspace['id']}/members/ada", {"role": "member"})
    given = {"username": "ada", "password": PASSWORD, "kind": "token"}
    token = str(up.call("POST", "/api/v1/session", given)["token"])
    roles = [{"name": "worker", "cpu": 0.1, "image": WITH_PYTHON, "replicas": 2}]
    command = "ssh worker-0 'echo in $TRAINYARD_TASK; id -un; id -u; echo $HOME; echo x > ~/y && cat ~/y'"
    body = {"name": "j", "kind": "MPIJob", "command": command, "roles": roles}
    job = up.call("POST", "/api/v1/jobs", body, token=token)["id"]
    found, lines = up.until(job, "succeeded", "failed", seconds=90), up.lines(job)
    assert found["state"] == "succeeded", lines
    assert lines[-5:-3] == ["in worker-0", "ada"] and lines[-2:] == ["/home/ada", "x"], lines
    assert int(lines[-3]) > 2_000_000


@PODMAN_ALONE
def test_it_is_said_when_an_image_has_no_sshd_by_which_tasks_would_meet(up, containers):
    words = ("run", "--name", "bare", "--network", "host", *LIMITS)
    assert containers.ask(*words, WITH_PYTHON, "rm", "-f", "/usr/sbin/sshd").returncode == 0
    assert containers.ask("commit", "bare", NO_SSHD).returncode == 0
    job, lines = run(up, "echo began", kind="MPIJob", image=NO_SSHD)
    assert job["state"] == "failed"
    assert "there is no sshd here" in job["message"], job
    assert "began" not in lines


@PODMAN_ALONE
@pytest.mark.skipif(not shutil.which("sshd", path="/usr/sbin:/usr/bin"), reason="no sshd here")
def test_files_of_a_job_are_each_tasks_own_when_they_lie_in_a_storage(up):
    command = "cat /job/hostfile ~/ib_config | sort -u; echo mine > /job/result; echo $HOME $DLWS_NUM_WORKER"
    job, lines = run(up, command, kind="PSDistJob", roles=[{"name": "ps"}, {"name": "worker", "replicas": 2}])
    assert job["state"] == "succeeded", (job, lines)
    assert lines[-1] == "/home/admin 2"
    stored = up.data / "storages" / "work" / "admin" / "jobs"
    (result,) = stored.rglob("result")
    assert result.read_text() == "mine\n"
    assert (
        result.parent / "hostfile"
    ).read_bytes() == b""  # where it was put; what it says, only the tasks see
