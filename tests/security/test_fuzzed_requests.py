"""Ten thousand requests that no honest client sends: every one is answered, and none is the server's fault."""

from __future__ import annotations

import collections
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from hostile_requests import Maker, send, send_frames
from rest_server import Rig
from trainyard.server.api.application import describe
from trainyard.server.auth.authentication import make_token
from trainyard.server.store.people import tokens, users
from trainyard.transport.local import LocalTransport

FRESH = 20  # so many requests have one token: what is tried may have closed it, or the account


def fresh_token(rig: Rig) -> str:
    def work(connection):
        user = users.find_by_name(connection, "admin")
        users.save(connection, replace(user, is_active=True, is_admin=True))
        tokens.revoke_all(connection, user.id, time.time(), kind="token")
        made = make_token(user.id, time.time())
        tokens.insert_token(connection, made.record)
        return made.token

    token = rig.db.write_now(work)
    rig.services.authentication.forget()
    return token


async def prepared(rig: Rig, seed: int) -> Maker:
    async with rig.http() as http:
        job = (await http.post("/jobs", json={"name": "j", "command": "true"})).json()["id"]
        await http.post("/nodes", json={"name": "n"})
        await http.post("/users", json={"name": "ann"})
        template = (
            await http.post("/templates", json={"name": "t", "job": {"name": "j", "command": "true"}})
        ).json()["id"]
    rig.start(job, node="n")
    rig.print(job, "worker-0", "one\ntwo \N{SNOWMAN}\n".encode() + b"\xff\x00\n")
    key = await rig.services.keys.create(await rig.services.authentication.authenticate(rig.admin.token))
    known = {
        "job_id": job, "pod": f"{job}-worker-0", "name": "n", "user": "ann", "workspace": "default", "template_id": template,
    }  # fmt: skip
    return Maker(seed, describe(rig.app), known, (key.id, key.secret))


async def fuzz(rig: Rig, count: int, seed: int) -> None:
    maker = await prepared(rig, seed)
    statuses: collections.Counter[int] = collections.Counter()
    wrong = []
    for number, request in enumerate(maker.requests(count)):
        if number % FRESH == 0:
            maker.token = fresh_token(rig)
        status = await send(rig.doors, request)
        statuses[status] += 1
        if status >= 500:
            wrong.append(f"{status} {request}")
    assert not wrong, "\n".join([f"{len(wrong)} of {count}:", *wrong[:40]])
    assert sum(statuses.values()) == count
    # They are not all stopped at the first check.
    assert statuses[200] + statuses[201] + statuses[204] > count // 50, statuses
    assert statuses[422] > count // 20, statuses


class ShellEngine:
    """An engine whose only verb is `exec`: a real process on this machine, which reads until its input ends."""

    def __init__(self, folder: Path) -> None:
        self.transport = LocalTransport(folder, {"HOME": str(folder)}, inherited=dict(os.environ))

    def is_reachable(self, _node: str) -> bool:
        return True

    async def exec(self, attempt_id, task, node, command, terminal):
        return await self.transport.spawn("exec cat >/dev/null", terminal=terminal)


async def fuzz_frames(rig: Rig, count: int, seed: int, folder: Path) -> None:
    maker = await prepared(rig, seed)
    rig.engine = ShellEngine(folder)
    paths = [
        f"/api/v1/jobs/{maker.known['job_id']}/tasks/worker-0/terminal", f"/api/v1/jobs/{maker.known['job_id']}/tasks/%00/terminal",
        "/api/v1/jobs/%ED%A0%80/tasks/%FF/terminal", "/api/v1/jobs/%00/tasks/x/terminal",
    ]  # fmt: skip
    wrong = []
    token = fresh_token(rig)
    for number in range(count):
        frames = [maker.frame() for _ in range(3)]
        path = paths[0] if number % 8 else paths[number // 8 % len(paths)]
        code = await send_frames(rig.app, path.encode(), token, frames)
        if 500 <= code < 1000 or code == 1011:
            wrong.append(f"{code} {path} {str(frames)[:300]}")
    assert not wrong, "\n".join([f"{len(wrong)} of {count}:", *wrong[:20]])


@pytest.mark.slow  # a thousand requests
async def test_none_of_a_thousand_hostile_requests_is_the_servers_fault(make_rig):
    await fuzz(make_rig(), 1000, seed=1)


@pytest.mark.slow  # real processes
async def test_no_hostile_frame_is_the_servers_fault(make_rig, tmp_path):
    await fuzz_frames(make_rig(), 100, 1, tmp_path)


@pytest.mark.deep
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(2, 10))
async def test_none_of_ten_thousand_hostile_requests_is_the_servers_fault(make_rig, tmp_path, seed):
    await fuzz(make_rig("requests"), 1150, seed)
    await fuzz_frames(make_rig("frames"), 100, seed, tmp_path)


@pytest.mark.deep
@pytest.mark.timeout(900)
async def test_no_hostile_request_is_the_servers_fault_when_its_database_is_postgresql(make_rig, postgres):
    await fuzz(make_rig(database=postgres.emptied()), 2000, seed=20)
