"""A browser that signs in through an identity provider."""

from __future__ import annotations

import httpx2
import pytest

from identity_provider import CLIENT, SECRET, IdentityProvider
from trainyard.server.api.http.identity import CSRF_COOKIE, CSRF_HEADER, SESSION_COOKIE

URL = "http://platform.test"


@pytest.fixture
def provider():
    one = IdentityProvider()
    yield one
    one.close()


@pytest.fixture
def browser(make_rig, provider):
    rig = make_rig("data", oidc_issuer=provider.issuer, oidc_client_id=CLIENT, oidc_client_secret=SECRET)
    transport = httpx2.ASGITransport(app=rig.app, raise_app_exceptions=False)
    return lambda: httpx2.AsyncClient(transport=transport, base_url=URL)


async def test_a_browser_has_a_session_when_it_comes_back_from_the_provider(browser, provider):
    async with browser() as client:
        sent = await client.get("/api/v1/session/oidc")
        assert sent.status_code == 303
        assert "HttpOnly" in sent.headers["set-cookie"]
        code, state = provider.visit(sent.headers["location"])
        back = await client.get("/api/v1/session/oidc/callback", params={"code": code, "state": state})
        assert back.status_code == 200
        assert SESSION_COOKIE in client.cookies
        assert (await client.get("/api/v1/session")).json()["name"] == "ada"
        assert (await client.delete("/api/v1/session")).status_code == 403
        proof = {CSRF_HEADER: client.cookies[CSRF_COOKIE]}
        assert (await client.delete("/api/v1/session", headers=proof)).status_code == 204
        assert (await client.get("/api/v1/session")).status_code == 401


async def test_nobody_is_let_in_when_the_browser_did_not_begin_it(browser, provider):
    async with browser() as victim, browser() as thief:
        sent = await thief.get("/api/v1/session/oidc")
        code, state = provider.visit(sent.headers["location"])
        for query in ({"code": code, "state": state}, {"error": "access_denied", "state": state}, {}):
            answer = await victim.get("/api/v1/session/oidc/callback", params=query)
            assert answer.status_code == 403
            assert answer.json()["code"] == "denied"
        assert SESSION_COOKIE not in victim.cookies


async def test_there_is_no_such_door_when_no_provider_is_set(rig):
    async with rig.http("") as client:
        assert (await client.get("/session/oidc")).status_code == 404
        assert (await client.get("/session/oidc/callback?code=x&state=y")).status_code == 404
