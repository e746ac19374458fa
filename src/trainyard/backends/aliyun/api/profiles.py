"""Finds keys for Alibaba Cloud in the environment and in configuration files. No network.

The first of these that exists is used:

    1. ALIYUN_ACCESS_KEY_ID and ALIYUN_ACCESS_KEY_SECRET, with ALIYUN_SECURITY_TOKEN for temporary keys
    2. the same with ALIBABA_CLOUD_ in front; with ALIBABA_CLOUD_ROLE_ARN beside them, that role is assumed
    3. OIDC: ALIBABA_CLOUD_ROLE_ARN, ALIBABA_CLOUD_OIDC_PROVIDER_ARN and ALIBABA_CLOUD_OIDC_TOKEN_FILE
    4. the `aliyun` command line's ~/.aliyun/config.json: profile ALIBABA_CLOUD_PROFILE, else its current one
    5. ~/.alibabacloud/credentials.ini (or ALIBABA_CLOUD_CREDENTIALS_FILE): section ALIBABA_CLOUD_PROFILE, else default
    6. the RAM role of the machine we run on
    7. ALIBABA_CLOUD_CREDENTIALS_URI

`credentials.py` turns a grant into keys if that needs a call.
"""

from __future__ import annotations

import configparser
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from trainyard.backends.aliyun.api.instance_metadata import is_on_cloud
from trainyard.backends.aliyun.api.wire import Keys
from trainyard.lib.errors import DeniedError, InvalidError
from trainyard.settings import CloudSettings

LONGEST_CHAIN = 5  # profiles that assume a role of a profile that assumes a role …


@dataclass(frozen=True, slots=True, kw_only=True)
class AssumedRole:
    """Keys by taking on a role with other keys."""

    base: Grant
    role_arn: str
    session_name: str = "trainyard"
    seconds: int = 3600
    external_id: str = ""
    policy: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRole:
    """Keys by taking on a role with the token of an identity provider (OIDC)."""

    role_arn: str
    provider_arn: str
    token_file: str
    session_name: str = "trainyard"
    seconds: int = 3600
    policy: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineRole:
    """Keys of the machine we run on; without a name, of the one role it has."""

    name: str = ""
    source: str = "the RAM role of this machine"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeysAddress:
    """Keys from an address that answers with them."""

    url: str
    source: str = "ALIBABA_CLOUD_CREDENTIALS_URI"


@dataclass(frozen=True, slots=True, kw_only=True)
class VendorProfile:
    """A profile that only the vendor's package can use: it signs in by browser, or runs a program."""

    profile: str
    file: str
    source: str = ""


Grant: TypeAlias = Keys | AssumedRole | TokenRole | MachineRole | KeysAddress | VendorProfile


def find_grant(cloud: CloudSettings, *, on_cloud: Callable[[], bool] = is_on_cloud) -> Grant:
    """What we may sign with; DeniedError that says where to put keys when there is nothing."""
    found = (
        _from_variables(cloud)
        or _from_token_variables(cloud)
        or _from_command_line_file(cloud)
        or _from_ini_file(cloud)
    )
    if found:
        return found
    if not cloud.is_machine_role_ignored and (cloud.machine_role or cloud.metadata_url or on_cloud()):
        return MachineRole(name=cloud.machine_role)
    if cloud.credentials_url:
        return KeysAddress(url=cloud.credentials_url)
    raise DeniedError(
        "there are no keys for Alibaba Cloud",
        hint="Set ALIYUN_ACCESS_KEY_ID and ALIYUN_ACCESS_KEY_SECRET, or run `aliyun configure`.",
        reason="provider.denied",
    )


def profile_region(cloud: CloudSettings) -> str:
    """The region that the profile in use names; empty where there is none."""
    profile = _find_profile(cloud)
    return str(profile.get("region_id") or "") if profile else ""


def _from_variables(cloud: CloudSettings) -> Grant | None:
    if not cloud.keys_from:
        return None
    for part, value in (("ID", cloud.access_key_id), ("SECRET", cloud.access_key_secret)):
        if not value:
            name = f"{cloud.keys_from}_ACCESS_KEY_{part}"
            raise DeniedError(f"{name} is not set, but the other half of the key is", hint=f"Set {name} too.")
    keys = Keys(
        access_key_id=cloud.access_key_id,
        access_key_secret=cloud.access_key_secret,
        security_token=cloud.security_token,
        source=f"{cloud.keys_from}_ACCESS_KEY_ID",
    )
    if cloud.keys_from == "ALIBABA_CLOUD" and cloud.role_arn and not cloud.oidc_provider_arn:
        return AssumedRole(
            base=keys,
            role_arn=cloud.role_arn,
            session_name=cloud.role_session_name,
            source="ALIBABA_CLOUD_ROLE_ARN",
        )
    return keys


def _from_token_variables(cloud: CloudSettings) -> Grant | None:
    if not (cloud.role_arn and cloud.oidc_provider_arn and cloud.oidc_token_file):
        return None
    return TokenRole(
        role_arn=cloud.role_arn,
        provider_arn=cloud.oidc_provider_arn,
        token_file=cloud.oidc_token_file,
        session_name=cloud.role_session_name,
        source="ALIBABA_CLOUD_OIDC_TOKEN_FILE",
    )


# -- the aliyun command line's file -----------------------------------------------------------------------------------


def _command_line_file(cloud: CloudSettings) -> Path:
    return cloud.user_home / ".aliyun" / "config.json"


