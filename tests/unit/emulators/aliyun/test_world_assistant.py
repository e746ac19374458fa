"""Cloud Assistant: what waits, what is fetched, how it ended, and what a minute does to what nobody fetched."""

from __future__ import annotations

import base64

import pytest

from emulated import IMAGE, Cloud
from trainyard.emulators.aliyun import assistant_runs


@pytest.fixture
def cloud():
    return Cloud().ready()


def encoded(script):
    return base64.b64encode(script).decode()


def run(cloud, ids, script=b"echo hi", **parameters):
    return cloud.ecs(
        "RunCommand",
        Type="RunShellScript",
        CommandContent=encoded(script),
        ContentEncoding="Base64",
        InstanceId=ids,
        **parameters,
    )["InvokeId"]


def results(cloud, invocation, **parameters):
    body = cloud.ecs("DescribeInvocationResults", InvokeId=invocation, **parameters)
    return body["Invocation"]["InvocationResults"]["InvocationResult"]


def finish(cloud, invocation, instance, **outcome):
    assert assistant_runs.begin(cloud.world, invocation, instance, cloud.now)
    assistant_runs.finish(cloud.world, invocation, instance, cloud.now, **outcome)


def test_a_command_waits_runs_and_tells_its_output(cloud):
    a, b = cloud.running(Amount=2)
    invocation = run(cloud, [a, b], b"\xff\x00echo", Timeout=30, WorkingDir="/tmp", Username="root")
    assert [row["InvocationStatus"] for row in results(cloud, invocation)] == ["Pending"] * 2
    waiting = assistant_runs.errands(cloud.world, cloud.now)
    assert [(one.instance, one.script, one.timeout.seconds) for one in waiting] == [
        (a, b"\xff\x00echo", 30),
        (b, b"\xff\x00echo", 30),
    ]
    assert assistant_runs.begin(cloud.world, invocation, a, cloud.now)
    assert not assistant_runs.begin(cloud.world, invocation, a, cloud.now)
    assert results(cloud, invocation, InstanceId=a)[0]["InvokeRecordStatus"] == "Running"
    assistant_runs.finish(cloud.world, invocation, a, cloud.now, exit_code=0, output=b"hi\n")
    finish(cloud, invocation, b, exit_code=3, output=b"x" * 30_000)
    good, bad = results(cloud, invocation)
    assert (good["InvocationStatus"], good["ExitCode"], good["Output"]) == ("Success", 0, "aGkK")
    assert (bad["InvocationStatus"], bad["ExitCode"], bad["ErrorCode"]) == ("Failed", 3, "ExitCodeNonzero")
    assert (bad["Dropped"], len(base64.b64decode(bad["Output"]))) == (30_000 - 24 * 1024, 24 * 1024)
    assert results(cloud, invocation, ContentEncoding="PlainText")[0]["Output"] == "hi\n"
    (row,) = cloud.ecs("DescribeInvocations", InvokeId=invocation)["Invocations"]["Invocation"]
    assert row["InvocationStatus"] == "PartialFailed"
    assert assistant_runs.errands(cloud.world, cloud.now) == []


def test_a_command_is_aborted_when_nobody_fetches_it(cloud):
    (name,) = cloud.running()
    invocation = run(cloud, [name])
    cloud.later(60)
    (row,) = results(cloud, invocation)
    assert (row["InvocationStatus"], row["ErrorCode"]) == ("Aborted", "DeliveryTimeout")
    assert not assistant_runs.begin(cloud.world, invocation, name, cloud.now)


def test_the_agent_answers_some_seconds_after_running(cloud):
    (name,) = cloud.run()
    cloud.later(17)
    assert cloud.show(name)["Status"] == "Running"

    def status():
        body = cloud.ecs("DescribeCloudAssistantStatus", InstanceId=[name])
        (row,) = body["InstanceCloudAssistantStatusSet"]["InstanceCloudAssistantStatus"]
        return row["CloudAssistantStatus"]

    assert status() == "false"
    run(cloud, [name])
    assert assistant_runs.errands(cloud.world, cloud.now) == []
    cloud.later(3)
    assert status() == "true"
    assert len(assistant_runs.errands(cloud.world, cloud.now)) == 1


