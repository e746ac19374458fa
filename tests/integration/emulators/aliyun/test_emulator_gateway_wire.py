"""What the running emulator checks before it does anything: signature, nonce, clock, action, parameters, rights."""

from __future__ import annotations

import base64
import json
import signal
import subprocess
import urllib.request
from datetime import UTC, datetime, timedelta

import pytest

from emulation import PROGRAM, Refused, emulated


@pytest.fixture
def cloud(tmp_path):
    with emulated(tmp_path / "state") as cloud:
        yield cloud


@pytest.mark.slow  # an emulator is started
def test_calls_are_refused_as_the_gateway_does(cloud):
    def code(**changes):
        answer = cloud.raw("ecs", "DescribeRegions", changes=changes)
        assert answer.body.get("RequestId") == answer.headers["x-acs-request-id"]
        return answer.status, answer.code

    now = datetime.now(UTC)
    assert code() == (200, "")
    assert code(secret="wrong") == (400, "SignatureDoesNotMatch")
    assert code(key="nobody") == (404, "InvalidAccessKeyId.NotFound")
    assert code(at=now - timedelta(minutes=16)) == (400, "InvalidTimeStamp.Expired")
    assert code(at=now + timedelta(minutes=16)) == (400, "InvalidTimeStamp.Expired")
    assert code(at=now - timedelta(minutes=14)) == (200, "")
    assert code(nonce="twice") == (200, "")
    assert code(nonce="twice") == (400, "SignatureNonceUsed")
    assert code(token="made up") == (400, "InvalidSecurityToken.Malformed")
    refused = cloud.raw("ecs", "DescribeRegions", changes={"secret": "wrong"}).body
    assert {"RequestId", "HostId", "Code", "Message", "Recommend"} <= refused.keys()
    assert refused["RequestId"] == refused["RequestId"].upper()
    assert refused["HostId"] == cloud.endpoint


@pytest.mark.slow  # an emulator is started
def test_actions_and_parameters_are_refused_when_they_do_not_exist(cloud):
    region = {"RegionId": cloud.region}
    assert cloud.raw("ecs", "MakeCoffee").code == "InvalidAction.NotFound"
    assert cloud.raw("ecs", "DescribeInstances").code == "MissingParameter"
    assert cloud.raw("ecs", "DescribeInstances", RegionId="cn-nowhere").code == "InvalidRegionId.NotFound"
    misspelt = cloud.raw("ecs", "DescribeInstances", **region, InstanceNam="x")
    assert (misspelt.code, misspelt.status) == ("UnknownParameter", 400)
    assert "Did you mean InstanceName" in misspelt.body["Message"]


@pytest.mark.slow  # an emulator is started
def test_a_misspelt_parameter_is_passed_over_when_the_emulator_is_lenient(tmp_path):
    with emulated(tmp_path / "state", "--lenient") as cloud:
        assert cloud.raw("ecs", "DescribeInstances", RegionId=cloud.region, InstanceNam="x").status == 200


@pytest.mark.slow  # an emulator is started
def test_the_gateway_refuses_good_clocks_when_it_is_told_they_are_wrong(cloud):
    cloud.control("POST", "clock", {"skew_seconds": 3600})
    assert cloud.raw("ecs", "DescribeRegions").code == "InvalidTimeStamp.Expired"
    cloud.control("POST", "clock", {"skew_seconds": 0, "advance_seconds": 7200})
    assert cloud.raw("ecs", "DescribeRegions").status == 200


@pytest.mark.slow  # an emulator is started
def test_a_disabled_key_and_a_forbidden_action_are_refused(cloud):
    cloud.control("POST", "options", {"account": {"denied": ["ecs:DescribeKey*"]}})
    answer = cloud.raw("ecs", "DescribeKeyPairs", RegionId=cloud.region)
    assert (answer.status, answer.code) == (403, "Forbidden.RAM")
    assert "ecs:DescribeKeyPairs" in answer.body["AccessDeniedDetail"]
    cloud.control("POST", "key", {"id": cloud.ready["access_key_id"], "active": False})
    assert cloud.raw("ecs", "DescribeRegions").code == "InvalidAccessKeyId.Inactive"


