"""The scheduler's inputs and decisions: frozen values without behaviour beyond arithmetic.

Amounts are integers, so that sums are exact: CPU in thousandths of a core, memory in MiB, devices counted. Times are
seconds (float) on one common clock: the platform uses POSIX time, a simulation starts at 0. scheduler.py makes the
decisions; explain.py turns reasons into sentences.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from trainyard.scheduling.reasons import Reason

NOTHING: Mapping[str, int] = MappingProxyType({})

CPU = "cpu"
MEMORY = "memory"


class Strategy(StrEnum):
    """The order in which one workspace's queue is processed. Changing it affects only workloads that wait."""

    BACKFILL = "backfill"  # a workload that does not fit is skipped, but it gets a reservation that others must not delay
    STRICT_FIFO = "strict_fifo"  # a first workload that does not fit blocks all others
    ROUND_ROBIN = "round_robin"  # a first workload that does not fit is skipped
    BALANCE = "balance"  # FIFO; the window of candidates grows by one after each timeout
    INTELLIGENT = "intelligent"  # priority 7 and above: FIFO; below: skipping, with ageing up to 6


class Spread(StrEnum):
    """How replicas are spread over the nodes of a pool."""

    PACK = "pack"  # the fullest node that still has room: whole nodes stay free for large gangs
    SPREAD = "spread"  # the emptiest node


class NodeState(StrEnum):
    """Whether a node takes new work."""

    READY = "ready"
    COMING = "coming"  # acquired, not joined yet: counts as room to come
    CORDONED = "cordoned"  # keeps its workloads, takes no new ones
    LOST = "lost"  # does not answer


@dataclass(frozen=True, slots=True)
class Taint:
    """A mark on a node that only workloads with a matching toleration accept."""

    key: str
    value: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRule:
    """How devices of one type may be given out together."""

    ring: int = (
        0  # devices i // ring share fast links; 2..ring devices must stay inside one ring. 0: no rings
    )
    sizes: tuple[int, ...] = ()  # counts a replica may ask for; empty: any
    whole_when_many: int = 0  # a gang over several nodes takes this many devices on each; 0: no rule

    def gives(self, count: int, replicas: int) -> bool:
        """Return whether the rule allows so many devices for each of so many replicas."""
        total, whole = count * replicas, self.whole_when_many
        if not count:
            return True
        return (not self.sizes or count in self.sizes) and not (whole and total > whole and total % whole)


