"""A terminal into a task over WebSocket: binary frames are bytes, text frames are JSON about size and end.

The engine runs the command beside the task; a server that does not lead has no engine, and says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from typing import Any

from fastapi import APIRouter, WebSocket
from starlette.websockets import WebSocketDisconnect, WebSocketState

from trainyard.lib.errors import Error, InvalidError, UnreachableError
from trainyard.server.api.identity import actor_of
from trainyard.server.api.parts import Parts, parts_of
from trainyard.server.api.problems import problem_of
from trainyard.server.workflow import attempt_id
from trainyard.transport.api import Process, TerminalSize

log = logging.getLogger("trainyard.server.api")
router = APIRouter()
# Who sends more than this before the command has read it waits.
LARGEST_FRAME = 1 << 20
LARGEST_SIDE = 1000
# How often a session is looked at: one whose token was revoked is closed.
CHECK_SECONDS = 15.0


@router.websocket("/jobs/{job_id}/tasks/{task}/terminal")
async def open_terminal(socket: WebSocket, job_id: str, task: str) -> None:
    """Run a command, or a login shell, in a task's folder with its environment."""
    parts = parts_of(socket)
    try:
        process = await _start(parts, socket, job_id, task)
    except Error as error:
        await _refuse(socket, error)
        return
    try:
        await socket.accept()
        await _serve(socket, process)
    finally:
        await process.terminate()


async def _start(parts: Parts, socket: WebSocket, job_id: str, task: str) -> Process:
    actor = await actor_of(socket)
    query = socket.query_params
    size = _size(query.get("columns", "80"), query.get("rows", "24"))
    command = query.get("command", "")
    if "\0" in command or len(command) > 65536:
        raise InvalidError("The command cannot be run.", hint="Send a shorter one, without NUL.")
    record, found = await parts.services.jobs.for_terminal(actor, job_id, task)
    engine = parts.engine()
    if engine is None:
        raise UnreachableError("This server does not lead now.", hint="Try again in a few seconds.")
    terminal = size if query.get("terminal", "true") != "false" else None
    return await engine.exec(attempt_id(record.id, found.attempt), found.name, found.node, command, terminal)


async def _serve(socket: WebSocket, process: Process) -> None:
    """Both ways until the command ends, the reader goes, or may not look any more."""
    out = asyncio.ensure_future(_send_output(socket, process))
    typed = asyncio.ensure_future(_take_input(socket, process))
    watch = asyncio.ensure_future(_watch(socket))
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
            await socket.send_text(json.dumps({"error": failure.message}))
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
    try:
        said: Any = json.loads(text)
    except ValueError as error:
        raise InvalidError("A text frame is no JSON.", hint="Send what is typed as binary frames.") from error
    if not isinstance(said, dict):
        raise InvalidError("A text frame is no object.", hint='Send {"columns": 80, "rows": 24}.')
    if said.get("eof"):
        await process.write_eof()
    elif "columns" in said or "rows" in said:
        await process.resize(_size(str(said.get("columns", 80)), str(said.get("rows", 24))))


async def _watch(socket: WebSocket) -> None:
    while True:
        await asyncio.sleep(CHECK_SECONDS)
        await actor_of(socket)


async def _refuse(socket: WebSocket, error: Error) -> None:
    """Before the handshake, an error is an HTTP answer like any other."""
    response = problem_of(error)
    try:
        await socket.send_denial_response(response)
    except RuntimeError:  # a server without that extension
        await socket.close(1008, error.message[:100])


def _size(columns: str, rows: str) -> TerminalSize:
    if not (columns.isdigit() and rows.isdigit() and len(columns) < 5 and len(rows) < 5):
        raise InvalidError(f"{columns}×{rows} is no size of a terminal.", hint="Send whole numbers.")
    return TerminalSize(min(int(columns), LARGEST_SIDE) or 80, min(int(rows), LARGEST_SIDE) or 24)
