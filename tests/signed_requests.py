"""Requests that are signed as the vendor's clients sign them, as plain bytes: a test may send one twice, or change it on the way."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from trainyard.lib import acs3

VERSION = "2020-12-03"


def signed(
    key: str,
    secret: str,
    method: str = "GET",
    path: str = "/api/v1/ecsspecs",
    *,
    query: Sequence[tuple[str, str]] = (),
    body: bytes = b"",
    host: str = "platform.test",
    **changes: str,
) -> dict[str, str]:
    """The headers of one request; `changes` are of headers that are signed, with _ for -."""
    headers = {
        "host": host,
        "x-acs-version": VERSION,
        "x-acs-date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "x-acs-signature-nonce": secrets.token_hex(16),
        "x-acs-content-sha256": hashlib.sha256(body).hexdigest(),
        **{name.replace("_", "-"): value for name, value in changes.items()},
    }
    signature = acs3.sign(secret, method, path, query, headers, list(headers), body=body)
    names = ";".join(sorted(headers))
    return {
        **headers,
        "authorization": f"{acs3.SCHEME} Credential={key},SignedHeaders={names},Signature={signature}",
    }


def as_bytes(headers: Mapping[str, str], method: str = "GET", path: str = "/api/v1/ecsspecs") -> bytes:
    """A request without a body as it goes over the wire."""
    lines = [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([f"{method} {path} HTTP/1.1", *lines, "", ""]).encode("latin-1")


async def statuses(port: int, requests: Sequence[bytes], *, connections: int = 8) -> list[int]:
    """Send each once, some at a time; the statuses of the answers in the order of the requests."""
    found = [0] * len(requests)
    waiting = list(enumerate(requests))[::-1]

    async def client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while waiting:
            number, request = waiting.pop()
            writer.write(request)
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            length = next(line for line in head.split(b"\r\n") if line.startswith(b"content-length"))
            await reader.readexactly(int(length.partition(b":")[2]))
            found[number] = int(head.split()[1])
            if b"\r\nconnection: close" in head:  # as after a refusal: nobody reads on there
                writer.close()
                await writer.wait_closed()
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.close()
        await writer.wait_closed()

    await asyncio.gather(*(client() for _ in range(connections)))
    return found
