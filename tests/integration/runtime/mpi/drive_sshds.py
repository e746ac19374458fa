"""What a client does for a job on two ssh hosts, run in the client's own network: keys, rendezvous, then plain mpirun.

Prints one JSON object: name of the step → status, stdout, stderr.
"""

import asyncio
import json
import shlex
import sys
from pathlib import Path

from trainyard import launch
from trainyard.runtime import rendezvous
from trainyard.runtime.paths import MachinePaths
from trainyard.runtime.setup import ensure_keys, remove_keys
from trainyard.spec.machine import Machine, MachineState
from trainyard.transport.ssh import SshAddress, SshTransport

PYTHON = "/usr/bin/python3"
SHOW = "sh -c 'echo $OMPI_COMM_WORLD_RANK $(hostname); [ $OMPI_COMM_WORLD_RANK = 1 ] && exit 7; sleep 60'"


async def main(key, known_hosts, *addresses):
    members = [
        (
            Machine(
                name=f"task{number}.bert",
                id=address,
                backend="ssh",
                state=MachineState.RUNNING,
                address=address,
                home="/root",
                cpus=2,
            ),
            SshTransport(
                SshAddress(address, user="root", identity_files=(key,), known_hosts=Path(known_hosts))
            ),
        )
        for number, address in enumerate(addresses)
    ]
    first = members[0][1]
    seen = {}

    async def step(name, command, **options):
        done = await first.run(command, timeout=60, **options)
        seen[name] = [done.status, done.stdout.decode(), done.stderr.decode()]

    await step("before", f"ssh -o BatchMode=yes {addresses[1]} true")
    await ensure_keys(members)
    peers = rendezvous.peers_of([machine for machine, _ in members])
    folder = MachinePaths("task0.bert", "/root").rendezvous
    await first.run(rendezvous.script(peers, 0, folder))
    for _, transport in members:
        await transport.run("mkdir -p job")
        await transport.put(Path(__file__).with_name("allreduce.py"), "job/allreduce.py")
    hosts = ",".join(f"{address}:2" for address in addresses)
    await step("ssh", f"ssh {addresses[1]} hostname; ssh task1.bert hostname; ssh {addresses[0]} hostname")
    program = f"{PYTHON} allreduce.py"
    await step("plain", f"cd job && mpirun --allow-run-as-root --host {hosts} -np 4 {program}")
    await step("prefix", f"cd job && {launch.get_mpi_prefix(4, 2, hosts)} {program}")
    await step(
        "helper",
        f"cd job && {launch.mpirun(program, npernode=1)}",
        env=rendezvous.environment(peers, 0, folder),
    )
    await step("failure", f"mpirun --allow-run-as-root --host {hosts} --npernode 1 {SHOW}")
    await remove_keys(members)
    await step("after", f"ssh -o BatchMode=yes {shlex.quote(addresses[1])} true")
    for _, transport in members:
        await transport.aclose()
    sys.stdout.write(json.dumps(seen))


asyncio.run(main(*sys.argv[1:]))
