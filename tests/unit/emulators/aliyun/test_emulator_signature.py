"""The gateway's two signatures: the vectors that the provider published, and what is refused."""

from __future__ import annotations

import hashlib

import pytest

from trainyard.emulators.aliyun.api.problems import Problem
from trainyard.emulators.aliyun.api.signature import V3, read_claim, sign_v1, verify
from trainyard.emulators.aliyun.api.wire import Request
from trainyard.lib.acs3 import canonical_query, percent_encode
from trainyard.lib.acs3 import sign as sign_v3

EMPTY = hashlib.sha256(b"").hexdigest()


def test_the_published_v3_signature_is_made():
    headers = {
        "host": "ecs.cn-shanghai.aliyuncs.com",
        "x-acs-action": "RunInstances",
        "x-acs-content-sha256": EMPTY,
        "x-acs-date": "2023-10-26T10:22:32Z",
        "x-acs-signature-nonce": "3156853299f313e23d1673dc12e1703d",
        "x-acs-version": "2014-05-26",
    }
    pairs = (
        ("ImageId", "win2019_1809_x64_dtc_zh-cn_40G_alibase_20230811.vhd"),
        ("RegionId", "cn-shanghai"),
    )
    assert (
        sign_v3("YourAccessKeySecret", "POST", "/", pairs, headers, headers)
        == "06563a9e1b43f5dfe96b81484da74bceab24a1d853912eee15083a6f0f3283c0"
    )


def test_the_published_v1_signature_is_made():
    pairs = (
        ("AccessKeyId", "testid"),
        ("Action", "DescribeRegions"),
        ("Format", "XML"),
        ("SignatureMethod", "HMAC-SHA1"),
        ("SignatureNonce", "3ee8c1b8-83d3-44af-a94f-4e0ad82fd6cf"),
        ("SignatureVersion", "1.0"),
        ("Timestamp", "2016-02-23T12:46:24Z"),
        ("Version", "2014-05-26"),
    )
    assert sign_v1("testsecret", "GET", pairs) == "OLeaidS1JvxuMvnyHOwuJ+uX5qY="


def test_hostile_values_are_encoded_as_the_provider_does():
    assert percent_encode("a b+1*~/中'$()\n") == "a%20b%2B1%2A~%2F%E4%B8%AD%27%24%28%29%0A"
    assert canonical_query([("b", "2"), ("a", "1"), ("a", "")]) == "a=&a=1&b=2"


def signed(query: str = "", body: bytes = b"", **changes: str) -> Request:
    headers = {
        "host": "127.0.0.1:1",
        "x-acs-action": "DescribeRegions",
        "x-acs-content-sha256": hashlib.sha256(body).hexdigest(),
        "x-acs-date": "2026-01-01T00:00:00Z",
        "x-acs-signature-nonce": "n",
        "x-acs-version": "2014-05-26",
    }
    if body:
        headers["content-type"] = "application/x-www-form-urlencoded"
    plain = Request(method="POST", path="/", query=query, headers=headers, body=body)
    signature = sign_v3("secret", "POST", "/", plain.query_pairs(), headers, headers, body=body)
    authorization = f"{V3} Credential=key,SignedHeaders={';'.join(sorted(headers))},Signature={signature}"
    headers = {
        **headers,
        "authorization": authorization,
        **{name.replace("_", "-"): value for name, value in changes.items()},
    }
    return Request(method="POST", path="/", query=query, headers=headers, body=body)


@pytest.mark.parametrize("query", ["", "a=1", "Tag.1.Value=a+b%2B%2A~%E4%B8%AD", "x=", "x=%0A%27%22"])
@pytest.mark.parametrize("body", [b"", b"UserData=I2Ns%3D&x=a+b"])
def test_a_signed_request_passes_however_it_is_written(query, body):
    request = signed(query, body)
    verify(request, read_claim(request), "secret")


@pytest.mark.parametrize(
    "change",
    [
        {"x_acs_action": "DeleteInstances"},
        {"x_acs_date": "2026-01-01T00:00:01Z"},
        {"host": "elsewhere"},
        {"x_acs_extra": "unsigned"},
        {"x_acs_content_sha256": "0" * 64},
    ],
)
def test_a_request_is_refused_when_something_signed_was_changed(change):
    request = signed("a=1", **change)
    with pytest.raises(Problem) as refused:
        verify(request, read_claim(request), "secret")
    assert refused.value.code == "SignatureDoesNotMatch"


def test_a_request_is_refused_when_the_secret_is_another():
    request = signed()
    with pytest.raises(Problem, match="SignatureDoesNotMatch"):
        verify(request, read_claim(request), "other")


@pytest.mark.parametrize(
    ("headers", "query", "code"),
    [
        ({}, "", "MissingAccessKeyId"),
        ({}, "AccessKeyId=a&Signature=b&SignatureMethod=HMAC-SHA1&Timestamp=t", "MissingSignatureNonce"),
        (
            {},
            "AccessKeyId=a&Signature=b&SignatureMethod=MD5&Timestamp=t&SignatureNonce=n",
            "InvalidSignatureMethod",
        ),
        ({"authorization": "Bearer x"}, "", "IncompleteSignature"),
        ({"authorization": f"{V3} Credential=a,Signature=b"}, "", "Missingx-acs-date"),
    ],
)
def test_a_request_is_refused_when_its_signature_is_incomplete(headers, query, code):
    with pytest.raises(Problem) as refused:
        read_claim(Request(method="GET", path="/", query=query, headers=headers))
    assert refused.value.code == code
