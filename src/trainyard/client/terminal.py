"""A terminal in a task over WebSocket. Binary frames carry bytes; text frames carry JSON about size and end."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import quote

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI

from trainyard.client.connection import BY_STATUS, Connection, error_said
from trainyard.lib.errors import Error, UnreachableError

# After a connection was lost, nobody may be there to say goodbye to.
CLOSE_SECONDS = 2.0


class Terminal:
    """An open terminal."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self.status: int | None = None  # of the command, once it has ended
        self.problem: Error | None = None  # what the server said instead

    async def output(self) -> AsyncIterator[bytes]:
        """What the command prints, until it ends; `status` is known then."""
        try:
            async for message in self._socket:
                if isinstance(message, bytes):
                    yield message
                    continue
                said = json.loads(message)
                if "exit" in said:
                    self.status = int(said["exit"])
                    return
                if "error" in said:
                    self.problem = error_said(
                        {"code": "unreachable", **said, "message": str(said["error"])}, 500
                    )
        except ConnectionClosed as error:
            raise UnreachableError(
                f"The terminal was closed: {error}.", hint="Open it again; the task runs on."
            ) from error
        if self.status is None:
            raise self.problem or UnreachableError(
                "The terminal was closed.", hint="Open it again if the task still runs."
            )

    async def write(self, data: bytes) -> None:
        """Type. UnreachableError where the other side has gone."""
        try:
            await self._socket.send(data)
        except ConnectionClosed as error:
            raise UnreachableError(f"The terminal was closed: {error}.", hint="Open it again.") from error

    async def end_input(self) -> None:
        """Say that nothing more is typed."""
        await self._socket.send(json.dumps({"eof": True}))

    async def resize(self, columns: int, rows: int) -> None:
        """Tell the window's new size."""
        await self._socket.send(json.dumps({"columns": columns, "rows": rows}))


@asynccontextmanager
async def open_terminal(
    connection: Connection,
    job: str,
    task: str,
    *,
    command: str = "",
    columns: int = 80,
    rows: int = 24,
    has_terminal: bool = True,
) -> AsyncIterator[Terminal]:
    """Run a command, or a shell, beside a task's program."""
    path = f"/api/v1/jobs/{quote(job, safe='')}/tasks/{quote(task, safe='')}/terminal"
    address = "ws" + connection.url.removeprefix("http") + path
    headers = {"Authorization": f"Bearer {connection.token}"} if connection.token else {}
    try:
        socket = await connect(
            address,
            additional_headers=headers,
            max_size=2**22,
            close_timeout=CLOSE_SECONDS,
            compression="deflate"
            if has_terminal
            else None,  # files and streams would cost more than they save
        )
    except InvalidStatus as error:
        raise _refused(error) from error
    except (OSError, InvalidHandshake, InvalidURI, TimeoutError) as error:
        raise UnreachableError(
            f"The server at {connection.url} gives no terminal: {error}.",
            hint="See that it runs, and that a proxy before it passes WebSockets on.",
        ) from error
    try:
        wanted = {"command": command, "columns": columns, "rows": rows, "terminal": has_terminal}
        await socket.send(json.dumps(wanted))
        yield Terminal(socket)
    finally:
        await socket.close()


def _refused(error: InvalidStatus) -> Error:
    status = error.response.status_code
    try:
        return error_said(json.loads(error.response.body or b""), status)
    except (ValueError, KeyError, TypeError):
        return BY_STATUS.get(status, UnreachableError)(f"The server refused the terminal with {status}.")
