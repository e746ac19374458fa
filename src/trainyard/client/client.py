"""The class Client, with an attribute for each part of the API. connection.py sends the requests."""

from __future__ import annotations

import ssl
from types import TracebackType
from typing import Self

import httpx2

from trainyard.client.accounts import Groups, Requests, Session, Tokens, Users
from trainyard.client.cluster import Audit, Nodes, Quotas, Workspaces
from trainyard.client.connection import TIMEOUT_SECONDS, Connection
from trainyard.client.job_sources import CodeSources, Schedules, Templates
from trainyard.client.jobs import Events, Jobs
from trainyard.client.pools import Pools
from trainyard.client.schemas import Health, Version
from trainyard.client.secrets import Secrets
from trainyard.client.storages import Registries, Storages
from trainyard.client.sweeps import Sweeps
from trainyard.client.usage import Usage


class Client:
    """A server, as somebody with a token sees it. Use it with `async with`, or close it.

    Reads and wishes are repeated where the server does not answer; submitting a job carries a key, so that repeating
    it submits it once. Errors are those of `trainyard.lib.errors`. Who is not `patient` is told at once that there is no
    server; once it has answered, it is waited for all the same when it is started again.
    """

    def __init__(
        self,
        url: str,
        token: str = "",
        *,
        timeout: float = TIMEOUT_SECONDS,
        transport: httpx2.AsyncBaseTransport | None = None,
        verify: ssl.SSLContext | bool = True,
        patient: bool = True,
    ) -> None:
        self.connection = Connection(
            url, token, timeout=timeout, transport=transport, verify=verify, patient=patient
        )
        self.jobs = Jobs(self.connection)
        self.sweeps = Sweeps(self.connection)
        self.codes = CodeSources(self.connection)
        self.schedules = Schedules(self.connection)
        self.templates = Templates(self.connection)
        self.events = Events(self.connection)
        self.secrets = Secrets(self.connection)
        self.nodes = Nodes(self.connection)
        self.pools = Pools(self.connection)
        self.storages = Storages(self.connection)
        self.registries = Registries(self.connection)
        self.workspaces = Workspaces(self.connection)
        self.quotas = Quotas(self.connection)
        self.usage = Usage(self.connection)
        self.audit = Audit(self.connection)
        self.session = Session(self.connection)
        self.users = Users(self.connection)
        self.groups = Groups(self.connection)
        self.tokens = Tokens(self.connection)
        self.requests = Requests(self.connection)

    async def health(self) -> Health:
        """Whether the server can serve."""
        return await self.connection.get(Health, "/health")

    async def version(self) -> Version:
        """Which server answers."""
        return await self.connection.get(Version, "/version")

    async def aclose(self) -> None:
        """Close its connections."""
        await self.connection.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()
