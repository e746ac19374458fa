"""Looks at the cluster for people who ask why a job is where it is. The sentences are explain/explanations.py."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from sqlalchemy import Connection

from trainyard.lib.errors import InvalidError
from trainyard.messages.catalogue import CATALOGUE, sentence_of
from trainyard.scheduling import Admit, Reason, Scheduler, Snapshot, Wait
from trainyard.scheduling.diagnosis import waits
from trainyard.scheduling.explain import EN, LANGUAGES, explain, remedy
from trainyard.scheduling.reasons import Code
from trainyard.server.auth.actor import Actor
from trainyard.server.cluster import scheduler_snapshot as snapshot
from trainyard.server.cluster.snapshot_loader import load_pools, load_quotas
from trainyard.server.explain.explanations import (
    QUOTAS,
    ROLES,
    ClusterNames,
    ClusterView,
    Explanation,
    in_language,
    job_name,
    joined,
    start_in_sight,
    with_images,
    with_trouble,
    workspace_name,
)
from trainyard.server.jobs.lifecycle import WAITS_FOR_JOBS
from trainyard.server.jobs.submission import NEEDS_APPROVAL
from trainyard.server.records.pools import PoolRecord
from trainyard.server.records.tasks import TaskRecord
from trainyard.server.records.workloads import WorkloadRecord
from trainyard.server.service_context import Context
from trainyard.server.store.cluster import nodes
from trainyard.server.store.jobs import workloads
from trainyard.server.store.people import users, workspaces
from trainyard.server.store.usage import past_use
from trainyard.spec.workload import HOLDING, State, WorkloadSpec

OLDEST_ANSWER_SECONDS = 10.0  # to somebody who asks about one job
FIRST_LOOK_SECONDS = 0.3  # so long a list waits for the first view; later it takes the last one
DRY_RUN = "dry-run"


class Explainer:
    """Looks at the cluster when somebody asks, and keeps what it saw for a moment."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._view: ClusterView | None = None
        self._looking = asyncio.Lock()
        self._refreshing: asyncio.Future[ClusterView] | None = None

    async def explain(self, actor: Actor, record: WorkloadRecord, *, language: str = EN) -> Explanation:
        """One job."""
        check_language(language)
        if record.state is not State.WAITING:
            return await self._settled(record, language)
        view = await self._look(record.id)
        wait = view.waits.get(record.id)
        if wait is not None:
            reason = await self._readable(actor, view, wait.reason, language)
            said = with_trouble(self._waiting(replace(wait, reason=reason), language), reason, view, language)
            said = with_images(said, record.spec, reason, view, language)
            if not record.avoid:
                return said
            avoided = in_language("avoids_nodes", language, nodes=", ".join(record.avoid))
            return replace(said, sentence=joined(said.sentence, avoided, language))
        admit = view.admits.get(record.id)
        places = () if admit is None else tuple(sorted({slot.node for slot in admit.slots}))
        return Explanation(
            state=State.WAITING,
            starts_now=True,
            position=1,
            sentence=in_language("state.next", language),
            nodes=places,
        )

    async def dry_run(
        self, actor: Actor, spec: WorkloadSpec, workspace_id: str, *, language: str = EN
    ) -> Explanation:
        """A job that is not submitted, as if it were now."""
        check_language(language)
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
                sentence=in_language("state.starts_now", language),
                estimated_start=now,
                nodes=places,
            )
        wait = waiting[DRY_RUN]
        reason = await self._readable(actor, view, wait.reason, language)
        said = self._waiting(replace(wait, reason=reason), language)
        return with_images(said, spec, reason, view, language)

    async def _settled(self, record: WorkloadRecord, language: str) -> Explanation:
        tasks: Sequence[TaskRecord] = ()
        if record.state in HOLDING:
            tasks = await self._context.db.read(lambda c: workloads.tasks(c, record.id, record.attempt))
        waits = record.state is State.HELD and record.reason == WAITS_FOR_JOBS
        state = WAITS_FOR_JOBS if waits else f"state.{record.state.value}"
        told = in_language(state, language)
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
            estimated_start=start_in_sight(wait.start),
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

    async def _with_position(self, actor: Actor, view: ClusterView, record: WorkloadRecord) -> WorkloadRecord:
        wait = view.waits.get(record.id) if record.state is State.WAITING else None
        if wait is None:
            return record
        reason = await self._readable(actor, view, wait.reason, EN)
        return replace(
            record,
            wait={"position": wait.position, "start": start_in_sight(wait.start)},
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

    async def _look(self, needed: str | None) -> ClusterView:
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
                view = self._view = ClusterView(now, found, names, owners, waiting, admitted, cost, troubles)
            return view

    async def _readable(self, actor: Actor, view: ClusterView, reason: Reason, language: str) -> Reason:
        """The same reason with names for ids; what is another workspace's is not named."""
        figures = dict(reason.figures)
        space = figures.get("workspace")
        if isinstance(space, str):
            figures["workspace"] = workspace_name(actor, view, space, language)
        subject = reason.subject
        if reason.code in QUOTAS:
            subject = view.names.workspaces.get(subject) or view.names.groups.get(subject) or subject
        elif reason.code is Code.USER_LIMIT:
            known = await self._context.db.read(lambda c: users.names(c, [subject]))
            subject = known.get(subject, subject)
        elif reason.code not in ROLES and subject:
            subject = job_name(actor, view, subject, language)
        return replace(reason, subject=subject, figures=figures)


def _forget_error(done: asyncio.Future[ClusterView]) -> None:
    """Who shows a list does without positions then; who asks for a reason meets the error itself."""
    if not done.cancelled():
        done.exception()


def _read(
    connection: Connection, now: float
) -> tuple[Snapshot, ClusterNames, dict[str, tuple[str, str]], dict[str, PoolRecord]]:
    live = workloads.in_states(connection, {State.WAITING, *HOLDING})
    tasks = workloads.tasks_holding(connection)
    grows = load_pools(connection)
    found = snapshot.snapshot_of(
        nodes=nodes.list_nodes(connection),
        waiting=[one for one in live if one.state is State.WAITING],
        running=[(one, tasks.get(one.id, ())) for one in live if one.state in HOLDING],
        quotas=load_quotas(connection),
        now=now,
        past_use=past_use.load(connection, now),
        elastic=grows,
        is_hopeful=True,
    )
    names = ClusterNames(
        workspaces.names(connection), {group.id: group.name for group in workspaces.list_groups(connection)}
    )
    troubles = {pool.name: pool for pool in grows.pools.values() if pool.message}
    return found, names, {one.id: (one.workspace_id, one.name) for one in live}, troubles


def _decide(found: Snapshot, now: float) -> tuple[dict[str, Wait], dict[str, Admit]]:
    scheduler = Scheduler(found, now)
    cycle = scheduler.cycle(now)
    return {wait.id: wait for wait in waits(scheduler)}, {admit.id: admit for admit in cycle.admits}


def check_language(language: str) -> None:
    """Raise InvalidError where there are no sentences in a language."""
    if language not in LANGUAGES:
        raise InvalidError(
            f"There are no sentences in {language!r}.", hint=f"Choose {' or '.join(LANGUAGES)}."
        )
