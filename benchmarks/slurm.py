"""How many jobs a second Debian's slurmctld gives nodes to: the same question that scheduling.py asks of ours.

A slurmctld with a munged of its own, in a folder of its own. Its nodes are of the cloud: they may be given out before
they have answered, so no slurmd has to run. An array of held jobs, each for one of a node's cores, is released at once.
What is counted is slurmctld's deciding and noting who starts where, by its own clock (`sdiag`). What is not: taking the
jobs in, saving its state to disk, accounting, waking nodes, launching and ending anything.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

NEEDED = ("munged", "slurmctld", "sbatch", "scontrol", "sdiag")
PACKAGES = ("munge", "slurmctld", "slurm-client")
CORES = 8  # of each node, as many as ours have devices
PATIENCE = 90.0  # seconds, for everything together

CONFIGURATION = """\
ClusterName=bench
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmdPort={other_port}
SlurmUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmctldDebug=error
MailProg=/bin/true
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SlurmdTimeout=0
MessageTimeout=100
MaxJobCount=100000
MaxArraySize=100001
SchedulerType=sched/backfill
SchedulerParameters=default_queue_depth=100000,sched_min_interval=0,sched_interval=1,max_sched_time=50,bf_interval=600
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
PriorityType=priority/basic
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
JobCompType=jobcomp/none
ResumeProgram=/bin/true
SuspendProgram=/bin/true
SuspendTime=86400
ResumeTimeout=3600
ResumeRate=0
NodeName=n[1-{nodes}] CPUs={cores} Sockets=1 CoresPerSocket={cores} ThreadsPerCore=1 RealMemory=16000 State=CLOUD
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class Unmeasured(Exception):
    """Slurm cannot be measured here; the text says why."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What slurmctld did with the jobs."""

    version: str
    nodes: int
    jobs: int
    cycle_s: float  # its main scheduling cycles, by its own clock
    cpu_s: float  # processor time of slurmctld from the release to the last start
    elapsed_s: float  # from the release until it said that all had started

    @property
    def jobs_per_s(self) -> float:
        """By its own clock."""
        return self.jobs / self.cycle_s

    def as_dict(self) -> dict[str, object]:
        """For `--json`."""
        rates = {
            "jobs_per_s": round(self.jobs_per_s),
            "jobs_per_cpu_s": round(self.jobs / self.cpu_s),
            "jobs_per_elapsed_s": round(self.jobs / self.elapsed_s),
        }
        return {**asdict(self), **rates}