def _load_profiles(path: Path) -> tuple[str, dict[str, dict[str, Any]]]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        profiles = {str(each["name"]): each for each in data.get("profiles") or []}
    except FileNotFoundError:
        return "", {}
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        # NB: not the text of the error, which may quote the file.
        raise InvalidError(
            f"{path} cannot be read", hint="Run `aliyun configure` to write it anew."
        ) from error
    return str(data.get("current") or ""), profiles


def _find_profile(cloud: CloudSettings) -> dict[str, Any] | None:
    if cloud.is_profile_ignored:
        return None
    current, profiles = _load_profiles(_command_line_file(cloud))
    return profiles.get(cloud.profile or current)


def _from_command_line_file(cloud: CloudSettings) -> Grant | None:
    profile = _find_profile(cloud)
    return _profile_grant(cloud, profile, LONGEST_CHAIN) if profile else None


def _profile_grant(cloud: CloudSettings, profile: Mapping[str, Any], depth: int) -> Grant:
    """The modes of the vendor's own file format."""
    path = _command_line_file(cloud)
    name = str(profile["name"])
    source = f"the profile {name} of {path}"
    mode = str(profile.get("mode") or "AK")
    if mode in {"AK", "StsToken", "RamRoleArn"}:
        keys = _profile_keys(profile, source, with_token=mode == "StsToken")
        return _profile_role(keys, profile, source) if mode == "RamRoleArn" else keys
    if mode == "ChainableRamRoleArn":
        inner = _load_profiles(path)[1].get(str(profile.get("source_profile") or ""))
        if inner is None or depth <= 0:
            raise InvalidError(
                f"{source} builds on a profile that is not there", hint="Correct its source_profile."
            )
        return _profile_role(_profile_grant(cloud, inner, depth - 1), profile, source)
    if mode == "EcsRamRole":
        return MachineRole(name=str(profile.get("ram_role_name") or ""), source=source)
    if mode == "OIDC":
        return TokenRole(
            role_arn=str(profile.get("ram_role_arn") or ""),
            provider_arn=str(profile.get("oidc_provider_arn") or ""),
            token_file=str(profile.get("oidc_token_file") or ""),
            session_name=str(profile.get("role_session_name") or "trainyard"),
            seconds=int(profile.get("expired_seconds") or 3600),
            policy=str(profile.get("policy") or ""),
            source=source,
        )
    return VendorProfile(profile=name, file=str(path), source=source)


def _profile_keys(profile: Mapping[str, Any], source: str, *, with_token: bool) -> Keys:
    key_id, secret = str(profile.get("access_key_id") or ""), str(profile.get("access_key_secret") or "")
    if not key_id or not secret:
        raise DeniedError(f"{source} has no access key", hint="Run `aliyun configure`.")
    token = str(profile.get("sts_token") or "") if with_token else ""
    return Keys(access_key_id=key_id, access_key_secret=secret, security_token=token, source=source)


def _profile_role(base: Grant, profile: Mapping[str, Any], source: str) -> AssumedRole:
    return AssumedRole(
        base=base,
        role_arn=str(profile.get("ram_role_arn") or ""),
        session_name=str(profile.get("ram_session_name") or "trainyard"),
        seconds=int(profile.get("expired_seconds") or 3600),
        external_id=str(profile.get("external_id") or ""),
        policy=str(profile.get("policy") or ""),
        source=source,
    )


# -- credentials.ini --------------------------------------------------------------------------------------------------


def _from_ini_file(cloud: CloudSettings) -> Grant | None:
    default = cloud.user_home / ".alibabacloud" / "credentials.ini"
    path = Path(cloud.credentials_file) if cloud.credentials_file else default
    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read_string(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        if cloud.credentials_file:
            raise InvalidError(
                f"{path} does not exist", hint="Correct ALIBABA_CLOUD_CREDENTIALS_FILE, or unset it."
            ) from error
        return None
    except (OSError, UnicodeDecodeError, configparser.Error):
        # NB: without the parser's error, which quotes the line, and that may be the secret's.
        raise InvalidError(
            f"{path} cannot be read", hint="Write it as an INI file with a section [default]."
        ) from None
    section = cloud.profile or "default"
    if not parser.has_section(section):
        return None
    return _section_grant(parser[section], f"the section {section} of {path}")


def _section_grant(section: Mapping[str, str], source: str) -> Grant:
    kind = section.get("type", "access_key")
    if kind == "ecs_ram_role":
        return MachineRole(name=section.get("role_name", ""), source=source)
    if kind == "oidc_role_arn":
        return TokenRole(
            role_arn=section.get("role_arn", ""),
            provider_arn=section.get("oidc_provider_arn", ""),
            token_file=section.get("oidc_token_file_path", ""),
            session_name=section.get("role_session_name") or "trainyard",
            policy=section.get("policy", ""),
            source=source,
        )
    if kind not in {"access_key", "sts", "ram_role_arn"}:
        raise InvalidError(
            f"{source} has the type {kind!r}, which is not supported",
            hint="Use access_key, sts, ram_role_arn, ecs_ram_role or oidc_role_arn.",
        )
    key_id, secret = section.get("access_key_id", ""), section.get("access_key_secret", "")
    if not key_id or not secret:
        raise DeniedError(
            f"{source} has no access key", hint="Write access_key_id and access_key_secret there."
        )
    token = section.get("security_token", "") if kind == "sts" else ""
    keys = Keys(access_key_id=key_id, access_key_secret=secret, security_token=token, source=source)
    if kind != "ram_role_arn":
        return keys
    return AssumedRole(
        base=keys,
        role_arn=section.get("role_arn", ""),
        session_name=section.get("role_session_name") or "trainyard",
        policy=section.get("policy", ""),
        source=source,
    )
