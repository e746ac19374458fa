"""Why a pool could not get a machine, in Chinese: its messages are the backend's and the loop's own sentences, in English. Pure.

Patterns stand in the order in which they are believed. What none of them knows is shown as it is.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PoolError:
    """A kind of message: how it looks, and what it is in Chinese, with the groups of the pattern in braces."""

    code: str
    line: re.Pattern[str]
    meaning: str  # in English, for the reference
    chinese: str


def _trouble(code: str, line: str, meaning: str, chinese: str) -> PoolError:
    return PoolError(code, re.compile(line, re.IGNORECASE | re.DOTALL), meaning, chinese)


TROUBLES: Sequence[PoolError] = (
    _trouble(
        "price", r"nobody in (?P<place>\S+) has (?P<what>.+?) for (?P<price>\S+) an hour or less",
        "Machines cost more than the pool's price limit.",
        "{place} 没有每小时不超过 {price} 的 {what}。请提高资源池的价格上限，或换一种机型。",
    ),
    _trouble(
        "spot_price", r"spot price of .+ is above the limit", "The spot market asks more than the pool's price limit.",
        "抢占式实例的市场价高于资源池的价格上限。请提高上限，或不使用抢占式实例。",
    ),
    _trouble(
        "quota", r"quota|limit of the account", "The provider's quota of the account is used up.",
        "云账号的配额不足。请在云控制台的配额中心申请更多配额，或换一种机型。",
    ),
    _trouble(
        "stock", r"nobody in (?P<place>\S+) has (?P<what>.+?) now", "Nobody has such machines now.",
        "{place} 目前没有 {what}。请稍后重试，或换一种机型。",
    ),
    _trouble(
        "sold_out", r"sold out|not sold there|no place has", "The machines were sold out when they were to be bought.",
        "所需机型在各可用区已售罄或不出售。请稍后重试，或换一种机型、可用区。",
    ),
    _trouble(
        "addresses", r"no free addresses", "The network has no free addresses.",
        "交换机没有空闲的地址。请释放不用的机器，或换一个可用区。",
    ),
    _trouble(
        "balance", r"balance is not enough", "The account's balance is too low.",
        "云账号余额不足。请充值后重试。",
    ),
    _trouble(
        "denied", r"may not (?:call|buy)|risk control|access key|security token|no credentials|ALIYUN_ACCESS_KEY",
        "The account or its access key may not do it.",
        "云账号或访问密钥无效，或没有所需的权限。请管理员检查服务器的密钥与 RAM 权限。",
    ),
    _trouble(
        "region", r"No region .* is set", "The server does not know the region.",
        "服务器没有设置云的地域。请管理员设置 ALIYUN_DEFAULT_REGION。",
    ),
    _trouble(
        "image", r"there is no image (?P<what>\S+)", "The pool's image does not exist.",
        "没有镜像 {what}。请更换资源池的 image 选项。",
    ),
    _trouble(
        "devices", r"(?P<node>\S+) shows none of the devices of (?P<what>[\w.-]*\w)", "A machine came without its devices.",
        "{node} 上没有发现 {what} 的设备：镜像可能缺少驱动。",
    ),
    _trouble(
        "types_left_out", r"Not bought, .+?: (?P<what>.+?)\.?$", "Types that nobody sells, or with other devices than the first.",
        "以下机型无人出售或设备不同，不会购买：{what}。",
    ),
    _trouble(
        "not_joined", r"did not become a node within (?P<minutes>\d+) minutes", "A machine did not become a node in time.",
        "机器在 {minutes} 分钟内未能成为节点，已释放。",
    ),
    _trouble(
        "refused", r"It cannot be a node: (?P<why>.+)", "A machine came and cannot be used.",
        "机器不能作为节点，已释放：{why}",
    ),
    _trouble(
        "in_vain", r"Bought in vain: (?P<node>\S+) was there", "The jobs that a machine was bought for could not use it.",
        "{node} 白白购买：等待它的任务无法在其上运行。",
    ),
    _trouble(
        "unreachable", r"(?:did|does) not answer|cannot (?:be reached|reach|connect)|no answer|timed out|connection",
        "The provider does not answer.",
        "云服务商没有应答，稍后会自动重试。",
    ),
)  # fmt: skip
LONGEST = (
    2000  # of a message: the patterns take the square of its length, and a provider writes what it likes
)
UNKNOWN = "购买机器时出错：{message}"
# What cannot be so any more when the provider has told what machines are and cost.
_ENDED_BY_AN_ANSWER = frozenset({"denied", "region", "types_left_out", "unreachable"})
_STILL_DENIED = re.compile("may not", re.IGNORECASE)  # looking is allowed, and buying is not


def is_over(message: str) -> bool:
    """Whether a pool's trouble has ended when its provider has told types and prices."""
    code = next((one.code for one in TROUBLES if one.line.search(message[:LONGEST])), "")
    return code in _ENDED_BY_AN_ANSWER and not _STILL_DENIED.search(message)


def in_chinese(message: str) -> str:
    """The message of a pool, for who reads Chinese."""
    for trouble in TROUBLES:
        found = trouble.line.search(message[:LONGEST])
        if found is not None:
            return trouble.chinese.format(**found.groupdict())
    return UNKNOWN.format(message=message)
