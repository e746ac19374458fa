"""People for tests of the platform: an administrator, two workspaces, and members of each role."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trainyard.lib.clock import Clock
from trainyard.server.auth.actor import Actor
from trainyard.server.auth.authentication import make_token
from trainyard.server.people.first_start import FirstAdmin, ensure_admin
from trainyard.server.records.nodes import NodeRecord
from trainyard.server.records.users import UserRecord
from trainyard.server.records.workspaces import Role, WorkspaceRecord
from trainyard.server.services import Services
from trainyard.server.settings import ServerSettings
from trainyard.server.store.cluster import nodes
from trainyard.server.store.database import Database
from trainyard.server.store.people import tokens, users, workspaces
from trainyard.server.wakeups import Wakeups
from trainyard.spec.workload import WorkloadSpec

PASSWORD = "correct horse battery"
VISION, SPEECH = "ws-vision", "ws-speech"


@dataclass
class People:
    """Everybody, signed in."""

    services: Services
    db: Database
    clock: Clock
    first: FirstAdmin
    root: Actor  # administrator of the platform
    chief: Actor  # administrator of vision
    ann: Actor  # member of vision
    ben: Actor  # member of vision
    vic: Actor  # viewer of vision
    zoe: Actor  # member of speech
    tokens: dict[str, str]

    def job(self, **changes: object) -> WorkloadSpec:
        """A small job."""
        return WorkloadSpec(**{"name": "job", "command": "true", **changes})  # type: ignore[arg-type]  # test data

    async def again(self, actor: Actor) -> Actor:
        """The same person, as the server knows them now."""
        return await self.services.authentication.authenticate(self.tokens[actor.name])


async def assemble(db: Database, clock: Clock, folder: Path, **settings: object) -> People:
    """Make everybody."""
    first = ensure_admin(db, clock)
    assert first is not None
    now = clock.now().timestamp()
    services = Services(db, clock, Wakeups(), settings=ServerSettings(data=folder, **settings))  # type: ignore[arg-type]
    secrets = {"admin": first.token}

    def work(connection):
        for id_, name in ((VISION, "vision"), (SPEECH, "speech")):
            workspaces.insert_workspace(connection, WorkspaceRecord(id=id_, name=name, created_at=now))
        for name, place, role in (
            ("chief", VISION, Role.ADMIN),
            ("ann", VISION, Role.MEMBER),
            ("ben", VISION, Role.MEMBER),
            ("vic", VISION, Role.VIEWER),
            ("zoe", SPEECH, Role.MEMBER),
        ):
            users.insert_user(connection, UserRecord(id=f"u-{name}", name=name, created_at=now))
            workspaces.set_member(connection, place, f"u-{name}", role)
            made = make_token(f"u-{name}", now)
            tokens.insert_token(connection, made.record)
            secrets[name] = made.token
        nodes.insert_node(
            connection,
            NodeRecord(
                name="n1",
                created_at=now,
                cpu=4000,
                memory_mib=8192,
                devices={"V100": 4},
                state="ready",
                address={"backend": "ssh", "host": "10.0.0.7"},
                facts={"disk_free_mib": 5, "kernel": "6.1"},
            ),
        )

    await db.write(work)
    actors = {name: await services.authentication.authenticate(token) for name, token in secrets.items()}
    return People(services, db, clock, first, actors.pop("admin"), **actors, tokens=secrets)
