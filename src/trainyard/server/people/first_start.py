"""What a first start makes: an administrator with a one-time password, and a workspace to submit to."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection

from trainyard.lib.clock import Clock
from trainyard.lib.errors import ConflictError
from trainyard.lib.ids import new_id
from trainyard.server.auth.authentication import make_token
from trainyard.server.auth.passwords import hash_now, new_password
from trainyard.server.records.audit import AuditRecord
from trainyard.server.records.users import UserRecord
from trainyard.server.records.workspaces import Role, WorkspaceRecord
from trainyard.server.store import audit
from trainyard.server.store.database import Database
from trainyard.server.store.people import tokens, users, workspaces

ADMIN = "admin"
WORKSPACE = "default"


@dataclass(frozen=True, slots=True)
class FirstAdmin:
    """What is shown once, at the first start."""

    name: str
    password: str
    token: str

    def __repr__(self) -> str:
        """Without the secrets."""
        return f"FirstAdmin(name={self.name!r})"


def ensure_admin(db: Database, clock: Clock) -> FirstAdmin | None:
    """Make the first administrator where there is no user at all; None where there is one."""
    if db.read_now(users.count):
        return None
    password = new_password()
    hashed = hash_now(password)
    now = clock.now().timestamp()

    def work(connection: Connection) -> FirstAdmin | None:
        if users.count(connection):
            return None
        user = UserRecord(
            id=new_id("u"),
            name=ADMIN,
            display_name="Administrator",
            created_at=now,
            password_hash=hashed,
            must_change_password=True,
            is_admin=True,
        )
        users.insert_user(connection, user)
        place = WorkspaceRecord(
            id=new_id("ws"), name=WORKSPACE, created_at=now, description="The first workspace."
        )
        workspaces.insert_workspace(connection, place)
        workspaces.set_member(connection, place.id, user.id, Role.ADMIN)
        made = make_token(user.id, now, name="first start")
        tokens.insert_token(connection, made.record)
        audit.append(
            connection, AuditRecord(time=now, actor="", action="platform.first_start", subject=user.name)
        )
        return FirstAdmin(ADMIN, password, made.token)

    try:
        return db.write_now(work)
    except ConflictError:  # another server was quicker by less than a transaction
        return None
