"""The REST client of the platform, and the schemas of its requests and answers. It imports nothing of the server.

`shapes` is plain data that costs nothing to import; `Client` brings httpx2 when it is first touched.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainyard.client.blocking import BlockingClient as BlockingClient
    from trainyard.client.client import Client as Client

__all__ = ["BlockingClient", "Client"]


def __getattr__(name: str) -> object:
    if name == "Client":
        from trainyard.client.client import Client  # noqa: PLC0415  # httpx2 is loaded when it is needed

        return Client
    if name == "BlockingClient":
        from trainyard.client.blocking import BlockingClient  # noqa: PLC0415  # likewise

        return BlockingClient
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
