"""What things are called, by id, for those who render records. Names never change, so they are kept."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from trainyard.server.service_context import Context
from trainyard.server.store.people import users, workspaces

KEPT = 50_000


class Names:
    """`services.names`. No permission is asked: who may see a record may know what it names."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._users: dict[str, str] = {}
        self._workspaces: dict[str, str] = {}

    async def users(self, ids: Iterable[str]) -> Mapping[str, str]:
        """Names of users by id; one who is gone is left out."""
        missing = {one for one in ids if one not in self._users}
        if missing:
            if len(self._users) > KEPT:
                self._users.clear()
            self._users.update(await self._context.db.read(lambda c: users.names(c, missing)))
        return self._users

    async def workspaces(self, ids: Iterable[str] = ()) -> Mapping[str, str]:
        """Names of workspaces by id."""
        if not self._workspaces or any(one not in self._workspaces for one in ids):
            self._workspaces = await self._context.db.read(workspaces.names)
        return self._workspaces
