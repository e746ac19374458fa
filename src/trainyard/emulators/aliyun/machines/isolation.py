"""How strictly machines are isolated from this computer and each other, and a check of the possible levels here.

    ROOT   we are root and may mount: each machine has its own /, processes, name, terminals; its root is root
    USER   an ordinary user, where the kernel lets one have such spaces: the same, but its root has our number, so it
           cannot change files that the computer's root owns (/usr, except /usr/local) nor be another user
    HOME   neither: a machine has its own HOME, folders for keys and logs, and sshd; it sees this computer's files and
           processes, and its login is our own name. UserData scripts run with our rights on this computer.

In all of them addresses are this computer's loopback: machines have no network of their own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

from trainyard.lib.remove_tree import remove_tree

LAUNCHER = Path(__file__).with_name("launcher.py")
PROBE_SECONDS = 30.0


class Isolation(StrEnum):
    """What stands between a machine and this computer; the values are `launcher.py`'s words."""

    ROOT = "root"
    USER = "user"
    HOME = "home"


def launcher_argv() -> list[str]:
    """How the launcher is run: no site packages, nothing from the environment."""
    return [sys.executable or "python3", "-I", "-S", str(LAUNCHER)]


def best_isolation(folder: Path) -> Isolation:
    """The strongest that works here for machines below `folder`. Tries it out; blocks some tens of milliseconds."""
    first = Isolation.ROOT if os.geteuid() == 0 else Isolation.USER
    return first if not why_not(first, folder) else Isolation.HOME


def why_not(isolation: Isolation, folder: Path) -> str:
    """Why machines below `folder` cannot be kept apart so; '' where they can."""
    if isolation is Isolation.HOME:
        return ""
    folder.mkdir(parents=True, exist_ok=True)
    trial = Path(tempfile.mkdtemp(prefix=".trial-", dir=folder))
    try:
        machine = trial / "machines" / "trial"
        for path in (trial / "nas", trial / "template" / "etc", machine / "shared" / "nas"):
            path.mkdir(parents=True)
        (machine / "shared" / "init.sh").write_text("exit 0\n", encoding="utf-8")
        (machine / "console").touch()
        (trial / "template" / "etc" / "passwd").write_text("", encoding="utf-8")
        entry = {
            "name": "trial",
            "folder": str(machine),
            "root": "",
            "hostname": "trial",
            "boot": 1,
            "kernel": "trial",
            "files": [],
            "authorized_keys": [],
            "secret": "",
            "env": {},
        }
        return _launch_trial({"isolation": isolation, "machines": [entry]})
    finally:
        remove_tree(trial)


def _launch_trial(request: Mapping[str, object]) -> str:
    try:
        answer = subprocess.run(
            launcher_argv(),
            input=json.dumps(request).encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=PROBE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return answer.stdout.decode(errors="replace").strip().removeprefix("trial ")
