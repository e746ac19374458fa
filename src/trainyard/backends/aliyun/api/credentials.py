"""Gets keys from a grant: assumes roles, asks the machine or an address, and renews keys in time. Keys stay in memory.

`profiles.py` chooses the grant.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

from trainyard.backends.aliyun.api.instance_metadata import ADDRESS, Metadata, fetch
from trainyard.backends.aliyun.api.profiles import (
    AssumedRole,
    Grant,
    KeysAddress,
    MachineRole,
    TokenRole,
    VendorProfile,
    find_grant,
)
from trainyard.backends.aliyun.api.threads import in_thread
from trainyard.backends.aliyun.api.wire import Answer, Keys, Parameter, parse_time, text
from trainyard.lib.clock import Clock
from trainyard.lib.errors import DeniedError, InvalidError
from trainyard.settings import CloudSettings

EARLY = timedelta(minutes=5)  # temporary keys are renewed before a long call can outlive them

CallSts = Callable[[str, Mapping[str, Parameter], Keys | None], Awaitable[Answer]]


class Credentials:
    """Gives the keys to sign with, the same ones until they are about to expire."""

    def __init__(self, cloud: CloudSettings, *, clock: Clock, call_sts: CallSts) -> None:
        self._cloud = cloud
        self._clock = clock
        self._call_sts = call_sts
        self._grant: Grant | None = None
        self._keys: Keys | None = None
        self._renewing = asyncio.Lock()

    @property
    def source(self) -> str:
        """Where the keys come from, in words; empty before the first use."""
        return self._grant.source if self._grant else ""

    async def keys(self) -> Keys:
        """Keys that are good for some minutes more."""
        async with self._renewing:
            if self._keys is None or self._is_expiring(self._keys):
                self._grant = self._grant or find_grant(self._cloud)
                self._keys = await self._exchange(self._grant)
            return self._keys

    def forget(self, keys: Keys) -> bool:
        """The provider says that these keys have expired; whether there may be new ones."""
        if self._keys == keys:
            self._keys = None
        return self._grant is not None and not isinstance(self._grant, Keys)

    def _is_expiring(self, keys: Keys) -> bool:
        return keys.expires is not None and self._clock.now() + EARLY >= keys.expires

    async def _exchange(self, grant: Grant) -> Keys:
        match grant:
            case Keys():
                return grant
            case AssumedRole():
                return await self._assume(grant)
            case TokenRole():
                return await self._assume_with_token(grant)
            case MachineRole():
                return await in_thread(lambda: _machine_keys(grant, self._metadata()))
            case KeysAddress():
                return await in_thread(lambda: _fetched_keys(grant))
            case VendorProfile():
                return await in_thread(lambda: _vendor_keys(grant))

    async def _assume(self, role: AssumedRole) -> Keys:
        base = await self._exchange(role.base)
        parameters: dict[str, Parameter] = {
            "RoleArn": role.role_arn,
            "RoleSessionName": role.session_name,
            "DurationSeconds": role.seconds,
            "ExternalId": role.external_id or None,
            "Policy": role.policy or None,
        }
        answer = await self._call_sts("AssumeRole", parameters, base)
        return _read_keys(_part(answer, "Credentials"), role.source)

    async def _assume_with_token(self, role: TokenRole) -> Keys:
        try:
            token = Path(role.token_file).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidError(
                f"the OIDC token file {role.token_file!r} cannot be read",
                hint="Correct ALIBABA_CLOUD_OIDC_TOKEN_FILE.",
            ) from error
        parameters: dict[str, Parameter] = {
            "RoleArn": role.role_arn,
            "OIDCProviderArn": role.provider_arn,
            "OIDCToken": token,
            "RoleSessionName": role.session_name,
            "DurationSeconds": role.seconds,
            "Policy": role.policy or None,
        }
        answer = await self._call_sts("AssumeRoleWithOIDC", parameters, None)
        return _read_keys(_part(answer, "Credentials"), role.source)

    def _metadata(self) -> Metadata:
        return Metadata(
            url=self._cloud.metadata_url or ADDRESS, is_token_needed=self._cloud.is_metadata_token_needed
        )


def _machine_keys(role: MachineRole, metadata: Metadata) -> Keys:
    name = role.name or (metadata.read("ram/security-credentials/") or "").strip()
    found = metadata.read(f"ram/security-credentials/{name}") if name else None
    if not found:
        raise DeniedError(
            f"this machine has no RAM role {name}".rstrip(),
            hint="Attach a RAM role to it, or set ALIYUN_ACCESS_KEY_ID and ALIYUN_ACCESS_KEY_SECRET.",
        )
    return _read_keys(_parse(found, role.source), role.source)


def _fetched_keys(address: KeysAddress) -> Keys:
    found = fetch(address.url)
    if not found:
        raise DeniedError(
            "the address in ALIBABA_CLOUD_CREDENTIALS_URI gives no keys",
            hint="Correct it, or set ALIYUN_ACCESS_KEY_ID and ALIYUN_ACCESS_KEY_SECRET.",
        )
    return _read_keys(_parse(found, address.source), address.source)


def _vendor_keys(profile: VendorProfile) -> Keys:
    vendor = import_module("trainyard.backends.aliyun.api.vendor_client")
    keys: Keys = vendor.profile_keys(profile.profile, profile.file)
    return keys


def _part(answer: Answer, name: str) -> Answer:
    found = answer.get(name)
    return found if isinstance(found, dict) else {}


def _parse(found: str, source: str) -> Answer:
    try:
        data: Any = json.loads(found)
    except ValueError:
        data = None
    if not isinstance(data, dict):
        raise DeniedError(
            f"{source} gives no keys", hint="Set ALIYUN_ACCESS_KEY_ID and ALIYUN_ACCESS_KEY_SECRET."
        )
    return data


def _read_keys(answer: Answer, source: str) -> Keys:
    keys = Keys(
        access_key_id=text(answer, "AccessKeyId"),
        access_key_secret=text(answer, "AccessKeySecret"),
        security_token=text(answer, "SecurityToken"),
        expires=parse_time(text(answer, "Expiration")),
        source=source,
    )
    if not keys.access_key_id or not keys.access_key_secret:
        raise DeniedError(
            f"{source} gives no keys", hint="Set ALIYUN_ACCESS_KEY_ID and ALIYUN_ACCESS_KEY_SECRET."
        )
    return keys
