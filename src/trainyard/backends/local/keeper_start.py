"""Starts the keepers of machines through `keeper_launcher.py`. `keeper.sh` explains what a keeper is."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from trainyard.backends.local.folder import MachineFolder
from trainyard.lib.errors import UnreachableError
from trainyard.lib.process_tree import boot_id

_HERE = Path(__file__).parent
LAUNCH_SECONDS = 60.0  # a thousand keepers on a loaded computer take some


def install_script(folder: MachineFolder) -> None:
    """Put the keeper's script into the machine, where no upgrade of ours changes it while it runs."""
    folder.keeper_script.write_bytes((_HERE / "keeper.sh").read_bytes())


def launch_keepers(
    environments: Mapping[MachineFolder, Mapping[str, str]], inherited: Mapping[str, str]
) -> None:
    """Start one keeper per machine; returns when all of them run. Blocks. UnreachableError where one cannot."""
    request = {
        "env": dict(inherited),
        "keepers": [
            {
                "name": folder.name,
                "script": str(folder.keeper_script),
                "fifo": str(folder.requests),
                "pid_file": str(folder.keeper_file),
                "boot": boot_id(),
                "env": dict(env),
            }
            for folder, env in environments.items()
        ],
    }
    try:
        answer = subprocess.run(
            [sys.executable or "python3", "-I", "-S", str(_HERE / "keeper_launcher.py")],
            input=json.dumps(request).encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=LAUNCH_SECONDS,
            start_new_session=True,  # a Ctrl-C in the client's terminal is not for the machines
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnreachableError(f"no process can be started for a machine: {error}") from error
    if answer.returncode or answer.stdout:
        text = answer.stdout.decode(errors="replace").strip()
        raise UnreachableError(
            f"a machine could not start: {text.splitlines()[-1] if text else 'no reason given'}"
        )
