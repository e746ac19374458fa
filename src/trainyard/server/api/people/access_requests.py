"""Requests: wishes for an account, membership or quota, that a person decides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from fastapi import Path, Query
from fastapi import Request as HttpRequest
from starlette.responses import Response

from trainyard.client.schemas import Request
from trainyard.server.api import views
from trainyard.server.api.http.app_state import parts_of
from trainyard.server.api.http.identity import AccountRoute, actor_of, address_of
from trainyard.server.api.http.responses import LARGEST_PAGE, LIMIT, STRICT, answer, described, page, page_of
from trainyard.server.api.http.routing import new_router
from trainyard.server.records.access_requests import RequestState
from trainyard.server.records.workspaces import Role

router = new_router("/requests", tags=["requests"], kind=AccountRoute)
Id = Annotated[str, Path(max_length=64, description="The request's id.")]


@dataclass(frozen=True, slots=True)
class MembershipRequest:
    """Somebody wants to join a workspace."""

    __pydantic_config__ = STRICT
    workspace: str
    role: Role = Role.MEMBER
    reason: str = ""


@dataclass(frozen=True, slots=True)
class QuotaRequest:
    """A team wants another quota."""

    __pydantic_config__ = STRICT
    workspace: str
    quota: Mapping[str, Any]
    reason: str = ""


@dataclass(frozen=True, slots=True)
class AccountRequest:
    """Somebody without an account asks for one, with the password to have then."""

    __pydantic_config__ = STRICT
    name: str
    password: str = ""
    email: str = ""
    display_name: str = ""
    reason: str = ""

    def __repr__(self) -> str:
        """Without the password."""
        return f"AccountRequest({self.name!r})"


@dataclass(frozen=True, slots=True)
class Decision:
    """Yes or no, and what to tell who asked."""

    __pydantic_config__ = STRICT
    state: Literal["approved", "refused"]
    answer: str = ""


@router.get("", responses=described(page_of(Request)))
async def list_requests(
    request: HttpRequest,
    state: Annotated[RequestState | None, Query()] = None,
    cursor: Annotated[str, Query(max_length=64)] = "",
    limit: Annotated[int, Query(ge=1, le=LARGEST_PAGE)] = LIMIT,
) -> Response:
    """List one's own requests, and those that one may decide, newest first."""
    found = await parts_of(request).services.requests.list(
        await actor_of(request), state=state, cursor=cursor, limit=limit
    )
    return answer(page([views.request(record) for record in found.items], found.cursor or None))


@router.post("/accounts", status_code=201, responses=described(Request, 201), openapi_extra={"security": []})
async def request_account(request: HttpRequest, create: AccountRequest) -> Response:
    """Ask for an account. Nobody has to be signed in for that; an administrator decides."""
    record = await parts_of(request).services.requests.ask_for_account(
        create.name,
        password=create.password,
        email=create.email,
        display_name=create.display_name,
        reason=create.reason,
        address=address_of(request),
    )
    return answer(views.request(record), 201)


@router.post("/memberships", status_code=201, responses=described(Request, 201))
async def request_membership(request: HttpRequest, create: MembershipRequest) -> Response:
    """Ask to join a workspace; its administrators decide."""
    record = await parts_of(request).services.requests.ask_for_membership(
        await actor_of(request), create.workspace, role=create.role, reason=create.reason
    )
    return answer(views.request(record), 201, version=record.version)


@router.post("/quotas", status_code=201, responses=described(Request, 201))
async def request_quota(request: HttpRequest, create: QuotaRequest) -> Response:
    """Ask for another quota of a workspace; an administrator of the platform decides."""
    record = await parts_of(request).services.requests.ask_for_quota(
        await actor_of(request), create.workspace, create.quota, reason=create.reason
    )
    return answer(views.request(record), 201, version=record.version)


@router.get("/{request_id}", responses=described(Request))
async def get_request(request: HttpRequest, request_id: Id) -> Response:
    """Show a request: one's own, or one that one may decide."""
    record = await parts_of(request).services.requests.get(await actor_of(request), request_id)
    return answer(views.request(record), version=record.version)


@router.put("/{request_id}/decision", responses=described(Request))
async def decide_request(request: HttpRequest, request_id: Id, decision: Decision) -> Response:
    """Approve or refuse."""
    record = await parts_of(request).services.requests.decide(
        await actor_of(request), request_id, approve=decision.state == "approved", answer=decision.answer
    )
    return answer(views.request(record), version=record.version)
