"""The client against a real HTTP server that misbehaves as told; the vendor's package is the real one."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from scripted_api import Reply, ScriptedApi, error, scripted_api
from trainyard import settings
from trainyard.backends.aliyun.api import client as client_module
from trainyard.backends.aliyun.api.client import Client, kind_of
from trainyard.backends.aliyun.api.errors import code_of, is_outcome_unknown
from trainyard.backends.aliyun.api.paging import check_list_permission, fetch_all, fetch_by_ids
from trainyard.backends.aliyun.api.retry import Kind
from trainyard.lib.clock import ManualClock
from trainyard.lib.errors import CapacityError, DeniedError, Error, InvalidError, UnreachableError

SECRET = "s3cr3t/+=key"
TOKEN = "t0k3n/+=sts"

CUT = Reply(cut=True)
HTML = Reply("<html>502 Bad Gateway</html>", 502, {"content-type": "text/html"})
EMPTY = Reply("", 500)
BROKEN = Reply('{"RequestId": ', 200)
FAULT = error("InternalError", "we are sorry", 500)
THROTTLED = error("Throttling.User", "Request was denied due to user flow control.", 400)
THROTTLED_HEADER = error("Throttling.Api", "slow down", 429, {"x-acs-retry-after": "1500"})
NO_STOCK = error("OperationDenied.NoStock", "sold out", 403)


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedApi]:
    for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy"):
        monkeypatch.delenv(name, raising=False)
    with scripted_api() as server:
        yield server


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def make_client(endpoint: str, home: Path, clock: ManualClock, **env: str) -> Client:
    environ = {
        "HOME": str(home),
        "ALIYUN_ACCESS_KEY_ID": "the-id",
        "ALIYUN_ACCESS_KEY_SECRET": SECRET,
        "ALIYUN_DEFAULT_REGION": "cn-beijing",
        "TRAINYARD_ALIYUN_ENDPOINT": endpoint,
        **env,
    }
    return Client.from_settings(settings.load(environ), clock=clock)


@pytest.fixture
def client(api: ScriptedApi, clock: ManualClock, isolation: Path) -> Client:
    return make_client(api.endpoint, isolation, clock)


async def test_a_call_is_signed_and_sent_in_the_body(api, client):
    api.script(Reply({"RequestId": "r", "Instances": {"Instance": []}}))
    answer = await client.call(
        "ecs", "DescribeInstances", {"Tag": [{"Key": "a b", "Value": "中"}], "MaxResults": 10}
    )
    assert answer["RequestId"] == "r"
    (asked,) = api.asked
    assert asked.path == "/"
    assert asked.form == {
        "RegionId": "cn-beijing",
        "Tag.1.Key": "a b",
        "Tag.1.Value": "中",
        "MaxResults": "10",
    }
    assert asked.headers["x-acs-action"] == "DescribeInstances"
    assert asked.headers["x-acs-version"] == "2014-05-26"
    assert asked.headers["authorization"].startswith("ACS3-HMAC-SHA256 Credential=the-id,")


async def test_a_temporary_key_sends_its_token(api, isolation, clock):
    client = make_client(api.endpoint, isolation, clock, ALIYUN_SECURITY_TOKEN=TOKEN)
    await client.call("sts", "GetCallerIdentity")
    assert api.asked[0].headers["x-acs-security-token"] == TOKEN
    assert api.asked[0].form == {}


@pytest.mark.parametrize(
    "trouble", [CUT, HTML, EMPTY, BROKEN, FAULT], ids=["cut", "html", "empty", "broken", "fault"]
)
async def test_a_safe_call_is_repeated_when_the_answer_is_no_answer(api, client, trouble):
    api.script(trouble, trouble, Reply({"RequestId": "r"}))
    assert (await client.call("ecs", "DescribeInstances"))["RequestId"] == "r"
    assert len(api.asked) == 3


@pytest.mark.parametrize(
    "trouble", [CUT, HTML, EMPTY, BROKEN, FAULT], ids=["cut", "html", "empty", "broken", "fault"]
)
async def test_an_unsafe_call_is_sent_once_when_its_outcome_is_unknown(api, client, trouble):
    api.script(trouble)
    with pytest.raises(UnreachableError) as caught:
        await client.call("ecs", "ImportKeyPair", {"KeyPairName": "k", "PublicKeyBody": "ssh-rsa A"})
    assert len(api.asked) == 1
    assert is_outcome_unknown(caught.value)


@pytest.mark.parametrize("trouble", [THROTTLED, THROTTLED_HEADER, error("OperationConflict")])
async def test_an_unsafe_call_is_repeated_when_nothing_happened_for_certain(api, client, trouble):
    api.script(trouble, Reply({"RequestId": "r"}))
    await client.call("ecs", "ImportKeyPair", {"KeyPairName": "k", "PublicKeyBody": "ssh-rsa A"})
    assert len(api.asked) == 2


async def test_throttling_waits_as_long_as_the_header_says(api, client, clock):
    api.script(THROTTLED_HEADER, Reply())
    await client.call("ecs", "DescribeInstances")
    assert 1.5 <= clock.monotonic() < 2


async def test_throttling_waits_for_the_next_minute_when_there_is_no_header(api, client, clock):
    clock.advance(25)
    api.script(THROTTLED, Reply())
    await client.call("ecs", "DescribeInstances")
    assert clock.now().minute == 1
    assert clock.monotonic() < 62


async def test_throttling_without_end_is_told_after_some_minutes(api, client, clock):
    api.answer = lambda _: THROTTLED
    with pytest.raises(UnreachableError, match="too many calls"):
        await client.call("ecs", "DescribeInstances")
    assert clock.monotonic() <= 300


TROUBLES = st.sampled_from(
    [CUT, HTML, EMPTY, FAULT, THROTTLED_HEADER, error("LastTokenProcessing", status=403)]
)


@given(st.lists(TROUBLES, max_size=5))
@hypothesis_settings(
    deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_a_token_call_repeats_the_same_token_and_parameters(api, isolation, troubles):
    client = make_client(api.endpoint, isolation, ManualClock())
    api.script(*troubles, Reply({"InstanceIdSets": {"InstanceIdSet": ["i-1"]}}))
    parameters = {"InstanceType": "ecs.g7.large", "Amount": 1, "UserData": "IyEvYmluL3No"}

    async def go() -> None:
        made = await client.create("ecs", "RunInstances", parameters, purpose="p", token_tag="t")
        assert made.answer["InstanceIdSets"]["InstanceIdSet"] == ["i-1"]
        assert {frozenset(asked.form.items()) for asked in api.asked} == {frozenset(made.form.items())}
        assert made.form["ClientToken"] == made.token == made.form["Tag.1.Value"]
        client.journal.clear(made.token)

    asyncio.run(go())
    assert len(api.asked) == len(troubles) + 1
    assert len({asked.headers["x-acs-signature-nonce"] for asked in api.asked}) == len(api.asked)


async def test_the_journal_is_written_before_the_call_and_kept_until_it_is_cleared(api, client):
    seen: list[int] = []

    def answer(_):
        seen.append(len(client.journal.entries()))
        return Reply({"VpcId": "vpc-1"})

    api.answer = answer
    made = await client.create("vpc", "CreateVpc", {"VpcName": "v"}, purpose="vpc v")
    assert seen == [1]
    assert [entry.token for entry in client.journal.entries()] == [made.token]
    assert not made.is_replay


async def test_the_journal_is_cleared_when_the_create_is_refused(api, client):
    api.script(NO_STOCK)
    with pytest.raises(CapacityError):
        await client.create("ecs", "RunInstances", {"InstanceType": "x"}, purpose="p")
    assert client.journal.entries() == []


async def test_the_entry_stays_when_a_refusal_follows_silence_and_proves_nothing(api, client):
    api.script(CUT, error("Forbidden.RAM", status=403))
    with pytest.raises(DeniedError) as caught:
        await client.create("ecs", "RunInstances", {"InstanceType": "x"}, purpose="p")
    assert is_outcome_unknown(caught.value)
    assert len(client.journal.entries()) == 1


async def test_the_next_run_repeats_the_earlier_create_exactly_when_its_outcome_was_unknown(
    api, client, isolation, clock
):
    api.answer = lambda _: CUT
    with pytest.raises(UnreachableError):
        await client.create("ecs", "RunInstances", {"InstanceType": "x", "UserData": "b25l"}, purpose="p")
    first = api.asked[0].form
    api.answer = None
    api.script(Reply({"InstanceIdSets": {"InstanceIdSet": ["i-1"]}}))
    again = make_client(api.endpoint, isolation, clock)
    made = await again.create("ecs", "RunInstances", {"InstanceType": "x", "UserData": "dHdv"}, purpose="p")
    assert made.is_replay
    assert api.asked[0].form == first == made.form


async def test_a_new_create_follows_when_the_earlier_one_certainly_made_nothing(api, client):
    api.answer = lambda _: CUT
    with pytest.raises(UnreachableError):
        await client.create("ecs", "RunInstances", {"InstanceType": "x"}, purpose="p")
    api.answer = None
    api.script(NO_STOCK, Reply({"InstanceIdSets": {"InstanceIdSet": ["i-2"]}}))
    made = await client.create("ecs", "RunInstances", {"InstanceType": "y"}, purpose="p")
    assert not made.is_replay
    assert [asked.form["InstanceType"] for asked in api.asked] == ["x", "y"]
    assert [entry.token for entry in client.journal.entries()] == [made.token]


async def test_an_old_entry_is_not_repeated(api, client, clock):
    api.answer = lambda _: CUT
    with pytest.raises(UnreachableError):
        await client.create("ecs", "RunInstances", {"InstanceType": "x"}, purpose="p")
    clock.advance(2 * 3600)
    api.answer = None
    api.script()
    made = await client.create("ecs", "RunInstances", {"InstanceType": "y"}, purpose="p")
    assert [asked.form["InstanceType"] for asked in api.asked] == ["y"]
    assert len(client.journal.entries()) == 1
    assert not made.is_replay


async def test_a_cancelled_create_leaves_its_entry(api, client):
    release = threading.Event()
    api.script(Reply({"VpcId": "vpc-1"}, wait=release))
    task = asyncio.create_task(client.create("vpc", "CreateVpc", {"VpcName": "v"}, purpose="p"))
    while not api.asked:
        await asyncio.sleep(0.005)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    release.set()
    assert len(client.journal.entries()) == 1


async def test_the_event_loop_goes_on_while_a_call_waits(api, client):
    release = threading.Event()
    api.script(Reply({"RequestId": "r"}, wait=release))
    task = asyncio.create_task(client.call("ecs", "DescribeInstances"))
    while not api.asked:
        await asyncio.sleep(0.005)
    assert not task.done()
    release.set()
    await task


async def test_many_calls_at_once_share_one_client(api, client):
    answers = await asyncio.gather(*(client.call("ecs", "DescribeZones") for _ in range(60)))
    assert len(answers) == 60
    assert client.calls == 60


@pytest.mark.slow  # waits for a real time-out of half a second
async def test_a_time_out_is_an_unknown_outcome(api, client, monkeypatch):
    monkeypatch.setattr(client_module, "READ_SECONDS", 0.5)
    release = threading.Event()
    api.script(Reply({}, wait=release))
    with pytest.raises(UnreachableError) as caught:
        await client.call("ecs", "RebootInstances", {"InstanceId": ["i-1"]})
    release.set()
    assert is_outcome_unknown(caught.value)
    assert "took too long" in caught.value.message


async def test_nobody_there_is_told_at_once_with_a_hint(isolation, clock):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{free.getsockname()[1]}"
        client = make_client(endpoint, isolation, clock)
        with pytest.raises(UnreachableError) as caught:
            await client.call("ecs", "ImportKeyPair", {})
    assert endpoint in caught.value.message
    assert "refused" in caught.value.message
    assert "emulate" in caught.value.hint
    assert not is_outcome_unknown(caught.value)
    assert clock.monotonic() < 5


async def test_loopback_is_reached_past_a_proxy(api, isolation, clock, monkeypatch):
    for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")  # nobody listens there
    await make_client(api.endpoint, isolation, clock).call("ecs", "DescribeZones")
    assert len(api.asked) == 1


async def test_a_proxy_is_used_for_what_is_not_on_loopback(api, isolation, clock, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", f"http://{api.endpoint}")
    client = make_client("http://gateway.invalid", isolation, clock)
    await client.call("ecs", "DescribeZones")
    assert api.asked[0].path == "http://gateway.invalid/"


async def test_an_unverified_certificate_is_final_and_nothing_was_sent(api, isolation, clock):
    client = make_client(f"https://{api.endpoint}", isolation, clock)
    with pytest.raises(UnreachableError) as caught:
        await client.call("ecs", "ImportKeyPair", {})
    assert api.asked == []
    assert not is_outcome_unknown(caught.value)


async def test_no_region_is_told(isolation):
    with pytest.raises(InvalidError) as caught:
        Client.from_settings(settings.load({"HOME": str(isolation)}))
    assert "ALIYUN_DEFAULT_REGION" in caught.value.hint


@pytest.mark.parametrize(
    ("action", "kind"),
    [
        ("DescribeInstances", Kind.SAFE),
        ("ListTagResources", Kind.SAFE),
        ("GetCallerIdentity", Kind.SAFE),
        ("TagResources", Kind.SAFE),
        ("StopInstances", Kind.SAFE),
        ("RunInstances", Kind.TOKEN),
        ("CreateVSwitch", Kind.TOKEN),
        ("DeleteInstances", Kind.TOKEN),
        ("ImportKeyPair", Kind.UNSAFE),
        ("CreateMountTarget", Kind.UNSAFE),
        ("RebootInstances", Kind.UNSAFE),
        ("SomethingNew", Kind.UNSAFE),
    ],
)
def test_the_class_of_an_action_is_known_and_unsafe_when_it_is_not(action, kind):
    assert kind_of(action) is kind


# -- lists -------------------------------------------------------------------------------------------------------------


async def test_all_pages_are_read_by_token(api, client):
    everything = [{"InstanceId": f"i-{number}"} for number in range(250)]

    def answer(asked):
        start = int(asked.form.get("NextToken", "0"))
        size = int(asked.form["MaxResults"])
        more = str(start + size) if start + size < len(everything) else ""
        return Reply({"Instances": {"Instance": everything[start : start + size]}, "NextToken": more})

    api.answer = answer
    assert await fetch_all(client, "ecs", "DescribeInstances") == everything
    assert len(api.asked) == 3


async def test_all_pages_are_read_by_number_each_row_once_though_rows_move(api, client):
    def answer(asked):
        page = int(asked.form["PageNumber"])
        first = (page - 1) * 50 - (page > 1)  # one row has slipped onto the next page meanwhile
        ids = range(first, min(first + 50, 120))
        return Reply({"Vpcs": {"Vpc": [{"VpcId": f"vpc-{number}"} for number in ids]}, "TotalCount": 120})

    api.answer = answer
    found = await fetch_all(client, "vpc", "DescribeVpcs")
    assert [row["VpcId"] for row in found] == [f"vpc-{number}" for number in range(120)]


async def test_a_row_that_changes_while_pages_are_read_is_there_once_and_fresh(api, client):
    def answer(asked):
        page = int(asked.form["PageNumber"])
        rows = [{"VpcId": f"vpc-{number}", "Status": "Pending"} for number in range(50)]
        return Reply({"Vpcs": {"Vpc": rows if page == 1 else [{"VpcId": "vpc-49", "Status": "Available"}]}})

    api.answer = answer
    found = await fetch_all(client, "vpc", "DescribeVpcs")
    assert len(found) == 50
    assert found[-1]["Status"] == "Available"


async def test_a_list_ends_when_the_provider_repeats_its_token(api, client):
    api.answer = lambda _: Reply({"Instances": {"Instance": [{"InstanceId": "i"}]}, "NextToken": "same"})
    assert len(await fetch_all(client, "ecs", "DescribeInstances")) == 1
    assert len(api.asked) == 2


async def test_ids_travel_by_the_hundred_and_no_ids_make_no_call(api, client):
    await fetch_by_ids(client, "ecs", "DescribeInstances", [f"i-{number}" for number in range(250)])
    assert len(api.asked) == 3
    assert api.asked[0].form["InstanceIds"].startswith('["i-0","i-1"')
    api.script()
    assert await fetch_by_ids(client, "ecs", "DescribeInstances", []) == []
    assert api.asked == []


async def test_a_forbidden_list_is_told_from_an_empty_one(api, client):
    api.script(error("DryRunOperation", status=400))
    await check_list_permission(client)
    api.script(error("Forbidden.RAM", status=403, AccessDeniedDetail={"AuthAction": "ecs:DescribeInstances"}))
    with pytest.raises(DeniedError, match="ecs:DescribeInstances"):
        await check_list_permission(client)


# -- secrets -----------------------------------------------------------------------------------------------------------


async def test_no_secret_is_shown_when_the_provider_echoes_it(
    api, isolation, clock, caplog, capfd, monkeypatch
):
    monkeypatch.setenv("DEBUG", "sdk")  # makes the vendor's package print all headers
    caplog.set_level(logging.DEBUG)
    notices: list[str] = []
    environ = {
        "HOME": str(isolation),
        "ALIYUN_ACCESS_KEY_ID": "the-id",
        "ALIYUN_ACCESS_KEY_SECRET": SECRET,
        "ALIYUN_SECURITY_TOKEN": TOKEN,
        "ALIYUN_DEFAULT_REGION": "cn-beijing",
        "TRAINYARD_ALIYUN_ENDPOINT": api.endpoint,
    }
    client = Client.from_settings(settings.load(environ), clock=clock, notice=notices.append)
    shown = ""
    echo = f"server string to sign is: {SECRET} {TOKEN}"
    for replies in (
        [error("SignatureDoesNotMatch", echo)],
        [error("Who.Knows", echo, Recommend="https://api.aliyun.com")],
        [error("InternalError", echo, 500)] * 9,
        [Reply(f"<html>{echo}</html>", 502)] * 9,
        [CUT] * 9,
        [THROTTLED_HEADER] * 99,
    ):
        api.script(*replies)
        with pytest.raises(Error) as caught:
            await client.call("ecs", "DescribeInstances", {"InstanceName": "x"})
        shown += "".join(traceback.format_exception(caught.value)) + repr(caught.value)
    printed = capfd.readouterr()
    everything = shown + repr(client) + "".join(notices) + caplog.text + printed.out + printed.err
    assert notices
    assert SECRET not in everything
    assert TOKEN not in everything
    assert "authorization" not in everything.lower()


async def test_the_failure_stays_visible_for_those_who_debug(api, client):
    api.script(error("Who.Knows", "odd"))
    with pytest.raises(InvalidError) as caught:
        await client.call("ecs", "DescribeInstances")
    assert code_of(caught.value) == "Who.Knows"
    assert "4A6E2F0B" in "".join(traceback.format_exception(caught.value))


def test_the_vendors_package_is_not_imported_before_the_first_call(api, isolation):
    import subprocess
    import sys

    program = (
        "import sys, trainyard.backends.aliyun.api.client, trainyard.backends.aliyun.api.paging\n"
        "sys.exit(any(name.split('.')[0] in {'alibabacloud_tea_openapi', 'darabonba', 'aiohttp', 'requests'} for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


def test_the_program_ends_at_once_when_a_call_is_still_out(api, isolation):
    import subprocess
    import sys

    release = threading.Event()
    api.script(Reply({}, wait=release))
    program = (
        "import asyncio, sys\n"
        "from trainyard import settings\n"
        "from trainyard.backends.aliyun.api.client import Client\n"
        "async def main():\n"
        "    client = Client.from_settings(settings.load())\n"
        "    task = asyncio.create_task(client.call('ecs', 'DescribeInstances'))\n"
        "    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)\n"
        "    task.cancel()\n"
        "asyncio.run(main())\n"
    )
    import os

    environ = {
        **os.environ,
        "ALIYUN_ACCESS_KEY_ID": "the-id",
        "ALIYUN_ACCESS_KEY_SECRET": SECRET,
        "ALIYUN_DEFAULT_REGION": "cn-beijing",
        "TRAINYARD_ALIYUN_ENDPOINT": api.endpoint,
    }
    with subprocess.Popen([sys.executable, "-c", program], env=environ, stdin=subprocess.PIPE) as process:
        deadline = time.monotonic() + 20
        while not api.asked and time.monotonic() < deadline:
            time.sleep(0.01)
        started = time.monotonic()
        process.communicate(b"\n", timeout=8)
        assert time.monotonic() - started < 5
    release.set()
    assert process.returncode == 0
