"""`quota`: the quotas of teams and their use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import click

from trainyard.cli.invocation import current
from trainyard.cli.platform.platform_client import run
from trainyard.cli.terminal.table import Column, Table
from trainyard.cli.verb import PlainVerb

if TYPE_CHECKING:
    from trainyard.client import Client
    from trainyard.client.schemas import Quota


@click.command("quota", cls=PlainVerb)
def quota_command() -> int:
    """Show what every workspace is guaranteed and uses, with the groups above it."""
    invocation = current()

    async def work(client: Client) -> list[Quota]:
        return [quota async for quota in client.quotas.list()]

    found = run(work)
    if invocation.json:
        from trainyard.cli.jobs.jobs import record_all

        invocation.output.json(record_all(found))
        return 0
    if not found:
        invocation.output.line("no quotas")
        return 0
    resources = list(dict.fromkeys(name for quota in found for name in [*(quota.nominal or {}), *quota.used]))
    columns = [
        Column("Quota", shrink=10),
        Column("Run", right=True, drop=20),
        Column("Wait", right=True, drop=20),
        *(Column(name, right=True, drop=place + 1) for place, name in enumerate(reversed(resources))),
    ]
    rows = [
        [
            "  " * _depth(quota, found) + quota.name,
            str(quota.running),
            str(quota.waiting),
            *(_of(name, quota.used, quota.nominal) for name in reversed(resources)),
        ]
        for quota in found
    ]
    Table(columns, rows).print(invocation.output)
    return 0


def _depth(quota: Quota, quotas: Sequence[Quota]) -> int:
    parents = {each.id: each.parent for each in quotas}
    depth, at = 0, quota.parent
    while at is not None and depth < 8:
        depth, at = depth + 1, parents.get(at)
    return depth


def _of(resource: str, used: Mapping[str, float], nominal: Mapping[str, float] | None) -> str:
    from trainyard.cli.platform.workspaces import shown

    limit = "-" if nominal is None or resource not in nominal else shown(resource, nominal[resource])
    return f"{shown(resource, used.get(resource, 0))}/{limit}"
