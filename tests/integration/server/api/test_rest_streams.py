"""Logs and events over REST: pages, searches, downloads, and streams that many follow and that go on after a cut."""

from __future__ import annotations

import asyncio
import base64
import json

import pytest

from trainyard.client import Client
from trainyard.lib.errors import NotFoundError
from trainyard.spec.workload import RoleSpec, State, WorkloadSpec


async def running(rig, client, *names, replicas=1):
    job = await client.jobs.submit(
        WorkloadSpec(name="j", command="true", roles=(RoleSpec(replicas=replicas),))
    )
    rig.start(job.id, *names)
    return job.id


async def collect(stream, wanted: int = 10**9):
    found = []
    async for each in stream:
        found.append(each)
        if len(found) >= wanted:
            break
    return found


async def test_lines_of_all_tasks_come_by_time_when_they_are_listed(rig, client):
    job = await running(rig, client, "worker-0", "worker-1", replicas=2)
    for n in range(4):
        rig.print(job, f"worker-{n % 2}", f"line {n} 中文\n".encode(), at=1000.0 + n)
    page = await client.jobs.log_lines(job)
    assert [(line.task, line.text) for line in page.items] == [
        (f"worker-{n % 2}", f"line {n} 中文") for n in range(4)
    ]
    assert page.next is not None  # it runs: more may come
    first = await client.jobs.log_lines(job, limit=3)
    rest = await client.jobs.log_lines(job, limit=3, cursor=first.next)
    assert [line.text for line in rest.items] == ["line 3 中文"]
    tail = await client.jobs.log_lines(job, tail=2)
    assert [line.text for line in tail.items] == ["line 2 中文", "line 3 中文"]
    one = await client.jobs.log_lines(job, task="worker-1")
    assert [line.text for line in one.items] == ["line 1 中文", "line 3 中文"]
    rig.finish(job)
    assert (await client.jobs.log_lines(job)).next is None


async def test_a_log_is_searched_and_downloaded(rig, client):
    job = await running(rig, client, "worker-0", "worker-1", replicas=2)
    raw = b"loss 0.5\n\xff\xfe bytes\nLOSS 0.25\n"
    rig.print(job, "worker-0", raw)
    rig.print(job, "worker-1", b"loss 7\n")
    found = await client.jobs.search_logs(job, "loss")
    assert [(line.task, line.text) for line in found.items] == [
        ("worker-0", "loss 0.5"),
        ("worker-1", "loss 7"),
    ]
    exact = await client.jobs.search_logs(job, "^loss [0-9]$", regex="true", ignore_case="true")
    assert [line.text for line in exact.items] == ["loss 7"]
    assert b"".join(await collect(client.jobs.download_logs(job, task="worker-0"))) == raw
    merged = b"".join(await collect(client.jobs.download_logs(job)))
    assert b"worker-1 | loss 7" in merged
    with pytest.raises(NotFoundError):
        await client.jobs.search_logs(job, "x", task="worker-9")


@pytest.mark.parametrize("cursor", ["", "x", "1", "9.9.9", "z!!", "zAAAA", "1.-5", "-1.0", "1." + "9" * 40])
async def test_a_cursor_that_is_not_ours_is_refused_and_nothing_else(rig, client, cursor):
    job = await running(rig, client)
    rig.print(job, "worker-0", b"x\n")
    async with rig.http() as http:
        answer = await http.get(f"/jobs/{job}/logs", params={"cursor": cursor})
    assert answer.status_code in {200, 422}, answer.text


async def test_a_finished_job_is_streamed_to_its_end_byte_for_byte(rig, client):
    job = await running(rig, client)
    data = b"\x00\xff" + "中文\r".encode() + b"x" * 600_000 + b"\nno newline"
    rig.print(job, "worker-0", data)
    rig.finish(job)
    pieces = await collect(client.jobs.follow_logs(job))
    assert b"".join(piece.data for piece in pieces) == data
    last = await collect(client.jobs.logs(job, tail=1))
    assert b"".join(piece.data for piece in last) == b"no newline"


@pytest.mark.slow  # a real server, and fifty connections to it
async def test_many_follow_a_job_that_prints_and_all_see_all_of_it(rig, client, serve):
    url = serve(rig.app)
    job = await running(rig, client, "worker-0", "worker-1", replicas=2)
    async with Client(url, rig.admin.token) as many:
        followers = [asyncio.ensure_future(collect(many.jobs.follow_logs(job))) for _ in range(50)]
        expected = {"worker-0": b"", "worker-1": b""}
        for n in range(40):
            task, data = f"worker-{n % 2}", f"line {n}\n".encode() * 50
            rig.print(job, task, data)
            expected[task] += data
            await asyncio.sleep(0)
        rig.finish(job)
        for pieces in await asyncio.wait_for(asyncio.gather(*followers), 30):
            for task, data in expected.items():
                assert b"".join(piece.data for piece in pieces if piece.task == task) == data


