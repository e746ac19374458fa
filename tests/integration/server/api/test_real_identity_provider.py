"""Signing in through an identity provider that others wrote: its pages, its keys, its certificate, its errors."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import httpx2
import pytest

from platforms import Up
from real_identity_provider import PASSWORD, Browser, RealIdentityProvider
from rest_server import Rig
from trainyard.server.api.http.identity import CSRF_COOKIE, CSRF_HEADER, SESSION_COOKIE
from trainyard.server.api.people.oidc_login import COOKIE

# The provider starts once, in four seconds: it is a real one.
pytestmark = pytest.mark.slow

SIGN_IN, BACK, SESSION = "/api/v1/session/oidc", "/api/v1/session/oidc/callback", "/api/v1/session"


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealIdentityProvider]:
    people: list[dict[str, Any]] = [
        {"user_name": "ada", "formatted_name": "Ada 爱达", "display_name": "Ada Lovelace"},
        {"user_name": "ben"},
        {"user_name": "guest", "organization": "another"},  # whom the provider lets into no program
    ]
    made = RealIdentityProvider(tmp_path_factory.mktemp("identity provider"), *people)
    yield made
    made.stop()


@dataclass
class Platform:
    """A server that people reach by loopback, and what its administrator does."""

    url: str
    rig: Rig
    last: int = 0  # the second of the last sign-in

    def as_admin(self, method: str, path: str, body: Any = None) -> httpx2.Response:
        headers = {"Authorization": f"Bearer {self.rig.admin.token}"}
        return httpx2.request(method, f"{self.url}/api/v1{path}", json=body, headers=headers)

    def who(self, browser: Browser) -> dict[str, Any]:
        answer = browser.client.get(self.url + SESSION)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def walk(self, browser: Browser, person: str = "", *, until: str = "", **given: str) -> httpx2.Response:
        """The whole way of somebody who signs in, or to the redirect to `until`."""
        while (
            int(time.time()) == self.last
        ):  # this provider cannot make two keys for one person in one second
            time.sleep(0.01)
        answer = browser.walk(self.url + SIGN_IN, person, until=until, **given)
        self.last = 0 if until else int(time.time())
        return answer

    def sign_in(self, browser: Browser, person: str = "") -> dict[str, Any]:
        answer = self.walk(browser, person)
        assert (answer.status_code, answer.url.path) == (200, SESSION), answer.text
        return answer.json()

    def come_back(self, browser: Browser, person: str) -> str:
        """Where the provider sends the browser back to; it does not go there."""
        answer = self.walk(browser, person, until=self.url)
        assert answer.is_redirect, answer.text
        return answer.headers["location"]


@pytest.fixture
def make_platform(
    make_rig: Callable[..., Rig], serve: Callable[[Any], str], provider: RealIdentityProvider, monkeypatch
) -> Callable[..., Platform]:
    """A factory: platforms that the provider knows, at the addresses where they answer."""
    monkeypatch.setenv("SSL_CERT_FILE", str(provider.certificate))

    def make(name: str = "data", *, method: str = "client_secret_basic", **settings: Any) -> Platform:
        apps: list[Any] = []

        async def door(scope: Any, receive: Any, send: Any) -> None:
            await apps[0](scope, receive, send)

        url = serve(door)  # the provider has to know the address before the server knows the provider
        client, secret = provider.register(url + BACK, method=method)
        given = {
            "oidc_issuer": provider.issuer,
            "oidc_client_id": client,
            "oidc_client_secret": secret,
            "oidc_name_claim": "sub",
        }
        rig = make_rig(name, **(given | settings))
        apps.append(rig.app)
        return Platform(url, rig)

    return make


@pytest.fixture
def browser(provider: RealIdentityProvider) -> Iterator[Browser]:
    with Browser(provider) as one:
        yield one


def error_of(answer: httpx2.Response) -> tuple[int, str, str]:
    body = answer.json()
    assert body["hint"]
    return answer.status_code, body["code"], body["message"]


def changed(url: str, **values: str) -> str:
    """This address with other values in its query."""
    parts = urlsplit(url)
    return parts._replace(query=urlencode(dict(parse_qsl(parts.query)) | values)).geturl()


def test_somebody_who_fills_in_the_providers_forms_has_a_session_and_is_found_again(
    make_platform, provider, browser
):
    platform = make_platform()
    first = platform.sign_in(browser, "ada")
    assert browser.pages.count("POST /auth/password") == browser.pages.count("POST /oauth/authorize") == 1
    assert (first["name"], first["is_admin"], first["roles"]) == ("ada", False, {})
    account = platform.as_admin("GET", "/users/ada").json()
    assert (account["display_name"], account["email"]) == ("Ada 爱达", "ada@example.org")

    proof = {CSRF_HEADER: browser.client.cookies[CSRF_COOKIE]}
    wish = {"name": "laptop"}  # for the command line, which has no pages
    token = browser.client.post(f"{platform.url}/api/v1/tokens", json=wish, headers=proof).json()["token"]
    program = httpx2.get(platform.url + SESSION, headers={"Authorization": f"Bearer {token}"})
    assert program.json()["user_id"] == first["user_id"]
    assert browser.client.delete(platform.url + SESSION, headers=proof).status_code == 204
    assert SESSION_COOKIE not in browser.client.cookies
    assert browser.client.get(platform.url + SESSION).status_code == 401
    browser.pages.clear()
    assert platform.sign_in(browser)["user_id"] == first["user_id"]
    assert not [page for page in browser.pages if page.startswith("POST")]  # still signed in at the provider

    with Browser(provider) as another:
        assert platform.sign_in(another, "ada")["user_id"] == first["user_id"]
        assert "POST /oauth/authorize" not in another.pages  # consent is given once
        with Browser(provider) as third:
            assert platform.sign_in(third, "ben")["user_id"] != first["user_id"]


def test_what_the_browser_keeps_meanwhile_is_for_its_way_back_only(make_platform, browser):
    platform = make_platform()
    sent = browser.client.get(platform.url + SIGN_IN)
    kept = sent.headers["set-cookie"]
    assert "HttpOnly" in kept and "samesite=lax" in kept.lower() and f"Path={SIGN_IN}" in kept
    asked = dict(parse_qsl(urlsplit(sent.headers["location"]).query))
    assert asked["code_challenge_method"] == "S256"
    assert asked["state"] not in {asked["nonce"], asked["code_challenge"]}
    platform.walk(browser, "ada")
    assert COOKIE not in browser.client.cookies


def test_a_code_is_good_once_and_only_for_the_sign_in_that_it_was_given_to(make_platform, browser):
    platform = make_platform()
    first = platform.come_back(browser, "ada")
    first_cookie = browser.client.cookies[COOKIE]
    wrong = browser.client.get(changed(first, state="another"))
    assert error_of(wrong) == (403, "denied", "This sign-in was begun elsewhere.")

    second = platform.come_back(browser, "ada")
    mixed = changed(second, code=dict(parse_qsl(urlsplit(first).query))["code"])
    answer = browser.client.get(mixed)  # the state is right; the provider compares the verifier
    assert error_of(answer) == (403, "denied", "The identity provider refused the sign-in: invalid_grant.")
    browser.client.cookies.delete(COOKIE)
    assert error_of(browser.client.get(second)) == (403, "denied", "This sign-in was not begun here.")
    assert SESSION_COOKIE not in browser.client.cookies

    third = platform.come_back(browser, "ada")
    cookie = browser.client.cookies[COOKIE]
    assert cookie != first_cookie
    assert browser.client.get(third).status_code == 200
    own = {"Cookie": f"{COOKIE}={cookie}"}
    again = httpx2.get(third, headers=own)
    assert error_of(again) == (403, "denied", "The identity provider refused the sign-in: invalid_grant.")


def test_an_answer_to_another_question_is_refused(make_platform, browser):
    platform = make_platform()
    sent = browser.client.get(platform.url + SIGN_IN).headers["location"]
    back = browser.walk(changed(sent, nonce="of somebody else"), "ada", until=platform.url)
    status, code, message = error_of(browser.client.get(back.headers["location"]))
    assert (status, code) == (403, "denied")
    assert "it belongs to another sign-in" in message


def test_nobody_has_a_session_when_the_person_or_the_provider_says_no(make_platform, provider):
    platform = make_platform()
    with Browser(provider, consents=False) as one:
        answer = platform.walk(one, "ada")
        said = "The identity provider did not let you in: access_denied."
        assert error_of(answer) == (403, "denied", said)
    for person, password in (("guest", PASSWORD), ("ada", "wrong")):
        with Browser(provider) as one:
            there = platform.walk(one, person, password=password)
            assert str(there.url).startswith(provider.issuer)
            assert SESSION_COOKIE not in one.client.cookies
    assert platform.as_admin("GET", "/users/guest").status_code == 404


def test_only_who_has_an_account_gets_in_when_the_platform_makes_none(make_platform, provider, browser):
    platform = make_platform(oidc_creates_users=False)
    answer = platform.walk(browser, "ben")
    assert error_of(answer) == (403, "denied", "You have no account here.")
    made = platform.as_admin("POST", "/users", {"name": "benjamin"})
    assert made.status_code == 201
    identity = {"subject": f"{provider.issuer} ben"}
    assert platform.as_admin("PUT", "/users/benjamin/identity", identity).status_code == 200
    assert platform.sign_in(browser)["name"] == "benjamin"


def test_a_closed_account_is_refused_and_its_session_ends(make_platform, browser):
    platform = make_platform()
    platform.sign_in(browser, "ben")
    assert platform.as_admin("PATCH", "/users/ben", {"is_active": False}).status_code == 200
    assert browser.client.get(platform.url + SESSION).status_code == 401
    answer = platform.walk(browser)
    assert error_of(answer) == (403, "denied", "The account 'ben' is closed.")
    assert platform.as_admin("PATCH", "/users/ben", {"is_active": True}).status_code == 200
    assert platform.sign_in(browser)["name"] == "ben"


def test_a_name_of_the_providers_becomes_one_that_accounts_have_and_takes_over_nobody(
    make_platform, provider
):
    platform = make_platform(oidc_name_claim="preferred_username")
    assert platform.as_admin("POST", "/users", {"name": "ben"}).status_code == 201
    with Browser(provider) as one:
        assert platform.sign_in(one, "ada")["name"] == "Ada-Lovelace"
    with Browser(provider) as one:
        status, code, message = error_of(platform.walk(one, "ben"))
        assert (status, code) == (409, "conflict")
        assert "'ben'" in message


def test_the_provider_is_asked_for_a_name_that_it_has_not_signed(make_platform, provider, browser):
    before = provider.log().count("GET /oauth/userinfo")
    platform = make_platform(oidc_name_claim="nickname")  # it knows of none: what comes next is the address
    assert platform.sign_in(browser, "ada")["name"] == "ada@example.org"
    deadline = time.monotonic() + 20  # the provider writes its log after it has answered
    while provider.log().count("GET /oauth/userinfo") <= before:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert " 200 " in next(line for line in provider.log().splitlines() if "GET /oauth/userinfo" in line)


@pytest.mark.parametrize("wrong", ["a secret", "a method"])
def test_one_sentence_says_that_the_platforms_secret_is_wrong(make_platform, browser, wrong):
    secret = {"oidc_client_secret": "yesterday's"} if wrong == "a secret" else {}
    method = "client_secret_basic" if wrong == "a secret" else "private_key_jwt"
    platform = make_platform(method=method, **secret)
    answer = platform.walk(browser, "ada")
    said = "The identity provider does not take this platform's id and secret."
    assert error_of(answer) == (422, "invalid", said)
    assert "TRAINYARD_SERVER_OIDC_SECRET" in answer.json()["hint"]
    assert SESSION_COOKIE not in browser.client.cookies


def test_it_is_said_which_setting_is_wrong_when_there_is_no_provider_at_the_address(
    make_platform, provider, browser, monkeypatch, tmp_path
):
    wrong = f"{provider.issuer}/realms/yard"
    answer = browser.walk(make_platform("wrong", oidc_issuer=wrong).url + SIGN_IN)
    there = f"{wrong}/.well-known/openid-configuration"
    assert error_of(answer) == (422, "invalid", f"There is no identity provider at {there}.")
    assert "oidc_issuer" in answer.json()["hint"]
    monkeypatch.delenv("SSL_CERT_FILE")
    status, code, message = error_of(browser.walk(make_platform("right").url + SIGN_IN))
    assert (status, code) == (502, "unreachable")
    assert message.startswith("The identity provider's certificate is not to be trusted (")


def test_passwords_are_good_while_the_provider_is_down_and_its_new_keys_at_once_when_it_is_back(
    make_platform, provider, browser
):
    platform, unknowing = make_platform("one"), make_platform("two")
    first = platform.sign_in(browser, "ada")
    provider.stop()
    try:
        answer = browser.client.get(unknowing.url + SIGN_IN)
        assert error_of(answer) == (502, "unreachable", "The identity provider does not answer.")
        own = {"username": "admin", "password": unknowing.rig.admin.password, "kind": "cookie"}
        assert browser.client.post(unknowing.url + SESSION, json=own).status_code == 200
        assert unknowing.who(browser)["name"] == "admin"
    finally:
        provider.rotate()
    with Browser(provider) as another:
        # The platform read the old keys seconds ago.
        assert platform.sign_in(another, "ada")["user_id"] == first["user_id"]


def test_a_platform_in_its_own_process_signs_in_somebody_from_its_settings_file(provider, browser, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    client, secret = provider.register(url + BACK)
    file = tmp_path / "server.toml"
    file.write_text(
        f'data = "{tmp_path}/data"\nport = {port}\nurl = "{url}"\nlocal_node = false\n'
        f'oidc_issuer = "{provider.issuer}"\noidc_client_id = "{client}"\noidc_name_claim = "email"\n'
    )
    trust = {"SSL_CERT_FILE": str(provider.certificate), "TRAINYARD_SERVER_OIDC_SECRET": secret}
    up = Up(tmp_path, env=trust)
    words = [sys.executable, "-m", "trainyard.cli.main", "server", "--config", str(file), "--json"]
    with (tmp_path / "err").open("w") as log:
        process = subprocess.Popen(words, env=up.env, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        assert process.stdout is not None
        ready = process.stdout.readline()
        assert ready, (tmp_path / "err").read_text()
        assert json.loads(ready)["url"] == url
        assert browser.walk(url + SIGN_IN, "ada").status_code == 200
        assert browser.client.get(url + SESSION).json()["name"] == "ada@example.org"
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)
        process.stdout.close()
    written = (tmp_path / "err").read_text()
    assert secret not in written
    assert "code=" not in written
