"""STS: the caller's identity, and sessions under a role. Every role name exists, and its rights are not checked."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from typing import TypeAlias

from trainyard.emulators.aliyun.api.call import Call, Value
from trainyard.emulators.aliyun.api.gateway import Gateway, Key
from trainyard.emulators.aliyun.api.problems import Problem, not_found
from trainyard.lib.ids import short_hash

SHORTEST, USUAL, LONGEST = 900, 3600, 43200
ROLE = re.compile(r"acs:ram::(\d+):role/([\w.-]{1,64})")
SESSION_NAME = re.compile(r"[\w.@-]{2,64}")

StsHandler: TypeAlias = Callable[[Gateway, Key, Call], dict[str, Value]]


def get_caller_identity(_gateway: Gateway, key: Key, call: Call) -> dict[str, Value]:
    """GetCallerIdentity."""
    identity: dict[str, Value] = {
        "AccountId": call.account,
        "Arn": key.arn,
        "IdentityType": key.kind,
        "PrincipalId": key.principal,
    }
    if key.kind == "AssumedRoleUser":
        return {**identity, "RoleId": key.principal.partition(":")[0]}
    return {**identity, "UserId": key.principal}


def assume_role(gateway: Gateway, _key: Key, call: Call) -> dict[str, Value]:
    """AssumeRole."""
    match = ROLE.fullmatch(call.required("RoleArn"))
    if match is None:
        raise Problem("InvalidParameter.RoleArn", "The parameter RoleArn is wrongly formed.")
    if match[1] != call.account:
        raise not_found("EntityNotExist.Role", f"The specified Role not exists: {match[2]}.")
    name = call.required("RoleSessionName")
    if SESSION_NAME.fullmatch(name) is None:
        raise Problem("InvalidParameter.RoleSessionName", "The parameter RoleSessionName is wrongly formed.")
    seconds = call.number("DurationSeconds", USUAL)
    if not SHORTEST <= seconds <= LONGEST:
        raise Problem(
            "InvalidParameter.DurationSeconds",
            f"The Min/Max value of DurationSeconds is {SHORTEST}seconds/{LONGEST}seconds.",
        )
    key = open_role_session(gateway, call, role=match[2], name=name, seconds=seconds)
    return {
        "AssumedRoleUser": {"Arn": key.arn, "AssumedRoleId": key.principal},
        "Credentials": {
            "AccessKeyId": key.id,
            "AccessKeySecret": key.secret,
            "SecurityToken": key.token,
            "Expiration": (call.now + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ"),
        },
    }


def open_role_session(gateway: Gateway, call: Call, *, role: str, name: str, seconds: int) -> Key:
    """A session under a role, for AssumeRole and for the metadata of a machine that has one."""
    role_id = f"3{int(short_hash(role, 8), 36) % 10**17:017d}"
    return gateway.open_session(
        arn=f"acs:ram::{call.account}:assumed-role/{role}/{name}",
        principal=f"{role_id}:{name}",
        expires=call.now + timedelta(seconds=seconds),
    )


ACTIONS: dict[str, StsHandler] = {"GetCallerIdentity": get_caller_identity, "AssumeRole": assume_role}
