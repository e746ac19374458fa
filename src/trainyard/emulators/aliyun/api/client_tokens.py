"""ClientTokens: a call that is repeated with the same token and parameters happens once and is answered alike.

Answers are kept for a day of the emulator's clock. What is done here is in memory; `store.py` saves it together with
the world, so that an effect and its token are never apart.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any

from trainyard.emulators.aliyun.api.call import Call, Value
from trainyard.emulators.aliyun.api.problems import Problem, denied

KEPT = timedelta(hours=24)
LENGTH = 64

# Products and actions name the same two refusals differently.
MISMATCH = {("ecs", "CreateImage"): "IdempotenceParamNotMatch"}
BUSY = {
    ("ecs", "CreateSecurityGroup"): "IdempotentProcessing",
    ("vpc", "*"): "OperationFailed.IdempotentTokenProcessing",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembered:
    """What a token stood for."""

    key: str
    parameters: str
    """A digest."""
    body: Mapping[str, Value]
    at: str
    """When, in ISO form."""


class Tokens:
    """The tokens of all accounts."""

    def __init__(self) -> None:
        self._done: dict[str, Remembered] = {}
        self._busy: dict[str, str] = {}

    def begin(self, call: Call) -> Mapping[str, Value] | None:
        """The answer that this call got before, or None where it has to be done; then `finish` or `give_up` follow."""
        token = call.text("ClientToken")
        if not token or call.flag("DryRun"):
            return None
        if len(token) > LENGTH or not token.isascii():
            raise Problem("InvalidClientToken.Malformed", "The specified ClientToken is not valid.")
        key, digest = _key(call), _digest(call)
        if key in self._busy:
            if self._busy[key] != digest:
                raise _mismatch(call)
            raise denied(_busy_code(call), "The previous request with this ClientToken is being processed.")
        remembered = self._done.get(key)
        if remembered is None or datetime.fromisoformat(remembered.at) + KEPT < call.now:
            self._busy[key] = digest
            return None
        if remembered.parameters != digest:
            raise _mismatch(call)
        return remembered.body

    def finish(self, call: Call, body: Mapping[str, Value]) -> None:
        """The call has had its effect."""
        key = _key(call)
        if not call.flag("DryRun") and self._busy.pop(key, None) is not None:
            self._done[key] = Remembered(
                key=key, parameters=_digest(call), body=body, at=call.now.isoformat()
            )

    def give_up(self, call: Call) -> None:
        """The call has had no effect: its token is as good as new."""
        if not call.flag("DryRun"):
            self._busy.pop(_key(call), None)

    def forget_old(self, now: datetime) -> None:
        """Let go of what is older than a day."""
        self._done = {
            key: one for key, one in self._done.items() if datetime.fromisoformat(one.at) + KEPT >= now
        }

    def save(self) -> list[dict[str, Any]]:
        """For the store."""
        return [asdict(one) for one in self._done.values()]

    def load(self, saved: Iterable[dict[str, Any]]) -> None:
        """From the store."""
        self._done = {one["key"]: Remembered(**one) for one in saved}


def _key(call: Call) -> str:
    return " ".join([call.account, call.region, call.product, call.action, call.text("ClientToken")])


def _digest(call: Call) -> str:
    text = json.dumps(call.parameters, sort_keys=True, default=dict)
    return hashlib.sha256(text.encode()).hexdigest()


def _busy_code(call: Call) -> str:
    return BUSY.get((call.product, call.action)) or BUSY.get((call.product, "*")) or "LastTokenProcessing"


def _mismatch(call: Call) -> Problem:
    return Problem(
        MISMATCH.get((call.product, call.action), "IdempotentParameterMismatch"),
        "The request uses a client token in a previous request but is not identical to that request.",
    )
