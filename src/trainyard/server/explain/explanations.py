"""Why a job is where it is, as people want to know it: one sentence, one remedy, in English or Chinese.

The scheduler's own reasons are scheduling/'s; here they get names instead of ids, and lose what the asker may not know.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from sqlalchemy import Connection

from trainyard.lib.errors import InvalidError
from trainyard.scheduling import Admit, NodeState, Reason, Scheduler, Snapshot, Wait
from trainyard.scheduling.diagnosis import waits
from trainyard.scheduling.explain import EN, LANGUAGES, explain, remedy
from trainyard.scheduling.reasons import Code
from trainyard.server.auth.actor import Actor
from trainyard.server.cluster import elastic_pools
from trainyard.server.cluster import scheduler_snapshot as snapshot
from trainyard.server.explain.pool_errors import in_chinese
from trainyard.server.jobs.lifecycle import WAITS_FOR_JOBS
from trainyard.server.records.nodes import RUNS_IMAGES
from trainyard.server.records.tasks import TaskRecord
from trainyard.server.records.workloads import WorkloadRecord
from trainyard.server.service_context import Context
from trainyard.server.store.cluster import nodes
from trainyard.server.store.jobs import workloads
from trainyard.server.store.people import users, workspaces
from trainyard.server.store.usage import past_use
from trainyard.spec.workload import HOLDING, State, WorkloadSpec

# A view of the cluster is good enough for others who ask in the next seconds; one that took long to work out is kept for
# longer, so that people who look at a long queue take at most a twentieth of the machine.
FRESH_SECONDS = 2.0
COST_FACTOR = 20.0
OLDEST_ANSWER_SECONDS = 10.0  # to somebody who asks about one job
FIRST_LOOK_SECONDS = 0.3  # so long a list waits for the first view; later it takes the last one
DRY_RUN = "dry-run"
_QUOTAS = frozenset({Code.SELF_QUOTA, Code.ANCESTOR_QUOTA})
_NO_ROOM = frozenset({Code.NODE_FIT, Code.GANG, Code.NEVER_FITS})
_ROLES = frozenset({Code.NODE_FIT, Code.GANG, Code.TOPOLOGY, Code.NEVER_FITS, Code.ACQUIRING})

_STATES: Mapping[State, tuple[str, str]] = {
    State.HELD: ("It is held: somebody has to let it go on.", "任务已挂起，需要有人恢复或批准。"),
    State.ADMITTED: ("It has its places and is about to start.", "已分配资源，即将启动。"),
    State.STARTING: ("Its tasks are being started.", "正在启动。"),
    State.RUNNING: ("It runs.", "正在运行。"),
    State.RETAINED: ("Its program has ended; its places are kept for a look.", "程序已结束，资源保留以便查看。"),
    State.FINISHING: ("What is left of it is being ended.", "正在结束。"),
    State.SUCCEEDED: ("It has succeeded.", "已成功。"),
    State.FAILED: ("It has failed.", "已失败。"),
    State.CANCELLED: ("It was cancelled.", "已取消。"),
}  # fmt: skip
_SOON = ("It is next; the scheduler is about to look at it.", "即将轮到它。")
_STARTS = ("It would start at once.", "可立即启动。")
_NEEDS = ("It is held until other jobs have ended.", "等待其他任务结束。")
_AVOIDS = (" It avoids {}, which failed it before.", "已避开曾使其失败的节点 {}。")
_NO_IMAGES = (
    "It has an image, and none of its nodes runs containers: they have no podman or docker that answers.",
    "任务指定了镜像，但没有节点能运行容器：没有可用的 podman 或 docker。",
)
_FOR_IMAGES = (
    "Ask an administrator to install podman on a node, or to have one ignore images: `trainyard nodes set NAME --images ignore`.",
    "请管理员在节点上安装 podman，或用 `trainyard nodes set NAME --images ignore` 让节点忽略镜像。",
)
_APPROVE = ("An administrator of the workspace has to approve it.", "需要工作空间管理员批准。")


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Why a job waits, or what would happen to one that is not submitted yet."""

    state: str
    starts_now: bool
    position: int | None = None
    reason: str = ""  # a code
    sentence: str = ""
    remedy: str = ""
    estimated_start: float | None = None
    nodes: tuple[str, ...] = ()  # where it runs, or would run


