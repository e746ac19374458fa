"""An identity provider that others wrote (canaille), on loopback by https, and a browser for its pages.

Its people, its clients, its keys and its forms are its own; nothing here knows what we send it.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Self
from urllib.parse import urljoin, urlsplit

import httpx2
from joserfc.jwk import RSAKey

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "identity-provider"
ADDRESS = "127.0.0.2"  # not the platform's: a browser keeps cookies by host, whatever the port
PASSWORD = "correct horse battery"
INSTALL_SECONDS = 600
START_SECONDS = 60
LONGEST_WALK = 12  # redirects, forms and pages of one sign-in


class RealIdentityProvider:
    """May be stopped, and started again at the same address with new keys."""

    def __init__(self, folder: Path, *people: Mapping[str, Any]) -> None:
        self._folder = folder
        self._python = Path(
            subprocess.run(
                [SCRIPT, sys.executable],
                stdout=subprocess.PIPE,
                text=True,
                check=True,
                timeout=INSTALL_SECONDS,
            ).stdout.strip()
        )
        with socket.create_server((ADDRESS, 0)) as free:
            self._port = free.getsockname()[1]
        self.issuer = f"https://{ADDRESS}:{self._port}"
        self.certificate = folder / "certificate.pem"
        self._make_certificate()
        self._keys, self._seal = [_new_key()], secrets.token_hex()
        self._write_settings()
        # As it is now: what a test sets for its own processes is not for this one, which outlives it.
        self._environment = {**os.environ, "CANAILLE_CONFIG": str(folder / "canaille.toml")}
        self._process: subprocess.Popen[bytes] | None = None
        self._run("install")
        self._run("restore", given=json.dumps({"user": [_person(**one) for one in people]}))
        self.start()

    def start(self) -> None:
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    self._python / "bin" / "canaille", "run", "--bind", f"{ADDRESS}:{self._port}",
                    "--certfile", self.certificate, "--keyfile", self._folder / "key.pem", "--accesslog", "-",
                ],
                cwd=self._folder, env=self._environment, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                if httpx2.get(f"{self.issuer}/oauth/jwks.json", verify=self.trust()).status_code == 200:
                    return
            except httpx2.TransportError:
                pass
            assert self._process.poll() is None and time.monotonic() < deadline, self.log()
            time.sleep(0.02)

    def stop(self) -> None:
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)  # with its workers
            self._process.wait()
            self._process = None

    def rotate(self) -> None:
        """Sign with a new key from now on; the old one is good for what it has signed."""
        self.stop()
        self._keys.insert(0, _new_key())
        self._write_settings()
        self.start()

    def register(self, redirect_uri: str, *, method: str = "client_secret_basic") -> tuple[str, str]:
        """A client's id and secret, by the provider's own registration (RFC 7591)."""
        answer = httpx2.post(
            f"{self.issuer}/oauth/register",
            verify=self.trust(),
            json={
                "client_name": "Trainyard",
                "client_uri": "https://platform.example",
                "redirect_uris": [redirect_uri],
                "grant_types": ["authorization_code"],
                "response_types": ["code"],
                "token_endpoint_auth_method": method,
                "scope": "openid profile email",
            },
        )
        assert answer.status_code == 201, answer.text
        return answer.json()["client_id"], answer.json()["client_secret"]

    def trust(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self.certificate)

    def log(self) -> str:
        return (self._folder / "log").read_text(errors="replace")

    def _run(self, *words: str, given: str = "") -> None:
        done = subprocess.run(
            [self._python / "bin" / "canaille", *words],
            input=given, cwd=self._folder, env=self._environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr

    def _make_certificate(self) -> None:
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
             "-days", "2", "-subj", "/CN=identity provider", "-addext", f"subjectAltName=IP:{ADDRESS}",
             "-keyout", self._folder / "key.pem", "-out", self.certificate],
            check=True, capture_output=True,
        )  # fmt: skip

    def _write_settings(self) -> None:
        active, *inactive = self._keys
        (self._folder / "canaille.toml").write_text(
            f"""
SECRET_KEY = "{self._seal}"
SERVER_NAME = "{ADDRESS}:{self._port}"
PREFERRED_URL_SCHEME = "https"

[CANAILLE]
DATABASE = "sql"

