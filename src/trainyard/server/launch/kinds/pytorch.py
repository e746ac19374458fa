"""PyTorchJob, OneFlowJob and XGBoostJob: a master at a known port, and workers that look for it.

NB: WORLD_SIZE counts nodes, not processes, and RANK is the node's: that is what DLC gives, and its users' commands
(`torchrun --nnodes=$WORLD_SIZE --node_rank=$RANK`) are written for it. A launcher sets its own for each process.
"""

from __future__ import annotations

from dataclasses import replace

from trainyard.server.launch.kinds.gang import TaskGang, TaskPart, TaskPlace, host, port
from trainyard.server.launch.kinds.kind import JobKind
from trainyard.spec import rendezvous

TORCH_PORT = 23456
XGBOOST_PORT = 9999


def meeting(gang: TaskGang, place: TaskPlace, wanted: int) -> TaskPart:
    """Where the tasks meet, how many they are, and which one this is."""
    env = {**rendezvous.rank_variables(len(gang.places), place.rank), "PYTHONUNBUFFERED": "1"}
    first = gang.first
    if gang.is_alone:
        return TaskPart(env={**env, "MASTER_ADDR": rendezvous.LOOPBACK}, ports={"MASTER_PORT": wanted})
    return TaskPart(
        env=env,
        late=rendezvous.master_variables(host(first), port(first, "MASTER_PORT")),
        ports={"MASTER_PORT": wanted} if place is first else {},
    )


def _torch(gang: TaskGang, place: TaskPlace) -> TaskPart:
    found = meeting(gang, place, TORCH_PORT)
    processes = gang.spec.processes or len(place.devices) or 1
    env = {**found.env, **rendezvous.torchrun_variables(len(gang.places), place.rank, processes)}
    if gang.is_alone:
        # torchrun picks its own port then, so that two of them on one node do not meet.
        return TaskPart(env=env, ports=found.ports)
    late = {**found.late, **rendezvous.torchrun_master_variables(found.late)}
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
