"""Key pairs: what OpenSSH makes of ours, what is refused of others', names and fingerprints."""

from __future__ import annotations

import json
import subprocess

import pytest

from emulated import PUBLIC_KEY, Cloud


@pytest.fixture
def cloud():
    return Cloud().ready()


def keygen(*arguments, **options):
    return subprocess.run(
        ["ssh-keygen", *arguments], capture_output=True, text=True, check=True, timeout=30, **options
    ).stdout


def make_key(tmp_path, kind):
    keygen("-q", "-t", kind, "-N", "", "-f", str(tmp_path / kind))
    return (tmp_path / f"{kind}.pub").read_text()


def test_openssh_believes_a_key_that_was_made_here(cloud, tmp_path):
    made = cloud.ecs("CreateKeyPair", KeyPairName="k-1")
    private = tmp_path / "key"
    private.write_text(made["PrivateKeyBody"])
    private.chmod(0o600)
    (row,) = cloud.ecs("DescribeKeyPairs", IncludePublicKey=True)["KeyPairs"]["KeyPair"]
    assert keygen("-y", "-f", str(private)).split()[:2] == row["PublicKey"].split()[:2]
    fingerprint = keygen("-l", "-E", "md5", "-f", str(private)).split()
    assert fingerprint[:2] == ["2048", f"MD5:{made['KeyPairFingerPrint']}"]
    assert made["PrivateKeyBody"] not in json.dumps(cloud.world.dump())
    assert cloud.refused("ecs", "CreateKeyPair", KeyPairName="k-1") == "KeyPair.AlreadyExist"


def test_keys_of_kinds_the_provider_takes_are_imported(cloud, tmp_path):
    public = make_key(tmp_path, "ecdsa")
    made = cloud.ecs("ImportKeyPair", KeyPairName="mine", PublicKeyBody=public)
    expected = keygen("-l", "-E", "md5", "-f", str(tmp_path / "ecdsa")).split()[1]
    assert expected == f"MD5:{made['KeyPairFingerPrint']}"


def test_ed25519_and_nonsense_are_refused(cloud, tmp_path):
    modern = make_key(tmp_path, "ed25519")
    for body in (
        modern,
        "ssh-rsa",
        "ssh-rsa AAAA",
        "ssh-rsa !!!",
        "hello",
        f"ssh-rsa {PUBLIC_KEY.split()[1]}",
    ):
        refused = cloud.refused("ecs", "ImportKeyPair", KeyPairName="mine", PublicKeyBody=body)
        assert refused == "InvalidPublicKeyBody.Malformed"
    assert cloud.world.key_pairs == {}


def test_names_are_regional_and_found_by_pattern(cloud):
    cloud.ecs("ImportKeyPair", KeyPairName="train-a", PublicKeyBody=PUBLIC_KEY)
    cloud.ecs(
        "ImportKeyPair", KeyPairName="train-b", PublicKeyBody=PUBLIC_KEY, Tag=[{"Key": "x", "Value": "y"}]
    )
    cloud.ecs("ImportKeyPair", KeyPairName="train-a", PublicKeyBody=PUBLIC_KEY, RegionId="cn-hangzhou")

    def find(**parameters):
        return [
            row["KeyPairName"] for row in cloud.ecs("DescribeKeyPairs", **parameters)["KeyPairs"]["KeyPair"]
        ]

    assert find(KeyPairName="train*") == ["train-a", "train-b"]
    assert find(KeyPairName="train-a") == ["train-a"]
    assert find(Tag=[{"Key": "x"}]) == ["train-b"]
    assert find(RegionId="cn-hangzhou") == ["train-a"]
    refused = cloud.refused("ecs", "ImportKeyPair", KeyPairName="train-a", PublicKeyBody=PUBLIC_KEY)
    assert refused == "KeyPair.AlreadyExist"
    for name in ("x", "1abc", "a b", "x" * 129):
        refused = cloud.refused("ecs", "ImportKeyPair", KeyPairName=name, PublicKeyBody=PUBLIC_KEY)
        assert refused == "InvalidKeyPairName.Malformed"


def test_deleting_twice_is_no_error_and_instances_keep_the_key(cloud):
    cloud.ecs("ImportKeyPair", KeyPairName="mine", PublicKeyBody=PUBLIC_KEY)
    (name,) = cloud.running(KeyPairName="mine")
    cloud.ecs("DeleteKeyPairs", KeyPairNames=json.dumps(["mine"]))
    cloud.ecs("DeleteKeyPairs", KeyPairNames=json.dumps(["mine"]))
    assert cloud.show(name)["KeyPairName"] == ""
    assert cloud.world.machines(cloud.now)[0].authorized_keys == (PUBLIC_KEY,)


def test_an_attached_key_opens_the_machine_after_the_next_boot(cloud):
    cloud.ecs("ImportKeyPair", KeyPairName="mine", PublicKeyBody=PUBLIC_KEY)
    (name,) = cloud.running()
    body = cloud.ecs("AttachKeyPair", KeyPairName="mine", InstanceIds=json.dumps([name, "i-none"]))
    assert (body["TotalCount"], body["FailCount"]) == ("2", "1")
    assert cloud.world.machines(cloud.now)[0].authorized_keys == ()
    cloud.ecs("RebootInstances", InstanceId=[name])
    cloud.later(30)
    assert cloud.world.machines(cloud.now)[0].authorized_keys == (PUBLIC_KEY,)


def test_a_region_has_so_many_keys_and_no_more():
    cloud = Cloud(quotas={"key_pairs": 1})
    cloud.ecs("ImportKeyPair", KeyPairName="aa", PublicKeyBody=PUBLIC_KEY)
    refused = cloud.refused("ecs", "ImportKeyPair", KeyPairName="bb", PublicKeyBody=PUBLIC_KEY)
    assert refused == "QuotaExceed.KeyPair"
