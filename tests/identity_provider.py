"""A small OpenID Connect provider on loopback: real HTTP, real signatures, and lies on request."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, quote_plus, urlsplit

from joserfc import jwt
from joserfc.jwk import RSAKey

CLIENT, SECRET = "trainyard-client", "client-s3cret"


class IdentityProvider:
    """Issues codes for whoever `person` is, and checks PKCE and the client's password as real ones do."""

    def __init__(self) -> None:
        self.key = RSAKey.generate_key(2048, {"kid": "one", "use": "sig"})
        self.person: dict[str, object] = {
            "sub": "1234",
            "preferred_username": "ada",
            "name": "Ada 爱达",
            "email": "ada@x.org",
        }
        self.lies: dict[str, object] = {}  # claims that replace the true ones
        self.details: dict[str, object] = {}  # what it says of the person when it is asked, and does not sign
        self.methods: list[str] | None = None  # the ways it takes a client's password; None: it does not say
        self.secret = SECRET
        self.algorithm = "RS256"
        self.broken = False
        self._codes: dict[str, dict[str, str]] = {}
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_words: object) -> None:
                """Quiet."""

            def do_GET(self) -> None:
                path = urlsplit(self.path).path
                if provider.broken:
                    self.answer(503, {})
                elif path == "/.well-known/openid-configuration":
                    self.answer(200, provider.metadata())
                elif path == "/details":
                    known = self.headers.get("Authorization") == "Bearer access-key"
                    self.answer(200 if known else 401, provider.details)
                elif path == "/keys":
                    self.answer(200, {"keys": [provider.key.as_dict(private=False)]})
                else:
                    self.answer(404, {})

            def do_POST(self) -> None:
                length = int(self.headers.get("Content-Length", 0))
                form = {
                    name: values[0] for name, values in parse_qs(self.rfile.read(length).decode()).items()
                }
                asked = provider._codes.pop(form.get("code", ""), None)
                proof = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
                challenge = base64.urlsafe_b64encode(proof).rstrip(b"=").decode()
                if not provider.is_known(self.headers.get("Authorization"), form):
                    self.answer(401, {"error": "invalid_client"})
                elif (
                    asked is None
                    or asked["code_challenge"] != challenge
                    or asked["redirect_uri"] != form["redirect_uri"]
                ):
                    self.answer(400, {"error": "invalid_grant"})
                else:
                    id_token = provider.id_token(asked["nonce"])
                    self.answer(
                        200, {"token_type": "Bearer", "access_token": "access-key", "id_token": id_token}
                    )

            def answer(self, status: int, body: object) -> None:
                data = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.issuer = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def metadata(self) -> dict[str, object]:
        said: dict[str, object] = {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token",
            "jwks_uri": f"{self.issuer}/keys",
        }
        if self.details:
            said["userinfo_endpoint"] = f"{self.issuer}/details"
        if self.methods is not None:
            said["token_endpoint_auth_methods_supported"] = self.methods
        return said

    def is_known(self, header: str | None, form: dict[str, str]) -> bool:
        """Whether the client has proved who it is, in one of the ways that are taken."""
        pair = f"{quote_plus(CLIENT)}:{quote_plus(self.secret)}"  # RFC 6749, 2.3.1
        if "client_secret_basic" in (self.methods or ["client_secret_basic"]) and header is not None:
            return header == f"Basic {base64.b64encode(pair.encode()).decode()}"
        given = (form.get("client_id"), form.get("client_secret"))
        return "client_secret_post" in (self.methods or []) and given == (CLIENT, self.secret)

    def id_token(self, nonce: str) -> str:
        now = int(time.time())
        claims = {
            "iss": self.issuer,
            "aud": CLIENT,
            "iat": now,
            "exp": now + 300,
            "nonce": nonce,
            **self.person,
        }
        claims = {name: value for name, value in {**claims, **self.lies}.items() if value is not None}
        if self.algorithm in {"none", "HS256"}:
            words = [json.dumps({"alg": self.algorithm}), json.dumps(claims)]
            text = ".".join(_encode(one.encode()) for one in words)
            # With HS256 it is signed with what everybody knows: the public key.
            proof = hmac.new(self.key.as_pem(private=False), text.encode(), hashlib.sha256).digest()
            return f"{text}.{_encode(proof) if self.algorithm == 'HS256' else ''}"
        return jwt.encode({"alg": self.algorithm, "kid": "one"}, claims, self.key)

    def visit(self, url: str) -> tuple[str, str]:
        """What a browser brings back after its user said yes: code and state."""
        asked = {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
        assert (asked["client_id"], asked["response_type"], asked["code_challenge_method"]) == (
            CLIENT,
            "code",
            "S256",
        )
        assert "openid" in asked["scope"].split()
        code = secrets.token_hex(8)
        self._codes[code] = asked
        return code, asked["state"]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
