"""Tokens: what stands for a password in programs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import Path, Request
from starlette.responses import Response

from trainyard.client.schemas import NewToken, Token
from trainyard.server.api import views
from trainyard.server.api.http.app_state import parts_of
from trainyard.server.api.http.identity import AccountRoute, actor_of
from trainyard.server.api.http.responses import STRICT, answer, described, nothing, page, page_of
from trainyard.server.api.http.routing import new_router

router = new_router("/tokens", tags=["tokens"], kind=AccountRoute)
Id = Annotated[str, Path(max_length=64, description="The token's id; not the token itself.")]


@dataclass(frozen=True, slots=True)
class TokenCreate:
    """A new token of one's own. `scopes` are those of the reference; `*` is all that the user may."""

    __pydantic_config__ = STRICT
    name: str
    scopes: tuple[str, ...] = ("*",)
    expires_in_seconds: float | None = None


@router.get("", responses=described(page_of(Token)))
async def list_tokens(request: Request) -> Response:
    """List one's own tokens, without their secrets."""
    found = await parts_of(request).services.tokens.list(await actor_of(request))
    return answer(page([views.token(record) for record in found]))


@router.post("", status_code=201, responses=described(NewToken, 201))
async def create_token(request: Request, create: TokenCreate) -> Response:
    """Make a token. Its secret is in the answer, and nowhere else."""
    made = await parts_of(request).services.tokens.create(
        await actor_of(request),
        name=create.name,
        scopes=create.scopes,
        expires_in_seconds=create.expires_in_seconds,
    )
    return answer(views.new_token(made), 201)


@router.delete("/{token}", status_code=204, responses=described(status=204))
async def revoke_token(request: Request, token: Id) -> Response:
    """Revoke a token."""
    await parts_of(request).services.tokens.revoke(await actor_of(request), token)
    return nothing()
