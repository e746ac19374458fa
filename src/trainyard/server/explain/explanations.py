"""Why a job is where it is, as people want to know it: one sentence, one remedy, in English or Chinese.

The scheduler's own reasons are scheduling/'s; here they get names instead of ids, and lose what the asker may not know.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from sqlalchemy import Connection

from trainyard.lib.errors import InvalidError
from trainyard.messages.catalogue import CATALOGUE, sentence, sentence_of
from trainyard.messages.text import ZH
from trainyard.scheduling import Admit, NodeState, Reason, Scheduler, Snapshot, Wait
from trainyard.scheduling.diagnosis import waits
from trainyard.scheduling.explain import EN, LANGUAGES, explain, remedy
from trainyard.scheduling.reasons import Code
from trainyard.server.auth.actor import Actor
from trainyard.server.cluster import elastic_pools
from trainyard.server.cluster import scheduler_snapshot as snapshot
from trainyard.server.jobs.lifecycle import WAITS_FOR_JOBS
from trainyard.server.jobs.submission import NEEDS_APPROVAL
from trainyard.server.records.nodes import RUNS_IMAGES
from trainyard.server.records.pools import PoolRecord
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
    troubles: Mapping[str, PoolRecord] = field(default_factory=dict)  # pools that could not buy

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
            if not record.avoid:
                return said
            avoided = _in("avoids_nodes", language, nodes=", ".join(record.avoid))
            return replace(said, sentence=joined(said.sentence, avoided, language))
        admit = view.admits.get(record.id)
        places = () if admit is None else tuple(sorted({slot.node for slot in admit.slots}))
        return Explanation(
            state=State.WAITING,
            starts_now=True,
            position=1,
            sentence=_in("state.next", language),
            nodes=places,
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
                sentence=_in("state.starts_now", language),
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
        state = WAITS_FOR_JOBS if waits else f"state.{record.state.value}"
        told = _in(state, language)
        # What an older version has written is there in English alone.
        said = sentence_of(record.reason, record.facts, record.message if language == EN else "", language)
        if said not in {"", told}:
            told = joined(told, said, language)
        needs_approval = record.state is State.HELD and record.reason == NEEDS_APPROVAL
        return Explanation(
            state=record.state,
            starts_now=False,
            reason=record.reason,
            sentence=told,
            remedy=CATALOGUE[NEEDS_APPROVAL].hint(language, {}) or "" if needs_approval else "",
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
        return _in("another_job", language)
    return f"{owner[1]} ({id})"


def _workspace_name(actor: Actor, view: _View, id: str, language: str) -> str:  # noqa: A002  # same
    if actor.can_see(id):
        return view.names.workspaces.get(id, id)
    return _in("another_workspace", language)


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
    told = [_told(view.troubles[pool], language) for pool in pools if pool in view.troubles]
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
    text = CATALOGUE["no_node_runs_images"]
    return replace(said, sentence=_in("no_node_runs_images", language), remedy=text.hint(language, {}) or "")


def _told(pool: PoolRecord, language: str) -> str:
    if language == EN:
        return f"{pool.name}: {pool.message}"
    text = CATALOGUE.get(pool.reason)
    said = sentence(pool.reason, pool.facts, pool.message, language)
    hint = "" if text is None else text.hint(language, pool.facts or {}) or ""
    return f"资源池 {pool.name}：{said}{hint}"


def _read(
    connection: Connection, now: float
) -> tuple[Snapshot, _Names, dict[str, tuple[str, str]], dict[str, PoolRecord]]:
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
    troubles = {pool.name: pool for pool in grows.pools.values() if pool.message}
    return found, names, {one.id: (one.workspace_id, one.name) for one in live}, troubles


def _decide(found: Snapshot, now: float) -> tuple[dict[str, Wait], dict[str, Admit]]:
    scheduler = Scheduler(found, now)
    cycle = scheduler.cycle(now)
    return {wait.id: wait for wait in waits(scheduler)}, {admit.id: admit for admit in cycle.admits}


def _in(code: str, language: str, **values: object) -> str:
    return CATALOGUE[code].sentence(language, values) or ""


def joined(first: str, second: str, language: str) -> str:
    """Two sentences in a row; Chinese ones have no blank between them."""
    return f"{first}{second}" if language == ZH else f"{first} {second}"


def _check_language(language: str) -> None:
    if language not in LANGUAGES:
        raise InvalidError(
            f"There are no sentences in {language!r}.", hint=f"Choose {' or '.join(LANGUAGES)}."
        )
