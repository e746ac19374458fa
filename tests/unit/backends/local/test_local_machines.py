"""Local machines: their folders, environment and addresses, and what a death in the middle leaves."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from trainyard import settings
from trainyard.backends.local import LocalBackend
from trainyard.backends.local.addresses import free_addresses
from trainyard.lib.errors import (
    CapacityError,
    ConflictError,
    DeniedError,
    Error,
    InvalidError,
    NotFoundError,
    UnreachableError,
)
from trainyard.lib.process_tree import find_process
from trainyard.spec.machine import MachineSpec, MachineState
from trainyard.transport.local import LocalTransport

SPEC = MachineSpec()


@pytest.fixture
async def backend(isolation: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[LocalBackend]:
    monkeypatch.setenv("TRAINYARD_STOP_GRACE", "0.3")
    backend = LocalBackend.from_settings(settings.load())
    yield backend
    await backend.release(await backend.machines())
    await backend.aclose()


@pytest.fixture
def root(isolation: Path) -> Path:
    return isolation / ".trainyard" / "local"


async def text_of(transport: LocalTransport, script: str) -> str:
    done = await transport.run(script)
    assert done.status == 0, done.stderr
    return done.stdout.decode().rstrip("\n")


async def test_every_machine_has_an_address_of_its_own_when_ports_are_equal(backend: LocalBackend) -> None:
    machines = await backend.acquire(SPEC, ["a", "b"])
    assert len({machine.address for machine in machines}) == 2
    servers = []
    for machine in machines:

        async def serve(
            reader: asyncio.StreamReader, writer: asyncio.StreamWriter, name: str = machine.name
        ) -> None:
            writer.write(name.encode())
            await writer.drain()
            writer.close()
            await writer.wait_closed()

        port = servers[0].sockets[0].getsockname()[1] if servers else 0
        servers.append(await asyncio.start_server(serve, machine.address, port))
    port = servers[0].sockets[0].getsockname()[1]
    for machine in machines:
        stream = await backend.transport(machine).connect(port)
        assert await stream.read() == machine.name.encode()
        await stream.aclose()
    for server in servers:
        server.close()
        await server.wait_closed()


def test_addresses_are_not_repeated_when_all_are_asked_for() -> None:
    everything = free_addresses(254 * 256, used=(), seed="x")
    assert len(set(everything)) == 254 * 256
    assert not any(address.endswith((".0", ".255")) for address in everything)
    with pytest.raises(CapacityError, match="0 are free"):
        free_addresses(1, used=everything, seed="x")
    assert free_addresses(1, used=everything[1:], seed="y") == everything[:1]


async def test_processes_find_the_machine_around_them_when_they_run(
    backend: LocalBackend, root: Path
) -> None:
    (machine,) = await backend.acquire(SPEC, ["task0.env"])
    lines = (await text_of(backend.transport(machine), "env")).splitlines()
    env = dict(line.split("=", 1) for line in lines if "=" in line)
    assert env["HOME"] == machine.home == str(root / "task0.env" / "home")
    assert env["TRAINYARD_MACHINE"] == f"task0.env:{machine.id}"
    assert env["TRAINYARD_ADDRESS"] == machine.address
    assert env["TRAINYARD_KEEPER"] == str(root / "task0.env" / "requests")
    assert env["TMPDIR"] == env["TMUX_TMPDIR"]
    assert env["PYTHONUNBUFFERED"] == "1"
    assert env["PATH"].endswith(":" + os.environ["PATH"])


async def test_a_machine_gets_no_secret_and_no_session_when_the_client_has_some(isolation: Path) -> None:
    foreign = {
        "ALIYUN_ACCESS_KEY_SECRET": "s3cret",
        "WANDB_API_KEY": "s3cret",
        "GITHUB_TOKEN": "s3cret",
        "DB_PASSWORD": "s3cret",
        "TMUX": "/tmp/tmux-0/default,1,0",
        "SSH_AUTH_SOCK": "/tmp/agent",
        "TRAINYARD_MACHINE": "task0.outer:1",
        "OMPI_COMM_WORLD_RANK": "3",
        "BASH_ENV": "/tmp/evil",
    }
    kept = {"http_proxy": "http://proxy:1", "LD_LIBRARY_PATH": "/opt/lib", "LC_ALL": "C.UTF-8"}
    backend = LocalBackend.from_settings(settings.load({**os.environ, **foreign, **kept}))
    (machine,) = await backend.acquire(SPEC, ["a"])
    transport = backend.transport(machine)
    try:
        env = await text_of(transport, "env")
        keeper = Path(f"/proc/{machine.details['keeper']}/environ").read_bytes().decode()
        for text in (env, keeper, " ".join(transport.argv())):
            assert "s3cret" not in text
            assert "TMUX=" not in text
            assert "task0.outer" not in text
        for name, value in kept.items():
            assert f"{name}={value}\n" in env + "\n"
        words = transport.argv("env")
        shown = subprocess.run(words, env={**os.environ, **foreign, **kept}, capture_output=True, text=True)
        assert "s3cret" not in shown.stdout
        assert f"HOME={machine.home}\n" in shown.stdout
        assert "http_proxy=http://proxy:1\n" in shown.stdout
        assert "s3cret" not in repr(settings.load({**os.environ, **foreign}))
    finally:
        await backend.release([machine])
        await backend.aclose()


async def test_a_login_shell_has_the_path_and_conda_of_the_client_when_a_person_attaches(
    isolation: Path, tmp_path: Path
) -> None:
    conda = tmp_path / "it's conda"
    (conda / "etc" / "profile.d").mkdir(parents=True)
    (conda / "etc" / "profile.d" / "conda.sh").write_text("conda() { echo conda $*; }\n")
    environ = {
        **os.environ,
        "CONDA_EXE": str(conda / "bin" / "conda"),
        "PATH": f"/some/where:{os.environ['PATH']}",
    }
    backend = LocalBackend.from_settings(settings.load(environ))
    (machine,) = await backend.acquire(SPEC, ["a"])
    try:
        shell = subprocess.run(
            backend.transport(machine).argv(),
            input='pwd; conda activate x; echo "$PATH"; shopt login_shell\n',
            env=environ,
            capture_output=True,
            text=True,
        )
        lines = shell.stdout.splitlines()
        assert lines[:2] == [machine.home, "conda activate x"]
        assert lines[2].endswith(":" + environ["PATH"])
        assert "login_shell    \ton" in shell.stdout
    finally:
        await backend.release([machine])
        await backend.aclose()


async def test_sockets_fit_when_the_folder_has_a_long_path(isolation: Path, tmp_path: Path) -> None:
    home = tmp_path / ("long" * 30)
    backend = LocalBackend.from_settings(settings.load({**os.environ, "TRAINYARD_HOME": str(home)}))
    (machine,) = await backend.acquire(SPEC, ["task0.long"])
    transport = backend.transport(machine)
    try:
        await text_of(transport, "tmux -f /dev/null new-session -d 'exec sleep 3600'; tmux list-sessions")
        private = Path(await text_of(transport, 'echo "$TMUX_TMPDIR"'))
        assert private.parent == Path("/tmp")
        assert private.stat().st_mode & 0o777 == 0o700
        await backend.stop([machine])
        await backend.start([machine])
        assert await text_of(transport, 'echo "$TMPDIR"') == str(private)
    finally:
        await backend.release([machine])
        await backend.aclose()
    assert not private.exists()


async def test_a_damaged_machine_is_listed_as_lost_and_can_be_released_when_its_file_is_broken(
    backend: LocalBackend, root: Path
) -> None:
    names = [f"broken{number}" for number in range(5)]
    machines = await backend.acquire(SPEC, [*names, "healthy"])
    running = await backend.transport(machines[0]).spawn("exec sleep 3600")
    record = json.loads((root / "broken4" / "machine.json").read_text())
    (root / "broken0" / "machine.json").write_text("{ half")
    (root / "broken1" / "machine.json").unlink()
    (root / "broken2" / "machine.json").write_bytes(b"\xff\x00")
    (root / "broken3" / "machine.json").write_text("[]")
    (root / "broken4" / "machine.json").write_text(json.dumps({**record, "version": 99}))
    listed = await backend.machines()
    assert [(one.name, one.state) for one in listed] == [
        *((name, MachineState.LOST) for name in names),
        ("healthy", MachineState.RUNNING),
    ]
    assert [one.details["reason"].split(":")[0] for one in listed[:2]] == [
        "machine.json is damaged",
        "machine.json is missing",
    ]
    with pytest.raises(ConflictError, match=r"'broken0' is lost.*trainyard kill broken0"):
        await backend.acquire(SPEC, ["broken0"])
    with pytest.raises(UnreachableError, match="lost"):
        await backend.transport(listed[0]).run("true")
    await backend.release(listed[:5])
    assert [one.name for one in await backend.machines()] == ["healthy"]
    assert await running.wait() in (
        128 + 15,
        128 + 9,
    )  # asked to go; on a busy machine it may not hear in time
    assert sorted(path.name for path in root.iterdir()) == [".lock", "healthy"]


async def test_a_stray_file_does_not_hurt_when_it_lies_among_the_machines(
    backend: LocalBackend, root: Path
) -> None:
    await backend.acquire(SPEC, ["a"])
    (root / "notes.txt").write_text("mine")
    assert [machine.name for machine in await backend.machines()] == ["a"]
    with pytest.raises(ConflictError):
        await backend.acquire(SPEC, ["notes.txt"])
    await backend.release(await backend.machines())
    assert (root / "notes.txt").read_text() == "mine"


async def test_a_machine_of_another_computer_is_not_started_here_when_homes_are_shared(
    backend: LocalBackend, root: Path
) -> None:
    (machine,) = await backend.acquire(SPEC, ["a"])
    await backend.stop([machine])
    path = root / "a" / "machine.json"
    stopped = json.loads(path.read_text())
    path.write_text(json.dumps({**stopped, "computer": "elsewhere", "boot": "another"}))
    (listed,) = await backend.machines()
    assert listed.state is MachineState.LOST
    assert "elsewhere" in listed.details["reason"]
    for attempt in (backend.acquire(SPEC, ["a"]), backend.start([machine])):
        with pytest.raises(ConflictError, match="elsewhere"):
            await attempt
    # Stopped there, it may be started anywhere; after a reboot of this computer, here.
    path.write_text(json.dumps({**stopped, "computer": "elsewhere"}))
    assert (await backend.machines())[0].state is MachineState.STOPPED
    path.write_text(json.dumps({**stopped, "boot": "another"}))
    assert (await backend.machines())[0].state is MachineState.STOPPED
    assert (await backend.acquire(SPEC, ["a"]))[0].state is MachineState.RUNNING


async def test_only_the_machines_own_files_are_removed_when_links_lead_out(
    backend: LocalBackend, tmp_path: Path
) -> None:
    (machine,) = await backend.acquire(SPEC, ["a"])
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("data")
    home = Path(machine.home)
    (home / "link").symlink_to(outside)
    (home / "file link").symlink_to(outside / "precious")
    locked = home / "cache" / "locked"
    locked.mkdir(parents=True)
    (locked / "file").write_text("x")
    (locked / "out").symlink_to(outside)
    locked.chmod(0o500)
    (home / "cache").chmod(0o000)
    await backend.release([machine])
    assert not home.parent.exists()
    assert (outside / "precious").read_text() == "data"
    assert outside.stat().st_mode & 0o200


async def test_the_target_stays_when_the_folder_itself_is_a_link(
    backend: LocalBackend, root: Path, tmp_path: Path
) -> None:
    (machine,) = await backend.acquire(SPEC, ["a"])
    await backend.stop([machine])
    (root / "a").rename(tmp_path / "moved")
    (root / "a").symlink_to(tmp_path / "moved")
    (again,) = await backend.acquire(SPEC, ["a"])
    assert again.id == machine.id
    await backend.release([again])
    assert not (root / "a").is_symlink()
    assert (tmp_path / "moved" / "home").is_dir()


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
async def test_a_mounted_file_system_is_not_emptied_when_its_machine_is_released(
    backend: LocalBackend, tmp_path: Path
) -> None:
    (machine,) = await backend.acquire(SPEC, ["a"])
    inside = Path(machine.home) / "data set"
    inside.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "none", inside], capture_output=True)
    if mounted.returncode:
        pytest.skip("this computer does not let root mount")
    try:
        (inside / "precious").write_text("data")
        with pytest.raises(ConflictError, match=r"data set.*is mounted inside"):
            await backend.release([machine])
        assert (inside / "precious").read_text() == "data"
    finally:
        subprocess.run(["umount", inside], check=True)


async def test_a_later_machine_is_spared_when_an_old_description_is_released(backend: LocalBackend) -> None:
    (old,) = await backend.acquire(SPEC, ["a"])
    await backend.release([old])
    (new,) = await backend.acquire(SPEC, ["a"])
    assert new.id != old.id
    await backend.release([old])
    assert [machine.id for machine in await backend.machines()] == [new.id]
    for attempt in (backend.stop([old]), backend.start([old]), backend.rename(old, "b")):
        with pytest.raises(NotFoundError, match="'a'"):
            await attempt
    with pytest.raises(UnreachableError, match="does not exist any more"):
        await backend.transport(old).run("true")


async def test_names_are_checked_when_machines_are_asked_for(backend: LocalBackend, root: Path) -> None:
    for names in (["../x"], [".hidden"], ["a/b"], [""], ["a\nb"], ["x" * 64]):
        with pytest.raises(InvalidError):
            await backend.acquire(SPEC, names)
    with pytest.raises(InvalidError, match="twice"):
        await backend.acquire(SPEC, ["a", "a"])
    assert not root.exists()


async def test_a_running_machine_is_not_renamed_when_its_home_would_move(backend: LocalBackend) -> None:
    (machine,) = await backend.acquire(SPEC, ["a"])
    with pytest.raises(ConflictError, match="trainyard stop a"):
        await backend.rename(machine, "b")
    assert (await backend.rename(machine, "a")).name == "a"
    await backend.stop([machine])
    renamed = await backend.rename(machine, "b")
    assert (renamed.name, renamed.id, renamed.address) == ("b", machine.id, machine.address)
    await backend.start([renamed])
    assert await text_of(backend.transport(renamed), "echo $HOME $TRAINYARD_MACHINE") == (
        f"{renamed.home} b:{machine.id}"
    )


async def test_nothing_is_left_when_keepers_cannot_start(
    backend: LocalBackend, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (old,) = await backend.acquire(SPEC, ["old"])
    await backend.stop([old])
    before = (root / "old" / "machine.json").read_text()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", "/nonexistent")
        with pytest.raises(UnreachableError):
            await backend.acquire(SPEC, ["old", "new0", "new1"])
    assert [(one.name, one.state) for one in await backend.machines()] == [("old", MachineState.STOPPED)]
    assert (root / "old" / "machine.json").read_text() == before
    assert sorted(path.name for path in root.iterdir()) == [".lock", "old"]


async def test_nothing_is_left_when_acquiring_is_cancelled(backend: LocalBackend, root: Path) -> None:
    for pause in (0, 0.001, 0.005, 0.01, 0.02):
        task = asyncio.ensure_future(backend.acquire(SPEC, ["a", "b", "c"]))
        await asyncio.sleep(pause)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await backend.machines() == []
    assert [machine.state for machine in await backend.acquire(SPEC, ["a"])] == [MachineState.RUNNING]
    assert sorted(path.name for path in root.iterdir()) == [".lock", "a"]


CLIENT = """
import asyncio, sys
from trainyard import settings
from trainyard.backends.local import LocalBackend
from trainyard.spec.machine import MachineSpec
async def main():
    backend = LocalBackend.from_settings(settings.load())
    machines = await backend.acquire(MachineSpec(), [f"task{i}.killed" for i in range(int(sys.argv[1]))])
    process = await backend.transport(machines[0]).spawn("exec sleep 3600")
    print("ready", flush=True)
    await asyncio.sleep(3600)
