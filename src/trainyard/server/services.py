"""All services of one server, put together."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from trainyard.lib.clock import Clock
from trainyard.lib.errors import UnsupportedError
from trainyard.server.auth.authentication import Authentication
from trainyard.server.auth.nonces import Nonces
from trainyard.server.auth.passwords import Passwords
from trainyard.server.cluster.nodes import Nodes
from trainyard.server.cluster.pools import Pools
from trainyard.server.cluster.quota import Quotas
from trainyard.server.cluster.storages import Registries, Storages
from trainyard.server.events import Audit, Events
from trainyard.server.jobs.code_sources import CodeSources
from trainyard.server.jobs.schedules import Schedules
from trainyard.server.jobs.service import Jobs
from trainyard.server.jobs.sweeps import Sweeps
from trainyard.server.jobs.templates import Templates
from trainyard.server.people.access_keys import Keys
from trainyard.server.people.access_requests import Requests
from trainyard.server.people.name_lookup import Names
from trainyard.server.people.secrets import Secrets
from trainyard.server.people.users import Tokens, Users
from trainyard.server.people.workspaces import Workspaces
from trainyard.server.secrets.sealing import Seal
from trainyard.server.service_context import Context
from trainyard.server.settings import ServerSettings
from trainyard.server.store.database import Database
from trainyard.server.usage.costs import Usage
from trainyard.server.usage.metrics import Metrics
from trainyard.server.wakeups import Wakeups

if TYPE_CHECKING:
    from trainyard.server.auth.oidc_login import OidcLogin


class Services:
    """Every verb that people have, by noun."""

    def __init__(self, db: Database, clock: Clock, wakeups: Wakeups, *, settings: ServerSettings) -> None:
        self.db = db
        self.clock = clock
        self.wakeups = wakeups
        self.settings = settings
        self.seal = Seal(settings.sealing_key)
        context = Context(db, clock, wakeups, self.seal)
        self.passwords = Passwords()
        self.authentication = Authentication(
            context,
            self.passwords,
            session_seconds=settings.session_hours * 3600.0,
            attempts=settings.sign_in_attempts,
            requests=settings.requests_per_minute,
        )
        self.keys = Keys(context, self.authentication, self.seal)
        self.nonces = Nonces(db)
        self.jobs = Jobs(context)
        self.metrics = Metrics(context, self.jobs.get, sample_seconds=settings.sample_seconds)
        self.context = context
        self.sweeps = Sweeps(context, self.jobs)
        self.schedules = Schedules(context)
        self.templates = Templates(context, self.jobs)
        self.codes = CodeSources(context, self.seal)
        self.secrets = Secrets(context, self.seal)
        self.nodes = Nodes(context)
        self.pools = Pools(context)
        self.storages = Storages(context)
        self.registries = Registries(context, self.seal)
        self.workspaces = Workspaces(context, self.authentication)
        self.users = Users(context, self.passwords, self.authentication)
        self.tokens = Tokens(context, self.authentication)
        self.requests = Requests(
            context, self.passwords, self.authentication, self_registration=settings.self_registration
        )
        self.quota = Quotas(context)
        self.usage = Usage(context)
        self.events = Events(context)
        self.audit = Audit(context)
        self.names = Names(context)
        self.oidc_login = _oidc_login(context, self.authentication, settings)

    def close(self) -> None:
        """Let go of threads; the database is its owner's to close."""
        self.jobs.close()
        self.passwords.close()


def _oidc_login(
    context: Context, authentication: Authentication, settings: ServerSettings
) -> OidcLogin | None:
    """Signing in through an identity provider, where one is set; what it needs is imported only then."""
    if not settings.oidc_issuer:
        return None
    try:
        oidc = import_module("trainyard.server.auth.oidc")
        oidc_login = import_module("trainyard.server.auth.oidc_login")
    except ModuleNotFoundError as error:
        raise UnsupportedError(
            f"Signing in by {settings.oidc_issuer} needs the package {error.name}.",
            hint="Install trainyard[oidc].",
        ) from error
    provider = oidc.Provider(
        settings.oidc_issuer, settings.oidc_client_id, settings.oidc_client_secret, context.clock
    )
    made: OidcLogin = oidc_login.OidcLogin(
        context,
        authentication,
        provider,
        name_claim=settings.oidc_name_claim,
        creates_users=settings.oidc_creates_users,
    )
    return made
