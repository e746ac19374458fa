"""Calls to Alibaba Cloud: `await client.call("ecs", "DescribeInstances", {...})`.

The client combines keys, endpoints, retries, the journal and the table of errors. Nothing blocks the event loop, and the
first call imports the vendor's package. Other modules (`network.py`, …) know the actions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Self

from trainyard.backends.aliyun.api.credentials import Credentials
from trainyard.backends.aliyun.api.endpoints import VERSIONS, Endpoints
from trainyard.backends.aliyun.api.errors import (
    Context,
    Failure,
    Refused,
    Unanswered,
    code_of,
    explain,
    is_outcome_unknown,
    proves_nothing_was_made,
)
from trainyard.backends.aliyun.api.profiles import profile_region
from trainyard.backends.aliyun.api.retry import Attempt, Kind, Policy, ThrottleGate, persist
from trainyard.backends.aliyun.api.threads import in_thread
from trainyard.backends.aliyun.api.wire import Answer, Keys, Parameter, Request, flatten
from trainyard.backends.aliyun.launch.journal import Journal, JournalEntry, new_token
from trainyard.lib.clock import Clock, SystemClock
from trainyard.lib.errors import DeniedError, Error, InvalidError, UnsupportedError
from trainyard.settings import Settings

CONCURRENT_CALLS = 16  # at a time; more would only meet the limits sooner
CONNECT_SECONDS = 5.0
READ_SECONDS = 15.0
SLOW_SECONDS = {  # the provider works for a while before it answers
    "RunInstances": 60.0,
    "DescribePrice": 30.0,
    "DescribeAvailableResource": 30.0,
    "DescribeInstanceTypes": 30.0,
    "CreateImage": 30.0,
    "DeleteInstances": 30.0,
}

# Writes that say the same when they are said twice, or that are refused the second time without harm.
_REPEATABLE = frozenset(
    {
        "AssumeRole",
        "AssumeRoleWithOIDC",
        "DeleteDisk",
        "DeleteFileSystem",
        "DeleteImage",
        "DeleteInstance",
        "DeleteKeyPairs",
        "DeleteMountTarget",
        "DeleteSecurityGroup",
        "DeleteVSwitch",
        "ModifyInstanceAttribute",
        "ModifyInstanceAutoReleaseTime",
        "StartInstances",
        "StopInstances",
        "StopInvocation",
        "TagResources",
        "UntagResources",
    }
)
_TOKEN = frozenset(
    {
        "AllocateEipAddress",
        "AssociateEipAddress",
        "AuthorizeSecurityGroup",
        "CopyImage",
        "CreateAutoProvisioningGroup",
        "CreateCommand",
        "CreateDeploymentSet",
        "CreateDisk",
        "CreateFileSystem",
        "CreateImage",
        "CreateSecurityGroup",
        "CreateVSwitch",
        "CreateVpc",
        "DeleteInstances",
        "DeleteVpc",
        "InvokeCommand",
        "ModifyInstanceNetworkSpec",
        "RevokeSecurityGroup",
        "RunCommand",
        "RunInstances",
        "SendFile",
        "UnassociateEipAddress",
    }
)
# Actions that take no RegionId: the endpoint or the resource's id says it.
_WITHOUT_REGION = frozenset(
    {
        "AllocatePublicIpAddress",
        "AttachDisk",
        "DeleteInstance",
        "DescribeInstanceTypes",
        "DescribeRegions",
        "ModifyInstanceAttribute",
        "ModifyInstanceNetworkSpec",
    }
)


def kind_of(action: str) -> Kind:
    """Return what sending this action twice would do. An action that is not in the tables is unsafe."""
    if action.startswith(("Describe", "List", "Get")) or action in _REPEATABLE:
        return Kind.SAFE
    return Kind.TOKEN if action in _TOKEN else Kind.UNSAFE


@dataclass(frozen=True, slots=True, kw_only=True)
class Created:
    """The answer to a create, and the journal's token to clear when the thing has been seen."""

    answer: Answer = field(repr=False)
    token: str
    form: Mapping[str, str] = field(
        repr=False
    )  # what was really asked for: an earlier run's, if it is a replay
    is_replay: bool = False


