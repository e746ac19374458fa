"""Client methods for the costs of jobs, prices and budgets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import quote

from trainyard.client.connection import Connection
from trainyard.client.paging import fetch_all
from trainyard.client.schemas import Budget, PriceList, UseReport


class Usage:
    """`client.usage`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def report(
        self, *, month: str = "", by: Sequence[str] = ("user",), workspace: str = "", user: str = ""
    ) -> UseReport:
        """What a month has cost."""
        query = {"month": month, "by": tuple(by), "workspace": workspace, "user": user}
        return await self._connection.get(UseReport, "/usage", query=query)

    async def csv(self, *, month: str = "", machines: bool = False) -> str:
        """A month as CSV: a row for each job, day and type of device, or for each machine of a pool and day."""
        path = "/usage/machines.csv" if machines else "/usage/report.csv"
        answer = await self._connection.request("GET", path, query={"month": month})
        return answer.content.decode()

    async def prices(self) -> PriceList:
        """What an hour costs."""
        return await self._connection.get(PriceList, "/prices")

    async def set_prices(
        self, *, currency: str, devices: Mapping[str, float], cpu: float, memory: float
    ) -> PriceList:
        """Set what an hour costs."""
        body = {"currency": currency, "devices": dict(devices), "cpu": cpu, "memory": memory}
        return await self._connection.send("PUT", PriceList, "/prices", body)

    async def budgets(self) -> tuple[Budget, ...]:
        """All that one may see."""
        return tuple([one async for one in fetch_all(self._connection, Budget, "/budgets", {})])

    async def set_budget(
        self, subject: str, name: str, *, amount: float, warn_at: Sequence[float], action: str
    ) -> None:
        """Give a workspace or a user a budget."""
        body = {"amount": amount, "warn_at": list(warn_at), "action": action}
        await self._connection.request("PUT", f"/budgets/{subject}/{quote(name, safe='')}", body=body)

    async def remove_budget(self, subject: str, name: str) -> None:
        """Take a budget away."""
        await self._connection.request("DELETE", f"/budgets/{subject}/{quote(name, safe='')}")
