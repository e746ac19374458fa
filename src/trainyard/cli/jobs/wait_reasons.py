"""What to say while a job that somebody looks at has not started: why it waits, whenever that changes.

Showing output is job_logs.py; the reasons themselves are the server's.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from trainyard.cli.invocation import Invocation
from trainyard.lib.errors import Error

if TYPE_CHECKING:
    from trainyard.client import Client

FIRST_LOOK_SECONDS = 1.0  # most jobs have started by then, and nothing has to be said
LONGEST_PAUSE_SECONDS = 15.0
WAITING = frozenset({"waiting", "held"})


@contextlib.asynccontextmanager
async def told_why(client: Client, invocation: Invocation, job: str) -> AsyncIterator[None]:
    """As long as this is open, notes tell why the job does not start."""
    teller = asyncio.create_task(_tell(client, invocation, job))
    try:
        yield
    finally:
        teller.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await teller


async def _tell(client: Client, invocation: Invocation, job: str) -> None:
    said, pause = "", FIRST_LOOK_SECONDS
    while True:
        await asyncio.sleep(pause)
        try:
            found = await client.jobs.explain(job)
        except Error:  # who shows the job meets the same, and says it
            return
        if found.state not in WAITING:
            return
        told = found.sentence
        if told and told != said:  # the same twice would only fill the screen
            said = told
            place = f" (position {found.position})" if found.position is not None else ""
            invocation.output.note(f"{found.state}{place}: {found.sentence} {found.remedy}".rstrip(), "dim")
            invocation.output.flush()
        pause = min(pause * 2, LONGEST_PAUSE_SECONDS)