@pytest.mark.slow  # a real server
async def test_a_follower_goes_on_without_a_gap_or_a_repeat_when_the_connection_is_cut(rig, client, serve):
    url = serve(rig.app)
    job = await running(rig, client)
    rig.print(job, "worker-0", b"one\ntwo\n")
    async with rig.http() as _, Client(url, rig.admin.token) as follower:
        http = follower.connection._http
        async with http.stream("GET", f"/jobs/{job}/logs/stream?encoding=base64") as answer:
            identity = data = ""
            async for line in answer.aiter_lines():
                if line.startswith("id: "):
                    identity = line[4:]
                elif line.startswith("data: "):
                    data = line[6:]
                    break
        assert base64.b64decode(json.loads(data)["data"]) == b"one\ntwo\n"
        rig.print(job, "worker-0", b"three\n")
        rig.finish(job)
        async with http.stream(
            "GET", f"/jobs/{job}/logs/stream", headers={"Last-Event-ID": identity}
        ) as answer:
            body = (await answer.aread()).decode()
    assert '"text":"three\\n"' in body and "one" not in body and "event: end" in body


async def test_a_stream_begins_before_the_job_does_and_follows_its_second_start(rig, client, serve):
    url = serve(rig.app)
    job = (await client.jobs.submit(WorkloadSpec(name="j", command="true"))).id
    async with Client(url, rig.admin.token) as many:
        pieces = []

        async def follow() -> None:
            async for piece in many.jobs.follow_logs(job):
                pieces.append(piece)  # noqa: PERF401  # as they come

        following = asyncio.ensure_future(follow())
        await asyncio.sleep(0.05)
        rig.start(job)
        rig.print(job, "worker-0", b"first\n")
        async with asyncio.timeout(20):
            while not pieces:  # who comes later begins with the last start
                await asyncio.sleep(0.01)
        rig.advance(job, State.FINISHING, State.WAITING)
        rig.start(job)
        rig.print(job, "worker-0", b"second\n", attempt=2)
        rig.finish(job)
        await asyncio.wait_for(following, 20)
    assert [(piece.attempt, piece.data) for piece in pieces] == [(1, b"first\n"), (2, b"second\n")]


async def test_events_of_a_job_are_followed_to_its_end(rig, client, serve):
    url = serve(rig.app)
    job = (await client.jobs.submit(WorkloadSpec(name="j", command="true"))).id
    async with Client(url, rig.admin.token) as many:
        following = asyncio.ensure_future(collect(many.jobs.follow_events(job)))
        waiting = asyncio.ensure_future(many.jobs.wait(job))
        await asyncio.sleep(0.05)
        rig.start(job)
        rig.finish(job, State.FAILED, exit_code=3)
        seen = await asyncio.wait_for(following, 20)
        ended = await asyncio.wait_for(waiting, 20)
    assert [event.state for event in seen] == [
        "waiting",
        "admitted",
        "starting",
        "running",
        "finishing",
        "failed",
    ]
    assert [event.seq for event in seen] == sorted({event.seq for event in seen})
    assert (ended.state, ended.exit_code) == (State.FAILED, 3)
    assert [event.seq async for event in client.jobs.events(job)] == [event.seq for event in seen]


async def test_everything_that_happens_is_followed_from_a_number_on(rig, client, serve):
    url = serve(rig.app)
    first = (await client.jobs.submit(WorkloadSpec(name="j", command="true"))).id
    past = [event.seq async for event in client.events.list()]
    async with Client(url, rig.admin.token) as many:
        following = asyncio.ensure_future(collect(many.events.follow(after=past[0]), len(past) + 2))
        await asyncio.sleep(0.05)
        second = (await client.jobs.submit(WorkloadSpec(name="k", command="true"))).id
        rig.start(second)
        seen = await asyncio.wait_for(following, 20)
    assert [event.seq for event in seen][: len(past) - 1] == past[1:]
    assert {event.subject_id for event in seen} >= {second}
    assert first


async def test_a_stream_ends_when_its_reader_is_removed_from_the_team(rig, client, serve):
    """Whoever may not look any more gets nothing more, though the connection stands."""
    await client.users.create("ann", password="a quite long one")
    await client.workspaces.set_member("default", "ann", "viewer")
    job = await running(rig, client)
    rig.print(job, "worker-0", b"public\n")
    async with Client(serve(rig.app)) as nobody:
        token = (await nobody.session.login("ann", "a quite long one")).token
    async with Client(nobody.connection.url, token) as ann:
        seen = []

        async def follow():
            async for piece in ann.jobs.follow_logs(job):
                seen.append(piece.data)  # noqa: PERF401  # looked at while it grows

        following = asyncio.ensure_future(follow())
        async with asyncio.timeout(20):
            while not seen:
                await asyncio.sleep(0.02)
        await client.workspaces.remove_member("default", "ann")
        with pytest.raises(NotFoundError):
            await asyncio.wait_for(following, 20)
        rig.print(job, "worker-0", b"secret\n")
    assert b"".join(seen) == b"public\n"
