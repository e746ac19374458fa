"""Connections of somebody without an account, by the hundred; and what they cost the server."""

from __future__ import annotations

import contextlib
import resource
import select
import socket
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from platforms import Up

ANSWER_SECONDS = 20.0  # on a machine that many share; how quick it is, benchmarks say


def memory_mib(up: Up, name: str = "VmRSS") -> float:
    assert up.process is not None
    status = Path(f"/proc/{up.process.pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith(name)) / 1024


@contextlib.contextmanager
def many_files(count: int) -> Iterator[None]:
    """Let this process have so many connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + 512
    if hard != resource.RLIM_INFINITY and hard < wanted:
        import pytest

        pytest.skip(f"this user may open {hard} files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextlib.contextmanager
def connections(up: Up, count: int, said: bytes = b"") -> Iterator[list[socket.socket]]:
    """So many connections that have said this much. The server may close some, which is no error here."""
    made: list[socket.socket] = []
    with many_files(count):
        try:
            for _ in range(count):
                one = socket.create_connection(("127.0.0.1", up.port), timeout=ANSWER_SECONDS)
                made.append(one)
                with contextlib.suppress(OSError):
                    if said:
                        one.sendall(said)
            yield made
        finally:
            for one in made:
                one.close()


def is_open(one: socket.socket) -> bool:
    """Whether the other side still has it open, as far as is known by now."""
    poller = select.poll()
    poller.register(one, select.POLLIN)
    with contextlib.suppress(OSError):
        while poller.poll(0):
            if not one.recv(65536):
                return False
        return True
    return False


def still_open(made: list[socket.socket]) -> int:
    return sum(is_open(one) for one in made)


def health(up: Up) -> str:
    """What /health says over a new connection."""
    with urllib.request.urlopen(up.url + "/api/v1/health", timeout=ANSWER_SECONDS) as answer:
        return answer.read().decode()


def answer_to(up: Up, said: bytes, *, seconds: float = ANSWER_SECONDS) -> bytes:
    """All that the server says until it closes, or until it is silent."""
    with socket.create_connection(("127.0.0.1", up.port), timeout=seconds) as one:
        with contextlib.suppress(OSError):
            one.sendall(said)
        return rest_of(one)


def rest_of(one: socket.socket) -> bytes:
    got = b""
    with contextlib.suppress(OSError):
        while piece := one.recv(65536):
            got += piece
    return got


def until(condition, *, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