@dataclass(frozen=True, slots=True)
class _Names:
    workspaces: Mapping[str, str]
    groups: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _View:
    at: float
    snapshot: Snapshot
    names: _Names
    owners: Mapping[str, tuple[str, str]]  # workload → its workspace and name
    waits: Mapping[str, Wait]
    admits: Mapping[str, Admit]
    cost: float  # seconds
    troubles: Mapping[str, str] = field(default_factory=dict)  # pool → why it could not buy

    def is_fresh(self, now: float, longest: float = float("inf")) -> bool:
        """Whether it may still be shown."""
        return 0 <= now - self.at <= min(longest, max(FRESH_SECONDS, COST_FACTOR * self.cost))


class Explainer:
    """Looks at the cluster when somebody asks, and keeps what it saw for a moment."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._view: _View | None = None
        self._looking = asyncio.Lock()
        self._refreshing: asyncio.Future[_View] | None = None

    async def explain(self, actor: Actor, record: WorkloadRecord, *, language: str = EN) -> Explanation:
        """One job."""
        _check_language(language)
        if record.state is not State.WAITING:
            return await self._settled(record, language)
        view = await self._look(record.id)
        wait = view.waits.get(record.id)
        if wait is not None:
            reason = await self._readable(actor, view, wait.reason, language)
            said = _with_trouble(
                self._waiting(replace(wait, reason=reason), language), reason, view, language
            )
            said = _with_images(said, record.spec, reason, view, language)
            avoided = _in(_AVOIDS, language).format(", ".join(record.avoid)) if record.avoid else ""
            return replace(said, sentence=said.sentence + avoided)
        admit = view.admits.get(record.id)
        places = () if admit is None else tuple(sorted({slot.node for slot in admit.slots}))
        return Explanation(
            state=State.WAITING, starts_now=True, position=1, sentence=_in(_SOON, language), nodes=places
        )

    async def dry_run(
        self, actor: Actor, spec: WorkloadSpec, workspace_id: str, *, language: str = EN
    ) -> Explanation:
        """A job that is not submitted, as if it were now."""
        _check_language(language)
        view = await self._look(None)
        now = self._context.now()
        request = snapshot.request_from(
            spec,
            id=DRY_RUN,
            workspace=workspace_id,
            user=actor.user_id,
            priority=spec.priority,
            submitted=now,
            preemptible=spec.preemptible,
        )
        asked = replace(view.snapshot, waiting=(*view.snapshot.waiting, request))
        waiting, admitted = await asyncio.to_thread(_decide, asked, now)
        admit = admitted.get(DRY_RUN)
        if admit is not None:
            places = tuple(sorted({slot.node for slot in admit.slots}))
            return Explanation(
                state=State.WAITING,
                starts_now=True,
                sentence=_in(_STARTS, language),
                estimated_start=now,
                nodes=places,
            )
        wait = waiting[DRY_RUN]
        reason = await self._readable(actor, view, wait.reason, language)
        said = self._waiting(replace(wait, reason=reason), language)
        return _with_images(said, spec, reason, view, language)

    async def _settled(self, record: WorkloadRecord, language: str) -> Explanation:
        tasks: Sequence[TaskRecord] = ()
        if record.state in HOLDING:
            tasks = await self._context.db.read(lambda c: workloads.tasks(c, record.id, record.attempt))
        waits = record.state is State.HELD and record.reason == WAITS_FOR_JOBS
        sentence = _in(_NEEDS if waits else _STATES[record.state], language)
        if record.message not in {"", sentence} and language == EN:
            sentence = f"{sentence} {record.message}"
        needs_approval = record.state is State.HELD and record.reason == "needs_approval"
        return Explanation(
            state=record.state,
            starts_now=False,
            reason=record.reason,
            sentence=sentence,
            remedy=_in(_APPROVE, language) if needs_approval else "",
            nodes=tuple(sorted({task.node for task in tasks})),
        )

    def _waiting(self, wait: Wait, language: str) -> Explanation:
        now = self._context.now()
        return Explanation(
            state=State.WAITING,
            starts_now=False,
            position=wait.position,
            reason=wait.reason.code.value,
            sentence=explain(wait.reason, now=now, language=language),
            remedy=remedy(wait.reason, now=now, language=language),
            estimated_start=_sight(wait.start),
        )

    async def with_positions(
        self, actor: Actor, records: Sequence[WorkloadRecord]
    ) -> tuple[WorkloadRecord, ...]:
        """The same records; those that wait know their position, estimated start and reason, as of the last look."""
        if not any(record.state is State.WAITING for record in records):
            return tuple(records)
        if self._view is None or not self._view.is_fresh(self._context.now()):
            self._refresh()
        if self._view is None and self._refreshing is not None:
            await asyncio.wait({self._refreshing}, timeout=FIRST_LOOK_SECONDS)
        view = self._view
        if view is None:
            return tuple(records)
        return tuple([await self._with_position(actor, view, record) for record in records])

    async def _with_position(self, actor: Actor, view: _View, record: WorkloadRecord) -> WorkloadRecord:
        wait = view.waits.get(record.id) if record.state is State.WAITING else None
        if wait is None:
            return record
        reason = await self._readable(actor, view, wait.reason, EN)
        return replace(
            record,
            wait={"position": wait.position, "start": _sight(wait.start)},
            message=explain(reason, now=self._context.now(), language=EN),
        )

    def close(self) -> None:
        """Stop looking."""
        if self._refreshing is not None and not self._refreshing.get_loop().is_closed():
            self._refreshing.cancel()

    def _refresh(self) -> None:
        """Look beside the request, once for everybody."""
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.ensure_future(self._look(None))
            self._refreshing.add_done_callback(_forget_error)

    async def _look(self, needed: str | None) -> _View:
        """A view of the cluster that is fresh, and that has this job in it."""
        async with self._looking:
            now = self._context.now()
            view = self._view
            longest = OLDEST_ANSWER_SECONDS if needed else float("inf")
            if view is None or not view.is_fresh(now, longest) or (needed and needed not in view.owners):
                began = self._context.clock.monotonic()
                found, names, owners, troubles = await self._context.db.read(lambda c: _read(c, now))
                waiting, admitted = await asyncio.to_thread(_decide, found, now)
                cost = self._context.clock.monotonic() - began
                view = self._view = _View(now, found, names, owners, waiting, admitted, cost, troubles)
            return view

    async def _readable(self, actor: Actor, view: _View, reason: Reason, language: str) -> Reason:
        """The same reason with names for ids; what is another workspace's is not named."""
        figures = dict(reason.figures)
        space = figures.get("workspace")
        if isinstance(space, str):
            figures["workspace"] = _workspace_name(actor, view, space, language)
        subject = reason.subject
        if reason.code in _QUOTAS:
            subject = view.names.workspaces.get(subject) or view.names.groups.get(subject) or subject
        elif reason.code is Code.USER_LIMIT:
            known = await self._context.db.read(lambda c: users.names(c, [subject]))
            subject = known.get(subject, subject)
        elif reason.code not in _ROLES and subject:
            subject = _job_name(actor, view, subject, language)
        return replace(reason, subject=subject, figures=figures)


