"""A password that somebody else has chosen opens nothing but the way to another one: with a cookie, a token, at every door."""

from __future__ import annotations

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from rest_server import Rig, serving
from signed_requests import VERSION

OWN = "a quite long one"


async def given_password(rig: Rig) -> str:
    async with rig.http() as http:
        return (await http.post("/users", json={"name": "ann"})).json()["password"]


async def sign_in(http, password: str, kind: str) -> dict[str, str]:
    """Headers that show who it is; a cookie goes by itself."""
    body = {"username": "ann", "password": password, "kind": kind}
    answer = await http.post("/session", json=body)
    assert answer.status_code == 200
    if kind == "token":
        return {"Authorization": f"Bearer {answer.json()['token']}"}
    return {"X-CSRF-Token": http.cookies["trainyard_csrf"]}


@pytest.mark.parametrize("kind", ["token", "cookie"])
async def test_nothing_is_done_before_the_password_is_changed_and_all_after(make_rig, kind):
    rig = make_rig()
    password = await given_password(rig)
    async with rig.http("") as http:
        headers = await sign_in(http, password, kind)
        assert (await http.get("/session", headers=headers)).json()["must_change_password"]
        for method, path, body in (
            ("GET", "/jobs", None),
            ("GET", "/jobs/session", None),
            ("GET", "/templates/session", None),
            ("GET", "/session/../jobs", None),
            ("POST", "/jobs", {"name": "j", "command": "true"}),
            ("POST", "/tokens", {"name": "t"}),
            ("POST", "/access-keys", {"name": "k"}),
            ("PATCH", "/users/ann", {"email": "x@y.z"}),
        ):
            answer = await http.request(method, path, json=body, headers=headers)
            assert (answer.status_code, answer.json()["code"]) == (403, "one_time_password"), path
        changed = await http.put("/session/password", json={"old": password, "new": OWN}, headers=headers)
        assert changed.status_code == 204
        assert (await http.get("/jobs", headers=headers)).status_code == 200
        assert (await http.post("/tokens", json={"name": "t"}, headers=headers)).status_code == 201


async def test_the_compatible_door_is_shut_before_the_password_is_changed(make_rig):
    rig = make_rig()
    async with rig.http("") as http:
        headers = await sign_in(http, await given_password(rig), "token")
    async with rig.vendor_http() as http:
        answer = await http.get("/api/v1/jobs", headers={**headers, "x-acs-version": VERSION})
    assert (answer.status_code, answer.json()["Code"]) == (403, "Forbidden")


async def test_no_terminal_opens_before_the_password_is_changed(make_rig):
    rig = make_rig()
    async with rig.http("") as http:
        headers = await sign_in(http, await given_password(rig), "token")
    with serving() as serve:
        address = "ws" + serve(rig.app).removeprefix("http") + "/api/v1/jobs/session/tasks/session/terminal"
        with pytest.raises(InvalidStatus) as refused:
            await connect(address, additional_headers=headers)
    assert refused.value.response.status_code == 403


async def test_a_reset_password_is_for_one_time_too(make_rig):
    rig = make_rig()
    await given_password(rig)
    async with rig.http() as http:
        password = (await http.post("/users/ann/password")).json()["password"]
    async with rig.http("") as http:
        headers = await sign_in(http, password, "token")
        assert (await http.get("/nodes", headers=headers)).status_code == 403


async def test_the_token_of_the_first_start_is_not_traded_for_a_password(make_rig):
    rig = make_rig()
    async with rig.http() as http:
        assert (await http.get("/session")).json()["must_change_password"]
        assert (await http.get("/jobs")).status_code == 200
    async with rig.http("") as http:
        body = {"username": "admin", "password": rig.admin.password, "kind": "token"}
        token = (await http.post("/session", json=body)).json()["token"]
        refused = await http.get("/jobs", headers={"Authorization": f"Bearer {token}"})
        assert refused.status_code == 403
