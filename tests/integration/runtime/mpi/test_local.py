"""Debian's OpenMPI across two local machines: no sshd, no option on the command line but what users write."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sshd import marked
from trainyard import launch, settings
from trainyard.backends.local import LocalBackend
from trainyard.lib.shell import quote
from trainyard.runtime import rendezvous
from trainyard.runtime.paths import MachinePaths
from trainyard.spec.machine import MachineSpec

pytestmark = [
    pytest.mark.mpi,
    pytest.mark.slow,  # every mpirun starts daemons on two machines
    pytest.mark.skipif(
        not shutil.which("mpirun"), reason="OpenMPI is not installed (apt-get install openmpi-bin)"
    ),
]

PROGRAM = Path(__file__).with_name("allreduce.py")
ROOT = "--allow-run-as-root"
# What OpenMPI says when its child was quicker than itself; nothing follows from it.
HARMLESS = re.compile(
    r"\[\S+\] plm:rsh: Warning: setpgid\(.*\) failed in parent with errno=Permission denied\(13\)\n"
)


@pytest.fixture(params=["plain", "hostile"])
async def pair(request, isolation, tmp_path, monkeypatch):
    """Two machines of a job; once below a folder with blanks and quotes in its name."""
    if request.param == "hostile":
        monkeypatch.setenv("TRAINYARD_HOME", str(tmp_path / "a b'c$(x)中文"))
    monkeypatch.setenv("TRAINYARD_STOP_GRACE", "1")
    backend = LocalBackend.from_settings(settings.load())
    machines = await backend.acquire(MachineSpec(), ["task0.bert", "task1.bert"])
    try:
        yield Pair(backend, machines)
    finally:
        await backend.release(await backend.machines())
        await backend.aclose()


class Pair:
    def __init__(self, backend, machines):
        self.backend = backend
        self.machines = machines
        self.first, self.second = (backend.transport(machine) for machine in machines)
        self.homes = [Path(machine.home) for machine in machines]
        self.hosts = ",".join(f"{machine.address}:2" for machine in machines)

    def give(self, name, text):
        """The same file on both machines, with their own name in it."""
        for home, machine in zip(self.homes, self.machines, strict=True):
            path = home / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text.replace("@name@", machine.name))
            path.chmod(0o755)

    async def run(self, command, **options):
        done = await self.first.run(command, timeout=60, **options)
        return done.status, done.stdout.decode(), HARMLESS.sub("", done.stderr.decode())


def parse(text):
    return sorted(re.findall(r"rank=(\d+) sum=(\d+) on=(\S+) cwd=(.*?) home=(.*)", text))


async def test_ranks_run_on_their_own_machine_when_mpirun_names_addresses(pair):
    pair.give("job x/allreduce.py", PROGRAM.read_text())
    status, out, err = await pair.run(
        f"cd 'job x' && mpirun {ROOT} --host {pair.hosts} -np 4 {sys.executable} allreduce.py"
    )
    assert (status, err) == (0, "")
    where = [
        ("task0.bert", str(pair.homes[0] / "job x"), str(pair.homes[0])),
        ("task1.bert", str(pair.homes[1] / "job x"), str(pair.homes[1])),
    ]
    assert parse(out) == [(str(rank), "10", *where[rank // 2]) for rank in range(4)]


async def test_ranks_talk_over_loopback_when_the_familys_prefix_rules_it_out(pair):
    command = launch.get_mpi_prefix(4, 2, pair.hosts) + f"{sys.executable} {PROGRAM}"
    status, out, err = await pair.run(command)
    assert status == 0, err
    assert [line[:3] for line in parse(out)] == [
        *(
            ("0", "10", "task0.bert"),
            ("1", "10", "task0.bert"),
            ("2", "10", "task1.bert"),
            ("3", "10", "task1.bert"),
        )
    ]


@pytest.mark.skipif(
    os.getuid() != 0, reason="a computer without a network is made with unshare, which needs root"
)
@pytest.mark.netns
async def test_ranks_talk_when_the_computer_has_no_network(pair):
    prefix = launch.get_mpi_prefix(4, 2, pair.hosts)
    status, out, err = await pair.run(
        f"unshare -n sh -c 'ip link set lo up && exec \"$@\"' sh {prefix} {sys.executable} {PROGRAM}"
    )
    assert status == 0, err
    assert len(parse(out)) == 4


async def test_machines_are_found_when_named_by_name_or_host_file(pair):
    peers = rendezvous.peers_of(pair.machines)
    folder = MachinePaths("task0.bert", str(pair.homes[0])).rendezvous
    await pair.first.run(rendezvous.script(peers, 0, folder))
    env = rendezvous.environment(peers, 0, folder)
    status, out, err = await pair.run(launch.mpirun(f"{sys.executable} {PROGRAM}", npernode=1), env=env)
    assert (status, err) == (0, "")
    assert [line[:3] for line in parse(out)] == [("0", "3", "task0.bert"), ("1", "3", "task1.bert")]
    status, out, err = await pair.run(
        f"mpirun {ROOT} --host task1.bert:1,task0.bert:1 -np 2 {sys.executable} {PROGRAM}"
    )
    assert (status, err) == (0, "")
    assert [line[:3] for line in parse(out)] == [("0", "3", "task1.bert"), ("1", "3", "task0.bert")]


async def test_paths_mean_ones_own_home_when_they_are_absolute(pair):
    pair.give("bin/show", '#!/bin/sh\necho "@name@ $OMPI_COMM_WORLD_RANK $(cat "$1") $2"\n')
    pair.give("data", "data of @name@")
    status, out, err = await pair.run(
        f'cd bin && mpirun {ROOT} --host {pair.hosts} --npernode 1 "$HOME/bin/show" ~/data --x="$HOME"/data:/home'
    )
    assert (status, err) == (0, "")
    assert sorted(out.splitlines()) == [
        f"task0.bert 0 data of task0.bert --x={pair.homes[0]}/data:/home",
        f"task1.bert 1 data of task1.bert --x={pair.homes[1]}/data:/home",
    ]


async def test_session_variables_reach_ranks_as_on_real_machines_when_exported(pair):
    show = "sh -c 'echo $OMPI_COMM_WORLD_RANK ${MINE-unset} ${SENT-unset} $TRAINYARD_ADDRESS'"
    status, out, _ = await pair.run(
        f"export MINE=1 SENT=2; mpirun {ROOT} --host {pair.hosts} --npernode 1 -x SENT {show}"
    )
    assert status == 0
    addresses = [machine.address for machine in pair.machines]
    # As with ssh: what is exported reaches one's own ranks; the others get what -x names.
    assert sorted(out.splitlines()) == [f"0 1 2 {addresses[0]}", f"1 unset 2 {addresses[1]}"]


@pytest.mark.parametrize("failing", [0, 1])
async def test_status_comes_back_when_a_rank_fails(pair, failing):
    rank = f"sh -c '[ \"$OMPI_COMM_WORLD_RANK\" = {failing} ] && exit 7; sleep 60'"
    started = time.monotonic()
    status, _, _ = await pair.run(f"mpirun {ROOT} --host {pair.hosts} --npernode 1 {rank}")
    assert status == 7
    assert time.monotonic() - started < 30
    assert await wait_until_gone(pair, 1)


async def test_command_file_of_the_family_works_when_started_by_mpirun(pair, tmp_path):
    command = 'echo "I am $OMPI_COMM_WORLD_RANK"; exit $OMPI_COMM_WORLD_RANK'
    pair.give("command.sh", Path(launch.gen_command_file(command, str(tmp_path / "command.sh"))).read_text())
    status, out, _ = await pair.run(launch.get_mpi_prefix(2, 1, pair.hosts) + "./command.sh")
    assert (status, out) == (1, "I am 0\n")


async def test_ranks_end_when_their_machine_is_released_or_stopped(pair):
    process = await pair.first.spawn(
        f"exec mpirun {ROOT} --host {pair.hosts} --npernode 1 sh -c 'echo up; trap : TERM; while :; do sleep 1; done'"
    )
    seen = b""
    async with asyncio.timeout(30):
        async for piece in process.output():
            seen += piece
            if seen.count(b"up") == 2:
                break
    await pair.backend.stop([pair.machines[1]])
    assert not processes(pair, 1)
    async with asyncio.timeout(30):
        assert await process.wait() != 0
    assert await wait_until_gone(pair, 0)


async def test_nothing_is_left_when_mpirun_is_killed(pair):
    process = await pair.first.spawn(
        f"exec mpirun {ROOT} --host {pair.hosts} --npernode 1 sh -c 'echo up; sleep 300'"
    )
    seen = b""
    async with asyncio.timeout(30):
        async for piece in process.output():
            seen += piece
            if seen.count(b"up") == 2:
                break
    await pair.first.run(f"kill -9 {next(pid for pid in processes(pair, 0) if is_program(pid, 'mpirun'))}")
    await process.wait()
    assert await wait_until_gone(pair, 1)
    assert await wait_until_gone(pair, 0)


async def test_ssh_runs_on_the_other_machine_when_asked_plainly(pair):
    address = pair.machines[1].address
    status, out, err = await pair.run(
        f"echo input | ssh -p 22 -oBatchMode=yes root@{address} -x 'cat; pwd; echo \"$TRAINYARD_MACHINE\"; exit 5'"
    )
    assert (status, err) == (5, "")
    assert out == f"input\n{pair.homes[1]}\n{pair.machines[1].name}:{pair.machines[1].id}\n"
    status, out, _ = await pair.run("echo kept | ssh -n task1.bert cat; ssh -- task0.bert pwd")
    assert (status, out) == (0, f"{pair.homes[0]}\n")
    pair.give("file", "of @name@")
    if shutil.which("rsync"):
        status, _, err = await pair.run(f"rsync -a file {address}:copied/")
        assert (status, err) == (0, "")
        assert (pair.homes[1] / "copied/file").read_text() == "of task0.bert"


@pytest.mark.parametrize("words", ["dash", "bash", "busybox sh"])
async def test_remote_shell_works_when_sh_is_another(pair, words):
    if not shutil.which(words.split()[0]):
        pytest.skip(f"{words} is not installed")
    programs = [f'{words} "{Path(machine.home).parent}/bin/%s"' for machine in pair.machines]
    shell, rank = (programs[0].replace("$", "\\$") % name for name in ("trainyard-rsh", "trainyard-rank"))
    odd = "it's \n$(x) 中文"
    status, out, err = await pair.run(
        f"export ODD={quote(odd)}; {shell} -l me task0.bert 'printf %s \"$ODD\"; pwd';"
        f" {shell} {pair.machines[1].address} 'printf %s \"${{ODD-unset}}\"; pwd'; exit 3"
    )
    assert (status, out, err) == (3, f"{odd}{pair.homes[0]}\nunset{pair.homes[1]}\n", "")
    (pair.homes[1] / "w").mkdir()
    # A rank of the other machine that was started with the first one's folder and paths.
    status, out, err = await pair.run(
        f"mkdir -p w; cd w; TRAINYARD_MACHINE=task1.bert:x HOME={quote(str(pair.homes[1]))} OMPI_MCA_btl_tcp_if_exclude=lo"
        f' {rank} sh -c \'pwd; echo "$1 ${{OMPI_MCA_btl_tcp_if_exclude-none}}"\' sh "$HOME/x y":/home'
    )
    assert (status, err) == (0, "")
    assert out == f"{pair.homes[1]}/w\n{pair.homes[1]}/x y:/home none\n"


async def test_ssh_says_so_when_the_machine_does_not_run(pair):
    await pair.backend.stop([pair.machines[1]])
    status, _, err = await pair.run(f"ssh {pair.machines[1].address} true")
    assert status == 255
    assert "task1.bert does not run" in err


async def test_the_real_ssh_is_used_when_the_host_is_none_of_ours(pair):
    status, out, err = await pair.run("ssh -V; ssh -G -p 77 example.com | grep '^port'")
    assert status == 0
    assert out == "port 77\n"
    assert "OpenSSH" in err


def processes(pair, index):
    machine = pair.machines[index]
    return marked(f"TRAINYARD_MACHINE={machine.name}:{machine.id}")


def is_program(pid, name):
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip() == name
    except OSError:
        return False


async def wait_until_gone(pair, index):
    """Only the keeper is left on the machine, within ten seconds."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        left = [pid for pid in processes(pair, index) if not is_keeper(pid)]
        if not left:
            return True
        await asyncio.sleep(0.02)
    subprocess.run(["ps", "-fp", ",".join(map(str, left))])
    return False


def is_keeper(pid):
    try:
        return b"/keeper.sh" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return True
