"""RunInstances: a long request judged piece by piece, then instances with their disks, addresses and bills.

Everything that can be refused is refused before anything is made. ClientToken is the wire's matter. Other actions on
instances stand in `instances.py` and `power.py`.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from fnmatch import fnmatchcase

from trainyard.emulators.aliyun.api.answers import parse_time, read_tags, refuse_dry_run, require_region
from trainyard.emulators.aliyun.api.call import Call, Handler, Value, flag, text, texts
from trainyard.emulators.aliyun.api.problems import Problem, denied, missing, not_found
from trainyard.emulators.aliyun.cloud import ledger, stock, timeline
from trainyard.emulators.aliyun.cloud.catalogue import TYPES, ZONES, Type
from trainyard.emulators.aliyun.cloud.market import spot_price
from trainyard.emulators.aliyun.cloud.records import Disk, Image, Instance, KeyPair, VSwitch
from trainyard.emulators.aliyun.cloud.world import World
from trainyard.emulators.aliyun.ecs import naming
from trainyard.emulators.aliyun.ecs.disks import plan_disks, require_disk_quota
from trainyard.emulators.aliyun.ecs.images import find_image, suits
from trainyard.emulators.aliyun.vpc.network import free_addresses, take_addresses

MOST_INSTANCES = 100
USER_DATA_LIMIT = 32 * 1024
_EARLIEST_RELEASE, _LATEST_RELEASE = timedelta(minutes=30), timedelta(days=3 * 365)
_STRATEGIES = ("NoSpot", "SpotAsPriceGo", "SpotWithPriceLimit")


@dataclass(slots=True, kw_only=True)
class Order:
    """What RunInstances asks for, judged."""

    kind: Type
    zone: str
    image: Image
    vswitch: VSwitch
    groups: list[str]
    amount: int
    least: int
    names: list[str]
    hostnames: list[str]
    disks: list[Disk]
    key_pair: KeyPair | None
    tags: dict[str, str]
    spot: SpotTerms
    auto_release: datetime | None
    private_address: str = ""


@dataclass(slots=True, kw_only=True)
class SpotTerms:
    """On which terms an instance may be taken away."""

    strategy: str = "NoSpot"
    limit: Decimal | None = None
    duration: int = 1
    behavior: str = "Terminate"
    is_spot: bool = field(init=False)

    def __post_init__(self) -> None:
        self.is_spot = self.strategy != "NoSpot"


def run_instances(world: World, call: Call) -> dict[str, Value]:
    """RunInstances."""
    require_region(call)
    _require_good_standing(world)
    order = _read(world, call)
    order.amount = _available(world, order)
    require_disk_quota(world, ZONES[order.zone].id, order.amount * len(order.disks))
    refuse_dry_run(call)
    ids = _make(world, call, order)
    return {"InstanceIdSets": {"InstanceIdSet": list(ids)}, "OrderId": "", "TradePrice": 0.0}


def _require_good_standing(world: World) -> None:
    account = world.options.account
    if account.overdue:
        raise Problem("Account.Arrearage", "Your account has an outstanding payment.")
    if not account.verified:
        raise denied(
            "RealNameAuthenticationError", "Your account has not passed the real-name authentication yet."
        )
    if account.balance <= 0:
        raise denied("InvalidAccountStatus.NotEnoughBalance", "Your account does not have enough balance.")


# --- reading


def _read(world: World, call: Call) -> Order:
    if call.given("LaunchTemplateId") or call.given("LaunchTemplateName"):
        raise not_found("InvalidLaunchTemplate.NotFound", "The specified launch template does not exist.")
    kind = _read_type(call)
    amount, least = _read_amount(call)
    vswitch, groups = _read_network(world, call)
    image = find_image(world, vswitch.region, call.text("ImageId"), call.text("ImageFamily"))
    if not suits(image, kind):
        raise denied("ImageNotSupportInstanceType", f"The image {image.id} does not support {kind.name}.")
    stock.require_on_sale(vswitch.zone, kind.name, world)
    _check_rest(world, call)
    return Order(
        kind=kind,
        zone=vswitch.zone,
        image=image,
        vswitch=vswitch,
        groups=groups,
        amount=amount,
        least=least,
        names=_read_names(call, amount),
        hostnames=_read_hostnames(call, amount),
        disks=plan_disks(world, kind, vswitch.zone, image, call),
        key_pair=read_key(world, call, vswitch.region),
        tags=read_tags(call.structs("Tag"), world.options.quotas.tags),
        spot=_read_spot(world, call, kind, vswitch.zone),
        auto_release=read_release_time(call),
        private_address=call.text("PrivateIpAddress"),
    )


def _read_type(call: Call) -> Type:
    name = call.text("InstanceType")
    if not name:
        raise missing("InstanceType")
    if name not in TYPES:
        raise Problem(
            "InvalidInstanceType.ValueNotSupported",
            "The specified InstanceType does not exist or beyond the permitted range.",
        )
    return TYPES[name]


def _read_amount(call: Call) -> tuple[int, int]:
    amount = call.number("Amount", 1)
    least = call.number("MinAmount", amount)
    if not 1 <= amount <= MOST_INSTANCES:
        raise denied("InvalidParam.Amount", f"The specified Amount is not valid: 1 to {MOST_INSTANCES}.")
    if not 1 <= least <= amount:
        raise Problem("InvalidMinAmount.Malformed", "The specified MinAmount must lie between 1 and Amount.")
    return amount, least


def _primary(call: Call) -> Mapping[str, Value]:
    """The network interface that replaces VSwitchId and SecurityGroupId, if one was given."""
    cards = call.structs("NetworkInterface")
    return next((one for one in cards if text(one, "InstanceType") == "Primary"), {})


def _read_network(world: World, call: Call) -> tuple[VSwitch, list[str]]:
    card = _primary(call)
    vswitch = _read_vswitch(world, call, text(card, "VSwitchId") or call.text("VSwitchId"))
    single = text(card, "SecurityGroupId") or call.text("SecurityGroupId")
    several = texts(card, "SecurityGroupIds") or call.texts("SecurityGroupIds")
    if single and several:
        raise Problem("InvalidParameter.Conflict", "SecurityGroupId and SecurityGroupIds exclude each other.")
    groups = several or ([single] if single else [])
    if not groups:
        raise missing("SecurityGroupId")
    for group_id in groups:
        _check_group(world, group_id, vswitch)
    return vswitch, groups


def _read_vswitch(world: World, call: Call, vswitch_id: str) -> VSwitch:
    if not vswitch_id:
        raise Problem("InvalidVSwitchId.Necessary", "VSwitchId is required.")
    vswitch = world.vswitches.get(vswitch_id)
    if vswitch is None or vswitch.region != call.region:
        raise not_found("InvalidVSwitchId.NotFound", f"The specified vSwitch does not exist: {vswitch_id}.")
    if world.vpcs[vswitch.vpc].status != "Available":
        raise Problem("IncorrectVpcStatus", "The current status of the VPC does not support this operation.")
    if vswitch.status != "Available":
        raise Problem("IncorrectVSwitchStatus", "The current status of the vSwitch does not support this.")
    if call.text("ZoneId") not in {"", vswitch.zone}:
        raise Problem("InvalidParameter.Mismatch", "The specified vSwitch is not in the specified zone.")
    return vswitch


def _check_group(world: World, group_id: str, vswitch: VSwitch) -> None:
    group = world.groups.get(group_id)
    if group is None or group.region != vswitch.region:
        raise not_found("InvalidSecurityGroupId.NotFound", f"There is no security group {group_id}.")
    if group.vpc != vswitch.vpc:
        raise Problem(
            "InvalidParameter.Mismatch", "The security group and the vSwitch are in different VPCs."
        )


def _read_names(call: Call, amount: int) -> list[str]:
    pattern = call.text("InstanceName")
    if not pattern:
        return [""] * amount
    names = naming.series(pattern, amount, unique=call.flag("UniqueSuffix"))
    for name in names:
        naming.check_name(name)
    return names


def _read_hostnames(call: Call, amount: int) -> list[str]:
    several, pattern = call.texts("HostNames"), call.text("HostName")
    if several and pattern:
        raise Problem("InvalidParameter.Conflict", "HostName and HostNames exclude each other.")
    if several and len(several) != amount:
        raise denied("InvalidParams.HostnameExceed", "The number of HostNames differs from Amount.")
    names = several or (
        naming.series(pattern, amount, unique=call.flag("UniqueSuffix")) if pattern else [""] * amount
    )
    for name in names:
        if name:
            naming.check_hostname(name)
    return names


def read_key(world: World, call: Call, region: str) -> KeyPair | None:
    """The key pair that a call names, if it does."""
    name = call.text("KeyPairName")
    if not name:
        return None
    pair = world.key_pairs.get(f"{region}/{name}")
    if pair is None:
        raise not_found("InvalidKeyPairName.NotFound", f"The specified KeyPairName does not exist: {name}.")
    return pair


def _read_spot(world: World, call: Call, kind: Type, zone: str) -> SpotTerms:
    strategy = call.text("SpotStrategy", "NoSpot")
    if strategy not in _STRATEGIES:
        raise Problem("InvalidSpotStrategy", f"The specified SpotStrategy is not valid: {strategy}.")
    if strategy == "NoSpot":
        return SpotTerms()
    if call.text("InstanceChargeType", "PostPaid") != "PostPaid":
        raise Problem("InvalidSpotPrepaid", "Spot instances are pay-as-you-go only.")
    if call.text("DeploymentSetId"):
        raise Problem("InvalidParameter.Conflict", "Spot instances can't join a deployment set.")
    duration, behavior = call.number("SpotDuration", 1), call.text("SpotInterruptionBehavior", "Terminate")
    if duration not in {0, 1}:
        raise Problem("InvalidSpotDuration", "The specified SpotDuration is not valid: 0 or 1.")
    if behavior not in {"Terminate", "Stop"}:
        raise Problem("InvalidSpotInterruptionBehavior", f"{behavior} is neither Terminate nor Stop.")
    if behavior == "Stop" and not kind.has_economical_mode:
        raise denied(
            "InvalidSpotInterruptionBehavior.LocalDiskNotSupport", f"{kind.name} has local disks: no Stop."
        )
    limit = _read_limit(world, call, kind, zone) if strategy == "SpotWithPriceLimit" else None
    return SpotTerms(strategy=strategy, limit=limit, duration=duration, behavior=behavior)


def _read_limit(world: World, call: Call, kind: Type, zone: str) -> Decimal:
    given = Decimal(str(call.parameters.get("SpotPriceLimit") or 0))
    if given <= 0 or given != given.quantize(Decimal("0.001")):
        raise Problem(
            "InvalidSpotPriceLimit", "The specified SpotPriceLimit is not valid: at most 3 decimals."
        )
    if given < spot_price(world, zone, kind.name, call.now):
        raise Problem(
            "InvalidSpotPriceLimit.LowerThanPublicPrice",
            "The specified parameter SpotPriceLimit can't be lower than current public price.",
        )
    return given


def read_release_time(call: Call) -> datetime | None:
    """AutoReleaseTime, judged: half an hour to three years ahead, seconds cut off, pay-as-you-go only."""
    given = call.text("AutoReleaseTime")
    if not given:
        return None
    moment = parse_time(given)
    if moment is None or not _EARLIEST_RELEASE <= moment - call.now <= _LATEST_RELEASE:
        raise Problem(
            "InvalidAutoReleaseTime.Malformed", f"The specified AutoReleaseTime is not valid: {given}."
        )
    if call.text("InstanceChargeType", "PostPaid") != "PostPaid":
        raise denied("ChargeTypeViolation", "Only pay-as-you-go instances can be released automatically.")
    return moment.replace(second=0)


def _check_rest(world: World, call: Call) -> None:
    check_user_data(call.text("UserData"))
    check_password(call.text("Password"))
    if not 0 <= call.number("InternetMaxBandwidthOut") <= 100:
        raise Problem("InvalidInternetMaxBandwidthOut.Malformed", "The bandwidth must lie between 0 and 100.")
    if call.text("InternetChargeType", "PayByTraffic") not in {"PayByTraffic", "PayByBandwidth"}:
        raise Problem(
            "InvalidInternetChargeType.ValueNotSupported", "The InternetChargeType is not supported."
        )
    charge = call.text("InstanceChargeType", "PostPaid")
    if charge not in {"PostPaid", "PrePaid"}:
        raise not_found("InvalidInstanceChargeType.NotFound", f"{charge} does not exist.")
    if charge == "PrePaid" and not call.number("Period"):
        raise Problem("InvalidPeriod", "The specified Period is not valid.")
    role, deployment_set = call.text("RamRoleName"), call.text("DeploymentSetId")
    if role and not any(fnmatchcase(role, one) for one in world.options.account.roles):
        raise not_found("InvalidRamRole.NotFound", f"The specified RAM role does not exist: {role}.")
    if deployment_set and deployment_set not in world.deployment_sets:
        raise not_found("DeploymentSet.NotFound", "The specified deployment set does not exist.")


def check_user_data(given: str) -> None:
    """Refuse UserData that is not base64 or too long when decoded."""
    try:
        size = len(base64.b64decode(given, validate=True))
    except binascii.Error as error:
        raise Problem(
            "InvalidUserData.Base64FormatInvalid", "The UserData must be base64 encoded."
        ) from error
    if size > USER_DATA_LIMIT:
        raise Problem("InvalidUserData.SizeExceeded", "The specified UserData exceeds 32 KB.")


def check_password(given: str) -> None:
    """Refuse a password that Linux images don't take: 8 to 30 characters of three kinds."""
    kinds = [r"[a-z]", r"[A-Z]", r"\d", r"[^a-zA-Z\d]"]
    if given and (not 8 <= len(given) <= 30 or sum(bool(re.search(one, given)) for one in kinds) < 3):
        raise Problem("InvalidPassword.Malformed", "The specified Password is not valid.")


