"""Cloud Assistant on real machines: scripts run there, files arrive, what is stopped ends."""

from __future__ import annotations

import base64

import pytest

from emulation import Emulation, emulated, until

pytestmark = [pytest.mark.slow, pytest.mark.ssh]  # machines are booted


@pytest.fixture
def cloud(tmp_path):
    with emulated(tmp_path / "state") as cloud:
        yield cloud


@pytest.fixture
def instance(cloud):
    [instance] = cloud.launch(cloud.network())
    return instance


def result(cloud: Emulation, invocation: str) -> dict:
    answer = cloud.ecs("DescribeInvocationResults", InvokeId=invocation)
    [row] = answer["Invocation"]["InvocationResults"]["InvocationResult"]
    return row


def run(cloud: Emulation, instance: str, script: str, **options) -> dict:
    answer = cloud.ecs(
        "RunCommand",
        Type="RunShellScript",
        ContentEncoding="Base64",
        CommandContent=base64.b64encode(script.encode()).decode(),
        InstanceId=[instance],
        **options,
    )
    return until(
        lambda: (
            (row := result(cloud, answer["InvokeId"]))["InvocationStatus"] not in {"Pending", "Running"}
            and row
        )
    )


def test_a_script_runs_on_the_machine(cloud, instance):
    row = run(cloud, instance, 'echo "it\'s 中文"; echo >&2 oops; exit 3')
    assert (row["InvocationStatus"], row["ExitCode"], row["ErrorCode"]) == ("Failed", 3, "ExitCodeNonzero")
    assert base64.b64decode(row["Output"]).decode() == "it's 中文\noops\n"
    row = run(cloud, instance, "pwd", WorkingDir="/tmp")
    assert (row["InvocationStatus"], base64.b64decode(row["Output"])) == ("Success", b"/tmp\n")
    assert run(cloud, instance, "pwd", WorkingDir="/nowhere")["ErrorCode"] == "DirectoryNotExists"


def test_a_script_ends_when_its_time_is_up(cloud, instance):
    row = run(cloud, instance, "echo begun; sleep 100", Timeout=1)
    assert (row["InvocationStatus"], row["ErrorCode"]) == ("Timeout", "ExecutionTimeout")
    assert base64.b64decode(row["Output"]) == b"begun\n"


def test_a_script_ends_when_it_is_stopped(cloud, instance):
    invocation = cloud.ecs(
        "RunCommand", Type="RunShellScript", CommandContent="sleep 100", InstanceId=[instance]
    )["InvokeId"]
    until(lambda: result(cloud, invocation)["InvocationStatus"] == "Running")
    cloud.ecs("StopInvocation", InvokeId=invocation)
    until(lambda: result(cloud, invocation)["InvocationStatus"] == "Terminated")


def test_a_file_arrives_whatever_its_name(cloud, instance):
    name, folder = "a b'c\"$(touch pwned)`x`中文", "/root/d e'f"
    content = base64.b64encode(b"\0\1hello\n").decode()

    def send(**options):
        invocation = cloud.ecs(
            "SendFile",
            Name=name,
            TargetDir=folder,
            ContentType="Base64",
            Content=content,
            FileMode="0640",
            InstanceId=[instance],
            **options,
        )["InvokeId"]

        def row():
            rows = cloud.ecs("DescribeSendFileResults", InvokeId=invocation)["Invocations"]["Invocation"]
            [target] = rows[0]["InvokeInstances"]["InvokeInstance"]
            return target if target["InvocationStatus"] not in {"Pending", "Running"} else None

        return until(row)

    assert send()["InvocationStatus"] == "Success"
    again = send()
    assert (again["InvocationStatus"], again["ErrorCode"]) == ("Failed", "FileAlreadyExists")
    assert send(Overwrite=True)["InvocationStatus"] == "Success"
    found = run(cloud, instance, """cd "/root/d e'f" && ls -A && stat -c %a * && od -c *""")
    text = base64.b64decode(found["Output"]).decode()
    assert text.splitlines()[:2] == [name, "640"], text
    assert "pwned" not in text.replace(name, "")


def test_a_script_that_ran_is_told_as_failed_when_the_emulator_was_killed(tmp_path):
    cloud = Emulation(tmp_path / "state")
    [instance] = cloud.launch(cloud.network())
    invocation = cloud.ecs(
        "RunCommand", Type="RunShellScript", CommandContent="sleep 30", InstanceId=[instance]
    )["InvokeId"]
    until(lambda: result(cloud, invocation)["InvocationStatus"] == "Running")
    cloud.kill()
    with emulated(tmp_path / "state") as again:
        # Killed before the beginning was written down, it begins anew; after it, it is lost.
        status = until(
            lambda: (found := result(again, invocation)["InvocationStatus"]) != "Pending" and found
        )
        assert status in {"Failed", "Running"}
        again.ecs("DeleteInstances", InstanceId=[instance], Force=True)
