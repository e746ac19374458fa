"""RegularJob and PSDistJob, the jobs of Apulis and DLWorkspace: DLWS_* variables, host files in /job and at home, discovery.

On NVIDIA the command of a distributed job runs once, in ps0, and reaches the workers by ssh; on NPUs it runs in every worker
at once, and ps0 stands by. That is what the platform did when its manual was written; later ones ran it everywhere
(`command_on: all`). Its form asked for the device; jobs that name none get that of the cluster when they are submitted.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from trainyard.lib.shell import quote
from trainyard.server.launch.kinds import ascend, mpi
from trainyard.server.launch.kinds.gang import TaskGang, TaskPart, TaskPlace, path, ssh_host, ssh_port
from trainyard.server.launch.kinds.kind import JobKind
from trainyard.spec.rendezvous import HostSlots, host_file
from trainyard.spec.workload import CommandOn, RoleSpec, WorkloadSpec

HOSTFILE = "/job/hostfile"
IB_CONFIG = "/job/ib_config"
EXPORTED = "/pod.env"
INIT_ENV = "/dlts-runtime/env/init.env"
JOB_COMMAND = "/pod/job_command.sh"
SUDO = "/pod/bin/sudo"
WORKER = "worker"


def command_on(spec: WorkloadSpec) -> CommandOn:
    """Where the command of a distributed job runs: by the kind of its devices, or where a launcher has them to start for."""
    if spec.launcher:
        return CommandOn.WORKERS
    devices = {role.device for role in spec.roles if role.devices}
    return CommandOn.WORKERS if any(ascend.is_npu(name) for name in devices) else CommandOn.FIRST


def names(gang: TaskGang, place: TaskPlace) -> tuple[str, ...]:
    """worker-0, as host files have it; the same in the fast network; and what the task is called among all jobs."""
    short = _role(gang, place) if gang.is_alone else f"{place.role}-{place.number}"
    full = gang.job_id if gang.is_alone else f"{gang.job_id}-{place.role}{place.number}"
    return (short, f"ib-{short}", full, f"{gang.job_id}-{place.name}")


def part(gang: TaskGang, place: TaskPlace) -> TaskPart:
    """All that a task of these jobs gets."""
    env, discovery = _environment(gang, place), _discovery(gang, place)
    late, files = mpi.launching(gang)
    home = f"/home/{gang.person.account}"
    plain, fast = gang.once("host_lines", lambda: (_host_lines(gang, ""), _host_lines(gang, "ib-")))
    files |= {
        HOSTFILE: plain,
        IB_CONFIG: fast,
        f"{home}/ib_config": fast,
        INIT_ENV: "".join(f"export {name}={value}\n" for name, value in discovery.items()),
        EXPORTED: "%exports%",
        JOB_COMMAND: gang.spec.command + "\n",
        SUDO: _sudo(),
    }
    if ascend.is_npu(place.device_type):
        files |= gang.once("npu_files", lambda: _npu_files(gang, f"{home}/.npu/{gang.job_id}"))
        env |= _npu_environment(place, gang.job_id)
        # The old name is asked for by versions that read the old form only.
        late |= {
            "RANK_TABLE_FILE": path(f"{home}/.npu/{gang.job_id}/hccl_1.0.json"),
            "MINDSPORE_HCCL_CONFIG_PATH": path(f"{home}/.npu/{gang.job_id}/hccl_ms.json"),
        }
    late |= {
        "DLWS_UID": "%id:user%",
        "DLWS_GID": "%id:group%",
        "PATH": f"%folder:{SUDO}%:%env:PATH%",
        "OMPI_MCA_orte_default_hostfile": path(HOSTFILE),
        **discovery,
    }
    return TaskPart(env=env, late=late, files=files)


@cache
def _sudo() -> str:
    return Path(__file__).with_name("sudo.sh").read_text(encoding="utf-8")


def _role(gang: TaskGang, place: TaskPlace) -> str:
    return "master" if gang.is_alone and place.role == WORKER else place.role


def _environment(gang: TaskGang, place: TaskPlace) -> dict[str, str]:
    workers = len(gang.of_role(WORKER)) or 1
    device = place.device_type or next((one.device_type for one in gang.places if one.device_type), "")
    env = {
        "DLWS_JOB_ID": gang.job_id,
        "DLWS_USER_NAME": gang.person.account,
        "DLWS_USER_EMAIL": gang.person.email or gang.person.name,
        "DLWS_VC_NAME": gang.workspace,
        "DLWS_NUM_PS": str(len(gang.of_role("ps"))),
        "DLWS_NUM_WORKER": str(workers),
        "DLWS_ROLE_NAME": _role(gang, place),
        "DLWS_ROLE_IDX": str(place.number),
        "DLTS_ROLE_IDX": str(place.number),
        "DLWS_NUM_GPU_PER_WORKER": str(max(len(one.devices) for one in gang.places)),
        "DLWS_GPU_TYPE": device,
        "DLWS_IS_NPU_JOB": "true" if ascend.is_npu(device) else "false",
        "DLWS_HOST_NETWORK": "" if gang.is_alone else "enable",
        "DLWS_LAUNCH_CMD": gang.spec.command,
        "DLTS_JOB_TOKEN": gang.token,
        "IDENTITY_TOKEN": gang.token,
        "PASSWORD": gang.token,
        "FAMILY_TOKEN": gang.job_id,
        "POD_NAME": names(gang, place)[2],
        "POD_IP": place.address,
    }
    if not gang.is_alone:
        env["DLWS_WORKER_NUM"] = str(workers)
    if not place.devices:
        env["NVIDIA_VISIBLE_DEVICES"] = ""
    return env


def _discovery(gang: TaskGang, place: TaskPlace) -> dict[str, str]:
    """Where everybody is: no dash between role and number here, other than in names of hosts."""
    # The same words as in the list of all: scripts look for themselves in it.
    own = place.address if gang.is_alone else f"%address:{place.name}%"
    found = {
        "DLWS_SD_SELF_IP": own,
        "DLWS_SD_SELF_SSH_PORT": ssh_port(place),
        "DLWS_SD_SELF_IB_IP": own,
        "DLWS_SD_SELF_HOST_IP": place.address,
    }
    return {**found, **gang.once("discovery", lambda: _peers(gang))}


def _peers(gang: TaskGang) -> dict[str, str]:
    found: dict[str, str] = {}
    for one in gang.places:
        name = f"DLWS_SD_{_role(gang, one)}{one.number}"
        found |= {
            f"{name}_IP": f"%address:{one.name}%",
            f"{name}_SSH_PORT": ssh_port(one),
            f"{name}_IB_IP": f"%address:{one.name}%",
            f"{name}_HOST_IP": one.address,
        }
        if ascend.is_npu(one.device_type):
            found[f"{name}_NPU_IP_LIST"] = ",".join(_addresses(one).values())
    return found


def _host_lines(gang: TaskGang, prefix: str) -> str:
    return host_file(
        HostSlots(ssh_host(one, prefix + names(gang, one)[0]), mpi.slots_of(gang, one))
        for one in mpi.hosts_of(gang)
    )


def _addresses(place: TaskPlace) -> Mapping[int, str]:
    return {index: place.device_addresses.get(index, "") for index in place.devices}


def _npu_environment(place: TaskPlace, job_id: str) -> dict[str, str]:
    return {
        "VISIBLE_IDS": ",".join(map(str, place.devices)),
        "NPU_IPS": ",".join(f"{index}:{address}" for index, address in _addresses(place).items()),
        "DEVICE_ID": "0",
        "DEVICE_INDEX": "0",
        "JOB_ID": job_id,
        "SOC_VERSION": "Ascend910",
        "ASCEND_GLOBAL_LOG_LEVEL": "3",
        "ASCEND_GLOBAL_EVENT_ENABLE": "0",
    }


def _npu_files(gang: TaskGang, folder: str) -> dict[str, str]:
    """What the platform put below ~/.npu: who has which devices, and rank tables made of it."""
    servers = ascend.servers_of(gang)
    if not servers:
        return {}
    files = {
        f"{folder}/npu_{one.number}.info": (
            "ip="
            + ",".join(f"{index}:{address}" for index, address in _addresses(one).items())
            + f"\nhost={one.address}\n"
        )
        for one in gang.places
        if one.devices
    }
    lab = ascend.table(servers, "lab", group="test")
    return {
        **files,
        f"{folder}/hccl.json": lab,
        f"{folder}/hccl_ms.json": lab,
        f"{folder}/hccl_tf.json": ascend.table(servers, "tf", group="test"),
        f"{folder}/hccl_1.0.json": ascend.table(servers, "1.0"),
        f"{folder}/train.sh": _train_script(gang, folder),
        f"{folder}/setup_environment_done": "",
    }


def _train_script(gang: TaskGang, folder: str) -> str:
    """The loop that users of the original copy: one process for each device. With the ranks of this server, and an end."""
    devices = max(len(one.devices) for one in gang.places)
    return "\n".join(
        [
            "#!/bin/bash",
            f"export RANK_SIZE={sum(len(one.devices) for one in gang.places)}",
            f"export RANK_TABLE_FILE={quote(folder + '/hccl_ms.json')}",
            "export HCCL_CONNECT_TIMEOUT=200",
            "status=0 all=()",
            "trap 'status=143; kill $(jobs -p) 2>/dev/null' SIGTERM SIGINT",
            f"for ((i = 0; i < {devices} && status == 0; i++)); do",
            "    export DEVICE_ID=$i",
            f"    export RANK_ID=$((DLWS_ROLE_IDX * {devices} + i))",
            '    mkdir -p "./train_parallel$RANK_ID"',
            '    (cd "./train_parallel$RANK_ID" && exec "$@") &',
            "    all+=($!)",
            "done",
            "# The others would wait without end for one that has failed.",
            f"for ((i = 0; i < {devices} && status == 0; i++)); do",
            "    wait -n",
            "    one=$?",
            "    # 127: older shells have forgotten who ended before they were asked.",
            "    ((one == 0 || one == 127)) || { status=$one; kill $(jobs -p) 2>/dev/null; }",
            "done",
            'for one in "${all[@]}"; do',
            "    wait $one; one=$?; ((status)) || status=$one",
            "done",
            "exit $status",
            "",
        ]
    )


REGULAR = JobKind(
    name="RegularJob", roles=(WORKER,), single=(WORKER,), has_own_files=True, part=part, names=names
)
DISTRIBUTED = JobKind(
    name="PSDistJob",
    roles=("ps", WORKER),
    adds=RoleSpec(name="ps", cpu=1.0),
    leaders=("ps",),
    has_ssh=True,
    has_own_files=True,
    needs_device=True,
    command_on=command_on,
    part=part,
    names=names,
)
