"""Keys of ed25519 made from a secret: whoever has the secret makes the same again, so nothing has to be kept."""

from __future__ import annotations

import base64
import hashlib
import hmac
import struct
from functools import lru_cache

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

_KIND = b"ssh-ed25519"
_BLOCK = 8
_WIDTH = 70


def derive(secret: bytes, label: str) -> bytes:
    """32 bytes for one purpose, which say nothing of the secret nor of those for another one."""
    return hmac.new(secret, label.encode(), hashlib.sha256).digest()


@lru_cache(1024)
def key_pair(seed: bytes, comment: str) -> tuple[str, str]:
    """The private key as OpenSSH has it in a file, and the public one as a line without its end."""
    public = Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw()
    shown = _text(_KIND) + _text(public)
    # The check is the same number twice; OpenSSH takes any, and ours has to come out the same again.
    check = hashlib.sha256(seed).digest()[:4] * 2
    inner = check + shown + _text(seed + public) + _text(comment.encode())
    inner += bytes(range(1, 1 + -len(inner) % _BLOCK))
    outer = b"openssh-key-v1\0" + _text(b"none") * 2 + _text(b"") + struct.pack(">I", 1)
    body = base64.b64encode(outer + _text(shown) + _text(inner)).decode()
    lines = [body[start : start + _WIDTH] for start in range(0, len(body), _WIDTH)]
    name = "OPENSSH PRIVATE KEY"
    private = "\n".join([f"-----BEGIN {name}-----", *lines, f"-----END {name}-----", ""])
    return private, f"{_KIND.decode()} {base64.b64encode(shown).decode()} {comment}"


def _text(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data
