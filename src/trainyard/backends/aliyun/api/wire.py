"""The format of values in Alibaba's API: flattened parameters, nested lists in answers, times with or without seconds.

Pure conversions. `client.py` sends requests.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, TypeAlias

Parameter: TypeAlias = (
    "str | int | float | bool | Decimal | datetime | Sequence[Parameter] | Mapping[str, Parameter] | None"
)
Answer: TypeAlias = dict[str, Any]  # JSON as it came: the provider adds fields when it likes

TIME_FORMATS = ("%Y-%m-%dT%H:%M:%SZ", "%Y-%m-%dT%H:%MZ")  # some actions leave the seconds out


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a product answers: host, with port where it is not the usual one, and http or https."""

    host: str
    protocol: str = "https"


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """What a call is signed with. `source` says in words where it was found."""

    access_key_id: str
    access_key_secret: str = field(repr=False)
    security_token: str = field(default="", repr=False)
    expires: datetime | None = None
    source: str = ""

    def scrub(self, text: str) -> str:
        """The text without our secrets, should the provider have echoed one."""
        for secret in (self.access_key_secret, self.security_token):
            if secret:
                text = text.replace(secret, "***")
        return text


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One call, ready to be signed and sent. Without keys it is sent anonymously, as OIDC wants it."""

    endpoint: Endpoint
    version: str
    action: str
    form: Mapping[str, str] = field(repr=False)  # may hold user data and passwords
    keys: Keys | None
    connect_seconds: float
    read_seconds: float


def flatten(parameters: Mapping[str, Parameter]) -> dict[str, str]:
    """`{"Tag": [{"Key": "a"}], "DryRun": True}` → `{"DryRun": "true", "Tag.1.Key": "a"}`, sorted; None is left out."""
    return dict(sorted(pair for name, value in parameters.items() for pair in _flat(name, value)))


def _flat(name: str, value: Parameter) -> Iterator[tuple[str, str]]:
    if value is None:
        return
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(f"{name}.{key}", inner)
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for number, inner in enumerate(value, start=1):
            yield from _flat(f"{name}.{number}", inner)
    elif isinstance(value, bool):
        yield name, "true" if value else "false"
    elif isinstance(value, datetime):
        yield name, format_time(value)
    else:
        yield name, str(value)


def json_list(values: Sequence[str]) -> str:
    """The few parameters that are JSON by contract, such as InstanceIds. NB: an empty list is a filter too."""
    return json.dumps(list(values), separators=(",", ":"))


def rows(answer: Mapping[str, Any], path: str) -> list[dict[str, Any]]:
    """The list under `Instances.Instance`; empty also where the wrapper is missing, null or an empty text."""
    found = _dig(answer, path)
    return [row for row in found if isinstance(row, dict)] if isinstance(found, list) else []


def texts(answer: Mapping[str, Any], path: str) -> tuple[str, ...]:
    """The list of strings under `PublicIpAddress.IpAddress`; empty where anything on the way is missing."""
    found = _dig(answer, path)
    return tuple(str(item) for item in found if item) if isinstance(found, list) else ()


def text(answer: Mapping[str, Any], path: str) -> str:
    """The string, or number as string, under `VpcAttributes.VpcId`; empty where anything on the way is missing."""
    found = _dig(answer, path)
    return "" if found is None or isinstance(found, (dict, list)) else str(found)


def number(answer: Mapping[str, Any], path: str) -> Decimal:
    """The number there, exact; 0 where it is missing or no number."""
    try:
        return Decimal(text(answer, path) or "0")
    except ArithmeticError:
        return Decimal(0)


def _dig(answer: Mapping[str, Any], path: str) -> Any:
    found: Any = answer
    for name in path.split("."):
        if not isinstance(found, Mapping):
            return None
        found = found.get(name)
    return found


def tags(answer: Mapping[str, Any]) -> dict[str, str]:
    """The tags of a resource: ECS says TagKey and TagValue, VPC and NAS say Key and Value."""
    return {
        str(row.get("TagKey") or row.get("Key")): str(row.get("TagValue") or row.get("Value") or "")
        for row in rows(answer, "Tags.Tag")
        if row.get("TagKey") or row.get("Key")
    }


def parse_time(value: str) -> datetime | None:
    """A time of the provider, in either of its forms; None where there is none."""
    for form in TIME_FORMATS:
        try:
            return datetime.strptime(value, form).replace(tzinfo=UTC)
        except ValueError:
            continue
    return None


def format_time(moment: datetime) -> str:
    """A time as the provider reads it."""
    return moment.astimezone(UTC).strftime(TIME_FORMATS[0])
