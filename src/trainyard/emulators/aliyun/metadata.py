"""The metadata service of machines: at 100.100.100.200 in the real cloud, on a loopback port here.

Machines of the emulator share this computer's network, so a request does not show which one asks: the base address of
a machine's metadata is `http://HOST:PORT/<instance id>`, or plainly `http://HOST:PORT` from the machine's own address.
"""

from __future__ import annotations

import base64
import binascii
import json
import secrets
from collections.abc import Callable
from datetime import datetime, timedelta

from trainyard.emulators.aliyun.api.call import Call
from trainyard.emulators.aliyun.api.gateway import ACCOUNT, Gateway
from trainyard.emulators.aliyun.api.wire import HTML, Reply, Request, html_page
from trainyard.emulators.aliyun.cloud.clock import AdjustableClock
from trainyard.emulators.aliyun.cloud.records import Instance
from trainyard.emulators.aliyun.cloud.world import World
from trainyard.emulators.aliyun.sts import open_role_session
from trainyard.lib.errors import CapacityError

TEXT = "text/plain"
TOKEN = "/latest/api/token"  # noqa: S105  # a path
LONGEST_TOKEN_SECONDS = 21600
ROLE_SESSION_SECONDS = 21600


class Metadata:
    """Answers for every machine of a world."""

    def __init__(
        self, world: World, gateway: Gateway, clock: AdjustableClock, save: Callable[[], None]
    ) -> None:
        self._world = world
        self._gateway = gateway
        self._clock = clock
        self._save = save
        self._tokens: dict[str, datetime] = {}

    async def respond(self, request: Request) -> Reply:
        """Answer one request."""
        now = self._clock.now()
        self._world.advance(now)
        instance, path = self._find(request)
        if instance is None:
            return _no_such_page()
        if path == TOKEN:
            return self._make_token(request, now)
        token = request.headers.get("x-aliyun-ecs-metadata-token", "")
        if (token and self._tokens.get(token, now) <= now) or (
            not token and instance.http_tokens == "required"
        ):
            return Reply(status=403, body=html_page(403, "Forbidden"), content_type=HTML)
        if request.method != "GET":
            return Reply(status=405, body=html_page(405, "Not Allowed"), content_type=HTML)
        try:
            found = self._page(instance, path, now)
        except CapacityError:  # keys of its role that are not written down would be worth nothing
            return Reply(status=503, body=html_page(503, "Service Unavailable"), content_type=HTML)
        return _no_such_page() if found is None else Reply(body=found, content_type=TEXT)

    def _find(self, request: Request) -> tuple[Instance | None, str]:
        head, _, rest = request.path.lstrip("/").partition("/")
        if head != "latest":
            return self._world.instances.get(head), f"/{rest}"
        asking = [one for one in self._world.instances.values() if one.address == request.peer]
        return (asking[0] if asking else None), request.path

    def _make_token(self, request: Request, now: datetime) -> Reply:
        seconds = request.headers.get("x-aliyun-ecs-metadata-token-ttl-seconds", "")
        if request.method != "PUT" or not seconds.isdigit() or not 0 < int(seconds) <= LONGEST_TOKEN_SECONDS:
            return Reply(status=400, body=html_page(400, "Bad Request"), content_type=HTML)
        token = secrets.token_urlsafe(32)
        self._tokens = {one: until for one, until in self._tokens.items() if until > now}
        self._tokens[token] = now + timedelta(seconds=int(seconds))
        return Reply(body=token.encode(), content_type=TEXT)

    def _page(self, instance: Instance, path: str, now: datetime) -> bytes | None:
        if path == "/latest/user-data":
            try:
                return base64.b64decode(instance.user_data) or None
            except binascii.Error:
                return instance.user_data.encode()
        if path == "/latest/dynamic/instance-identity/document":
            return json.dumps(_identity(instance)).encode()
        if path == "/latest/maintenance/active-system-events":
            return json.dumps(self._events(instance)).encode()
        prefix = "/latest/meta-data/"
        if not path.startswith(prefix):
            return None
        return self._value(instance, path.removeprefix(prefix), now)

    def _value(self, instance: Instance, name: str, now: datetime) -> bytes | None:
        values: dict[str, Callable[[], str]] = {
            "instance-id": lambda: instance.id,
            "region-id": lambda: instance.region,
            "zone-id": lambda: instance.zone,
            "private-ipv4": lambda: instance.address,
            "eipv4": lambda: self._public_address(instance),
            "public-ipv4": lambda: self._public_address(instance),
            "hostname": lambda: instance.hostname,
            "image-id": lambda: instance.image,
            "owner-account-id": lambda: ACCOUNT,
            "vpc-id": lambda: instance.vpc,
            "vswitch-id": lambda: instance.vswitch,
            "instance/instance-name": lambda: instance.name,
            "instance/instance-type": lambda: instance.type,
            "instance/spot/termination-time": lambda: self._world.termination_time(instance.id),
            "public-keys/0/openssh-key": lambda: "\n".join(instance.authorized_keys),
            "ram/security-credentials/": lambda: instance.ram_role,
        }
        if name.startswith("ram/security-credentials/") and name.rpartition("/")[2]:
            return self._credentials(instance, name.rpartition("/")[2], now)
        if name in values:
            return values[name]().encode() or None  # what there is nothing of is not found
        return _listing(name, values)

    def _public_address(self, instance: Instance) -> str:
        eip = self._world.eips.get(instance.eip)
        return eip.address if eip else instance.public_address

    def _credentials(self, instance: Instance, role: str, now: datetime) -> bytes | None:
        if not instance.ram_role or role != instance.ram_role:
            return None
        call = Call(
            product="sts",
            action="AssumeRole",
            parameters={},
            region=instance.region,
            account=ACCOUNT,
            now=now,
            request_id="",
        )
        key = open_role_session(
            self._gateway, call, role=role, name=instance.id, seconds=ROLE_SESSION_SECONDS
        )
        self._save()
        return json.dumps(
            {
                "AccessKeyId": key.id,
                "AccessKeySecret": key.secret,
                "SecurityToken": key.token,
                "Expiration": (now + timedelta(seconds=ROLE_SESSION_SECONDS)).strftime("%Y-%m-%dT%H:%M:%SZ"),
                "LastUpdated": now.strftime("%Y-%m-%dT%H:%M:%SZ"),
                "Code": "Success",
            }
        ).encode()

    def _events(self, instance: Instance) -> list[dict[str, str]]:
        return [
            {
                "EventId": event.id,
                "EventType": event.kind,
                "EventCycleStatus": event.status,
                "EventPublishTime": event.published.strftime("%Y-%m-%dT%H:%M:%SZ"),
                "NotBefore": event.not_before.strftime("%Y-%m-%dT%H:%M:%SZ"),
                "InstanceId": instance.id,
            }
            for event in self._world.events
            if event.instance == instance.id and event.finished is None
        ]


def _identity(instance: Instance) -> dict[str, str]:
    return {
        "instance-id": instance.id,
        "region-id": instance.region,
        "zone-id": instance.zone,
        "private-ipv4": instance.address,
        "image-id": instance.image,
        "instance-type": instance.type,
        "owner-account-id": ACCOUNT,
    }


def _listing(folder: str, names: dict[str, Callable[[], str]]) -> bytes | None:
    """What lies in a folder, one name a line."""
    if folder and not folder.endswith("/"):
        return None
    rests = [name.removeprefix(folder) for name in names if name.startswith(folder) and name != folder]
    shown = sorted({head + slash for head, slash, _ in (rest.partition("/") for rest in rests)})
    return "\n".join(shown).encode() if shown else None


def _no_such_page() -> Reply:
    return Reply(status=404, body=html_page(404, "Not Found"), content_type=HTML)
