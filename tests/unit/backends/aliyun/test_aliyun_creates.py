"""Creates under any row of failures: one token, the same words each time, and a journal that knows what it must."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from trainyard.backends.aliyun.api.client import Client, Sender
from trainyard.backends.aliyun.api.credentials import Credentials
from trainyard.backends.aliyun.api.endpoints import Endpoints
from trainyard.backends.aliyun.api.errors import Failure, Refused, Unanswered
from trainyard.backends.aliyun.api.wire import Answer, Keys, Parameter, Request
from trainyard.lib.clock import ManualClock
from trainyard.lib.errors import Error
from trainyard.settings import load

REFUSED = "OperationDenied.NoStock"


@dataclass(frozen=True)
class Step:
    """How one sending ends for the client, and whether it reaches the provider."""

    failure: Failure | None
    arrives: bool = True


def refusal(code: str, status: int = 400) -> Refused:
    return Refused(code, "no", status=status)


steps = st.one_of(
    st.builds(Step, st.builds(refusal, st.just("Throttling.User")), st.just(False)),
    st.builds(Step, st.builds(refusal, st.just("InternalError"), st.just(500)), st.booleans()),
    st.builds(Step, st.builds(Unanswered, st.just("cut"), is_sent=st.just(True)), st.booleans()),
    st.builds(Step, st.builds(Unanswered, st.just("nobody"), is_sent=st.just(False)), st.just(False)),
    st.builds(Step, st.none(), st.just(True)),
)


@dataclass
class Provider:
    """Makes one thing for each token, if it has any to give; the same answer for the same token."""

    script: list[Step]
    has_stock: bool
    made: dict[str, Mapping[str, str]] = field(default_factory=dict)
    forms: list[Mapping[str, str]] = field(default_factory=list)
    asked: int = 0

    def serve(self, form: Mapping[str, str]) -> Answer:
        step = self.script[self.asked] if self.asked < len(self.script) else Step(None)
        self.asked += 1
        self.forms.append(form)
        token = form["ClientToken"]
        if step.arrives and (self.has_stock or token in self.made):
            assert (
                self.made.setdefault(token, form) == form
            )  # the provider refuses another wish under an old token
        if step.failure:
            raise step.failure
        if token not in self.made:
            raise refusal(REFUSED, 403)
        return {"InstanceIdSets": {"InstanceIdSet": [f"i-{token}"]}}


class Wireless(Sender):
    """Sends to a provider in this process."""

    def __init__(self, provider: Provider, clock: ManualClock) -> None:
        super().__init__(Endpoints(), clock=clock)
        self.provider = provider

    async def _send_once(self, request: Request) -> Answer:
        return self.provider.serve(request.form)


def make_client(folder: Path, provider: Provider) -> Client:
    clock = ManualClock()
    cloud = load({"HOME": str(folder), "ALIYUN_ACCESS_KEY_ID": "LTAI", "ALIYUN_ACCESS_KEY_SECRET": "s"}).cloud

    async def no_sts(_action: str, _parameters: Mapping[str, Parameter], _keys: Keys | None) -> Answer:
        raise AssertionError("these keys need no service")

    credentials = Credentials(cloud, clock=clock, call_sts=no_sts)
    return Client(
        Wireless(provider, clock), credentials, region="cn-beijing", clock=clock, folder=folder / "aliyun"
    )


async def create(client: Client) -> str:
    """Make it, and see it."""
    made = await client.create(
        "ecs", "RunInstances", {"Amount": 1}, purpose="machines x", token_tag="trainyard-token"
    )
    client.journal.clear(made.token)
    return str(made.answer["InstanceIdSets"]["InstanceIdSet"][0])


@given(st.lists(steps, max_size=14), st.booleans(), st.integers(1, 4))
@settings(deadline=None)
def test_one_thing_is_made_for_one_purpose_when_it_is_asked_for_until_it_is_there(script, has_stock, runs):
    """Each run is a program of its own; whatever goes wrong, the next one carries on."""
    provider = Provider(script, has_stock)
    with tempfile.TemporaryDirectory() as name:
        got: list[str] = []
        for _ in range(runs):
            client = make_client(Path(name), provider)
            try:
                got.append(asyncio.run(create(client)))
                break
            except Error:
                # What may have been made is in the journal, and nothing else is.
                left = [entry.token for entry in client.journal.entries()]
                assert set(provider.made) <= set(left)
                assert len(left) <= 1
    assert len(provider.made) <= 1
    if got:
        assert list(provider.made) == [got[0].removeprefix("i-")]
    for token in provider.made:
        same = [form for form in provider.forms if form["ClientToken"] == token]
        assert all(form == same[0] for form in same)
        assert same[0]["Tag.1.Value"] == token
