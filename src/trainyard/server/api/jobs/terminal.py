"""A terminal into a task over WebSocket: binary frames are bytes, text frames are JSON about size and end.

Which way the command goes to its node is exec_sessions.py's matter.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from typing import Any

from fastapi import WebSocket
from starlette.websockets import WebSocketDisconnect, WebSocketState

from trainyard.lib import strict_json
from trainyard.lib.errors import Error, InvalidError, NotFoundError
from trainyard.messages.catalogue import error_in
from trainyard.server.api.http.app_state import parts_of
from trainyard.server.api.http.errors import problem_of
from trainyard.server.api.http.identity import actor_of
from trainyard.server.api.http.languages import language_of
from trainyard.server.api.http.routing import new_router
from trainyard.server.auth.actor import require
from trainyard.transport.api import Process, TerminalSize

log = logging.getLogger("trainyard.server.api")
router = new_router()
# Who sends more than this before the command has read it waits.
LARGEST_FRAME = 1 << 20
LARGEST_SIDE = 1000
LARGEST_COMMAND = 65536
FIRST_SECONDS = 10.0  # until it is said what to run
# How often a session is looked at: one whose token was revoked is closed.
CHECK_SECONDS = 15.0


@router.websocket("/jobs/{job_id}/tasks/{task}/terminal")
async def open_terminal(socket: WebSocket, job_id: str, task: str) -> None:
    """Run a command, or a login shell, in a task's folder with its environment.

    What to run comes in the first frame and not in the address, which servers and proxies write into their logs.
    """
    parts = parts_of(socket)
    try:
        actor = await actor_of(socket)
        if "\0" in job_id + task:
            raise NotFoundError("There is nothing at this path.", hint="See `trainyard jobs`.")
        record, found = await parts.services.jobs.for_terminal(actor, job_id, task)
    except Error as error:
        await _refuse(socket, error)
        return
    await socket.accept()
    try:
        async with asyncio.timeout(FIRST_SECONDS):
            command, terminal = _wanted(await socket.receive_text())
        async with parts.terminals.run(found, command, terminal) as process:
            await _serve(socket, process, record.workspace_id)
    except (Error, TimeoutError) as error:
        failure = error if isinstance(error, Error) else InvalidError("Nobody said what to run.")
        with contextlib.suppress(RuntimeError, WebSocketDisconnect):
            await socket.send_text(_problem(failure, socket))
            await socket.close()
    except (WebSocketDisconnect, KeyError):  # gone before the first frame, or a frame of bytes came first
        return


def _wanted(text: str) -> tuple[str, TerminalSize | None]:
    """The first frame: the command (empty: a shell), and the size of the terminal, or that there is none."""
    said = _object(text)
    command = said.get("command", "")
    if not isinstance(command, str) or "\0" in command or len(command) > LARGEST_COMMAND:
        raise InvalidError("The command cannot be run.", hint="Send a shorter text, without NUL.")
    size = _size(str(said.get("columns", 80)), str(said.get("rows", 24)))
    return command, size if said.get("terminal", True) else None


async def _serve(socket: WebSocket, process: Process, workspace_id: str) -> None:
    """Both ways until the command ends, the reader goes, or may not look any more."""
    out = asyncio.ensure_future(_send_output(socket, process))
    typed = asyncio.ensure_future(_take_input(socket, process))
    watch = asyncio.ensure_future(_watch(socket, workspace_id))
    try:
        await asyncio.wait({out, typed, watch}, return_when=asyncio.FIRST_COMPLETED)
        if typed.done() and typed.exception() is None and not out.done():  # the reader has gone
            return
    finally:
        for part in (out, typed, watch):
            part.cancel()
        results = await asyncio.gather(out, typed, watch, return_exceptions=True)
    failure = next((result for result in results if isinstance(result, Error)), None)
    with contextlib.suppress(RuntimeError, WebSocketDisconnect):
        if failure is not None:
            await socket.send_text(_problem(failure, socket))
        if socket.application_state is WebSocketState.CONNECTED:
            await socket.close()
    for result in results:
        if isinstance(result, Exception) and not isinstance(
            result, (Error, WebSocketDisconnect, RuntimeError)
        ):
            raise result


async def _send_output(socket: WebSocket, process: Process) -> None:
    async for piece in process.output():
        await socket.send_bytes(piece)
    if process.errors:
        await socket.send_bytes(process.errors)
    status = await process.wait()
    await socket.send_text(json.dumps({"exit": status}))


async def _take_input(socket: WebSocket, process: Process) -> None:
    while True:
        frame = await socket.receive()
        if frame["type"] == "websocket.disconnect":
            return
        if (data := frame.get("bytes")) is not None:
            if len(data) > LARGEST_FRAME:
                raise InvalidError("A frame is too large.", hint="Send less at once.")
            await process.write(data)
        elif (text := frame.get("text")) is not None:
            await _control(process, text)


async def _control(process: Process, text: str) -> None:
    said = _object(text)
    if said.get("eof"):
        await process.write_eof()
    elif "columns" in said or "rows" in said:
        await process.resize(_size(str(said.get("columns", 80)), str(said.get("rows", 24))))


def _problem(error: Error, socket: WebSocket) -> str:
    message, hint = error_in(error, language_of(socket))
    return json.dumps({"error": message, "code": error.code, "hint": hint})


def _object(text: str) -> dict[str, Any]:
    try:
        said: Any = strict_json.parse(text)
    except ValueError as error:
        raise InvalidError(
            "A text frame is no JSON that can be read.", hint="Send what is typed as binary frames."
        ) from error
    if not isinstance(said, dict):
        raise InvalidError("A text frame is no object.", hint='Send {"columns": 80, "rows": 24}.')
    return said


async def _watch(socket: WebSocket, workspace_id: str) -> None:
    while True:
        await asyncio.sleep(CHECK_SECONDS)
        require(await actor_of(socket), "jobs:exec", workspace_id)


async def _refuse(socket: WebSocket, error: Error) -> None:
    """Before the handshake, an error is an HTTP answer like any other."""
    response = problem_of(error, language_of(socket))
    try:
        await socket.send_denial_response(response)
    except RuntimeError:  # a server without that extension
        await socket.close(1008, error.message[:100])


def _size(columns: str, rows: str) -> TerminalSize:
    if not all(each.isascii() and each.isdigit() and len(each) < 5 for each in (columns, rows)):
        raise InvalidError(
            f"{columns[:20]}×{rows[:20]} is no size of a terminal.", hint="Send whole numbers."
        )
    return TerminalSize(min(int(columns), LARGEST_SIDE) or 80, min(int(rows), LARGEST_SIDE) or 24)
