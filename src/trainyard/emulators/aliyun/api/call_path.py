"""Handles one call to the emulated cloud: authentication, planned faults, parameters, the action, the answer.

Handlers of the actions are synchronous, so a call's effect is whole; it is saved before it is answered.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from fnmatch import fnmatchcase
from http import HTTPStatus
from typing import Any

from trainyard.emulators.aliyun.api.actions import ACTIONS
from trainyard.emulators.aliyun.api.call import Call, Value
from trainyard.emulators.aliyun.api.client_tokens import Tokens
from trainyard.emulators.aliyun.api.faults import CODES, Faults, Rule
from trainyard.emulators.aliyun.api.gateway import Gateway, Key
from trainyard.emulators.aliyun.api.parameters import VERSIONS, has_action, read_parameters, takes_token
from trainyard.emulators.aliyun.api.problems import Problem, denied, not_found
from trainyard.emulators.aliyun.api.wire import HTML, Cut, Outcome, Reply, Request, Silence, html_page
from trainyard.emulators.aliyun.cloud.catalogue import REGIONS
from trainyard.emulators.aliyun.cloud.clock import AdjustableClock
from trainyard.emulators.aliyun.cloud.world import World
from trainyard.emulators.aliyun.sts import ACTIONS as STS_ACTIONS
from trainyard.lib.errors import CapacityError

_log = logging.getLogger(__name__)

READING = ("Describe", "List", "Get")
JOURNAL_LENGTH = 10_000
SECRET_PARAMETERS = frozenset({"Password", "UserData", "CommandContent", "Content", "Policy"})
UNAVAILABLE = "The request has failed due to a temporary failure of the server."
THROTTLED = "Request was denied due to user flow control."
# To who may not see them, the provider lists nothing and says nothing; only a dry run tells.
SILENT = frozenset({("ecs", "DescribeInstances")})


@dataclass(slots=True, kw_only=True)
class Entry:
    """One line of the journal: a call as it was asked and answered."""

    at: str
    product: str
    action: str
    region: str = ""
    parameters: Mapping[str, Value] = field(default_factory=dict)
    request_id: str
    status: int = 0
    """0: no answer was given."""
    code: str = ""
    fault: str = ""
    replayed: bool = False
    seconds: float = 0.0


@dataclass(slots=True, kw_only=True)
class Asked:
    """What is known of a request while it is served."""

    request: Request
    key: Key
    entry: Entry
    now: datetime


class OpenApi:
    """The provider's interface."""

    def __init__(
        self,
        *,
        world: World,
        gateway: Gateway,
        tokens: Tokens,
        faults: Faults,
        clock: AdjustableClock,
        region: str,
        strict: bool,
        commit: Callable[[], Awaitable[None]],
        catch_up: Callable[[], None],
    ) -> None:
        self._world = world
        self._gateway = gateway
        self._tokens = tokens
        self._faults = faults
        self._clock = clock
        self._region = region
        self._strict = strict
        self._commit = commit  # saves, and lets the machines follow
        self._catch_up = catch_up  # saves what could not be saved before
        self.journal: deque[Entry] = deque(maxlen=JOURNAL_LENGTH)

    async def respond(self, request: Request) -> Outcome:
        """Answer one call, or don't, as the fault plan wants."""
        began = time.monotonic()
        product, action = _named(request)
        now = self._clock.now()
        entry = Entry(
            at=now.isoformat(), product=product, action=action, request_id=str(uuid.uuid4()).upper()
        )
        self.journal.append(entry)
        try:
            outcome = await self._serve(request, entry)
        except Problem as problem:
            outcome = _refusal(problem, entry, request)
        except CapacityError:  # what was done is not written down: nobody may be told of it
            outcome = _refusal(Problem("ServiceUnavailable", UNAVAILABLE, 503), entry, request)
        except Exception:  # noqa: BLE001  # a mistake of ours is the provider's 500 to the client
            _log.exception("%s.%s failed", product, action)
            outcome = _refusal(Problem("InternalError", "The request failed.", 500), entry, request)
        entry.seconds = round(time.monotonic() - began, 6)
        if isinstance(outcome, Reply):
            entry.status = outcome.status
        return outcome

    async def _serve(self, request: Request, entry: Entry) -> Outcome:
        """Decide over a call and its fault; Problem is what the provider refuses."""
        product, action = entry.product, entry.action
        if not product:
            raise Problem("InvalidVersion", "Specified parameter Version is not valid.")
        now = self._clock.now()
        key = self._gateway.identify(request, real_now=self._clock.gateway_now(), now=now)
        if not has_action(product, action):
            raise not_found("InvalidAction.NotFound", f"Specified api is not found: {action}.")
        self._catch_up()
        asked = Asked(request=request, key=key, entry=entry, now=now)
        rule = self._faults.strike(product, action, now)
        if rule is None:
            return self._reply(asked, await self._perform(asked, self._call(asked)))
        entry.fault = rule.kind
        if rule.kind == "slow":
            return await self._serve_slowly(asked, rule.seconds)
        if rule.when == "before":
            return _struck(rule, None, asked)
        try:
            answer: Outcome = self._reply(asked, await self._perform(asked, self._call(asked)))
        except Problem as problem:
            answer = _refusal(problem, entry, request)
        return _struck(rule, answer, asked)

    async def _serve_slowly(self, asked: Asked, seconds: float) -> Outcome:
        """Wait before the effect; a repetition with the same token meets it in progress."""
        call = self._call(asked)
        remembered = self._begin(call)
        if remembered is not None:
            await asyncio.sleep(seconds)
            return self._reply(asked, remembered)
        try:
            await asyncio.sleep(seconds)
            asked.now = self._clock.now()
            body = self._do(self._call(asked), asked.key)
        except BaseException:
            self._tokens.give_up(call)
            raise
        return self._reply(asked, await self._finish(call, body))

    def _call(self, asked: Asked) -> Call:
        """The call with its typed parameters."""
        request, entry = asked.request, asked.entry
        pairs = request.query_pairs() + request.form_pairs()
        parameters = read_parameters(entry.product, entry.action, pairs, strict=self._strict)
        region = parameters.get("RegionId") or request.headers.get("x-acs-region-id") or self._region
        if region not in REGIONS:
            raise not_found("InvalidRegionId.NotFound", "The specified RegionId does not exist.")
        entry.region = str(region)
        entry.parameters = {
            name: "***" if name in SECRET_PARAMETERS else value for name, value in parameters.items()
        }
        return Call(
            product=entry.product,
            action=entry.action,
            parameters=parameters,
            region=str(region),
            account=asked.key.account,
            now=asked.now,
            request_id=entry.request_id,
        )

    async def _perform(self, asked: Asked, call: Call) -> Mapping[str, Value]:
        """Do what is asked, once per token."""
        remembered = self._begin(call)
        if remembered is not None:
            asked.entry.replayed = True
            return remembered
        try:
            body = self._do(call, asked.key)
        except BaseException:
            self._tokens.give_up(call)
            raise
        return await self._finish(call, body)

    def _begin(self, call: Call) -> Mapping[str, Value] | None:
        return self._tokens.begin(call) if takes_token(call.product, call.action) else None

    async def _finish(self, call: Call, body: Mapping[str, Value]) -> Mapping[str, Value]:
        """Write down what was done and, in the same breath, the token that it was done under."""
        if takes_token(call.product, call.action):
            self._tokens.finish(call, body)
        if not call.action.startswith(READING):
            await self._commit()
        return body

    def _do(self, call: Call, key: Key) -> dict[str, Value]:
        """The action itself."""
        self._world.advance(call.now)
        is_blind = self._check_rights(call)
        if call.product == "sts":
            return STS_ACTIONS[call.action](self._gateway, key, call)
        handler = ACTIONS.get((call.product, call.action))
        if handler is None:
            raise not_found("InvalidApi.NotFound", f"The emulator does not have the action {call.action}.")
        body = handler(self._world, call)
        self._world.advance(call.now)  # what takes no time has happened before the answer
        return _blinded(body) if is_blind else body

    def _check_rights(self, call: Call) -> bool:
        """Refuse what RAM forbids; whether it is forbidden by showing nothing."""
        wanted = f"{call.product}:{call.action}"
        if not any(fnmatchcase(wanted, pattern) for pattern in self._world.options.account.denied):
            return False
        if (call.product, call.action) in SILENT and not call.flag("DryRun"):
            return True
        problem = denied("Forbidden.RAM", "User not authorized to operate on the specified resource.")
        problem.extra["AccessDeniedDetail"] = json.dumps(
            {"AuthAction": wanted, "AuthPrincipalType": "SubUser", "NoPermissionType": "ImplicitDeny"}
        )
        raise problem

    def _reply(self, asked: Asked, body: Mapping[str, Value]) -> Reply:
        return _json(200, {**body, "RequestId": asked.entry.request_id}, asked.entry)