def _sight(start: float | None) -> float | None:
    """An estimate, where there is one in sight."""
    return None if start == float("inf") else start


def _forget_error(done: asyncio.Future[_View]) -> None:
    """Who shows a list does without positions then; who asks for a reason meets the error itself."""
    if not done.cancelled():
        done.exception()


def _job_name(actor: Actor, view: _View, id: str, language: str) -> str:  # noqa: A002  # the column's name
    owner = view.owners.get(id)
    if owner is None or not actor.can("jobs:read", owner[0]):
        return "another job" if language == EN else "其他任务"
    return f"{owner[1]} ({id})"


def _workspace_name(actor: Actor, view: _View, id: str, language: str) -> str:  # noqa: A002  # same
    if actor.can_see(id):
        return view.names.workspaces.get(id, id)
    return "another workspace" if language == EN else "其他工作空间"


def _with_trouble(said: Explanation, reason: Reason, view: _View, language: str) -> Explanation:
    """Who waits for machines is told why they cannot be bought."""
    if reason.code is Code.ACQUIRING:
        # Without a pool's name, room is held on machines that are coming: what troubles other pools is not its own.
        coming = {node.pool for node in view.snapshot.nodes if node.state is NodeState.COMING}
        pools = [reason.subject] if reason.subject else sorted(coming)
    elif reason.code in _NO_ROOM:  # whether a pool could help is not known where its figures are not
        promised = {pool.name for pool in view.snapshot.pools if pool.promise is not None}
        pools = [pool for pool in view.troubles if pool not in promised]
    else:
        return said
    told = [_told(pool, view.troubles[pool], language) for pool in pools if view.troubles.get(pool)]
    if not told:
        return said
    return replace(said, sentence=" ".join([said.sentence, *told]), remedy="", estimated_start=None)


