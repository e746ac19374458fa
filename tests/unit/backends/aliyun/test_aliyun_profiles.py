"""Where keys are found, in which order, and what is said when there are none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainyard import settings
from trainyard.backends.aliyun.api.profiles import (
    AssumedRole,
    Grant,
    KeysAddress,
    MachineRole,
    TokenRole,
    VendorProfile,
    find_grant,
    profile_region,
)
from trainyard.backends.aliyun.api.wire import Keys
from trainyard.lib.errors import DeniedError, InvalidError

FAMILY = {"ALIYUN_ACCESS_KEY_ID": "family-id", "ALIYUN_ACCESS_KEY_SECRET": "family-secret"}
VENDOR = {"ALIBABA_CLOUD_ACCESS_KEY_ID": "vendor-id", "ALIBABA_CLOUD_ACCESS_KEY_SECRET": "vendor-secret"}
OIDC = {
    "ALIBABA_CLOUD_ROLE_ARN": "acs:ram::1:role/r",
    "ALIBABA_CLOUD_OIDC_PROVIDER_ARN": "acs:ram::1:oidc-provider/p",
    "ALIBABA_CLOUD_OIDC_TOKEN_FILE": "/token",
}
PROFILES = {
    "current": "work",
    "profiles": [
        {
            "name": "work",
            "mode": "AK",
            "access_key_id": "cli-id",
            "access_key_secret": "cli-secret",
            "region_id": "cn-beijing",
        },
        {"name": "sts", "mode": "StsToken", "access_key_id": "a", "access_key_secret": "b", "sts_token": "c"},
        {
            "name": "role",
            "mode": "RamRoleArn",
            "access_key_id": "a",
            "access_key_secret": "b",
            "ram_role_arn": "arn",
            "ram_session_name": "me",
            "expired_seconds": 900,
        },
        {"name": "chain", "mode": "ChainableRamRoleArn", "source_profile": "role", "ram_role_arn": "arn2"},
        {"name": "loop", "mode": "ChainableRamRoleArn", "source_profile": "loop", "ram_role_arn": "arn"},
        {"name": "ecs", "mode": "EcsRamRole", "ram_role_name": "trainer"},
        {
            "name": "oidc",
            "mode": "OIDC",
            "ram_role_arn": "arn",
            "oidc_provider_arn": "p",
            "oidc_token_file": "/t",
        },
        {"name": "sso", "mode": "CloudSSO"},
        {"name": "empty", "mode": "AK"},
    ],
}
INI = """
[default]
type = access_key
access_key_id = ini-id
access_key_secret = ini-secret%

[role]
type = ram_role_arn
access_key_id = a
access_key_secret = b
role_arn = arn

[ecs]
type = ecs_ram_role
role_name = trainer

[oidc]
type = oidc_role_arn
role_arn = arn
oidc_provider_arn = p
oidc_token_file_path = /t

