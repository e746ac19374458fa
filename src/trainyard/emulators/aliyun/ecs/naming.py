"""Names of instances as RunInstances makes them: sequences such as `task[0,3]`, suffixes, host names."""

from __future__ import annotations

import re

from trainyard.emulators.aliyun.api.problems import Problem

_NAME = re.compile(r"[^\W\d_][\w:.\-]{1,127}")
_SEQUENCE = re.compile(r"(?P<before>.*)\[(?P<begin>\d{0,6}),(?P<bits>[0-6]?)\](?P<after>.*)", re.DOTALL)
_LABEL = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?")
_PLACEHOLDER = "${instance_id}"


def check_name(name: str) -> None:
    """Refuse a name that ECS doesn't take: 2 to 128 characters, a letter first, then also digits and `:_.-`."""
    if not _NAME.fullmatch(name) or name.startswith(("http://", "https://")):
        raise Problem("InvalidInstanceName.Malformed", f"The specified InstanceName is not valid: {name!r}.")


def check_hostname(name: str) -> None:
    """Refuse a host name that Linux images don't take."""
    labels = name.replace(_PLACEHOLDER, "i").split(".")
    if not 2 <= len(name) <= 64 or not all(_LABEL.fullmatch(label) for label in labels):
        raise Problem("InvalidHostName.Malformed", f"The specified HostName is not valid: {name!r}.")


def series(pattern: str, amount: int, *, unique: bool) -> list[str]:
    """One name for each of `amount` instances: numbered if the pattern says so, alike otherwise.

    `name[begin,bits]suffix` counts from begin with at least so many digits; UniqueSuffix appends 001, 002…
    """
    sequence = _SEQUENCE.fullmatch(pattern)
    if sequence:
        begin, bits = int(sequence["begin"] or 0), int(sequence["bits"] or 0)
        return [
            f"{sequence['before']}{number:0{bits}d}{sequence['after']}"
            for number in range(begin, begin + amount)
        ]
    if unique and amount > 1:
        return [f"{pattern}{number:03d}" for number in range(1, amount + 1)]
    return [pattern] * amount


def with_id(name: str, instance_id: str) -> str:
    """A host name with its placeholder filled in."""
    return name.replace(_PLACEHOLDER, instance_id)


def default_hostname(instance_id: str) -> str:
    """What the provider's images call themselves: `iZ2ze…Z`."""
    return f"iZ{instance_id.removeprefix('i-')}Z"
