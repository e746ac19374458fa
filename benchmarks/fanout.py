"""`job.run("echo hi")` on 32 real sshds: warm against ssh over ControlMaster sockets, cold against asyncssh and Ansible.

Cold is a new client process that comes to a job which exists: its script calls `make_job`, which finds the machines, and
`run`. It is timed twice: as the person sees it, with the start of Python, and inside the process after the imports.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks import place
from benchmarks.measure import Row, medians, take_turns, timed
from trainyard.sync import Runtime

COMMAND = "echo hi"
JOB = "bench"


def measure(*, quick: bool = False) -> list[Row]:
    """Rows for warm and cold."""
    count = 8 if quick else 32
    with place.own_home() as folder, place.real_hosts(count, folder) as hosts:
        lab = Runtime(backend="ssh")
        job = lab.make_job(JOB, num_tasks=count)
        try:
            warm = _warm(job.run, hosts, folder, rounds=3 if quick else 15)
            cold = _cold(hosts, folder, rounds=2 if quick else 7)
            rows = _rows(count, warm, cold)
            return rows if quick else [*rows, _ansible(hosts, folder, cold["make_job"], rounds=3)]
        finally:
            job.kill()
            lab.close()


def _rows(count: int, warm: dict[str, float], cold: dict[str, float]) -> list[Row]:
    on = f"x {count}"
    return [
        Row(f"job.run, warm {on}", warm["ours"], "ssh, warm ControlMaster", warm["ssh"], bar=1),
        Row(
            f"connect + run {on}",
            cold["connect, inside"],
            "asyncssh, after import",
            cold["bare, inside"],
            bar=1.3,
        ),
        Row(f"connect + run, process {on}", cold["connect"], "asyncssh, process", cold["bare"], bar=1.3),
        Row(
            f"make_job + run {on}",
            cold["make_job, inside"],
            "asyncssh, after import",
            cold["bare, inside"],
            bar=1.3,
        ),
        Row(f"make_job + run, process {on}", cold["make_job"], "asyncssh, process", cold["bare"], bar=1.3),
    ]


def _warm(
    run: Callable[..., list[str]], hosts: list[place.Sshd], folder: Path, rounds: int
) -> dict[str, float]:
    def ours() -> None:
        if run(COMMAND, quiet=True) != ["hi\n"] * len(hosts):
            raise RuntimeError("a task answered something else")

    with place.masters(hosts, folder) as lines:
        commands = [[*line, COMMAND] for line in lines]
        ours()
        return medians(
            take_turns({"ours": lambda: timed(ours), "ssh": lambda: timed(lambda: _all(commands))}, rounds)
        )


def _all(commands: list[list[str]]) -> None:
    running = [
        subprocess.Popen(words, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL) for words in commands
    ]
    if any(process.communicate()[0] != b"hi\n" for process in running):
        raise RuntimeError("a host answered something else")


def _cold(hosts: list[place.Sshd], folder: Path, rounds: int) -> dict[str, float]:
    targets = folder / "targets.json"
    targets.write_text(
        json.dumps(
            [
                [host.address, host.port, host.user, str(host.client_key), str(host.known_hosts)]
                for host in hosts
            ]
        )
    )
    inside: dict[str, list[float]] = {"bare, inside": [], "connect, inside": [], "make_job, inside": []}

    def client(kind: str) -> Callable[[], float]:
        words = [sys.executable, str(Path(__file__).with_name("client.py")), kind, str(targets), JOB]

        def once() -> float:
            start = time.perf_counter()
            done = subprocess.run(words, check=True, stdout=subprocess.PIPE)
            whole = time.perf_counter() - start
            inside[f"{kind}, inside"].append(float(done.stdout))
            return whole

        return once

    clients = {kind: client(kind) for kind in ("bare", "connect", "make_job")}
    for once in clients.values():
        once()  # compiles what it imports
    for values in inside.values():
        values.clear()
    return medians({**take_turns(clients, rounds), **inside})


def _ansible(hosts: list[place.Sshd], folder: Path, ours: float, rounds: int) -> Row:
    case = f"make_job + run, process x {len(hosts)}"
    program = place.rival("ansible-core", "ansible")
    if program is None:
        return Row(case, ours, "ansible -m raw", bar=1 / 5, note="ansible-core cannot be installed here")
    listing = folder / "ansible.ini"
    options = "-o UserKnownHostsFile={known} -o GlobalKnownHostsFile=none -o IdentityAgent=none -F none"
    listing.write_text(
        "".join(
            f"{host.address} ansible_port={host.port} ansible_user={host.user} "
            f"ansible_ssh_private_key_file={host.client_key} "
            f"ansible_ssh_common_args='{options.format(known=host.known_hosts)}'\n"
            for host in hosts
        )
    )
    words = [str(program), "all", "-i", str(listing), "-m", "raw", "-a", COMMAND, "-f", str(len(hosts))]
    # Its own ControlPersist would leave warm connections behind, and the next round would not be cold.
    env = {**os.environ, "ANSIBLE_SSH_ARGS": "-o ControlMaster=no", "ANSIBLE_LOCALHOST_WARNING": "False"}

    def once() -> float:
        return timed(lambda: subprocess.run(words, check=True, stdout=subprocess.DEVNULL, env=env))

    theirs = medians(take_turns({"ansible": once}, rounds))["ansible"]
    return Row(case, ours, "ansible -m raw", theirs, bar=1 / 5)
