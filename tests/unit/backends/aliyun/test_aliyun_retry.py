"""The three classes of calls: what may be sent again, when, and how long."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainyard.backends.aliyun.api.error_codes import BUSY
from trainyard.backends.aliyun.api.errors import Failure, Refused, Unanswered, is_throttled, may_have_happened
from trainyard.backends.aliyun.api.retry import (
    MINUTE,
    Attempt,
    Kind,
    Policy,
    ThrottleGate,
    persist,
    wait_before_retry,
)
from trainyard.lib.clock import ManualClock, SystemClock

THROTTLING = (
    "Throttling",
    "Throttling.User",
    "Throttling.Api",
    "Throttling.Resource",
    "Throttling.ConcurrentLimitExceeded",
    "Rejected.Throttling",
)


@dataclass(frozen=True)
class Step:
    """One sending: how it ends for the client, how long it takes, and whether it has its effect on the other side."""

    failure: Failure | None
    seconds: float = 0.0
    takes_effect: bool = False


def refused(code: str, status: int = 400, after: float = 0.0) -> Refused:
    return Refused(code, "no", status=status, retry_after_seconds=after)


throttles = st.builds(
    refused,
    st.sampled_from(THROTTLING),
    st.sampled_from([400, 429, 503]),
    st.sampled_from([0.0, 0.0, 0.5, 7.0, 90.0]),
)
steps = st.one_of(
    st.builds(Step, throttles, st.floats(0, 2)),
    st.builds(Step, st.builds(refused, st.sampled_from(sorted(BUSY))), st.floats(0, 2)),
    st.builds(
        Step,
        st.builds(refused, st.sampled_from(["OperationDenied.NoStock", "InvalidParameter", "Who.Knows"])),
        st.floats(0, 2),
    ),
    st.builds(
        Step,
        st.builds(refused, st.just("InternalError"), st.sampled_from([500, 502, 503])),
        st.floats(0, 20),
        st.booleans(),
    ),
    st.builds(
        Step, st.builds(Unanswered, st.just("cut"), is_sent=st.just(True)), st.floats(0, 60), st.booleans()
    ),
    st.builds(Step, st.builds(Unanswered, st.just("no one there"), is_sent=st.just(False)), st.floats(0, 5)),
    st.just(Step(None, takes_effect=True)),
)


@dataclass
class Provider:
    """Plays a script on a clock and notes when it was asked."""

    script: list[Step]
    clock: ManualClock
    asked_at: list[float] = field(default_factory=list)
    played: list[Step] = field(default_factory=list)

    async def send(self) -> str:
        step = (
            self.script[len(self.played)]
            if len(self.played) < len(self.script)
            else Step(None, takes_effect=True)
        )
        self.asked_at.append(self.clock.monotonic())
        self.played.append(step)
        self.clock.advance(step.seconds)
        if step.failure:
            raise step.failure
        return "done"


def run(
    script: list[Step], kind: Kind, *, start_second: float = 0.0, chance: float = 0.5
) -> tuple[Provider, Failure | None]:
    clock = ManualClock(datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=start_second))
    provider = Provider(script, clock)

    async def go() -> Failure | None:
        try:
            await persist(
                provider.send, kind=kind, key="a", gate=ThrottleGate(), clock=clock, chance=lambda: chance
            )
        except (Refused, Unanswered) as error:
            return error
        return None

    return provider, asyncio.run(go())


scripts = st.lists(steps, max_size=12)
moments = st.floats(0, 59.999)
chances = st.floats(0, 1, exclude_max=True)


@given(scripts, moments, chances)
@settings(deadline=None)
def test_an_unsafe_call_is_never_sent_again_when_it_may_have_happened(script, moment, chance):
    provider, _ = run(script, Kind.UNSAFE, start_second=moment, chance=chance)
    for step in provider.played[:-1]:
        assert step.failure is not None
        assert not may_have_happened(step.failure)
    assert sum(step.takes_effect for step in provider.played) <= 1


@given(scripts, st.sampled_from(Kind), moments, chances)
@settings(deadline=None)
def test_tries_and_time_are_bounded_when_nothing_helps(script, kind, moment, chance):
    policy = Policy()
    provider, failure = run(script, kind, start_second=moment, chance=chance)
    assert len(provider.played) <= policy.tries
    assert provider.asked_at[-1] <= policy.total_seconds
    faults = [step for step in provider.played if step.failure and may_have_happened(step.failure)]
    assert len(faults) <= policy.tries
    if failure is None:
        assert provider.played[-1].failure is None


@given(
    st.lists(st.builds(Step, throttles, st.floats(0, 2)), min_size=1, max_size=8),
    st.sampled_from(Kind),
    moments,
    chances,
)
@settings(deadline=None)
def test_a_throttled_call_waits_for_the_next_window_when_it_is_sent_again(script, kind, moment, chance):
    provider, _ = run(script, kind, start_second=moment, chance=chance)
    for number, step in enumerate(provider.played[:-1]):
        assert isinstance(step.failure, Refused)
        answered = provider.asked_at[number] + step.seconds
        again = provider.asked_at[number + 1]
        if step.failure.retry_after_seconds:
            assert again >= answered + step.failure.retry_after_seconds - 1e-6
        else:
            window = int((moment + answered) // MINUTE)
            assert (moment + again + 1e-6) // MINUTE > window
            assert again - answered <= MINUTE + 2


@given(scripts, moments)
@settings(deadline=None)
def test_a_plain_refusal_is_final_whatever_the_class_of_the_call(script, moment):
    for kind in Kind:
        provider, _ = run(script, kind, start_second=moment)
        for step in provider.played[:-1]:
            assert not (
                isinstance(step.failure, Refused)
                and step.failure.code in {"OperationDenied.NoStock", "InvalidParameter", "Who.Knows"}
            )


@given(scripts)
@settings(deadline=None)
def test_a_failure_says_when_an_earlier_try_may_have_happened(script):
    for kind in (Kind.SAFE, Kind.TOKEN):
        provider, failure = run(script, kind)
        if failure is not None:
            earlier = [step.failure for step in provider.played[:-1] if step.failure]
            assert failure.is_after_silence == any(may_have_happened(each) for each in earlier)


@given(scripts, st.integers(0, 11))
@settings(deadline=None)
def test_who_cancels_knows_whether_it_may_have_happened_whatever_was_answered_before(script, place):
    """Cancelled while it waits for its next try: only tries that may have had their effect count."""
    clock, attempt = ManualClock(), Attempt()
    provider = Provider(script, clock)

    async def send() -> str:
        if len(provider.played) == place:
            raise asyncio.CancelledError  # while this one is on its way
        return await provider.send()

    async def go() -> None:
        await persist(send, kind=Kind.TOKEN, key="a", gate=ThrottleGate(), clock=clock, attempt=attempt)

    try:
        asyncio.run(go())
    except asyncio.CancelledError:
        assert attempt.may_have_happened
    except (Refused, Unanswered):
        failures = [step.failure for step in provider.played if step.failure]
        assert attempt.may_have_happened == any(may_have_happened(each) for each in failures)


async def test_a_call_is_known_not_to_have_happened_when_it_is_cancelled_in_the_row():
    gate, attempt = ThrottleGate(), Attempt()
    gate.hold("a", SystemClock().monotonic() + 60)

    async def send() -> None:
        raise AssertionError("it was not its turn")

    waiting = asyncio.ensure_future(
        persist(send, kind=Kind.TOKEN, key="a", gate=gate, clock=SystemClock(), attempt=attempt)
    )
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert not attempt.may_have_happened


@pytest.mark.parametrize("code", THROTTLING)
def test_every_spelling_of_throttling_is_known(code):
    assert is_throttled(code)


def test_a_call_that_reaches_nobody_gives_up_soon_when_the_endpoint_is_wrong():
    provider, failure = run([Step(Unanswered("refused", is_sent=False))] * 60, Kind.SAFE)
    assert isinstance(failure, Unanswered)
    assert len(provider.played) == 3
    assert provider.clock.monotonic() < 4


def test_a_wrong_certificate_is_not_tried_again():
    provider, _ = run([Step(Unanswered("certificate", is_sent=False, is_final=True))] * 3, Kind.SAFE)
    assert len(provider.played) == 1


def test_other_calls_of_the_action_wait_too_and_go_one_by_one_when_one_was_throttled():
    clock = ManualClock(datetime(2026, 1, 1, 0, 0, 20, tzinfo=UTC))
    gate = ThrottleGate()
    wait = wait_before_retry(
        refused("Throttling.User"), kind=Kind.SAFE, tried=1, policy=Policy(), now=clock.now(), chance=0.0
    )
    assert wait == pytest.approx(40.2)
    gate.hold("a", clock.monotonic() + wait)
    assert [gate.reserve("a", 0.0) for _ in range(3)] == pytest.approx([40.2, 41.2, 42.2])
    assert gate.reserve("b", 0.0) == 0.0
    assert gate.reserve("a", 500.0) == 0.0


async def test_calls_in_the_row_wait_again_when_the_first_of_them_is_throttled_again():
    clock = ManualClock(datetime(2026, 1, 1, 0, 0, 30, tzinfo=UTC))
    gate = ThrottleGate()
    gate.hold("a", 30.0)
    gate.reserve("a", clock.monotonic())  # another call goes first …
    sent: list[float] = []

    async def sleep(seconds: float) -> None:
        clock.advance(seconds)
        if not gate.is_closed("a", clock.monotonic()) and len(sleeps) == 0:
            gate.hold("a", 90.0)  # … and is throttled once more while this one waits
        sleeps.append(seconds)

    sleeps: list[float] = []
    slow = ManualClock()
    slow.sleep = sleep  # type: ignore[method-assign]
    slow.monotonic = clock.monotonic  # type: ignore[method-assign]
    slow.now = clock.now  # type: ignore[method-assign]

    async def send() -> None:
        sent.append(clock.monotonic())

    await persist(send, kind=Kind.SAFE, key="a", gate=gate, clock=slow)
    assert sent[0] >= 90.0
