"""Every kind of fault on the raw socket, and what it leaves done."""

from __future__ import annotations

import http.client
import threading

import pytest

from emulation import Emulation, Refused, emulated


@pytest.fixture
def cloud(tmp_path):
    with emulated(tmp_path / "state") as cloud:
        yield cloud


def disks(cloud: Emulation) -> list[str]:
    """What exists: the effect of a call can be seen here."""
    rows = cloud.ecs("DescribeDisks", MaxResults=100)["Disks"]["Disk"]
    return sorted(row["DiskName"] for row in rows)


def make(cloud: Emulation, name: str = "made", **options):
    """Something cheap that has an effect."""
    return cloud.raw(
        "ecs",
        "CreateDisk",
        RegionId=cloud.region,
        ZoneId=f"{cloud.region}-h",
        DiskCategory="cloud_essd",
        Size=40,
        DiskName=name,
        **options,
    )


@pytest.mark.slow  # an emulator is started
def test_a_throttled_call_is_refused_with_and_without_the_header(cloud):
    cloud.control(
        "PUT",
        "faults",
        [
            {"action": "CreateDisk", "kind": "throttle", "times": 1},
            {"action": "ecs.CreateDisk", "kind": "throttle", "times": 1, "retry_after_milliseconds": 1500},
            {"action": "Create*", "kind": "throttle", "times": 1, "code": "Throttling", "status": 503},
        ],
    )
    plain, timed, other = make(cloud), make(cloud), make(cloud)
    assert (plain.status, plain.code) == (400, "Throttling.User")
    assert "x-acs-retry-after" not in plain.headers
    assert (timed.status, timed.headers["x-acs-retry-after"]) == (400, "1500")
    assert (other.status, other.code) == (503, "Throttling")
    assert disks(cloud) == []
    assert make(cloud).status == 200
    assert [rule["struck"] for rule in cloud.control("GET", "faults")] == [1, 1, 1]


@pytest.mark.slow  # an emulator is started
def test_a_minute_serves_so_many_calls_and_the_next_one_again(cloud):
    cloud.control("POST", "clock", {"rate": 0})
    cloud.control("POST", "faults", {"action": "DescribeRegions", "kind": "throttle", "per_minute": 3})
    seen = [cloud.raw("ecs", "DescribeRegions").status for _ in range(5)]
    assert seen == [200, 200, 200, 400, 400]
    cloud.control("POST", "clock", {"advance_seconds": 60})
    assert cloud.raw("ecs", "DescribeRegions").status == 200


@pytest.mark.slow  # an emulator is started
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_failed_answer_has_its_effect_only_when_it_strikes_after(cloud, when):
    plan = [
        {"action": "*", "kind": "error", "when": when, "times": 1},
        {"action": "*", "kind": "error", "when": when, "times": 1, "status": 503},
        {"action": "*", "kind": "html", "when": when, "times": 1},
        {"action": "*", "kind": "empty", "when": when, "times": 1},
    ]
    cloud.control("PUT", "faults", plan)
    internal, unavailable, page, empty = (make(cloud, f"disk{number}") for number in range(4))
    assert (internal.status, internal.code) == (500, "InternalError")
    assert internal.body["RequestId"] == internal.headers["x-acs-request-id"]
    assert (unavailable.status, unavailable.code) == (503, "ServiceUnavailable")
    assert (page.status, page.headers["content-type"]) == (502, "text/html")
    assert "<h1>502 Bad Gateway</h1>" in page.body["page"]
    assert (empty.status, empty.body["page"]) == (500, "")
    assert disks(cloud) == ([] if when == "before" else ["disk0", "disk1", "disk2", "disk3"])


@pytest.mark.slow  # an emulator is started
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_cut_connection_has_its_effect_only_when_it_is_cut_after(cloud, when):
    cloud.control("POST", "faults", {"action": "*", "kind": "cut", "when": when, "times": 1})
    with pytest.raises((ConnectionResetError, http.client.RemoteDisconnected)):
        make(cloud)
    assert disks(cloud) == ([] if when == "before" else ["made"])


@pytest.mark.slow  # an emulator is started
def test_half_a_body_comes_when_an_answer_is_broken(cloud):
    cloud.control("POST", "faults", {"action": "*", "kind": "broken", "times": 1})
    with pytest.raises(http.client.IncompleteRead):
        make(cloud)
    assert disks(cloud) == ["made"]