def measure_slurm(nodes: int = 1000, jobs: int = 2000) -> Measured:
    """Start slurmctld with fake nodes, release the jobs at once, see how long it takes. Unmeasured: it is not here."""
    install()
    if jobs > nodes * CORES:
        raise Unmeasured(f"{jobs} jobs do not fit on {nodes} nodes of {CORES} cores.")
    # NB: a short path outside of $HOME: sockets have short names, and munged wants folders that others cannot write to.
    with tempfile.TemporaryDirectory(prefix="slurm-bench-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        _write(folder, nodes)
        deadline = time.monotonic() + PATIENCE
        environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
        munged = [
            "munged", "--force", "--foreground", f"--key-file={folder}/key", f"--socket={folder}/munge.socket",
            f"--pid-file={folder}/munged.pid", f"--log-file={folder}/munged.log", f"--seed-file={folder}/seed",
        ]  # fmt: skip
        with _running(munged, folder, environment) as authentication:
            _wait(
                lambda: (folder / "munge.socket").exists() or authentication.poll() is not None,
                deadline,
                folder,
            )
            with _running(["slurmctld", "-D"], folder, environment) as controller:
                return _release(controller, environment, nodes, jobs, deadline, folder)


def install() -> None:
    """Let scripts/debian install what is missing; Unmeasured where it cannot."""
    if all(_found(program) for program in NEEDED):
        return
    script = Path(__file__).resolve().parents[1] / "scripts" / "debian"
    done = subprocess.run([str(script), *PACKAGES], capture_output=True, text=True)
    missing = [program for program in NEEDED if not _found(program)]
    if missing:
        told = done.stderr.strip().splitlines()
        raise Unmeasured(f"not here: {', '.join(missing)}. {told[-1] if told else ''}".rstrip())


def _found(program: str) -> str | None:
    """Where it is; an ordinary user's PATH leaves the daemons' folders out."""
    return shutil.which(program, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin")


def _write(folder: Path, nodes: int) -> None:
    key = folder / "key"
    key.touch(mode=0o600)
    key.write_bytes(os.urandom(1024))
    (folder / "state").mkdir()
    (folder / "spool").mkdir()
    port, other_port = _free_ports()
    (folder / "slurm.conf").write_text(
        CONFIGURATION.format(
            host=socket.gethostname().partition(".")[0],
            port=port,
            other_port=other_port,
            user=pwd.getpwuid(os.getuid()).pw_name,
            folder=folder,
            nodes=nodes,
            cores=CORES,
        ),
        encoding="utf-8",
    )


def _free_ports() -> tuple[int, int]:
    with socket.socket() as one, socket.socket() as other:
        one.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        return one.getsockname()[1], other.getsockname()[1]


@contextmanager
def _running(
    command: list[str], folder: Path, environment: dict[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """A daemon in the foreground, ended by its own pid however we leave."""
    program = _found(command[0]) or command[0]
    with (folder / f"{command[0]}.out").open("wb") as out:
        process = subprocess.Popen(
            [program, *command[1:]], cwd=folder, env=environment, stdout=out, stderr=out
        )
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait(is_done: Callable[[], bool], deadline: float, folder: Path) -> None:
    while not is_done():
        if time.monotonic() > deadline:
            raise Unmeasured(f"Slurm did not come so far in {PATIENCE:.0f} s. {_last_words(folder)}".rstrip())
        time.sleep(0.05)


def _last_words(folder: Path) -> str:
    """The last error of either daemon: the folder is gone afterwards."""
    texts = [path.read_text(errors="replace") for path in sorted(folder.glob("*.out"))]
    errors = [
        line for text in texts for line in text.splitlines() if re.search("error|fatal", line, re.IGNORECASE)
    ]
    return errors[-1] if errors else ""


def _release(
    controller: subprocess.Popen[bytes],
    environment: dict[str, str],
    nodes: int,
    jobs: int,
    deadline: float,
    folder: Path,
) -> Measured:
    def ask(*words: str) -> str:
        done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=PATIENCE)
        return done.stdout if done.returncode == 0 else ""

    def figures() -> str:
        if controller.poll() is not None:
            raise Unmeasured(
                f"slurmctld ended with status {controller.returncode}. {_last_words(folder)}".rstrip()
            )
        return ask("sdiag")

    _wait(lambda: bool(figures()), deadline, folder)
    submitted = ask("sbatch", "--hold", f"--array=0-{jobs - 1}", "--ntasks=1", "--time=60", "--output=/dev/null",
                    "--wrap=true", "--parsable")  # fmt: skip
    if not submitted:
        raise Unmeasured("sbatch was refused.")
    cpu = _cpu_seconds(controller.pid)
    start = time.monotonic()
    ask("scontrol", "release", submitted.strip())
    _wait(lambda: _figure(figures(), "Jobs started") >= jobs, deadline, folder)
    elapsed = time.monotonic() - start
    cpu = _cpu_seconds(controller.pid) - cpu
    # A cycle is told of when it has ended: the one that started the last job may still be on its way.
    seen, _ = _cycles(figures())
    _wait(lambda: _cycles(figures())[0] > seen, deadline, folder)
    return Measured(
        ask("scontrol", "--version").strip(), nodes, jobs, _cycles(figures())[1], max(cpu, 0.01), elapsed
    )


def _cycles(text: str) -> tuple[int, float]:
    """How many main cycles there were, and their seconds."""
    main = text.partition("Main schedule statistics")[2].partition("Backfilling stats")[0]
    count = _figure(main, "Total cycles")
    return count, count * _figure(main, "Mean cycle") / 1e6


def _figure(text: str, name: str) -> int:
    found = re.search(rf"{name}:\s*(\d+)", text)
    return int(found[1]) if found else 0


def _cpu_seconds(pid: int) -> float:
    words = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
