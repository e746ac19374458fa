"""Kinds whose tasks know nothing of each other: plain jobs, and BatchJob with its kin."""

from __future__ import annotations

from trainyard.server.launch.kinds.gang import Gang, Part, Place
from trainyard.server.launch.kinds.kind import Kind


def _batch(gang: Gang, place: Place) -> Part:
    return Part(env={"WORLD_SIZE": str(len(gang.places)), "RANK": str(place.rank), "PYTHONUNBUFFERED": "1"})


JOB = Kind(name="job", fails_with_any=False, meets=False)
MACHINES = Kind(
    name="machines", fails_with_any=False, meets=False
)  # those of a script, see backends/platform
BATCH = Kind(name="BatchJob", roles=("worker",), meets=False, part=_batch)
ELASTIC_BATCH = Kind(name="ElasticBatchJob", roles=("master", "worker"), meets=False, part=_batch)
SLURM = Kind(name="SlurmJob", roles=("worker",), meets=False, part=_batch)
DATA_JUICER = Kind(name="DataJuicerJob", roles=("worker",), meets=False, part=_batch)
