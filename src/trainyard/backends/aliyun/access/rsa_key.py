"""The private key on this computer's disk. Imports asyncssh, so `key_pair.py` imports it on use. Blocking functions."""

from __future__ import annotations

from pathlib import Path

from trainyard.lib.errors import InvalidError
from trainyard.lib.files import write_atomic
from trainyard.transport.ssh_import import asyncssh

KEY_BITS = 3072


def load_or_make(path: Path) -> str:
    """The public line of the key there, made if missing; the private half is readable by its owner only."""
    if not path.exists():
        key = asyncssh.generate_private_key("ssh-rsa", key_size=KEY_BITS, comment="trainyard")
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomic(path, key.export_private_key("pkcs1-pem").decode(), mode=0o600)
    return public_line(path)


def public_line(path: Path) -> str:
    """`ssh-rsa AAAA… trainyard` for a private key."""
    try:
        key = asyncssh.read_private_key(path)
    except (OSError, asyncssh.KeyImportError) as error:
        raise InvalidError(
            f"the private key {path} cannot be read", hint="Move it away; a new one is made then."
        ) from error
    return " ".join(key.export_public_key("openssh").decode().split()[:2]) + " trainyard"
