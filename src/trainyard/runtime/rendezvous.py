"""The rendezvous of a job's tasks: ranks, the master's address and port, host files. Pure functions and one script.

Every task gets the variables of `environment` in its session and the files of `script` in its rendezvous folder.
`trainyard.launch` makes the command lines that use them; `setup.py` makes the ssh keys between tasks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainyard.lib.errors import InvalidError
from trainyard.lib.shell import quote
from trainyard.spec import rendezvous
from trainyard.spec.machine import Machine
from trainyard.spec.names import job_of
from trainyard.spec.rendezvous import HostSlots, bracketed

# Below the kernel's ephemeral ports (32768 and up), above the ports that services usually take.
_FIRST_PORT = 20000
_PORTS = 10000

# Variable → its meaning. The reference page is generated from this table.
VARIABLES = {
    "MASTER_ADDR": "the address of task 0, as the other tasks reach it",
    "MASTER_PORT": "a port for the meeting on task 0, the same on every task; made from the job's name",
    "NNODES": "how many tasks the job has",
    "NODE_RANK": "the number of this task, from 0",
    "WORLD_SIZE": "how many tasks the job has, where there are several: a launcher that starts more processes sets its own",
    "RANK": "the number of this task, where there are several: likewise",
    "TRAINYARD_JOB": "the job's name",
    "TRAINYARD_TASK": "this task's name, such as task0.bert",
    "TRAINYARD_ADDRESSES": "the addresses of all tasks in order, with commas",
    "TRAINYARD_NUM_DEVICES": "how many GPUs or NPUs this task has",
    "TRAINYARD_NUM_SLOTS": "how many processes all tasks together have room for: their devices, else their processors",
    "TRAINYARD_HOSTFILE": "host file of OpenMPI: `address slots=n`",
    "TRAINYARD_HOSTFILE_MPICH": "host file of MPICH and Intel MPI: `address:n`",
    "TRAINYARD_HOSTFILE_HOROVOD": "host file of horovodrun: `address slots=n`",
    "TRAINYARD_HOROVOD_HOSTS": "the same as one word for `horovodrun -H`",
    "TRAINYARD_HOSTFILE_DEEPSPEED": "host file of DeepSpeed: `address slots=devices`",
    "TRAINYARD_TF_CONFIG": "a file with the value for TF_CONFIG; see launch.tensorflow",
    "TRAINYARD_ENV": "a file that exports all of these, for a shell that is not the task's session",
}


@dataclass(frozen=True, slots=True)
class Peer:
    """One task as the others see it."""

    name: str
    address: str
    slots: int = 1
    devices: int = 0


def peers_of(machines: Sequence[Machine]) -> tuple[Peer, ...]:
    """Describe the tasks of a job from its machines in order.

    A slot is a device; a machine without devices has a slot per processor.
    """
    return tuple(
        Peer(
            name=machine.name,
            address=machine.address or machine.public_address,
            slots=rendezvous.slots_of(len(machine.devices), machine.cpus),
            devices=len(machine.devices),
        )
        for machine in machines
    )


def master_port(job: str) -> int:
    """Choose the master's port: the same on every task and in every run of the job, and probably free."""
    return _FIRST_PORT + rendezvous.stable_number(job, 4) % _PORTS


def environment(peers: Sequence[Peer], index: int, folder: str, *, port: int = 0) -> dict[str, str]:
    """Return the variables of task `index`; `VARIABLES` explains each. `folder` is where `script` writes.

    Left out on purpose, because they would change programs that never asked for them: PET_NNODES makes even
    `torchrun --standalone` wait for other tasks; TF_CONFIG makes an Estimator under Horovod refuse to start; RANK
    in a job of one task makes many trainers look for LOCAL_RANK and fail. `trainyard.launch` sets each of them for
    the programs that need it.
    """
    _checked(peers, index, folder)
    return _own(peers, index, folder, _common(peers, port))


def environments(peers: Sequence[Peer], folders: Sequence[str]) -> list[dict[str, str]]:
    """Return `environment` of every task. The parts that are the same for all tasks are computed once."""
    common = _common(peers, 0)
    return [_own(peers, index, folder, common) for index, folder in enumerate(folders)]


