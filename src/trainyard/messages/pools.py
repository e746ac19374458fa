"""Why a pool could not get a machine, and what becomes of its machines.

English sentences of a provider's refusals are the backend's own, which names more; those here are for the reference, and
for whatever is said here first.
"""

from __future__ import annotations

from collections.abc import Mapping

from trainyard.messages.text import Text

TEXTS: Mapping[str, Text] = {
    "provider.price": Text(
        "Nobody in {place} has {what} for {price} an hour or less.",
        "{place} 没有每小时不超过 {price} 的 {what}。",
        "Raise the pool's price limit, or take another type.", "请提高资源池的价格上限，或换一种机型。",
    ),
    "provider.spot_price": Text(
        "The spot market asks more than the pool's price limit.", "抢占式实例的市场价高于资源池的价格上限。",
        "Raise the limit, or take no spot machines.", "请提高上限，或不使用抢占式实例。",
    ),
    "provider.account_quota": Text(
        "The provider's quota of the account is used up.", "云账号的配额不足。",
        "Ask for more in the console's Quota Center, or take another type.",
        "请在云控制台的配额中心申请更多配额，或换一种机型。",
    ),
    "provider.stock": Text(
        "Nobody in {place} has {what} now.", "{place} 目前没有 {what}。",
        "Try again later, or take another type.", "请稍后重试，或换一种机型。",
    ),
    "provider.sold_out": Text(
        "The machines were sold out when they were to be bought.", "所需机型在各可用区已售罄或不出售。",
        "Try again later, or take another type or zone.", "请稍后重试，或换一种机型、可用区。",
    ),
    "provider.no_addresses": Text(
        "The network has no free addresses.", "交换机没有空闲的地址。",
        "Release machines that nobody uses, or take another zone.", "请释放不用的机器，或换一个可用区。",
    ),
    "provider.balance": Text(
        "The account's balance is too low.", "云账号余额不足。", "Top it up, then try again.", "请充值后重试。",
    ),
    "provider.forbidden": Text(
        "The account or its access key may not buy machines.", "云账号或访问密钥没有购买机器所需的权限。",
        "An administrator has to look at the RAM policies of the server's key.", "请管理员检查服务器密钥的 RAM 权限。",
    ),
    "provider.denied": Text(
        "The provider does not accept the server's access key.", "云服务商不接受服务器的访问密钥。",
        "An administrator has to look at the server's key.", "请管理员检查服务器的密钥。",
    ),
    "provider.region": Text(
        "The server does not know the region.", "服务器没有设置云的地域。",
        "An administrator has to set ALIYUN_DEFAULT_REGION.", "请管理员设置 ALIYUN_DEFAULT_REGION。",
    ),
    "provider.image": Text(
        "There is no image {image}.", "没有镜像 {image}。",
        "Change the pool's option image.", "请更换资源池的 image 选项。",
    ),
    "pool.devices_missing": Text(
        "{machine} shows none of the devices of {type}: its image may lack the driver.",
        "{machine} 上没有发现 {type} 的设备：镜像可能缺少驱动。",
    ),
    "pool.types_left_out": Text(
        "Not bought, for nobody sells them or they have other devices: {types}.",
        "以下机型无人出售或设备不同，不会购买：{types}。",
    ),
    "pool.not_joined": Text(
        "It did not become a node within {minutes} minutes.", "机器在 {minutes} 分钟内未能成为节点，已释放。",
    ),
    "pool.not_joined_because": Text(
        "It did not become a node within {minutes} minutes. {why}",
        "机器在 {minutes} 分钟内未能成为节点，已释放：{why}",
    ),
    "pool.refused": Text("It cannot be a node: {why}", "机器不能作为节点，已释放：{why}"),
    "pool.in_vain": Text(
        "Bought in vain: {machine} was there, and the jobs that it was bought for could not use it.",
        "{machine} 白白购买：等待它的任务无法在其上运行。",
    ),
    "provider.unreachable": Text(
        "The provider does not answer.", "云服务商没有应答，稍后会自动重试。",
    ),
    "provider.unknown": Text("Machines could not be bought: {message}", "购买机器时出错：{message}"),
    # -- machines
    "pool.gone": Text("The provider has it no more.", "云服务商处已没有这台机器。"),
    "pool.node_removed": Text("Its node was taken away.", "它的节点已被移除。"),
    "pool.removed": Text("Its pool is being removed.", "资源池正在删除。"),
    "pool.boots": Text("It boots.", "正在开机。"),
    "pool.idle": Text("It was idle for {seconds} s.", "已空闲 {seconds} 秒。"),
    "machine_joined": Text("{machine} is a node.", "{machine} 已成为节点。"),
    "pool_removed": Text("The pool is gone; its machines have cost {cost}.", "资源池已删除，其机器共花费 {cost}。"),
    "stray_released": Text(
        "The machine {machine} ({id}) was bought and forgotten; it is released.",
        "机器 {machine}（{id}）购买后无人登记，已释放。",
    ),
    "machine_released": Text("Released, having cost {cost}: {why}", "已释放，共花费 {cost}：{why}"),
    "machine_bought": Text(
        "Bought {type} in {zone} for {price} {currency} an hour.", "已在 {zone} 购买 {type}，每小时 {price} {currency}。"
    ),
}  # fmt: skip

# Of several refusals, the first of these is told: a price or a quota can be raised, and stock only be waited for.
ORDER = (
    "provider.price",
    "provider.spot_price",
    "provider.account_quota",
    "provider.stock",
    "provider.sold_out",
    "provider.no_addresses",
    "provider.balance",
    "provider.forbidden",
    "provider.denied",
    "provider.region",
    "provider.image",
    "provider.unreachable",
)

# What cannot be so any more when the provider has told what machines are and cost. Looking is allowed, and buying may not be.
ENDED_BY_AN_ANSWER = frozenset(
    {"provider.denied", "provider.region", "pool.types_left_out", "provider.unreachable"}
)
