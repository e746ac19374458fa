"""Makes the user data for a machine's first boot: the keys that may log in, and the script `boot.sh`.

Every process of the machine can read it for as long as the machine lives, so it holds no secret. The machine makes its
host keys itself and shows the public halves on its console. Written as JSON, which is YAML, which cloud-init reads.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from trainyard.backends.aliyun.access.host_keys import CONSOLE_SCRIPT
from trainyard.lib.errors import InvalidError

FOLDER = "/root/.trainyard-boot"
EACH_BOOT = "/var/lib/cloud/scripts/per-boot/trainyard-host-keys"  # cloud-init runs what lies there
LONGEST = 32 * 1024  # bytes before encoding, by the provider's rule


def user_data(
    *,
    authorized: Sequence[str] = (),
    data_disk_gib: int = 0,
    is_snapshot: bool = False,
    has_shared_storage: bool = False,
    wants_driver: bool = False,
    wants_python: bool = False,
) -> str:
    """The UserData of a launch, in base64 as the provider takes it."""
    wishes = {
        "wants_data": str(data_disk_gib or ""),
        "is_snapshot": "yes" if is_snapshot else "",
        "wants_nfs": "yes" if has_shared_storage else "",
        "wants_driver": "yes" if wants_driver else "",
        "wants_python": "yes" if wants_python else "",
    }
    script = "".join(f"{name}={value}\n" for name, value in wishes.items()) + _boot_script()
    config = {
        "disable_root": False,
        "ssh_deletekeys": True,  # an image of another machine brings that one's
        "ssh_genkeytypes": ["ed25519"],
        "ssh_authorized_keys": list(authorized),
        "write_files": [
            {"path": f"{FOLDER}/boot.sh", "permissions": "0700", "content": script},
            {"path": EACH_BOOT, "permissions": "0755", "content": CONSOLE_SCRIPT},
        ],
        "runcmd": ['sh "${HOME:-/root}/.trainyard-boot/boot.sh"'],
    }
    data = ("#cloud-config\n" + json.dumps(config)).encode()
    if len(data) > LONGEST:
        raise InvalidError(
            f"what the machine is told at its first boot has {len(data)} bytes", hint="Admit fewer keys."
        )
    return base64.b64encode(data).decode()


@cache
def _boot_script() -> str:
    folder = Path(__file__).parent
    parts = ("data_disk.sh", "driver.sh", "boot.sh")
    return "".join((folder / name).read_text(encoding="utf-8") for name in parts)
