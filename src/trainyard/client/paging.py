"""Turns pages with a cursor into one stream of items."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from trainyard.client.connection import Connection, Query
from trainyard.client.decode import decode

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """Some things, and the cursor for those after them; None where these were the last."""

    items: tuple[T, ...]
    next: str | None


async def fetch_page(connection: Connection, shape: type[T], path: str, query: Query) -> Page[T]:
    """One page."""
    said = (await connection.request("GET", path, query=query)).json()
    return Page(tuple(decode(shape, each) for each in said["items"]), said.get("next"))


async def fetch_all(
    connection: Connection, shape: type[T], path: str, query: Query | None = None
) -> AsyncIterator[T]:
    """Everything, page by page, as it is consumed."""
    cursor: str | None = None
    while True:
        page = await fetch_page(connection, shape, path, {**(query or {}), "cursor": cursor})
        for each in page.items:
            yield each
        if page.next is None:
            return
        cursor = page.next
