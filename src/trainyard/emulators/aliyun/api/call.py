"""The values that are passed between wire, world and machines: a verified call, and the request for a machine.

No behaviour lives here beyond reading typed parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias

from trainyard.emulators.aliyun.api.problems import missing

Value: TypeAlias = "str | int | float | bool | Sequence[Value] | Mapping[str, Value] | None"
"""What JSON can hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One action that was asked for, its signature verified and its parameters typed by the schema."""

    product: str
    """ecs, vpc, nas or sts."""
    action: str
    """RunInstances."""
    parameters: Mapping[str, Value]
    """Nested: {"Tag": [{"Key": ..., "Value": ...}], "Amount": 2}."""
    region: str
    account: str
    now: datetime
    """The emulator's clock, aware, in UTC."""
    request_id: str

    def given(self, name: str) -> bool:
        """Whether the parameter was sent."""
        return name in self.parameters

    def text(self, name: str, default: str = "") -> str:
        """A parameter that is a string."""
        return text(self.parameters, name, default)

    def required(self, name: str) -> str:
        """A string that must be there and not be empty."""
        value = text(self.parameters, name)
        if not value:
            raise missing(name)
        return value

    def number(self, name: str, default: int = 0) -> int:
        """A parameter that is a whole number."""
        return number(self.parameters, name, default)

    def real(self, name: str, default: float = 0.0) -> float:
        """A parameter that is a number with a fraction."""
        return real(self.parameters, name, default)

    def flag(self, name: str, *, default: bool = False) -> bool:
        """A parameter that is true or false."""
        return flag(self.parameters, name, default=default)

    def texts(self, name: str) -> list[str]:
        """A parameter that is a list of strings; empty where it was not sent."""
        return texts(self.parameters, name)

    def struct(self, name: str) -> Mapping[str, Value]:
        """A parameter with fields; empty where it was not sent."""
        return struct(self.parameters, name)

    def structs(self, name: str) -> list[Mapping[str, Value]]:
        """A parameter that is a list of things with fields."""
        return structs(self.parameters, name)


def text(values: Mapping[str, Value], name: str, default: str = "") -> str:
    """The string under `name`."""
    value = values.get(name)
    return default if value is None else str(value)


def number(values: Mapping[str, Value], name: str, default: int = 0) -> int:
    """The whole number under `name`."""
    value = values.get(name)
    return int(value) if isinstance(value, (int, float, str)) else default


def real(values: Mapping[str, Value], name: str, default: float = 0.0) -> float:
    """The number under `name`."""
    value = values.get(name)
    return float(value) if isinstance(value, (int, float, str)) else default


def flag(values: Mapping[str, Value], name: str, *, default: bool = False) -> bool:
    """The truth value under `name`."""
    value = values.get(name)
    return value if isinstance(value, bool) else default


def texts(values: Mapping[str, Value], name: str) -> list[str]:
    """The strings under `name`."""
    value = values.get(name)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [str(one) for one in value]
    return []


def struct(values: Mapping[str, Value], name: str) -> Mapping[str, Value]:
    """The fields under `name`."""
    value = values.get(name)
    return value if isinstance(value, Mapping) else {}


def structs(values: Mapping[str, Value], name: str) -> list[Mapping[str, Value]]:
    """The list of things with fields under `name`."""
    value = values.get(name)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [one for one in value if isinstance(one, Mapping)]
    return []


# The first argument is the World; named here without importing it, since the world imports this module.
Handler: TypeAlias = Callable[[Any, Call], dict[str, Value]]


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineWish:
    """What the world wants of one machine on this computer."""

    instance_id: str
    address: str
    """The private address that the API shows."""
    public_address: str
    """What the API shows as public; may be empty."""
    hostname: str
    running: bool
    """False: exists but stopped (root folder kept, no process)."""
    authorized_keys: tuple[str, ...]
    password: str
    """May be empty."""
    user_data: bytes
    """Decoded."""
    boot: int
    """Counts boots; UserData runs at the first of a system disk only, services start at each."""
    disk: str = ""
    """The system disk; with another one the machine begins anew."""
