"""Between the server's connection and the agent's socket: bytes both ways, and the agent is started where none runs."""

from __future__ import annotations

import _thread
import os
import socket
import sys
import time
from collections.abc import Callable
from importlib import import_module

SOCKET = "socket"
START_SECONDS = 15.0
START_AGAIN_SECONDS = 1.0
PIECE = 262144


def run(mark: str, version: str) -> int:
    """Relay standard input and output to the agent until one side is done."""
    connection = _connect(lambda: import_module(".daemon", __package__).start_daemon(mark, version))
    if connection is None:
        sys.stderr.write("trainyard: the agent does not start; see agent.log beside its socket\n")
        return 70

    def inward() -> None:
        try:
            while True:
                data = os.read(0, PIECE)
                if not data:
                    break
                connection.sendall(data)
        except OSError:
            pass
        finally:
            os._exit(0)

    _thread.start_new_thread(inward, ())  # `threading` would run code of its own in every fork
    try:
        while True:
            data = connection.recv(PIECE)
            if not data:
                break
            _write_all(data)
    except OSError:
        pass
    return 0


def _write_all(data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(1, rest) :]


def _connect(start: Callable[[], None]) -> socket.socket | None:
    deadline = time.monotonic() + START_SECONDS
    next_start = 0.0  # one that was started may lose a race with one that is just going
    while time.monotonic() < deadline:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(SOCKET)
        except OSError:
            connection.close()
        else:
            return connection
        if time.monotonic() >= next_start:
            start()
            next_start = time.monotonic() + START_AGAIN_SECONDS
        time.sleep(0.005)
    return None
