"""Shared by the platform's commands: a client for the server of the current login, and finding a job by its name."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import click

from trainyard import settings as settings_module
from trainyard.cli.invocation import current, find_invocation
from trainyard.lib.errors import Error, InvalidError, NotFoundError
from trainyard.lib.units import format_duration
from trainyard.spec.workload import FINAL

if TYPE_CHECKING:
    from trainyard.client import Client
    from trainyard.client.schemas import Job

T = TypeVar("T")
Function = TypeVar("Function", bound=Callable[..., Any])
STATE_STYLES = {
    "held": "magenta",
    "waiting": "yellow",
    "admitted": "cyan",
    "starting": "cyan",
    "running": "green",
    "retained": "cyan",
    "finishing": "cyan",
    "succeeded": "green",
    "failed": "red",
    "cancelled": "dim",
}
COMPLETION_SECONDS = 1.0  # who presses the tab key does not wait for longer


def run(work: Callable[[Client], Awaitable[T]], *, timeout: float | None = None) -> T:
    """Run a verb with a client; it is closed whatever happens."""
    from trainyard.client import Client
    from trainyard.client.login import load_login

    login = load_login(settings_module.load())

    async def with_client() -> T:
        async with Client(login.url, login.token, patient=not is_watched()) as client:
            if (invocation := find_invocation()) is not None:
                invocation.now = client.connection.now
            async with asyncio.timeout(timeout):
                return await work(client)

    return asyncio.run(with_client())


def is_watched() -> bool:
    """Whether somebody looks on, who would rather hear at once that the server is gone than wait for it to come back."""
    invocation = find_invocation()
    return invocation is None or invocation.output.is_watched


def job_argument() -> Callable[[Function], Function]:
    """The JOB argument: an id, or a name that only one job has."""
    return click.argument("job", metavar="JOB", shell_complete=complete_job)


def jobs_argument() -> Callable[[Function], Function]:
    """The same for several."""
    return click.argument("jobs", metavar="JOB...", nargs=-1, required=True, shell_complete=complete_job)


def complete_job(_context: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """The newest jobs, if the server answers at once."""

    async def work(client: Client) -> list[str]:
        return [job.id for job in (await client.jobs.page(limit=50)).items]

    return _complete(work, incomplete)


def complete_node(_context: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Names of nodes, likewise."""

    async def work(client: Client) -> list[str]:
        return [node.name async for node in client.nodes.list()]

    return _complete(work, incomplete)


def complete_pool(_context: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Names of pools, likewise."""

    async def work(client: Client) -> list[str]:
        return [pool.name async for pool in client.pools.list()]

    return _complete(work, incomplete)


def complete_workspace(_context: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Names of workspaces, likewise."""

    async def work(client: Client) -> list[str]:
        return [workspace.name async for workspace in client.workspaces.list()]

    return _complete(work, incomplete)


def _complete(work: Callable[[Client], Awaitable[list[str]]], incomplete: str) -> list[str]:
    try:
        return [name for name in run(work, timeout=COMPLETION_SECONDS) if name.startswith(incomplete)]
    except (Error, TimeoutError):  # a completion has nowhere to complain
        return []


async def find_job(client: Client, text: str) -> Job:
    """The job with this id, or the only one of this name; of several, the only one that has not ended."""
    if not text or "/" in text or text in {".", ".."}:
        raise InvalidError(f"{text!r} is no job.", hint="See `trainyard jobs ls` for ids and names.")
    try:
        return await client.jobs.get(text)
    except NotFoundError:
        found = [job for job in (await client.jobs.page(name=text, limit=200)).items if job.name == text]
        if not found:
            raise
    alive = [job for job in found if job.state not in FINAL]
    if len(found) == 1 or len(alive) == 1:
        return (alive or found)[0]
    raise InvalidError(
        f"{len(found)} jobs are called {text!r}.",
        hint="Name one by its id: " + ", ".join(job.id for job in found[:5]) + ".",
    )


def age(time: datetime | None) -> str:
    """How long ago by the server's clock, for a table."""
    if time is None:
        return "-"
    return short_span((current().now() - time).total_seconds())


def short_span(seconds: float) -> str:
    """A time span in one unit: 12s, 5m, 3h, 2d."""
    seconds = max(0, int(seconds))
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= size * 2 or (unit == "d" and seconds >= size):
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def span(seconds: float) -> str:
    """A time span in two units."""
    return format_duration(timedelta(seconds=max(0.0, seconds)))


def variables(words: tuple[str, ...]) -> dict[str, str]:
    """NAME=VALUE words; a NAME alone takes the value that it has here, so that a secret need not be typed."""
    here = settings_module.pick(word for word in words if "=" not in word)
    missing = [word for word in words if "=" not in word and word not in here]
    if missing:
        raise InvalidError(f"{missing[0]} is not set here.", hint=f"Write {missing[0]}=VALUE, or export it.")
    return {**here, **pairs(tuple(word for word in words if "=" in word), "variable")}


def pairs(words: tuple[str, ...], what: str) -> dict[str, str]:
    """KEY=VALUE words as a mapping."""
    found = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not key or not equals:
            raise InvalidError(f"{word!r} is no {what}.", hint="Write it like NAME=VALUE.")
        found[key] = value
    return found
