"""Command lines that start distributed programs: torchrun, mpirun, horovodrun, TensorFlow. Pure functions, nothing runs.

    job.run(launch.torchrun("train.py --lr 1", nproc_per_node=8))        on every task
    job.tasks[0].run(launch.mpirun("python train.py", npernode=8))       on the first task only

They use the variables and files that every task gets (`runtime/rendezvous.py` says which), so one text is right on every
task. A command is shell text, taken as it is; as a list of words it is quoted. How they are made is
spec/launching.py's; the lines of the family stand here.
"""

from __future__ import annotations

from pathlib import Path

from trainyard.lib.shell import quote
from trainyard.spec.launching import FORWARDED, horovodrun, mpirun, tensorflow, torchrun

__all__ = [
    "FORWARDED",
    "gen_command_file",
    "get_mpi_prefix",
    "horovodrun",
    "mpirun",
    "tensorflow",
    "torchrun",
]


def get_mpi_prefix(np_param: int | str, npernode_param: int | str, host_param: str) -> str:
    """The family's beginning of an mpirun command, letter for letter, with its blank at the end."""
    return (
        f"mpirun --allow-run-as-root -np {np_param} --npernode {npernode_param} --host {host_param}"
        " --bind-to none -x NCCL_SOCKET_IFNAME=^lo,docker0 -mca btl_tcp_if_exclude lo,docker0"
        " -x PATH -x XLA_FLAGS -x PYTHONPATH -x LD_LIBRARY_PATH "
    )


def gen_command_file(
    command_str: str, command_file_name: str = "command.sh", display_rank0: bool = True
) -> str:
    """Write a local shell file that runs `command_str`, to be uploaded and started by mpirun; return its name.

    With `display_rank0` only rank 0 prints; the others are silent and keep their exit status.
    """
    lines = ["#!/bin/bash", f"COMMAND={quote(command_str)}"]
    if display_rank0:
        lines.append('[ "${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-0}}" = 0 ] || exec >/dev/null 2>&1')
    lines.append('eval "$COMMAND"')
    path = Path(command_file_name)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    path.chmod(0o755)
    return command_file_name
