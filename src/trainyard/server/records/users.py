"""A user as it is stored."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class UserRecord:
    """One row of users."""

    id: str
    name: str
    created_at: float
    display_name: str = ""
    email: str = ""
    password_hash: str = ""
    must_change_password: bool = False
    oidc_subject: str | None = None
    is_admin: bool = False
    is_active: bool = True
    version: int = 1

    def __repr__(self) -> str:
        """Without the hash: records end up in log lines."""
        return f"UserRecord(id={self.id!r}, name={self.name!r}, version={self.version})"
