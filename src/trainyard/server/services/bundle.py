"""All services of one server, put together."""

from __future__ import annotations

from trainyard.lib.clock import Clock
from trainyard.server.auth.passwords import Passwords
from trainyard.server.db import Database
from trainyard.server.services.context import Context
from trainyard.server.services.hints import Hints
from trainyard.server.services.jobs import Jobs
from trainyard.server.services.signing import Signing
from trainyard.server.settings import ServerSettings


class Services:
    """Every verb that people have, by noun."""

    def __init__(self, db: Database, clock: Clock, hints: Hints, *, settings: ServerSettings) -> None:
        self.db = db
        self.clock = clock
        self.hints = hints
        self.settings = settings
        context = Context(db, clock, hints)
        self.passwords = Passwords()
        self.signing = Signing(
            context,
            self.passwords,
            session_seconds=settings.session_hours * 3600.0,
            attempts=settings.sign_in_attempts,
            requests=settings.requests_per_minute,
        )
        self.jobs = Jobs(context)

    def close(self) -> None:
        """Let go of threads; the database is its owner's to close."""
        self.passwords.close()
