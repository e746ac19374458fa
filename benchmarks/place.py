"""A place to measure in: own homes, own tmux sockets, real sshds, throw-away installations of rivals.

Nothing of the person's is read or touched, and everything that was started is ended.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.measure import MARK

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

import sshd as sshd_module  # noqa: E402  # the tests' real hosts
from trainyard.backends.ssh import inventory  # noqa: E402
from trainyard.backends.ssh.inventory import Host  # noqa: E402

Sshd = sshd_module.Sshd
RIVALS = Path(os.environ.get("TRAINYARD_BENCHMARK_RIVALS", "/tmp/trainyard-benchmark-rivals"))
_FOREIGN = ("TRAINYARD_", "ALIYUN_", "NCLUSTER_", "FASTGPU_", "ANSIBLE_")
_FOREIGN_NAMES = (
    *("SSH_AUTH_SOCK", "TMUX", "TMUX_PANE", "BASH_ENV", "ENV", "PROMPT_COMMAND"),
    *("PYTHONPATH", "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE"),
)


@contextmanager
def own_home() -> Iterator[Path]:
    """A folder in memory that is HOME; all settings of the person are out of sight. Ends what is still running there."""
    shared = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    folder = Path(tempfile.mkdtemp(prefix="tyb-", dir=shared))
    before = dict(os.environ)
    for name in list(os.environ):
        if name.startswith(_FOREIGN) or name in _FOREIGN_NAMES:
            del os.environ[name]
    (folder / "tmux").mkdir()
    os.environ.update(
        HOME=str(folder),
        TRAINYARD_HOME=str(folder / ".trainyard"),
        TRAINYARD_STOP_GRACE="0",
        TRAINYARD_LOG_LEVEL="ERROR",
        TMUX_TMPDIR=str(folder / "tmux"),
        # An installed package is compiled; a checkout may be kept free of such files.
        PYTHONPYCACHEPREFIX=str(folder / "pycache"),
        **{MARK: str(os.getpid())},
    )
    mark = f"{MARK}={os.getpid()}"
    try:
        yield folder
    finally:
        sshd_module.end_pids(lambda: sshd_module.marked(mark), signal.SIGKILL)
        os.environ.clear()
        os.environ.update(before)
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def own_folder_of_code() -> Iterator[Path]:
    """A folder to upload: 200 files of 25 KB."""
    with tempfile.TemporaryDirectory(prefix="tyb-code-") as name:
        folder = Path(name) / "perseus-bert"
        folder.mkdir()
        for number in range(200):
            (folder / f"module{number}.py").write_bytes(os.urandom(25_000))
        yield folder


@contextmanager
def real_hosts(count: int, folder: Path) -> Iterator[list[Sshd]]:
    """Real sshds on 127.0.0.x, each with its own home, all in the inventory."""
    hosts = sshd_module.start_sshds(count, folder / "hosts")
    try:
        for index, host in enumerate(hosts):
            inventory.add(Path(os.environ["TRAINYARD_HOME"]) / "hosts.toml", _entry(index, host, folder))
        yield hosts
    finally:
        for host in hosts:
            host.close()


def _entry(index: int, host: Sshd, folder: Path) -> Host:
    return Host(
        name=f"h{index}",
        address=host.address,
        port=host.port,
        user=host.user,
        key=(str(host.client_key),),
        known_hosts=str(host.known_hosts),
        ssh_config="/dev/null",
        lease_dir=str(folder / "leases"),
    )


@contextmanager
def masters(hosts: list[Sshd], folder: Path) -> Iterator[list[list[str]]]:
    """Warm ControlMaster sockets; yields the command line of `ssh` for each host, without the command."""
    (folder / "cm").mkdir()
    with ExitStack() as stack:
        lines = []
        for index, host in enumerate(hosts):
            words = host.ssh_argv()
            line = [words[0], "-o", f"ControlPath={folder}/cm/{index}", *words[1:]]
            subprocess.run([*line[:1], "-fNM", *line[1:]], check=True, stderr=subprocess.DEVNULL)
            stop = [*line[:1], "-O", "exit", *line[1:]]
            stack.callback(subprocess.run, stop, check=False, stderr=subprocess.DEVNULL)
            lines.append(line)
        yield lines


def rival(package: str, program: str) -> Path | None:
    """A program of a rival, installed with pip into a folder under /tmp that is kept; None where that cannot be done."""
    folder = RIVALS / package
    path = folder / "bin" / program
    if not path.exists():
        shutil.rmtree(folder, ignore_errors=True)
        try:
            venv.create(folder, with_pip=True)
            pip = [folder / "bin" / "python", "-m", "pip", "install", "-q", "--disable-pip-version-check"]
            subprocess.run([*pip, package], check=True, capture_output=True, timeout=300)
        except (subprocess.SubprocessError, OSError):
            shutil.rmtree(folder, ignore_errors=True)
            return None
    return path if path.exists() else None
