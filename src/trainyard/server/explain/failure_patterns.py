"""What exit codes and lines of logs mean, in English and Chinese: data alone. How they are looked for is diagnosis.py's.

Patterns stand in the order in which they are believed: memory that ran out is a cause, a lost connection to who lacked it is
not; what broke the network or the image is one, the traceback that comes of it is not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Words = tuple[str, str]  # English, Chinese

# How the last line of a traceback begins; and what a launcher raises because one of its processes has failed.
_EXCEPTION = r"(?:[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Timeout)|[a-z_][\w.]*\.gaierror)(?::|$)"
_FOLLOWS = "ChildFailedError|CalledProcessError|ProcessExitedException|ProcessRaisedException"
RAISED = re.compile(_EXCEPTION)

EXIT_CODES: Mapping[int, Words] = {
    1: ("the program itself says that it has failed", "程序自身报告失败"),
    2: ("the shell did not understand the command, or the program its arguments", "命令或参数用法错误"),
    124: ("the command `timeout` ended it", "被 timeout 命令结束"),
    125: ("a container could not be started", "容器无法启动"),
    126: ("the command was found, but cannot be run", "命令存在但不可执行"),
    127: ("the command was not found", "找不到命令"),
    128: ("git, or a program like it, gave up", "git 或类似程序报错退出"),
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
    weak: bool = (
        False  # programs also say so and go on: where they raise an exception besides, that is believed
    )


def _pattern(
    code: str, kind: str, line: str, meaning: Words, remedy: Words, *, weak: bool = False
) -> Pattern:
    return Pattern(code, kind, re.compile(line), meaning, remedy, weak)


PATTERNS: Sequence[Pattern] = (
    _pattern(
        "storage_refused", "configuration", r"^(?:trainyard: )?(?:a storage cannot be shown |the storage at /|"
        r"the folder .* of the storage at /|the node has no .* for the storage at /|/\S.* inside of the storage at /)",
        ("a storage could not be shown to the task", "存储无法挂载到任务"),
        ("Look at the mounts of the job and at `trainyard storages`, or ask the administrator.",
         "检查任务的 mounts 与 `trainyard storages`，或询问管理员。"),
    ),
    _pattern(
        "image_pull", "image", r"^(?:trainyard: )?[Tt]he image \S+ cannot be fetched|ErrImagePull|ImagePullBackOff|manifest unknown|(?i:pull access denied)|"
        r"unauthorized: (?:authentication required|access to the requested resource)|requested access to the resource is denied",
        ("the image could not be fetched", "镜像拉取失败"),
        ("Check the image's name and the sign-in for its registry.", "检查镜像名称与镜像仓库登录信息。"),
    ),
    _pattern(
        "device_memory", "memory", r"(?i)cuda out of memory|torch\.(?:\w+\.)?outofmemoryerror|CUDA_ERROR_OUT_OF_MEMORY|"
        r"npu out of memory|cublas_status_alloc_failed|OOM when allocating tensor|"
        r"device memory (?:pool )?malloc failed|_bfc\) ran out of memory(?!.*not a failure)",
        ("the memory of a device was too small", "显存不足"),
        ("Take a smaller batch, or more devices.", "减小 batch 或增加加速卡。"),
    ),
    _pattern(
        "shared_memory", "memory", r"(?i)insufficient shared memory|unable to (?:open|write to) shared memory|\bbus error\b|"
        r"DataLoader worker .* is killed by signal: Bus error|failed to extend /dev/shm|"
        r"No space left on device.*/dev/shm|/dev/shm.*No space left on device",
        ("/dev/shm was too small", "共享内存 /dev/shm 不足"),
        ("Ask for more shared memory, or use fewer workers of the data loader.", "增大共享内存或减少 DataLoader worker。"),
    ),
    _pattern(
        "memory", "memory", r"(?i)(?<!may have run )\bout of memory\b(?!.*not a failure)|oom-?kill|\bMemoryError\b|std::bad_alloc|"
        r"cannot allocate memory|is killed by signal: Killed|java\.lang\.OutOfMemoryError",
        ("memory ran out", "内存不足"), ("Ask for more memory.", "申请更多内存。"),
    ),
    _pattern(
        "disk_limit", "resources", r"^disk: (?:it used more than its .* of the node's disk|the node's disk was full)",
        ("it used too much of its node's disk", "占用节点磁盘过多"),
        ("Write large files to a storage, or ask for more with --disk.", "将大文件写入存储，或用 --disk 申请更多磁盘。"),
    ),
    _pattern(
        "disk_full", "resources", r"No space left on device|Disk quota exceeded|设备上没有空间",
        ("a disk is full", "磁盘已满"), ("Clear it, or write elsewhere.", "清理磁盘或写到其他位置。"),
    ),
    _pattern(
        "nccl_timeout", "network", r"(?i)watchdog caught collective operation timeout|"
        r"^(?!.*(?:nccl info|nccl_\w*timeout|timeout (?:is )?(?:set|of)|timeout ?[:=])).*nccl.*time[d ]*\s?-?out",
        ("NCCL waited too long for other processes", "NCCL 等待其他进程超时"),
        ("Look at the task that ended first; set NCCL_DEBUG=INFO to see the interface that is used.",
         "查看最先结束的任务；设置 NCCL_DEBUG=INFO 查看所用网卡。"),
    ),
    _pattern(
        "name_unknown", "network", r"Could not resolve hostname|Name or service not known|nodename nor servname",
        ("the name of a host is not known", "主机名无法解析"),
        ("Check its spelling; other tasks have the names that /etc/hosts shows.", "检查拼写；其他任务的主机名见 /etc/hosts。"),
    ),
    _pattern(
        "git", "configuration", r"^fatal: (?:could not read (?:Username|Password)|repository .* (?:not found|does not exist)|"
        r"Authentication failed|Remote branch .* not found|couldn't find remote ref|reference is not a tree)|"
        r"^remote: (?:Repository not found|HTTP Basic: Access denied)|Permission denied \(publickey",
        ("a repository could not be had", "无法获取代码仓库"),
        ("Check its address, branch and commit, and the sign-in for it.", "检查仓库地址、分支、提交与登录信息。"),
    ),
    _pattern(
        "download_timeout", "network", r"ReadTimeoutError|ConnectTimeoutError|Temporary failure in name resolution|"
        r"Could not resolve host|Network is unreachable|Max retries exceeded with url|CERTIFICATE_VERIFY_FAILED|"
        r"We couldn't connect to 'https?:|CondaHTTPError|^fatal: unable to access",
        ("something was to be fetched from the network and did not come", "从网络获取数据超时或失败"),
        ("Try again, or put what it needs on a storage.", "重试，或将所需文件放到存储中。"),
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
        "requirement_failed", "runtime", r"ResolutionImpossible|have conflicting dependencies|Failed building wheel|"
        r"error: subprocess-exited-with-error|externally-managed-environment",
        ("pip could not install a package", "pip 安装失败"),
        ("Read the lines of pip above it; name versions that go together, or use an image that has the package.",
         "查看该行之前 pip 的输出；指定互相兼容的版本，或使用包含它的镜像。"),
    ),
    _pattern(
        "library_missing", "runtime", r"cannot open shared object file|GLIBC(?:XX)?_[\d.]+' not found|undefined symbol:",
        ("a system library is missing, or is too old", "缺少系统库或版本过旧"),
        ("Use an image that has it: of CUDA, CANN and the framework, versions belong together.",
         "使用包含它的镜像：CUDA、CANN 与框架的版本需要匹配。"),
    ),
    _pattern(
        "line_ends", "runtime", r"\^M: bad interpreter|\$'\\r': command not found|/python3?\\r'?: No such file|"
        r"cannot execute: required file not found",
        ("what runs a script was not found, mostly for the script has the line ends of Windows", "找不到脚本解释器，多因脚本使用了 Windows 换行符"),
        ("Take them out with `sed -i 's/\\r$//' FILE`.", "用 `sed -i 's/\\r$//' 文件` 去掉。"),
    ),
    _pattern(
        "other_processor", "runtime", r"Exec format error|cannot execute binary file",
        ("a program is built for another kind of processor", "程序是为另一种处理器构建的"),
        ("Take one for the processor of the node: x86_64 or aarch64.", "使用与节点处理器（x86_64 或 aarch64）一致的程序。"),
    ),
    _pattern(
        "syntax", "runtime", r"^(?:SyntaxError|IndentationError|TabError): ",
        ("a file is not right Python", "Python 语法错误"),
        ("Mend the line that is shown above it; mind which Python runs it.", "修改该行之前所示的代码；注意 Python 版本。"),
    ),
    _pattern(
        "command_missing", "runtime", r"(?:: |^)[^\s:]+: (?:command )?not found$|未找到命令|unable to find the specified executable file",
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
        "framework_unfit", "configuration", r"no kernel image is available|driver version is insufficient|"
        r"driver on your system is too old",
        ("the framework, the device and its driver do not belong together", "框架、加速卡与驱动版本不匹配"),
        ("Use a framework or an image that is built for this device and the node's driver.", "使用与加速卡及节点驱动匹配的框架或镜像。"),
    ),
    _pattern(
        "device_assert", "runtime", r"device-side assert triggered|an illegal memory access was encountered",
        ("a device was given wrong data, mostly an index beyond its table", "加速卡收到错误数据，多为索引越界"),
        ("Set CUDA_LAUNCH_BLOCKING=1 to see the line; compare labels and sizes.", "设置 CUDA_LAUNCH_BLOCKING=1 定位；检查标签与尺寸。"),
    ),
    _pattern(
        "rank_table", "configuration", r"\bEI0004\b|(?i:rank ?table\S*.*(?:is invalid|check failed|does not exist|not exist))",
        ("the rank table does not fit the devices", "rank table 与设备不符"),
        ("Take the file of RANK_TABLE_FILE as the platform writes it; compare it with /etc/hccn.conf of the nodes.",
         "使用平台写入 RANK_TABLE_FILE 的文件；核对节点的 /etc/hccn.conf。"),
    ),
    _pattern(
        "device_held", "system", r"\bEJ0001\b|Maybe the last training process is running|hdc device id error",
        ("an NPU is still held by processes of an earlier job", "NPU 仍被之前任务的进程占用"),
        ("Try again in two minutes. Tell the administrator if it stays so.", "两分钟后重试；若仍如此请告知管理员。"),
    ),
    _pattern(
        "hccl", "network", r"HCCL error|\bEI0\d{3}\b|HCCL.*(?i:time[sd]? ?out|socket)",
        ("NPUs did not reach each other (HCCL)", "NPU 之间无法通信（HCCL）"),
        ("Look at the task that ended first; compare the rank table with /etc/hccn.conf of the nodes.",
         "查看最先结束的任务；核对 rank table 与节点的 /etc/hccn.conf。"),
    ),
    _pattern(
        "device_broken", "system", r"\bXid\b|(?i:uncorrectable ECC)|GPU has fallen off the bus|"
        r"(?i:driver/library version mismatch)|rtSetDevice\b.*fail|\bE[EZ]9999\b",
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
        r"(?i:timed out (?:after .{1,40})?waiting for clients)|client socket has timed out",
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
        "mpi_slots", "configuration", r"not enough slots available",
        ("mpirun was to start more processes than there are places", "mpirun 的进程数超过可用槽位"),
        ("Start as many as the host file has slots, or ask for more devices.", "使进程数与 hostfile 的 slots 一致，或申请更多加速卡。"),
    ),
    _pattern(
        "mpi_root", "configuration", r"attempt to run as root",
        ("mpirun does not like to run as root", "mpirun 默认不允许以 root 运行"),
        ("Give it --allow-run-as-root.", "加上 --allow-run-as-root。"),
    ),
    _pattern(
        "peer_unreachable", "network", r"(?i)connection refused|no route to host|connection (?:reset|closed) by peer",
        ("another task, or a service, did not answer", "其他任务或服务未响应"),
        ("Look at the logs of the other tasks: one that ended earlier is the cause.", "查看其他任务的日志：更早结束的任务是原因。"),
        weak=True,
    ),
    _pattern(
        "checkpoint", "configuration", r"failed finding central directory|invalid load key|UnpicklingError|"
        r"Error\(s\) in loading state_dict",
        ("a file of weights cannot be used: it is broken, or of another model", "权重文件损坏或与模型不符"),
        ("Take an older one; write new ones under another name first, and rename them when they are whole.",
         "使用更早的权重；保存时先写临时文件，完整后再改名。"),
    ),
    _pattern(
        "storage_broken", "system", r"Stale file handle|Input/output error|Transport endpoint is not connected",
        ("a storage or a disk does not work", "存储或磁盘故障"),
        ("Try again. Tell the administrator, with the path.", "重试；并将路径告知管理员。"),
    ),
    _pattern(
        "file_missing", "runtime", r"FileNotFoundError|No such file or directory|没有那个文件或目录",
        ("a file was not found", "找不到文件"),
        ("Give the whole path; look whether its storage is mounted.", "使用绝对路径；确认存储已挂载。"),
        weak=True,
    ),
    _pattern(
        "permission", "runtime", r"PermissionError|Permission denied|Read-only file system|权限不够",
        ("a file may not be read or written", "没有读写权限"),
        ("Write below your own folders, or have the storage mounted for writing. A script that is run needs `chmod +x`.",
         "写入自己的目录，或以可写方式挂载存储；要运行的脚本需要 `chmod +x`。"),
        weak=True,
    ),
    _pattern(
        "threads", "resources", r"can't start new thread|pthread_create failed|fork: (?:retry: )?Resource temporarily unavailable",
        ("too many threads or processes were started", "线程或进程过多"),
        ("Set OMP_NUM_THREADS, or use fewer workers of the data loader.", "设置 OMP_NUM_THREADS，或减少 DataLoader worker。"),
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
        "segfault", "runtime", r"(?i)segmentation fault|段错误",
        ("the program touched memory that is not its own", "段错误"),
        ("Look whether its libraries belong together; run it with PYTHONFAULTHANDLER=1 to see where.",
         "检查各库版本是否匹配；设置 PYTHONFAULTHANDLER=1 定位。"),
    ),
    _pattern(
        "exception", "runtime", rf"^(?!\S*(?:{_FOLLOWS})\b){_EXCEPTION}",
        ("the program ended with an exception", "程序抛出异常"), ("Read the traceback above that line.", "查看该行之前的堆栈。"),
    ),
    _pattern(
        "killed", "memory", r"^(?:.*:\s+\d+ )?(?:Killed\b|已杀死)|\bSignal 9 \(SIGKILL\)|(?:exited on|ended by) signal 9\b",
        ("a process was killed, mostly because memory ran out", "进程被强制结束，多为内存不足"),
        ("Ask for more memory, or use fewer processes.", "申请更多内存或减少进程数。"),
    ),
    _pattern(
        "aborted", "runtime", r"double free or corruption|terminate called after throwing|^(?:.*:\s+\d+ )?Aborted\b",
        ("the program gave up inside of a library", "程序在库中异常中止"),
        ("Read the lines above it; look whether its libraries belong together.", "查看该行之前的输出；检查各库版本是否匹配。"),
    ),
    _pattern(
        "child_failed", "runtime", rf"^\S*(?:{_FOLLOWS})\b|MPI_ABORT was invoked|Horovod has been shut down|"
        r"one or more processes exited with non-zero status",
        ("one of the processes that it had started failed, and it ended the others", "其启动的某个进程失败，其余进程随之结束"),
        ("Look further up in the logs for what that process has said.", "在日志更靠前处查看该进程的输出。"),
    ),
    _pattern(
        "peer_lost", "network", r"(?i)broken pipe",
        ("another program that it talked to had ended", "与其通信的程序已结束"),
        ("Look at what ended first, here or in another task.", "查看最先结束的程序或任务。"),
    ),
    _pattern(
        "last_words", "runtime", r"^(?i:fatal|error|错误)\b ?[:：] ?\S",
        ("the program says why it gave up", "程序说明了失败原因"), ("Read that line and those around it.", "查看该行及其上下文。"),
    ),
)  # fmt: skip
# A line without any of these, in small letters, fits no pattern: most lines of a log are done with at once. A word for each
# alternative of each pattern; a test looks for those that are missing.
NEEDLES = (
    "error", "exception", "interrupt", "timeout", "timed out", "timing out", "fatal", "fail", "错误",
    "storage", "memory", "alloc", "oom", "/dev/shm", "no space", "空间", "quota", "node's disk", "nccl", "watchdog",
    "resolve", "resolution", "not known", "servname", "remote", "denied", "unreachable", "retries", "connect", "certificate",
    "image", "manifest", "unauthorized", "no module", "no matching", "could not find", "impossible", "conflict", "externally",
    "shared object", "glibc", "symbol", "^m", "\\r'", "exec", "not found", "未找到", "cuda", "compiled", "driver", "ordinal",
    "assert", "illegal", "rank", "ei0", "ej0", "last training", "hdc", "hccl", "xid", "ecc", "fallen", "9999",
    "rendezvous", "already in use", "daemon", "host key", "slots", "as root", "refused", "route", "by peer",
    "central directory", "load key", "state_dict", "stale", "endpoint", "no such file", "没有那个", "permission", "read-only",
    "权限", "thread", "fork", "open files", "allocate", "evicted", "nan", "segmentation", "段错误", "kill", "已杀死", "signal 9",
    "double free", "terminate", "abort", "horovod", "processes exited", "pipe",
)  # fmt: skip
