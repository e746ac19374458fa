"""The client when the network and the server fail: nothing is lost, and nothing is done twice."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import stat

import pytest

from trainyard import settings
from trainyard.client import BlockingClient, Client, connection
from trainyard.client.login import Login, find_login, forget_login, load_login, save_login
from trainyard.lib.errors import ConflictError, InvalidError, NotFoundError, UnreachableError
from trainyard.spec.workload import WorkloadSpec

pytestmark = pytest.mark.slow  # a real server, and pauses between attempts


class Cutter:
    """A proxy that cuts the first connections off after the server has answered, so that the answer is lost."""

    def __init__(self, url: str, cuts: int, port: int = 0) -> None:
        self.target = int(url.rpartition(":")[2])
        self.port = port
        self.cuts = cuts
        self.seen = 0

    async def __aenter__(self) -> str:
        self.tasks: set[asyncio.Task[None]] = set()
        self.server = await asyncio.start_server(self.accept, "127.0.0.1", self.port)
        return f"http://127.0.0.1:{self.server.sockets[0].getsockname()[1]}"

    async def __aexit__(self, *_error: object) -> None:
        self.server.close()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.seen += 1
        self.tasks.add(asyncio.ensure_future(self.serve(reader, writer, is_cut=self.seen <= self.cuts)))

    async def serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_cut: bool
    ) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.target)

        async def pump(source, sink):
            with contextlib.suppress(OSError):
                while data := await source.read(65536):
                    sink.write(data)
                    await sink.drain()

        there = asyncio.ensure_future(pump(reader, far_writer))
        try:
            if is_cut:
                await far_reader.readuntil(b"\r\n\r\n")
            else:
                await pump(far_reader, writer)
        finally:
            there.cancel()
            for each in (far_writer, writer):
                each.close()
                with contextlib.suppress(OSError):
                    await each.wait_closed()


async def test_a_job_is_submitted_once_when_the_answer_is_lost(rig, client, serve):
    async with Cutter(serve(rig.app), cuts=2) as url, Client(url, rig.admin.token) as far:
        job = await far.jobs.submit(WorkloadSpec(name="once", command="true"))
    assert [each.id async for each in client.jobs.list()] == [job.id]


async def test_what_is_not_safe_to_repeat_is_not_repeated(rig, client, serve):
    async with Cutter(serve(rig.app), cuts=1) as url, Client(url, rig.admin.token) as far:
        with pytest.raises(UnreachableError):
            await far.tokens.create("one")
        assert [each.name async for each in far.tokens.list() if each.name == "one"] == ["one"]


async def test_many_clients_submit_each_job_once_when_answers_are_lost(rig, client, serve):
    async with Cutter(serve(rig.app), cuts=15) as url:

        async def one(n: int) -> str:
            async with Client(url, rig.admin.token) as far:
                return (await far.jobs.submit(WorkloadSpec(name=f"j{n}", command="true"))).id

        made = await asyncio.gather(*[one(n) for n in range(10)])
    assert sorted(made) == sorted([each.id async for each in client.jobs.list()])


async def test_a_server_that_is_away_is_named_after_a_few_attempts():
    async with Client("http://127.0.0.1:1", "ty_" + "A" * 43) as far:
        with pytest.raises(
            UnreachableError, match=r"127\.0\.0\.1:1 does not answer: nothing listens there\."
        ):
            await far.jobs.page()


@pytest.fixture
def no_pauses(monkeypatch):
    """Whoever tries again waits for longer than any test."""
    monkeypatch.setattr(connection, "FIRST_PAUSE", 1000.0)
    monkeypatch.setattr(connection, "LONGEST_PAUSE", 1000.0)


@pytest.mark.parametrize("follows", [False, True], ids=["asks", "follows"])
async def test_somebody_who_looks_on_is_told_at_once_when_nothing_listens(no_pauses, follows):
    async with Client("http://127.0.0.1:1", patient=False) as far, asyncio.timeout(60):
        with pytest.raises(UnreachableError, match="nothing listens there") as caught:
            _ = [each async for each in far.jobs.follow_logs("x")] if follows else await far.jobs.page()
    assert "trainyard up" in caught.value.hint


async def test_a_server_is_waited_for_when_it_has_answered_before(rig, serve):
    """Also by somebody who is not patient: it is being started again."""
    target = serve(rig.app)
    async with Cutter(target, cuts=0) as url:
        far = Client(url, rig.admin.token, patient=False)
        await far.version()
    asking = asyncio.create_task(far.version())
    await asyncio.sleep(
        0.05
    )  # nobody is there meanwhile; were we later or sooner, the answer would be the same
    async with Cutter(target, cuts=0, port=int(url.rpartition(":")[2])):
        assert (await asking).api == "v1"
        await far.aclose()


async def test_a_server_that_cannot_be_reached_is_told_after_a_short_time(no_pauses, monkeypatch):
    monkeypatch.setattr(connection, "CONNECT_SECONDS", 0.25)
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, contextlib.ExitStack() as others:
        for _ in range(3):  # nobody accepts: the kernel drops whoever comes when its queue is full
            other = others.enter_context(socket.socket())
            other.setblocking(False)
            other.connect_ex(full.getsockname())
        url = f"http://127.0.0.1:{full.getsockname()[1]}"
        async with Client(url, patient=False) as far, asyncio.timeout(60):
            with pytest.raises(UnreachableError, match=r"there was no connection within 0\.25 s") as caught:
                await far.jobs.page()
    assert "firewall" in caught.value.hint


async def test_a_server_without_https_is_told_as_such(no_pauses, rig, serve):
    url = serve(rig.app).replace("http://", "https://")
    async with Client(url) as far, asyncio.timeout(60):
        with pytest.raises(UnreachableError, match="does not speak https there"):
            await far.jobs.page()


async def test_an_answer_of_somebody_else_is_told_as_such(serve):
    async def stranger(scope, receive, send):
        await receive()
        await send(
            {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/html")]}
        )
        await send({"type": "http.response.body", "body": b'{"hello": "world"}'})

    async with Client(serve(stranger), "ty_" + "A" * 43) as far:
        with pytest.raises(UnreachableError, match="no JobDetail"):
            await far.jobs.get("x")


async def test_the_same_key_with_another_job_is_refused(client):
    await client.jobs.submit(WorkloadSpec(name="a", command="true"), key="k")
    with pytest.raises((ConflictError, InvalidError)):
        await client.jobs.submit(WorkloadSpec(name="b", command="true"), key="k")


def test_the_blocking_client_does_the_same_without_a_loop(rig_now, serve):
    with BlockingClient(serve(rig_now.app), rig_now.admin.token) as client:
        job = client.jobs.submit(WorkloadSpec(name="first", command="true"))
        assert [each.id for each in client.jobs.list()] == [job.id]
        assert client.version().api == "v1"
        rig_now.start(job.id)
        rig_now.print(job.id, "worker-0", b"hello")
        rig_now.finish(job.id)
        assert b"".join(piece.data for piece in client.jobs.follow_logs(job.id)) == b"hello"
        assert client.jobs.wait(job.id).state == "succeeded"
        with pytest.raises(NotFoundError):
            client.jobs.get("none")


def test_a_login_is_for_its_own_server_only(isolation):
    known = settings.load()
    save_login(known, Login("http://a", "ty_secret", "ann"))
    assert stat.S_IMODE(known.login_file.stat().st_mode) == 0o600
    assert load_login(known).token == "ty_secret" and "ty_secret" not in repr(load_login(known))
    elsewhere = settings.load({"HOME": str(isolation), "TRAINYARD_SERVER": "http://b"})
    assert find_login(elsewhere) == Login("http://b")
    given = settings.load({"HOME": str(isolation), "TRAINYARD_SERVER": "http://b", "TRAINYARD_TOKEN": "t"})
    assert find_login(given) == Login("http://b", "t")
    known.login_file.write_text("{")
    with pytest.raises(InvalidError, match="cannot be read"):
        load_login(known)
    forget_login(known)
    with pytest.raises(InvalidError, match="not logged in"):
        load_login(known)


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
async def test_a_number_is_refused_before_anything_is_sent_when_it_cannot_be_written(number):
    async with Client("http://127.0.0.1:9") as client:
        with pytest.raises(InvalidError, match="none at all"):
            await client.usage.set_budget("user", "ann", amount=number, warn_at=(), action="warn")