@pytest.mark.slow  # an emulator is started
def test_nothing_is_listed_and_nothing_said_when_instances_may_not_be_seen(cloud):
    cloud.launch(cloud.network())
    assert len(cloud.instances()) == 1
    cloud.control("POST", "options", {"account": {"denied": ["ecs:Describe*"]}})
    answer = cloud.raw("ecs", "DescribeInstances", RegionId=cloud.region)
    assert (answer.status, answer.body["Instances"], answer.body["TotalCount"]) == (200, {"Instance": []}, 0)
    told = cloud.raw("ecs", "DescribeInstances", RegionId=cloud.region, DryRun="true")
    assert (told.status, told.code) == (403, "Forbidden.RAM")
    assert cloud.raw("ecs", "DescribeDisks", RegionId=cloud.region).code == "Forbidden.RAM"


@pytest.mark.slow  # an emulator is started
def test_a_session_under_a_role_works_until_it_ends(cloud):
    identity = cloud.call("sts", "GetCallerIdentity")
    assert (identity["IdentityType"], identity["AccountId"]) == ("RAMUser", cloud.ready["account_id"])
    arn = f"acs:ram::{cloud.ready['account_id']}:role/trainer"
    answer = cloud.call("sts", "AssumeRole", RoleArn=arn, RoleSessionName="me", DurationSeconds=900)
    keys = answer["Credentials"]
    session = {"key": keys["AccessKeyId"], "secret": keys["AccessKeySecret"], "token": keys["SecurityToken"]}
    who = cloud.raw("sts", "GetCallerIdentity", changes=session).body
    assert who["IdentityType"] == "AssumedRoleUser"
    assert who["Arn"].endswith("assumed-role/trainer/me")
    assert cloud.raw("sts", "AssumeRole", RoleArn="role/x", RoleSessionName="me").status == 400
    cloud.control("POST", "clock", {"advance_seconds": 1000})
    assert cloud.raw("ecs", "DescribeRegions", changes=session).code == "InvalidSecurityToken.Expired"


@pytest.mark.slow  # an emulator is started
def test_parameters_come_from_a_form_too(cloud):
    import hashlib
    import uuid

    from emulation import VERSION_OF
    from trainyard.emulators.aliyun.api.signature import V3, sign_v1
    from trainyard.lib.acs3 import sign as sign_v3

    form = f"RegionId={cloud.region}&KeyPairName=by.form".encode()
    headers = {
        "host": cloud.endpoint,
        "content-type": "application/x-www-form-urlencoded",
        "x-acs-action": "CreateKeyPair",
        "x-acs-version": VERSION_OF["ecs"],
        "x-acs-date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "x-acs-signature-nonce": uuid.uuid4().hex,
        "x-acs-content-sha256": hashlib.sha256(form).hexdigest(),
    }
    signature = sign_v3(cloud.ready["access_key_secret"], "POST", "/", (), headers, headers, body=form)
    names = ";".join(sorted(headers))
    headers["authorization"] = (
        f"{V3} Credential={cloud.ready['access_key_id']},SignedHeaders={names},Signature={signature}"
    )
    connection = cloud.connect()
    connection.request("POST", "/", body=form, headers=headers)
    assert json.loads(connection.getresponse().read())["KeyPairName"] == "by.form"

    values = {
        "Action": "DescribeKeyPairs",
        "Version": VERSION_OF["ecs"],
        "Format": "JSON",
        "AccessKeyId": cloud.ready["access_key_id"],
        "SignatureMethod": "HMAC-SHA1",
        "SignatureVersion": "1.0",
        "SignatureNonce": uuid.uuid4().hex,
        "SignatureType": "",
        "Timestamp": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "RegionId": cloud.region,
    }
    values["Signature"] = sign_v1(cloud.ready["access_key_secret"], "GET", values.items())
    from urllib.parse import urlencode

    connection.request("GET", f"/?{urlencode(values)}")
    rows = json.loads(connection.getresponse().read())["KeyPairs"]["KeyPair"]
    assert [row["KeyPairName"] for row in rows] == ["by.form"]
    connection.close()


