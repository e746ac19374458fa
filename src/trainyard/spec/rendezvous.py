"""How the tasks of a job find each other: ranks, slots, ports, host files, and the variables of torchrun, MPI and TensorFlow.

Pure text and numbers, for the machines of a script (runtime/rendezvous.py) and for the platform (server/launch). A host
is an address, or a mark that is filled in later. NPUs have more to agree on: spec/ascend.py.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

LOOPBACK = "127.0.0.1"  # where a task that is alone on its machine meets itself
# Lines of host files, for Python's % and for printf: OpenMPI's, horovodrun's and DeepSpeed's; then MPICH's and Intel's.
SLOTS_LINE = "%s slots=%s"
COLON_LINE = "%s:%s"


@dataclass(frozen=True, slots=True)
class HostSlots:
    """One host of a host file, and how many processes are started there."""

    host: str
    slots: int


def slots_of(devices: int, cpus: float) -> int:
    """How many processes a task has room for: one a device, or one a processor where there is no device."""
    return devices or max(1, int(cpus))


def bracketed(address: str) -> str:
    """An address as it stands in front of a colon: an IPv6 address in brackets."""
    return f"[{address}]" if ":" in address else address


def stable_number(text: str, octets: int) -> int:
    """A number that looks like chance and is the same for the same text on every machine."""
    digest = hashlib.sha256(text.encode(errors="surrogateescape")).digest()
    return int.from_bytes(digest[:octets], "big")


# -- host files


def host_file(hosts: Iterable[HostSlots]) -> str:
    """For OpenMPI, horovodrun and DeepSpeed."""
    return "".join(SLOTS_LINE % (one.host, one.slots) + "\n" for one in hosts)


def hydra_host_file(hosts: Iterable[HostSlots]) -> str:
    """For MPICH and Intel MPI, whose process manager is called Hydra."""
    return "".join(COLON_LINE % (one.host, one.slots) + "\n" for one in hosts)


def horovod_hosts(hosts: Iterable[HostSlots]) -> str:
    """The word behind `horovodrun -H`."""
    return ",".join(COLON_LINE % (one.host, one.slots) for one in hosts)


def discovery_script(hosts: Iterable[HostSlots]) -> str:
    """The program that elastic Horovod asks for the hosts that there are."""
    return "#!/bin/sh\n" + "".join(f"echo {one.host}:{one.slots}\n" for one in hosts)


# -- variables


def master_variables(address: str, port: int | str) -> dict[str, str]:
    """Where the tasks meet."""
    return {"MASTER_ADDR": address, "MASTER_PORT": str(port)}


def launcher_variables(tasks: int, rank: int) -> dict[str, str]:
    """How many tasks there are, and which this is, for launchers that start one process or several in each."""
    return {"NNODES": str(tasks), "NODE_RANK": str(rank)}


def rank_variables(size: int, rank: int) -> dict[str, str]:
    """The same for programs that read it themselves. A launcher of several processes sets its own for each."""
    return {"WORLD_SIZE": str(size), "RANK": str(rank)}


def torchrun_variables(tasks: int, rank: int, processes: int) -> dict[str, str]:
    """Defaults of torchrun's options. With PET_NNODES, even `torchrun --standalone` waits for other tasks."""
    return {
        "NPROC_PER_NODE": str(processes),
        "PET_NNODES": str(tasks),
        "PET_NODE_RANK": str(rank),
        "PET_NPROC_PER_NODE": str(processes),
    }


def torchrun_master_variables(master: Mapping[str, str]) -> dict[str, str]:
    """The `master_variables` as defaults of torchrun's options."""
    return {f"PET_{name}": value for name, value in master.items()}


def openmpi_variables(hosts_path: str, agent: str) -> dict[str, str]:
    """For mpirun of OpenMPI: the host file, and the program that reaches the other tasks."""
    return {
        "OMPI_MCA_orte_default_hostfile": hosts_path,
        # OpenMPI hands this on to the other tasks, so it has to be the same there.
        "OMPI_MCA_plm_rsh_agent": agent,
        "OMPI_MCA_plm_rsh_args": "-o ConnectionAttempts=10",
        "OMPI_MCA_orte_keep_fqdn_hostnames": "true",
        # The same, as OpenMPI 5 calls it.
        "PRTE_MCA_prte_default_hostfile": hosts_path,
        "PRTE_MCA_plm_ssh_agent": agent,
        "PRTE_MCA_plm_ssh_args": "-o ConnectionAttempts=10",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",  # a task may be root in a view of its own, as in a container
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }


def hydra_variables(hosts_path: str, agent: str) -> dict[str, str]:
    """The same for mpirun of MPICH and of Intel MPI."""
    return {
        "I_MPI_HYDRA_HOST_FILE": hosts_path,
        "I_MPI_HYDRA_BOOTSTRAP": "ssh",
        "I_MPI_HYDRA_BOOTSTRAP_EXEC": agent,
        "HYDRA_HOST_FILE": hosts_path,
        "HYDRA_LAUNCHER": "ssh",
        "HYDRA_LAUNCHER_EXEC": agent,
    }


def tf_cluster(hosts: Mapping[str, Sequence[str]]) -> str:
    """The cluster of a TF_CONFIG: role → `host:port` of its tasks. The same text for all tasks."""
    return json.dumps(hosts)


def tf_config(cluster: str, role: str, number: int, *, environment: str = "") -> str:
    """TF_CONFIG of one task."""
    task = json.dumps({"type": role, "index": number})
    rest = f', "environment": {json.dumps(environment)}' if environment else ""
    return f'{{"cluster": {cluster}, "task": {task}{rest}}}'
