"""Makes host keys. Imports asyncssh, so it is imported on use. Blocking functions."""

from __future__ import annotations

from trainyard.backends.aliyun.user_data import HostKey
from trainyard.transport.sshimport import asyncssh


def make() -> HostKey:
    """A fresh key."""
    key = asyncssh.generate_private_key("ssh-ed25519")
    public = " ".join(key.export_public_key("openssh").decode().split()[:2])
    return HostKey(private=key.export_private_key("openssh").decode(), public=public)
