"""What a user asks the platform to run, field by field, and the states that it passes through. Pure data.

The classes at the end are the table of job fields: what an entry says is job_fields.py, what follows from it stands
there, too. How a document becomes one of these is document.py; who decides and who acts is the server.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from trainyard.spec import job_limits as limits
from trainyard.spec.job_fields import Between, Check, DlcName, Flag, Matches, Printable, Unit, entry

# Exit codes after which trying again may help: interrupted, killed, asked to go, and 138 (SIGUSR1), by which a
# program says so itself. All others are the program's own verdict.
RETRIED_EXIT_CODES = (130, 137, 138, 143)


class State(StrEnum):
    """Where a workload is. Only the loops of the server write it."""

    HELD = "held"  # not in the queue: a person has to approve or resume it
    WAITING = "waiting"
    ADMITTED = "admitted"  # has its places, nothing was started yet
    STARTING = "starting"
    RUNNING = "running"
    RETAINED = "retained"  # the program has ended; the places are kept for a look
    FINISHING = "finishing"  # what is left of it is being ended
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Desired(StrEnum):
    """What people want of a workload. Only services write it."""

    RUN = "run"
    PAUSE = "pause"
    CANCEL = "cancel"


FINAL = frozenset({State.SUCCEEDED, State.FAILED, State.CANCELLED})
# States that hold places on nodes.
HOLDING = frozenset({State.ADMITTED, State.STARTING, State.RUNNING, State.RETAINED, State.FINISHING})

TRANSITIONS: Mapping[State, frozenset[State]] = MappingProxyType(
    {
        State.HELD: frozenset({State.WAITING, State.CANCELLED}),
        State.WAITING: frozenset({State.ADMITTED, State.HELD, State.CANCELLED, State.FAILED}),
        State.ADMITTED: frozenset({State.STARTING, State.FINISHING}),
        State.STARTING: frozenset({State.RUNNING, State.FINISHING}),
        State.RUNNING: frozenset({State.RETAINED, State.FINISHING}),
        State.RETAINED: frozenset({State.FINISHING}),
        # Back to WAITING: preempted, a node was lost, or it is tried again.
        State.FINISHING: frozenset(
            {State.WAITING, State.HELD, State.SUCCEEDED, State.FAILED, State.CANCELLED}
        ),
        State.SUCCEEDED: frozenset(),
        State.FAILED: frozenset(),
        State.CANCELLED: frozenset(),
    }
)


class TaskState(StrEnum):
    """Where one task of one attempt is, as its node said last."""

    PENDING = "pending"
    RUNNING = "running"
    ENDED = "ended"
    LOST = "lost"  # its node does not answer, or does not know it any more


class Restart(StrEnum):
    """When a workload whose program failed goes back to the queue, as long as it has retries left."""

    NEVER = "never"
    ON_FAILURE = "on_failure"
    EXIT_CODE = "exit_code"  # only after one of RETRIED_EXIT_CODES
    ALWAYS = "always"


class Retain(StrEnum):
    """After which end the places are kept for a look."""

    ALWAYS = "always"
    ON_FAILURE = "on_failure"
    ON_SUCCESS = "on_success"


class Success(StrEnum):
    """When a workload of several tasks counts as done."""

    ALL = "all"  # every task has ended with 0
    FIRST = "first"  # the first task of the first role decides; the others are ended then


class Launcher(StrEnum):
    """Who turns the command into one process for each device."""

    NONE = ""  # the command does it itself
    OWN = "own"
    TORCHRUN = "torchrun"
    MPIRUN = "mpirun"
    HOROVODRUN = "horovodrun"


class CommandOn(StrEnum):
    """Which tasks of a job with several roles run the command; the others stand by for them."""

    BY_KIND = ""  # as the kind of job has it: mostly all
    ALL = "all"
    FIRST = "first"  # the first task of the first role
    WORKERS = "workers"  # all roles but the first


class Condition(StrEnum):
    """How a job that another one waits for has to end."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    ENDED = "ended"


