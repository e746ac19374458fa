"""PyTorchJob, OneFlowJob and XGBoostJob: a master at a known port, and workers that look for it.

NB: WORLD_SIZE counts nodes, not processes, and RANK is the node's: that is what DLC gives, and its users' commands
(`torchrun --nnodes=$WORLD_SIZE --node_rank=$RANK`) are written for it. A launcher sets its own for each process.
"""

from __future__ import annotations

from dataclasses import replace

from trainyard.server.launch.kinds.gang import TaskGang, TaskPart, TaskPlace, host, port
from trainyard.server.launch.kinds.kind import JobKind

TORCH_PORT = 23456
XGBOOST_PORT = 9999
LOOPBACK = "127.0.0.1"


def meeting(gang: TaskGang, place: TaskPlace, wanted: int) -> TaskPart:
    """Where the tasks meet, how many they are, and which one this is."""
    env = {
        "WORLD_SIZE": str(len(gang.places)),
        "RANK": str(place.rank),
        "PYTHONUNBUFFERED": "1",
    }
    first = gang.first
    if gang.is_alone:
        return TaskPart(env={**env, "MASTER_ADDR": LOOPBACK}, ports={"MASTER_PORT": wanted})
    return TaskPart(
        env=env,
        late={"MASTER_ADDR": host(first), "MASTER_PORT": port(first, "MASTER_PORT")},
        ports={"MASTER_PORT": wanted} if place is first else {},
    )


def _torch(gang: TaskGang, place: TaskPlace) -> TaskPart:
    found = meeting(gang, place, TORCH_PORT)
    processes = str(gang.spec.processes or len(place.devices) or 1)
    env = {
        **found.env,
        "NPROC_PER_NODE": processes,
        "PET_NNODES": str(len(gang.places)),
        "PET_NODE_RANK": str(place.rank),
        "PET_NPROC_PER_NODE": processes,
    }
    if gang.is_alone:
        # torchrun picks its own port then, so that two of them on one node do not meet.
        return TaskPart(env=env, ports=found.ports)
    late = {
        **found.late,
        "PET_MASTER_ADDR": found.late["MASTER_ADDR"],
        "PET_MASTER_PORT": found.late["MASTER_PORT"],
    }
    return TaskPart(env=env, late=late, ports=found.ports)


def _xgboost(gang: TaskGang, place: TaskPlace) -> TaskPart:
    return meeting(gang, place, XGBOOST_PORT)


PYTORCH = JobKind(
    name="PyTorchJob",
    roles=("aimaster", "master", "worker"),
    single=("master",),
    promotes="master",
    leaders=("master",),
    after={"worker": ("master",), "master": ("aimaster",)},
    part=_torch,
)
ONEFLOW = replace(PYTORCH, name="OneFlowJob")
XGBOOST = replace(PYTORCH, name="XGBoostJob", part=_xgboost)
