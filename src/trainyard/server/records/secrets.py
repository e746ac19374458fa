"""A secret as it is stored: sealed, in the place of its user or workspace."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretRecord:
    """One row of secrets."""

    id: str
    name: str
    user_id: str  # who made it; of one without a workspace, whose it is
    sealed: bytes = field(repr=False)
    created_at: float
    changed_at: float
    workspace_id: str | None = None  # None: the user's own
    last_used_at: float | None = None

    @property
    def place(self) -> str:
        """In what its name is the only one."""
        return place_of(self.user_id, self.workspace_id)


def place_of(user_id: str, workspace_id: str | None) -> str:
    """The place of a user's own secrets, or of a workspace's."""
    return f"user {user_id}" if workspace_id is None else f"workspace {workspace_id}"
