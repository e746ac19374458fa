"""Detects the emulator on this computer and how to log in to its machines, which differs from the cloud."""

from __future__ import annotations

import json
import re

from trainyard.backends.aliyun.api.instance_metadata import fetch
from trainyard.backends.aliyun.api.threads import in_thread
from trainyard.backends.aliyun.ecs import Login
from trainyard.lib.errors import UnreachableError

_LOOPBACK = re.compile(r"localhost\b|127\.|\[::1\]")


async def fetch_login(host: str) -> Login:
    """Return how to log in to machines of this endpoint."""
    if not _LOOPBACK.match(host):
        return Login()
    return await in_thread(lambda: _ask(host))


def _ask(host: str) -> Login:
    """The emulator's own page says it; another program on loopback, such as a tunnel to the cloud, has no such page."""
    try:
        found = json.loads(fetch(f"http://{host}/_emulator/") or "{}")
        # Without a root folder of its own a machine's home is known to itself only.
        home = "" if found.get("isolation") == "home" else "/root"
        return Login(user=str(found.get("ssh_user", "root")), port=int(found.get("ssh_port", 22)), home=home)
    except (UnreachableError, ValueError, TypeError, AttributeError):
        return Login()
