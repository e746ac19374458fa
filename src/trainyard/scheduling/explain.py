"""Turns reasons into sentences in English and Chinese. diagnosis.py finds the reason of a workload.

Each code has one sentence about what holds the workload and one about what would let it start.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from types import MappingProxyType

from trainyard.lib.units import format_duration
from trainyard.scheduling.model import Wait
from trainyard.scheduling.reasons import Code, Figure, Reason

Figures = Mapping[str, Figure]

EN = "en"
ZH = "zh"
LANGUAGES = (EN, ZH)

# code → language → what holds it, what would help. Names in braces are figures, rendered by `_words`.
SENTENCES: Mapping[Code, Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        Code.SELF_QUOTA: {
            EN: ("The workspace {subject} has {used} of its {limit} {resource} in use; this needs {wanted} more.",
                 "It starts when {missing} {resource} of the workspace come back, or its quota is raised."),
            ZH: ("工作空间 {subject} 的 {resource} 已用 {used}，上限 {limit}；本作业还需要 {wanted}。",
                 "该工作空间释放 {missing} {resource} 或提高配额后即可启动。"),
        },
        Code.ANCESTOR_QUOTA: {
            EN: ("{subject} above the workspace has {used} of its {limit} {resource} in use or kept for others; this needs {wanted} more.",
                 "It starts when {missing} {resource} come back there, or its quota is raised."),
            ZH: ("上级配额 {subject} 的 {resource} 已用或已为他人保留 {used}，上限 {limit}；本作业还需要 {wanted}。",
                 "上级配额释放 {missing} {resource} 或提高上限后即可启动。"),
        },
        Code.USER_LIMIT: {
            EN: ("{subject} holds {used} {resource} of the {limit} that one user may have here; this needs {wanted} more.",
                 "It starts when {missing} {resource} of the same user come back."),
            ZH: ("用户 {subject} 已占用 {used} {resource}，单用户上限 {limit}；本作业还需要 {wanted}。",
                 "该用户释放 {missing} {resource} 后即可启动。"),
        },
        Code.STRATEGY: {
            EN: ("The queue works by {strategy}, and {subject} ahead of it cannot start yet.",
                 "It is looked at when {subject} has started, or has been cancelled."),
            ZH: ("队列策略为 {strategy}，排在前面的 {subject} 尚不能启动。", "{subject} 启动或取消后会轮到它。"),
        },
        Code.RESERVATION: {
            EN: ("There is room, but it would delay {subject}, which is to start {start_in}.",
                 "With a time limit of at most {window} it can start now."),
            ZH: ("有空闲资源，但会推迟 {subject}（预计{start_in}启动）。", "把最长运行时间设为不超过 {window} 即可立即启动。"),
        },
        Code.NODE_FIT: {
            EN: ("No node has room for one replica of {subject}{shape}: {shortages}.", "{largest_text}"),
            ZH: ("没有节点能放下 {subject} 的一个副本{shape}：{shortages}。", "{largest_text}"),
        },
        Code.GANG: {
            EN: ("{room} of {replicas} replicas of {subject}{shape} have room now, and all must start together: {shortages}.",
                 "{largest_text}"),
            ZH: ("{subject} 的 {replicas} 个副本{shape}中目前只能放下 {room} 个，必须同时启动：{shortages}。", "{largest_text}"),
        },
        Code.TOPOLOGY: {
            EN: ("There is room for {replicas} replicas of {subject}{shape}, but not under one switch or in whole rings.",
                 "It starts when enough devices that are linked to each other are free; do without the rule if it may run apart."),
            ZH: ("{subject} 的 {replicas} 个副本{shape}有空位，但不在同一交换机或同一环内。",
                 "等到互联的设备空闲即可启动；若允许分散运行，可去掉该约束。"),
        },
        Code.NEVER_FITS: {
            EN: ("No set of nodes of this cluster could ever hold {replicas} replicas of {subject}{shape}.",
                 "Ask for less, or for other nodes; a replica never spans two nodes."),
            ZH: ("本集群的节点即使全部空闲也放不下 {subject} 的 {replicas} 个副本{shape}。", "请减少申请或更换节点要求；一个副本不能跨节点。"),
        },
        Code.PREEMPTING: {
            EN: ("{victims} running workloads were told to make room for it; the last leaves {until_in}.", "It starts when they have gone."),
            ZH: ("已通知 {victims} 个运行中的作业让出资源，最晚{until_in}离开。", "它们离开后即启动。"),
        },
        Code.ACQUIRING: {
            EN: ("It waits for new nodes{of_pool}.", "It starts when they have joined."),
            ZH: ("正在等待新节点{of_pool}加入。", "节点加入后即启动。"),
        },
        Code.RECLAIMED: {
            EN: ("It ran on resources that its workspace had borrowed; {workspace} needs its own back for {subject}.",
                 "It is in the queue again, with its age."),
            ZH: ("它使用的是借用资源，{workspace} 为 {subject} 收回其保障配额。", "它已带着原有等待时间重新排队。"),
        },
        Code.PREEMPTED: {
            EN: ("{subject} of the same workspace has priority {priority}, this has {own_priority}.", "It is in the queue again, with its age."),
            ZH: ("同一工作空间的 {subject} 优先级为 {priority}，高于本作业的 {own_priority}。", "它已带着原有等待时间重新排队。"),
        },
        Code.YIELDED: {
            EN: ("It is preemptible, and {subject} of {workspace} needs the room.", "It is in the queue again, with its age."),
            ZH: ("它是可抢占作业，{workspace} 的 {subject} 需要资源。", "它已带着原有等待时间重新排队。"),
        },
    }
)  # fmt: skip

TOO_LARGE: Mapping[str, str] = MappingProxyType(
    {
        EN: "It is larger than the limit itself: ask for at most {limit} {resource}, or have the limit raised.",
        ZH: "申请量超过上限本身：请将 {resource} 降到 {limit} 以内，或提高上限。",
    }
)

_SHORT: Mapping[str, Mapping[str, str]] = {
    "short_of_devices": {EN: "{n} nodes are short of devices", ZH: "{n} 个节点设备不足"},
    "short_of_ring": {EN: "{n} nodes have no ring with enough devices", ZH: "{n} 个节点没有足够空闲的环"},
    "short_of_cpu": {
        EN: "{n} nodes have the devices but are short of CPU",
        ZH: "{n} 个节点设备够但 CPU 不足",
    },
    "short_of_memory": {
        EN: "{n} nodes have the devices but are short of memory",
        ZH: "{n} 个节点设备够但内存不足",
    },
    "short_of_shared_memory": {EN: "{n} nodes are short of shared memory", ZH: "{n} 个节点共享内存不足"},
    "not_ready": {EN: "{n} nodes take no work", ZH: "{n} 个节点不可调度"},
}


def explain(reason: Reason, *, now: float = 0.0, language: str = EN) -> str:
    """What holds it, as a sentence."""
    told = _fill(SENTENCES[reason.code][language][0], reason, now, language)
    absent = reason.figures.get("absent")
    if not absent:
        return told
    return told + (
        f" It names nodes that are not there: {absent}."
        if language == EN
        else f"指定的节点不存在：{absent}。"
    )


def remedy(reason: Reason, *, now: float = 0.0, language: str = EN) -> str:
    """What would let it start, as a sentence."""
    wanted, limit = reason.figures.get("wanted"), reason.figures.get("limit")
    if wanted is not None and limit is not None and float(wanted) > float(limit):
        return _fill(TOO_LARGE[language], reason, now, language)
    return _fill(SENTENCES[reason.code][language][1], reason, now, language)


def explain_wait(wait: Wait, *, now: float = 0.0, language: str = EN) -> str:
    """All that a person who waits wants to know: position, reason, remedy, estimated start."""
    start = ""
    if wait.start is not None:
        when = _in(wait.start - now, language)
        start = f" Estimated start: {when}." if language == EN else f"预计{when}启动。"
    position = f"Position {wait.position}. " if language == EN else f"排队第 {wait.position} 位。"
    space = " " if language == EN else ""
    return (
        position
        + explain(wait.reason, now=now, language=language)
        + space
        + remedy(wait.reason, now=now, language=language)
        + start
    )


def _fill(template: str, reason: Reason, now: float, language: str) -> str:
    return template.format_map(_words(reason, now, language))


def _words(reason: Reason, now: float, language: str) -> dict[str, str]:
    figures = reason.figures
    words = {name: _amount(reason.resource, value) for name, value in figures.items()}
    words["subject"] = reason.subject or ("somebody" if language == EN else "其他作业")
    words["resource"] = _resource(reason.resource, language)
    for name in ("start", "until"):
        if name in figures:
            words[f"{name}_in"] = _in(float(figures[name]) - now, language)
    if "window" in figures:
        words["window"] = format_duration(timedelta(seconds=float(figures["window"])))
    if {"used", "wanted", "limit"} <= figures.keys():
        missing = int(figures["used"]) + int(figures["wanted"]) - int(figures["limit"])
        words["missing"] = _amount(reason.resource, missing)
    if "replicas" in figures:
        words.update(_shape_words(reason, language))
    return words


def _shape_words(reason: Reason, language: str) -> dict[str, str]:
    figures = reason.figures
    devices = int(figures.get("devices", 0))
    english = language == EN
    shape = ""
    if devices:
        shape = (
            f" ({devices} x {reason.resource or 'device'} each)"
            if english
            else f"（每个 {devices} x {reason.resource or '设备'}）"
        )
    short = [text[language].format(n=figures[name]) for name, text in _SHORT.items() if figures.get(name)]
    none = "the nodes it may use are full" if english else "可用节点已满"
    pool = f" of pool {reason.subject}" if english else f"（节点池 {reason.subject}）"
    return {
        "replicas": str(figures["replicas"]),
        "room": str(figures.get("room", 0)),
        "shape": shape,
        "shortages": ("; " if english else "；").join(short) or none,
        "largest_text": _largest(figures, devices, language),
        "of_pool": pool if reason.subject else "",
    }


def _largest(figures: Figures, devices: int, language: str) -> str:
    """What would fit now, and else what to wait for."""
    room, largest = int(figures.get("room", 0)), int(figures.get("largest", 0))
    english = language == EN
    if room:
        return (
            f"{room} replicas of this shape would fit now."
            if english
            else f"现在可容纳 {room} 个同样的副本。"
        )
    if devices and largest:
        if english:
            return f"The largest replica that fits now has {largest} devices."
        return f"目前单个副本最多可用 {largest} 个设备。"
    return "It starts when enough of a node is free." if english else "节点空出足够资源后即可启动。"


def _resource(name: str, language: str) -> str:
    names = {"cpu": ("cores", "核"), "memory": ("GiB of memory", "GiB 内存")}
    return names[name][0 if language == EN else 1] if name in names else name


def _amount(resource: str, value: Figure) -> str:
    """Cores and GiB for people; counts as they are."""
    if isinstance(value, str):
        return value
    divide: Callable[[float], float] = {
        "cpu": lambda amount: amount / 1000,
        "memory": lambda amount: amount / 1024,
    }.get(resource, lambda amount: amount)
    return f"{divide(value):.6g}"


def _in(seconds: float, language: str) -> str:
    if seconds == float("inf"):
        return "at a time not in sight" if language == EN else "在未知时间"
    if seconds < 1:
        return "any moment" if language == EN else "即刻"
    span = format_duration(timedelta(seconds=seconds))
    return f"in {span}" if language == EN else f" {span} 后"
