"""When a call may be sent again, and when.

    safe     reads, and writes that say the same when said twice: after throttling, a server's fault, silence
    token    creates with a ClientToken: the same, with the same token and the same parameters
    unsafe   all else: only where it is certain that nothing happened

A time-out says nothing about what happened on the other side. Deciding is pure (`wait_before_retry`); `persist` does the
waiting. `error_codes.py` says which codes pass in a moment.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import TypeVar

from trainyard.backends.aliyun.api.errors import (
    Failure,
    Refused,
    Unanswered,
    is_busy,
    is_throttled,
    may_have_happened,
)
from trainyard.lib.clock import Clock

T = TypeVar("T")

MINUTE = 60.0  # limits are counted by the minute: throttled in one, served in the next
MARGIN_SECONDS = 0.2  # into the new minute: clocks differ a little
SPREAD_SECONDS = 1.5  # so that many clients do not all come back at the first moment of a minute
PROBE_SECONDS = 1.0  # after throttling, calls of that action go out one a second, as the provider advises


class Kind(StrEnum):
    """What a second sending of a call would do."""

    SAFE = "safe"
    TOKEN = "token"  # noqa: S105  # not a password
    UNSAFE = "unsafe"


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How long and how often to retry."""

    total_seconds: float = 300.0  # with all waits; some throttled minutes fit in
    tries: int = 60  # of any kind, whatever the clock says
    fault_tries: int = 6  # a server's fault or silence
    connect_tries: int = 3  # nobody listens, or no such name: a wrong setting is told soon
    first_seconds: float = 0.5
    longest_seconds: float = 20.0
    longest_busy_seconds: float = 5.0


def wait_before_retry(
    failure: Failure, *, kind: Kind, tried: int, policy: Policy, now: datetime, chance: float
) -> float | None:
    """Seconds to wait after `tried` failed tries, or None to give up. `chance` in [0, 1) spreads clients."""
    if tried >= policy.tries:
        return None
    if isinstance(failure, Refused) and is_throttled(failure.code):
        return _throttled_wait(failure, now, chance)
    if isinstance(failure, Refused) and is_busy(failure.code):
        return _backoff(tried, 1.0, policy.longest_busy_seconds, chance)
    if isinstance(failure, Unanswered) and failure.is_final:
        return None
    if not may_have_happened(failure):
        is_silent = isinstance(failure, Unanswered)
        return _backoff(tried, 0.5, 2.0, chance) if is_silent and tried < policy.connect_tries else None
    if kind is Kind.UNSAFE or tried >= policy.fault_tries:
        return None
    return _backoff(tried, policy.first_seconds, policy.longest_seconds, chance)


def _throttled_wait(failure: Refused, now: datetime, chance: float) -> float:
    if failure.retry_after_seconds > 0:
        return failure.retry_after_seconds + chance * 0.1
    into_the_minute = now.second + now.microsecond / 1e6
    return MINUTE - into_the_minute + MARGIN_SECONDS + chance * SPREAD_SECONDS


def _backoff(tried: int, first: float, longest: float, chance: float) -> float:
    step = min(longest, first * 2.0 ** (tried - 1))
    return float(step * (0.5 + chance / 2))  # half of it is certain, half spreads


@dataclass(slots=True)
class ThrottleGate:
    """Makes all calls of a throttled action wait and then go out one by one."""

    _closed_until: dict[object, float] = field(default_factory=dict)
    _next_place: dict[object, float] = field(default_factory=dict)

    def hold(self, key: object, until: float) -> None:
        """No call of this action before `until`; for a minute after it, one a second."""
        self._closed_until[key] = max(until, self._closed_until.get(key, 0.0))

    def is_closed(self, key: object, now: float) -> bool:
        """Whether calls of this action wait for the next window."""
        return now < self._closed_until.get(key, 0.0)

    def reserve(self, key: object, now: float) -> float:
        """Seconds that the next call of this action must wait; its place in the row is taken by asking."""
        closed_until = self._closed_until.get(key)
        if closed_until is None:
            return 0.0
        if now >= closed_until + MINUTE:
            del self._closed_until[key]
            self._next_place.pop(key, None)
            return 0.0
        at = max(now, closed_until, self._next_place.get(key, 0.0))
        self._next_place[key] = at + PROBE_SECONDS
        return at - now


@dataclass(slots=True)
class Attempt:
    """The state of a running call, for a caller that cancels it."""

    may_have_happened: bool = False


async def persist(
    send: Callable[[], Awaitable[T]],
    *,
    kind: Kind,
    key: object,
    gate: ThrottleGate,
    clock: Clock,
    policy: Policy | None = None,
    notice: Callable[[Failure, float], None] | None = None,
    chance: Callable[[], float] = random.random,
    attempt: Attempt | None = None,
) -> T:
    """Send until there is an answer, or until sending again would be wrong or too late; then raises the last failure.

    `send` must send the same thing each time. `notice` hears of each failure that is waited out.
    """
    policy, attempt = policy or Policy(), attempt or Attempt()
    started = clock.monotonic()
    failure: Failure = Refused("Throttling", "other calls of this program wait for the same limit")
    is_open = attempt.may_have_happened  # a try that may have had its effect, with earlier keys perhaps
    for tried in range(1, policy.tries + 1):
        while row := gate.reserve(key, clock.monotonic()):
            if clock.monotonic() - started + row > policy.total_seconds:
                raise failure
            await clock.sleep(row)
            if not gate.is_closed(key, clock.monotonic()):  # another call may have been throttled meanwhile
                break
        attempt.may_have_happened = True
        try:
            return await send()
        except (Refused, Unanswered) as error:
            error.is_after_silence = is_open
            is_open = attempt.may_have_happened = is_open or may_have_happened(error)
            failure = error
        wait = wait_before_retry(
            failure, kind=kind, tried=tried, policy=policy, now=clock.now(), chance=chance()
        )
        if wait is None or clock.monotonic() - started + wait > policy.total_seconds:
            raise failure
        if notice:
            notice(failure, wait)
        if isinstance(failure, Refused) and is_throttled(failure.code):
            gate.hold(key, clock.monotonic() + wait)  # the next round waits in the row with the others
        else:
            await clock.sleep(wait)
    raise failure
