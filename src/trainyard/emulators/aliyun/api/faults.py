"""The fault plan: which calls go wrong, how, and how often. From a TOML or JSON file, or over HTTP as JSON.

A plan is a list of rules. The first rule that fits a call and still has something to do decides over it; what its kind
does on the socket is `app.py`'s and `wire.py`'s matter.
"""

from __future__ import annotations

import json
import random
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from trainyard.lib.errors import InvalidError

# kind → whether it strikes before or after the effect where the rule does not say, and what it does.
KINDS = {
    "throttle": (
        "before",
        "refuses with Throttling.User, with retry_after_milliseconds as header where given",
    ),
    "error": ("before", "answers with status and code: a 500 where nothing is given"),
    "html": ("before", "answers with the HTML page of a proxy, 502 where nothing is given"),
    "empty": ("before", "answers with a status and no body"),
    "broken": ("after", "closes the connection in the middle of the body"),
    "hang": ("after", "says nothing for some seconds, then closes"),
    "cut": ("after", "resets the connection"),
    "slow": ("before", "waits some seconds, then does what was asked and answers"),
    "blind": ("after", "answers with empty lists, as for a user without the right to see"),
}
DEFAULT_SECONDS = 60.0  # beyond the ten seconds that the vendor's client waits
STATUS = {"throttle": 400, "error": 500, "html": 502, "empty": 500}
CODES = {500: "InternalError", 503: "ServiceUnavailable", 403: "Forbidden.RAM", 429: "Throttling.User"}


@dataclass(slots=True, kw_only=True)
class Rule:
    """One line of a plan, and how far it has come."""

    action: str
    """RunInstances, ecs.RunInstances, Describe*, or * for all."""
    kind: str
    when: str = ""
    """before or after the effect; each kind has its own habit."""
    skip: int = 0
    """Let so many calls pass first."""
    times: int | None = None
    """Strike so many calls; None for ever."""
    probability: float = 1.0
    seed: int = 0
    per_minute: int | None = None
    """Let so many calls pass in each minute of the emulator's clock."""
    status: int = 0
    code: str = ""
    message: str = ""
    retry_after_milliseconds: int | None = None
    seconds: float = DEFAULT_SECONDS
    seen: int = 0
    """How many calls it has looked at."""
    struck: int = 0
    """How many it has made fail."""
    _minute: str = field(default="", repr=False)
    _in_minute: int = field(default=0, repr=False)
    _random: random.Random = field(default_factory=random.Random, repr=False)

    def __post_init__(self) -> None:
        """Check what was written, and fill in what was not."""
        if self.kind not in KINDS:
            raise InvalidError(
                f"a fault of the kind {self.kind!r} is unknown", hint=f"Use one of {', '.join(KINDS)}."
            )
        self.when = self.when or KINDS[self.kind][0]
        if self.when not in {"before", "after"}:
            raise InvalidError(
                f"a fault strikes before or after the effect, not {self.when!r}", hint="Write when = 'after'."
            )
        self.status = self.status or STATUS.get(self.kind, 200)
        self._random = random.Random(self.seed)  # noqa: S311  # to be repeatable, not secret

    def fits(self, product: str, action: str) -> bool:
        """Whether it is about this call."""
        return fnmatchcase(action, self.action) or fnmatchcase(f"{product}.{action}", self.action)

    def strikes(self, now: datetime) -> bool:
        """Count one call that fits, and say whether it goes wrong."""
        self.seen += 1
        if self.seen <= self.skip or (self.times is not None and self.struck >= self.times):
            return False
        if self.per_minute is not None:
            minute = now.strftime("%Y-%m-%dT%H:%M")
            self._in_minute = self._in_minute + 1 if minute == self._minute else 1
            self._minute = minute
            if self._in_minute <= self.per_minute:
                return False
        if self.probability < 1.0 and self._random.random() >= self.probability:
            return False
        self.struck += 1
        return True


SETTABLE = frozenset(one.name for one in fields(Rule) if not one.name.startswith("_")) - {"seen", "struck"}


class Faults:
    """The plan in force."""

    def __init__(self) -> None:
        self._rules: list[Rule] = []

    def replace(self, rules: Iterable[Mapping[str, Any]]) -> None:
        """Put this plan in the place of the one before."""
        self._rules = [read_rule(one) for one in rules]

    def add(self, rule: Mapping[str, Any]) -> None:
        """One more rule, after the others."""
        self._rules.append(read_rule(rule))

    def strike(self, product: str, action: str, now: datetime) -> Rule | None:
        """The rule that makes this call fail, if one does."""
        for rule in self._rules:
            if rule.fits(product, action) and rule.strikes(now):
                return rule
        return None

    def describe(self) -> list[dict[str, Any]]:
        """The plan, with what it has done so far."""
        return [
            {name: value for name, value in asdict(rule).items() if not name.startswith("_")}
            for rule in self._rules
        ]


def read_rule(given: Mapping[str, Any]) -> Rule:
    """One rule; InvalidError names what is wrong with it."""
    for name in given:
        if name not in SETTABLE:
            raise InvalidError(f"a fault has no field {name!r}", hint=f"Use {', '.join(sorted(SETTABLE))}.")
    for name in ("action", "kind"):
        if not isinstance(given.get(name), str):
            raise InvalidError(f"a fault needs {name!r}", hint=f"Add {name} = '…' to it.")
    try:
        return Rule(**{name: _typed(name, value) for name, value in given.items()})
    except (TypeError, ValueError) as error:
        if isinstance(error, InvalidError):
            raise
        raise InvalidError(f"a fault cannot be read: {error}", hint="Correct the value.") from error


def _typed(name: str, value: Any) -> Any:
    if value is None:
        return None
    if name in {"probability", "seconds"}:
        return float(value)
    if name in {"action", "kind", "when", "code", "message"}:
        return str(value)
    return int(value)


def read_plan(path: Path) -> list[dict[str, Any]]:
    """The rules of a file: `[[fault]]` tables in TOML, or a JSON list."""
    try:
        text = path.read_text("utf-8")
    except OSError as error:
        raise InvalidError(
            f"the fault plan {path} cannot be read: {error.strerror}", hint="Correct the path."
        ) from error
    try:
        loaded = json.loads(text) if path.suffix == ".json" else tomllib.loads(text).get("fault", [])
    except ValueError as error:
        raise InvalidError(f"the fault plan {path} is no valid file: {error}", hint="Correct it.") from error
    if not isinstance(loaded, list) or not all(isinstance(one, dict) for one in loaded):
        raise InvalidError(f"the fault plan {path} is no list of faults", hint="Write [[fault]] tables.")
    for one in loaded:
        read_rule(one)
    return loaded
