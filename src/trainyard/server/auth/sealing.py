"""Secrets that have to be read again are sealed with a key that is not in the database: a file of the server's, mode 600."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from trainyard.lib.errors import ConflictError

_NONCE = 12


class Seal:
    """Seals and opens with one key. The file is made on first use; all servers of a platform share it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._cipher: AESGCM | None = None

    def close_up(self, secret: bytes, owner: str) -> bytes:
        """Seal a secret for its owner: it cannot be opened as somebody else's."""
        nonce = secrets.token_bytes(_NONCE)
        return nonce + self._key().encrypt(nonce, secret, owner.encode())

    def open_up(self, sealed: bytes, owner: str) -> bytes:
        """The secret; ConflictError where the key is not the one that it was sealed with."""
        try:
            return self._key().decrypt(sealed[:_NONCE], sealed[_NONCE:], owner.encode())
        except InvalidTag as error:
            raise ConflictError(
                f"The access key {owner} was sealed with another key file.", hint="Make a new access key."
            ) from error

    def derive(self, label: str) -> bytes:
        """32 bytes for a purpose of their own: the same in all servers of a platform, and they do not tell the key."""
        self._key()
        return hmac.new(self._path.read_bytes(), label.encode(), hashlib.sha256).digest()

    def _key(self) -> AESGCM:
        if self._cipher is None:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            try:
                handle = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            except FileExistsError:
                pass
            else:
                with os.fdopen(handle, "wb") as file:
                    file.write(secrets.token_bytes(32))
                    file.flush()
                    os.fsync(file.fileno())
            self._cipher = AESGCM(self._path.read_bytes())
        return self._cipher
