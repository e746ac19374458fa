"""Machines on hosts: what runs there, stopping, releasing, renaming; and what another laptop sees of it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from lab import Lab
from sshd import Sshd, start_sshd
from trainyard.backends.ssh.hosts import break_lease
from trainyard.lib.errors import ConflictError, DeniedError, NotFoundError, TaskErrors, UnreachableError
from trainyard.spec.machine import MachineSpec, MachineState
from trainyard.transport.api import SHELL, read_all

pytestmark = [pytest.mark.ssh, pytest.mark.slow]  # real sshds are started

ANY = MachineSpec()
DAEMON = "(setsid sh -c 'trap \"\" HUP; while :; do sleep 0.1; done' </dev/null >/dev/null 2>&1 &)"


async def test_commands_know_their_machine_when_they_run(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab(1)
    backend = lab.backend()
    [machine] = await backend.acquire(ANY, ["task0.x"])
    script = 'env | grep -E "^(TRAINYARD_MACHINE|TRAINYARD_ADDRESS|PYTHONUNBUFFERED|CUDA)" | sort'
    done = await backend.transport(machine).run(script)
    assert done.stdout.decode().splitlines() == [
        "PYTHONUNBUFFERED=1",
        f"TRAINYARD_ADDRESS={lab.sshds[0].address}",
        f"TRAINYARD_MACHINE=task0.x:{machine.id}",
    ]


async def test_one_connection_serves_leases_and_the_machine(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab(1)
    backend = lab.backend()
    [machine] = await backend.acquire(ANY, ["task0.x"])
    await backend.transport(machine).run("true")
    await backend.machines()
    assert lab.sshds[0].log.count("Accepted publickey") == 1


async def test_everything_on_the_machine_ends_and_files_stay_when_stopped(
    make_lab: Callable[..., Lab],
) -> None:
    lab = make_lab(2)
    backend = lab.backend()
    machines = await backend.acquire(ANY, ["task0.x", "task1.x"])
    for machine in machines:
        transport = backend.transport(machine)
        await transport.run(f"{DAEMON}; echo kept >file; tmux -L own new-session -d 'sleep 1000'")
    process = await backend.transport(machines[0]).spawn("while :; do read -r x </dev/zero; done")
    assert all(sshd.pids() for sshd in lab.sshds)

    await backend.stop(machines[:1])
    assert await process.wait() > 128
    assert lab.sshds[0].pids() == []
    assert len(lab.sshds[1].pids()) >= 3
    assert (lab.sshds[0].home / "file").read_text() == "kept\n"
    with pytest.raises(UnreachableError, match=r"task0\.x' is stopped"):
        await backend.transport(machines[0]).run("true")
    states = {machine.name: machine.state for machine in await lab.backend("bob@pc").machines()}
    assert states == {"task0.x": MachineState.STOPPED, "task1.x": MachineState.RUNNING}

    await lab.backend("bob@pc").start(machines[:1])
    await backend.machines()  # sees that it runs again
    assert (await backend.transport(machines[0]).run("cat file")).stdout == b"kept\n"
    await backend.release(machines)
    assert lab.sshds[1].pids() == []


async def test_shell_that_looked_at_the_lease_serves_the_machine_when_it_is_found_again(
    make_lab: Callable[..., Lab],
) -> None:
    lab = make_lab(2)
    machines = await lab.backend().acquire(ANY, ["task0.x", "task1.x"])
    again = lab.backend()
    assert await again.acquire(ANY, ["task0.x"]) == machines[:1]
    [kept] = lab.sshds[0].pids()
    assert lab.sshds[1].pids() == []  # nobody asked for that one

    process = await again.transport(machines[0]).spawn(SHELL)
    await process.write(b'echo "$$ $TRAINYARD_MACHINE $PWD"; umask; echo "${LC_ALL-}"\n')
    await process.write_eof()
    said = (await read_all(process)).decode().split()

    assert said[:3] == [str(kept), f"task0.x:{machines[0].id}", str(lab.sshds[0].home)]
    assert await process.wait() == 0


async def test_shell_that_waits_for_its_machine_ends_with_it_when_somebody_else_releases_that(
    make_lab: Callable[..., Lab],
) -> None:
    lab = make_lab(1)
    await lab.backend().acquire(ANY, ["task0.x"])
    again, bob = lab.backend(), lab.backend("bob@pc")
    [machine] = await again.acquire(ANY, ["task0.x"])
    assert len(lab.sshds[0].pids()) == 1

    await bob.release(await bob.machines())

    assert lab.sshds[0].pids() == []
    [other] = await bob.acquire(ANY, ["task0.x"])
    [found] = await again.acquire(ANY, ["task0.x"])
    assert found.id == other.id != machine.id
    assert lab.sshds[0].pids() == []  # what was remembered was another machine's
    done = await again.transport(found).run("echo $TRAINYARD_MACHINE")
    assert done.stdout.decode() == f"task0.x:{other.id}\n"


async def test_only_the_machines_own_folder_goes_when_released(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab(1)
    backend = lab.backend()
    [machine] = await backend.acquire(ANY, ["task0.x"])
    await backend.transport(machine).run("mkdir -p .trainyard/task0.x/sub .trainyard/uploads; echo a >result")
    await backend.release([machine])
    home = lab.sshds[0].home
    assert sorted(path.name for path in home.iterdir() if path.name != ".trainyard") == ["result"]
    assert [path.name for path in (home / ".trainyard").iterdir()] == ["uploads"]
    assert await lab.backend("bob@pc").machines() == []


async def test_a_hostile_home_is_no_trouble(
    make_lab: Callable[..., Lab], hostile_path: Path, tmp_path: Path
) -> None:
    lab = make_lab(0)
    lab.sshds.append(start_sshd(tmp_path, home=hostile_path / "home"))
    try:
        backend = lab.backend()
        [machine] = await backend.acquire(ANY, ["task0.x"])
        assert machine.home == str(hostile_path / "home")
        await backend.transport(machine).run("mkdir -p .trainyard/task0.x")
        await backend.stop([machine])
        await backend.rename(machine, "task1.x")
        [renamed] = await backend.machines()
        assert (Path(machine.home) / ".trainyard" / "task1.x").is_dir()
        await backend.release([renamed])
        assert list((Path(machine.home) / ".trainyard").iterdir()) == []
        await lab.aclose()
    finally:
        lab.sshds[0].close()


async def test_rename_is_refused_when_running_or_taken_and_seen_by_all_when_done(
    make_lab: Callable[..., Lab],
) -> None:
    lab = make_lab(2)
    backend = lab.backend()
    first, _ = await backend.acquire(ANY, ["task0.x", "task1.x"])
    with pytest.raises(ConflictError, match="is running"):
        await backend.rename(first, "task0.y")
    await backend.stop([first])
    with pytest.raises(ConflictError, match="already"):
        await backend.rename(first, "task1.x")
    renamed = await backend.rename(first, "task0.y")
    assert (renamed.name, renamed.id, renamed.state) == ("task0.y", first.id, MachineState.STOPPED)
    assert [each.name for each in await lab.backend("bob@pc").machines()] == ["task1.x", "task0.y"]
    [started] = await backend.acquire(ANY, ["task0.y"])
    done = await backend.transport(started).run("echo $TRAINYARD_MACHINE")
    assert done.stdout.decode() == f"task0.y:{first.id}\n"


async def test_the_old_holder_finds_out_when_its_lease_is_broken(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab(1)
    alice, bob = lab.backend("alice@mac"), lab.backend("bob@pc")
    [machine] = await alice.acquire(ANY, ["task0.x"])
    await alice.transport(machine).run(DAEMON)
    broken = await break_lease(lab.laptop("bob@pc"), "h0")
    assert (broken.id, broken.owner) == (machine.id, "alice@mac")
    assert lab.sshds[0].pids() == []
    assert await alice.machines() == []
    [other] = await bob.acquire(ANY, ["task0.x"])
    await bob.transport(other).run(f"{DAEMON}; mkdir -p .trainyard/task0.x")
    for verb in (alice.stop, alice.start):
        with pytest.raises(NotFoundError):
            await verb([machine])
    await alice.release([machine])  # gone already is no error, and nothing of the new machine is touched
    assert lab.sshds[0].pids()
    assert (lab.sshds[0].home / ".trainyard" / "task0.x").is_dir()
    assert [each.id for each in await bob.machines()] == [other.id]
    await bob.release([other])


async def test_the_healthy_are_released_and_all_failures_told_when_hosts_are_silent(
    make_lab: Callable[..., Lab],
) -> None:
    lab = make_lab(3)
    backend = lab.backend()
    machines = await backend.acquire(ANY, ["task0.x", "task1.x", "task2.x"])
    lab.sshds[0].stop()
    lab.sshds[2].stop()
    with pytest.raises(TaskErrors) as caught:
        await backend.release(machines)
    assert len(caught.value.exceptions) == 2
    assert all(isinstance(error, UnreachableError) for error in caught.value.exceptions)
    for sshd in lab.sshds[::2]:
        sshd.restart()
    assert [each.name for each in await backend.machines()] == ["task0.x", "task2.x"]
    await backend.release(machines)
    assert await backend.machines() == []


async def test_a_release_can_be_repeated_when_it_was_cancelled_at_any_moment(
    make_lab: Callable[..., Lab],
) -> None:
    lab = make_lab(1)
    backend = lab.backend()
    for step in range(8):
        [machine] = await backend.acquire(ANY, ["task0.x"])
        await backend.transport(machine).run(f"{DAEMON}; mkdir -p .trainyard/task0.x")
        call = asyncio.ensure_future(backend.release([machine]))
        await asyncio.wait([call], timeout=step * 0.03)
        call.cancel()
        await asyncio.wait([call])
        left = await lab.backend("bob@pc").machines()
        assert [each.id for each in left] in ([machine.id], [])
        if left:
            await lab.backend("bob@pc").release(left)
        assert lab.sshds[0].pids() == []
        assert await backend.machines() == []


async def test_a_machine_of_another_account_is_left_alone(make_lab: Callable[..., Lab]) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can give a lease to another account")
    lab = make_lab(1)
    backend = lab.backend()
    [machine] = await backend.acquire(ANY, ["task0.x"])
    (lab.sshds[0].home / ".trainyard" / "task0.x").mkdir(parents=True)
    [file] = lab.lease_dir.iterdir()
    os.chown(file, 65534, 65534)
    for verb in (backend.stop, backend.start, backend.release):
        with pytest.raises(DeniedError, match="another account"):
            await verb([machine])
    with pytest.raises(DeniedError, match="another account"):
        await backend.rename(machine, "task0.y")
    assert (lab.sshds[0].home / ".trainyard" / "task0.x").is_dir()
    assert [path.name for path in lab.lease_dir.iterdir()] == [file.name]


async def test_a_machine_survives_when_its_host_restarts_sshd(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab(1)
    backend = lab.backend()
    [machine] = await backend.acquire(ANY, ["task0.x"])
    await backend.transport(machine).run(DAEMON)
    lab.sshds[0].restart()
    assert (await backend.transport(machine).run("echo hi")).stdout == b"hi\n"
    assert lab.sshds[0].pids()
    await backend.release(await backend.machines())
    assert lab.sshds[0].pids() == []


async def test_the_machine_is_usable_when_somebody_closed_its_transport(
    make_lab: Callable[..., Lab],
) -> None:
    lab = make_lab(1)
    backend = lab.backend()
    [machine] = await backend.acquire(ANY, ["task0.x"])
    await backend.transport(machine).aclose()
    assert (await backend.transport(machine).run("echo hi")).stdout == b"hi\n"
    await backend.release([machine])


async def test_the_way_goes_through_a_host_of_the_inventory_when_it_is_the_jump_host(
    make_lab: Callable[..., Lab],
) -> None:
    lab = make_lab(2)
    backend = lab.backend(hosts=[lab.entry(1, jump=("h0",)), lab.entry(0)])
    [machine] = await backend.acquire(ANY, ["task0.x"])
    assert machine.details["host"] == "h1"
    assert (await backend.transport(machine).run("pwd")).stdout.decode() == f"{lab.sshds[1].home}\n"
    assert _connections(lab.sshds[0]) >= 1


async def test_the_real_ssh_client_gets_there_when_a_person_attaches(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab(1)
    backend = lab.backend()
    [machine] = await backend.acquire(ANY, ["task0.x"])
    argv = backend.transport(machine).argv("echo $TRAINYARD_MACHINE", terminal=False)
    process = await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.PIPE, env={**os.environ})
    output, _ = await process.communicate()
    assert output.decode().strip() == f"task0.x:{machine.id}"


def _connections(sshd: Sshd) -> int:
    return sshd.log.count("Accepted publickey")
