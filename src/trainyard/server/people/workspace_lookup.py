"""Finding a workspace for somebody: by id or name, and only where they may know of it."""

from __future__ import annotations

from sqlalchemy import Connection

from trainyard.lib.errors import ConflictError, InvalidError, NotFoundError
from trainyard.messages.catalogue import failure
from trainyard.server.auth.actor import Actor
from trainyard.server.records.workspaces import WorkspaceRecord
from trainyard.server.store.people import workspaces


def find_workspace(connection: Connection, actor: Actor, text: str) -> WorkspaceRecord:
    """The workspace with this id or name. One that the actor does not belong to is as if there were none."""
    record = workspaces.find(connection, text) or workspaces.find_by_name(connection, text)
    if record is None or not actor.can_see(record.id):
        raise failure(NotFoundError, "no_workspace", workspace=text)
    return record


def choose_workspace(connection: Connection, actor: Actor, text: str) -> WorkspaceRecord:
    """The workspace that a new job goes to: the one that is named, or else the user's only one."""
    if text:
        record = find_workspace(connection, actor, text)
        if record.archived_at is not None:
            raise ConflictError(
                f"The workspace {record.name!r} is archived.", hint="Submit to another workspace."
            )
        return record
    if len(actor.roles) == 1:  # nearly everybody, nearly always
        only = workspaces.find(connection, next(iter(actor.roles)))
        own = [only] if only is not None and only.archived_at is None else []
    else:
        own = workspaces.list_workspaces(connection, ids=actor.roles.keys())
    if not own and actor.is_admin:
        own = workspaces.list_workspaces(connection)
    if len(own) == 1:
        return own[0]
    if not own:
        raise NotFoundError(
            "You belong to no workspace.", hint="Ask for membership with `trainyard workspaces join NAME`."
        )
    names = ", ".join(record.name for record in own[:10])
    raise InvalidError(f"You belong to several workspaces: {names}.", hint="Name one with `workspace`.")