asyncio.run(main())
"""


# Slow: starts seven Python processes to kill them at different moments.
@pytest.mark.slow
async def test_what_is_there_is_listed_and_released_when_the_client_is_killed_in_the_middle(
    backend: LocalBackend, root: Path
) -> None:
    seen = set()
    for step in range(6):
        client = subprocess.Popen([sys.executable, "-c", CLIENT, "20"], stdout=subprocess.PIPE)
        deadline = time.monotonic() + 10
        wanted = step * 4
        while sum(1 for _ in root.glob("task*")) < wanted and time.monotonic() < deadline:
            pass
        client.kill()
        client.wait()
        client.stdout.close()
        listed = await backend.machines()
        seen.add(len(listed))
        machines = await backend.acquire(SPEC, [f"task{i}.killed" for i in range(20)])
        assert {machine.state for machine in machines} == {MachineState.RUNNING}
        assert {one.id for one in listed} <= {machine.id for machine in machines}
        assert len({machine.address for machine in machines}) == 20
        await backend.release(machines)
        assert sorted(path.name for path in root.iterdir()) == [".lock"]
    assert len(seen) > 1


# Slow: starts a client of its own, a Python process.
@pytest.mark.slow
async def test_machines_live_on_when_the_client_is_killed(backend: LocalBackend) -> None:
    client = subprocess.Popen(
        [sys.executable, "-c", CLIENT, "2"], stdout=subprocess.PIPE, start_new_session=True
    )
    assert client.stdout.readline() == b"ready\n"
    before = await backend.machines()
    os.killpg(client.pid, signal.SIGKILL)
    client.wait()
    client.stdout.close()
    after = await backend.machines()
    assert [machine.state for machine in after] == [MachineState.RUNNING] * 2
    assert before == after
    for machine in after:
        keeper = find_process(int(machine.details["keeper"]))
        assert keeper is not None
        assert keeper.session == keeper.id.pid


async def test_keepers_are_small_when_many_machines_are_made_at_once(backend: LocalBackend) -> None:
    machines = await backend.acquire(SPEC, [f"task{index}.many" for index in range(64)])
    assert len({machine.address for machine in machines}) == 64
    private = 0
    for machine in machines:
        rollup = Path(f"/proc/{machine.details['keeper']}/smaps_rollup").read_text()
        private += sum(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Private"))
    assert private / 64 < 1024


async def test_a_clear_refusal_comes_when_the_folder_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    environ = {**os.environ, "TRAINYARD_HOME": str(tmp_path / "file")}
    backend = LocalBackend.from_settings(settings.load(environ))
    with pytest.raises(DeniedError, match=r"cannot be made in.*Set TRAINYARD_HOME"):
        await backend.acquire(SPEC, ["a"])
    assert await backend.machines() == []
    await backend.release([])


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
async def test_nothing_is_left_when_the_disk_is_full(isolation: Path, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", disk], capture_output=True)
    if mounted.returncode:
        pytest.skip("this computer does not let root mount")
    environ = {**os.environ, "TRAINYARD_HOME": str(disk), "TRAINYARD_STOP_GRACE": "0.3"}
    backend = LocalBackend.from_settings(settings.load(environ))
    try:
        (first,) = await backend.acquire(SPEC, ["first"])
        with pytest.raises(CapacityError, match="no space"):
            await backend.acquire(SPEC, [f"task{index}.many" for index in range(100)])
        assert [machine.name for machine in await backend.machines()] == ["first"]
        assert sorted(path.name for path in (disk / "local").iterdir()) == [".lock", "first"]
        done = await backend.transport(first).run("echo $$ > pid; cat /dev/zero > zeros; exec sleep 3600 &")
        assert done.status == 0
        await backend.stop([first])
        assert [machine.state for machine in await backend.machines()] == [MachineState.STOPPED]
        await backend.release([first])
        assert await backend.machines() == []
    finally:
        await backend.release(await backend.machines())
        await backend.aclose()
        subprocess.run(["umount", disk], check=True)


# Slow: four clients make, stop, rename and release the same machines for a second.
@pytest.mark.slow
async def test_the_truth_stays_one_when_four_clients_do_everything_at_once(
    isolation: Path, root: Path
) -> None:
    environ = {**os.environ, "TRAINYARD_LOCAL_GPUS": "6", "TRAINYARD_STOP_GRACE": "0.05"}
    clients = [LocalBackend.from_settings(settings.load(environ)) for _ in range(4)]
    refused: set[type] = set()

    async def live(client: LocalBackend, chance: random.Random) -> None:
        deadline = time.monotonic() + 1
        while time.monotonic() < deadline:
            try:
                await act(client, chance)
            except Error as error:
                refused.add(type(error))

    async def act(client: LocalBackend, chance: random.Random) -> None:
        names = chance.sample("abcde", 2)
        verb = chance.choice(["acquire", "acquire", "stop", "start", "release", "rename", "run"])
        if verb == "acquire":
            made = await client.acquire(MachineSpec(gpus=chance.choice([None, 1, 2])), names)
            assert [machine.name for machine in made] == names
            return
        machines = [machine for machine in await client.machines() if machine.name in names]
        if verb in {"stop", "start", "release"}:
            await getattr(client, verb)(machines)
        elif machines and verb == "rename":
            await client.rename(machines[0], names[1])
        elif machines:
            await client.transport(machines[0]).run("setsid sleep 60 >/dev/null 2>&1 & echo hi")

    await asyncio.gather(*(live(client, random.Random(seed)) for seed, client in enumerate(clients)))
    assert refused <= {ConflictError, CapacityError, NotFoundError, UnreachableError}
    machines = await clients[0].machines()
    addresses = [machine.address for machine in machines]
    assert len(set(addresses)) == len(addresses)
    devices = [device.index for machine in machines for device in machine.devices]
    assert len(set(devices)) == len(devices)
    assert {machine.state for machine in machines} <= {MachineState.RUNNING, MachineState.STOPPED}
    await clients[0].release(machines)
    assert sorted(path.name for path in root.iterdir()) == [".lock"]
    for client in clients:
        await client.aclose()
