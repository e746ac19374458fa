"""A cloud without wire, and computers that use it with bad luck: the real backend, real journals, emulated actions.

Calls go straight to the emulator's handlers. On their way they may be throttled, fail, get lost before or after their
effect, or be the last thing that a computer does. Time is virtual, so a run of hours takes milliseconds.
"""

from __future__ import annotations

import asyncio
import random
from datetime import UTC
from pathlib import Path
from typing import Any

from emulated import REGION, Cloud
from trainyard import settings
from trainyard.backends.aliyun.api.client import Sender
from trainyard.backends.aliyun.api.endpoints import VERSIONS, Endpoints
from trainyard.backends.aliyun.api.errors import Refused, Unanswered
from trainyard.backends.aliyun.api.wire import Answer, Request
from trainyard.backends.aliyun.backend import AliyunBackend
from trainyard.emulators.aliyun.api.actions import ACTIONS
from trainyard.emulators.aliyun.api.call import Call
from trainyard.emulators.aliyun.api.client_tokens import Tokens
from trainyard.emulators.aliyun.api.parameters import read_parameters, takes_token
from trainyard.emulators.aliyun.api.problems import Problem
from trainyard.lib.clock import ManualClock

PRODUCTS = {version: product for product, version in VERSIONS.items()}
MOST_CALLS = 3000  # of one command; beyond it, it never ends


class Death(BaseException):
    """The computer is switched off: nothing of it happens any more."""


class Skies:
    """One account: its things, its tokens, its time."""

    def __init__(self, chance: random.Random, **options: Any) -> None:
        self.cloud = Cloud(**options)
        self.clock = ManualClock(self.cloud.now)
        self.tokens = Tokens()
        self.chance = chance
        self.badness = 0.0  # how likely it is that a call goes wrong

    def do(self, product: str, request: Request) -> Answer:
        """The effect of a call, once for each token."""
        self.cloud.now = max(self.cloud.now, self.clock.now().astimezone(UTC))
        world = self.cloud.world
        world.advance(self.cloud.now)
        try:
            call = Call(
                product=product,
                action=request.action,
                parameters=read_parameters(product, request.action, request.form.items()),
                region=request.form.get("RegionId", REGION),
                account="1",
                now=self.cloud.now,
                request_id="R",
            )
            has_token = takes_token(product, request.action)
            remembered = self.tokens.begin(call) if has_token else None
            if remembered is not None:
                return dict(remembered)
            try:
                body = ACTIONS[product, request.action](world, call)
            except BaseException:
                if has_token:
                    self.tokens.give_up(call)
                raise
            world.advance(self.cloud.now)
            if has_token:
                self.tokens.finish(call, body)
        except Problem as problem:
            raise Refused(problem.code, problem.message, status=problem.status) from None
        return body

    def names(self) -> list[str]:
        """Of machines that are there and stay."""
        return sorted(one.name for one in self.cloud.world.instances.values() if not one.deleting)


class Computer(Sender):
    """Somebody's computer while one command runs on it: what it sends may get lost, and it may die."""

    def __init__(self, skies: Skies, *, dies_at: int, cancelled_at: int) -> None:
        super().__init__(Endpoints(), clock=skies.clock)
        self.skies = skies
        self.dies_at = dies_at
        self.cancelled_at = cancelled_at
        self.work: asyncio.Task[Any] | None = None
        self.is_dead = False
        self.sent = 0

    async def _send_once(self, request: Request) -> Answer:
        chance = self.skies.chance
        self.sent += 1
        assert self.sent < MOST_CALLS, f"it calls {request.action} for ever"
        if self.sent == self.cancelled_at and self.work is not None:
            self.work.cancel()
        is_last = self.sent == self.dies_at
        if self.is_dead or (is_last and chance.random() < 0.4):
            self.is_dead = True
            raise Death
        self.skies.clock.advance(chance.choice([0.05, 0.1, 0.5, 2]))
        for _ in range(chance.randrange(3)):
            await asyncio.sleep(0)
        try:
            return self._answer(request, chance.random() < self.skies.badness)
        finally:
            if is_last:
                self.is_dead = True
                raise Death

    def _answer(self, request: Request, goes_wrong: bool) -> Answer:
        product = PRODUCTS[request.version]
        if not goes_wrong:
            return self.skies.do(product, request)
        kind = self.skies.chance.choice(
            ["throttled", "soon", "unsent", "before", "after", "500", "500 after"]
        )
        if kind == "throttled":
            raise Refused("Throttling.User", "too many calls")
        if kind == "soon":
            raise Refused("Throttling.User", "too many calls", retry_after_seconds=0.5)
        if kind == "unsent":
            raise Unanswered("nobody listens", is_sent=False)
        if kind.endswith("after"):
            try:
                self.skies.do(product, request)
            except Refused:
                pass  # the answer gets lost, whatever it was
        if kind.startswith("500"):
            raise Refused("InternalError", "no", status=500)
        raise Unanswered("the connection was cut", is_sent=True)


def sit_down(
    skies: Skies, home: Path, key: bytes, *, dies_at: int = 0, cancelled_at: int = 0
) -> tuple[AliyunBackend, Computer]:
    """A client on the computer whose files are in `home`; its ssh key was made before, as that takes long."""
    environ = {
        "HOME": str(home),
        "USER": "alice",
        "ALIYUN_ACCESS_KEY_ID": "LTAI",
        "ALIYUN_ACCESS_KEY_SECRET": "s",
        "ALIYUN_DEFAULT_REGION": REGION,
        "TRAINYARD_OWN_ADDRESS": "203.0.113.7",
    }
    loaded = settings.load(environ)
    path = loaded.home / "aliyun" / "keys" / "ncluster-alice.pem"
    if not path.exists():
        path.parent.mkdir(parents=True)
        path.write_bytes(key)
        path.chmod(0o600)
    backend = AliyunBackend(loaded, clock=skies.clock)
    computer = Computer(skies, dies_at=dies_at, cancelled_at=cancelled_at)
    backend.client._sender = computer  # the wire is what this does without
    return backend, computer
