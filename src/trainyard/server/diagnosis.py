"""Why a program failed, as far as its exit code and its log tell: pure, in English and Chinese.

Patterns stand in the order in which they are believed: what broke the network or the image is a cause, the traceback
that comes of it is not. Where a job waits and why is scheduling's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from trainyard.client.shapes import Diagnosis

Words = tuple[str, str]  # English, Chinese

EXIT_CODES: Mapping[int, Words] = {
    1: ("the program itself says that it has failed", "程序自身报告失败"),
    2: ("the shell did not understand the command, or the program its arguments", "命令或参数用法错误"),
    126: ("the command was found, but cannot be run", "命令存在但不可执行"),
    127: ("the command was not found", "找不到命令"),
    130: ("it was interrupted (SIGINT)", "被中断（SIGINT）"),
    134: ("it gave up by itself (SIGABRT)", "程序中止（SIGABRT）"),
    135: ("it touched memory that is not there (SIGBUS), mostly because /dev/shm is full", "总线错误（SIGBUS），多为 /dev/shm 已满"),
    136: ("it divided by zero or the like (SIGFPE)", "算术错误（SIGFPE）"),
    137: ("it was killed (SIGKILL), mostly because memory ran out", "被强制结束（SIGKILL），多为内存不足"),
    138: ("it asked to be tried again (SIGUSR1)", "程序请求重试（SIGUSR1）"),
    139: ("it touched memory that is not its own (SIGSEGV)", "段错误（SIGSEGV）"),
    143: ("it was asked to end (SIGTERM): stopped, preempted, or at its time limit", "被要求结束（SIGTERM）：停止、抢占或超时"),
    204: ("its tasks did not reach each other in time", "各任务未能在限时内互相连通"),
    245: ("a collective operation of NCCL took too long", "NCCL 集合通信超时"),
    255: ("an ssh connection was lost, as mpirun needs one to every task", "ssh 连接丢失（mpirun 需要连接每个任务）"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Pattern:
    """What a line looks like that tells a cause."""

    code: str
    kind: str  # network, image, memory, runtime, resources, configuration, system
    line: re.Pattern[str]
    meaning: Words
    remedy: Words


def _pattern(code: str, kind: str, line: str, meaning: Words, remedy: Words) -> Pattern:
    return Pattern(code, kind, re.compile(line), meaning, remedy)


PATTERNS: Sequence[Pattern] = (
    _pattern(
        "nccl_timeout", "network", r"(?i)nccl.*time[d ]*\s?-?out|watchdog caught collective operation timeout",
        ("NCCL waited too long for other processes", "NCCL 等待其他进程超时"),
        ("Look at the task that ended first; set NCCL_DEBUG=INFO to see the interface that is used.",
         "查看最先结束的任务；设置 NCCL_DEBUG=INFO 查看所用网卡。"),
    ),
    _pattern(
        "download_timeout", "network", r"ReadTimeoutError|ConnectTimeoutError|Temporary failure in name resolution|"
        r"Could not resolve host|Network is unreachable",
        ("something was to be fetched from the network and did not come", "从网络获取数据超时或失败"),
        ("Try again, or put what it needs on a storage.", "重试，或将所需文件放到存储中。"),
    ),
    _pattern(
        "peer_unreachable", "network", r"(?i)connection refused|no route to host|connection reset by peer|broken pipe",
        ("another task, or a service, did not answer", "其他任务或服务未响应"),
        ("Look at the logs of the other tasks: one that ended earlier is the cause.", "查看其他任务的日志：更早结束的任务是原因。"),
    ),
    _pattern(
        "image_pull", "image", r"ErrImagePull|ImagePullBackOff|manifest unknown|(?i:pull access denied)|"
        r"unauthorized: authentication required",
        ("the image could not be fetched", "镜像拉取失败"),
        ("Check the image's name and the sign-in for its registry.", "检查镜像名称与镜像仓库登录信息。"),
    ),
    _pattern(
        "device_memory", "memory", r"(?i)cuda out of memory|outofmemoryerror|CUDA_ERROR_OUT_OF_MEMORY|"
        r"npu out of memory|cublas_status_alloc_failed",
        ("the memory of a device was too small", "显存不足"),
        ("Take a smaller batch, or more devices.", "减小 batch 或增加加速卡。"),
    ),
    _pattern(
        "shared_memory", "memory", r"(?i)insufficient shared memory|unable to (?:open|write to) shared memory|\bbus error\b|"
        r"DataLoader worker .* is killed by signal: Bus error",
        ("/dev/shm was too small", "共享内存 /dev/shm 不足"),
        ("Ask for more shared memory, or use fewer workers of the data loader.", "增大共享内存或减少 DataLoader worker。"),
    ),
    _pattern(
        "memory", "memory", r"(?i)\bout of memory\b|oom-?kill|\bMemoryError\b|std::bad_alloc|cannot allocate memory",
        ("memory ran out", "内存不足"), ("Ask for more memory.", "申请更多内存。"),
    ),
    _pattern(
        "module_missing", "runtime", r"ModuleNotFoundError: No module named|ImportError: cannot import name",
        ("a Python package is missing", "缺少 Python 包"),
        ("Name it in `requirements`, or use an image that has it.", "写入 requirements，或使用包含它的镜像。"),
    ),
    _pattern(
        "command_missing", "runtime", r"(?:: |^)[^\s:]+: (?:command )?not found$",
        ("a command was not found", "找不到命令"),
        ("Check its spelling and PATH, or use an image that has it.", "检查拼写与 PATH，或使用包含它的镜像。"),
    ),
    _pattern(
        "file_missing", "runtime", r"FileNotFoundError|No such file or directory",
        ("a file was not found", "找不到文件"),
        ("Give the whole path; look whether its storage is mounted.", "使用绝对路径；确认存储已挂载。"),
    ),
    _pattern(
        "permission", "runtime", r"PermissionError|Permission denied|Read-only file system",
        ("a file may not be read or written", "没有读写权限"),
        ("Write below your own folders, or have the storage mounted for writing.", "写入自己的目录，或以可写方式挂载存储。"),
    ),
    _pattern(
        "disk_full", "resources", r"No space left on device|Disk quota exceeded",
        ("a disk is full", "磁盘已满"), ("Clear it, or write elsewhere.", "清理磁盘或写到其他位置。"),
    ),
    _pattern(
        "resources", "resources", r"ResourceAllocateFailed|\bEvicted\b",
        ("its resources were taken away", "资源被回收"), ("Try again.", "重试。"),
    ),
    _pattern(
        "device_broken", "system", r"(?i)\bXid\b|uncorrectable ECC|GPU has fallen off the bus|"
        r"no kernel image is available|driver version is insufficient|HCCL.*error|EI\d{4}",
        ("a device or its driver is at fault", "加速卡或驱动故障"),
        ("Try again: another node is taken if there is one. Tell the administrator.", "重试将避开该节点；请告知管理员。"),
    ),
    _pattern(
        "not_a_number", "configuration", r"(?i)loss (?:is|became) nan|nan loss",
        ("the loss became no number", "loss 变为 NaN"), ("Take a smaller learning rate.", "减小学习率。"),
    ),
    _pattern(
        "arguments", "configuration", r"error: (?:unrecognized arguments|the following arguments are required|argument )",
        ("the program did not take its arguments", "程序参数错误"), ("Mend the command.", "修改命令。"),
    ),
    _pattern(
        "exception", "runtime", r"^(?:[A-Za-z_][\w.]*(?:Error|Exception|Interrupt))(?::|$)",
        ("the program ended with an exception", "程序抛出异常"), ("Read the traceback above that line.", "查看该行之前的堆栈。"),
    ),
)  # fmt: skip


def diagnose(
    exit_code: int | None, logs: Iterable[tuple[str, Sequence[str]]], *, chinese: bool = False
) -> Diagnosis:
    """What is known: of the exit code, and of the first line of the most telling kind in the logs of (task, lines)."""
    which = int(chinese)
    meaning = _meaning(exit_code, which)
    best: tuple[int, str, str] | None = None
    for task, lines in logs:
        for text in lines:
            for rank, pattern in enumerate(PATTERNS if best is None else PATTERNS[: best[0]]):
                if pattern.line.search(text):
                    best = (rank, task, text.strip())
                    break
    if best is None:
        return Diagnosis(exit_code=exit_code, meaning=meaning)
    found = PATTERNS[best[0]]
    return Diagnosis(
        exit_code=exit_code,
        meaning=meaning,
        code=found.code,
        kind=found.kind,
        task=best[1],
        line=best[2][:500],
        cause=found.meaning[which],
        remedy=found.remedy[which],
    )


def _meaning(exit_code: int | None, which: int) -> str:
    if exit_code is None or exit_code == 0:
        return ""
    known = EXIT_CODES.get(exit_code)
    if known is not None:
        return known[which]
    if 128 < exit_code < 128 + 65:
        return (f"it was ended by signal {exit_code - 128}", f"被信号 {exit_code - 128} 结束")[which]
    return EXIT_CODES[1][which]
