"""What all routes share: the services, the logs, the engine, the caches. Put together by application.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from starlette.requests import HTTPConnection

from trainyard.engines.api import Engine
from trainyard.server.api.http.concurrency_limit import ConcurrencyLimit
from trainyard.server.api.http.identity import Identities
from trainyard.server.api.http.request_bodies import RequestBodies
from trainyard.server.api.http.response_cache import Answers, Changes
from trainyard.server.disk_space import DiskSpace
from trainyard.server.jobs.exec_sessions import Terminals
from trainyard.server.logs.log_files import LogStore
from trainyard.server.services import Services
from trainyard.server.settings import ServerSettings


@dataclass(frozen=True, slots=True)
class Parts:
    """One server's parts, as the API needs them."""

    services: Services
    logs: LogStore
    engine: Callable[[], Engine | None]  # None: another server leads
    terminals: Terminals
    settings: ServerSettings
    changes: Changes
    answers: Answers
    identities: Identities
    bodies: RequestBodies
    disk: DiskSpace
    searches: ConcurrencyLimit


def parts_of(connection: HTTPConnection) -> Parts:
    """The parts behind a request."""
    found: Parts = connection.app.state.parts
    return found