def _common(peers: Sequence[Peer], port: int) -> dict[str, str]:
    _check_addresses(peers)
    return {
        **rendezvous.master_variables(peers[0].address, _port(peers, port)),
        "TRAINYARD_ADDRESSES": ",".join(peer.address for peer in peers),
        "TRAINYARD_NUM_SLOTS": str(sum(peer.slots for peer in peers)),
        "TRAINYARD_HOROVOD_HOSTS": rendezvous.horovod_hosts(
            HostSlots(bracketed(peer.address), peer.slots) for peer in peers
        ),
    }


def _own(peers: Sequence[Peer], index: int, folder: str, common: Mapping[str, str]) -> dict[str, str]:
    me = _checked(peers, index, folder)
    return {
        **common,
        **rendezvous.launcher_variables(len(peers), index),
        **(rendezvous.rank_variables(len(peers), index) if len(peers) > 1 else {}),
        "TRAINYARD_JOB": job_of(me.name) or me.name,
        "TRAINYARD_TASK": me.name,
        "TRAINYARD_NUM_DEVICES": str(me.devices),
        "TRAINYARD_HOSTFILE": f"{folder}/hostfile",
        "TRAINYARD_HOSTFILE_MPICH": f"{folder}/hostfile.mpich",
        "TRAINYARD_HOSTFILE_HOROVOD": f"{folder}/hostfile.horovod",
        "TRAINYARD_HOSTFILE_DEEPSPEED": f"{folder}/hostfile.deepspeed",
        "TRAINYARD_TF_CONFIG": f"{folder}/tf_config.json",
        "TRAINYARD_ENV": f"{folder}/env.sh",
    }


def tf_config(peers: Sequence[Peer], index: int, *, port: int = 0) -> str:
    """Return TF_CONFIG for MultiWorkerMirroredStrategy: all tasks are workers; worker 0 is the chief."""
    number = _port(peers, port)
    workers = [f"{bracketed(peer.address)}:{number}" for peer in peers]
    return rendezvous.tf_config(rendezvous.tf_cluster({"worker": workers}), "worker", index)


def script(peers: Sequence[Peer], index: int, folder: str, *, port: int = 0) -> str:
    """Return the script that writes all rendezvous files of task `index` into `folder`. It may run twice.

    The script holds one list of addresses and makes all host files from it. So the script of a job of 1000 tasks
    still fits into the 128 KiB that the kernel allows one argument.
    """
    variables = environment(peers, index, folder, port=port)
    values = {
        "folder": folder,
        "table": "\n".join(f"{peer.address} {peer.slots} {peer.devices}" for peer in peers),
        "exports": "\n".join(f"export {name}={quote(value)}" for name, value in variables.items()),
        "tf_config": tf_config(peers, index, port=port),
        "slots_line": rendezvous.SLOTS_LINE,
        "colon_line": rendezvous.COLON_LINE,
    }
    body = Path(__file__).with_name("rendezvous.sh").read_text(encoding="utf-8")
    return "".join(f"{name}={quote(value)}\n" for name, value in values.items()) + body


def _checked(peers: Sequence[Peer], index: int, folder: str) -> Peer:
    """Return peer `index` after checking it. `_check_addresses` checks the others."""
    if not 0 <= index < len(peers):
        raise InvalidError(f"there is no task {index} in a job of {len(peers)} tasks")
    if not folder.startswith("/"):
        raise InvalidError(
            f"the rendezvous folder {folder!r} is not absolute",
            hint="Ask the machine for its home directory first.",
        )
    return peers[index]


def _check_addresses(peers: Sequence[Peer]) -> None:
    """Refuse addresses and names that would break the host files."""
    for peer in peers:
        if not peer.address or any(char.isspace() or char == "," for char in peer.address):
            raise InvalidError(
                f"the task {peer.name!r} has no usable address: {peer.address!r}",
                hint="Wait until the machine runs, then make the job again.",
            )


def _port(peers: Sequence[Peer], port: int) -> int:
    return port or master_port(job_of(peers[0].name) or peers[0].name)
