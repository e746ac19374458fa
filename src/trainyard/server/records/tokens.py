"""A token as it is stored."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRecord:
    """One row of tokens."""

    id: str
    user_id: str
    digest: str
    scopes: tuple[str, ...]
    created_at: float
    name: str = ""
    kind: str = "token"
    sealed: bytes | None = field(default=None, repr=False)  # the secret of an access key
    expires_at: float | None = None
    last_used_at: float | None = None
    revoked_at: float | None = None

    def is_valid(self, now: float) -> bool:
        """Whether it opens anything now."""
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)