# --- what can be had


def _available(world: World, order: Order) -> int:
    """How many instances there will be; with MinAmount fewer than wanted are a success."""
    members = [sum(group in one.groups for one in world.instances.values()) for group in order.groups]
    if max(members) + order.least > world.options.quotas.group_members:
        raise denied("SecurityGroupInstanceLimitExceed", "The security group has as many members as it can.")
    spot, kind = order.spot.is_spot, order.kind.name
    number = stock.within_quota(world, order.zone, kind, spot=spot, wanted=order.amount, least=order.least)
    number = stock.grant(world, order.zone, kind, spot=spot, wanted=number, least=order.least)
    left = free_addresses(world, order.vswitch)
    if left < order.least:
        raise Problem(
            "InvalidVSwitchId.IpNotEnough",
            f"The specified vSwitch {order.vswitch.id} has not enough IP addresses: {left}.",
        )
    if order.private_address:
        if order.amount != 1:
            raise Problem("InvalidParameter.Conflict", "PrivateIpAddress needs an Amount of 1.")
        take_addresses(world, order.vswitch, 1, order.private_address)
    return min(number, left)


# --- making


def _make(world: World, call: Call, order: Order) -> list[str]:
    inner = take_addresses(world, order.vswitch, order.amount, order.private_address)
    made = []
    for index in range(order.amount):
        instance = _instance(world, call, order, index, inner[index])
        world.instances[instance.id] = instance
        _make_disks(world, order, instance, call.now)
        ledger.bill_instance(world, instance, call.now, protected=True)
        timeline.watch_market(instance, call.now)
        made.append(instance.id)
    return made