# A table: one entry a field, one line a matter. The formatter would make one line a word of it.
# fmt: off
@dataclass(frozen=True, slots=True, kw_only=True)
class CodeSpec:
    """A repository that is checked out before the command."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012  # read by pydantic; a class variable by intent

    source: str = field(default="", metadata=entry(
        "Id or name of a code source of the workspace", "代码源",
        dlc=DlcName("CodeSource.CodeSourceId", "code_source", "id of a code source", by_table=False),
    ))
    url: str = field(default="", metadata=entry(
        "Its address instead", "仓库地址", alone=True,
    ))
    branch: str = field(default="", metadata=entry(
        "Its branch or tag", "分支",
        dlc=DlcName("CodeSource.Branch", "code_branch", "branch to check out", by_table=False),
    ))
    commit: str = field(default="", metadata=entry(
        "Its commit", "提交",
        dlc=DlcName("CodeSource.Commit", "code_commit", "commit to check out", by_table=False),
    ))
    target: str = field(default="", metadata=entry(
        "Where to; empty: a folder of the repository's name in the working folder", "目标文件夹",
        dlc=DlcName("CodeSource.MountPath", by_table=False),
    ))


@dataclass(frozen=True, slots=True, kw_only=True)
class MountSpec:
    """A storage of the workspace, or an address of one, and where tasks see it."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012  # as above

    source: str = field(metadata=entry(
        "Id or name of a storage, or an address such as nas://host/path", "存储", alone=True,
        dlc=DlcName("DataSources.DataSourceId", by_table=False),
    ))
    target: str = field(default="", metadata=entry(
        "Where tasks see it; empty: the storage's own place", "挂载路径",
        dlc=DlcName("DataSources.MountPath", by_table=False),
    ))
    path: str = field(default="", metadata=entry(
        "Only this folder of it", "子文件夹",
    ))
    read_only: bool = field(default=False, metadata=entry(
        "Whether tasks may only read it", "只读",
        dlc=DlcName("DataSources.MountAccess", by_table=False),
    ))


