"""Cloud Assistant runs scripts on machines without ssh. It adds the keys of other computers and reads host keys."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path

from trainyard.backends.aliyun.api.client import Client
from trainyard.backends.aliyun.api.wire import Parameter, rows, text
from trainyard.lib.errors import DeniedError, UnreachableError
from trainyard.lib.shell import quote

TIMEOUT_SECONDS = 60
POLL_SECONDS = 1.0
OPEN = frozenset({"Pending", "Scheduled", "Running", "Stopping"})  # an invocation that has not ended
_ADMIT = Path(__file__).with_name("admit.sh")


async def admit_key(client: Client, instance_id: str, public_line: str) -> None:
    """Add a public key for root. May be repeated."""
    await run_script(client, instance_id, f"key={quote(public_line)}\n{_ADMIT.read_text(encoding='utf-8')}")


async def invoke(client: Client, ids: Sequence[str], script: str) -> str:
    """Begin a short script as root on up to a hundred machines; the id under which its results are found."""
    parameters: dict[str, Parameter] = {
        "Type": "RunShellScript",
        "Name": "trainyard",
        "CommandContent": base64.b64encode(script.encode()).decode(),
        "ContentEncoding": "Base64",
        "InstanceId": list(ids),
        "Timeout": TIMEOUT_SECONDS,
    }
    about = ids[0] if len(ids) == 1 else f"{len(ids)} machines"
    return text(await client.call("ecs", "RunCommand", parameters, about=about), "InvokeId")


async def run_script(client: Client, instance_id: str, script: str) -> str:
    """Run a short script as root and wait for it; what it printed. DeniedError where it fails."""
    invocation = await invoke(client, [instance_id], script)
    deadline = client.clock.monotonic() + 2 * TIMEOUT_SECONDS
    while client.clock.monotonic() < deadline:
        result = await _fetch_result(client, invocation)
        status = text(result, "InvocationStatus")
        if status == "Success":
            return base64.b64decode(text(result, "Output")).decode(errors="replace")
        if status and status not in OPEN:
            reason = text(result, "ErrorInfo") or text(result, "ErrorCode") or status
            raise DeniedError(
                f"Cloud Assistant could not run a script on {instance_id}: {reason}",
                hint="See in the console whether its agent runs.",
            )
        await client.clock.sleep(POLL_SECONDS)
    raise UnreachableError(f"Cloud Assistant does not answer for {instance_id}", hint="Try again later.")


async def _fetch_result(client: Client, invoke_id: str) -> dict[str, object]:
    answer = await client.call("ecs", "DescribeInvocationResults", {"InvokeId": invoke_id})
    found = rows(answer, "Invocation.InvocationResults.InvocationResult")
    return found[0] if found else {}
