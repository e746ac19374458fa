"""Limits costs: the provider releases machines by itself if no client has renewed them for `max_hours`.

A live client renews them; a client that died or a closed laptop does not.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from trainyard.backends.aliyun.api.client import Client
from trainyard.backends.aliyun.api.wire import Parameter
from trainyard.backends.aliyun.ecs import release_time
from trainyard.lib.aio import end_task, map_bounded
from trainyard.lib.errors import Error, NotFoundError

logger = logging.getLogger(__name__)

LONGEST_PAUSE = 900.0
CONCURRENT = 8


async def renew(client: Client, ids: Sequence[str], max_hours: float) -> list[str]:
    """Set the release time to `max_hours` from now, or to never if 0. Returns the machines that still exist."""
    moment = release_time(max_hours, client.clock.now()) if max_hours else None

    async def one(instance_id: str) -> bool:
        parameters: dict[str, Parameter] = {"InstanceId": instance_id, "AutoReleaseTime": moment}
        try:
            await client.call("ecs", "ModifyInstanceAutoReleaseTime", parameters, about=instance_id)
        except NotFoundError:
            return False
        return True

    results = await map_bounded(one, ids, limit=CONCURRENT)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [each for each, is_there in zip(ids, results, strict=True) if is_there]


class AutoRelease:
    """Renews in the background for as long as this client lives."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._hours: dict[str, float] = {}
        self._task: asyncio.Task[None] | None = None

    def hold(self, ids: Sequence[str], max_hours: float) -> None:
        """Renew these from now on."""
        self._hours.update(dict.fromkeys(ids, max_hours))
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self._renew_all())

    def let_go(self, ids: Sequence[str]) -> None:
        """Stop renewing these, because they were released or stopped on purpose."""
        for each in ids:
            self._hours.pop(each, None)

    async def aclose(self) -> None:
        """Stop renewing."""
        self._hours.clear()
        await end_task(self._task)
        self._task = None

    async def _renew_all(self) -> None:
        while self._hours:
            await self._client.clock.sleep(min(LONGEST_PAUSE, min(self._hours.values()) * 3600 / 4))
            for hours in set(self._hours.values()):
                ids = [each for each, its in self._hours.items() if its == hours]
                try:
                    there = await renew(self._client, ids, hours)
                except Error as error:  # tried again in a while; the machines have three such whiles left
                    logger.warning("the release time could not be renewed: %s", error.message)
                    continue
                self.let_go([each for each in ids if each not in there])
