"""Command lines that start distributed programs: our own launcher, torchrun, mpirun, horovodrun, TensorFlow. Nothing runs.

They use the variables and files that every task of a job gets, so one text is right on every task. A command is shell
text, taken as it is; as a list of words it is quoted. The door to these for users is `trainyard.launch`; what starts
the processes of our own launcher is engines/nodes/agent/launcher.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from trainyard.lib.errors import InvalidError
from trainyard.lib.shell import join, quote

# What a program on another machine needs to find itself; the family's list.
FORWARDED = ("PATH", "XLA_FLAGS", "PYTHONPATH", "LD_LIBRARY_PATH")

# One process a task is what these say in a session; a launcher of several processes must not hand them on.
_PER_TASK = ("RANK", "WORLD_SIZE")

# Launchers that one task starts for all: on the others they reach in by ssh, and the command must not be run there.
ONE_STARTS_ALL = frozenset({"mpirun", "horovodrun"})

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
    command: str | Sequence[str], *, np: int | str = 0, hosts: str | Sequence[str] = "", options: str = ""
) -> str:
    """`horovodrun` for the first task; hosts and number of processes as for `mpirun`. A text for `np` is the shell's."""
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


def wrap_command(command: str, launcher: str, processes: int = 0) -> str:
    """A task's command → one process for each device of it, by a launcher: own, torchrun, mpirun or horovodrun; "" none.

    `processes` is the number in one task; 0: one a device, or one. The command is shell text and may be more than one
    program: each process runs all of it, by the shell that reads this. For `ONE_STARTS_ALL` only the first task runs it.
    """
    if not launcher:
        return command
    text = _text(command)
    if launcher == "own":
        number = f"--processes {processes} " if processes else ""
        return f'python3 -IS "${{TRAINYARD_AGENT:?is not set}}" launch {number}-- {quote(text)}'
    if launcher == "torchrun":
        if is_for_python(text.split()):
            return torchrun(text, nproc_per_node=processes)
        return torchrun(_in_shell(text), nproc_per_node=processes, options="--no-python")
    if launcher == "mpirun":
        return mpirun(_in_shell(text), npernode=processes)
    if launcher == "horovodrun":
        number = f'"$(( {processes} * ${{NNODES:-1}} ))"' if processes else ""
        return horovodrun(_in_shell(text), np=number)
    raise InvalidError(
        f"there is no launcher {launcher!r}", hint="Launchers are own, torchrun, mpirun and horovodrun."
    )


def launch_lines() -> dict[str, str]:
    """What starts the words that follow it, for `sh -c LINE NAME WORDS`, by launcher; the program on nodes carries them.

    The number of processes comes in TRAINYARD_PROCESSES, for mpirun, and in what a task says of its devices and slots.
    """
    words = '"$@"'
    number = '${TRAINYARD_PROCESSES:+--npernode "$TRAINYARD_PROCESSES"}'
    return {
        "torchrun": torchrun(words, options="--no-python"),
        "torchrun-python": torchrun(words),
        "mpirun": mpirun(words, options=number),
        "horovodrun": horovodrun(words),
    }


def is_for_python(words: Sequence[str]) -> bool:
    """Whether torchrun has to put `python` in front: `train.py --lr 1` or `-m package`, as its own manual writes it."""
    return bool(words) and (words[0].endswith(".py") or words[0] == "-m")


def _in_shell(text: str) -> str:
    return f'"${{BASH:-/bin/sh}}" -c {quote(text)}'


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
