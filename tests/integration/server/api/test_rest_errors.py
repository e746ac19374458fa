"""Every refusal in one shape; who may not look finds nothing; headers, cookies and tokens that are abused."""

from __future__ import annotations

import asyncio

import httpx2
import pytest

from trainyard.lib.errors import DeniedError, NotFoundError
from trainyard.server.api.http.guard_middleware import BODY_LIMIT
from trainyard.spec.workload import WorkloadSpec

KEYS = {"code", "reason", "message", "hint", "fields"}


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nowhere", 404, "not_found"),
        ("GET", "/../../etc/passwd", 404, "not_found"),
        ("GET", "/jobs/%2e%2e%2f%2e%2e%2fetc%2fpasswd", 404, "not_found"),
        ("GET", "/jobs/a%00b", 404, "not_found"),
        ("DELETE", "/jobs", 405, "unsupported"),
        ("GET", "/jobs/none", 404, "not_found"),
        ("GET", "/jobs?limit=0", 422, "invalid"),
        ("GET", "/jobs?limit=99999999999999999999999999", 422, "invalid"),
        ("GET", "/jobs?state=asleep", 422, "invalid"),
        ("GET", "/jobs?name=%00", 422, "invalid"),
        ("GET", "/jobs?since=yesterday", 422, "invalid"),
        ("GET", "/events?cursor=-1", 422, "invalid"),
        ("POST", "/jobs", 422, "invalid"),
        ("GET", "/nodes/none", 404, "not_found"),
        ("GET", "/workspaces/none", 404, "not_found"),
        ("GET", "/users/none", 404, "not_found"),
    ],
)
async def test_every_error_has_one_shape(rig, method, path, status, code):
    async with rig.http() as http:
        answer = await http.request(method, path)
    said = answer.json()
    assert (answer.status_code, said["code"]) == (status, code), answer.text
    assert set(said) == KEYS and said["message"].endswith(".")
    assert answer.headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    "body", [b"{", b"[]", b"null", b'"x"', b"\xff\xfe", b"[" * 100_000, b'{"name": 1e999}']
)
async def test_a_body_that_is_no_job_is_refused(rig, body):
    async with rig.http() as http:
        answer = await http.post("/jobs", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 422
    assert set(answer.json()) == KEYS


async def test_a_body_that_is_too_large_is_refused_before_it_is_read(rig):
    async def endless():
        for _ in range(BODY_LIMIT // 65536 + 2):
            yield b"x" * 65536

    async with rig.http() as http:
        said = await http.post("/jobs", content=b"x" * (BODY_LIMIT + 1))
        unsaid = await http.post("/jobs", content=endless())
    assert (said.status_code, unsaid.status_code) == (413, 413)
    assert said.json()["code"] == "too_large"


async def test_nothing_of_the_inside_is_told_when_the_server_fails(rig, caplog):
    async def fail(*_arguments, **_more):
        raise RuntimeError("the secret of /var/lib")

    rig.services.jobs.get = fail
    async with rig.http() as http:
        answer = await http.get("/jobs/x", headers={"X-Request-ID": "mine-1"})
    assert answer.status_code == 500 and set(answer.json()) == KEYS
    assert "secret" not in answer.text and "mine-1" in answer.text
    assert "the secret of /var/lib" in caplog.text and "mine-1" in caplog.text


async def test_headers_for_safety_and_the_id_are_on_every_answer(rig):
    async with rig.http() as http:
        answers = [await http.get(path) for path in ("/jobs", "/nowhere", "/health")]
        foreign = await http.get("/health", headers={"X-Request-ID": "a\tb c"})
    for answer in answers:
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["x-frame-options"] == "DENY"
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert answer.headers["x-request-id"].startswith("r")
        assert "cache-control" in answer.headers
    assert foreign.headers["x-request-id"] != "a\tb c"


@pytest.mark.parametrize(
    "header",
    [
        "",
        "Basic YWRtaW46YWRtaW4=",
        "Bearer",
        "Bearer ",
        "Bearer x",
        "bearer ty_short",
        "Bearer ty_" + "A" * 43,
        "Token x",
    ],
)
async def test_nobody_is_let_in_when_the_token_is_not_ours(rig, header):
    async with rig.http("") as http:
        answer = await http.get("/jobs", headers={"Authorization": header} if header else {})
    assert answer.status_code == 401
    assert answer.json()["code"] == "unauthenticated" and answer.json()["hint"]
    assert answer.headers["www-authenticate"].startswith("Bearer")


async def test_a_cookie_changes_nothing_when_its_header_is_missing(rig):
    async with rig.http("") as http:
        body = {"username": "admin", "password": rig.admin.password}
        signed = await http.post("/session", json=body)
        assert signed.status_code == 200 and signed.json()["token"] == ""
        cookie = next(
            value for value in signed.headers.get_list("set-cookie") if "trainyard_session" in value
        )
        assert "HttpOnly" in cookie and "samesite=strict" in cookie.lower()
        denied = await http.post("/tokens", json={"name": "x"})
        # The one-time password has to be changed first.
        csrf = {"X-CSRF-Token": http.cookies["trainyard_csrf"]}
        must = await http.get("/jobs")
        changed = await http.put(
            "/session/password", json={"old": rig.admin.password, "new": "a quite long one"}, headers=csrf
        )
        looked = await http.get("/jobs")
        wrong = await http.post("/tokens", json={"name": "x"}, headers={"X-CSRF-Token": "0" * 64})
        made = await http.post("/tokens", json={"name": "x"}, headers=csrf)
        ended = await http.delete("/session", headers=csrf)
        after = await http.get(
            "/jobs", headers={"Cookie": f"trainyard_session={cookie.split('=')[1].split(';')[0]}"}
        )
    assert (denied.status_code, must.status_code) == (403, 403)
    assert (changed.status_code, looked.status_code) == (204, 200), changed.text
    assert (wrong.status_code, made.status_code) == (403, 201)
    assert (ended.status_code, after.status_code) == (204, 401)


async def test_a_wrong_password_is_refused_and_counted(rig):
    from trainyard.server.auth.rate_limits import Limiter

    rig.services.authentication._by_name = Limiter(rig.clock, rate=3, what="attempts to sign in")
    async with rig.http("") as http:
        answers = [
            await http.post("/session", json={"username": "admin", "password": "wrong"}) for _ in range(4)
        ]
    assert [answer.status_code for answer in answers] == [401, 401, 401, 429]
    assert int(answers[-1].headers["retry-after"]) >= 1
    assert answers[-1].json()["code"] == "too_many"


async def test_who_asks_too_often_is_told_when_to_come_again(make_rig):
    rig = make_rig("limited", requests_per_minute=5)
    async with rig.http() as http:
        answers = [await http.get("/jobs") for _ in range(7)]
    assert [answer.status_code for answer in answers] == [200] * 5 + [429] * 2
    assert answers[-1].json()["code"] == "too_many" and int(answers[-1].headers["retry-after"]) >= 1


async def stranger(rig, client, name="mallory"):
    """Somebody with an account who belongs to another team."""
    made = await client.users.create(name, password="a quite long one")
    async with rig.client("") as nobody:
        token = (await nobody.session.login(name, "a quite long one")).token
    return made.user, token


async def test_another_teams_jobs_are_as_if_there_were_none(rig, client):
    job = await client.jobs.submit(WorkloadSpec(name="secret", command="true"))
    rig.start(job.id)
    rig.print(job.id, "worker-0", b"secret\n")
    _, token = await stranger(rig, client)
    async with rig.client(token) as other, rig.http(token) as http:
        assert not [each async for each in other.jobs.list()]
        assert not [each async for each in other.events.list()]
        for path in (
            "",
            "/tasks",
            "/events",
            "/logs",
            "/logs/download",
            "/logs/stream",
            "/events/stream",
            "/explanation",
        ):
            answer = await http.get(f"/jobs/{job.id}{path}")
            assert answer.status_code == 404 and "secret" not in answer.text, path
        missing = await http.get("/jobs/dlc000000000000000")
        hidden = await http.get(f"/jobs/{job.id}")
        assert missing.json()["message"].replace("dlc000000000000000", job.id) == hidden.json()["message"]
        for change in (
            other.jobs.delete(job.id),
            other.jobs.clone(job.id),
            other.jobs.set_priority(job.id, 9),
            other.jobs.approve(job.id),
        ):
            with pytest.raises(NotFoundError):
                await change
        with pytest.raises(NotFoundError):
            await other.workspaces.get("default")
        with pytest.raises(DeniedError):
            [each async for each in other.users.list()]
        with pytest.raises(DeniedError):
            [each async for each in other.audit.list()]


async def test_a_member_sees_the_list_anew_when_they_are_removed(rig, client):
    job = await client.jobs.submit(WorkloadSpec(name="first", command="true"))
    user, token = await stranger(rig, client)
    await client.workspaces.set_member("default", user.name, "viewer")
    async with rig.client(token) as other:
        assert [each.id async for each in other.jobs.list()] == [job.id]
        with pytest.raises(DeniedError):
            await other.jobs.submit(WorkloadSpec(name="second", command="true"))
        await client.workspaces.remove_member("default", user.name)
        assert not [each.id async for each in other.jobs.list()]
        with pytest.raises(NotFoundError):
            await other.jobs.get(job.id)


async def test_a_token_is_for_its_scopes_only(rig, client):
    made = await client.tokens.create("reader", scopes=["jobs:read"])
    async with rig.client(made.token) as reader:
        assert not [each async for each in reader.jobs.list()]
        with pytest.raises(DeniedError, match="jobs:write"):
            await reader.jobs.submit(WorkloadSpec(name="x", command="true"))
        with pytest.raises(DeniedError):
            await reader.tokens.create("more", scopes=["*"])
    await client.tokens.revoke(made.id)
    async with rig.client(made.token) as reader:
        with pytest.raises(DeniedError) as refused:
            [each async for each in reader.jobs.list()]
    assert refused.value.code == "unauthenticated"


async def test_an_answer_is_not_shared_when_people_see_different_things(rig, client):
    """The cache of answers is by what one may see: the same address gives each their own."""
    await client.jobs.submit(WorkloadSpec(name="secret", command="true"))
    _, token = await stranger(rig, client)
    async with rig.http() as mine, rig.http(token) as theirs:
        answers = await asyncio.gather(*[http.get("/jobs") for http in (mine, theirs) for _ in range(20)])
    assert [len(answer.json()["items"]) for answer in answers] == [1] * 20 + [0] * 20


async def test_a_slash_at_the_end_is_another_path(rig):
    async with rig.http() as http:
        answer = await http.get("/jobs/")
    assert answer.status_code in {404, 405}


async def test_health_says_so_when_the_database_is_away(rig):
    transport = httpx2.ASGITransport(app=rig.app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://platform.test") as http:
        fine = await http.get("/api/v1/health")
        from trainyard.lib.errors import UnreachableError

        async def away(_work):
            raise UnreachableError("The database does not answer.")

        rig.db.read = away
        failing = await http.get("/api/v1/health")
    assert (fine.status_code, failing.status_code) == (200, 503)
