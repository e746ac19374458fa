"""Helpers for all actions: times, tags, pages, ids given as JSON, dry runs."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import TypeVar

from trainyard.emulators.aliyun.api.call import Call, Value, text
from trainyard.emulators.aliyun.api.problems import Problem, denied, not_found
from trainyard.emulators.aliyun.cloud.catalogue import REGIONS

Row = TypeVar("Row")
DEFAULT_PAGE = 10


def minute(moment: datetime | None) -> str:
    """The provider's usual precision: `2017-12-10T04:04Z`; empty for never."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%MZ") if moment else ""


def second(moment: datetime | None) -> str:
    """The precision of VPC, Cloud Assistant and events; empty for never."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if moment else ""


def parse_time(value: str) -> datetime | None:
    """A moment with or without seconds; None for anything else."""
    for form in ("%Y-%m-%dT%H:%M:%SZ", "%Y-%m-%dT%H:%MZ"):
        try:
            return datetime.strptime(value, form).replace(tzinfo=UTC)
        except ValueError:
            continue
    return None


# --- tags


def ecs_tags(tags: Mapping[str, str]) -> Value:
    """Tags as ECS shows them."""
    return {"Tag": [{"TagKey": key, "TagValue": value} for key, value in tags.items()]}


def plain_tags(tags: Mapping[str, str]) -> Value:
    """Tags as VPC and NAS show them."""
    return {"Tag": [{"Key": key, "Value": value} for key, value in tags.items()]}


def read_tags(given: Sequence[Mapping[str, Value]], most: int = 20) -> dict[str, str]:
    """Tags of a request, judged."""
    if len(given) > most:
        raise Problem("InvalidTagCount", "The specified tags are beyond the permitted range.")
    tags: dict[str, str] = {}
    for one in given:
        key, value = text(one, "Key"), text(one, "Value")
        if not 1 <= len(key) <= 128 or key.lower().startswith(("aliyun", "acs:")) or "://" in key:
            raise Problem("InvalidTagKey.Malformed", f"The specified Tag.n.Key is not valid: {key!r}.")
        if len(value) > 128 or "://" in value:
            raise Problem("InvalidTagValue.Malformed", "The specified Tag.n.Value is not valid.")
        if key in tags:
            raise Problem("Duplicate.TagKey", f"The Tag.N.Key contain duplicate key: {key}.")
        tags[key] = value
    return tags


def has_tags(tags: Mapping[str, str], wanted: Sequence[Mapping[str, Value]]) -> bool:
    """Whether all wanted tags are there; one without a value matches any."""
    return all(
        text(one, "Key") in tags and text(one, "Value") in {"", tags[text(one, "Key")]} for one in wanted
    )


# --- pages


def by_number(
    call: Call, rows: Sequence[Row], show: Callable[[Row], Value], *, most: int = 50
) -> tuple[list[Value], dict[str, Value]]:
    """One page by PageNumber and PageSize, and the fields that say which."""
    number, size = call.number("PageNumber", 1), call.number("PageSize", DEFAULT_PAGE)
    if number < 1:
        raise Problem("InvalidParameter", "The specified parameter PageNumber is not valid.")
    if not 1 <= size <= most:
        raise Problem("InvalidParameter", f"The specified parameter PageSize is not valid: 1 to {most}.")
    start = (number - 1) * size
    shown = [show(row) for row in rows[start : start + size]]
    return shown, {"TotalCount": len(rows), "PageNumber": number, "PageSize": size}


def by_token(
    call: Call,
    rows: Sequence[Row],
    show: Callable[[Row], Value],
    *,
    name: Callable[[Row], str],
    most: int = 100,
    least: int = 1,
) -> tuple[list[Value], dict[str, Value]]:
    """One page by NextToken and MaxResults if either was sent, else by number.

    A token remembers the last row by name, so that rows which vanish between two pages don't hide others.
    """
    if not call.text("NextToken") and not call.given("MaxResults"):
        shown, fields = by_number(call, rows, show, most=most)
        return shown, {**fields, "NextToken": ""}
    size = call.number("MaxResults", DEFAULT_PAGE)
    if not 1 <= size <= most:
        raise Problem("InvalidParameter", f"The specified parameter MaxResults is not valid: 1 to {most}.")
    size = max(size, least)
    start = _start(call.text("NextToken"), [name(row) for row in rows])
    part = rows[start : start + size]
    more = start + size < len(rows)
    token = _token(start + size, name(part[-1])) if more else ""
    # The documentation calls TotalCount void in this mode, so nobody may lean on it.
    return [show(row) for row in part], {"TotalCount": 0, "PageSize": size, "NextToken": token}


def _token(offset: int, last: str) -> str:
    return base64.urlsafe_b64encode(json.dumps([offset, last]).encode()).decode()


def _start(token: str, names: list[str]) -> int:
    if not token:
        return 0
    try:
        offset, last = json.loads(base64.urlsafe_b64decode(token.encode()))
        return names.index(last) + 1 if last in names else int(offset)
    except (ValueError, binascii.Error) as error:
        raise Problem("InvalidParameter.NextToken", "The specified NextToken is not valid.") from error


# --- requests


def json_list(call: Call, name: str, *, most: int = 100) -> list[str] | None:
    """A parameter that is a JSON list in a string; None where it was not sent, which differs from `[]`."""
    value = call.parameters.get(name)
    if value is None or value == "":
        return None
    found = value if not isinstance(value, str) else _loads(name, value)
    if isinstance(found, str) or not isinstance(found, Sequence):
        found = [found]
    if len(found) > most:
        raise Problem(f"Invalid{name}.Malformed", f"The amount of specified {name} exceeds {most}.")
    return [str(one) for one in found]


def _loads(name: str, value: str) -> Value:
    try:
        found: Value = json.loads(value)
        return found
    except ValueError as error:
        raise Problem(f"Invalid{name}.Malformed", f"The specified {name} is not a JSON array.") from error


def comma_list(call: Call, name: str, *, most: int = 20) -> list[str]:
    """A parameter that is a list with commas, as VPC takes ids."""
    found = [one.strip() for one in call.text(name).split(",") if one.strip()]
    if len(found) > most:
        raise Problem(f"Invalid{name}.Malformed", f"The amount of specified {name} exceeds {most}.")
    return found


def refuse_dry_run(call: Call) -> None:
    """End a dry run that found nothing wrong: success is an error here."""
    if call.flag("DryRun"):
        raise Problem("DryRunOperation", "Request validation has been passed with DryRun flag set.")


def require_region(call: Call) -> str:
    """The region of a call, if there is such a one."""
    if call.region not in REGIONS:
        raise not_found("InvalidRegionId.NotFound", f"The specified RegionId does not exist: {call.region}.")
    return call.region


def matches(pattern: str, value: str) -> bool:
    """Whether a filter with `*` fits; an empty filter fits everything."""
    return not pattern or fnmatchcase(value, pattern.replace("[", "[[]"))


def require_limit(used: int, limit: int, code: str, message: str) -> None:
    """Refuse one more than a quota allows."""
    if used >= limit:
        raise denied(code, message)
