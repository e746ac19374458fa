"""Getting hosts: races between laptops, all or none, what is told when there are not enough."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from lab import Lab
from sshd import start_sshd
from trainyard.backends.ssh import inventory
from trainyard.backends.ssh.backend import SshBackend
from trainyard.lib.errors import CapacityError, ConflictError, InvalidError, UnreachableError
from trainyard.spec.machine import Machine, MachineSpec, MachineState

pytestmark = [pytest.mark.ssh, pytest.mark.slow]  # real sshds are started

ANY = MachineSpec()
RACERS = 20

NVIDIA_SMI = '#!/bin/sh\nfor i in $GPUS; do echo "$i, Tesla V100-SXM2-16GB, 16160 MiB"; done\n'


def names(count: int, job: str = "x") -> list[str]:
    return [f"task{number}.{job}" for number in range(count)]


async def all_leases(lab: Lab) -> Sequence[Machine]:
    """What a laptop that has nothing to do with the test sees."""
    return await lab.backend("eve@elsewhere").machines()


def driver_path(folder: Path, text: str = NVIDIA_SMI) -> str:
    folder.mkdir(exist_ok=True)
    (folder / "nvidia-smi").write_text(text)
    (folder / "nvidia-smi").chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


async def test_exactly_one_wins_when_many_laptops_race_for_the_last_host(
    make_lab: Callable[..., Lab],
) -> None:
    lab = make_lab(1)
    backends = [lab.backend(f"user{number}@mac") for number in range(RACERS)]
    results = await asyncio.gather(
        *(backend.acquire(ANY, [f"task0.job{number}"]) for number, backend in enumerate(backends)),
        return_exceptions=True,
    )
    won = [result[0] for result in results if isinstance(result, list)]
    lost = [result for result in results if isinstance(result, CapacityError)]
    assert (len(won), len(lost)) == (1, RACERS - 1)
    assert all(f"{won[0].owner} ({won[0].name})" in str(error) for error in lost)
    assert [machine.id for machine in await all_leases(lab)] == [won[0].id]


async def test_nobody_gets_half_when_laptops_race_for_more_than_there_is(
    make_lab: Callable[..., Lab],
) -> None:
    lab = make_lab(5)
    backends = [lab.backend(f"user{number}@mac") for number in range(6)]
    results = await asyncio.gather(
        *(backend.acquire(ANY, names(2, f"job{number}")) for number, backend in enumerate(backends)),
        return_exceptions=True,
    )
    won = [machine for result in results if isinstance(result, list) for machine in result]
    assert all(isinstance(result, list | CapacityError) for result in results)
    assert sorted(machine.id for machine in await all_leases(lab)) == sorted(machine.id for machine in won)
    assert len({machine.details["host"] for machine in won}) == len(won) <= 4


async def test_all_get_the_same_machines_when_laptops_race_for_the_same_names(
    make_lab: Callable[..., Lab],
) -> None:
    lab = make_lab(4)
    backends = [lab.backend(f"alice@laptop{number}") for number in range(6)]
    results = await asyncio.gather(*(backend.acquire(ANY, names(3)) for backend in backends))
    assert len({tuple(machine.id for machine in machines) for machines in results}) == 1
    assert len(await all_leases(lab)) == 3


async def test_hosts_come_in_the_order_of_the_inventory_when_all_are_free(
    make_lab: Callable[..., Lab],
) -> None:
    lab = make_lab(3)
    backend = lab.backend(hosts=[lab.entry(2), lab.entry(0), lab.entry(1)])
    machines = await backend.acquire(ANY, names(2))
    assert [machine.details["host"] for machine in machines] == ["h2", "h0"]


async def test_a_machine_is_described_when_acquired_and_for_another_laptop(
    make_lab: Callable[..., Lab],
) -> None:
    lab = make_lab(1)
    [machine] = await lab.backend().acquire(MachineSpec(type="v100", image="ubuntu"), names(1))
    [seen] = await all_leases(lab)
    assert seen == machine
    assert machine.state is MachineState.RUNNING
    assert machine.home == str(lab.sshds[0].home)
    assert machine.address == machine.public_address == lab.sshds[0].address
    assert (machine.user, machine.owner) == (lab.sshds[0].user, "alice@mac")
    assert (machine.type, machine.image, machine.cpus) == ("v100", "ubuntu", len(os.sched_getaffinity(0)))


async def test_the_private_address_is_the_inventorys_when_it_has_one(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab(1)
    [machine] = await lab.backend(hosts=[lab.entry(0, private_address="192.168.0.5")]).acquire(ANY, names(1))
    assert machine.address == "192.168.0.5"
    assert machine.public_address == lab.sshds[0].address


async def test_the_way_out_is_told_when_there_are_no_hosts(make_lab: Callable[..., Lab]) -> None:
    backend = make_lab(0).backend(hosts=[])
    with pytest.raises(InvalidError, match="trainyard hosts add"):
        await backend.acquire(ANY, names(1))
    assert await backend.machines() == []


@pytest.mark.parametrize("bad", [["a", "a"], ["../x"], ["a b"], [""]])
async def test_bad_names_are_refused_before_any_host_is_asked(
    make_lab: Callable[..., Lab], bad: list[str]
) -> None:
    with pytest.raises(InvalidError):
        await make_lab(0).backend().acquire(ANY, bad)


async def test_every_host_is_accounted_for_when_there_are_not_enough(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab(3)
    await lab.backend("bob@pc").acquire(ANY, ["task0.bobs"])
    lab.sshds[2].stop()
    with pytest.raises(CapacityError) as caught:
        await lab.backend().acquire(ANY, names(2))
    message = caught.value.message
    assert "2 wanted; free: h1;" in message
    assert "h0 is leased by bob@pc (task0.bobs) since 20" in message
    assert "unreachable: h2 (" in message
    assert len(await all_leases(lab)) == 1


async def test_unreachable_hosts_are_passed_over_when_others_suffice(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab(3)
    lab.sshds[0].stop()
    machines = await lab.backend().acquire(ANY, names(2))
    assert [machine.details["host"] for machine in machines] == ["h1", "h2"]


async def test_an_unknown_host_key_is_told_when_it_is_the_reason(
    make_lab: Callable[..., Lab], tmp_path: Path
) -> None:
    lab = make_lab(1)
    empty = tmp_path / "nobody known"
    empty.touch()
    backend = lab.backend(hosts=[lab.entry(0, known_hosts=str(empty))])
    with pytest.raises(CapacityError, match=r"host key of .* is not known"):
        await backend.acquire(ANY, names(1))


async def test_one_machine_is_found_when_a_host_is_in_the_inventory_twice(
    make_lab: Callable[..., Lab],
) -> None:
    lab = make_lab(1)
    backend = lab.backend(hosts=[lab.entry(0), replace(lab.entry(0), name="alias")])
    with pytest.raises(CapacityError):
        await backend.acquire(ANY, names(2))
    assert await backend.machines() == []
    [machine] = await backend.acquire(ANY, names(1))
    assert [each.id for each in await backend.machines()] == [machine.id]


async def test_gpus_decide_when_they_are_asked_for(make_lab: Callable[..., Lab], tmp_path: Path) -> None:
    lab = make_lab(1)
    for gpus in ("0", "0 1 2 3"):
        env = {"PATH": driver_path(tmp_path / "bin"), "GPUS": gpus}
        lab.sshds.append(start_sshd(tmp_path, address=f"127.0.1.{len(lab.sshds)}", env=env))
    try:
        backend = lab.backend()
        [machine] = await backend.acquire(MachineSpec(gpus=2), ["task0.big"])
        assert machine.details["host"] == "h2"
        assert machine.gpu_text == "V100 x 4"
        with pytest.raises(CapacityError, match="h0 has 0 of 1 GPUs"):
            await backend.acquire(MachineSpec(gpus=1), names(2))
        with pytest.raises(ConflictError, match="4 of 8 GPUs"):
            await backend.acquire(MachineSpec(gpus=8), ["task0.big"])
        with pytest.raises(CapacityError, match="0 of 1 NPUs"):
            await backend.acquire(MachineSpec(npus=1), names(1))
        [plain] = await backend.acquire(ANY, names(1))
        assert plain.details["host"] == "h0"
        assert (await backend.acquire(MachineSpec(gpus=1), ["task0.small"]))[0].details["host"] == "h1"
    finally:
        await lab.aclose()
        for sshd in lab.sshds[1:]:
            sshd.close()


async def test_the_type_must_match_when_a_host_of_the_inventory_has_it(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab(3)
    backend = lab.backend(hosts=[lab.entry(0), lab.entry(1, type="t4"), lab.entry(2, type="v100")])
    [machine] = await backend.acquire(MachineSpec(type="v100"), ["task0.a"])
    assert machine.details["host"] == "h2"
    with pytest.raises(CapacityError, match="t4"):
        await backend.acquire(MachineSpec(type="v100"), ["task0.b"])
    [machine] = await backend.acquire(MachineSpec(type="ecs.unheard-of"), ["task0.c"])
    assert (machine.details["host"], machine.type) == ("h0", "ecs.unheard-of")


async def test_a_machine_is_not_made_twice_when_its_host_is_silent(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab(2)
    backend = lab.backend()
    [machine] = await backend.acquire(ANY, names(1))
    lab.sshds[0].stop()
    [lost] = await backend.machines()
    assert (lost.id, lost.state, lost.details["host"]) == (machine.id, MachineState.LOST, "h0")
    assert lost.details["reason"]
    with pytest.raises(UnreachableError, match=r"task0\.x.*h0"):
        await backend.acquire(ANY, names(1))
    [other] = await backend.acquire(ANY, ["task0.other"])
    assert other.details["host"] == "h1"
    lab.sshds[0].restart()
    [again] = await backend.acquire(ANY, names(1))
    assert again.id == machine.id
    assert [each.state for each in await backend.machines(name="task0.x")] == [MachineState.RUNNING]


async def test_a_host_that_cannot_keep_leases_is_passed_over(
    make_lab: Callable[..., Lab], tmp_path: Path
) -> None:
    lab = make_lab(2)
    (tmp_path / "file").touch()
    hosts = [lab.entry(0, lease_dir=str(tmp_path / "file" / "leases")), lab.entry(1)]
    backend = lab.backend(hosts=hosts)
    [machine] = await backend.acquire(ANY, names(1))
    assert machine.details["host"] == "h1"
    with pytest.raises(CapacityError, match="leases cannot be kept on h0"):
        await backend.acquire(ANY, ["task0.y"])


async def test_nothing_is_left_when_the_call_is_cancelled_at_any_moment(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab(3)
    backend = lab.backend()
    await backend.machines()  # connections are open, so that the moments fall into the taking itself
    finished = 0
    for step in range(25):
        call = asyncio.ensure_future(backend.acquire(ANY, names(3, f"job{step}")))
        await asyncio.wait([call], timeout=step * 0.008)
        call.cancel()
        try:
            machines = await call
        except asyncio.CancelledError:
            assert await all_leases(lab) == []
        else:
            finished += 1
            await backend.release(machines)
    assert finished < 25


SLOW_DRIVER = "#!/bin/sh\n: >$HOME/probing\nwhile [ ! -e $HOME/go ]; do sleep 0.02; done\n"


async def test_no_lease_comes_to_be_when_the_connection_breaks_while_taking(
    make_lab: Callable[..., Lab], tmp_path: Path
) -> None:
    lab = make_lab(1, env={"PATH": driver_path(tmp_path / "bin", SLOW_DRIVER)})
    [sshd] = lab.sshds
    backend = lab.backend()
    await backend.machines()
    call = asyncio.ensure_future(backend.acquire(ANY, names(1)))
    await until((sshd.home / "probing").exists)
    sshd.cut()
    with pytest.raises(UnreachableError):
        await call
    (sshd.home / "go").touch()  # the host goes on with what it was told
    await until(lambda: not sshd.pids())
    assert await all_leases(lab) == []


async def test_a_lease_is_ended_later_when_its_host_vanished_while_taking(
    make_lab: Callable[..., Lab], tmp_path: Path
) -> None:
    lab = make_lab(1, env={"PATH": driver_path(tmp_path / "bin", SLOW_DRIVER)})
    [sshd] = lab.sshds
    backend = lab.backend()
    await backend.machines()
    call = asyncio.ensure_future(backend.acquire(ANY, names(1)))
    await until((sshd.home / "probing").exists)
    sshd.stop()
    with pytest.raises(UnreachableError):
        await call
    (sshd.home / "go").touch()
    await until(lambda: not sshd.pids())
    sshd.restart()
    [orphan] = await all_leases(lab)
    assert orphan.name == "task0.x"
    assert await backend.machines() == []
    assert await all_leases(lab) == []


ACQUIRE = """
import asyncio, sys
from pathlib import Path
from trainyard import settings
from trainyard.backends.ssh.backend import SshBackend
from trainyard.spec.machine import MachineSpec

