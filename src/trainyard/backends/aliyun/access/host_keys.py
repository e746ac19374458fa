"""The ssh host keys of instances, read through channels that only the owner of the account can read.

Each machine makes its keys at its first boot, and the private halves never leave it. Cloud Assistant reads the public
ones, for many machines in one call. The console shows them too (`host_keys.sh` runs at every boot), for images without
the assistant and while it is not up yet. What an address shows by itself is never believed.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainyard.backends.aliyun.access.cloud_assistant import OPEN, invoke
from trainyard.backends.aliyun.api.client import Client
from trainyard.backends.aliyun.api.errors import code_of
from trainyard.backends.aliyun.api.paging import batches, fetch_all
from trainyard.backends.aliyun.api.wire import Answer, text
from trainyard.lib.aio import end_task, gather_all
from trainyard.lib.errors import (
    ConflictError,
    DeniedError,
    Error,
    InvalidError,
    NotFoundError,
    UnreachableError,
)

SCRIPT = Path(__file__).with_name("host_keys.sh").read_text(encoding="utf-8")
CONSOLE_SCRIPT = f'#!/bin/sh\n{{\n{SCRIPT}}} >>"${{TRAINYARD_ROOT:-}}/dev/console"\n'

GATHER_SECONDS = 0.05  # machines of one launch come up together, and are asked about together
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 1.0
AGAIN_SECONDS = 5.0  # until the assistant is asked again where it could not answer
# A console is a call for each machine: the assistant is given a moment first, and more where there are many machines.
FEW = 8
CONSOLE_SECONDS, CROWDED_CONSOLE_SECONDS = 0.4, 4.0
CONSOLES_AT_ONCE = 16
CONSOLE_PAUSE_SECONDS = 2.0
MOST_MISSES = 4  # of a machine that the provider does not know

# The best first. One is pinned, and only that kind is then asked of the machine.
KINDS = ("ssh-ed25519", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521", "ssh-rsa")
_BLOCK = re.compile(r"-----BEGIN SSH HOST KEY KEYS-----(.*?)-----END SSH HOST KEY KEYS-----", re.DOTALL)
_LINE = re.compile(r"(?P<kind>[a-z0-9-]+) (?P<blob>[A-Za-z0-9+/]+=*)(?: .*)?\Z")


def parse_host_key(printed: str) -> str:
    """The best public key that `printed` shows, as `ssh-ed25519 AAAA…`; '' where it shows none for certain.

    Where two blocks show different keys of one kind, one of them is wrong and neither is taken.
    """
    found: dict[str, set[str]] = {}
    for block in _BLOCK.findall(printed):
        for line in block.splitlines():
            match = _LINE.match(line.strip())
            if match and _is_key(match["kind"], match["blob"]):
                found.setdefault(match["kind"], set()).add(f"{match['kind']} {match['blob']}")
    best = next((found[kind] for kind in KINDS if kind in found), set())
    return best.pop() if len(best) == 1 else ""


def _is_key(kind: str, blob: str) -> bool:
    """Whether the blob is a key of this kind: half a line of a console is none."""
    try:
        data = base64.b64decode(blob, validate=True)
    except binascii.Error:
        return False
    name = kind.encode()
    return kind in KINDS and data.startswith(len(name).to_bytes(4, "big") + name)


@dataclass(eq=False)
class _Wanted:
    """A machine whose key somebody waits for."""

    instance_id: str
    since: float
    found: asyncio.Future[str]
    console_at: float = 0.0
    deadline: float = 0.0
    waiters: int = 0
    invocation: str = ""  # of the assistant, while it is open
    assistant_at: float = 0.0
    misses: int = 0
    reasons: dict[str, str] = field(default_factory=dict)  # channel → why it told nothing
    refused: set[str] = field(default_factory=set)  # channels that are closed to us

    def settle(self, key: str) -> None:
        """Tell the key, once."""
        if key and not self.found.done():
            self.found.set_result(key)

    def miss(self, error: Error) -> None:
        """Take note that the provider does not know the machine: not yet, or no more where it says so often."""
        self.misses += 1
        if self.misses >= MOST_MISSES:
            self.fail(error)

    def fail(self, error: Error) -> None:
        """Tell why there is none."""
        if not self.found.done():
            self.found.set_exception(error)


class HostKeyReader:
    """Reads host keys in one region; machines that are asked about at the same time share calls."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._wanted: dict[str, _Wanted] = {}
        self._task: asyncio.Task[None] | None = None

    async def read(self, instance_id: str, *, patience: float) -> str:
        """The public host key of a machine; UnreachableError where no channel tells it within `patience` seconds."""
        now = self._client.clock.monotonic()
        wanted = self._wanted.get(instance_id)
        if wanted is None:
            future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
            wanted = self._wanted[instance_id] = _Wanted(instance_id, now, future)
        wanted.waiters += 1
        wanted.deadline = max(wanted.deadline, now + patience)
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self._work())
        try:
            ended: set[asyncio.Future[Any]] = {self._task, wanted.found}
            done, _ = await asyncio.wait(ended, return_when=asyncio.FIRST_COMPLETED)
            if wanted.found not in done:
                done.pop().result()  # a failure of the task is ours
            return await wanted.found
        finally:
            wanted.waiters -= 1
            if not wanted.waiters and self._wanted.get(instance_id) is wanted:
                del self._wanted[instance_id]

    async def aclose(self) -> None:
        """Ask no more."""
        for wanted in list(self._wanted.values()):
            wanted.fail(UnreachableError("the backend was closed while a host key was read"))
        await end_task(self._task)
        self._task = None

    async def _work(self) -> None:
        await self._client.clock.sleep(GATHER_SECONDS)
        pause, known = FIRST_PAUSE, 0
        while self._open():
            await self._ask_assistant()
            await self._collect()
            await self._read_consoles()
            self._give_up()
            if len(self._wanted) > known:  # more have come up
                pause = FIRST_PAUSE
            known = len(self._wanted)
            if self._open():
                await self._client.clock.sleep(pause)
                pause = min(pause * 1.5, LONGEST_PAUSE)

    def _open(self) -> list[_Wanted]:
        return [each for each in self._wanted.values() if not each.found.done()]

    # -- Cloud Assistant -------------------------------------------------------------------------------------------

    async def _ask_assistant(self) -> None:
        now = self._client.clock.monotonic()
        due = [each for each in self._open() if not each.invocation and each.assistant_at <= now]
        for batch in batches([each for each in due if "assistant" not in each.refused]):
            await self._invoke_on(batch)

    async def _invoke_on(self, batch: Sequence[_Wanted]) -> None:
        later = self._client.clock.monotonic() + AGAIN_SECONDS
        try:
            invocation = await invoke(self._client, [each.instance_id for each in batch], SCRIPT)
        except Error as error:
            if len(batch) > 1 and _is_about_one(error):  # the others are not to suffer from it
                for each in batch:
                    await self._invoke_on([each])
                return
            if isinstance(error, NotFoundError):
                batch[0].miss(error)
            _note(batch, "assistant", error, is_final=isinstance(error, DeniedError | InvalidError))
            for each in batch:  # it may be busy, or silent
                each.assistant_at = later
        else:
            for each in batch:
                each.invocation = invocation

    async def _collect(self) -> None:
        for invocation in dict.fromkeys(each.invocation for each in self._open() if each.invocation):
            concerned = {each.instance_id: each for each in self._open() if each.invocation == invocation}
            try:
                results = await fetch_all(
                    self._client, "ecs", "DescribeInvocationResults", {"InvokeId": invocation}
                )
            except (DeniedError, InvalidError) as error:
                _note(list(concerned.values()), "assistant", error, is_final=True)
                continue
            except Error as error:  # the results are still there the next time
                _note(list(concerned.values()), "assistant", error)
                continue
            for result in results:
                wanted = concerned.get(text(result, "InstanceId"))
                if wanted is not None:
                    self._take(wanted, result)

    def _take(self, wanted: _Wanted, result: Answer) -> None:
        status = text(result, "InvocationStatus")
        if not status or status in OPEN:
            return
        wanted.settle(parse_host_key(_decoded(text(result, "Output"))))
        if not wanted.found.done():
            reason = text(result, "ErrorInfo") or text(result, "ErrorCode") or "it printed no host key"
            wanted.reasons["assistant"] = reason
            wanted.invocation = ""
            wanted.assistant_at = self._client.clock.monotonic() + AGAIN_SECONDS

    # -- the console -----------------------------------------------------------------------------------------------

    async def _read_consoles(self) -> None:
        waiting = self._open()
        now = self._client.clock.monotonic()
        grace = CONSOLE_SECONDS if len(waiting) <= FEW else CROWDED_CONSOLE_SECONDS
        due = [
            each
            for each in waiting
            if max(each.console_at, each.since + grace) <= now and "console" not in each.refused
        ]
        # Cancelling ends all of them; none raises.
        await gather_all([self._read_console(each) for each in due[:CONSOLES_AT_ONCE]])

    async def _read_console(self, wanted: _Wanted) -> None:
        wanted.console_at = self._client.clock.monotonic() + CONSOLE_PAUSE_SECONDS
        try:
            answer = await self._client.call(
                "ecs", "GetInstanceConsoleOutput", {"InstanceId": wanted.instance_id}
            )
        except NotFoundError as error:
            wanted.miss(error)
        except (DeniedError, InvalidError) as error:
            _note([wanted], "console", error, is_final=True)
        except Error as error:
            _note([wanted], "console", error)
        else:
            wanted.settle(parse_host_key(_decoded(text(answer, "ConsoleOutput"))))
            wanted.reasons["console"] = "it shows no host key"

    # -- no answer -------------------------------------------------------------------------------------------------

    def _give_up(self) -> None:
        now = self._client.clock.monotonic()
        for each in self._open():
            if each.deadline <= now or each.refused >= {"assistant", "console"}:
                each.fail(_no_key(each))


