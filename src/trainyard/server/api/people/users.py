"""Accounts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import Path, Query, Request
from starlette.responses import Response

from trainyard.client.schemas import NewUser, User
from trainyard.server.api import views
from trainyard.server.api.http.app_state import parts_of
from trainyard.server.api.http.identity import AccountRoute, actor_of
from trainyard.server.api.http.responses import (
    LARGEST_PAGE,
    LIMIT,
    STRICT,
    answer,
    described,
    if_match,
    page,
    page_of,
)
from trainyard.server.api.http.routing import new_router

router = new_router("/users", tags=["users"], kind=AccountRoute)
Name = Annotated[str, Path(max_length=64, description="The user's name.")]


@dataclass(frozen=True, slots=True)
class UserCreate:
    """A new account. Without a password, the answer has a one-time one."""

    __pydantic_config__ = STRICT
    name: str
    display_name: str = ""
    email: str = ""
    password: str = ""
    is_admin: bool = False

    def __repr__(self) -> str:
        """Without the password."""
        return f"UserCreate({self.name!r})"


@dataclass(frozen=True, slots=True)
class UserChange:
    """What to change; what is left out stays."""

    __pydantic_config__ = STRICT
    display_name: str | None = None
    email: str | None = None
    is_admin: bool | None = None
    is_active: bool | None = None


@dataclass(frozen=True, slots=True)
class IdentityBody:
    """Who it is at the identity provider: its address, a blank, and the subject; null for nobody."""

    __pydantic_config__ = STRICT
    subject: str | None


@router.get("", responses=described(page_of(User)))
async def list_users(
    request: Request,
    cursor: Annotated[str, Query(max_length=64)] = "",
    limit: Annotated[int, Query(ge=1, le=LARGEST_PAGE)] = LIMIT,
) -> Response:
    """List all accounts, by name."""
    found = await parts_of(request).services.users.list(await actor_of(request), cursor=cursor, limit=limit)
    return answer(page([views.user(record) for record in found.items], found.cursor or None))


@router.post("", status_code=201, responses=described(NewUser, 201))
async def create_user(request: Request, create: UserCreate) -> Response:
    """Make an account. A one-time password is in the answer, and nowhere else."""
    made = await parts_of(request).services.users.create(
        await actor_of(request),
        create.name,
        display_name=create.display_name,
        email=create.email,
        password=create.password,
        is_admin=create.is_admin,
    )
    return answer({"user": views.user(made.user), "password": made.password}, 201)


@router.get("/{user}", responses=described(User))
async def get_user(request: Request, user: Name) -> Response:
    """Show an account: one's own, or any for administrators."""
    record = await parts_of(request).services.users.get(await actor_of(request), user)
    return answer(views.user(record), version=record.version)


@router.patch("/{user}", responses=described(User))
async def change_user(request: Request, user: Name, change: UserChange) -> Response:
    """Change an account; closing it ends all its sessions and tokens."""
    changes = {key: value for key in UserChange.__slots__ if (value := getattr(change, key)) is not None}
    record = await parts_of(request).services.users.change(
        await actor_of(request), user, version=if_match(request), **changes
    )
    return answer(views.user(record), version=record.version)


@router.put("/{user}/identity", responses=described(User))
async def connect_user(request: Request, user: Name, body: IdentityBody) -> Response:
    """Let somebody of the identity provider sign in as this account, or nobody any more."""
    record = await parts_of(request).services.users.connect(await actor_of(request), user, body.subject)
    return answer(views.user(record), version=record.version)


@router.post("/{user}/password", status_code=201, responses=described(NewUser, 201))
async def reset_password(request: Request, user: Name) -> Response:
    """Give somebody a new one-time password, and end their sessions."""
    made = await parts_of(request).services.users.reset_password(await actor_of(request), user)
    return answer({"user": views.user(made.user), "password": made.password}, 201)
