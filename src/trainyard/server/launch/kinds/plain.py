"""Kinds whose tasks know nothing of each other: plain jobs, and BatchJob with its kin."""

from __future__ import annotations

from trainyard.server.launch.kinds.gang import TaskGang, TaskPart, TaskPlace
from trainyard.server.launch.kinds.kind import JobKind


def _batch(gang: TaskGang, place: TaskPlace) -> TaskPart:
    return TaskPart(
        env={"WORLD_SIZE": str(len(gang.places)), "RANK": str(place.rank), "PYTHONUNBUFFERED": "1"}
    )


JOB = JobKind(name="job", fails_with_any=False, meets=False)
MACHINES = JobKind(
    name="machines", fails_with_any=False, meets=False
)  # those of a script, see backends/platform
BATCH = JobKind(name="BatchJob", roles=("worker",), meets=False, part=_batch)
ELASTIC_BATCH = JobKind(name="ElasticBatchJob", roles=("master", "worker"), meets=False, part=_batch)
SLURM = JobKind(name="SlurmJob", roles=("worker",), meets=False, part=_batch)
DATA_JUICER = JobKind(name="DataJuicerJob", roles=("worker",), meets=False, part=_batch)