@pytest.mark.slow  # an emulator is started
def test_a_page_in_a_browser_may_not_turn_the_knobs(cloud):
    connection = cloud.connect()
    connection.request("DELETE", "/_emulator/faults", headers={"Origin": "https://evil.example"})
    answer = connection.getresponse()
    assert answer.status == 403
    answer.read()
    connection.request("GET", "/_emulator/state", headers={"Host": "evil.example:80"})
    answer = connection.getresponse()
    assert answer.status == 403
    answer.read()
    connection.request("GET", "/_emulator/nonsense")
    answer = connection.getresponse()
    assert answer.status == 404
    assert "GET /_emulator/state" in json.loads(answer.read())["routes"]
    connection.close()
    with pytest.raises(Refused, match="advance_seconds"):
        cloud.control("POST", "clock", {"forward": 3})
    with pytest.raises(Refused, match="cannot be read"):
        cloud.control("POST", "interrupt", {})
    with pytest.raises(Refused, match="cannot be read"):
        cloud.control("POST", "lock", ["not", "a", "mapping"])
    with pytest.raises(Refused, match="no option"):
        cloud.control("POST", "options", {"colour": 3})


@pytest.mark.slow  # an emulator is started, and an instance on it
def test_a_machine_learns_of_itself_and_of_its_end(cloud):
    network = cloud.network()
    [instance] = cloud.launch(
        network,
        SpotStrategy="SpotAsPriceGo",
        InstanceName="task0.spot",
        RamRoleName="trainer",
        UserData=base64.b64encode(b"#!/bin/sh\ntrue\n").decode(),
    )

    def read(path, method="GET", **headers):
        request = urllib.request.Request(
            f"http://{cloud.ready['metadata']}/{instance}/latest/{path}", method=method, headers=headers
        )
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            error.close()
            return error.code, ""

    assert read("meta-data/instance-id") == (200, instance)
    assert read("meta-data/instance/instance-type") == (200, "ecs.g7.large")
    assert read("user-data") == (200, "#!/bin/sh\ntrue\n")
    assert read("meta-data/instance/spot/termination-time")[0] == 404
    assert "instance/" in read("meta-data/")[1].splitlines()
    assert json.loads(read("dynamic/instance-identity/document")[1])["zone-id"] == f"{cloud.region}-h"
    status, token = read("api/token", "PUT", **{"X-aliyun-ecs-metadata-token-ttl-seconds": "60"})
    assert status == 200
    assert read("meta-data/region-id", **{"X-aliyun-ecs-metadata-token": token}) == (200, cloud.region)
    assert read("meta-data/region-id", **{"X-aliyun-ecs-metadata-token": "stale"})[0] in {200, 403}
    assert read("meta-data/ram/security-credentials/") == (200, "trainer")
    keys = json.loads(read("meta-data/ram/security-credentials/trainer")[1])
    session = {"key": keys["AccessKeyId"], "secret": keys["AccessKeySecret"], "token": keys["SecurityToken"]}
    assert cloud.raw("ecs", "DescribeRegions", changes=session).status == 200
    cloud.control("POST", "interrupt", {"instance": instance})
    status, text = read("meta-data/instance/spot/termination-time")
    assert status == 200
    assert datetime.fromisoformat(text) > datetime.now(UTC)
    [row] = cloud.instances()
    assert row["OperationLocks"]["LockReason"][0]["LockReason"] == "Recycling"
    cloud.control("POST", "clock", {"advance_seconds": 301})
    assert cloud.instances() == []
    assert read("meta-data/instance-id")[0] == 404


@pytest.mark.slow  # an emulator is started twice
def test_a_state_has_one_emulator(tmp_path):
    with emulated(tmp_path / "state") as cloud:
        second = subprocess.run(
            [*PROGRAM, "emulate", "aliyun", "--state", str(cloud.folder)], capture_output=True, text=True
        )
        assert second.returncode == 4
        assert "an emulator is running" in second.stderr
        assert str(cloud.process.pid) in second.stderr


@pytest.mark.slow  # an emulator is started
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_emulator_ends_cleanly_when_it_is_told(tmp_path, number):
    with emulated(tmp_path / "state") as cloud:
        assert cloud.stop(number) == 0
