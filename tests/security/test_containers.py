"""Tasks in containers that ask for more than a container: by the name of their image, by variables, and from inside.

What a program can do inside of one is tried in test_escapes.py as well, with some two hundred calls of the kernel.
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "integration" / "engines" / "nodes"))
import container_lab
from container_lab import PLAIN, Containers
from engine_lab import EngineLab, lab_in, launch_of

from trainyard.engines.api import Mount, View

pytestmark = pytest.mark.slow  # real containers, of a podman and a docker of the tests' own

PLACES = (
    "docker-archive:{folder}/image.tar",
    "docker-archive:{folder}/image.tar:localhost/private:1",
    "oci-archive:{folder}/image.tar",
    "dir:{folder}/image",
    "dir:image",
    "oci:{folder}/image",
    "docker-daemon:localhost/private:1",
    "containers-storage:localhost/private:1",
    "docker://localhost/private:1",
    "http://127.0.0.1/image",
)
OPTIONS = ("--privileged", "-v/:/host", "--pid=host", "a --privileged", "a\n--privileged", "a,b", "a=b")
NAMESPACES = ("pid", "ipc", "mnt", "uts", "cgroup")


@pytest.fixture(scope="module", params=["podman", "docker"])
def containers(request: pytest.FixtureRequest) -> Iterator[Containers]:
    """What runs containers on the node."""
    with container_lab.lasting(request.param) as found:
        found.make(PLAIN, container_lab.plain_image())
        yield found


@pytest.fixture
async def lab(isolation: Path, tmp_path: Path) -> AsyncIterator[EngineLab]:
    async with lab_in(tmp_path / "home") as lab:
        yield lab


@pytest.mark.parametrize("image", [*PLACES, *OPTIONS])
async def test_a_job_is_refused_when_its_image_is_a_file_of_the_node_or_an_option(make_rig, image: str):
    named = image.format(folder="/root")
    async with make_rig().http() as http:
        answer = await http.post("/jobs", json={"name": "j", "command": "true", "image": named})
        assert answer.status_code == 422, answer.text
        assert "image" in answer.text
        assert (await http.get("/jobs")).json()["items"] == []


@pytest.mark.parametrize("name", ["*", "TRAIN*", "A=B", "-v", "", "A B", "A\n--privileged"])
async def test_a_job_is_refused_when_a_variable_would_bring_others_of_the_node_along(make_rig, name: str):
    async with make_rig().http() as http:
        answer = await http.post("/jobs", json={"name": "j", "command": "true", "env": {name: "x"}})
        assert answer.status_code == 422, answer.text


async def test_an_archive_of_somebody_else_is_not_opened_when_a_server_names_it_for_an_image(
    lab: EngineLab, containers: Containers, tmp_path: Path
):
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    containers.make("localhost/private:1", container_lab.plain_image(), "ENV SECRET=sesame")
    assert containers.ask("save", "-o", f"{private}/image.tar", "localhost/private:1").returncode == 0
    containers.ask("rmi", "localhost/private:1")
    server = await lab.start()
    for number, place in enumerate(PLACES, 1):
        image = place.format(folder=private)
        attempt = f"w{number}.1"
        launch = launch_of("echo inside $SECRET", attempt, view=View(image=image, uid=2_000_007))
        await lab.launch(server, launch)
        ended = await server.ended(attempt)
        assert ended.exit_code == 126, (image, server.log(attempt))
        assert "is no image of a registry or of this node" in ended.message
        assert b"inside" not in server.log(attempt)


async def test_a_container_has_none_of_what_the_node_has(
    lab: EngineLab, containers: Containers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("NODE_SECRET", "sesame")
    (tmp_path / "store").mkdir()
    server = await lab.start()
    view = View(
        image=PLAIN,
        uid=2_000_007,
        mounts=(Mount(source=str(tmp_path / "store"), target="/store"),),
    )
    looks = {  # where one succeeds, it has done no harm
        **{name: f"readlink /proc/self/ns/{name}" for name in NAMESPACES},
        "sockets": "find / -xdev -type s; ls -d /var/run/docker.sock /run/podman /run/containerd /run/docker.sock",
        "devices": "find /dev -type b",
        "secrets": "env | grep NODE_; grep -l NODE_SECRET /proc/[0-9]*/environ",
        "agent": f"ls {lab.root()}/agent.lock {lab.root()}/tasks/*/*/task.json {lab.root()}/tasks/*/*/state",
        "written": f"for one in {lab.root()}/agent*.pyz; do echo x >> $one && echo $one; done",
        "mounted": "mkdir -p /tmp/m && /bin/busybox mount -t tmpfs none /tmp/m && echo done",
        "kernel": 'was=$(cat /proc/sys/kernel/core_pattern); echo "$was" > /proc/sys/kernel/core_pattern && echo done',
        "groups": "for one in /sys/fs/cgroup/*/cgroup.procs; do [ -e $one ] && echo 0 > $one && echo $one; done",
        "processes": "ls -d /proc/[0-9]*",
    }
    script = "".join(f"echo '{name}:' $( ({look}) 2>/dev/null )\n" for name, look in looks.items())
    await lab.launch(server, launch_of(script, view=view))
    assert (await server.ended("w1.1")).exit_code == 0, server.log("w1.1")
    said = dict(line.split(":", 1) for line in server.log("w1.1").decode().splitlines() if ":" in line)
    for name in NAMESPACES:
        own = os.readlink(f"/proc/self/ns/{name}")
        # A kernel without groups of version 2 leaves that space to be shared; nothing can be written there.
        assert said[name].strip() != own or name == "cgroup", name
    for name in ("sockets", "devices", "secrets", "agent", "written", "mounted", "kernel", "groups"):
        assert said[name].strip() == "", (name, said[name])
    assert 1 < len(said["processes"].split()) < 20
