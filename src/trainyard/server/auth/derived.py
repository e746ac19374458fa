"""Secrets that the leader opens for launches: sealed with a key that was derived for them. The key's own file is sealing.py's."""

from __future__ import annotations

import secrets

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_NONCE = 12


def close_up(key: bytes, secret: str, owner: str) -> bytes:
    """Seal a secret for its owner: it cannot be opened as somebody else's."""
    nonce = secrets.token_bytes(_NONCE)
    return nonce + AESGCM(key).encrypt(nonce, secret.encode(), owner.encode())


def open_up(key: bytes, sealed: bytes, owner: str) -> str:
    """The secret; empty where the key is another one."""
    try:
        return AESGCM(key).decrypt(sealed[:_NONCE], sealed[_NONCE:], owner.encode()).decode()
    except InvalidTag:
        return ""
