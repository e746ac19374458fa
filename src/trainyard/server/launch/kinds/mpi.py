"""MPIJob: one task runs mpirun (or horovodrun), which reaches the others by ssh. Host files for all of the family.

A launcher of its own is not among the hosts. Where only workers were asked for, the first of them runs the command and is
one of the hosts as well.
"""

from __future__ import annotations

from trainyard.server.launch.kinds.gang import TaskGang, TaskPart, TaskPlace, path, ssh_host
from trainyard.server.launch.kinds.kind import JobKind, on_first

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


def host_lines(gang: TaskGang, form: str = "{host} slots={slots}") -> str:
    """A host file."""
    return "".join(
        form.format(host=ssh_host(place), slots=slots_of(gang, place)) + "\n" for place in hosts_of(gang)
    )


def slots_of(gang: TaskGang, place: TaskPlace) -> int:
    """How many processes are started in a task."""
    return gang.spec.processes or place.slots


def launching(gang: TaskGang) -> tuple[dict[str, str], dict[str, str]]:
    """The variables and the files by which MPI launchers find the others: new tables of the same texts."""
    late, files = gang.once("launching", lambda: _launching(gang))
    return dict(late), dict(files)


def _launching(gang: TaskGang) -> tuple[dict[str, str], dict[str, str]]:
    files = {
        HOSTFILE: host_lines(gang),
        HYDRA_HOSTFILE: host_lines(gang, "{host}:{slots}"),
        DISCOVER: "#!/bin/sh\n"
        + "".join(f"echo {ssh_host(one)}:{slots_of(gang, one)}\n" for one in hosts_of(gang)),
        AGENT: '#!/bin/sh\nexec ssh "$@"\n',  # ssh is the task's own, first in PATH
    }
    late = {
        "OMPI_MCA_orte_default_hostfile": path(HOSTFILE),
        # OpenMPI hands this on to the other tasks, so it has to be the same there: ssh is, wherever it lies.
        "OMPI_MCA_plm_rsh_agent": path(AGENT, "ssh"),
        "OMPI_MCA_plm_rsh_args": "-o ConnectionAttempts=10",
        "OMPI_MCA_orte_keep_fqdn_hostnames": "true",
        # The same, as OpenMPI 5 calls it.
        "PRTE_MCA_prte_default_hostfile": path(HOSTFILE),
        "PRTE_MCA_plm_ssh_agent": path(AGENT, "ssh"),
        "PRTE_MCA_plm_ssh_args": "-o ConnectionAttempts=10",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",  # a task may be root in a view of its own, as in a container
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "I_MPI_HYDRA_HOST_FILE": path(HYDRA_HOSTFILE),
        "I_MPI_HYDRA_BOOTSTRAP": "ssh",
        "I_MPI_HYDRA_BOOTSTRAP_EXEC": path(AGENT, "ssh"),
        "HYDRA_HOST_FILE": path(HYDRA_HOSTFILE),
        "HYDRA_LAUNCHER": "ssh",
        "HYDRA_LAUNCHER_EXEC": path(AGENT, "ssh"),
    }
    return late, files


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