@dataclass(frozen=True, slots=True, kw_only=True)
class NeedSpec:
    """A job that has to end first."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012  # as above

    job: str = field(metadata=entry(
        "Its id", "作业", alone=True,
    ))
    condition: Condition = field(default=Condition.SUCCEEDED, metadata=entry(
        "How it has to end", "条件",
    ))


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretSpec:
    """A secret of the user or the workspace, and where tasks find it."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012  # as above

    name: str = field(metadata=entry(
        "The name of the secret", "密钥名称", alone=True,
    ))
    variable: str = field(default="", metadata=entry(
        "The variable that holds it; empty: of the secret's own name, where it has no file", "变量名",
    ))
    file: str = field(default="", metadata=entry(
        "The file that holds it: an absolute path, as tasks see it", "文件路径",
    ))


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleSpec:
    """Replicas of one shape."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012  # read by pydantic; a class variable by intent

    name: str = field(default="worker", metadata=entry(
        "The name of the role", "角色名称",
        rules=[
            Matches(
                pattern=limits.DNS_NAME, problem="{value} cannot be a role's",
                hint="Use lower-case letters, digits and dashes.", shown=80,
            ),
        ],
        dlc=DlcName("Type", by_table=False),
    ))
    replicas: int = field(default=1, metadata=entry(
        "How many tasks of this role run together", "副本数",
        rules=[Between(1, limits.REPLICAS)],
        flags=[Flag("--replicas", "N", "How many run together.")],
        dlc=DlcName("PodCount", by_table=False),
    ))
    minimum: int | None = field(default=None, metadata=entry(
        "Below `replicas`: how many are enough to start", "最少副本数",
        flags=[Flag("--minimum", "N", "Start with so many replicas where not all find room.", least=1)],
        dlc=DlcName("ElasticSpec.MinParallelism", by_table=False),
    ))
    command: str = field(default="", metadata=entry(
        "What its tasks run; empty: the job's command", "启动命令",
        rules=[Check.COMMAND],
        dlc=DlcName("UserCommand", "command", "a command of its own"),
    ))
    cpu: float = field(default=1.0, metadata=entry(
        "CPU cores of each task", "CPU 核数",
        rules=[Between(0, limits.CORES, f"Give cores, from 0 to {limits.CORES}.")],
        flags=[Flag("--cpu", "CORES", "Cores of each replica.")],
        dlc=DlcName("ResourceConfig.CPU", "cpu", "CPU cores of each"),
    ))
    memory_mib: int = field(default=0, metadata=entry(
        "Memory of each task; 0: not limited by the job", "内存", unit=Unit.MEBIBYTES, also="memory",
        rules=[Between(0, limits.MEMORY_MIB)],
        flags=[Flag("--memory", "SIZE", "Memory of each replica: 16GiB.")],
        dlc=DlcName("ResourceConfig.Memory", "memory", "memory of each: 4 for GB, or 4Gi"),
    ))
    shared_memory_mib: int = field(default=0, metadata=entry(
        "Size of /dev/shm of each task; 0: as the node has it", "共享内存", unit=Unit.MEBIBYTES, also="shared_memory",
        rules=[Between(0, limits.MEMORY_MIB)],
        flags=[Flag("--shared-memory", "SIZE", "Size of /dev/shm: 8GiB.")],
        dlc=DlcName("ResourceConfig.SharedMemory", "shared_memory", "size of /dev/shm, likewise"),
    ))
    disk_mib: int = field(default=0, metadata=entry(
        "Of the node's disk, for each task's own folder and log; 0: the platform's default",
        "磁盘", unit=Unit.MEBIBYTES, also="disk",
        rules=[Between(0, limits.DISK_MIB)],
        flags=[Flag("--disk", "SIZE", "Of the node's disk for each task: 200GiB.  [default: the platform's]")],
    ))
    devices: int = field(default=0, metadata=entry(
        "Devices of each task", "设备数",
        rules=[Between(0, limits.DEVICES)],
        flags=[Flag("--gpus --devices", "N", "Devices of each replica.")],
        dlc=DlcName("ResourceConfig.GPU", "gpu", "GPUs of each"),
    ))
    device: str = field(default="", metadata=entry(
        "The type of its devices; empty where the cluster has only one", "设备型号",
        rules=[Matches(pattern=limits.DEVICE, problem="{value} is no type of device", hint="See `trainyard nodes`.")],
        flags=[Flag("--device", "TYPE", "Their type, where there are several: V100, Ascend910.")],
        dlc=DlcName("ResourceConfig.GPUType", "gpu_type", "the GPU model"),
    ))
    image: str = field(default="", metadata=entry(
        "The image of its container; empty: none", "镜像",
        rules=[
            Printable(longest=limits.IMAGE_LENGTH),
            Matches(
                pattern=limits.IMAGE, problem="{value} is no image",
                hint="Write it like registry.example.com/team/image:tag.", shown=100,
            ),
        ],
        flags=[Flag("--image", "IMAGE", "The image of its container.")],
        dlc=DlcName("Image", "image", "the image"),
    ))
    env: Mapping[str, str] = field(default_factory=dict, metadata=entry(
        "More variables of its environment", "环境变量",
        rules=[Check.VARIABLES],
    ))
    labels: Mapping[str, str] = field(default_factory=dict, metadata=entry(
        "Labels that the node must carry", "节点标签",
        rules=[Check.LABELS],
        flags=[Flag("--label", "NAME=VALUE", "Only on nodes with this label.")],
    ))
    nodes: tuple[str, ...] = field(default=(), metadata=entry(
        "Only on these nodes, by name", "指定节点",
        rules=[
            Matches(
                pattern=limits.DNS_NAME, problem="names {value}, which no node is called",
                hint="See `trainyard nodes`.",
            ),
        ],
        flags=[Flag("--node", "NAME", "Only on this node.")],
        dlc=DlcName("AssignNodeSpec.NodeNames", by_table=False),
    ))
    tolerations: tuple[str, ...] = field(default=(), metadata=entry(
        "Taints of nodes that it puts up with: `key` or `key=value`", "容忍",
        rules=[Check.TAINTS],
    ))
    after: tuple[str, ...] = field(default=(), metadata=entry(
        "Roles whose tasks have to run before these are started", "先启动的角色",
    ))


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadSpec:
    """A job as its user wrote it. Validated at the border, then frozen."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012  # as above

    name: str = field(metadata=entry(
        "What the job is called", "名称",
        rules=[Printable(longest=limits.NAME_LENGTH, empty=False)],
        flags=[Flag("--name", "NAME", "What to call it.  [default: the first word of the command]")],
        dlc=DlcName("DisplayName", "name", "name of the job", by_table=False),
    ))
    command: str = field(default="", metadata=entry(
        "What every task runs", "启动命令",
        rules=[Check.COMMAND],
        dlc=DlcName("UserCommand", "command", "what every task runs"),
    ))
    workspace: str = field(default="", metadata=entry(
        "The workspace whose quota it counts for; empty: the user's only one", "工作空间",
        flags=[Flag("--workspace", "NAME", "Whose quota it counts for.")],
        dlc=DlcName("WorkspaceId", "workspace_id", "id of the workspace"),
    ))
    kind: str = field(default="job", metadata=entry(
        "The kind of job: `job`, or PyTorchJob, TFJob, MPIJob and so on", "作业类型",
        rules=[
            Matches(pattern=limits.KIND, problem="{value} is no kind of job", hint="Leave it out for a plain job."),
        ],
        flags=[Flag("--kind", "KIND", "PyTorchJob, TFJob, MPIJob and so on.  [default: a plain job]")],
        dlc=DlcName("JobType", "kind", "PyTorchJob, TFJob, XGBoostJob, MPIJob, BatchJob …", by_table=False),
    ))
    roles: tuple[RoleSpec, ...] = field(default=(RoleSpec(),), metadata=entry(
        "Replicas of different shapes. A job of one role has the fields of the role beside its own", "角色",
        dlc=DlcName("JobSpecs", by_table=False),
    ))
    working_dir: str = field(default="", metadata=entry(
        "Where the command runs; empty: a fresh folder of the task", "工作目录",
        rules=[Check.FOLDER],
        flags=[Flag("--working-dir", "FOLDER", "Where it runs.  [default: a fresh folder]")],
        dlc=DlcName("WorkingDir", "working_dir", "where the command runs"),
    ))
    env: Mapping[str, str] = field(default_factory=dict, metadata=entry(
        "Variables of its environment", "环境变量",
        rules=[Check.VARIABLES],
        flags=[Flag("--env", "NAME[=VALUE]", "A variable of its environment; without a value, as it is here.")],
        dlc=DlcName("Envs", "envs", "k=v,k2=v2"),
    ))
    priority: int = field(default=5, metadata=entry(
        "Its place among the jobs that wait: 1 to 9, 9 first", "优先级",
        rules=[Between(limits.LOWEST_PRIORITY, limits.HIGHEST_PRIORITY, "Choose one from 1 to 9; 9 goes first.")],
        flags=[Flag("--priority", "1-9", "9 comes first.  [default: 5]")],
        dlc=DlcName("Priority", "priority", "1 to 9, 9 first", default=1),
    ))
    preemptible: bool = field(default=False, metadata=entry(
        "Whether it may run on what others leave free, and has to go when they want it", "可抢占",
        flags=[Flag("--preemptible", "", "May run on what others leave free, and has to go when they want it.")],
        dlc=DlcName("JobSpecs.UseSpotInstance", "enable_preemptible_job", "true: may be preempted", by_table=False),
    ))
    max_run_seconds: int = field(default=0, metadata=entry(
        "How long it may run. Each start has the whole time, but one to grow goes on with what is left; 0: no limit",
        "最长运行时间", unit=Unit.SECONDS,
        rules=[Between(0, limits.SECONDS)],
        flags=[
            Flag(
                "--max-time", "TIME",
                "Stop it when it has run for 90s, 30m, 2h. Every start has the whole time, but one to grow.",
            ),
        ],
        dlc=DlcName(
            "JobMaxRunningTimeMinutes", "job_max_running_time_minutes", "stopped after so long; 0: never",
            minutes=True,
        ),
    ))
    grace_seconds: int = field(default=30, metadata=entry(
        "Between being asked to go and being killed", "宽限时间", unit=Unit.SECONDS,
        rules=[Between(0, limits.GRACE_SECONDS)],
        flags=[
            Flag(
                "--grace", "TIME",
                "Between being asked to go (stopped, preempted, at its limit) and being killed.  [default: 30s]",
            ),
        ],
    ))
    restart: Restart = field(default=Restart.EXIT_CODE, metadata=entry(
        "After which failures it goes back to the queue, as long as it has retries left", "重启策略",
        flags=[Flag("--restart", "WHEN", "never, on_failure, exit_code or always.")],
        dlc=DlcName("JobSpecs.RestartPolicy", by_table=False),
    ))
    max_retries: int = field(default=0, metadata=entry(
        "How often it is run again after a failure", "重试次数",
        rules=[Between(0, limits.RETRIES)],
        flags=[Flag("--retries", "N", "Run it again so often after a failure.")],
        dlc=DlcName("Settings.MaxRestartTimes", by_table=False),
    ))
    success: Success = field(default=Success.ALL, metadata=entry(
        "When a job of several tasks has succeeded: when all have ended with 0, or when the first task has", "成功条件",
        dlc=DlcName("SuccessPolicy", "success_policy", "ChiefWorker or AllWorkers", by_table=False),
    ))
    retain_seconds: int = field(default=0, metadata=entry(
        "How long its places are kept after its end, for a look", "保留时间", unit=Unit.SECONDS,
        rules=[Between(0, limits.RETAIN_SECONDS)],
        flags=[Flag("--retain", "TIME", "Keep its places so long after its end, for a look.")],
        dlc=DlcName(
            "Settings.JobReservedMinutes", "job_reserved_minutes",
            "keep the places so long after the end, for a look", minutes=True,
        ),
    ))
    retain: Retain = field(default=Retain.ALWAYS, metadata=entry(
        "After which end its places are kept", "保留条件",
        dlc=DlcName(
            "Settings.JobReservedPolicy", "job_reserved_policy", "Always, OnFailure or OnSucceed",
            choices={"Always": "always", "OnFailure": "on_failure", "OnSucceed": "on_success"},
        ),
    ))
    tags: Mapping[str, str] = field(default_factory=dict, metadata=entry(
        "Words to find it by", "标记",
        rules=[Check.TAGS],
        flags=[Flag("--tag", "NAME=VALUE", "A word to find it by.")],
        dlc=DlcName("Settings.Tags", "tags", "k=v,k2=v2"),
    ))
    needs_approval: bool = field(default=False, metadata=entry(
        "Whether a person has to approve it before the queue", "需要审批",
    ))
    command_on: CommandOn = field(default=CommandOn.BY_KIND, metadata=entry(
        "Which tasks run the command: all, the first one, or all but those of the first role; empty: as its kind has it",
        "执行命令的任务",
    ))
    launcher: Launcher = field(default=Launcher.NONE, metadata=entry(
        "The launcher that starts one process for each device; empty: the command does it itself", "启动器",
        flags=[
            Flag("--launcher", "WHO", "Who starts one process for each device: own, torchrun, mpirun or horovodrun."),
        ],
    ))
    processes: int = field(default=0, metadata=entry(
        "Processes of one task, for the launcher; 0: one for each device", "进程数",
        rules=[Between(0, limits.DEVICES)],
    ))
    ready_seconds: int = field(default=600, metadata=entry(
        "After which a job whose tasks do not reach each other has failed", "就绪时限", unit=Unit.SECONDS,
        rules=[Between(1, limits.SECONDS)],
    ))
    hang_seconds: int = field(default=0, metadata=entry(
        "Without output and without use of devices, after which it counts as hung; 0: never",
        "挂起时限", unit=Unit.SECONDS,
        rules=[Between(0, limits.SECONDS)],
        flags=[Flag("--hang", "TIME", "Without output and use of devices for so long, it has failed.")],
        dlc=DlcName("Settings.ErrorMonitoringArgs", by_table=False),
    ))
    grow_seconds: int = field(default=0, metadata=entry(
        "With fewer replicas than it wants, after which it starts anew with more where it can; 0: never",
        "扩容时限", unit=Unit.SECONDS,
        rules=[Between(0, limits.SECONDS)],
        flags=[Flag("--grow", "TIME", "With fewer replicas for so long, start anew with more where there is room.")],
    ))
    code: CodeSpec | None = field(default=None, metadata=entry(
        "A repository that is checked out before the command", "代码",
        flags=[
            Flag("--code", "URL", "Check out this repository first; or the name or id of a code source."),
            Flag("--code-branch", "NAME", "Its branch or tag.", option="code_branch"),
            Flag("--code-commit", "COMMIT", "Its commit.", option="code_commit"),
        ],
        dlc=DlcName("CodeSource", by_table=False),
    ))
    mounts: tuple[MountSpec, ...] = field(default=(), metadata=entry(
        "Storages that its tasks see", "挂载",
        flags=[Flag("--mount", "STORAGE[:FOLDER[:ro]]", "A storage of the workspace, and where tasks see it.")],
        dlc=DlcName("DataSources", "data_sources", "ids of data sets, with commas", by_table=False),
    ))
    requirements: tuple[str, ...] = field(default=(), metadata=entry(
        "Python packages that are installed before the command", "Python 依赖包",
        flags=[Flag("--requirement", "PACKAGE", "A Python package to install first.")],
        dlc=DlcName("ThirdpartyLibs", "thirdparty_libs", "packages to install first, with commas"),
    ))
    requirements_dir: str = field(default="", metadata=entry(
        "A folder whose requirements.txt is installed before the command", "依赖包文件夹",
        flags=[Flag("--requirements-dir", "FOLDER", "A folder whose requirements.txt is installed first.")],
        dlc=DlcName("ThirdpartyLibDir", "thirdparty_lib_dir", "folder with a requirements.txt"),
    ))
    after: tuple[NeedSpec, ...] = field(default=(), metadata=entry(
        "Jobs that have to end first", "前置作业",
        flags=[Flag("--after", "JOB[:HOW]", "Only when this job has succeeded; or failed or ended, as HOW says.")],
    ))
    secrets: tuple[SecretSpec, ...] = field(default=(), metadata=entry(
        "Secrets that are looked up at every start, for the job's owner", "密钥",
        flags=[
            Flag("--secret", "NAME[=VARIABLE]", "A secret of yours or the workspace's, as a variable."),
            Flag("--secret-file", "NAME=PATH", "The same as a file of its tasks.", option="secret_files"),
        ],
    ))
# fmt: on


_BARE = RoleSpec()


def tasks_of(spec: WorkloadSpec) -> list[tuple[RoleSpec, int]]:
    """Every replica with its role, in order; the first is the one that others look for."""
    return [(role, index) for role in spec.roles for index in range(role.replicas)]


def role_of(spec: WorkloadSpec, name: str) -> RoleSpec:
    """The role of this name; a bare one, with nothing of its own, where there is none."""
    return next((role for role in spec.roles if role.name == name), _BARE)


def task_name(role: str, index: int) -> str:
    """The name of one task inside its workload, as people see it and type it: worker-0."""
    return f"{role}-{index}"
