"""A remote shell between the machines of one computer: programs in a machine's bin/ and variables for MPI.

What they do is in `rsh.sh`. OpenMPI needs no option on its command line for it: it takes an address 127.77.x.y for
another host, and everything else is said by variables (found out with OpenMPI 4.1).
"""

from __future__ import annotations

import os
from pathlib import Path

NAMES = ("ssh", "trainyard-rsh", "trainyard-rank")


def install(folder: Path) -> None:
    """Put the programs into the `bin` folder of the machine at `folder`. Doing it twice is doing it once."""
    text = Path(__file__).with_name("rsh.sh").read_bytes()
    bin_folder = folder / "bin"
    bin_folder.mkdir(mode=0o700, exist_ok=True)
    for name in NAMES:
        path = bin_folder / name
        if path.is_file() and path.read_bytes() == text and os.access(path, os.X_OK):
            continue
        # Written aside: a program that runs right now is never changed under its feet.
        temporary = bin_folder / f".{name}.{os.getpid()}"
        temporary.write_bytes(text)
        temporary.chmod(0o700)
        temporary.replace(path)


def variables(folder: Path, path: str) -> dict[str, str]:
    """Return the variables for the machine at `folder`. `path` is its PATH without this module."""
    bin_folder = folder / "bin"
    # OpenMPI cuts a program's path at blanks and colons; then it is found by name on PATH, else wherever PATH leads.
    prefix = "" if any(char.isspace() or char in ":," for char in str(bin_folder)) else f"{bin_folder}/"
    return {
        "PATH": f"{bin_folder}:{path}",
        "OMPI_MCA_plm_rsh_agent": f"{prefix}trainyard-rsh",
        "OMPI_MCA_orte_fork_agent": f"{prefix}trainyard-rank",
        "OMPI_MCA_orte_keep_fqdn_hostnames": "1",  # else task0.bert is cut to task0
        # All machines meet on the loopback interface; a computer without a network has no other.
        "OMPI_MCA_oob_tcp_if_include": "lo",
        # Machines share the processors: two of them must not bind their first ranks to the same core, and a rank
        # that waits must let others run.
        "OMPI_MCA_hwloc_base_binding_policy": "none",
        "OMPI_MCA_mpi_yield_when_idle": "1",
        "HYDRA_LAUNCHER_EXEC": str(bin_folder / "ssh"),
    }
