"""Somebody without an account: idle connections, half-sent headers, bodies that nobody asked for, readers who do not read."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from platforms import Up, platform
from strangers import answer_to, connections, health, is_open, memory_mib, rest_of, still_open, until
from trainyard.server.web.connection_limits import HEADERS_SECONDS, trusting
from trainyard.server.web.http_protocol import HEAD_BYTES, MOST_HEADERS, MOST_PIPELINED

MOST_MIB = 64  # that all strangers together may cost
JOBS = b"POST /api/v1/jobs HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
DLC = JOBS + b"x-acs-version: 2020-12-03\r\n"
SOCKET = (
    b"GET /api/v1/jobs/dlc1/tasks/worker-0/terminal HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\n"
    b"upgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with platform(tmp_path_factory.mktemp("strangers")) as made:
        health(made)
        yield made


@contextlib.contextmanager
def cheap(up: Up) -> Iterator[None]:
    """What happens inside costs the server little memory, and it still answers."""
    before = memory_mib(up)
    yield
    assert '"ok"' in health(up)
    assert memory_mib(up) - before < MOST_MIB


def code_of(answer: bytes) -> str:
    return json.loads(answer.rpartition(b"\r\n\r\n")[2])["code"]


# -- connections


def idle(up: Up, count: int) -> None:
    with cheap(up), connections(up, count) as made:
        assert '"ok"' in health(up)
        assert 0 < still_open(made) <= 1000
        until(lambda: still_open(made) == 0)


def test_the_server_answers_when_strangers_hold_500_idle_connections(up: Up):
    idle(up, 500)


@pytest.mark.deep  # five thousand connections take half a minute on a busy machine
def test_the_server_answers_when_strangers_hold_5000_idle_connections(up: Up):
    idle(up, 5000)


def test_the_longest_idle_go_first_when_an_address_has_too_many_connections(up: Up):
    with connections(up, 1300) as made:
        until(lambda: still_open(made) <= 1000)
        assert is_open(made[-1])
        assert not is_open(made[0])


def test_half_sent_headers_end_in_time_and_cost_little_when_there_are_1200(up: Up):
    with cheap(up), connections(up, 1200, b"GET /api/v1/health HTTP/1.1\r\nx: " + b"a" * 40_000) as made:
        assert '"ok"' in health(up)
        last, began = made[-1], time.monotonic()
        last.settimeout(HEADERS_SECONDS * 3)
        assert b" 408 " in rest_of(last)
        assert time.monotonic() - began < HEADERS_SECONDS * 3
        until(lambda: still_open(made) == 0)


def test_headers_have_no_longer_when_they_come_byte_by_byte_or_in_the_second_request(up: Up):
    asked = b"GET /api/v1/version HTTP/1.1\r\nhost: a\r\n\r\n"
    with (
        connections(up, 1, b"GET /api/v1/health HTTP/1.1\r\nx: ") as (slow,),
        connections(up, 1, asked) as (one,),
    ):
        assert one.recv(65536).startswith(b"HTTP/1.1 200")
        one.sendall(b"GET /half")
        deadline = time.monotonic() + HEADERS_SECONDS * 3
        while is_open(slow) and time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                slow.send(b"a")
            time.sleep(0.2)
        assert not is_open(slow)
        one.settimeout(HEADERS_SECONDS)
        assert b"HTTP/1.1 408" in rest_of(one)


@pytest.mark.parametrize(
    ("said", "status", "code"),
    [
        (b"GET / HTTP/1.1\r\nx: " + b"a" * (2 * HEAD_BYTES), b" 431 ", "too_large"),
        (b"GET /" + b"a" * (2 * HEAD_BYTES), b" 431 ", "too_large"),
        (b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * (MOST_HEADERS + 1) + b"\r\n", b" 431 ", "too_large"),
        (b"nonsense\r\n\r\n", b" 400 ", "invalid"),
        (b"\x16\x03\x01\x02\x00\x01\x00", b" 400 ", "invalid"),
    ],
    ids=["value", "address", "number", "nonsense", "tls"],
)
def test_headers_that_are_none_or_too_large_are_refused_by_a_sentence(
    up: Up, said: bytes, status: bytes, code: str
):
    answer = answer_to(up, said)
    assert status in answer.partition(b"\r\n")[0]
    assert code_of(answer) == code


def test_fields_behind_a_body_count_as_headers_when_they_never_end(up: Up):
    endless = b"transfer-encoding: chunked\r\n\r\n0\r\nx: " + b"a" * (2 * HEAD_BYTES)
    for door in (JOBS, DLC):
        assert b" 431 " in answer_to(up, door + endless).partition(b"\r\n")[0]


def test_a_thousand_pipelined_requests_are_refused(up: Up):
    one = b"GET /api/v1/version HTTP/1.1\r\nhost: a\r\n\r\n"
    with cheap(up):
        answer = answer_to(up, one * 3000)
        assert answer.count(b"HTTP/1.1 ") < 3000
        assert b"HTTP/1.1 429" in answer
    assert answer_to(up, one * MOST_PIPELINED, seconds=3).count(b"HTTP/1.1 200") == MOST_PIPELINED


# -- bodies


@pytest.mark.parametrize("door", [JOBS, DLC], ids=["rest", "dlc"])
def test_bodies_of_strangers_are_refused_unread_when_60_send_4_megabytes(up: Up, door: bytes):
    head = door + b"content-length: %d\r\n\r\n" % (4 << 20)
    with cheap(up), connections(up, 60, head) as made:
        statuses = []
        for one in made:
            with contextlib.suppress(OSError):  # it is not read to its end
                one.sendall(b"x" * (4 << 20))
            statuses.append(rest_of(one).partition(b"\r\n")[0])
    assert any(b" 401 " in each or b" 413 " in each for each in statuses), statuses
    assert not any(b" 200 " in each or b" 500 " in each for each in statuses), statuses


@pytest.mark.parametrize("door", [JOBS, DLC], ids=["rest", "dlc"])
def test_chunked_bodies_of_strangers_are_refused_before_they_are_large(up: Up, door: bytes):
    chunk = b"10000\r\n" + b"x" * 65536 + b"\r\n"
    with cheap(up):
        answer = answer_to(up, door + b"transfer-encoding: chunked\r\n\r\n" + chunk * 40)
        assert b" 401 " in answer.partition(b"\r\n")[0]


@pytest.mark.deep  # bodies have half a minute
@pytest.mark.parametrize("door", [JOBS, DLC], ids=["rest", "dlc"])
def test_bodies_that_never_end_are_given_up(up: Up, door: bytes):
    with cheap(up), connections(up, 600, door + b"content-length: 60000\r\n\r\n" + b"{" * 50_000) as made:
        made[-1].settimeout(90)
        answer = rest_of(made[-1])
        assert any(status in answer for status in (b" 408 ", b" 429 ", b" 401 "))
        until(lambda: still_open(made) == 0, seconds=90)


def test_who_has_a_token_is_served_when_strangers_send_bodies_without_end(up: Up):
    with cheap(up), connections(up, 300, JOBS + b"content-length: 60000\r\n\r\n" + b"{" * 50_000):
        job = up.submit("true")
        assert up.until(job, "succeeded")["state"] == "succeeded"


# -- WebSockets and readers


def test_web_sockets_without_a_token_are_refused_when_300_come_at_once(up: Up):
    with cheap(up), connections(up, 300, SOCKET) as made:
        answers = [rest_of(one).partition(b"\r\n")[0] for one in made[-20:]]
        assert all(b" 401 " in answer for answer in answers), answers
        until(lambda: still_open(made) == 0)


@pytest.mark.parametrize("count", [50, pytest.param(300, marks=pytest.mark.deep)])
def test_readers_who_do_not_read_cost_little_when_many_ask_for_the_longest_answer(up: Up, count: int):
    asked = b"GET /api/v1/openapi.json HTTP/1.1\r\nhost: a\r\n\r\n"
    with cheap(up), connections(up, count, asked * 8):
        time.sleep(1.0)
        assert '"ok"' in health(up)


def test_streams_of_logs_cost_little_when_their_readers_do_not_read(up: Up):
    job = up.submit("head -c 20000000 /dev/zero | tr '\\0' a; echo")
    up.until(job, "succeeded")
    asked = (
        f"GET /api/v1/jobs/{job}/logs/stream HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {up.token}\r\n\r\n"
    )
    with cheap(up), connections(up, 60, asked.encode()):
        time.sleep(2.0)
        assert '"ok"' in health(up)


# -- proxies and TLS


def test_a_trusted_proxy_is_known_by_its_address_or_its_network():
    is_trusted = trusting(["10.0.0.0/8", "192.0.2.7", "fd00::1"])
    assert is_trusted("10.1.2.3")
    assert is_trusted("192.0.2.7")
    assert is_trusted("fd00::1")
    assert not is_trusted("fd00::2")
    assert not is_trusted("192.0.2.8")
    assert not is_trusted("")
    assert trusting(["*"])("203.0.113.1")


@contextlib.contextmanager
def served(folder: Path, **settings: object) -> Iterator[Up]:
    """A server from a settings file."""
    up = Up(folder)
    lines = [f"data = {json.dumps(str(up.data))}", "port = 0", "local_node = false"]
    lines += [f"{name} = {json.dumps(value)}" for name, value in settings.items()]
    (folder / "server.toml").write_text("\n".join(lines) + "\n")
    command = [sys.executable, "-m", "trainyard.cli.main", "server", "--json", "--config"]
    with (folder / "up.err").open("w") as log:
        up.process = subprocess.Popen(
            [*command, str(folder / "server.toml")], env=up.env, stdout=subprocess.PIPE, stderr=log, text=True
        )
    try:
        assert up.process.stdout is not None
        line = up.process.stdout.readline()
        assert line, (folder / "up.err").read_text()
        up.ready = json.loads(line)
        yield up
    finally:
        up.process.terminate()
        up.process.wait(30)
        assert up.process.stdout is not None
        up.process.stdout.close()


def test_who_asks_is_served_when_a_trusted_proxy_has_more_connections_than_an_address_may(tmp_path: Path):
    limits = {"connections": 200, "connections_per_address": 20}
    with served(tmp_path, trusted_proxies=["127.0.0.1"], **limits) as up, connections(up, 150) as made:
        assert '"ok"' in health(up)
        assert still_open(made) == 150
    other = tmp_path / "other"
    other.mkdir()
    with served(other, **limits) as up, connections(up, 150) as made:
        assert '"ok"' in health(up)
        until(lambda: still_open(made) <= 20)


def test_requests_that_are_being_answered_keep_their_places_and_others_are_told_so(tmp_path: Path):
    """A follower of events is never thrown out for somebody who comes later."""
    with served(tmp_path, connections=64, connections_per_address=8) as up:
        head = f"GET /api/v1/events/stream HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {up.ready['token']}\r\n\r\n"
        with connections(up, 8, head.encode()) as followers:
            for one in followers:
                assert one.recv(65536).startswith(b"HTTP/1.1 200")
            answer = answer_to(up, b"GET /api/v1/version HTTP/1.1\r\nhost: a\r\n\r\n")
            assert b" 503 " in answer.partition(b"\r\n")[0]
            assert code_of(answer) == "too_many"
            assert still_open(followers) == 8
        until(lambda: b" 200 " in answer_to(up, b"GET /api/v1/version HTTP/1.0\r\n\r\n"))


def test_handshakes_of_tls_end_in_time_and_do_not_lock_out_when_they_are_half_done(tmp_path: Path):
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)],
        check=True, capture_output=True,
    )  # fmt: skip
    trust = ssl.create_default_context(cafile=str(certificate))
    tls = {"tls_certificate": str(certificate), "tls_key": str(key)}
    with served(tmp_path, connections=200, connections_per_address=50, **tls) as up:

        def asked() -> bytes:
            plain = socket.create_connection(("127.0.0.1", up.port), timeout=20)
            with trust.wrap_socket(plain, server_hostname="127.0.0.1") as one:
                one.sendall(b"GET /api/v1/health HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
                return rest_of(one)

        assert b'"ok"' in asked()
        with connections(up, 120) as silent, connections(up, 120, b"\x16\x03\x01\x02\x00\x01\x00") as half:
            assert b'"ok"' in asked()
            assert still_open(silent) + still_open(half) <= 50
            until(lambda: still_open(silent) + still_open(half) == 0)
        assert b'"ok"' in asked()
    assert "Traceback" not in (tmp_path / "up.err").read_text()
