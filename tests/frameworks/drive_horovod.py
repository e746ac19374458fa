"""In a network of its own: a platform of two nodes, and the manual's Horovod job on it, until it has saved its model.

usage: drive_horovod.py FOLDER EXAMPLES VISIBLE... ; prints the job's state, what it saved and its log as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from platforms import platform

# Of the manual, word for word.
COMMAND = (
    "cd ~ && mkdir -p ~/checkpoints && horovodrun -np 16 -hostfile /home/${DLWS_USER_NAME}/ib_config "
    "-p $DLWS_SD_worker0_SSH_PORT --network-interface ib0 python /examples/tensorflow2_keras_mnist.py "
    "~/checkpoints/ ~/tensorboard/${DLWS_JOB_ID}/logs/ && sleep infinity"
)
PROCESSES = 16
PATIENCE = 900.0  # sixteen processes that load PyTorch, on whatever cores there are


def main(folder: Path, examples: str, visible: list[str]) -> None:
    with platform(folder, env={"OMP_NUM_THREADS": "1"}) as up:
        up.call("POST", "/api/v1/storages", {"name": "examples", "source": examples, "target": "/examples"})
        for name in ("dgx-1", "dgx-2"):
            body = {"name": name, "address": {"backend": "local"}, "devices": {"V100": 8}}
            up.call("POST", "/api/v1/nodes", body)
            up.call("PATCH", f"/api/v1/nodes/{name}", {"options": {"visible": visible}})
        deadline = time.monotonic() + PATIENCE
        while any(node["state"] != "ready" for node in up.call("GET", "/api/v1/nodes")["items"]):
            time.sleep(0.1)
        job = up.submit(
            COMMAND,
            kind="PSDistJob",
            # Sixteen processes that wait for each other in a circle, on the few cores of a computer for tests.
            env={"PATH": os.environ["PATH"], "OMPI_MCA_mpi_yield_when_idle": "1"},
            mounts=[{"source": "examples"}],
            roles=[{"name": "worker", "replicas": 2, "cpu": 1, "device": "V100", "devices": 8}],
        )
        saved = ""
        while time.monotonic() < deadline:
            found = up.job(job)
            # The home of a job's user is a storage of the platform, below its data.
            saved = "".join(path.read_text() for path in folder.rglob("checkpoints/checkpoint-1"))
            if (saved and _said_all(up.lines(job))) or found["state"] in {"failed", "succeeded", "cancelled"}:
                break
            time.sleep(0.2)
        lines = up.lines(job)
        said = [line for line in lines if "learned" in line]
        kept = {name: found[name] for name in ("state", "message")}
        print(json.dumps({**kept, "saved": saved, "said": said, "lines": lines}))


def _said_all(lines: list[str]) -> bool:
    return sum("learned" in line for line in lines) == PROCESSES


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
