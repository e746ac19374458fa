"""The Alibaba Cloud emulator as tests use it: a process of its own, spoken to by raw signed calls."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from trainyard.emulators.aliyun.api.parameters import VERSIONS, strange_fields
from trainyard.lib.acs3 import SCHEME, sign

VERSION_OF = {product: version for version, product in VERSIONS.items()}
PATIENCE = 60.0
PROGRAM = [sys.executable, "-c", "import sys; from trainyard.cli.main import main; sys.exit(main())"]


@dataclass(frozen=True)
class Answer:
    """What came back."""

    status: int
    body: dict[str, Any]
    headers: dict[str, str]

    @property
    def code(self) -> str:
        """The code of a refusal."""
        return str(self.body.get("Code", ""))


class Refused(Exception):
    """A call that had to succeed did not."""


class Emulation:
    """A running emulator."""

    def __init__(self, folder: Path, *arguments: str, instant: bool = True) -> None:
        self.folder = folder
        words = [*PROGRAM, "emulate", "aliyun", "--port", "0", "--state", str(folder), "--json"]
        words += ["--instant"] if instant else []
        self.log = (folder.parent / f"emulator-{uuid.uuid4().hex[:6]}.log").open("w+")
        self.process = subprocess.Popen(
            [*words, *arguments], stdout=subprocess.PIPE, stderr=self.log, text=True, start_new_session=True
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.process.wait(PATIENCE)
            self.process.stdout.close()
            with self.log:
                self.log.seek(0)
                raise AssertionError(f"the emulator did not start: {self.log.read()}")
        self.ready: dict[str, Any] = json.loads(line)
        self.endpoint: str = self.ready["endpoint"]
        self.region: str = self.ready["region"]

    # -- its life ------------------------------------------------------------------------------------------------

    def stop(self, number: int = signal.SIGTERM) -> int:
        """End it and wait; its status."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)
        status = self.process.wait(PATIENCE)
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.log.close()
        return status

    def kill(self) -> None:
        """End it as a crash does; its machines stay for the next one."""
        self.stop(signal.SIGKILL)

    def environ(self) -> dict[str, str]:
        """What a client needs to be told."""
        return {
            "TRAINYARD_ALIYUN_ENDPOINT": self.endpoint,
            "ALIYUN_ACCESS_KEY_ID": self.ready["access_key_id"],
            "ALIYUN_ACCESS_KEY_SECRET": self.ready["access_key_secret"],
            "ALIYUN_DEFAULT_REGION": self.region,
        }

    # -- speaking to it ------------------------------------------------------------------------------------------

    def connect(self, timeout: float = PATIENCE) -> http.client.HTTPConnection:
        """A raw connection."""
        host, _, port = self.endpoint.partition(":")
        return http.client.HTTPConnection(host, int(port), timeout=timeout)

    def control(self, method: str, name: str, value: Any = None) -> Any:
        """One of the emulator's own routes; refused ones raise."""
        connection = self.connect()
        try:
            connection.request(
                method, f"/_emulator/{name}", body=None if value is None else json.dumps(value)
            )
            answer = connection.getresponse()
            body = json.loads(answer.read())
            if answer.status != 200:
                raise Refused(f"{answer.status}: {body}")
            return body
        finally:
            connection.close()

    def signed(
        self, product: str, action: str, parameters: dict[str, Any], **changes: Any
    ) -> tuple[str, dict[str, str]]:
        """Path and headers of a V3 call with everything in the query, as the vendor's typed clients send it."""
        stamp: datetime = changes.get("at") or datetime.now(UTC)
        headers = {
            "host": self.endpoint,
            "x-acs-action": action,
            "x-acs-version": VERSION_OF[product],
            "x-acs-date": stamp.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "x-acs-signature-nonce": changes.get("nonce") or uuid.uuid4().hex,
            "x-acs-content-sha256": hashlib.sha256(b"").hexdigest(),
        }
        if changes.get("token"):
            headers["x-acs-security-token"] = changes["token"]
        pairs = tuple((name, str(value)) for name, value in flat(parameters).items())
        secret = changes.get("secret") or self.ready["access_key_secret"]
        key = changes.get("key") or self.ready["access_key_id"]
        signature = sign(secret, "POST", "/", pairs, headers, headers)
        names = ";".join(sorted(headers))
        headers["authorization"] = f"{SCHEME} Credential={key},SignedHeaders={names},Signature={signature}"
        return f"/?{urlencode(pairs)}", headers

    def raw(
        self, product: str, action: str, *, timeout: float = PATIENCE, changes: Any = None, **parameters: Any
    ) -> Answer:
        """A signed call, whatever comes back; what happens to the socket is raised."""
        path, headers = self.signed(product, action, parameters, **(changes or {}))
        connection = self.connect(timeout)
        try:
            connection.request("POST", path, headers=headers)
            answer = connection.getresponse()
            body = answer.read()
            is_json = answer.headers.get("content-type", "").startswith("application/json") and body
            return Answer(
                answer.status,
                json.loads(body) if is_json else {"page": body.decode()},
                {name.lower(): value for name, value in answer.headers.items()},
            )
        finally:
            connection.close()

    def call(self, product: str, action: str, **parameters: Any) -> dict[str, Any]:
        """A signed call that has to succeed, in the default region; its answer may hold no field the vendor lacks."""
        answer = self.raw(product, action, **{"RegionId": self.region, **parameters})
        if answer.status != 200:
            raise Refused(f"{action}: {answer.status} {answer.body}")
        strange = strange_fields(product, action, answer.body)
        assert not strange, f"{action} answers with {strange}"
        return answer.body

    def ecs(self, action: str, **parameters: Any) -> dict[str, Any]:
        """`call` of ECS."""
        return self.call("ecs", action, **parameters)

    def instances(self, **filters: Any) -> list[dict[str, Any]]:
        """DescribeInstances, one page of a hundred."""
        answer = self.ecs("DescribeInstances", MaxResults=100, **filters)
        found: list[dict[str, Any]] = answer["Instances"]["Instance"]
        return found

    # -- a small network -----------------------------------------------------------------------------------------

    def network(self, zone: str = "") -> dict[str, str]:
        """A VPC, a vSwitch, a security group: what RunInstances needs."""
        zone = zone or f"{self.region}-h"
        vpc = self.call("vpc", "CreateVpc", CidrBlock="192.168.0.0/16", VpcName="test")["VpcId"]
        until(lambda: self._status("DescribeVpcs", "Vpcs", "Vpc", VpcId=vpc) == "Available")
        vswitch = self.call("vpc", "CreateVSwitch", VpcId=vpc, ZoneId=zone, CidrBlock="192.168.0.0/20")[
            "VSwitchId"
        ]
        until(
            lambda: (
                self._status("DescribeVSwitches", "VSwitches", "VSwitch", VSwitchId=vswitch) == "Available"
            )
        )
        group = self.ecs("CreateSecurityGroup", VpcId=vpc, SecurityGroupName="test")["SecurityGroupId"]
        return {"VpcId": vpc, "VSwitchId": vswitch, "SecurityGroupId": group}

    def _status(self, action: str, wrapper: str, member: str, **filters: Any) -> str:
        rows = self.call("vpc", action, **filters)[wrapper][member]
        return str(rows[0]["Status"]) if rows else ""

    def launch(self, network: dict[str, str], **parameters: Any) -> list[str]:
        """RunInstances with the plainest of everything."""
        given = {
            "ImageFamily": "acs:ubuntu_22_04_x64",
            "InstanceType": "ecs.g7.large",
            "SystemDisk": {"Category": "cloud_essd"},
            "VSwitchId": network["VSwitchId"],
            "SecurityGroupId": network["SecurityGroupId"],
            **parameters,
        }
        ids: list[str] = self.ecs("RunInstances", **given)["InstanceIdSets"]["InstanceIdSet"]
        return ids


def flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """Nested parameters as the wire has them."""
    if isinstance(value, dict):
        rows = [(f"{prefix}.{name}" if prefix else name, inner) for name, inner in value.items()]
    elif isinstance(value, list):
        rows = [(f"{prefix}.{place}", inner) for place, inner in enumerate(value, 1)]
    else:
        return {prefix: str(value).lower() if isinstance(value, bool) else value}
    return {name: leaf for path, inner in rows for name, leaf in flat(inner, path).items()}


def until(is_so: Callable[[], Any], seconds: float = PATIENCE) -> Any:
    """Wait for a condition."""
    deadline = time.monotonic() + seconds
    while not (found := is_so()):
        if time.monotonic() > deadline:
            raise AssertionError("it did not come true in time")
        time.sleep(0.02)
    return found


@contextlib.contextmanager
def emulated(folder: Path, *arguments: str, instant: bool = True) -> Iterator[Emulation]:
    """An emulator for the length of a block."""
    emulation = Emulation(folder, *arguments, instant=instant)
    try:
        yield emulation
    finally:
        if emulation.process.poll() is None:
            emulation.stop()


def ago(**span: float) -> datetime:
    """A moment in the past."""
    return datetime.now(UTC) - timedelta(**span)


def alive(pid: int) -> bool:
    """Whether a process is there."""
    return os.path.exists(f"/proc/{pid}")
