"""What jobs have used and cost, and machines of pools; prices and budgets."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Annotated, Literal

from fastapi import Path, Query, Request
from starlette.responses import Response

from trainyard.client.schemas import Budget, PoolUse, PriceList, Use, UseReport
from trainyard.server.api.http.app_state import parts_of
from trainyard.server.api.http.identity import actor_of
from trainyard.server.api.http.responses import STRICT, answer, described, nothing, page, page_of
from trainyard.server.api.http.routing import new_router
from trainyard.server.api.shape_view import when
from trainyard.server.usage.accounting import Prices
from trainyard.server.usage.costs import WARN_AT

router = new_router(tags=["usage"])

Month = Annotated[str, Query(max_length=7, description="Like 2026-11; this month unless it is given.")]
By = Annotated[
    list[Literal["user", "workspace", "job", "device", "day"]],
    Query(max_length=5, description="What the rows are sums over."),
]
Subject = Literal["workspace", "user"]
Name = Annotated[str, Path(max_length=64)]
CSV = "text/csv"


@dataclass(frozen=True, slots=True)
class PricesBody:
    """What an hour costs."""

    __pydantic_config__ = STRICT
    currency: str = "CNY"
    devices: Mapping[str, float] = field(default_factory=dict)
    cpu: float = 0.0
    memory: float = 0.0


@dataclass(frozen=True, slots=True)
class BudgetBody:
    """What may be spent in a month, and what happens when it is."""

    __pydantic_config__ = STRICT
    amount: float
    warn_at: tuple[float, ...] = WARN_AT
    action: Literal["warn", "hold", "stop"] = "warn"


@router.get("/usage", responses=described(UseReport))
async def get_usage(
    request: Request,
    month: Month = "",
    by: By = ["user"],  # noqa: B006  # FastAPI copies it
    workspace: Annotated[str, Query(max_length=64, description="Only of this workspace.")] = "",
    user: Annotated[str, Query(max_length=64, description="Only of this user.")] = "",
) -> Response:
    """What a month has cost, dearest first."""
    found = await parts_of(request).services.usage.report(
        await actor_of(request), month=month, by=by, workspace=workspace, user=user
    )
    return answer({**asdict(found), "booked_at": when(found.booked_at)})


@router.get("/usage/report.csv", responses=described(text="The month.", media=CSV))
async def get_usage_report(request: Request, month: Month = "") -> Response:
    """A month as a table for a spreadsheet: a row for each job, day and type of device."""
    found = await parts_of(request).services.usage.report(
        await actor_of(request), month=month, by=("job", "day", "device")
    )
    names = [one.name for one in fields(Use)]
    rows = sorted(found.rows, key=lambda one: (one.day, one.job, one.device))
    table = [[*(getattr(row, name) for name in names), found.currency] for row in rows]
    return _csv(f"usage-{found.month}.csv", [[*names, "currency"], *table])


@router.get("/usage/machines.csv", responses=described(text="The month.", media=CSV))
async def get_machine_report(request: Request, month: Month = "") -> Response:
    """What machines of pools have cost in a month, as a table for a spreadsheet: a row for each machine and day."""
    shown, found = await parts_of(request).services.usage.machines(await actor_of(request), month=month)
    names = ["pool", "machine", "day", *(one.name for one in fields(PoolUse))]
    names = list(dict.fromkeys(names))
    return _csv(f"machines-{shown}.csv", [names, *([getattr(row, name) for name in names] for row in found)])


def _csv(name: str, rows: Iterable[Sequence[object]]) -> Response:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([[_cell(value) for value in row] for row in rows])
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return Response(text.getvalue(), media_type=CSV, headers=headers)


def _cell(value: object) -> object:
    """A text that a spreadsheet would take for a formula stays a text; a small number is written without an exponent."""
    if isinstance(value, float):
        return f"{value:.6f}"
    return f"'{value}" if isinstance(value, str) and value[:1] in {"=", "+", "-", "@", "\t", "\r"} else value


@router.get("/prices", responses=described(PriceList))
async def get_prices(request: Request) -> Response:
    """What an hour costs."""
    return answer(asdict(await parts_of(request).services.usage.prices(await actor_of(request))))


@router.put("/prices", responses=described(PriceList))
async def set_prices(request: Request, body: PricesBody) -> Response:
    """Set what an hour costs."""
    prices = Prices(currency=body.currency, devices=dict(body.devices), cpu=body.cpu, memory=body.memory)
    return answer(asdict(await parts_of(request).services.usage.set_prices(await actor_of(request), prices)))


@router.get("/budgets", responses=described(page_of(Budget)))
async def list_budgets(request: Request) -> Response:
    """List the budgets of the caller and of their workspaces."""
    found = await parts_of(request).services.usage.budgets(await actor_of(request))
    return answer(page([asdict(one) for one in found]))


@router.put("/budgets/{subject}/{name}", status_code=204, responses=described(status=204))
async def set_budget(request: Request, subject: Subject, name: Name, body: BudgetBody) -> Response:
    """Give a workspace or a user a budget."""
    await parts_of(request).services.usage.set_budget(
        await actor_of(request), subject, name, amount=body.amount, warn_at=body.warn_at, action=body.action
    )
    return nothing()


@router.delete("/budgets/{subject}/{name}", status_code=204, responses=described(status=204))
async def remove_budget(request: Request, subject: Subject, name: Name) -> Response:
    """Take a budget away."""
    await parts_of(request).services.usage.remove_budget(await actor_of(request), subject, name)
    return nothing()
