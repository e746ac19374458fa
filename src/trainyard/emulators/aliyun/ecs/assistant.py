"""Cloud Assistant: scripts and files on their way to instances, and how they fared.

A call only writes down what is wanted; `assistant_runs.py` hands it to whoever owns the machines.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable

from trainyard.emulators.aliyun.api.answers import by_token, ecs_tags, read_tags, require_region, second
from trainyard.emulators.aliyun.api.call import Call, Handler, Value, text
from trainyard.emulators.aliyun.api.problems import denied, missing, not_found
from trainyard.emulators.aliyun.cloud.records import Command, Invocation, Target
from trainyard.emulators.aliyun.cloud.timeline import UNDELIVERED, agent_answers
from trainyard.emulators.aliyun.cloud.world import World

CONTENT_LIMIT = 24 * 1024
FILE_LIMIT = 32 * 1024
_KINDS = frozenset({"RunShellScript"})
_RUNNING = frozenset({"Pending", "Scheduled", "Running", "Stopping"})
_PARAMETER = re.compile(rb"{{\s*([A-Za-z0-9_-]+)\s*}}")
_FILE_FIELDS = ("Name", "TargetDir", "Content", "FileMode", "FileOwner", "FileGroup")


# --- asking for commands


def _content(call: Call) -> str:
    """The script of a call, in base64."""
    content = call.required("CommandContent")
    if len(content) > CONTENT_LIMIT * 4 // 3 + 4:
        raise denied("CmdContent.ExceedLimit", "The CommandContent is too long.")
    if call.text("ContentEncoding", "PlainText") != "Base64":
        return base64.b64encode(content.encode()).decode()
    try:
        return base64.b64encode(base64.b64decode(content, validate=True)).decode()
    except binascii.Error as error:
        raise denied("CmdContent.DecodeError", "The CommandContent is not base64.") from error


def _command(call: Call, region: str, *, kept: bool) -> Command:
    kind = call.required("Type")
    if kind not in _KINDS:
        raise denied("InvalidCmdType.NotFound", f"The specified command type does not exist: {kind}.")
    if len(call.text("Name")) > 128:
        raise denied("CmdName.ExceedLimit", "The length of the command name exceeds the limit.")
    return Command(
        id="",  # given when all has been judged
        region=region,
        name=call.text("Name", "cmd"),
        kind=kind,
        content=_content(call),
        created=call.now,
        description=call.text("Description"),
        working_dir=call.text("WorkingDir"),
        timeout=call.number("Timeout", 60),
        has_parameters=call.flag("EnableParameter"),
        kept=kept,
    )


def create_command(world: World, call: Call) -> dict[str, Value]:
    """CreateCommand."""
    command = _command(call, require_region(call), kept=True)
    command.id = world.new_id("c-", command.region)
    world.commands[command.id] = command
    return {"CommandId": command.id}


def delete_command(world: World, call: Call) -> dict[str, Value]:
    """DeleteCommand."""
    if world.commands.pop(call.required("CommandId"), None) is None:
        raise not_found("InvalidCmdId.NotFound", "The specified command does not exist.")
    return {}


def describe_commands(world: World, call: Call) -> dict[str, Value]:
    """DescribeCommands: those that were kept."""
    region = require_region(call)
    rows = [
        one
        for one in world.commands.values()
        if one.region == region
        and call.text("CommandId") in {"", one.id}
        and call.text("Name").strip("*") in one.name
        and call.text("Type") in {"", one.kind}
    ]

    def show(one: Command) -> Value:
        plain = call.text("ContentEncoding", "Base64") == "PlainText"
        script = base64.b64decode(one.content)
        names = sorted({match.decode() for match in _PARAMETER.findall(script)}) if one.has_parameters else []
        return {
            "CommandId": one.id,
            "Name": one.name,
            "Type": one.kind,
            "Description": one.description,
            "CommandContent": script.decode("utf-8", "replace") if plain else one.content,
            "WorkingDir": one.working_dir,
            "Timeout": one.timeout,
            "EnableParameter": one.has_parameters,
            "ParameterNames": {"ParameterName": names},
            "CreationTime": second(one.created),
            "InvokeTimes": sum(invocation.command == one.id for invocation in world.invocations.values()),
            "Provider": "",
        }

    shown, fields = by_token(call, rows, show, name=lambda one: one.id, most=50)
    return {"Commands": {"Command": shown}, **fields}


def install(world: World, call: Call) -> dict[str, Value]:
    """InstallCloudAssistant: on running instances that have none."""
    unknown = [one for one in call.texts("InstanceId") if one not in world.instances]
    if unknown:
        raise not_found("InvalidInstance.NotFound", f"The instances do not exist: {', '.join(unknown)}.")
    for instance in (world.instances[one] for one in call.texts("InstanceId")):
        if instance.status == "Running" and instance.agent_ready is None:
            instance.agent_ready = call.now + world.options.duration("agent")
    return {}


def _targets(world: World, call: Call, region: str, most: int) -> list[Target]:
    ids = list(dict.fromkeys(call.texts("InstanceId")))
    if not ids and call.structs("ResourceTag"):
        wanted = {text(one, "Key"): text(one, "Value") for one in call.structs("ResourceTag")}
        ids = [
            one.id
            for one in world.instances.values()
            if one.region == region and wanted.items() <= one.tags.items()
        ]
    if not ids:
        raise missing("InstanceId")
    if len(ids) > most:
        raise denied("InstanceIds.ExceedLimit", f"The number of instances exceeds {most}.")
    targets = []
    for instance_id in ids:
        instance = world.instances.get(instance_id)
        if instance is None or instance.region != region or instance.deleting:
            raise not_found(
                "InvalidInstance.NotFound", f"The specified instance does not exist: {instance_id}."
            )
        target = Target(instance=instance_id)
        if instance.status != "Running":
            target.status, target.finished = "Aborted", call.now
            target.error_code, target.error = "InstanceNotRunning", f"The instance is {instance.status}."
        targets.append(target)
    return targets


def _invoke(world: World, call: Call, command: Command, region: str) -> Invocation:
    repeat = call.text("RepeatMode", "Once")
    if repeat not in {"Once", "DryRun"}:
        raise denied("InvalidParam.Frequency", f"The emulator runs commands once, not {repeat}.")
    require_room(world)
    script, targets = _filled(command, call), _targets(world, call, region, 100)
    tags = read_tags(call.structs("Tag"))
    command.id = command.id or world.new_id("c-", region)
    invocation = Invocation(
        id=world.new_id("t-", region),
        region=region,
        command=command.id,
        created=call.now,
        script=script,
        kind=command.kind,
        name=command.name,
        description=command.description,
        timeout=call.number("Timeout", command.timeout),
        working_dir=call.text("WorkingDir", command.working_dir),
        username=call.text("Username"),
        termination=call.text("TerminationMode", "Process"),
        repeat=repeat,
        targets=targets,
        tags=tags,
    )
    world.invocations[invocation.id] = invocation
    return invocation


def require_room(world: World) -> None:
    """Refuse more invocations than a day may have."""
    if len(world.invocations) >= world.options.quotas.invocations:
        raise denied("CmdCount.ExceedQuota", "The number of invocations exceeds the quota.")


def _filled(command: Command, call: Call) -> str:
    """The script with its custom parameters, `{{name}}`, filled in."""
    given = call.struct("Parameters")
    if not command.has_parameters:
        return command.content
    script = base64.b64decode(command.content)
    if {match.decode() for match in _PARAMETER.findall(script)} != set(given):
        raise denied("Parameter.NotMatched", "The given parameters are not those of the command.")
    filled = _PARAMETER.sub(lambda match: str(given[match[1].decode()]).encode(), script)
    return base64.b64encode(filled).decode()


def run_command(world: World, call: Call) -> dict[str, Value]:
    """RunCommand: makes a command and sends it off."""
    region = require_region(call)
    command = _command(call, region, kept=call.flag("KeepCommand"))
    invocation = _invoke(world, call, command, region)
    if command.kept:
        world.commands[command.id] = command
    return {"CommandId": command.id, "InvokeId": invocation.id}


def invoke_command(world: World, call: Call) -> dict[str, Value]:
    """InvokeCommand: sends off a command that was made before."""
    region, command = require_region(call), world.commands.get(call.required("CommandId"))
    if command is None or command.region != region:
        raise not_found("InvalidCmdId.NotFound", "The specified command does not exist.")
    return {"InvokeId": _invoke(world, call, command, region).id}


def send_file(world: World, call: Call) -> dict[str, Value]:
    """SendFile."""
    region, content = require_region(call), call.required("Content")
    name, folder, mode = call.required("Name"), call.required("TargetDir"), call.text("FileMode", "0644")
    kind = call.text("ContentType", "PlainText")
    if kind not in {"PlainText", "Base64"}:
        raise denied("FileContentType.Invalid", f"The ContentType is not valid: {kind}.")
    if len(content) > FILE_LIMIT * 4 // 3 + 4:
        raise denied("FileSize.ExceedLimit", "The file is larger than 32 KB.")
    if not folder.startswith("/"):
        raise denied("FileTargetDir.Invalid", "The TargetDir must be an absolute path.")
    if not re.fullmatch(r"0?[0-7]{3,4}", mode):
        raise denied("FileMode.Invalid", f"The FileMode is not valid: {mode}.")
    if kind == "PlainText":
        content = base64.b64encode(content.encode()).decode()
    elif not re.fullmatch(r"[A-Za-z0-9+/\s]*={0,2}\s*", content):
        raise denied("FileContent.DecodeError", "The Content is not base64.")
    require_room(world)
    targets, tags = _targets(world, call, region, 50), read_tags(call.structs("Tag"))
    file = {one: call.text(one) for one in _FILE_FIELDS}
    file.update(Content=content, FileMode=mode, Overwrite=str(call.flag("Overwrite")).lower())
    file.update(FileOwner=call.text("FileOwner", "root"), FileGroup=call.text("FileGroup", "root"))
    invocation = Invocation(
        id=world.new_id("f-", region),
        region=region,
        command="",
        created=call.now,
        kind="SendFile",
        name=name,
        description=call.text("Description"),
        timeout=call.number("Timeout", 60),
        file=file,
        targets=targets,
        tags=tags,
    )
    world.invocations[invocation.id] = invocation
    return {"InvokeId": invocation.id}


def stop_invocation(world: World, call: Call) -> dict[str, Value]:
    """StopInvocation: what waits is cancelled, what runs is told to end."""
    invocation = world.invocations.get(call.required("InvokeId"))
    if invocation is None or invocation.region != require_region(call):
        raise not_found("InvalidInvokeId.NotFound", "The specified invocation does not exist.")
    ids = call.texts("InstanceId")
    for target in invocation.targets:
        if ids and target.instance not in ids:
            continue
        if target.status in UNDELIVERED:
            target.status, target.finished, target.stopped = "Cancelled", call.now, call.now
        elif target.status == "Running":
            target.status = "Stopping"
    return {}


# --- asking for outcomes


def _record_status(target: Target) -> str:
    """InvokeRecordStatus of one instance."""
    if target.status in _RUNNING:
        return "Stopping" if target.status == "Stopping" else "Running"
    if target.status in {"Cancelled", "Terminated"}:
        return "Stopped"
    return "Finished" if target.exit_code is not None or target.status == "Success" else "Failed"


def _overall(invocation: Invocation) -> str:
    """InvocationStatus of the whole."""
    statuses = {target.status for target in invocation.targets}
    if len(statuses) == 1:
        return statuses.pop()
    if statuses & _RUNNING:
        return "Running"
    return "PartialFailed" if "Success" in statuses else "Failed"


def _output(target: Target, call: Call) -> str:
    if call.text("ContentEncoding", "Base64") == "PlainText":
        return base64.b64decode(target.output).decode("utf-8", "replace")
    return target.output


def _outcome(target: Target, call: Call) -> dict[str, Value]:
    shown: dict[str, Value] = {
        "InstanceId": target.instance,
        "InvocationStatus": target.status,
        "Output": _output(target, call),
        "Dropped": target.dropped,
        "ErrorCode": target.error_code,
        "ErrorInfo": target.error,
        "StartTime": second(target.started),
        "StopTime": second(target.stopped),
        "Repeats": 1 if target.started else 0,
    }
    if target.exit_code is not None:
        shown["ExitCode"] = target.exit_code
    return shown


def describe_results(world: World, call: Call) -> dict[str, Value]:
    """DescribeInvocationResults: a row for each instance."""
    region = require_region(call)
    rows = [
        (invocation, target)
        for invocation in reversed(list(world.invocations.values()))
        if invocation.region == region
        and invocation.command
        and call.text("InvokeId") in {"", invocation.id}
        and call.text("CommandId") in {"", invocation.command}
        for target in invocation.targets
        if call.text("InstanceId") in {"", target.instance}
        and call.text("InvokeRecordStatus") in {"", _record_status(target)}
    ]

    def show(row: tuple[Invocation, Target]) -> Value:
        invocation, target = row
        return {
            **_outcome(target, call),
            "InvokeId": invocation.id,
            "CommandId": invocation.command,
            "InvokeRecordStatus": _record_status(target),
            "FinishedTime": second(target.finished),
            "Username": invocation.username or "root",
            "TerminationMode": invocation.termination,
            "Tags": ecs_tags(invocation.tags),
        }

    shown, fields = by_token(call, rows, show, name=lambda row: f"{row[0].id}/{row[1].instance}", most=50)
    return {"Invocation": {"InvocationResults": {"InvocationResult": shown}, **fields}}


def describe_invocations(world: World, call: Call) -> dict[str, Value]:
    """DescribeInvocations: a row for each invocation."""

    def show(invocation: Invocation) -> Value:
        return {
            "InvokeId": invocation.id,
            "CommandId": invocation.command,
            "CommandName": invocation.name,
            "CommandDescription": invocation.description,
            "CommandType": invocation.kind,
            "CommandContent": invocation.script,
            "CreationTime": second(invocation.created),
            "InvocationStatus": _overall(invocation),
            "InvokeStatus": "Running" if _overall(invocation) in _RUNNING else "Finished",
            "RepeatMode": invocation.repeat,
            "Timed": False,
            "Timeout": invocation.timeout,
            "Username": invocation.username or "root",
            "WorkingDir": invocation.working_dir,
            "TerminationMode": invocation.termination,
            "InvokeInstances": {
                "InvokeInstance": [_instance_row(invocation, one, call) for one in invocation.targets]
            },
            "Tags": ecs_tags(invocation.tags),
        }

    return _listed(world, call, show, files=False)


def _instance_row(invocation: Invocation, target: Target, call: Call) -> Value:
    row = {**_outcome(target, call), "FinishTime": second(target.finished), "Timed": False}
    row["CreationTime"] = second(invocation.created)
    row["InstanceInvokeStatus"] = _record_status(target)
    if not call.flag("IncludeOutput"):
        row.pop("Output")
    return row


def describe_files(world: World, call: Call) -> dict[str, Value]:
    """DescribeSendFileResults."""

    def show(invocation: Invocation) -> Value:
        rows: Value = [
            {
                "InstanceId": target.instance,
                "InvocationStatus": target.status,
                "CreationTime": second(invocation.created),
                "StartTime": second(target.started),
                "FinishTime": second(target.finished),
                "ErrorCode": target.error_code,
                "ErrorInfo": target.error,
            }
            for target in invocation.targets
        ]
        return {
            "InvokeId": invocation.id,
            "Description": invocation.description,
            "CreationTime": second(invocation.created),
            "InvocationStatus": _overall(invocation),
            "VmCount": len(invocation.targets),
            "ContentType": "Base64",
            **invocation.file,
            "InvokeInstances": {"InvokeInstance": rows},
            "Tags": ecs_tags(invocation.tags),
        }

    return _listed(world, call, show, files=True)


def _listed(
    world: World, call: Call, show: Callable[[Invocation], Value], *, files: bool
) -> dict[str, Value]:
    region, status = require_region(call), call.text("InvocationStatus") or call.text("InvokeStatus")
    rows = [
        one
        for one in reversed(list(world.invocations.values()))
        if one.region == region
        and bool(one.file) == files
        and call.text("InvokeId") in {"", one.id}
        and call.text("CommandId") in {"", one.command}
        and call.text("InstanceId") in {"", *(target.instance for target in one.targets)}
        and status in {"", _overall(one)}
        and (call.text("Name") or call.text("CommandName")) in {"", one.name}
    ]
    shown, fields = by_token(call, rows, show, name=lambda one: one.id, most=50)
    return {"Invocations": {"Invocation": shown}, **fields}


def describe_status(world: World, call: Call) -> dict[str, Value]:
    """DescribeCloudAssistantStatus."""
    region, ids = require_region(call), call.texts("InstanceId")
    if len(ids) > 50:
        raise denied("InstanceIds.ExceedLimit", "The number of instances exceeds 50.")
    rows = [
        one
        for one in world.instances.values()
        if one.region == region and (not ids or one.id in ids) and not one.deleting
    ]
    unknown = set(ids) - {one.id for one in rows}
    if unknown:
        raise not_found(
            "InvalidInstance.NotFound", f"The instances do not exist: {', '.join(sorted(unknown))}."
        )
    counts = {
        one.id: [
            target.status
            for invocation in world.invocations.values()
            for target in invocation.targets
            if target.instance == one.id
        ]
        for one in rows
    }
    shown, fields = by_token(
        call,
        rows,
        lambda one: {
            "InstanceId": one.id,
            "CloudAssistantStatus": "true" if agent_answers(one, call.now) else "false",
            "CloudAssistantVersion": "2.2.3.857" if one.boot else "",
            "LastHeartbeatTime": second(call.now) if agent_answers(one, call.now) else "",
            "InvocationCount": len(counts[one.id]),
            "ActiveTaskCount": sum(status in _RUNNING for status in counts[one.id]),
            "OSType": "Linux",
            "SupportSessionManager": True,
        },
        name=lambda one: one.id,
        most=50,
    )
    return {"InstanceCloudAssistantStatusSet": {"InstanceCloudAssistantStatus": shown}, **fields}


ACTIONS: dict[tuple[str, str], Handler] = {
    ("ecs", "RunCommand"): run_command,
    ("ecs", "CreateCommand"): create_command,
    ("ecs", "InvokeCommand"): invoke_command,
    ("ecs", "DeleteCommand"): delete_command,
    ("ecs", "DescribeCommands"): describe_commands,
    ("ecs", "InstallCloudAssistant"): install,
    ("ecs", "SendFile"): send_file,
    ("ecs", "StopInvocation"): stop_invocation,
    ("ecs", "DescribeInvocations"): describe_invocations,
    ("ecs", "DescribeInvocationResults"): describe_results,
    ("ecs", "DescribeSendFileResults"): describe_files,
    ("ecs", "DescribeCloudAssistantStatus"): describe_status,
}
