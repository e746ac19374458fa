"""Command lines that start distributed programs: torchrun, mpirun, horovodrun, TensorFlow. Pure functions, nothing runs.

    job.run(launch.torchrun("train.py --lr 1", nproc_per_node=8))        on every task
    job.tasks[0].run(launch.mpirun("python train.py", npernode=8))       on the first task only

They use the variables and files that every task gets (`runtime/rendezvous.py` says which), so one text is right on every
task. A command is shell text, taken as it is; as a list of words it is quoted.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trainyard.lib.errors import InvalidError
from trainyard.lib.shell import join, quote

# What a program on another machine needs to find itself; the family's list.
FORWARDED = ("PATH", "XLA_FLAGS", "PYTHONPATH", "LD_LIBRARY_PATH")

# One process a task is what these say in a session; a launcher of several processes must not hand them on.
_PER_TASK = ("RANK", "WORLD_SIZE")

_DEVICES = "$(( ${TRAINYARD_NUM_DEVICES:-0} > 0 ? ${TRAINYARD_NUM_DEVICES:-0} : 1 ))"


def torchrun(command: str | Sequence[str], *, nproc_per_node: int | str = 0, options: str = "") -> str:
    """`torchrun` for every task of the job: run it on all of them, they meet at MASTER_ADDR:MASTER_PORT.

    `nproc_per_node` is by default one process a device (one where there is none). `options` go to torchrun as they are.
    """
    processes = quote(str(nproc_per_node)) if nproc_per_node else f'"{_DEVICES}"'
    return _line(
        'torchrun --nnodes="${NNODES:-1}" --node_rank="${NODE_RANK:-0}"',
        '--master_addr="${MASTER_ADDR:-127.0.0.1}" --master_port="${MASTER_PORT:-29500}"',
        f"--nproc_per_node={processes}",
        options,
        _text(command),
    )


def mpirun(
    command: str | Sequence[str],
    *,
    np: int = 0,
    npernode: int = 0,
    hosts: str | Sequence[str] = "",
    env: Sequence[str] = FORWARDED,
    options: str = "",
) -> str:
    """OpenMPI's `mpirun` for the first task; it reaches the others.

    Without `hosts` (`10.0.0.1:8`, or a list) it takes all tasks of the job; without `np`, as many processes as they
    have slots. `env` names variables to hand on, or sets them (`NAME=value`); a name that is not set is left out.
    """
    return _line(
        "env " + " ".join(f"-u {name}" for name in _PER_TASK),
        "mpirun --allow-run-as-root",
        f"-np {np}" if np else "",
        f"--npernode {npernode}" if npernode else "",
        f"--host {quote(_hosts(hosts))}" if hosts else '--hostfile "$TRAINYARD_HOSTFILE"',
        # Without this OpenMPI binds two ranks to two cores, and a data loader's threads share them.
        "--bind-to none",
        # docker0 has the same address on every host: connections over it end nowhere.
        "-mca btl_tcp_if_exclude 127.0.0.0/8,docker0",
        *(_forward(variable) for variable in env),
        options,
        _text(command),
    )


def horovodrun(
    command: str | Sequence[str], *, np: int = 0, hosts: str | Sequence[str] = "", options: str = ""
) -> str:
    """`horovodrun` for the first task; hosts and number of processes as for `mpirun`."""
    return _line(
        "env " + " ".join(f"-u {name}" for name in _PER_TASK),
        f"horovodrun -np {np}" if np else 'horovodrun -np "$TRAINYARD_NUM_SLOTS"',
        f"-H {quote(_hosts(hosts))}" if hosts else '-H "$TRAINYARD_HOROVOD_HOSTS"',
        options,
        _text(command),
    )


def tensorflow(command: str | Sequence[str]) -> str:
    """A TensorFlow program on every task, with TF_CONFIG for MultiWorkerMirroredStrategy.

    TF_CONFIG is set for this program only: in the whole session it would stop Estimators that run under Horovod.
    """
    return _line('TF_CONFIG="$(cat "$TRAINYARD_TF_CONFIG")"', _text(command))


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


def _line(*parts: str) -> str:
    return " ".join(part for part in parts if part)


def _text(command: str | Sequence[str]) -> str:
    text = command if isinstance(command, str) else join(command)
    if not text.strip():
        raise InvalidError(
            "there is no command to start", hint="Name the program, such as `python train.py`."
        )
    return text


def _hosts(hosts: str | Sequence[str]) -> str:
    return hosts if isinstance(hosts, str) else ",".join(hosts)


def _forward(variable: str) -> str:
    """`-x NAME`, only where NAME is set on the machine: OpenMPI warns of every other one."""
    if "=" in variable:
        return f"-x {quote(variable)}"
    if not variable.isidentifier():
        raise InvalidError(f"{variable!r} is not a name for an environment variable")
    return f"${{{variable}+-x {variable}}}"
