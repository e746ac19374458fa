"""Key pairs: made here, imported, attached. ed25519 is refused, as the provider refuses it."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from trainyard.emulators.aliyun.api.answers import (
    by_number,
    ecs_tags,
    has_tags,
    json_list,
    matches,
    minute,
    read_tags,
    require_limit,
    require_region,
)
from trainyard.emulators.aliyun.api.call import Call, Handler, Value
from trainyard.emulators.aliyun.api.problems import Problem, missing, not_found
from trainyard.emulators.aliyun.cloud.records import KeyPair
from trainyard.emulators.aliyun.cloud.world import World

_NAME = re.compile(r"[^\W\d_][\w:.\-]{1,127}")
_BITS = 2048
_KINDS = re.compile(r"(ssh-rsa|ssh-dss|ecdsa-sha2-nistp(256|384|521))(-cert-v01@openssh\.com)?|rsa|dsa")


def fingerprint(public_key: str) -> str:
    """MD5 of the key as RFC 4716 writes it: `89:f0:…`. Malformed keys and foreign kinds are refused."""
    parts = public_key.split()
    try:
        blob = base64.b64decode(parts[1], validate=True)
        kind = blob[4 : 4 + int.from_bytes(blob[:4], "big")].decode("ascii")
    except (IndexError, binascii.Error, UnicodeDecodeError) as error:
        raise _malformed() from error
    if kind != parts[0] or not _KINDS.fullmatch(kind):
        raise _malformed()
    return ":".join(f"{byte:02x}" for byte in hashlib.md5(blob, usedforsecurity=False).digest())


def _malformed() -> Problem:
    return Problem("InvalidPublicKeyBody.Malformed", "The specified parameter PublicKeyBody is not valid.")


def _new_name(world: World, call: Call, region: str) -> str:
    name = call.required("KeyPairName")
    if not _NAME.fullmatch(name) or name.startswith(("http://", "https://")):
        raise Problem("InvalidKeyPairName.Malformed", f"The specified Key Pair name is not valid: {name!r}.")
    if f"{region}/{name}" in world.key_pairs:
        raise Problem("KeyPair.AlreadyExist", f"The key pair already exist: {name}.")
    used = sum(pair.region == region for pair in world.key_pairs.values())
    require_limit(used, world.options.quotas.key_pairs, "QuotaExceed.KeyPair", "The key pair quota exceeds.")
    return name


def _keep(world: World, call: Call, region: str, name: str, public_key: str) -> KeyPair:
    tags, mark = read_tags(call.structs("Tag")), fingerprint(public_key)
    pair = KeyPair(
        id=world.new_id("ssh-", region, 21),
        region=region,
        name=name,
        fingerprint=mark,
        public_key=public_key,
        created=call.now,
        tags=tags,
    )
    world.key_pairs[f"{region}/{name}"] = pair
    return pair


def create_key_pair(world: World, call: Call) -> dict[str, Value]:
    """CreateKeyPair: the private half is in this answer and nowhere else."""
    region = require_region(call)
    name = _new_name(world, call, region)
    key = rsa.generate_private_key(public_exponent=65537, key_size=_BITS)
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.NoEncryption(),
    )
    kept = _keep(world, call, region, name, public.decode())
    return {
        "KeyPairId": kept.id,
        "KeyPairName": name,
        "KeyPairFingerPrint": kept.fingerprint,
        "PrivateKeyBody": private.decode(),
    }


def import_key_pair(world: World, call: Call) -> dict[str, Value]:
    """ImportKeyPair."""
    region = require_region(call)
    name = _new_name(world, call, region)
    body = call.required("PublicKeyBody").strip()
    if "\n" in body:
        raise _malformed()
    pair = _keep(world, call, region, name, body)
    return {"KeyPairName": name, "KeyPairFingerPrint": pair.fingerprint}


def describe_key_pairs(world: World, call: Call) -> dict[str, Value]:
    """DescribeKeyPairs."""
    region, with_key = require_region(call), call.flag("IncludePublicKey")
    rows = [
        pair
        for pair in world.key_pairs.values()
        if pair.region == region
        and matches(call.text("KeyPairName"), pair.name)
        and call.text("KeyPairFingerPrint") in {"", pair.fingerprint}
        and has_tags(pair.tags, call.structs("Tag"))
    ]

    def show(pair: KeyPair) -> Value:
        return {
            "KeyPairName": pair.name,
            "KeyPairFingerPrint": pair.fingerprint,
            "CreationTime": minute(pair.created),
            "ResourceGroupId": "",
            "Tags": ecs_tags(pair.tags),
            **({"PublicKey": pair.public_key} if with_key else {}),
        }

    shown, fields = by_number(call, rows, show)
    return {"KeyPairs": {"KeyPair": shown}, **fields}


def delete_key_pairs(world: World, call: Call) -> dict[str, Value]:
    """DeleteKeyPairs: names that don't exist are passed over; instances keep the key."""
    region, names = require_region(call), json_list(call, "KeyPairNames")
    if not names:
        raise missing("KeyPairNames")
    for name in names:
        world.key_pairs.pop(f"{region}/{name}", None)
        for instance in world.instances.values():
            if instance.region == region and instance.key_pair == name:
                instance.key_pair = ""
    return {}