[old]
type = rsa_key_pair
"""


def grant(home: Path, *, on_cloud: bool = False, **env: str) -> Grant:
    cloud = settings.load({"HOME": str(home), **env}).cloud
    return find_grant(cloud, on_cloud=lambda: on_cloud)


@pytest.fixture
def home(hostile_path: Path) -> Path:
    return hostile_path


@pytest.fixture
def with_profiles(home: Path) -> Path:
    (home / ".aliyun").mkdir()
    (home / ".aliyun" / "config.json").write_text(json.dumps(PROFILES))
    return home


@pytest.fixture
def with_ini(home: Path) -> Path:
    (home / ".alibabacloud").mkdir()
    (home / ".alibabacloud" / "credentials.ini").write_text(INI)
    return home


def test_the_familys_variables_win_when_all_are_there(with_profiles, with_ini):
    found = grant(with_profiles, on_cloud=True, **FAMILY, **VENDOR, **OIDC)
    assert isinstance(found, Keys)
    assert (found.access_key_id, found.access_key_secret) == ("family-id", "family-secret")
    assert found.source == "ALIYUN_ACCESS_KEY_ID"


def test_each_place_is_asked_after_the_one_before_it(with_profiles, with_ini):
    home = with_profiles
    assert grant(home, **VENDOR, **OIDC).access_key_id == "vendor-id"
    assert isinstance(grant(home, **OIDC), TokenRole)
    assert grant(home).access_key_id == "cli-id"
    assert grant(home, ALIBABA_CLOUD_CLI_PROFILE_DISABLED="true").access_key_id == "ini-id"
    (home / ".aliyun" / "config.json").unlink()
    (home / ".alibabacloud" / "credentials.ini").unlink()
    assert grant(home, on_cloud=True, ALIBABA_CLOUD_CREDENTIALS_URI="http://x") == MachineRole()
    assert grant(home, ALIBABA_CLOUD_ECS_METADATA="trainer") == MachineRole(name="trainer")
    assert isinstance(
        grant(
            home,
            on_cloud=True,
            ALIBABA_CLOUD_ECS_METADATA_DISABLED="true",
            ALIBABA_CLOUD_CREDENTIALS_URI="http://x",
        ),
        KeysAddress,
    )


def test_it_is_said_where_to_put_keys_when_there_are_none(home):
    with pytest.raises(DeniedError) as caught:
        grant(home)
    assert "no keys" in caught.value.message
    assert "ALIYUN_ACCESS_KEY_ID" in caught.value.hint


@pytest.mark.parametrize("name", [*FAMILY, *VENDOR])
def test_the_missing_half_of_a_key_is_named(home, name):
    both = FAMILY if name in FAMILY else VENDOR
    (other,) = [each for each in both if each != name]
    with pytest.raises(DeniedError, match=other):
        grant(home, **{name: "x"})


def test_temporary_keys_have_three_parts(home):
    assert grant(home, **FAMILY, ALIYUN_SECURITY_TOKEN="t").security_token == "t"
    assert grant(home, **VENDOR, ALIBABA_CLOUD_SECURITY_TOKEN="t").security_token == "t"


def test_a_role_is_assumed_when_it_stands_beside_keys(home):
    found = grant(home, **VENDOR, ALIBABA_CLOUD_ROLE_ARN="arn")
    assert isinstance(found, AssumedRole)
    assert isinstance(found.base, Keys)


def test_spaces_around_a_key_are_not_part_of_it(home):
    assert grant(home, ALIYUN_ACCESS_KEY_ID=" a\n", ALIYUN_ACCESS_KEY_SECRET="b ").access_key_secret == "b"


def test_every_mode_of_the_command_lines_profiles_is_understood(with_profiles):
    def of(profile: str) -> Grant:
        return grant(with_profiles, ALIBABA_CLOUD_PROFILE=profile)

    assert of("sts").security_token == "c"
    role = of("role")
    assert (role.role_arn, role.session_name, role.seconds) == ("arn", "me", 900)
    chain = of("chain")
    assert chain.role_arn == "arn2"
    assert chain.base == role
    assert of("ecs").name == "trainer"
    assert of("oidc").token_file == "/t"
    assert isinstance(of("sso"), VendorProfile)
    with pytest.raises(InvalidError, match="loop"):
        of("loop")
    with pytest.raises(DeniedError, match="empty"):
        of("empty")


def test_the_profile_names_the_region(with_profiles):
    assert profile_region(settings.load({"HOME": str(with_profiles)}).cloud) == "cn-beijing"
    assert (
        profile_region(settings.load({"HOME": str(with_profiles), "ALIBABA_CLOUD_PROFILE": "sts"}).cloud)
        == ""
    )


def test_every_type_of_the_ini_file_is_understood(with_ini):
    def of(profile: str) -> Grant:
        return grant(with_ini, ALIBABA_CLOUD_PROFILE=profile)

    assert grant(with_ini).access_key_secret == "ini-secret%"
    assert isinstance(of("role"), AssumedRole)
    assert of("ecs") == MachineRole(name="trainer", source=of("ecs").source)
    assert isinstance(of("oidc"), TokenRole)
    with pytest.raises(InvalidError, match="rsa_key_pair"):
        of("old")


def test_another_ini_file_may_be_named(home, tmp_path):
    file = tmp_path / "other.ini"
    file.write_text(INI)
    assert grant(home, ALIBABA_CLOUD_CREDENTIALS_FILE=str(file)).access_key_id == "ini-id"
    with pytest.raises(InvalidError, match="does not exist"):
        grant(home, ALIBABA_CLOUD_CREDENTIALS_FILE=str(tmp_path / "none.ini"))


@pytest.mark.parametrize(
    "text", ['{"profiles": [{"name": "x", "access_key_secret": "s3cr3t"', "[]", '{"profiles": 3}', "\x00"]
)
def test_a_damaged_profile_file_is_named_without_quoting_it(home, text):
    (home / ".aliyun").mkdir()
    (home / ".aliyun" / "config.json").write_text(text)
    with pytest.raises(InvalidError) as caught:
        grant(home)
    assert "config.json" in caught.value.message
    assert "s3cr3t" not in str(caught.value)
    assert "s3cr3t" not in str(caught.value.__cause__)


def test_a_damaged_ini_file_is_named_without_quoting_it(home):
    (home / ".alibabacloud").mkdir()
    (home / ".alibabacloud" / "credentials.ini").write_text("access_key_secret s3cr3t\n")
    with pytest.raises(InvalidError) as caught:
        grant(home)
    assert "s3cr3t" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_settings_show_no_secret():
    shown = repr(settings.load({"HOME": "/", **FAMILY, "ALIYUN_SECURITY_TOKEN": "t0ken"}))
    assert "family-secret" not in shown
    assert "t0ken" not in shown