[CANAILLE.ACL.DEFAULT]
PERMISSIONS = ["edit_self"]

[CANAILLE.ACL.MEMBERS]
PERMISSIONS = ["use_oidc"]
FILTER = {{ organization = "trainyard" }}

[CANAILLE_SQL]
DATABASE_URI = "sqlite:///{self._folder}/canaille.sqlite"

[CANAILLE_OIDC]
DYNAMIC_CLIENT_REGISTRATION_OPEN = true
TRUSTED_DOMAINS = []
ACTIVE_JWKS = [{active}]
INACTIVE_JWKS = [{", ".join(inactive)}]
"""
        )


def _new_key() -> str:
    """As TOML has it."""
    key = RSAKey.generate_key(2048, {"use": "sig"}, auto_kid=True).as_dict(private=True)
    return f"{{ {', '.join(f'{name} = {json.dumps(value)}' for name, value in key.items())} }}"


def _person(user_name: str, **given: Any) -> dict[str, Any]:
    return {
        "id": user_name,
        "user_name": user_name,
        "password": PASSWORD,
        "family_name": user_name.title(),
        "formatted_name": user_name.title(),
        "display_name": user_name,
        "emails": [f"{user_name}@example.org"],
        "organization": "trainyard",
        **given,
    }


# -- somebody in front of a browser


@dataclass
class Form:
    """One form of a page: where it goes, its fields as they are filled in, and its buttons."""

    action: str
    fields: dict[str, str] = field(default_factory=dict)
    buttons: list[tuple[str, str]] = field(default_factory=list)


class _Forms(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.forms: list[Form] = []
        self.refresh = ""  # where the page goes by itself

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag == "form":
            self.forms.append(Form(given.get("action", "")))
        elif tag == "meta" and given.get("http-equiv") == "refresh":
            self.refresh = given["content"].partition("url=")[2]
        elif self.forms and given.get("name"):
            if tag == "button" or given.get("type") == "submit":
                self.forms[-1].buttons.append((given["name"], given.get("value", "")))
            elif tag == "input":
                self.forms[-1].fields[given["name"]] = given.get("value", "")


class Browser:
    """Follows redirects, keeps cookies by host, fills in the provider's forms; it stops where a page has none."""

    def __init__(self, provider: RealIdentityProvider, *, consents: bool = True) -> None:
        self.client = httpx2.Client(verify=provider.trust(), headers={"Accept": "text/html"}, timeout=30)
        self.consents = consents
        self.pages: list[str] = []  # every address that was seen

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.client.close()

    def walk(
        self, url: str, person: str = "", *, password: str = PASSWORD, until: str = ""
    ) -> httpx2.Response:
        """Go there, and on as `person`, to a page that asks nothing new; or to a redirect to `until`, not followed."""
        answer, filled = self._send("GET", url), set()
        for _step in range(LONGEST_WALK):
            if answer.is_redirect:
                there = urljoin(str(answer.url), answer.headers["location"])
                if until and there.startswith(until):
                    return answer
                answer = self._send("GET", there)
                continue
            parsed = _Forms()
            parsed.feed(answer.text)
            if parsed.refresh:
                answer = self._send("GET", urljoin(str(answer.url), parsed.refresh))
                continue
            form = self._filled_in(parsed.forms, person, password)
            if form is None or (answer.url.path, *form.fields) in filled:
                return answer
            filled.add((answer.url.path, *form.fields))
            there = urljoin(str(answer.url), form.action)
            answer = self._send("POST", there, data=form.fields, headers={"Referer": str(answer.url)})
        raise AssertionError(f"going round in circles: {self.pages}")

    def _send(self, method: str, url: str, **options: Any) -> httpx2.Response:
        self.pages.append(f"{method} {urlsplit(url).path}")
        return self.client.request(method, url, **options)

    def _filled_in(self, forms: list[Form], person: str, password: str) -> Form | None:
        """The one of these forms that goes on, filled in."""
        for form in forms:
            if "login" in form.fields or "password" in form.fields:
                form.fields |= {
                    name: value
                    for name, value in (("login", person), ("password", password))
                    if name in form.fields
                }
                return form
            answer = ("answer", "accept" if self.consents else "deny")
            if answer in form.buttons:
                form.fields["answer"] = answer[1]
                return form
        return None