@pytest.mark.slow  # an emulator is started, and a client waits until it gives up
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_client_gives_up_when_the_answer_never_comes(cloud, when):
    cloud.control("POST", "faults", {"action": "*", "kind": "hang", "when": when, "times": 1})
    with pytest.raises(TimeoutError):
        make(cloud, timeout=0.3)
    assert disks(cloud) == ([] if when == "before" else ["made"])


@pytest.mark.slow  # an emulator is started, and a call waits
def test_a_repeated_call_meets_the_first_in_progress_when_that_is_slow(cloud):
    network = cloud.network()
    cloud.control("POST", "faults", {"action": "RunInstances", "kind": "slow", "seconds": 1, "times": 1})
    given = {
        "RegionId": cloud.region,
        "ImageFamily": "acs:ubuntu_22_04_x64",
        "InstanceType": "ecs.g7.large",
        "SystemDisk": {"Category": "cloud_essd"},
        "VSwitchId": network["VSwitchId"],
        "SecurityGroupId": network["SecurityGroupId"],
        "ClientToken": "once",
    }
    answers = []
    first = threading.Thread(target=lambda: answers.append(cloud.raw("ecs", "RunInstances", **given)))
    first.start()
    while not cloud.control("GET", "faults")[0]["struck"]:
        pass
    second = cloud.raw("ecs", "RunInstances", **given)
    assert (second.status, second.code) == (403, "LastTokenProcessing")
    first.join()
    again = cloud.raw("ecs", "RunInstances", **given)
    ids = answers[0].body["InstanceIdSets"]["InstanceIdSet"]
    assert again.body["InstanceIdSets"]["InstanceIdSet"] == ids
    assert again.body["RequestId"] != answers[0].body["RequestId"]
    different = cloud.raw("ecs", "RunInstances", **{**given, "Amount": 2})
    assert (different.status, different.code) == (400, "IdempotentParameterMismatch")
    assert [one["InstanceId"] for one in cloud.instances()] == ids


@pytest.mark.slow  # an emulator is started
def test_the_effect_stays_single_when_a_hanging_call_is_repeated_with_its_token(cloud):
    network = cloud.network()
    cloud.control("POST", "faults", {"action": "RunInstances", "kind": "hang", "times": 1})
    with pytest.raises(TimeoutError):
        path, headers = cloud.signed(
            "ecs",
            "RunInstances",
            {
                "RegionId": cloud.region,
                "ImageFamily": "acs:ubuntu_22_04_x64",
                "InstanceType": "ecs.g7.large",
                "SystemDisk.Category": "cloud_essd",
                "VSwitchId": network["VSwitchId"],
                "SecurityGroupId": network["SecurityGroupId"],
                "ClientToken": "once",
            },
        )
        connection = cloud.connect(timeout=0.5)
        try:
            connection.request("POST", path, headers=headers)
            connection.getresponse()
        finally:
            connection.close()
    ids = cloud.launch(network, ClientToken="once")
    assert [one["InstanceId"] for one in cloud.instances()] == ids
    replayed = [
        call["replayed"]
        for call in cloud.control("GET", "calls")["calls"]
        if call["action"] == "RunInstances"
    ]
    assert replayed == [False, True]


@pytest.mark.slow  # an emulator is started
def test_lists_are_empty_when_the_user_may_not_see(cloud):
    make(cloud)
    cloud.control("POST", "faults", {"action": "DescribeDisks", "kind": "blind", "times": 1})
    answer = cloud.ecs("DescribeDisks")
    assert (answer["TotalCount"], answer["Disks"]["Disk"]) == (0, [])
    assert disks(cloud) == ["made"]


@pytest.mark.slow  # an emulator is started
def test_a_plan_comes_from_a_file_and_is_refused_when_it_is_wrong(tmp_path):
    plan = tmp_path / "plan.toml"
    plan.write_text(
        '[[fault]]\naction = "CreateDisk"\nkind = "error"\ncode = "OperationDenied.NoStock"\nstatus = 403\n'
    )
    with emulated(tmp_path / "state", "--faults", str(plan)) as cloud:
        assert (make(cloud).status, make(cloud).code) == (403, "OperationDenied.NoStock")
        with pytest.raises(Refused, match="Use one of throttle"):
            cloud.control("POST", "faults", {"action": "*", "kind": "flood"})
        cloud.control("DELETE", "faults")
        assert make(cloud).status == 200