def _bound(call: Call) -> list[str]:
    ids = json_list(call, "InstanceIds", most=50)
    if not ids:
        raise missing("InstanceIds")
    return ids


def _results(name: str, outcomes: dict[str, tuple[str, str]]) -> dict[str, Value]:
    rows: Value = [
        {
            "InstanceId": instance_id,
            "Code": code,
            "Message": message,
            "Success": "true" if code == "200" else "false",
        }
        for instance_id, (code, message) in outcomes.items()
    ]
    failures = sum(code != "200" for code, _ in outcomes.values())
    return {
        "KeyPairName": name,
        "TotalCount": str(len(outcomes)),
        "FailCount": str(failures),
        "Results": {"Result": rows},
    }


def attach_key_pair(world: World, call: Call) -> dict[str, Value]:
    """AttachKeyPair: takes effect at the next boot."""
    region, name = require_region(call), call.required("KeyPairName")
    pair = world.key_pairs.get(f"{region}/{name}")
    if pair is None:
        raise not_found("InvalidKeyPairName.NotFound", f"The specified KeyPairName does not exist: {name}.")
    outcomes = {}
    for instance_id in _bound(call):
        instance = world.instances.get(instance_id)
        if instance is None or instance.region != region:
            outcomes[instance_id] = ("InvalidInstanceId.NotFound", "The InstanceId does not exist.")
        elif instance.status not in {"Running", "Stopped"}:
            outcomes[instance_id] = ("IncorrectInstanceStatus", "The status does not support this operation.")
        else:
            instance.key_pair, instance.next_keys = pair.name, [pair.public_key]
            outcomes[instance_id] = ("200", "successful")
    return _results(name, outcomes)


def detach_key_pair(world: World, call: Call) -> dict[str, Value]:
    """DetachKeyPair: takes effect at the next boot."""
    region, name = require_region(call), call.required("KeyPairName")
    outcomes = {}
    for instance_id in _bound(call):
        instance = world.instances.get(instance_id)
        if instance is None or instance.region != region:
            outcomes[instance_id] = ("InvalidInstanceId.NotFound", "The InstanceId does not exist.")
        elif instance.key_pair != name:
            outcomes[instance_id] = (
                "InvalidKeyPair.NotAttached",
                "The instance does not have this key pair.",
            )
        else:
            instance.key_pair, instance.next_keys = "", []
            outcomes[instance_id] = ("200", "successful")
    return _results(name, outcomes)


ACTIONS: dict[tuple[str, str], Handler] = {
    ("ecs", "CreateKeyPair"): create_key_pair,
    ("ecs", "ImportKeyPair"): import_key_pair,
    ("ecs", "DescribeKeyPairs"): describe_key_pairs,
    ("ecs", "DeleteKeyPairs"): delete_key_pairs,
    ("ecs", "AttachKeyPair"): attach_key_pair,
    ("ecs", "DetachKeyPair"): detach_key_pair,
}
