"""Keys that take a call to get: roles, OIDC, the machine's own, an address; renewed in time."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pytest

from scripted_api import Asked, Reply, error, scripted_api
from trainyard import settings
from trainyard.backends.aliyun.api.client import Client
from trainyard.backends.aliyun.api.instance_metadata import Metadata
from trainyard.backends.aliyun.api.wire import format_time
from trainyard.lib.clock import ManualClock
from trainyard.lib.errors import DeniedError, InvalidError, UnreachableError


@pytest.fixture
def api(monkeypatch):
    for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy"):
        monkeypatch.delenv(name, raising=False)
    with scripted_api() as server:
        yield server


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def make_client(api, home: Path, clock: ManualClock, **env: str) -> Client:
    environ = {
        "HOME": str(home),
        "ALIYUN_DEFAULT_REGION": "cn-beijing",
        "TRAINYARD_ALIYUN_ENDPOINT": api.endpoint,
        **env,
    }
    return Client.from_settings(settings.load(environ), clock=clock)


def keys(number: int, clock: ManualClock) -> dict[str, str]:
    return {
        "AccessKeyId": f"STS.{number}",
        "AccessKeySecret": f"secret-{number}",
        "SecurityToken": f"token-{number}",
        "Expiration": format_time(clock.now() + timedelta(hours=1)),
        "Code": "Success",
    }


def signer(asked: Asked) -> str:
    return (
        asked.headers.get("x-acs-accesskey-id", "")
        or asked.headers["authorization"].split("Credential=")[1].split(",")[0]
    )


async def test_a_role_is_assumed_once_and_again_before_it_expires(api, isolation, clock):
    made = 0

    def answer(asked):
        nonlocal made
        if asked.action == "AssumeRole":
            made += 1
            return Reply({"Credentials": keys(made, clock)})
        return Reply({})

    api.answer = answer
    client = make_client(
        api,
        isolation,
        clock,
        ALIBABA_CLOUD_ACCESS_KEY_ID="base",
        ALIBABA_CLOUD_ACCESS_KEY_SECRET="s",
        ALIBABA_CLOUD_ROLE_ARN="acs:ram::1:role/trainer",
    )
    await client.call("ecs", "DescribeZones")
    await client.call("ecs", "DescribeZones")
    assert [(asked.action, signer(asked)) for asked in api.asked] == [
        ("AssumeRole", "base"),
        ("DescribeZones", "STS.1"),
        ("DescribeZones", "STS.1"),
    ]
    assert api.asked[0].form["RoleArn"] == "acs:ram::1:role/trainer"
    clock.advance(56 * 60)
    await client.call("ecs", "DescribeZones")
    assert signer(api.asked[-1]) == "STS.2"


async def test_keys_are_renewed_when_the_provider_says_that_they_have_expired(api, isolation, clock):
    made = 0

    def answer(asked):
        nonlocal made
        if asked.action == "AssumeRole":
            made += 1
            return Reply({"Credentials": keys(made, clock)})
        if signer(asked) == "STS.1":
            return error("InvalidSecurityToken.Expired", "Specified SecurityToken is expired.")
        return Reply({"RequestId": "r"})

    api.answer = answer
    client = make_client(
        api,
        isolation,
        clock,
        ALIBABA_CLOUD_ACCESS_KEY_ID="base",
        ALIBABA_CLOUD_ACCESS_KEY_SECRET="s",
        ALIBABA_CLOUD_ROLE_ARN="arn",
    )
    assert (await client.call("ecs", "DescribeZones"))["RequestId"] == "r"
    assert made == 2


async def test_fixed_keys_are_not_tried_again_when_they_have_expired(api, isolation, clock):
    api.answer = lambda _: error("InvalidSecurityToken.Expired", "Specified SecurityToken is expired.")
    client = make_client(
        api,
        isolation,
        clock,
        ALIYUN_ACCESS_KEY_ID="a",
        ALIYUN_ACCESS_KEY_SECRET="b",
        ALIYUN_SECURITY_TOKEN="c",
    )
    with pytest.raises(DeniedError, match="expired"):
        await client.call("ecs", "DescribeZones")
    assert len(api.asked) == 1


async def test_an_oidc_token_buys_keys_without_a_signature(api, isolation, clock, tmp_path):
    token = tmp_path / "token"
    token.write_text("the.oidc.token\n")
    api.script(Reply({"Credentials": keys(7, clock)}), Reply({}))
    client = make_client(
        api,
        isolation,
        clock,
        ALIBABA_CLOUD_ROLE_ARN="arn",
        ALIBABA_CLOUD_OIDC_PROVIDER_ARN="provider",
        ALIBABA_CLOUD_OIDC_TOKEN_FILE=str(token),
    )
    await client.call("ecs", "DescribeZones")
    first, second = api.asked
    assert first.action == "AssumeRoleWithOIDC"
    assert first.form["OIDCToken"] == "the.oidc.token"
    assert "authorization" not in first.headers
    assert signer(second) == "STS.7"


async def test_a_missing_oidc_token_is_named(api, isolation, clock, tmp_path):
    client = make_client(
        api,
        isolation,
        clock,
        ALIBABA_CLOUD_ROLE_ARN="arn",
        ALIBABA_CLOUD_OIDC_PROVIDER_ARN="provider",
        ALIBABA_CLOUD_OIDC_TOKEN_FILE=str(tmp_path / "none"),
    )
    with pytest.raises(InvalidError, match="none"):
        await client.call("ecs", "DescribeZones")


def metadata_answer(clock: ManualClock, *, role: str = "trainer", with_token: bool = True):
    def answer(asked: Asked) -> Reply:
        if asked.path == "/latest/api/token":
            return Reply("T0K", 200) if with_token else Reply("", 404)
        if asked.path == "/latest/meta-data/ram/security-credentials/":
            return Reply(role, 200 if role else 404)
        if asked.path == f"/latest/meta-data/ram/security-credentials/{role}":
            return Reply(json.dumps(keys(3, clock)))
        return Reply({}) if asked.method == "POST" else Reply("", 404)

    return answer


async def test_the_machines_own_role_is_used_with_a_metadata_token(api, isolation, clock):
    api.answer = metadata_answer(clock)
    client = make_client(api, isolation, clock, TRAINYARD_ALIYUN_METADATA=f"http://{api.endpoint}")
    await client.call("ecs", "DescribeZones")
    assert signer(api.asked[-1]) == "STS.3"
    reads = [asked for asked in api.asked if asked.method == "GET"]
    assert {asked.headers.get("x-aliyun-ecs-metadata-token") for asked in reads} == {"T0K"}


async def test_the_metadata_service_is_asked_without_a_token_when_it_gives_none(api, isolation, clock):
    api.answer = metadata_answer(clock, with_token=False)
    metadata = f"http://{api.endpoint}"
    client = make_client(api, isolation, clock, TRAINYARD_ALIYUN_METADATA=metadata)
    await client.call("ecs", "DescribeZones")
    strict = make_client(
        api, isolation, clock, TRAINYARD_ALIYUN_METADATA=metadata, ALIBABA_CLOUD_IMDSV1_DISABLED="true"
    )
    with pytest.raises(UnreachableError, match="token"):
        await strict.call("ecs", "DescribeZones")


async def test_a_machine_without_a_role_is_told(api, isolation, clock):
    api.answer = metadata_answer(clock, role="")
    client = make_client(api, isolation, clock, TRAINYARD_ALIYUN_METADATA=f"http://{api.endpoint}")
    with pytest.raises(DeniedError, match="no RAM role"):
        await client.call("ecs", "DescribeZones")


async def test_an_address_may_give_keys(api, isolation, clock):
    api.script(Reply(json.dumps(keys(5, clock))), Reply({}))
    client = make_client(api, isolation, clock, ALIBABA_CLOUD_CREDENTIALS_URI=f"http://{api.endpoint}/keys")
    await client.call("ecs", "DescribeZones")
    assert signer(api.asked[-1]) == "STS.5"


async def test_an_address_that_gives_nothing_is_told(api, isolation, clock):
    for reply in (Reply("", 500), Reply("<html>"), Reply("{}")):
        api.script(reply)
        client = make_client(
            api, isolation, clock, ALIBABA_CLOUD_CREDENTIALS_URI=f"http://{api.endpoint}/keys"
        )
        with pytest.raises(DeniedError, match="gives no keys"):
            await client.call("ecs", "DescribeZones")


def test_what_is_not_there_is_none_and_not_an_error(api):
    api.answer = lambda asked: Reply("T", 200) if asked.method == "PUT" else Reply("", 404)
    assert Metadata(url=f"http://{api.endpoint}").read("instance/spot/termination-time") is None


async def test_a_profile_that_runs_a_program_is_left_to_the_vendors_package(api, isolation, clock):
    (isolation / ".aliyun").mkdir()
    program = isolation / "keys.sh"
    program.write_text(
        "#!/bin/sh\n"
        """echo '{"mode":"AK","access_key_id":"from-program","access_key_secret":"x"}'\n"""
    )
    program.chmod(0o755)
    profile = {"name": "p", "mode": "External", "process_command": str(program)}
    (isolation / ".aliyun" / "config.json").write_text(json.dumps({"current": "p", "profiles": [profile]}))
    await make_client(api, isolation, clock).call("ecs", "DescribeZones")
    assert signer(api.asked[-1]) == "from-program"


async def test_a_profile_whose_program_fails_is_named_without_its_output(api, isolation, clock):
    (isolation / ".aliyun").mkdir()
    profile = {"name": "p", "mode": "External", "process_command": "/bin/echo s3cr3t"}
    (isolation / ".aliyun" / "config.json").write_text(json.dumps({"current": "p", "profiles": [profile]}))
    with pytest.raises(DeniedError) as caught:
        await make_client(api, isolation, clock).call("ecs", "DescribeZones")
    assert "profile p" in caught.value.message
    assert "s3cr3t" not in str(caught.value)