ASCEND_910 = DeviceRule(ring=4, sizes=(1, 2, 4, 8), whole_when_many=8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One machine that runs replicas. `reserved_*` stays with the system and is never given out."""

    name: str
    pool: str = "default"
    cpu: int = 0
    memory: int = 0
    shared_memory: int | None = None  # None: as much as the memory
    devices: Mapping[str, int] = field(default_factory=lambda: NOTHING)  # type → count
    unhealthy: Mapping[str, frozenset[int]] = field(
        default_factory=lambda: MappingProxyType({})
    )  # type → indices not to give out
    labels: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    taints: tuple[Taint, ...] = ()
    topology: tuple[str, ...] = ()  # from wide to narrow: ("row-1", "switch-3")
    engine: str = ""  # the engine that starts tasks there; all nodes of a workload have the same one
    state: NodeState = NodeState.READY
    suspect: bool = False  # failed lately: used last
    reserved_cpu: int = 0
    reserved_memory: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Nodes of one kind. With a `promise` it can grow: up to `limit` nodes in all, like the promised one."""

    name: str
    spread: Spread = Spread.PACK
    promise: Node | None = None
    limit: int = 0
    price: float = 0.0  # of a promised node, per hour


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """Replicas of one shape. `minimum` below `replicas` makes the role elastic."""

    name: str = "worker"
    replicas: int = 1
    minimum: int | None = None
    cpu: int = 0
    memory: int = 0
    shared_memory: int = 0
    device: str = ""  # the type; empty where the cluster has only one
    devices: int = 0
    pool: str = ""
    selector: tuple[tuple[str, str], ...] = ()  # labels the node must carry
    nodes: frozenset[str] = frozenset()  # only these, by name; empty: any
    tolerations: tuple[Taint, ...] = ()  # a value of "" tolerates every value of the key

    @property
    def least(self) -> int:
        """How many replicas must start together."""
        return self.replicas if self.minimum is None else self.minimum


@dataclass(frozen=True, slots=True)
class Slot:
    """One replica's place: a node, and which of its devices."""

    role: str
    node: str
    devices: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A workload that waits. Requeued after a preemption it keeps `submitted`, and so its age."""

    id: str
    roles: tuple[Role, ...]
    workspace: str = "default"
    user: str = ""
    priority: int = 5
    submitted: float = 0.0
    limit: float | None = None  # longest running time in seconds; None: unknown
    expected: float | None = None  # how long it will probably run (forecast.py); None: unknown
    preemptible: bool = False
    grace: float | None = (
        None  # seconds that it needs to save its work when it is preempted; None: the policy's
    )
    avoid: frozenset[str] = frozenset()  # nodes it failed on
    same_switch: bool = False  # all replicas under one narrowest topology domain, or wait
    head_since: float | None = None  # the time since which it has been first in its queue and blocked
    claim: tuple[Slot, ...] = ()  # places that victims leave for it, or that it leaves itself to start larger


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """A workload that holds resources."""

    request: Request
    started: float
    slots: tuple[Slot, ...]
    leaving: float | None = None  # it was preempted and is gone by this time
    leaving_for: str = ""  # the workload that gets its room
    passed: tuple[str, ...] = ()  # gangs that it was allowed to overtake


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """The quota of a cluster, group or workspace. A resource that a mapping does not name is not limited here."""

    name: str
    parent: str = ""
    nominal: Mapping[str, int] = field(
        default_factory=lambda: NOTHING
    )  # guaranteed; a parent's includes its children's
    borrow: Mapping[str, int] = field(
        default_factory=lambda: NOTHING
    )  # at most so much above nominal; unnamed: all that is free
    lend: Mapping[str, int] = field(
        default_factory=lambda: NOTHING
    )  # at most so much of the unused part is lent; unnamed: all
    per_user: Mapping[str, int] = field(
        default_factory=lambda: NOTHING
    )  # limit of each user inside this subtree
    users: Mapping[str, Mapping[str, int]] = field(
        default_factory=lambda: MappingProxyType({})
    )  # limits of single users, instead of per_user
    weight: float = 1.0  # fair share
    strategy: Strategy | None = None  # None: the policy's


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Settings for administrators. The defaults are the default policy."""

    name: str = "default"
    strategy: Strategy = Strategy.BACKFILL
    one_line: bool = False  # all workspaces share one queue by priority and time, without shares
    preemptible_last: bool = False  # preemptible workloads come after all others
    fair_share: bool = True
    half_life: float = 7 * 86400.0  # past use counts half after this
    ageing: float = 6 * 3600.0  # waiting so long raises the priority by one level; 0: no ageing
    # Under backfill, a workload that is expected to run longer waits that long for a level, up to this bound.
    slowest_ageing: float = 48 * 3600.0
    # Gangs over several nodes rise sooner: after a part of their expected run, between these bounds; 0: like others.
    gang_ageing: float = 1800.0
    slowest_gang_ageing: float = 12 * 3600.0
    # A workload that has waited longer than this goes before others of its priority, whatever their shares. Gangs over
    # several nodes do so much sooner, and short workloads after this part of their expected run (0: like others).
    patience: float = 4 * 3600.0
    patient_runs: float = 0.25
    gang_patience: float = 3600.0
    top_priority: int = 9
    level: int = 1  # priority points to a level: 1 for the range 1..9, 100 for 1..1000
    reservations: int = 1  # blocked heads that keep a reservation, in each pool
    gang_reservations: int = 4  # the same of workloads that need more than one node
    # Workloads that overtake a waiting gang of small replicas may hold this part of its size. Those that will probably
    # end within `brief` seconds may hold `brief_spare` times as much.
    gang_spare: float = 0.75
    brief_spare: float = 2.0
    brief: float = 3600.0
    # A workload may overtake a gang of small replicas, whatever its limit, if its expected run fits so many times into
    # the time until the gang can start. 0: only limits count, as they do for gangs that wait for whole nodes.
    passing_runs: float = 4.0
    short_first: bool = (
        True  # among equal priority and share, the earliest sum of submission and expected run comes first
    )
    preemption: bool = True
    grace: float = 30.0  # seconds that a victim has to save its work if it does not say how many it needs
    longest_grace: float = (
        600.0  # the most seconds, whatever it says, because another workload waits for its place
    )
    balance_timeout: float = 600.0
    intelligent_high: int = 7
    assumed_run: float = 4 * 3600.0  # of workloads without a limit, for estimates


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The cluster at the start of a cycle. `past_use` is in shares of the cluster times seconds, decayed until now."""

    nodes: tuple[Node, ...]
    waiting: tuple[Request, ...] = ()
    running: tuple[Holding, ...] = ()
    pools: tuple[Pool, ...] = ()
    quotas: tuple[Quota, ...] = ()
    policy: Policy = field(default_factory=Policy)
    device_rules: Mapping[str, DeviceRule] = field(default_factory=lambda: MappingProxyType({}))
    past_use: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))  # by workspace
    past_use_by_user: Mapping[tuple[str, str], float] = field(
        default_factory=lambda: MappingProxyType({})
    )  # by workspace and user


@dataclass(frozen=True, slots=True)
class Admit:
    """Start this workload, now, in these places."""

    id: str
    slots: tuple[Slot, ...]
    borrowed: bool = False  # some of it is above the workspace's nominal quota: it may be called back
    passed: tuple[str, ...] = ()  # gangs that it may overtake; pass them back in its Holding


@dataclass(frozen=True, slots=True)
class Preempt:
    """Stop this running workload so that `for_id` can start. It returns to the queue with its age."""

    id: str
    for_id: str
    leave_by: float
    reason: Reason


@dataclass(frozen=True, slots=True)
class Enlarge:
    """Stop this running workload and start it again at once in these places, with more replicas."""

    id: str
    count: int  # of replicas that it has now
    slots: tuple[Slot, ...]  # the caller passes them back as its claim, with its own id as `leaving_for`
    leave_by: float


@dataclass(frozen=True, slots=True)
class Acquire:
    """Get `count` more nodes for a pool; `for_ids` start on them."""

    pool: str
    count: int
    for_ids: tuple[str, ...]
    price: float  # of all of them, per hour


@dataclass(frozen=True, slots=True)
class Wait:
    """The workload waits, for exactly one reason."""

    id: str
    position: int  # in its workspace's queue, from 1
    reason: Reason
    start: float | None = (
        None  # estimated from the limits of running workloads and of those ahead; None: not in sight
    )
    claim: tuple[Slot, ...] = ()  # places being freed for it; pass them back in its Request


Decision = Admit | Preempt | Acquire | Wait
