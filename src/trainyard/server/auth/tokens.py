"""Tokens: 256 random bits with a prefix that scanners know. Only the SHA-256 of one is ever stored."""

from __future__ import annotations

import hashlib
import re
import secrets

PREFIX = "ty_"
_SHAPE = re.compile(r"ty_[A-Za-z0-9_-]{43}\Z")


def new_token() -> str:
    """A secret that is shown once."""
    return PREFIX + secrets.token_urlsafe(32)


def is_token(text: str) -> bool:
    """Whether it could be one of ours; all others are not even looked up."""
    return _SHAPE.match(text) is not None


def digest_of(token: str) -> str:
    """What is stored, and looked up: finding it by its hash takes the same time whatever the token's first letters are."""
    return hashlib.sha256(token.encode()).hexdigest()
