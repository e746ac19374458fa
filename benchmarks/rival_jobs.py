"""Slurm's sbatch and Ray's job submission on the same trivial jobs: how soon one starts, and how many run in a second.

Each is started alone, with its own folder, on this machine, and ended afterwards. What cannot be installed or started is
left out with the reason.
"""

from __future__ import annotations

import os
import pwd
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks import slurm

SLURM_JOBS = 300
RAY_JOBS = 8
CONFIGURATION = """\
ClusterName=bench
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmdPort={other_port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
MailProg=/bin/true
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
MaxJobCount=100000
SchedulerType=sched/backfill
SchedulerParameters=default_queue_depth=100000,sched_min_interval=0,sched_interval=1,defer_batch
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
JobCompType=jobcomp/none
SlurmdParameters=config_overrides
NodeName={host} NodeAddr=127.0.0.1 CPUs=64 Sockets=1 CoresPerSocket=64 ThreadsPerCore=1 RealMemory=1000 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


@dataclass(frozen=True, slots=True)
class Rival:
    """What one of them did."""

    name: str
    start_s: float = 0.0
    jobs_per_s: float = 0.0
    reason: str = ""  # why it was not measured


def measure_all() -> list[Rival]:
    """Both, one after the other."""
    found = []
    for name, work in (("Slurm (sbatch)", measure_slurm), ("Ray Jobs", measure_ray)):
        try:
            found.append(work())
        except (OSError, subprocess.SubprocessError, slurm.Unmeasured, TimeoutError) as error:
            found.append(Rival(name, reason=str(error).splitlines()[0][:100]))
    return found


def measure_slurm() -> Rival:
    """A slurmctld and one slurmd that really run the jobs."""
    script = Path(__file__).resolve().parents[1] / "scripts" / "debian"
    subprocess.run(
        [str(script), "munge", "slurmctld", "slurmd", "slurm-client"], check=True, capture_output=True
    )
    with tempfile.TemporaryDirectory(prefix="slurm-bench-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        key = folder / "key"
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(1024))
        (folder / "state").mkdir()
        (folder / "spool").mkdir()
        port, other = slurm._free_ports()
        text = CONFIGURATION.format(
            host=socket.gethostname().partition(".")[0], port=port, other_port=other,
            user=pwd.getpwuid(os.getuid()).pw_name, folder=folder,
        )  # fmt: skip
        (folder / "slurm.conf").write_text(text)
        environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
        munged = [
            "munged", "--force", "--foreground", f"--key-file={folder}/key", f"--socket={folder}/munge.socket",
            f"--pid-file={folder}/munged.pid", f"--log-file={folder}/munged.log", f"--seed-file={folder}/seed",
        ]  # fmt: skip
        deadline = time.monotonic() + 60
        with slurm._running(munged, folder, environment):
            slurm._wait((folder / "munge.socket").exists, deadline, folder)
            with slurm._running(["slurmctld", "-D"], folder, environment):
                with slurm._running(["slurmd", "-D"], folder, environment):
                    slurm._wait(
                        lambda: "idle" in _slurm(environment, "sinfo", "-h", "-o", "%T"), deadline, folder
                    )
                    return _time_slurm(folder, environment)


def _slurm(environment: dict[str, str], *words: str) -> str:
    return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=30).stdout


def _time_slurm(folder: Path, environment: dict[str, str]) -> Rival:
    waits = []
    for number in range(20):
        out = folder / f"start-{number}"
        began = time.time()
        _slurm(environment, "sbatch", "-o", str(out), "--wrap", "date +%s.%N")
        deadline = time.monotonic() + 30
        while not out.exists() or not out.read_text().strip():
            if time.monotonic() > deadline:
                raise TimeoutError("a job of Slurm's did not start in 30 s")
            time.sleep(0.01)
        waits.append(float(out.read_text()) - began)
    began = time.perf_counter()
    for _ in range(SLURM_JOBS):
        _slurm(environment, "sbatch", "-o", "/dev/null", "--wrap", "true")
    while _slurm(environment, "squeue", "-h", "-o", "%i").strip():
        time.sleep(0.1)
    return Rival("Slurm (sbatch)", statistics.median(waits), SLURM_JOBS / (time.perf_counter() - began))


def measure_ray() -> Rival:
    """Ray's own job server, in a virtual environment of its own."""
    with tempfile.TemporaryDirectory(prefix="ray-bench-") as name:
        folder = Path(name)
        subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True, capture_output=True)
        python = folder / "venv" / "bin" / "python"
        subprocess.run(
            [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", "ray[default]"],
            check=True, capture_output=True, timeout=600,
        )  # fmt: skip
        done = subprocess.run(
            [str(python), "-c", _RAY, str(RAY_JOBS), str(folder)], capture_output=True, text=True, timeout=300
        )
        if done.returncode:
            raise TimeoutError(
                done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "Ray did not run"
            )
        start, rate = map(float, done.stdout.strip().splitlines()[-1].split())
        return Rival("Ray Jobs", start, rate)


_RAY = """\
import statistics, subprocess, sys, time, pathlib
count, folder = int(sys.argv[1]), pathlib.Path(sys.argv[2])
ray = pathlib.Path(sys.executable).with_name('ray')
subprocess.run([ray, 'start', '--head', '--port=26379', '--dashboard-host=127.0.0.1', '--dashboard-port=28265',
                '--num-cpus=64', '--disable-usage-stats', f'--temp-dir={folder}/r'], check=True, capture_output=True)
try:
    from ray.job_submission import JobSubmissionClient
    for _ in range(100):
        try:
            client = JobSubmissionClient('http://127.0.0.1:28265'); break
        except Exception: time.sleep(0.5)
    def wait(job):
        while str(client.get_job_status(job)) not in ('SUCCEEDED', 'FAILED', 'STOPPED'): time.sleep(0.05)
    waits = []
    for number in range(5):
        out = folder / f'start-{number}'
        began = time.time()
        job = client.submit_job(entrypoint=f'date +%s.%N > {out}')
        wait(job)
        waits.append(float(out.read_text()) - began)
    began = time.perf_counter()
    jobs = [client.submit_job(entrypoint='true') for _ in range(count)]
    for job in jobs: wait(job)
    print(statistics.median(waits), count / (time.perf_counter() - began))
finally:
    subprocess.run([ray, 'stop', '--force'], capture_output=True)
"""
