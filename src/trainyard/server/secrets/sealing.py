"""Secrets that have to be read again are sealed with a key that is not in the database: a file of the server's, mode 600.

While the key is changed there are two files: the new key, and beside it the previous one, which only opens. Every use
looks whether the files are still the same, so that servers need not be started anew.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import hmac
import os
import secrets
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from trainyard.lib.errors import ConflictError, InvalidError
from trainyard.lib.secret_names import SEALED

_NONCE = 12
_BYTES = 32  # of a key
_VALUE = "value "  # before the owner of a sealed text: it is opened as nothing else
PREVIOUS = ".previous"


class Seal:
    """Seals and opens. The key's file is made on first use; all servers of a platform share it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.previous = path.with_name(path.name + PREVIOUS)
        self._stamps: tuple[object, object] | None = None
        self._keys: tuple[bytes, ...] = ()

    def close_up(self, secret: bytes, owner: str) -> bytes:
        """Seal a secret for its owner: it cannot be opened as somebody else's."""
        nonce = secrets.token_bytes(_NONCE)
        return nonce + AESGCM(self.keys()[0]).encrypt(nonce, secret, owner.encode())

    def open_up(self, sealed: bytes, owner: str) -> bytes:
        """The secret; ConflictError where it was sealed with neither key, or for somebody else."""
        found = self.try_open(sealed, owner)
        if found is None:
            raise ConflictError(
                f"The secret of {owner} was sealed with another key file.",
                hint=f"Put the key file that it was sealed with back at {self.path}, or give the secret anew.",
            )
        return found

    def try_open(self, sealed: bytes, owner: str) -> bytes | None:
        """The secret; None where it was sealed with neither key, or for somebody else."""
        for key in self.keys():
            with contextlib.suppress(InvalidTag, ValueError):
                return AESGCM(key).decrypt(sealed[:_NONCE], sealed[_NONCE:], owner.encode())
        return None

    def is_newest(self, sealed: bytes, owner: str) -> bool:
        """Whether it was sealed with the key that is used now."""
        try:
            AESGCM(self.keys()[0]).decrypt(sealed[:_NONCE], sealed[_NONCE:], owner.encode())
        except (InvalidTag, ValueError):
            return False
        return True

    def is_newest_text(self, text: str, owner: str) -> bool:
        """The same for a sealed text."""
        closed = _closed(text)
        return closed is not None and self.is_newest(closed, _VALUE + owner)

    def close_text(self, text: str, owner: str) -> str:
        """A sealed text for a place that holds texts: it says of itself that it is sealed."""
        closed = self.close_up(text.encode(errors="surrogatepass"), _VALUE + owner)
        return SEALED + base64.b64encode(closed).decode()

    def try_open_text(self, text: str, owner: str) -> str | None:
        """What `close_text` was given; None for what it did not make for this owner."""
        closed = _closed(text)
        opened = None if closed is None else self.try_open(closed, _VALUE + owner)
        return None if opened is None else opened.decode(errors="surrogatepass")

    def derive(self, label: str) -> bytes:
        """32 bytes for a purpose of their own: the same in all servers of a platform, and they do not tell the key."""
        return hmac.new(self.keys()[0], label.encode(), hashlib.sha256).digest()

    def begin_rotation(self) -> None:
        """Lay a new key beside the old one, which still opens. Doing it again goes on with a change that was begun."""
        now = self.keys()
        if len(set(now)) == 2:
            return
        # The old one first: at no time is there a seal without its key.
        _written(self.previous, now[0]).replace(self.previous)
        _written(self.path, secrets.token_bytes(_BYTES)).replace(self.path)

    def end_rotation(self) -> None:
        """Take the previous key away: whatever is still sealed with it is lost."""
        self.previous.unlink(missing_ok=True)

    def keys(self) -> tuple[bytes, ...]:
        """The key, and the previous one while there is one; read again where a file has changed."""
        stamps = (_stamp(self.path), _stamp(self.previous))
        if stamps[0] is None:
            self._make()
            stamps = (_stamp(self.path), _stamp(self.previous))
        if stamps != self._stamps:
            found = [_read(self.path)]
            if stamps[1] is not None:
                with contextlib.suppress(FileNotFoundError):  # taken away this moment
                    found.append(_read(self.previous))
            self._keys, self._stamps = tuple(found), stamps
        return self._keys

    def _make(self) -> None:
        """Make a key where there is none; who comes second takes the first one's. Never half a key."""
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        fresh = _written(self.path, secrets.token_bytes(_BYTES))
        try:
            with contextlib.suppress(FileExistsError):
                os.link(fresh, self.path)
        finally:
            fresh.unlink()


def _closed(text: str) -> bytes | None:
    """The bytes of a sealed text; None for any other."""
    if not text.startswith(SEALED):
        return None
    try:
        return base64.b64decode(text.removeprefix(SEALED), validate=True)
    except (binascii.Error, ValueError):
        return None


def _written(path: Path, key: bytes) -> Path:
    """A new file beside `path` with the whole key in it, on the disk."""
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(key)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        fresh.unlink()
        raise
    return fresh


def _stamp(path: Path) -> object:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def _read(path: Path) -> bytes:
    key = path.read_bytes()
    if len(key) not in {16, 24, 32}:
        raise InvalidError(
            f"{path} is no key: it has {len(key)} bytes.", hint="Put the platform's own key file back."
        )
    return key
