"""The answer that is kept for a request that may be repeated."""

from __future__ import annotations

from dataclasses import dataclass

from trainyard.lib.errors import ConflictError


class KeyTakenError(ConflictError):
    """The same key was used this moment by another request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerRecord:
    """One row of idempotency."""

    user_id: str
    key: str
    digest: str
    status: int
    body: bytes
    created_at: float