class Sender:
    """Sends signed calls, again where that is right; shared by the clients of all regions."""

    def __init__(
        self,
        endpoints: Endpoints,
        *,
        clock: Clock,
        policy: Policy | None = None,
        notice: Callable[[str], None] | None = None,
    ) -> None:
        self.endpoints = endpoints
        self.calls = 0  # sent so far, for benchmarks
        self._clock = clock
        self._policy = policy
        self._notice = notice
        self._gate = ThrottleGate()
        self._places = asyncio.Semaphore(CONCURRENT_CALLS)

    async def send(
        self,
        product: str,
        action: str,
        form: Mapping[str, str],
        *,
        kind: Kind,
        region: str,
        keys: Keys | None,
        about: str = "",
        attempt: Attempt | None = None,
    ) -> Answer:
        """One call with all its retries; raises our errors, with the provider's failure as their cause."""
        request = Request(
            endpoint=self.endpoints.find(product, region),
            version=VERSIONS[product],
            action=action,
            form=form,
            keys=keys,
            connect_seconds=CONNECT_SECONDS,
            read_seconds=SLOW_SECONDS.get(action, READ_SECONDS),
        )
        context = Context(
            product=product, action=action, region=region, host=request.endpoint.host, form=form, about=about
        )

        def notice(failure: Failure, wait: float) -> None:
            if self._notice:
                self._notice(f"{action}: {failure}; trying again in {wait:.0f} s")

        key = (product, action, region)
        failure: Failure
        try:
            return await persist(
                lambda: self._send_once(request),
                kind=kind,
                key=key,
                gate=self._gate,
                clock=self._clock,
                policy=self._policy,
                notice=notice,
                attempt=attempt,
            )
        except (Refused, Unanswered) as error:
            failure = error
        raise explain(failure, context)

    async def _send_once(self, request: Request) -> Answer:
        async with self._places:
            self.calls += 1
            return await in_thread(lambda: _vendor_send(request))


def _vendor_send(request: Request) -> Answer:
    try:
        vendor = import_module("trainyard.backends.aliyun.api.vendor_client")
    except ImportError as error:
        raise UnsupportedError(
            f"Alibaba Cloud needs a package that is not installed: {error.name}",
            hint="Run `pip install 'trainyard[aliyun]'`.",
        ) from error
    answer: Answer = vendor.send(request)
    return answer


