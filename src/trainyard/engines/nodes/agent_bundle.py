"""The program on a node as one file: the modules of `agent/` in a zip archive that python3 runs as it is."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from functools import cache
from pathlib import Path
from typing import NamedTuple

from trainyard.engines.nodes.agent.launcher import LINES
from trainyard.spec.launching import launch_lines

FOLDER = Path(__file__).with_name("agent")
# Modules of the package that the program has too; they need nothing of it but each other.
SHARED = (
    "lib/private_folder.py",
    "lib/process_tree.py",
    "lib/read_file.py",
    "lib/remove_tree.py",
    "spec/exit_reasons.py",
)
PACKAGE = "trainyard_agent"
EPOCH_OF_ZIP = (1980, 1, 1, 0, 0, 0)  # the same modules are the same bytes

# Read by whatever python3 a task has, also by one that could not read the modules.
_MAIN = f"""import sys
if sys.version_info < (3, 8):
    sys.exit("trainyard: this python3 is older than 3.8; put a newer one into PATH")
from {PACKAGE}.main import main
sys.exit(main(sys.argv[1:]))
"""


class Bundle(NamedTuple):
    """The archive and its version, which is a digest of it."""

    version: str
    content: bytes

    @property
    def file_name(self) -> str:
        """What it is called on a node."""
        return f"agent-{self.version}.pyz"


@cache
def bundle() -> Bundle:
    """Put the program together."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(zipfile.ZipInfo("__main__.py", EPOCH_OF_ZIP), _MAIN)
        for path in sorted(FOLDER.rglob("*.py")):
            archive.writestr(
                zipfile.ZipInfo(f"{PACKAGE}/{path.relative_to(FOLDER).as_posix()}", EPOCH_OF_ZIP),
                path.read_bytes(),
            )
        for name in ("__init__.py", *sorted({f"{one.partition('/')[0]}/__init__.py" for one in SHARED})):
            archive.writestr(zipfile.ZipInfo(f"trainyard/{name}", EPOCH_OF_ZIP), "")
        for name in SHARED:
            content = FOLDER.parents[2].joinpath(name).read_bytes()
            archive.writestr(zipfile.ZipInfo(f"trainyard/{name}", EPOCH_OF_ZIP), content)
        # Made here, so that what starts torchrun and the like is written once.
        archive.writestr(zipfile.ZipInfo(f"{PACKAGE}/{LINES}", EPOCH_OF_ZIP), json.dumps(launch_lines()))
    program = buffer.getvalue()
    return Bundle(hashlib.sha256(program).hexdigest()[:16], program)
