"""Another Linux kernel as an ordinary process: Debian's user-mode-linux, with this machine's files and none of its limits.

What the kernel of the machine cannot show: groups of version 2, a server of network storages and a client that mounts them.
It begins within two seconds; programs run in it at a tenth of their speed.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

LINUX = shutil.which("linux.uml")
MODULES = Path("/usr/lib/uml/modules")
INIT = Path(__file__).parent / "kernel_init.sh"
ROOT = Path(__file__).parents[4]
MEMORY = "1536M"


@dataclass(frozen=True)
class Inside:
    """What became of a job in there."""

    status: int
    said: str
    console: str


def run(job: str, *, seconds: float) -> Inside:
    """Boot it, have its shell run a job as root, and switch it off. A skip where it does not even begin."""
    if LINUX is None or not MODULES.is_dir():
        pytest.skip("user-mode-linux is not installed")
    with tempfile.TemporaryDirectory(prefix="tyk-", dir="/tmp") as folder:  # a kernel's words have no spaces
        host = Path(folder)
        shutil.copy(INIT, host / "init")
        (host / "init").chmod(0o755)
        (host / "job").write_text(f"cd {shlex.quote(str(ROOT))} || exit\n{job}\n")
        words = [LINUX, f"mem={MEMORY}", "root=/dev/root", "rootfstype=hostfs", "rootflags=/", "ro"]
        words += [f"init={host}/init", f"uml_dir={host}/uml", "con=null", "con0=null,fd:1", "quiet"]
        child = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            console, _ = child.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, 9)
            console, _ = child.communicate()
            console += f"\nswitched off after {seconds:.0f} s"
        if not (host / "up").exists():
            pytest.skip(f"user-mode-linux does not run here: {console[-300:]}")
        status, said = (_text(host / name) for name in ("status", "said"))
        return Inside(int(status or -1), said, console)


def tests(*words: str) -> str:
    """The words of a shell for a run of tests of ours in there."""
    own = ["-p", "no:cacheprovider", "-p", "no:rerunfailures", "-q", "--timeout=300", "-rs"]
    return shlex.join([sys.executable, "-m", "pytest", *own, *words])


def _text(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""
