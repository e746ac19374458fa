"""The tree of quotas, with what is used."""

from __future__ import annotations

from fastapi import Request
from starlette.responses import Response

from trainyard.client.schemas import Quota
from trainyard.server.api import views
from trainyard.server.api.http.app_state import parts_of
from trainyard.server.api.http.identity import actor_of
from trainyard.server.api.http.responses import answer, described, page, page_of
from trainyard.server.api.http.routing import new_router

router = new_router("/quota", tags=["quota"])


@router.get("", responses=described(page_of(Quota)))
async def list_quotas(request: Request) -> Response:
    """List the quotas of the caller's workspaces and of the groups above them, parents first."""
    found = await parts_of(request).services.quota.tree(await actor_of(request))
    return answer(page([views.quota(each) for each in found]))
