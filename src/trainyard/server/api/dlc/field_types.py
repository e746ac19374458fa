"""The values of a request of DLC's clients, by the type that they are to have. Pure. What they mean is translate.py's and job_options.py's.

Clients write numbers and switches as texts or as themselves, and both are taken. What has another type is refused by the name
of its key: half of a wrong request would otherwise become a job that nobody asked for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from trainyard.lib.errors import InvalidError

LARGEST = 1e9
_SIZE = re.compile(r"\s*(\d{1,15}(?:\.\d{1,15})?)\s*([KMGT]?)i?B?\s*\Z", re.IGNORECASE | re.ASCII)
# Without a unit: GB, as the light edition. With or without an i: people write 64G and mean what the machine has.
_UNITS = {"": 2**30, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def mapping(body: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """An object; an empty one where there is none."""
    given = body.get(key) or {}
    if not isinstance(given, Mapping):
        raise InvalidError(f"{key} is not an object.", hint='Write {"NAME": "value"}.')
    return given


def words(body: Mapping[str, Any], key: str) -> dict[str, str]:
    """An object of texts; numbers and switches are taken as they are written."""
    found = {}
    for name, value in mapping(body, key).items():
        if not isinstance(value, str | int | float | None):
            raise InvalidError(f"{key}.{name} is not a text.", hint="Write it in quotes.")
        found[name] = "" if value is None else str(value)
    return found


def texts(body: Mapping[str, Any], key: str, where: str = "") -> tuple[str, ...]:
    """A list of texts."""
    given = body.get(key) or []
    if not isinstance(given, list) or not all(isinstance(one, str) for one in given):
        raise InvalidError(f"{_name(key, where)} is not a list of texts.", hint='Write ["one", "two"].')
    return tuple(given)


def objects(body: Mapping[str, Any], key: str, hint: str) -> list[Mapping[str, Any]]:
    """A list of objects."""
    given = body.get(key) or []
    if not isinstance(given, list) or not all(isinstance(one, Mapping) for one in given):
        raise InvalidError(f"{key} is not a list of objects.", hint=hint)
    return given


def text(body: Mapping[str, Any], key: str, where: str = "") -> str:
    """A text; empty where there is none."""
    given = body.get(key)
    if given is None or given is False:
        return ""
    if not isinstance(given, str | int | float):
        raise InvalidError(f"{_name(key, where)} is not a text.", hint="Write it in quotes.")
    try:
        return str(given or "")
    except ValueError as error:  # a number of thousands of digits
        raise InvalidError(f"{_name(key, where)} is out of range.", hint="Write it in quotes.") from error


def switch(body: Mapping[str, Any], key: str, where: str = "") -> bool:
    """True or false, also as a text."""
    given = body.get(key)
    if given is None or isinstance(given, bool):
        return bool(given)
    written = given.lower() if isinstance(given, str) else ""
    if written not in {"true", "false"} and given != "":
        raise InvalidError(f"{_name(key, where)} is neither true nor false.", hint="Write true or false.")
    return written == "true"


def number(body: Mapping[str, Any], key: str, default: float, where: str = "") -> float:
    """A number from 0, also as a text."""
    given = body.get(key)
    if given is None or given == "":
        return default
    name = _name(key, where)
    if isinstance(given, bool) or not isinstance(given, str | int | float):
        raise InvalidError(f"{name} is not a number.", hint="Write it like 4.")
    try:
        found = float(given)
    except ValueError as error:
        raise InvalidError(f"{name} {given!r} is not a number.", hint="Write it like 4.") from error
    except OverflowError:
        found = -1.0
    if not 0 <= found <= LARGEST:
        raise InvalidError(f"{name} is out of range.", hint=f"Give a number from 0 to {LARGEST:.0f}.")
    return found


def whole(body: Mapping[str, Any], key: str, default: int, where: str = "") -> int:
    """A whole number from 0."""
    found = number(body, key, default, where)
    if found != int(found):
        raise InvalidError(
            f"{_name(key, where)} {body.get(key)!r} is not a whole number.", hint="Write it like 4."
        )
    return int(found)


def parse_memory(given: object, key: str) -> int:
    """MiB of `4`, `4Gi`, `512Mi` or `4GB`: a bare number is GB."""
    if given is None or given in ("", 0, "0"):
        return 0
    is_readable = isinstance(given, str | float) or (isinstance(given, int) and abs(given) < LARGEST)
    found = _SIZE.match(str(given)) if is_readable and not isinstance(given, bool) else None
    if found is None:
        shown = f" {given!r}"[:42] if is_readable else ""
        raise InvalidError(
            f"{key}{shown} is not an amount of memory.", hint="Write it like 64Gi, or 64 for GB."
        )
    amount, unit = found.groups()
    return int(float(amount) * _UNITS[unit.upper()]) // 2**20


def _name(key: str, where: str) -> str:
    return f"{where}.{key}" if where else key
