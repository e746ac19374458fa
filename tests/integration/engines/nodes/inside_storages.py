"""Network storages, with a real server of them and a kernel that mounts them. Run inside of another kernel: see kernel_lab.py."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from engine_lab import EngineLab, launch_of

import platforms
from trainyard.engines.api import Mount, View, end_one

EXPORTS = Path("/run/exports")
OPTIONS = "rw,insecure,no_subtree_check"


def run(*words: str) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


def threads(number: int) -> None:
    """How many of the server's there are; none: it does not answer."""
    run("rpc.nfsd", "--no-udp", "--no-nfs-version", "3", str(number))


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """Where a server exports `team`, in which root may write, and `squashed`, in which it may not."""
    for name in (
        "team",
        "squashed",
    ):  # each a file system of its own: only then are they exported in different ways
        (EXPORTS / name).mkdir(parents=True)
        run("mount", "-t", "tmpfs", "-o", "mode=755", "exported", str(EXPORTS / name))
    state = Path("/run/nfs")
    state.mkdir()
    run("mount", "--bind", str(state), "/var/lib/nfs")
    for name in ("sm", "v4recovery", "rpc_pipefs"):
        (state / name).mkdir()
    for name in ("etab", "rmtab"):
        (state / name).touch()
    for name in ("nfsd", "nfsv4"):
        run("modprobe", name)
    run("mount", "-t", "nfsd", "nfsd", "/proc/fs/nfsd")
    Path("/proc/fs/nfsd/nfsv4gracetime").write_text("10")
    run("rpc.mountd", "--no-nfs-version", "3")
    threads(2)
    run("exportfs", "-o", f"{OPTIONS},no_root_squash,fsid=0", f"127.0.0.1:{EXPORTS}")
    run("exportfs", "-o", f"{OPTIONS},no_root_squash,fsid=1", f"127.0.0.1:{EXPORTS}/team")
    run("exportfs", "-o", f"{OPTIONS},root_squash,fsid=2", f"127.0.0.1:{EXPORTS}/squashed")
    yield "127.0.0.1"
    threads(0)


def mounts() -> list[str]:
    return [line for line in Path("/proc/mounts").read_text().splitlines() if " nfs4 " in line]


def network(source: str, target: str = "/data", **given: object) -> Mount:
    return Mount(source=source, target=target, kind="nfs", **given)  # type: ignore[arg-type]


async def test_a_node_mounts_a_storage_once_and_tasks_read_and_write_in_it(lab: EngineLab, server: str):
    watched = await lab.start()
    (EXPORTS / "team" / "set").write_text("numbers\n")
    wide = network(f"{server}:/team")
    above = {"base": f"{server}:/team", "create": True}
    deep = network(f"{server}:/team/ada", "/job", options={**above, "path": "1"})
    locked = network(f"{server}:/team", "/locked", read_only=True)
    command = "cat /data/set; echo mine > /job/$N; cat /locked/ada/1/$N; (echo > /locked/x) 2>/dev/null || echo locked"
    for attempt in ("w1.1", "w2.1"):
        view = View(mounts=(wide, deep, locked))
        await lab.launch(watched, launch_of(command, attempt, view=view, env={"N": attempt}))
    for attempt in ("w1.1", "w2.1"):
        ended = await watched.ended(attempt)
        assert ended.exit_code == 0, (ended, watched.log(attempt))
        assert watched.log(attempt) == b"numbers\nmine\nlocked\n"
    assert (EXPORTS / "team" / "ada" / "1" / "w1.1").read_text() == "mine\n"
    assert len(mounts()) == 1, mounts()


async def test_it_is_said_what_is_wrong_when_a_storage_cannot_be_had(lab: EngineLab, server: str):
    watched = await lab.start()
    wrong = {
        "w1.1": (network(f"{server}:/no/such"), "No such file or directory"),
        "w2.1": (
            network(f"{server}:/squashed", options={"path": "ada", "create": True}),
            "Permission denied",
        ),
        "w3.1": (network(f"{server}:/team", options={"path": "no/such"}), "is not there"),
        "w4.1": (network(f"{server}:/team", options={"options": "vers=nonsense"}), "vers"),
        "w5.1": (network(f"{server}:/team", options={"options": "port=9,retry=0"}), "refused"),
    }
    for attempt, (mount, _) in wrong.items():
        await lab.launch(watched, launch_of("true", attempt, view=View(mounts=(mount,))))
    for attempt, (_, words) in wrong.items():
        ended = await watched.ended(attempt)
        assert ended.exit_code == 126
        assert words in ended.message, ended


async def test_tasks_without_it_run_and_one_with_it_can_be_ended_when_its_server_has_gone(
    lab: EngineLab, server: str
):
    watched = await lab.start()
    mount = network(f"{server}:/team")
    await lab.launch(watched, launch_of("ls /data", "w1.1", view=View(mounts=(mount,))))
    assert (await watched.ended("w1.1")).exit_code == 0
    threads(0)
    try:
        await lab.launch(watched, launch_of("ls /data", "w2.1", view=View(mounts=(mount,))))
        await lab.launch(watched, launch_of("echo on", "w3.1", view=View()))
        assert (await watched.ended("w3.1")).exit_code == 0
        await end_one(watched.engine, "w2.1", ["local"], grace_seconds=1)
        ended = await watched.ended("w2.1")
        assert (ended.was_told, ended.message) == (True, "it was ended before it began")
    finally:
        threads(2)


@pytest.mark.timeout(300)
def test_jobs_of_a_platform_share_what_an_administrator_added(server: str, tmp_path: Path):
    with platforms.platform(tmp_path / "up") as up:
        source = f"{server}:/team/{{group}}"
        storage = {
            "name": "team",
            "kind": "nfs",
            "source": source,
            "target": "/mnt2/share/{group}",
            "default": True,
        }
        up.call("POST", "/api/v1/storages", storage)
        for command in ("echo found > /mnt2/share/default/f", "cat /mnt2/share/default/f"):
            job = up.submit(command)
            found = up.until(job, "succeeded", "failed", seconds=200)
            assert found["state"] == "succeeded", (found, up.lines(job))
        assert up.lines(job) == ["found"]
    assert (EXPORTS / "team" / "default" / "f").read_text() == "found\n"
