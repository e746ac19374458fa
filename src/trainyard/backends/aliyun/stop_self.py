"""Runs on a machine: stops the machines whose ids it is given, in the mode in which they cost nothing, by the RAM role of this one.

    python3 stop.py [--check] [--leash] ENDPOINT REGION ID...

`--check` stops nothing and says whether it could. `--leash` takes off the time at which the provider would delete them:
who stops a machine wants its files back. Prints one sentence where it cannot, with status 1. Python 3.6 and no packages,
so it imports nothing of ours and is written in an older style.
"""

import hashlib
import hmac
import json
import os
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid
from pathlib import Path

METADATA = "http://100.100.100.200"
VERSION = "2014-05-26"
SCHEME = "ACS3-HMAC-SHA256"
AT_ONCE = 100
TRIES = 5
FINAL = range(400, 500)
_STRAIGHT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Impossible(Exception):  # noqa: N818  # a sentence
    """Why it cannot be done."""


class Refused(Exception):  # noqa: N818  # an answer
    """The provider's refusal."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message


def metadata(path: str) -> str:
    """What the machine can ask about itself; '' where there is nothing."""
    # An emulated machine shares its computer's network, and finds the address of its own metadata in a file.
    file = os.environ.get("TRAINYARD_METADATA_FILE", "")
    base = Path(file).read_text(encoding="utf-8").strip() if file and Path(file).exists() else METADATA
    headers = {}
    try:
        token = _fetch(
            base + "/latest/api/token", {"X-aliyun-ecs-metadata-token-ttl-seconds": "300"}, method="PUT"
        )
        headers["X-aliyun-ecs-metadata-token"] = token
    except urllib.error.HTTPError:
        pass
    except OSError as error:
        raise Impossible("the metadata service does not answer") from error
    try:
        return _fetch(base + "/latest/meta-data/" + path, headers)
    except urllib.error.HTTPError:
        return ""
    except OSError as error:
        raise Impossible("the metadata service does not answer") from error


def _fetch(url: str, headers: "dict[str, str]", method: str = "GET") -> str:
    request = urllib.request.Request(url, headers=headers, method=method)  # noqa: S310  # http to an own address
    with _STRAIGHT.open(request, timeout=5) as answer:
        return str(answer.read().decode("utf-8"))


def role_keys() -> "dict[str, str]":
    """The temporary keys of this machine's role."""
    role = metadata("ram/security-credentials/").strip()
    if not role:
        raise Impossible("it has no RAM role; one is given when a machine is made")
    found: dict[str, str] = json.loads(metadata("ram/security-credentials/" + role) or "{}")
    if not found.get("AccessKeyId"):
        raise Impossible("its RAM role " + role + " gives no keys; see whether ECS may assume the role")
    return found


def call(endpoint: str, keys: "dict[str, str]", action: str, parameters: "dict[str, str]") -> None:
    """One signed call, again where the provider is busy or silent; Refused where it says no."""
    for number in range(TRIES):
        try:
            _send(endpoint, keys, action, parameters)
            return
        except Refused as error:
            if number == TRIES - 1 or (error.status in FINAL and "Throttling" not in error.code):
                raise
        except OSError as error:
            if number == TRIES - 1:
                raise Impossible(endpoint + " does not answer: " + str(error)) from error
        time.sleep(2**number)


def _send(endpoint: str, keys: "dict[str, str]", action: str, parameters: "dict[str, str]") -> None:
    query = "&".join(_encode(name) + "=" + _encode(parameters[name]) for name in sorted(parameters))
    headers = {
        "host": urllib.parse.urlsplit(endpoint).netloc,
        "x-acs-action": action,
        "x-acs-content-sha256": hashlib.sha256(b"").hexdigest(),
        "x-acs-date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "x-acs-security-token": keys["SecurityToken"],
        "x-acs-signature-nonce": uuid.uuid4().hex,
        "x-acs-version": VERSION,
    }
    names = ";".join(sorted(headers))
    lines = "".join(name + ":" + headers[name] + "\n" for name in sorted(headers))
    canonical = "\n".join(["POST", "/", query, lines, names, headers["x-acs-content-sha256"]])
    text = SCHEME + "\n" + hashlib.sha256(canonical.encode()).hexdigest()
    signature = hmac.new(keys["AccessKeySecret"].encode(), text.encode(), hashlib.sha256).hexdigest()
    credential = " Credential=" + keys["AccessKeyId"] + ",SignedHeaders=" + names
    headers["authorization"] = SCHEME + credential + ",Signature=" + signature
    request = urllib.request.Request(  # noqa: S310  # the address is the client's own endpoint
        endpoint + "/?" + query, headers=headers, method="POST"
    )
    opener = _STRAIGHT if endpoint.startswith("http://") else urllib.request.build_opener()
    try:
        opener.open(request, timeout=30).close()
    except urllib.error.HTTPError as error:
        raise _refusal(error) from None


def _encode(text: str) -> str:
    return urllib.parse.quote(text, safe="-_.~")


def _refusal(error: urllib.error.HTTPError) -> Refused:
    with error:
        try:
            body = json.loads(error.read().decode("utf-8"))
            return Refused(error.code, str(body.get("Code")), str(body.get("Message")))
        except (ValueError, AttributeError):
            return Refused(error.code, "", str(error.reason))


def check(endpoint: str, region: str, keys: "dict[str, str]") -> None:
    """Whether we could stop ourselves; stops nothing."""
    own = metadata("instance-id")
    try:
        call(endpoint, keys, "StopInstances", {"RegionId": region, "InstanceId.1": own, "DryRun": "true"})
    except Refused as error:
        if not error.code.upper().startswith("DRYRUN"):  # the success of a dry run is an error
            raise


def take_off_auto_release(endpoint: str, region: str, keys: "dict[str, str]", ids: "list[str]") -> None:
    """Let the provider delete none of them by itself. Where that is forbidden they are stopped all the same."""
    for each in ids:
        try:
            call(endpoint, keys, "ModifyInstanceAutoReleaseTime", {"RegionId": region, "InstanceId": each})
        except Refused as error:
            sys.stderr.write("the release time of " + each + " stays: " + error.message + "\n")


def stop(endpoint: str, region: str, keys: "dict[str, str]", ids: "list[str]") -> None:
    """Stop all, a hundred in a call; one that is gone or stopped does not keep the others."""
    for begin in range(0, len(ids), AT_ONCE):
        parameters = {
            "RegionId": region,
            "StoppedMode": "StopCharging",
            "BatchOptimization": "SuccessFirst",
        }
        for number, each in enumerate(ids[begin : begin + AT_ONCE], 1):
            parameters["InstanceId." + str(number)] = each
        call(endpoint, keys, "StopInstances", parameters)


def main(words: "list[str]") -> int:
    """Do what the words say."""
    flags = [word for word in words if word.startswith("--")]
    endpoint, region, *ids = [word for word in words if not word.startswith("--")]
    try:
        keys = role_keys()
        check(endpoint, region, keys)
        if "--check" not in flags:
            if "--leash" in flags:
                take_off_auto_release(endpoint, region, keys, ids)
            stop(endpoint, region, keys, ids)
    except Impossible as error:
        sys.stdout.write(str(error) + "\n")
        return 1
    except Refused as error:
        sys.stdout.write("its RAM role may not stop it: " + error.code + " " + error.message + "\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