def test_instances_that_do_not_run_are_told_at_once(cloud):
    (name,) = cloud.running()
    cloud.ecs("StopInstances", InstanceId=[name])
    (row,) = results(cloud, run(cloud, [name]))
    assert (row["InvocationStatus"], row["ErrorCode"]) == ("Aborted", "InstanceNotRunning")
    refused = cloud.refused(
        "ecs", "RunCommand", Type="RunShellScript", CommandContent="x", InstanceId=["i-none"]
    )
    assert refused == "InvalidInstance.NotFound"


def test_running_commands_end_with_their_instance(cloud):
    a, b = cloud.running(Amount=2)
    invocation = run(cloud, [a, b])
    assert assistant_runs.begin(cloud.world, invocation, a, cloud.now)
    cloud.ecs("StopInstances", InstanceId=[a])
    cloud.ecs("DeleteInstances", InstanceId=[b], Force=True)
    first, second = results(cloud, invocation)
    assert (first["InvocationStatus"], first["ErrorCode"]) == ("Failed", "ExecutionInterrupted")
    assert (second["InvocationStatus"], second["ErrorCode"]) == ("Aborted", "InstanceReleased")
    assert not assistant_runs.is_wanted(cloud.world, invocation, a)
    assistant_runs.finish(cloud.world, invocation, a, cloud.now, exit_code=0, output=b"late")
    assert results(cloud, invocation)[0]["InvocationStatus"] == "Failed"


def test_a_stopped_invocation_is_cancelled_or_terminated(cloud):
    a, b = cloud.running(Amount=2)
    invocation = run(cloud, [a, b])
    assistant_runs.begin(cloud.world, invocation, a, cloud.now)
    cloud.ecs("StopInvocation", InvokeId=invocation)
    assert [row["InvocationStatus"] for row in results(cloud, invocation)] == ["Stopping", "Cancelled"]
    assert not assistant_runs.is_wanted(cloud.world, invocation, a)
    assistant_runs.finish(cloud.world, invocation, a, cloud.now, exit_code=None)
    rows = results(cloud, invocation)
    assert [row["InvocationStatus"] for row in rows] == ["Terminated", "Cancelled"]
    assert [row["InvokeRecordStatus"] for row in rows] == ["Stopped", "Stopped"]
    assert cloud.refused("ecs", "StopInvocation", InvokeId="t-none") == "InvalidInvokeId.NotFound"


def test_a_command_that_takes_too_long_is_a_timeout(cloud):
    (name,) = cloud.running()
    invocation = run(cloud, [name])
    finish(cloud, invocation, name, exit_code=None, error_code="ExecutionTimeout", error="too long")
    assert results(cloud, invocation)[0]["InvocationStatus"] == "Timeout"


def test_what_ran_when_the_emulator_died_has_failed(cloud):
    (name,) = cloud.running()
    invocation = run(cloud, [name])
    assistant_runs.begin(cloud.world, invocation, name, cloud.now)
    assistant_runs.abandon(cloud.world, cloud.now)
    (row,) = results(cloud, invocation)
    assert (row["InvocationStatus"], row["ErrorCode"]) == ("Failed", "ClientNotResponse")


def test_commands_are_kept_and_invoked_with_parameters(cloud):
    (name,) = cloud.running()
    command = cloud.ecs(
        "CreateCommand",
        Name="greet",
        Type="RunShellScript",
        CommandContent=encoded(b"echo {{who}} {{ who }}"),
        ContentEncoding="Base64",
        EnableParameter=True,
    )["CommandId"]
    given = {"CommandId": command, "InstanceId": [name]}
    assert cloud.refused("ecs", "InvokeCommand", **given) == "Parameter.NotMatched"
    cloud.ecs("InvokeCommand", **given, Parameters='{"who": "me"}')
    (errand,) = assistant_runs.errands(cloud.world, cloud.now)
    assert errand.script == b"echo me me"
    cloud.ecs("DeleteCommand", CommandId=command)
    assert cloud.refused("ecs", "InvokeCommand", **given) == "InvalidCmdId.NotFound"


