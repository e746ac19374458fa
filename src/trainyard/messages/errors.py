"""Errors that people meet most, by the reason that they carry. All others are shown in English, as they were raised."""

from __future__ import annotations

from collections.abc import Mapping

from trainyard.messages.text import Text

TEXTS: Mapping[str, Text] = {
    # -- there is no such thing
    "no_job": Text(
        "There is no job {job!r}.", "没有作业 {job}。",
        "See `trainyard jobs` for those there are.", "运行 `trainyard jobs` 查看现有作业。",
    ),
    "no_template": Text(
        "There is no template {template!r}.", "没有模板 {template}。",
        "See `trainyard templates`.", "运行 `trainyard templates` 查看现有模板。",
    ),
    "no_schedule": Text(
        "There is no schedule {schedule!r}.", "没有定时作业 {schedule}。",
        "See `trainyard schedules`.", "运行 `trainyard schedules` 查看现有定时作业。",
    ),
    "no_secret": Text(
        "There is no secret {secret!r}.", "没有密钥 {secret}。",
        "See `trainyard secrets`.", "运行 `trainyard secrets` 查看现有密钥。",
    ),
    "no_node": Text(
        "There is no node {node!r}.", "没有节点 {node}。",
        "See `trainyard nodes` for those there are.", "运行 `trainyard nodes` 查看现有节点。",
    ),
    "no_pool": Text(
        "There is no pool {pool!r}.", "没有资源池 {pool}。",
        "See `trainyard pools` for those there are.", "运行 `trainyard pools` 查看现有资源池。",
    ),
    "no_storage": Text(
        "There is no storage {storage!r}.", "没有存储 {storage}。",
        "See `trainyard storages`.", "运行 `trainyard storages` 查看现有存储。",
    ),
    "no_workspace": Text(
        "There is no workspace {workspace!r}.", "没有工作空间 {workspace}。",
        "See `trainyard workspaces` for yours.", "运行 `trainyard workspaces` 查看自己的工作空间。",
    ),
    "no_group": Text(
        "There is no group {group!r}.", "没有用户组 {group}。",
        "See `trainyard workspaces groups`.", "运行 `trainyard workspaces groups` 查看现有用户组。",
    ),
    "no_user": Text(
        "There is no user {user!r}.", "没有用户 {user}。",
        "See `trainyard admin users`.", "运行 `trainyard admin users` 查看现有用户。",
    ),
    # -- who is asking
    "token_invalid": Text(
        "The token is not valid.", "令牌无效。",
        "Sign in again with `trainyard login`.", "请用 `trainyard login` 重新登录。",
    ),
    "not_signed_in": Text(
        "This needs a token.", "尚未登录。",
        "Log in with `trainyard login URL`, or send `Authorization: Bearer TOKEN`.",
        "请用 `trainyard login URL` 登录，或在请求中携带 `Authorization: Bearer TOKEN`。",
    ),
    "wrong_password": Text(
        "The name or the password is wrong.", "用户名或密码错误。", "Check both, and try again.", "请检查后重试。",
    ),
    "one_time_password": Text(
        "The password that you were given has to be changed first.", "须先修改初始密码。",
        "Run `trainyard passwd`, or send PUT /api/v1/session/password.",
        "请运行 `trainyard passwd`，或发送 PUT /api/v1/session/password。",
    ),
    "only_admin": Text(
        "Only an administrator of the platform may do this ({scope}).", "只有平台管理员可以执行此操作（{scope}）。",
        "Ask one of them.", "请联系平台管理员。",
    ),
    "only_workspace_admin": Text(
        "Only an administrator of the workspace may do this ({scope}).", "只有工作空间管理员可以执行此操作（{scope}）。",
        "Ask one of them.", "请联系工作空间管理员。",
    ),
    "only_member": Text(
        "Only a member of the workspace may do this ({scope}).", "只有工作空间成员可以执行此操作（{scope}）。",
        "Ask one of them.", "请联系工作空间成员。",
    ),
    "token_scope": Text(
        "This token is not for {scope!r}.", "该令牌没有 {scope} 权限。",
        "Use a token with that scope, or sign in with a password.", "请使用带有该权限的令牌，或用密码登录。",
    ),
    # -- what is in the way
    "stale": Text(
        "The {what} {name!r} has version {version} by now.", "{what} {name} 已更新到版本 {version}。",
        "Load it again.", "请重新加载。",
    ),
    "nothing_here": Text(
        "There is nothing at this path.", "此路径下没有内容。",
        "See /api/v1/openapi.json for the paths there are.", "可用路径见 /api/v1/openapi.json。",
    ),
    "wrong_method": Text(
        "This path does not take that method.", "此路径不支持该方法。",
        "See /api/v1/openapi.json for the methods of this path.", "此路径支持的方法见 /api/v1/openapi.json。",
    ),
    # -- searching logs
    "expression_repeats_too_much": Text(
        "The expression {expression} repeats too much.", "表达式 {expression} 的重复次数过多。",
        "Repeat less than a thousand times in all, or use * and +.", "总重复次数须少于一千，或改用 * 和 +。",
    ),
    "expression_looks_around": Text(
        "{part} looks around, and expressions here cannot.", "{part} 是环视断言，这里的表达式不支持。",
        "Search for what the line itself holds; leave the condition out.", "请直接搜索该行包含的内容，去掉该条件。",
    ),
    "expression_refers_back": Text(
        "{part} refers back to a group, and expressions here cannot.", "{part} 是反向引用，这里的表达式不支持。",
        "Write out what is repeated.", "请把重复的内容写全。",
    ),
    "expression_invalid": Text(
        "{expression} is no expression: {why}.", "{expression} 不是有效的表达式：{why}。",
        "Write an RE2 expression, or search for a plain word.", "请填写 RE2 表达式，或直接搜索普通词语。",
    ),
}  # fmt: skip