def _with_images(
    said: Explanation, spec: WorkloadSpec, reason: Reason, view: _View, language: str
) -> Explanation:
    """Who waits for a node that runs its image is told that there is none."""
    known = view.snapshot.nodes
    if reason.code not in _NO_ROOM or not known or not any(role.image for role in spec.roles):
        return said
    if any(RUNS_IMAGES in node.labels for node in known):
        return said
    return replace(said, sentence=_in(_NO_IMAGES, language), remedy=_in(_FOR_IMAGES, language))


def _told(pool: str, message: str, language: str) -> str:
    return f"{pool}: {message}" if language == EN else f"资源池 {pool}：{in_chinese(message)}"


def _read(
    connection: Connection, now: float
) -> tuple[Snapshot, _Names, dict[str, tuple[str, str]], dict[str, str]]:
    live = workloads.in_states(connection, {State.WAITING, *HOLDING})
    tasks = workloads.tasks_holding(connection)
    grows = elastic_pools.load(connection)
    found = snapshot.snapshot_of(
        nodes=nodes.list_nodes(connection),
        waiting=[one for one in live if one.state is State.WAITING],
        running=[(one, tasks.get(one.id, ())) for one in live if one.state in HOLDING],
        quotas=snapshot.load_quotas(connection),
        now=now,
        past_use=past_use.load(connection, now),
        elastic=grows,
        is_hopeful=True,
    )
    names = _Names(
        workspaces.names(connection), {group.id: group.name for group in workspaces.list_groups(connection)}
    )
    troubles = {pool.name: pool.message for pool in grows.pools.values() if pool.message}
    return found, names, {one.id: (one.workspace_id, one.name) for one in live}, troubles


def _decide(found: Snapshot, now: float) -> tuple[dict[str, Wait], dict[str, Admit]]:
    scheduler = Scheduler(found, now)
    cycle = scheduler.cycle(now)
    return {wait.id: wait for wait in waits(scheduler)}, {admit.id: admit for admit in cycle.admits}


def _in(words: tuple[str, str], language: str) -> str:
    return words[0 if language == EN else 1]


def _check_language(language: str) -> None:
    if language not in LANGUAGES:
        raise InvalidError(
            f"There are no sentences in {language!r}.", hint=f"Choose {' or '.join(LANGUAGES)}."
        )