async def main():
    backend = SshBackend.from_settings(settings.load())
    await backend.machines()
    print("ready", flush=True)
    await backend.acquire(MachineSpec(), ["task0.x", "task1.x"])
    print("acquired", flush=True)
    await asyncio.sleep(3600)

asyncio.run(main())
"""


async def test_the_same_machines_come_when_a_client_was_killed_while_it_acquired(
    make_lab: Callable[..., Lab],
) -> None:
    lab = make_lab(3)
    outcomes = set()
    for delay in (0.0, 0.02, 0.04, 0.06, 0.1, 10.0):
        settings = lab.laptop("alice@mac")
        client = subprocess.Popen(
            [sys.executable, "-c", ACQUIRE],
            stdout=subprocess.PIPE,
            env={**os.environ, "TRAINYARD_HOME": str(settings.home)},
        )
        assert client.stdout is not None
        assert client.stdout.readline() == b"ready\n"
        if delay > 1:
            assert client.stdout.readline() == b"acquired\n"
        else:
            await asyncio.sleep(delay)
        os.kill(client.pid, signal.SIGKILL)
        client.wait()
        client.stdout.close()
        await until(lambda: not [pid for sshd in lab.sshds for pid in sshd.pids()])
        left = await all_leases(lab)
        outcomes.add(len(left))
        backend = lab.backend("alice@mac")
        machines = await backend.acquire(ANY, names(2))
        assert {machine.id for machine in left} <= {machine.id for machine in machines}
        assert len(await all_leases(lab)) == 2
        await backend.release(machines)
        assert await all_leases(lab) == []
    assert {0, 2} <= outcomes


async def test_a_name_of_another_account_is_refused(make_lab: Callable[..., Lab]) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can give a lease to another account")
    lab = make_lab(2)
    backend = lab.backend()
    await backend.acquire(ANY, names(1))
    [file] = lab.lease_dir.iterdir()
    os.chown(file, 65534, 65534)
    assert await backend.machines() == []
    with pytest.raises(ConflictError, match="another account: alice@mac"):
        await backend.acquire(ANY, names(1))
    assert (await backend.acquire(ANY, ["task0.y"]))[0].details["host"] == "h1"


async def test_two_machines_of_one_name_are_told_when_inventories_differed(
    make_lab: Callable[..., Lab],
) -> None:
    lab = make_lab(2)
    await lab.backend("alice@mac", hosts=[lab.entry(0)]).acquire(ANY, names(1))
    await lab.backend("alice@pc", hosts=[lab.entry(1)]).acquire(ANY, names(1))
    with pytest.raises(ConflictError, match="on h0 and on h1"):
        await lab.backend("alice@desk").acquire(ANY, names(1))


async def test_machines_stay_reachable_when_the_inventory_is_edited(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab(1)
    backend = lab.backend()
    [machine] = await backend.acquire(ANY, names(1))
    path = lab.laptop().hosts_file
    inventory.add(path, replace(lab.entry(0), tags=("new",)), replace=True)
    assert (await backend.transport(machine).run("echo hi")).stdout == b"hi\n"
    assert isinstance(backend, SshBackend)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.01)
