"""The client for code without an event loop: every call waits for its result, every stream is a plain iterator.

Names and arguments are those of `Client`; nothing is written twice.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Iterator
from types import TracebackType
from typing import Any, Self

from trainyard.client.client import Client
from trainyard.lib.portal import Portal

_END = object()


class BlockingClient:
    """`with BlockingClient(url, token) as client: job = client.jobs.submit(spec)`. Works in notebooks too."""

    def __init__(self, url: str, token: str = "", **options: Any) -> None:
        self._portal = Portal()
        self._client: Client = self._portal.call(_make(url, token, options))

    def __getattr__(self, name: str) -> Any:
        """Return a part of the API, or a method of the client itself."""
        found = getattr(self._client, name)
        return self._blocking(found) if callable(found) else _Noun(self, found)

    def close(self) -> None:
        """Close its connections."""
        self._portal.call(self._client.aclose())
        self._portal.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _blocking(self, verb: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            result = verb(*arguments, **options)
            if inspect.isawaitable(result):
                return self._portal.call(_wait(result))
            return self._items(result) if isinstance(result, AsyncIterator) else result

        call.__name__ = verb.__name__
        call.__doc__ = verb.__doc__
        return call

    def _items(self, stream: AsyncIterator[Any]) -> Iterator[Any]:
        try:
            while (item := self._portal.call(_following(stream))) is not _END:
                yield item
        finally:
            close = getattr(stream, "aclose", None)
            if close is not None:
                self._portal.call(close())


class _Noun:
    """A part of the API, such as `client.jobs`, with blocking methods."""

    def __init__(self, client: BlockingClient, noun: Any) -> None:
        self._client = client
        self._noun = noun

    def __getattr__(self, name: str) -> Any:
        return self._client._blocking(getattr(self._noun, name))  # noqa: SLF001  # the client's own part


async def _make(url: str, token: str, options: dict[str, Any]) -> Client:
    return Client(url, token, **options)


async def _wait(result: Awaitable[Any]) -> Any:
    return await result


async def _following(stream: AsyncIterator[Any]) -> Any:
    return await anext(stream, _END)