def test_wrong_commands_are_refused(cloud):
    ids = cloud.running(Amount=2)
    right = {"Type": "RunShellScript", "CommandContent": "echo", "InstanceId": ids}

    def refused(**change):
        return cloud.refused("ecs", "RunCommand", **{**right, **change})

    assert refused(Type="RunBatScript") == "InvalidCmdType.NotFound"
    assert refused(CommandContent="!!", ContentEncoding="Base64") == "CmdContent.DecodeError"
    assert refused(CommandContent="x" * 40_000) == "CmdContent.ExceedLimit"
    assert refused(InstanceId=[f"i-{number}" for number in range(101)]) == "InstanceIds.ExceedLimit"
    assert cloud.world.invocations == {}


def test_a_file_is_sent(cloud):
    (name,) = cloud.running()
    given = {"Name": "a b'c.txt", "TargetDir": "/root/中文", "InstanceId": [name]}
    invocation = cloud.ecs("SendFile", **given, Content="aGk=", ContentType="Base64", FileMode="0600")[
        "InvokeId"
    ]
    (errand,) = assistant_runs.errands(cloud.world, cloud.now)
    assert errand.script == b""
    assert errand.file == {
        "Name": "a b'c.txt",
        "TargetDir": "/root/中文",
        "Content": "aGk=",
        "FileMode": "0600",
        "FileOwner": "root",
        "FileGroup": "root",
        "Overwrite": "false",
    }
    finish(cloud, invocation, name, exit_code=0)
    (row,) = cloud.ecs("DescribeSendFileResults", InvokeId=invocation)["Invocations"]["Invocation"]
    assert row["InvocationStatus"] == "Success"
    assert (
        cloud.refused("ecs", "SendFile", **{**given, "TargetDir": "rel"}, Content="x")
        == "FileTargetDir.Invalid"
    )
    assert cloud.refused("ecs", "SendFile", **given, Content="x" * 50_000) == "FileSize.ExceedLimit"
    assert (
        cloud.refused("ecs", "SendFile", **given, Content="!", ContentType="Base64")
        == "FileContent.DecodeError"
    )


def test_the_assistant_is_not_there_when_the_image_has_none_until_it_is_installed(cloud):
    cloud.world.set_options({"images_without_assistant": [IMAGE]})
    (name,) = cloud.running()
    invocation = run(cloud, [name])
    assert assistant_runs.errands(cloud.world, cloud.now) == []
    cloud.later(60)
    (row,) = results(cloud, invocation)
    assert (row["InvocationStatus"], row["ErrorCode"]) == ("Aborted", "DeliveryTimeout")
    cloud.ecs("InstallCloudAssistant", InstanceId=[name])
    cloud.later(3)
    run(cloud, [name])
    assert [errand.instance for errand in assistant_runs.errands(cloud.world, cloud.now)] == [name]


def test_the_console_shows_the_end_of_what_was_printed(cloud):
    (name,) = cloud.running()
    assert cloud.ecs("GetInstanceConsoleOutput", InstanceId=name)["ConsoleOutput"] == ""
    cloud.world.read_console = lambda instance: f"{instance}\n".encode() * 10_000
    shown = base64.b64decode(cloud.ecs("GetInstanceConsoleOutput", InstanceId=name)["ConsoleOutput"])
    assert len(shown) == 64 * 1024
    assert shown.endswith(f"{name}\n".encode())
    wrong = cloud.refused("ecs", "GetInstanceConsoleOutput", InstanceId="i-none")
    assert wrong == "InvalidInstanceId.NotFound"