def _instance(world: World, call: Call, order: Order, index: int, inner: str) -> Instance:
    region = ZONES[order.zone].id
    instance_id = world.new_id("i-", region)
    hostname = naming.with_id(order.hostnames[index], instance_id)
    name = order.names[index] or instance_id
    spot, options = order.spot, world.options
    bandwidth = call.number("InternetMaxBandwidthOut")
    period = (
        timedelta(days=30) * call.number("Period") if call.text("InstanceChargeType") == "PrePaid" else None
    )
    return Instance(
        id=instance_id,
        region=region,
        zone=order.zone,
        type=order.kind.name,
        name=name,
        hostname=hostname or naming.default_hostname(instance_id),
        description=call.text("Description"),
        image=order.image.id,
        created=call.now,
        expires=call.now + period if period else None,
        vpc=order.vswitch.vpc,
        vswitch=order.vswitch.id,
        groups=list(order.groups),
        address=world.new_address(),
        inner_address=inner,
        interface=world.new_id("eni-", region),
        public_address=world.new_address() if bandwidth else "",
        bandwidth_in=call.number("InternetMaxBandwidthIn", max(10, bandwidth) if bandwidth else 0),
        bandwidth_out=bandwidth,
        internet_charge=call.text("InternetChargeType", "PayByTraffic"),
        charge=call.text("InstanceChargeType", "PostPaid"),
        spot_strategy=spot.strategy,
        spot_limit=spot.limit,
        spot_duration=spot.duration if spot.is_spot else 0,
        spot_behavior=spot.behavior if spot.is_spot else "",
        protected_until=call.now + timedelta(hours=spot.duration) if spot.is_spot else None,
        key_pair=order.key_pair.name if order.key_pair else "",
        authorized_keys=[order.key_pair.public_key] if order.key_pair else [],
        password=call.text("Password"),
        user_data=call.text("UserData"),
        ram_role=call.text("RamRoleName"),
        deployment_set=call.text("DeploymentSetId"),
        deletion_protection=call.flag("DeletionProtection"),
        login_as_non_root=flag(call.struct("ImageOptions"), "LoginAsNonRoot"),
        http_tokens=call.text("HttpTokens", "optional"),
        resource_group=call.text("ResourceGroupId"),
        tags=dict(order.tags),
        interface_tags=dict(order.tags),
        auto_release=order.auto_release,
        visible=call.now + options.duration("visible", name),
        due=call.now + options.duration("pending", name),
    )


def _make_disks(world: World, order: Order, instance: Instance, now: datetime) -> None:
    for plan in order.disks:
        disk = deepcopy(plan)
        disk.id = world.new_id("d-", instance.region)
        disk.instance = instance.id
        disk.tags = dict(order.tags)
        world.disks[disk.id] = disk
        ledger.bill_disk(world, disk, now)


ACTIONS: dict[tuple[str, str], Handler] = {("ecs", "RunInstances"): run_instances}
