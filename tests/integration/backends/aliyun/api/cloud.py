"""What the tests of the Alibaba Cloud backend share: one emulator for a module, and clients for it."""

from __future__ import annotations

from pathlib import Path

from emulation import Emulation
from trainyard import settings
from trainyard.backends.aliyun.api.client import Client
from trainyard.lib.clock import Clock, ManualClock


def make_client(cloud: Emulation, home: Path, clock: Clock | None = None, **env: str) -> Client:
    """A client that knows the emulator; its waits take no time unless a clock is given."""
    environ = {"HOME": str(home), **cloud.environ(), **env}
    return Client.from_settings(settings.load(environ), clock=clock or ManualClock())


def called(cloud: Emulation, *actions: str) -> list[str]:
    """The names of the calls since the last time it was forgotten, only these if some are named."""
    names = [call["action"] for call in cloud.control("GET", "calls")["calls"]]
    return [name for name in names if not actions or name in actions]