def _is_about_one(error: Error) -> bool:
    """Whether one machine of several may be the reason of a refusal, and not who asks or when."""
    kinds = (ConflictError, DeniedError, InvalidError, NotFoundError)
    return isinstance(error, kinds) and not code_of(error).startswith(("Forbidden", "NoPermission"))


def _note(wanted: Sequence[_Wanted], channel: str, error: Error, *, is_final: bool = False) -> None:
    for each in wanted:
        each.reasons[channel] = error.message
        if is_final:
            each.refused.add(channel)
            each.invocation = ""


def _no_key(wanted: _Wanted) -> Error:
    said = "; ".join(_sayings(wanted.reasons))
    kind = DeniedError if wanted.refused >= {"assistant", "console"} else UnreachableError
    return kind(
        f"the ssh host key of {wanted.instance_id} is not known, for nobody told it: {said}",
        hint="Allow ecs:RunCommand, ecs:DescribeInvocationResults and ecs:GetInstanceConsoleOutput, "
        "and use an image with Cloud Assistant.",
    )


def _sayings(reasons: dict[str, str]) -> Iterator[str]:
    yield f"Cloud Assistant: {reasons.get('assistant', 'it has not answered yet')}"
    yield f"the console: {reasons.get('console', 'it was not asked yet')}"


def _decoded(data: str) -> str:
    try:
        return base64.b64decode(data).decode(errors="replace")
    except binascii.Error:
        return ""
