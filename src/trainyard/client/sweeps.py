"""Client methods for sweeps: many jobs from one document."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from urllib.parse import quote

from trainyard.client.connection import Connection
from trainyard.client.encode import encode
from trainyard.client.paging import fetch_all
from trainyard.client.schemas import Sweep, SweepDetail
from trainyard.lib.ids import new_id
from trainyard.spec.workload import Desired, WorkloadSpec


class Sweeps:
    """`client.sweeps`: submit, look, stop."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def submit(
        self,
        spec: WorkloadSpec,
        sweep: Mapping[str, Sequence[object]],
        *,
        key: str = "",
        hold: bool = False,
    ) -> SweepDetail:
        """Submit one job for every combination of values, all or none."""
        return await self._connection.send(
            "POST",
            SweepDetail,
            "/sweeps",
            {"job": encode(spec), "sweep": {name: list(values) for name, values in sweep.items()}},
            headers={"Idempotency-Key": key or new_id("k")},
            query={"hold": "true"} if hold else None,
        )

    def list(self, *, user: str = "") -> AsyncIterator[Sweep]:
        """The newest sweeps; `user` "me" for one's own."""
        return fetch_all(self._connection, Sweep, "/sweeps", {"user": user})

    async def get(self, sweep: str) -> SweepDetail:
        """One sweep with its jobs."""
        return await self._connection.get(SweepDetail, f"/sweeps/{quote(sweep, safe='')}")

    async def set_desired(self, sweep: str, desired: Desired) -> SweepDetail:
        """Stop, pause or resume all jobs of it that have not ended."""
        path = f"/sweeps/{quote(sweep, safe='')}/desired"
        return await self._connection.send("PUT", SweepDetail, path, {"desired": str(desired)})
