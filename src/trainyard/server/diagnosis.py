"""Why a program failed, as far as its exit code and its log tell: pure, in English and Chinese.

Patterns stand in the order in which they are believed: memory that ran out is a cause, a lost connection to who lacked it is
not; what broke the network or the image is one, the traceback that comes of it is not. Where a job waits is scheduling's.
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
    132: ("it used an instruction that this processor does not have (SIGILL)", "使用了处理器不支持的指令（SIGILL）"),
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
        "device_memory", "memory", r"(?i)cuda out of memory|outofmemoryerror|CUDA_ERROR_OUT_OF_MEMORY|"
        r"npu out of memory|cublas_status_alloc_failed|OOM when allocating tensor",
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
        "disk_full", "resources", r"No space left on device|Disk quota exceeded",
        ("a disk is full", "磁盘已满"), ("Clear it, or write elsewhere.", "清理磁盘或写到其他位置。"),
    ),
    _pattern(
        "nccl_timeout", "network", r"(?i)nccl.*time[d ]*\s?-?out|watchdog caught collective operation timeout",
        ("NCCL waited too long for other processes", "NCCL 等待其他进程超时"),
        ("Look at the task that ended first; set NCCL_DEBUG=INFO to see the interface that is used.",
         "查看最先结束的任务；设置 NCCL_DEBUG=INFO 查看所用网卡。"),
    ),
    _pattern(
        "download_timeout", "network", r"ReadTimeoutError|ConnectTimeoutError|Temporary failure in name resolution|"
        r"Could not resolve host|Network is unreachable|Max retries exceeded with url|CERTIFICATE_VERIFY_FAILED",
        ("something was to be fetched from the network and did not come", "从网络获取数据超时或失败"),
        ("Try again, or put what it needs on a storage.", "重试，或将所需文件放到存储中。"),
    ),
    _pattern(
        "image_pull", "image", r"ErrImagePull|ImagePullBackOff|manifest unknown|(?i:pull access denied)|"
        r"unauthorized: authentication required",
        ("the image could not be fetched", "镜像拉取失败"),
        ("Check the image's name and the sign-in for its registry.", "检查镜像名称与镜像仓库登录信息。"),
    ),
    _pattern(
        "module_missing", "runtime", r"\bNo module named\b|ImportError: cannot import name",
        ("a Python package is missing", "缺少 Python 包"),
        ("Name it in `requirements`, or use an image that has it.", "写入 requirements，或使用包含它的镜像。"),
    ),
    _pattern(
        "requirement_missing", "runtime", r"No matching distribution found|Could not find a version that satisfies",
        ("a Python package of the requirements cannot be had", "requirements 中的 Python 包找不到"),
        ("Mend its name and version, or let the nodes reach a package index that has it.", "修改包名与版本，或让节点可访问包含它的包索引。"),
    ),
    _pattern(
        "library_missing", "runtime", r"cannot open shared object file|GLIBC(?:XX)?_[\d.]+' not found",
        ("a system library is missing, or is too old", "缺少系统库或版本过旧"),
        ("Use an image that has it: of CUDA, CANN and the framework, versions belong together.",
         "使用包含它的镜像：CUDA、CANN 与框架的版本需要匹配。"),
    ),
    _pattern(
        "command_missing", "runtime", r"(?:: |^)[^\s:]+: (?:command )?not found$",
        ("a command was not found", "找不到命令"),
        ("Check its spelling and PATH, or use an image that has it.", "检查拼写与 PATH，或使用包含它的镜像。"),
    ),
    _pattern(
        "no_device", "configuration", r"No CUDA GPUs are available|not compiled with CUDA|Found no NVIDIA driver|"
        r"invalid device ordinal|no CUDA-capable device|CUDA-capable device\(s\) is/are busy",
        ("the program wants a device that it has not got", "程序需要的加速卡不可用"),
        ("Ask for as many devices as it uses, and take a framework that is built for them.", "申请足够的加速卡，并使用支持它的框架版本。"),
    ),
    _pattern(
        "device_assert", "runtime", r"device-side assert triggered|an illegal memory access was encountered",
        ("a device was given wrong data, mostly an index beyond its table", "加速卡收到错误数据，多为索引越界"),
        ("Set CUDA_LAUNCH_BLOCKING=1 to see the line; compare labels and sizes.", "设置 CUDA_LAUNCH_BLOCKING=1 定位；检查标签与尺寸。"),
    ),
    _pattern(
        "hccl", "network", r"HCCL error|\bEI\d{4}\b|HCCL.*(?i:time[sd]? ?out|socket)",
        ("NPUs did not reach each other (HCCL)", "NPU 之间无法通信（HCCL）"),
        ("Look at the task that ended first; compare the rank table with /etc/hccn.conf of the nodes.",
         "查看最先结束的任务；核对 rank table 与节点的 /etc/hccn.conf。"),
    ),
    _pattern(
        "device_broken", "system", r"\bXid\b|(?i:uncorrectable ECC)|GPU has fallen off the bus|"
        r"no kernel image is available|driver version is insufficient|(?i:driver/library version mismatch)|\bE[EZ]9999\b",
        ("a device or its driver is at fault", "加速卡或驱动故障"),
        ("Try again: another node is taken if there is one. Tell the administrator.", "重试将避开该节点；请告知管理员。"),
    ),
    _pattern(
        "nccl", "network", r"NCCL error|nccl(?:System|Remote|Internal|UnhandledCuda)Error",
        ("processes could not talk to each other (NCCL)", "进程之间无法通信（NCCL）"),
        ("Look at the task that ended first; set NCCL_DEBUG=INFO to see the interface that is used.",
         "查看最先结束的任务；设置 NCCL_DEBUG=INFO 查看所用网卡。"),
    ),
    _pattern(
        "rendezvous", "network", r"Rendezvous(?:Timeout|Connection|Closed)Error|DistStoreError|"
        r"(?i:timed out (?:after .{1,40})?waiting for clients)",
        ("its processes did not all come together", "进程未能全部会合"),
        ("Look at the logs of the other tasks: one has ended, or never started.", "查看其他任务的日志：有任务已结束或未启动。"),
    ),
    _pattern(
        "port_taken", "configuration", r"(?i)address already in use",
        ("a port that it wants is taken", "端口被占用"),
        ("Take the port of MASTER_PORT, or let the system choose one.", "使用 MASTER_PORT 给出的端口，或由系统选择。"),
    ),
    _pattern(
        "mpi_start", "network", r"unable to reliably start one or more daemons|ORTE daemon has unexpectedly failed|"
        r"Host key verification failed",
        ("mpirun did not reach all tasks", "mpirun 未能连接所有任务"),
        ("Look whether all tasks run, and whether the image has an ssh client.", "确认所有任务都在运行，且镜像包含 ssh 客户端。"),
    ),
    _pattern(
        "peer_unreachable", "network", r"(?i)connection refused|no route to host|connection (?:reset|closed) by peer",
        ("another task, or a service, did not answer", "其他任务或服务未响应"),
        ("Look at the logs of the other tasks: one that ended earlier is the cause.", "查看其他任务的日志：更早结束的任务是原因。"),
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
        "open_files", "resources", r"Too many open files",
        ("too many files were open at once", "同时打开的文件过多"),
        ("Use fewer workers of the data loader, or raise `ulimit -n` in the command.", "减少 DataLoader worker，或在命令中提高 ulimit -n。"),
    ),
    _pattern(
        "resources", "resources", r"ResourceAllocateFailed|\bEvicted\b",
        ("its resources were taken away", "资源被回收"), ("Try again.", "重试。"),
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
        "segfault", "runtime", r"(?i)segmentation fault",
        ("the program touched memory that is not its own", "段错误"),
        ("Look whether its libraries belong together; run it with PYTHONFAULTHANDLER=1 to see where.",
         "检查各库版本是否匹配；设置 PYTHONFAULTHANDLER=1 定位。"),
    ),
    _pattern(
        "exception", "runtime", r"^(?:[A-Za-z_][\w.]*(?:Error|Exception|Interrupt))(?::|$)",
        ("the program ended with an exception", "程序抛出异常"), ("Read the traceback above that line.", "查看该行之前的堆栈。"),
    ),
    _pattern(
        "peer_lost", "network", r"(?i)broken pipe",
        ("another program that it talked to had ended", "与其通信的程序已结束"),
        ("Look at what ended first, here or in another task.", "查看最先结束的程序或任务。"),
    ),
)  # fmt: skip
# Colours, and what launchers put before each line: "[rank0]: ", "[1,0]<stderr>:".
_DRESS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|^(?:\[(?:rank\d+|\d+,\d+)\](?:<std(?:err|out)>)?:\s?)")
LONGEST_LINE = 2000  # of a longer one, nobody reads more


def diagnose(
    exit_code: int | None, logs: Iterable[tuple[str, Sequence[str]]], *, chinese: bool = False
) -> Diagnosis:
    """What is known: of the exit code, and of the first line of the most telling kind in the logs of (task, lines)."""
    which = int(chinese)
    meaning = _meaning(exit_code, which)
    best: tuple[int, str, str] | None = None
    for task, lines in logs:
        for line in lines:
            text = _DRESS.sub("", line[:LONGEST_LINE])
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
