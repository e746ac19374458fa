"""The table of Alibaba's error codes: for each, our error class, one sentence and one hint. `errors.py` reads it.

The sentences may name {subject} (the thing asked for; {thing} is it without its article), {action} (ecs:RunInstances),
{region}, {code} and {message} (the provider's own words). A code that stands here alone wins over the family it belongs to.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from trainyard.lib.errors import (
    CapacityError,
    ConflictError,
    DeniedError,
    Error,
    InvalidError,
    NotFoundError,
    UnreachableError,
    UnsupportedError,
)


@dataclass(frozen=True, slots=True)
class Row:
    """What one code, or one family of codes, means for a person."""

    error: type[Error] | None
    sentence: str
    hint: str
    reason: str = ""  # of the catalogue of messages; empty: what its class says
    is_local: bool = False  # true of this zone, type or price only: another one may succeed


# Nothing has happened, and the same call will pass in a moment: something on the way is still being made.
BUSY = frozenset(
    {
        "IncorrectInstanceStatus.Initializing",
        "IncorrectVSwitchStatus",
        "IncorrectVpcStatus",
        "IncorrectStatus.Vpc",
        "IncorrectStatus.VSwitch",
        "IdempotentProcessing",
        "LastTokenProcessing",
        "OperationConflict",
        "OperationDenied.CreatingConflict",
        "OperationDenied.InvalidState",
        "OperationFailed.IdempotentTokenProcessing",
        "OperationFailed.LastTokenProcessing",
        "ServiceIsStopping",
        "SystemBusy",
        "TaskConflict",
        "VolumeStatusForbidOperation",
    }
)

_ELSEWHERE = "Ask for another type or zone, or leave --zone_id out so that all zones are tried."
_SOLD_OUT = Row(CapacityError, "{subject} is sold out", _ELSEWHERE, reason="provider.sold_out", is_local=True)
_NOT_SOLD = Row(
    CapacityError, "{subject} is not sold there", _ELSEWHERE, reason="provider.sold_out", is_local=True
)
_FULL = Row(
    CapacityError,
    "the vSwitch has no free addresses left for {subject}",
    "Release machines with `trainyard kill`, or use another zone.",
    reason="provider.no_addresses",
    is_local=True,
)
_SPOT_PRICE = Row(
    CapacityError,
    "the spot price of {subject} is above the limit that was given",
    "Raise spot_price_limit, leave it out to pay the market price, or ask without --spot.",
    reason="provider.spot_price",
    is_local=True,
)
_BALANCE = Row(
    DeniedError,
    "the account's balance is not enough for {subject}",
    "Top up the account in the Alibaba Cloud console (pay-as-you-go machines need a balance of 100 CNY), then try again.",
    reason="provider.balance",
)
_REAL_NAME = Row(
    DeniedError,
    "the account has not passed real-name verification, so it may not buy {subject}",
    "Verify the account in the Alibaba Cloud console under Account Center, then try again.",
    reason="provider.forbidden",
)
_QUOTA = Row(
    CapacityError,
    "the account's quota in {region} does not allow {subject}: {message}",
    "Ask for more in the console's Quota Center (ECS, privileges and quotas), or use another type or region.",
    reason="provider.account_quota",
    is_local=True,
)
_NEW_ACCOUNT = Row(
    CapacityError,
    "the account's quota of pay-as-you-go machines of this kind is 0 in {region}, as on every new account",
    "Ask for a quota of GPU vCPUs in the console's Quota Center (ECS); it is granted within a day, usually at once.",
    reason="provider.account_quota",
    is_local=True,
)
_RAM = Row(
    DeniedError,
    "the access key's user may not call {action}",
    "Let the account's owner attach a RAM policy that allows {action}.",
    reason="provider.forbidden",
)
_RISK = Row(
    DeniedError,
    "Alibaba Cloud's risk control stopped {action}: {message}",
    "Sign in to the console with the account's owner and complete the verification it asks for.",
)
_KEY_ID = Row(
    DeniedError,
    "Alibaba Cloud does not know this access key id",
    "Correct ALIYUN_ACCESS_KEY_ID, or make a new access key in the RAM console.",
)
_SIGNATURE = Row(
    DeniedError,
    "the access key's secret is wrong: Alibaba Cloud does not accept the signature",
    "Copy ALIYUN_ACCESS_KEY_SECRET again, without spaces or quotes around it.",
)
_TOKEN = Row(
    DeniedError,
    "the temporary security token has expired or is not valid",
    "Get new temporary keys and set all three variables again: id, secret and security token.",
)
_CLOCK = Row(
    InvalidError,
    "this computer's clock differs from Alibaba Cloud's by more than 15 minutes",
    "Set the clock right, for example with `timedatectl set-ntp true`.",
)
_IMAGE = Row(
    NotFoundError,
    "there is no image {subject} in {region}: {message}",
    "List the images with `trainyard queryimage`; images with a date in their name are withdrawn after some time.",
    reason="provider.image",
)
_GONE = Row(NotFoundError, "there is no {thing} in {region}", "See what there is with `trainyard ls -a`.")
_IN_USE = Row(
    ConflictError,
    "{subject} is still in use: {message}",
    "Release what uses it first; `trainyard ls -a` shows the machines.",
)
_STATE = Row(
    ConflictError,
    "{subject} is not in a state that allows {action}: {message}",
    "Look with `trainyard ls -a`, wait until it has settled, then try again.",
)
_TAKEN = Row(ConflictError, "the name of {subject} is taken: {message}", "Choose another name.")
_LIMIT = Row(
    CapacityError,
    "a limit of the account in {region} is reached for {subject}: {message}",
    "Remove what is idle with `trainyard cleanup`, or ask for more in the console's Quota Center.",
    reason="provider.account_quota",
)
_REUSED_TOKEN = Row(
    ConflictError,
    "an earlier {action} with the same token had other parameters",
    "Run `trainyard ls -a` to see what it made, release what you do not want, then try again.",
)
_DISK = Row(
    InvalidError,
    "{subject} does not take such a disk: {message}",
    "Ask for another disk category or size; newer GPU types take cloud_essd and cloud_auto only.",
    is_local=True,
)
_LOCKED = Row(
    DeniedError,
    "{subject} is locked by Alibaba Cloud: {message}",
    "Pay what is due or answer the security notice in the console; deleting still works.",
)
_REGION = Row(
    InvalidError,
    "there is no region {region} for this account",
    "Correct ALIYUN_DEFAULT_REGION; cn-beijing and cn-hangzhou are examples.",
    reason="provider.region",
)
_NOT_OPEN = Row(
    DeniedError,
    "the service behind {action} is not activated for this account",
    "Activate it once in the console (for NAS: https://nas.console.aliyun.com), then try again.",
)

# code → row.
ROWS: dict[str, Row] = {
    "": Row(None, "", ""),  # unknown: `errors.py` uses the provider's words
    # -- capacity
    "OperationDenied.NoStock": _SOLD_OUT,
    "Invalid.PrivatePoolOptions.NoStock": _SOLD_OUT,
    "NoInstanceStock": _SOLD_OUT,
    "LackResource": _SOLD_OUT,
    "ResourceNotAvailable": _SOLD_OUT,
    "NodeControllerUnavailable": _SOLD_OUT,
    "Zone.NotOnSale": _NOT_SOLD,
    "Zone.NotOpen": _NOT_SOLD,
    "OperationDenied.ZoneNotAllowed": _NOT_SOLD,
    "OperationDenied.ZoneSystemCategoryNotMatch": _NOT_SOLD,
    "InvalidInstanceType.ZoneNotSupported": _NOT_SOLD,
    "InvalidInstanceType.ValueNotSupported": _NOT_SOLD,
    "InvalidInstanceType.NotSupported": _NOT_SOLD,
    "InvalidVpcZone.NotSupported": _NOT_SOLD,
    "InstanceType.Offline": _NOT_SOLD,
    "PriceNotFound": _NOT_SOLD,
    "InvalidVSwitchId.IpNotEnough": _FULL,
    "QuotaExceeded.PrivateIpAddress": _FULL,
    "OperationDenied.SpotPriceLowerThanPublicPrice": _SPOT_PRICE,
    "InvalidSpotPriceLimit.LowerThanPublicPrice": _SPOT_PRICE,
    "InvalidInstanceType.NotSupportDiskCategory": _DISK,
    "InvalidSystemDiskCategory.ValueNotSupported": _DISK,
    "InvalidDataDiskCategory.ValueNotSupported": _DISK,
    "InvalidDiskCategory.NotSupported": _DISK,
    "InvalidDiskCategory.ValueNotSupported": _DISK,
    "OperationDenied.LocalDiskUnsupported": _DISK,
    # -- quota and account
    "QuotaExceed.ElasticQuota": _QUOTA,
    "OperationDenied.QuotaExceed": _QUOTA,
    "QuotaExceed.AfterpayInstance": _NEW_ACCOUNT,
    "InvalidInstanceType.ValueUnauthorized": Row(
        DeniedError,
        "the account may not use {subject}: {message}",
        "Ask for the type in the console's Quota Center, or use another type.",
        is_local=True,
    ),
    "SecurityGroupInstanceLimitExceed": _LIMIT,
    "JoinedGroupLimitExceed": _LIMIT,
    "AuthorizationLimitExceed": Row(
        CapacityError,
        "{subject} has as many rules as it may have",
        "Remove addresses that are no longer yours in the console, then add this one again.",
    ),
    "OperationDenied.MountTargetCountsExceeded": _LIMIT,
    "OperationDenied.FileSystemCountsExceeded": _LIMIT,
    "InvalidAccountStatus.NotEnoughBalance": _BALANCE,
    "InsufficientBalance": _BALANCE,
    "Account.Arrearage": _BALANCE,
    "InvalidAccountStatus.Arrearage": _BALANCE,
    "InvalidPayMethod": _BALANCE,
    "PaymentMethodNotFound": Row(
        DeniedError,
        "the account has no way of paying for {subject}",
        "Add a payment method in the Alibaba Cloud console, then try again.",
    ),
    "RealNameAuthenticationError": _REAL_NAME,
    "InvalidAccountStatus.NotRealNameVerified": _REAL_NAME,
    "Forbidden.RiskControl": _RISK,
    "SecurityRisk.3DVerification": _RISK,
    "RegionUnauthorized": _REGION,
    "InvalidRegionId.NotFound": _REGION,
    "Forbidden.RegionId": _REGION,
    "User.Disabled": _NOT_OPEN,
    "Forbidden.NasNotFound": _NOT_OPEN,
    # -- who you are
    "InvalidAccessKeyId.NotFound": _KEY_ID,
    "InvalidAccessKeyId": _KEY_ID,
    "InvalidAccessKeyId.Inactive": Row(
        DeniedError,
        "this access key is disabled",
        "Enable it in the RAM console, or make a new one.",
    ),
    "SignatureDoesNotMatch": _SIGNATURE,
    "IncompleteSignature": _SIGNATURE,
    "InvalidSecurityToken.Expired": _TOKEN,
    "InvalidSecurityToken.Malformed": _TOKEN,
    "InvalidSecurityToken.MismatchWithAccessKey": _TOKEN,
    "MissingSecurityToken": _TOKEN,
    "InvalidTimeStamp.Expired": _CLOCK,
    "SignatureNonceUsed": Row(
        UnreachableError,
        "Alibaba Cloud has seen this very request before: something on the way sends requests twice",
        "Try again; if it stays, look at the proxy in between.",
    ),
    "Forbidden.RAM": _RAM,
    "NoPermission": _RAM,
    "Forbidden": _RAM,
    "Forbbiden": _RAM,  # as the provider spells it
    "InvalidUser.PassRoleForbidden": Row(
        DeniedError,
        "the access key's user may not give a machine the RAM role that was asked for",
        "Let the account's owner allow ram:PassRole for that role, or leave the role out.",
    ),
    "InvalidRamRole.NotFound": Row(
        NotFoundError,
        "there is no such RAM role: {message}",
        "Make the role in the RAM console, or leave it out.",
    ),
    "EntityNotExist.Role": Row(
        NotFoundError,
        "there is no RAM role {subject}",
        "Correct the role's ARN in your profile or in ALIBABA_CLOUD_ROLE_ARN.",
    ),
    # -- things
    "InvalidImageId.NotFound": _IMAGE,
    "InvalidImageFamily.NotFound": _IMAGE,
    "ImageRemovedInMarket": _IMAGE,
    "InvalidMarketImage.NotFound": _IMAGE,
    "ImageNotSubscribed": Row(
        DeniedError,
        "the image {subject} belongs to the marketplace and the account has not subscribed to it",
        "Accept its terms in the console's marketplace once, or use another image.",
    ),
    "ImageNotSupportInstanceType": Row(
        InvalidError,
        "the image does not run on {subject}: {message}",
        "Choose another image with `trainyard queryimage`, or another type.",
    ),
    "InvalidSystemDiskSize.LessThanImageSize": Row(
        InvalidError,
        "the system disk is smaller than the image of {subject}",
        "Ask for a larger --system_disk_size.",
    ),
    "InvalidUserData.SizeExceeded": Row(
        InvalidError,
        "the install script is too long to travel with the machine: 32 KB is the limit",
        "Shorten the script, or upload it and run it as the first command.",
    ),
    "InvalidInstanceId.NotFound": _GONE,
    "InvalidParameter.Mismatch": Row(
        InvalidError,
        "the network's parts do not belong together: {message}",
        "Remove the stray one with `trainyard cleanup`, or name another network with --vpc_name.",
    ),
    "InvalidOperation.DeletionProtection": Row(
        ConflictError,
        "{subject} is protected against deletion",
        "Take the protection off in the console, then release it again.",
    ),
    "OperationDenied.DeletionProtection": Row(
        ConflictError,
        "{subject} is protected against deletion",
        "Take the protection off in the console, then release it again.",
    ),
    "ChargeTypeViolation": Row(
        ConflictError,
        "{subject} is a subscription, which {action} does not fit",
        "End the subscription in the console; only pay-as-you-go machines can be handled here.",
    ),
    "InstanceLockedForSecurity": _LOCKED,
    "InstanceExpired": _LOCKED,
    "KeyPair.AlreadyExist": _TAKEN,
    "InvalidKeyPairName.Duplicated": _TAKEN,
    "InvalidImageName.Duplicated": _TAKEN,
    "InvalidAccessGroup.AlreadyExisted": _TAKEN,
    "InvalidPublicKeyBody.Malformed": Row(
        InvalidError,
        "Alibaba Cloud does not take the public key of {subject}",
        "Use an RSA key; ed25519 keys are not accepted by the provider.",
    ),
    "InvalidKeyPairName.NotFound": Row(
        NotFoundError, "there is no key pair {subject} in {region}", "Run the command again: it is made anew."
    ),
    "KeyPairsNotFound": Row(
        NotFoundError, "there is no key pair {subject} in {region}", "Run the command again: it is made anew."
    ),
    "InvalidCidrBlock.Overlapped": Row(
        ConflictError,
        "the address range of {subject} overlaps one that is there already",
        "Try again; the next free range is taken then.",
    ),
    "IdempotentParameterMismatch": _REUSED_TOKEN,
    "IdempotenceParamNotMatch": _REUSED_TOKEN,
    "DryRunOperation": Row(
        ConflictError, "the trial of {action} passed, and nothing was done", "Ask again without the dry run."
    ),
    "InvalidApi.NotFound": Row(
        UnsupportedError,
        "{action} does not exist at the endpoint that answered",
        "Correct TRAINYARD_ALIYUN_ENDPOINT, or unset it.",
    ),
    "InvalidAction.NotFound": Row(
        UnsupportedError,
        "{action} does not exist at the endpoint that answered",
        "Correct TRAINYARD_ALIYUN_ENDPOINT, or unset it.",
    ),
    # -- trouble that passes; the client has waited already when a person reads this
    "Throttling": Row(
        UnreachableError,
        "Alibaba Cloud keeps refusing {action}: too many calls a minute from this account",
        "Wait a minute and try again; the console, Terraform and colleagues share the same limit.",
    ),
    "InternalError": Row(
        UnreachableError,
        "Alibaba Cloud has trouble of its own with {action}: {message} ({code})",
        "Run the same command again in a minute: it finds what was made.",
    ),
    "ServiceUnavailable": Row(
        UnreachableError,
        "Alibaba Cloud has trouble of its own with {action}: {message} ({code})",
        "Run the same command again in a minute: it finds what was made.",
    ),
}
_WAITED = Row(
    UnreachableError,
    "{subject} stayed busy while we waited to call {action}: {message}",
    "Run the same command again in a minute: it goes on where it was.",
)
ROWS.update(dict.fromkeys(BUSY, _WAITED))

# Families of codes, asked in this order when a code has no row of its own.
FAMILIES: tuple[tuple[re.Pattern[str], Row], ...] = (
    (re.compile(r"NoStock|SoldOut"), _SOLD_OUT),
    (re.compile(r"^QuotaExceed(ed)?\.(Vpc|VSwitch|SecurityGroup|KeyPair|Image|Tags)"), _LIMIT),
    (re.compile(r"^QuotaExceed"), _QUOTA),
    (re.compile(r"LimitExceed|ExceedQuota"), _LIMIT),
    (re.compile(r"^(Forbidden\.RAM|NoPermission|ImplicitDeny|Unauthorized)"), _RAM),
    (re.compile(r"^InvalidSecurityToken"), _TOKEN),
    (re.compile(r"^InvalidAccessKeyId"), _KEY_ID),
    (re.compile(r"^InvalidAccountStatus"), _BALANCE),
    (re.compile(r"^DependencyViolation"), _IN_USE),
    (re.compile(r"^Incorrect\w*Status"), _STATE),
    (re.compile(r"LockedForSecurity|^OperationDenied\.Locked"), _LOCKED),
    (
        re.compile(
            r"^Invalid(Instance|Vpc|VSwitch|SecurityGroup|Disk|FileSystem|MountTarget)(Id)?\.(NotFound|NotExist)"
        ),
        _GONE,
    ),
)
