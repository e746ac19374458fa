"""Access keys: what programs that sign as Alibaba's clients do have instead of a token."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import Request
from starlette.responses import Response

from trainyard.server.api.http.app_state import parts_of
from trainyard.server.api.http.identity import AccountRoute, actor_of
from trainyard.server.api.http.responses import STRICT, answer, described
from trainyard.server.api.http.routing import new_router

router = new_router("/access-keys", tags=["tokens"], kind=AccountRoute)


@dataclass(frozen=True, slots=True)
class AccessKeyCreate:
    """A new access key of one's own."""

    __pydantic_config__ = STRICT
    name: str = ""


@dataclass(frozen=True, slots=True)
class NewAccessKey:
    """An access key with its secret, which is shown once."""

    id: str
    secret: str


@router.post("", status_code=201, responses=described(NewAccessKey, 201))
async def create_access_key(request: Request, create: AccessKeyCreate) -> Response:
    """Make an access key, for clients that sign their requests. It is listed and revoked with the tokens."""
    made = await parts_of(request).services.keys.create(await actor_of(request), name=create.name)
    return answer({"id": made.id, "secret": made.secret}, 201)