def _named(request: Request) -> tuple[str, str]:
    """Product and action, from headers or parameters."""
    values = dict(request.query_pairs() + request.form_pairs())
    version = request.headers.get("x-acs-version") or values.get("Version", "")
    return VERSIONS.get(version, ""), request.headers.get("x-acs-action") or values.get("Action", "")


def _json(status: int, body: Mapping[str, Any], entry: Entry, **headers: str) -> Reply:
    return Reply(
        status=status,
        body=json.dumps(body, ensure_ascii=False).encode(),
        headers={"x-acs-request-id": entry.request_id, **headers},
    )


def _refusal(problem: Problem, entry: Entry, request: Request) -> Reply:
    entry.code = problem.code
    host = request.headers.get("host", "")
    return _json(problem.status, problem.body(request_id=entry.request_id, host=host), entry)


def _struck(rule: Rule, answer: Outcome | None, asked: Asked) -> Outcome:
    """What the fault makes of an answer; None where it strikes before the effect."""
    if rule.kind == "hang":
        return Silence(seconds=rule.seconds)
    if rule.kind == "cut":
        return Cut()
    if rule.kind == "html":
        page = html_page(rule.status, _phrase(rule.status))
        return Reply(status=rule.status, body=page, content_type=HTML)
    if rule.kind == "empty":
        return Reply(status=rule.status)
    if rule.kind == "broken":
        whole = answer.body if isinstance(answer, Reply) else b'{"RequestId": "'
        return Reply(body=whole, keep_bytes=len(whole) // 2)
    if rule.kind == "blind":
        seen = json.loads(answer.body) if isinstance(answer, Reply) else {}
        return _json(200, _blinded(seen), asked.entry)
    if rule.kind == "throttle":
        problem = Problem(rule.code or "Throttling.User", rule.message or THROTTLED, rule.status)
    else:
        code = rule.code or CODES.get(rule.status, "InternalError")
        message = rule.message or "The request processing has failed due to some unknown error."
        problem = Problem(code, message, rule.status)
    reply = _refusal(problem, asked.entry, asked.request)
    if rule.retry_after_milliseconds is None:
        return reply
    wait = {"x-acs-retry-after": str(rule.retry_after_milliseconds)}
    return Reply(status=reply.status, body=reply.body, headers={**reply.headers, **wait})


def _blinded(body: Any) -> Any:
    """The same answer with nothing in its lists."""
    if isinstance(body, dict):
        return {name: 0 if name == "TotalCount" else _blinded(value) for name, value in body.items()}
    return [] if isinstance(body, list) else body


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Unknown"