class Client:
    """Alibaba Cloud in one region, with one set of keys."""

    def __init__(
        self, sender: Sender, credentials: Credentials, *, region: str, clock: Clock, folder: Path
    ) -> None:
        self.region = region
        self.clock = clock
        self.folder = folder  # where this backend keeps its journal, keys and locks
        self.journal = Journal(folder / "journal", clock=clock)
        self._sender = sender
        self._credentials = credentials

    @classmethod
    def from_settings(
        cls,
        settings: Settings,
        *,
        clock: Clock | None = None,
        policy: Policy | None = None,
        notice: Callable[[str], None] | None = None,
    ) -> Self:
        """A client for what the environment says. Makes no call; `notice` hears why a call takes long."""
        clock = clock or SystemClock()
        sender = Sender(Endpoints.from_settings(settings.cloud), clock=clock, policy=policy, notice=notice)
        region = settings.region or profile_region(settings.cloud)
        if not region:
            raise InvalidError(
                "no region of Alibaba Cloud is set",
                hint="Set ALIYUN_DEFAULT_REGION, for example to cn-beijing.",
                reason="provider.region",
            )

        async def call_sts(action: str, parameters: Mapping[str, Parameter], keys: Keys | None) -> Answer:
            return await sender.send(
                "sts", action, flatten(parameters), kind=Kind.SAFE, region=region, keys=keys
            )

        credentials = Credentials(settings.cloud, clock=clock, call_sts=call_sts)
        return cls(sender, credentials, region=region, clock=clock, folder=settings.home / "aliyun")

    def in_region(self, region: str) -> Client:
        """The same account in another region."""
        return Client(self._sender, self._credentials, region=region, clock=self.clock, folder=self.folder)

    @property
    def calls(self) -> int:
        """How many requests have been sent, by this client and its siblings in other regions."""
        return self._sender.calls

    def host(self, product: str) -> str:
        """Where the product's calls go."""
        return self._sender.endpoints.find(product, self.region).host

    def url(self, product: str) -> str:
        """The same as an address, for programs on machines."""
        endpoint = self._sender.endpoints.find(product, self.region)
        return f"{endpoint.protocol}://{endpoint.host}"

    async def call(
        self,
        product: str,
        action: str,
        parameters: Mapping[str, Parameter] | None = None,
        *,
        kind: Kind | None = None,
        about: str = "",
    ) -> Answer:
        """Call an action and return its answer.

        RegionId is added where the action takes one, a ClientToken where the call is repeated by token. `about` names
        the thing in error messages. Cancelling leaves the outcome open: what was sent may still happen.
        """
        form = self._form(product, action, parameters or {})
        return await self._send(product, action, form, kind=kind or kind_of(action), about=about)

    async def create(
        self,
        product: str,
        action: str,
        parameters: Mapping[str, Parameter],
        *,
        purpose: str,
        token_tag: str = "",
        about: str = "",
    ) -> Created:
        """Make something, once, even if this program dies half-way: token and parameters are on disk before the call.

        An earlier create for the same `purpose` whose outcome nobody has seen is repeated instead, exactly as it was.
        `token_tag` names a tag that gets the token, to find by it what was made. The entry stays until
        `journal.clear(token)`, to be called when the thing has been seen; a plain refusal clears it here.
        """
        host = self.host(product)
        earlier = self.journal.find(purpose, host=host)
        if earlier is not None:
            replayed = await self.replay(earlier, about=about)
            if replayed is not None:
                return replayed
        token = new_token()
        parameters = {**parameters, "ClientToken": token}
        if token_tag:
            parameters["Tag"] = [*_tag_list(parameters.get("Tag")), {"Key": token_tag, "Value": token}]
        form = self._form(product, action, parameters)
        entry = self.journal.begin(
            purpose=purpose,
            product=product,
            action=action,
            region=self.region,
            host=host,
            token=token,
            form=form,
        )
        attempt = Attempt()
        try:
            answer = await self._send(
                product, action, entry.form, kind=Kind.TOKEN, about=about, attempt=attempt
            )
        except Error as error:
            if not is_outcome_unknown(error):
                self.journal.clear(token)
            raise
        except asyncio.CancelledError:
            if not attempt.may_have_happened:  # it was still waiting for its turn
                self.journal.clear(token)
            raise
        return Created(answer=answer, token=token, form=form)

    async def replay(self, entry: JournalEntry, *, about: str = "") -> Created | None:
        """Send a journalled create again; None, and the entry gone, where it is too old or certainly made nothing."""
        if not entry.is_replayable(self.clock.now()):
            self.journal.clear(entry.token)
            return None
        try:
            answer = await self._send(entry.product, entry.action, entry.form, kind=Kind.TOKEN, about=about)
        except Error as error:
            if not proves_nothing_was_made(error):
                raise
            self.journal.clear(entry.token)
            return None
        return Created(answer=answer, token=entry.token, form=entry.form, is_replay=True)

    async def _send(
        self,
        product: str,
        action: str,
        form: Mapping[str, str],
        *,
        kind: Kind,
        about: str,
        attempt: Attempt | None = None,
    ) -> Answer:
        async def send(keys: Keys) -> Answer:
            return await self._sender.send(
                product,
                action,
                form,
                kind=kind,
                region=self.region,
                keys=keys,
                about=about,
                attempt=attempt,
            )

        keys = await self._credentials.keys()
        try:
            return await send(keys)
        except DeniedError as error:
            if not code_of(error).startswith("InvalidSecurityToken") or not self._credentials.forget(keys):
                raise
        return await send(await self._credentials.keys())

    def _form(self, product: str, action: str, parameters: Mapping[str, Parameter]) -> dict[str, str]:
        extra: dict[str, Parameter] = {}
        if product in {"ecs", "vpc"} and action not in _WITHOUT_REGION:
            extra["RegionId"] = self.region
        if kind_of(action) is Kind.TOKEN:
            extra["ClientToken"] = new_token()
        return flatten({**extra, **parameters})


def _tag_list(found: Parameter) -> Sequence[Parameter]:
    return found if isinstance(found, Sequence) and not isinstance(found, str) else ()
