"""The HTTP server on a raw socket: what it reads, what it writes, and how it misbehaves when it is told to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from trainyard.emulators.aliyun.api.wire import Cut, Reply, Request, Server, Silence
from trainyard.lib.errors import ConflictError


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    """Answers by path: /cut and /silent misbehave, anything else is echoed."""

    async def respond(request: Request) -> Reply | Silence | Cut:
        if request.path == "/cut":
            return Cut()
        if request.path == "/silent":
            return Silence(seconds=0.1)
        if request.path == "/half":
            return Reply(body=b"x" * 1000, keep_bytes=500)
        text = repr((request.method, request.path, request.query_pairs(), request.form_pairs(), request.body))
        return Reply(body=text.encode(), headers={"x-peer": request.peer})

    server = Server(respond)
    await server.open("127.0.0.1", 0)
    yield server
    await server.close()


async def talk(server: Server, data: bytes) -> bytes:
    """Send bytes, close our side, and take what comes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        writer.write(data)
        writer.write_eof()
        async with asyncio.timeout(10):
            return await reader.read()
    finally:
        writer.close()


async def test_query_and_form_are_read_together(server):
    form = b"UserData=I2Ns%3D&a=b+c"
    head = (
        b"POST /?x=1&y=%E4%B8%AD+z HTTP/1.1\r\nHost: h\r\n"
        b"Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 22\r\n\r\n"
    )
    answer = (await talk(server, head + form)).decode()
    assert answer.startswith("HTTP/1.1 200 OK\r\n")
    assert "(('x', '1'), ('y', '中 z')), (('UserData', 'I2Ns='), ('a', 'b c'))" in answer
    assert "x-peer: 127.0.0.1" in answer


async def test_a_connection_serves_many_requests(server):
    answer = await talk(server, b"GET /1 HTTP/1.1\r\n\r\n" * 3)
    assert answer.count(b"HTTP/1.1 200") == 3
    answer = await talk(server, b"GET /1 HTTP/1.1\r\nConnection: close\r\n\r\n" * 3)
    assert answer.count(b"HTTP/1.1 200") == 1


async def test_a_body_in_chunks_is_put_together(server):
    chunks = b"5\r\nhello\r\n6;x=y\r\n world\r\n0\r\n\r\n"
    answer = await talk(server, b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks)
    assert b"b'hello world'" in answer


async def test_the_client_is_told_to_go_on_when_it_asks(server):
    head = b"POST / HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n"
    assert (await talk(server, head + b"ab")).startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK")


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"nonsense\r\n\r\n", b"400"),
        (b"GET / HTTP/2\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nno colon\r\n\r\n", b"400"),
        (b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", b"400"),
        (b"POST / HTTP/1.1\r\nContent-Length: 999999999\r\n\r\n", b"413"),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", b"400"),
        (b"GET /?" + b"x" * 300_000 + b" HTTP/1.1\r\n\r\n", b"414"),
    ],
)
async def test_what_is_no_request_is_answered_with_a_page(server, data, status):
    answer = await talk(server, data)
    assert answer.split(b" ")[1] == status
    assert b"<html>" in answer


async def test_nothing_is_answered_when_a_request_ends_half_way(server):
    assert await talk(server, b"GET / HT") == b""
    assert await talk(server, b"POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\nab") == b""
    assert await talk(server, b"") == b""


async def test_a_connection_is_reset_when_it_is_to_be_cut(server):
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"GET /cut HTTP/1.1\r\n\r\n")
    with pytest.raises(ConnectionResetError):
        await reader.read()
    writer.close()


async def test_half_an_answer_is_sent_when_it_is_to_be_broken(server):
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"GET /half HTTP/1.1\r\n\r\n")
    head = await reader.readuntil(b"\r\n\r\n")
    assert b"Content-Length: 1000" in head
    assert await reader.read() == b"x" * 500
    writer.close()


async def test_silence_ends_without_an_answer(server):
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"GET /silent HTTP/1.1\r\n\r\n")
    async with asyncio.timeout(10):
        assert await reader.read() == b""
    writer.close()


async def test_closing_ends_connections_that_are_open(server):
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"GET /1 HTTP/1.1\r\n\r\n")
    await reader.readuntil(b"\r\n\r\n")
    async with asyncio.timeout(10):
        await server.close()
        await reader.read()
    writer.close()


async def test_a_port_is_refused_when_it_is_taken(server):
    other = Server(lambda _request: asyncio.sleep(0, Cut()))
    with pytest.raises(ConflictError, match="cannot be opened"):
        await other.open("127.0.0.1", server.port)
    await other.close()
