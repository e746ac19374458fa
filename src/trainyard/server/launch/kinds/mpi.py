"""MPIJob: one task runs mpirun (or horovodrun), which reaches the others by ssh. Host files for all of the family.

A launcher of its own is not among the hosts. Where only workers were asked for, the first of them runs the command and is
one of the hosts as well.
"""

from __future__ import annotations

from trainyard.server.launch.kinds.gang import TaskGang, TaskPart, TaskPlace, path, ssh_host
from trainyard.server.launch.kinds.kind import JobKind, on_first
from trainyard.spec import rendezvous
from trainyard.spec.rendezvous import HostSlots

HOSTFILE = "/etc/mpi/hostfile"
HYDRA_HOSTFILE = "/etc/mpi/hostfile.hydra"  # MPICH's and Intel's: `name:n`
DISCOVER = "/etc/mpi/discover_hosts.sh"
AGENT = "/etc/mpi/kubexec.sh"  # what OpenMPI is told to reach the others by
_APART = ("launcher", "aimaster", "ps")


def hosts_of(gang: TaskGang) -> tuple[TaskPlace, ...]:
    """The tasks that processes are started in."""
    return gang.once("hosts", lambda: _hosts(gang))


def _hosts(gang: TaskGang) -> tuple[TaskPlace, ...]:
    found = tuple(place for place in gang.places if place.role not in _APART) or gang.places
    with_devices = tuple(place for place in found if place.devices)
    return with_devices or found


def host_slots(gang: TaskGang) -> tuple[HostSlots, ...]:
    """Those tasks by the marks for their hosts, and how many processes are started in each."""
    return gang.once(
        "host_slots",
        lambda: tuple(HostSlots(ssh_host(one), slots_of(gang, one)) for one in hosts_of(gang)),
    )


def slots_of(gang: TaskGang, place: TaskPlace) -> int:
    """How many processes are started in a task."""
    return gang.spec.processes or place.slots


def launching(gang: TaskGang) -> tuple[dict[str, str], dict[str, str]]:
    """The variables and the files by which MPI launchers find the others: new tables of the same texts."""
    late, files = gang.once("launching", lambda: _launching(gang))
    return dict(late), dict(files)


def _launching(gang: TaskGang) -> tuple[dict[str, str], dict[str, str]]:
    hosts = host_slots(gang)
    files = {
        HOSTFILE: rendezvous.host_file(hosts),
        HYDRA_HOSTFILE: rendezvous.hydra_host_file(hosts),
        DISCOVER: rendezvous.discovery_script(hosts),
        AGENT: '#!/bin/sh\nexec ssh "$@"\n',  # ssh is the task's own, first in PATH
    }
    agent = path(AGENT, "ssh")  # the same word for all tasks, wherever ssh lies in each
    late = rendezvous.openmpi_variables(path(HOSTFILE), agent)
    return late | rendezvous.hydra_variables(path(HYDRA_HOSTFILE), agent), files


def _part(gang: TaskGang, place: TaskPlace) -> TaskPart:
    late, files = launching(gang)
    role = "launcher" if place.runs else "worker"
    return TaskPart(env={"K_MPI_JOB_ROLE": role, "PYTHONUNBUFFERED": "1"}, late=late, files=files)


MPI = JobKind(
    name="MPIJob",
    roles=("launcher", "master", "worker"),
    single=("launcher", "master"),
    promotes="master",
    leaders=("launcher", "master"),
    after={"launcher": ("worker",), "master": ("worker",)},
    is_decided_by_first=True,
    has_ssh=True,
    command_on=on_first,
    part=_part,
)
