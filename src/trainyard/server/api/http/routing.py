"""Where the routes of the API are and how they are made: a noun's modules when it is first asked for, a route's when it is.

Most servers are asked for a few nouns only, and what FastAPI makes of a route (how each parameter is checked, how each
answer is described) costs more time and memory than anything else at a start. What the routes do is in their modules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, make_dataclass
from functools import cache
from importlib import import_module
from typing import Any, ClassVar, cast

from fastapi import APIRouter
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute, Match, Router
from starlette.routing import Route as PlainRoute
from starlette.types import Receive, Scope, Send

PREFIX = "/api/v1"
# A module of the packages beside this one, and the first words of the paths it answers; in the order in which they are described.
MODULES: Mapping[str, tuple[str, ...]] = {
    "people.sessions": ("session",),
    "people.oidc_login": ("session",),
    "jobs.jobs": ("jobs",),
    "jobs.sweeps": ("sweeps",),
    "jobs.code_sources": ("code-sources",),
    "jobs.schedules": ("schedules",),
    "jobs.templates": ("templates",),
    "jobs.tasks": ("jobs",),
    "jobs.logs": ("jobs",),
    "jobs.events": ("jobs", "events"),
    "cluster.nodes": ("nodes",),
    "cluster.pools": ("pools",),
    "cluster.storages": ("storages",),
    "cluster.registries": ("registries",),
    "people.secrets": ("secrets",),
    "cluster.metrics": ("jobs", "nodes", "metrics"),
    "people.workspaces": ("workspaces",),
    "people.members": ("workspaces",),
    "people.groups": ("groups",),
    "cluster.quota": ("quota",),
    "cluster.usage": ("usage", "prices", "budgets"),
    "people.users": ("users",),
    "people.tokens": ("tokens",),
    "people.access_keys": ("access-keys",),
    "people.access_requests": ("requests",),
    "people.audit": ("audit",),
    "cluster.health": ("health", "version"),
    "jobs.terminal": ("jobs",),
}
NOUNS = frozenset(noun for nouns in MODULES.values() for noun in nouns)


@dataclass(frozen=True, slots=True)
class PageOf:
    """Stands for the shape of a page until the description needs it."""

    shape: type


@cache
def page_shape(shape: type) -> type:
    """A page of these as a class of its own."""
    many: Any = tuple[shape, ...]  # type: ignore[valid-type]  # made for OpenAPI alone
    made = make_dataclass(f"{shape.__name__}Page", [("items", many), ("next", str | None)], frozen=True)
    made.__doc__ = "Some things, and the cursor for those after them; null where these were the last."
    return made


class Route(PlainRoute):
    """A route that knows its path; the rest is made at the first request for it."""

    served_as: ClassVar[type[APIRoute]] = APIRoute

    def __init__(self, path: str, endpoint: Callable[..., Any], **given: Any) -> None:
        super().__init__(
            path, endpoint, methods=list(given["methods"]), include_in_schema=given["include_in_schema"]
        )
        self._given = given
        self._made: APIRoute | None = None

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request that matches."""
        if self._made is None:
            # NB: answers are not checked, so what they look like matters for the description alone.
            self._made = self.served_as(self.path, self.endpoint, **{**self._given, "responses": None})
        await self._made.handle(scope, receive, send)

    def described(self) -> APIRoute:
        """The same with the shapes of its answers, for OpenAPI."""
        responses = {
            status: {**said, "model": page_shape(said["model"].shape)}
            if isinstance(said.get("model"), PageOf)
            else said
            for status, said in self._given["responses"].items()
        }
        return APIRoute(self.path, self.endpoint, **{**self._given, "responses": responses})


def new_router(
    prefix: str = "", *, tags: list[str] | None = None, kind: type[Route] = Route, **given: Any
) -> APIRouter:
    """A router for the routes of one module, below the API's prefix."""
    return APIRouter(
        prefix=PREFIX + prefix,
        tags=cast("list[Any] | None", tags),
        route_class=cast("type[APIRoute]", kind),  # of which FastAPI asks only to be made and to be served
        generate_unique_id_function=lambda route: route.name,
        **given,
    )


class LazyRoutes(BaseRoute):
    """All routes, as one that sends a request to those of its noun."""

    def __init__(self) -> None:
        self._routers: dict[str, Router] = {}

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Whether there is such a noun."""
        if scope["type"] in {"http", "websocket"} and _noun_of(scope["path"]) in NOUNS:
            return Match.FULL, {}
        return Match.NONE, {}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request by the noun's routes."""
        noun = _noun_of(scope["path"])
        router = self._routers.get(noun)
        if router is None:
            router = self._routers[noun] = Router(list(routes_of(noun)), redirect_slashes=False)
        await router(scope, receive, send)


def routes_of(noun: str) -> Iterator[BaseRoute]:
    """The routes of one noun, in the order in which they are tried."""
    for module, nouns in MODULES.items():
        if noun in nouns:
            yield from (route for route in module_routes(module) if _noun_of(route.path) == noun)


def module_routes(module: str) -> list[Any]:
    """The routes of one module."""
    router: APIRouter = import_module(f"trainyard.server.api.{module}").router
    return list(router.routes)


def described_routes() -> list[BaseRoute]:
    """All routes, as OpenAPI needs them."""
    every = [route for module in MODULES for route in module_routes(module)]
    return [route.described() for route in every if isinstance(route, Route)]


def _noun_of(path: str) -> str:
    if not path.startswith(PREFIX + "/"):
        return ""
    return path[len(PREFIX) + 1 :].partition("/")[0]
