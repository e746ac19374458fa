"""Keys, sessions, nonces and clocks at the gateway; the emulator's own clock."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta

import pytest

from trainyard.emulators.aliyun.api.gateway import Gateway
from trainyard.emulators.aliyun.api.problems import Problem
from trainyard.emulators.aliyun.api.signature import V3
from trainyard.emulators.aliyun.api.wire import Request
from trainyard.emulators.aliyun.cloud.clock import AdjustableClock
from trainyard.lib.acs3 import sign as sign_v3

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def signed(key, *, nonce="n", at=NOW, token=""):
    headers = {
        "host": "h",
        "x-acs-content-sha256": hashlib.sha256(b"").hexdigest(),
        "x-acs-date": at.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "x-acs-signature-nonce": nonce,
    }
    if token:
        headers["x-acs-security-token"] = token
    signature = sign_v3(key.secret, "POST", "/", (), headers, headers)
    names = ";".join(sorted(headers))
    headers["authorization"] = f"{V3} Credential={key.id},SignedHeaders={names},Signature={signature}"
    return Request(method="POST", path="/", headers=headers)


@pytest.fixture
def gateway():
    gateway = Gateway()
    gateway.ensure_key()
    return gateway


def code_of(gateway, request, *, real_now=NOW, now=NOW):
    with pytest.raises(Problem) as refused:
        gateway.identify(request, real_now=real_now, now=now)
    return refused.value.code


def test_a_nonce_is_refused_when_it_was_used(gateway):
    key = gateway.main_key
    assert gateway.identify(signed(key), real_now=NOW, now=NOW) == key
    assert code_of(gateway, signed(key)) == "SignatureNonceUsed"
    gateway.identify(signed(key, nonce="other"), real_now=NOW, now=NOW)
    later = NOW + timedelta(minutes=32)
    gateway.identify(signed(key, at=later), real_now=later, now=later)


def test_a_refused_request_does_not_use_up_its_nonce(gateway):
    stranger = Gateway()
    stranger.ensure_key()
    forged = signed(gateway.main_key, nonce="x")
    forged = Request(
        method="POST",
        path="/",
        headers={**forged.headers, "authorization": forged.headers["authorization"][:-1] + "?"},
    )
    assert code_of(gateway, forged) == "SignatureDoesNotMatch"
    gateway.identify(signed(gateway.main_key, nonce="x"), real_now=NOW, now=NOW)
    assert code_of(gateway, signed(stranger.main_key)) == "InvalidAccessKeyId.NotFound"


@pytest.mark.parametrize("minutes", [-16, 16])
def test_a_request_is_refused_when_its_clock_is_wrong(gateway, minutes):
    request = signed(gateway.main_key, at=NOW + timedelta(minutes=minutes))
    assert code_of(gateway, request) == "InvalidTimeStamp.Expired"


def test_a_key_is_refused_when_it_is_disabled(gateway):
    gateway.set_active(gateway.main_key.id, active=False)
    assert code_of(gateway, signed(gateway.main_key)) == "InvalidAccessKeyId.Inactive"
    gateway.set_active(gateway.main_key.id, active=True)
    gateway.identify(signed(gateway.main_key), real_now=NOW, now=NOW)


def test_a_session_ends(gateway):
    key = gateway.open_session(arn="a", principal="p", expires=NOW + timedelta(hours=1))
    gateway.identify(signed(key, token=key.token), real_now=NOW, now=NOW)
    assert code_of(gateway, signed(key, nonce="2")) == "InvalidSecurityToken.Malformed"
    later = NOW + timedelta(hours=2)
    assert (
        code_of(gateway, signed(key, nonce="3", token=key.token), now=later) == "InvalidSecurityToken.Expired"
    )
    again = Gateway()
    again.load(gateway.save(NOW))
    assert again.main_key == gateway.main_key
    assert len(gateway.save(later)) == 1


def test_the_clock_never_steps_back():
    clock = AdjustableClock()
    before = clock.now()
    clock.advance(3600)
    assert timedelta(hours=1) <= clock.now() - before < timedelta(hours=1, minutes=1)
    clock.advance(-7200)
    clock.set_rate(-3)
    stopped = clock.now()
    assert stopped > before
    assert clock.now() == stopped
    again = AdjustableClock()
    again.load(clock.save())
    assert again.now() == stopped
