"""Cloud Assistant: a script on a machine without ssh. Used to let in the key of another computer of the same person."""

from __future__ import annotations

import base64
from pathlib import Path

from trainyard.backends.aliyun.client import Client
from trainyard.backends.aliyun.wire import Parameter, rows, text
from trainyard.lib.errors import DeniedError, UnreachableError
from trainyard.lib.shell import quote

TIMEOUT_SECONDS = 60
POLL_SECONDS = 1.0
_OPEN = frozenset({"Pending", "Scheduled", "Running", "Stopping"})
_ADMIT = Path(__file__).with_name("admit.sh")


async def admit_key(client: Client, instance_id: str, public_line: str) -> None:
    """Let a public key in for root. Twice is once."""
    await run_script(client, instance_id, f"key={quote(public_line)}\n{_ADMIT.read_text(encoding='utf-8')}")


async def run_script(client: Client, instance_id: str, script: str) -> str:
    """Run a short script as root and wait for it; what it printed. DeniedError where it fails."""
    parameters: dict[str, Parameter] = {
        "Type": "RunShellScript",
        "Name": "trainyard",
        "CommandContent": base64.b64encode(script.encode()).decode(),
        "ContentEncoding": "Base64",
        "InstanceId": [instance_id],
        "Timeout": TIMEOUT_SECONDS,
    }
    answer = await client.call("ecs", "RunCommand", parameters, about=instance_id)
    deadline = client.clock.monotonic() + 2 * TIMEOUT_SECONDS
    while client.clock.monotonic() < deadline:
        result = await _fetch_result(client, text(answer, "InvokeId"))
        status = text(result, "InvocationStatus")
        if status == "Success":
            return base64.b64decode(text(result, "Output")).decode(errors="replace")
        if status and status not in _OPEN:
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
