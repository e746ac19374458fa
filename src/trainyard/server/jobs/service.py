"""Jobs: submit, look, and say what is wanted of one. What becomes of them is the loops' work.

Why a job waits is explanations.py's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Protocol

from sqlalchemy import Connection

from trainyard.lib.errors import ConflictError, DeniedError, InvalidError, NotFoundError, StaleError
from trainyard.messages.catalogue import failure
from trainyard.server import validation
from trainyard.server.auth.actor import Actor, require
from trainyard.server.explain.explanations import Explanation
from trainyard.server.jobs import submission
from trainyard.server.jobs.dependency_checks import open_needs, waits_on
from trainyard.server.jobs.explainer import Explainer
from trainyard.server.jobs.submission import NEEDS_APPROVAL, answered, digest_of, keep_answer, submit_in
from trainyard.server.launch import kinds
from trainyard.server.people.workspace_lookup import find_workspace
from trainyard.server.records.idempotency import KeyTakenError
from trainyard.server.records.tasks import TaskRecord
from trainyard.server.records.workloads import WorkloadRecord
from trainyard.server.secrets.masking import masked, masked_record, without_secrets
from trainyard.server.service_context import Context, Page
from trainyard.server.store.jobs import workloads
from trainyard.server.store.people import users
from trainyard.server.usage.costs import refuse_resuming
from trainyard.spec.events import Subject
from trainyard.spec.workload import FINAL, Desired, RoleSpec, State, WorkloadSpec

BULK = 10_000
PAGE = 1000
FURTHEST = 10_000_000  # nobody turns so many pages; larger numbers do not fit into a query
_UNSTARTED = frozenset({State.HELD, State.WAITING})
_CHANGEABLE = frozenset(one.name for one in fields(WorkloadSpec))


@dataclass(frozen=True, slots=True, kw_only=True)
class JobQuery:
    """Which jobs to list."""

    workspace: str = ""  # id or name
    user: str = ""  # name
    mine: bool = False
    states: Collection[State] = ()
    kind: str = ""
    name_part: str = ""
    id_part: str = ""
    since: float | None = None
    until: float | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    origin: str = ""  # sweep:…, schedule:…
    cursor: str = ""
    limit: int = 50
    offset: int = 0
    newest_first: bool = True
    with_total: bool = False


class Jobs:
    """`services.jobs`."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._explainer = Explainer(context)

    def close(self) -> None:
        """Stop what goes on beside requests."""
        self._explainer.close()

    # -- submitting

    async def submit(
        self,
        actor: Actor,
        spec: WorkloadSpec,
        *,
        idempotency_key: str = "",
        dlc: Mapping[str, Any] | None = None,
        hold: bool = False,
        origin: str = "",
    ) -> WorkloadRecord:
        """Put a job into the queue. With the same key it is submitted once, however often this is called."""
        records = await self._submit(actor, [spec], idempotency_key, dlc=dlc, hold=hold, origin=origin)
        return records[0]

    async def submit_many(
        self,
        actor: Actor,
        specs: Sequence[WorkloadSpec],
        *,
        idempotency_key: str = "",
        hold: bool = False,
        origin: str = "",
    ) -> list[WorkloadRecord]:
        """Submit many, all or none, in their order."""
        if not 1 <= len(specs) <= BULK:
            raise InvalidError(f"There are {len(specs)} jobs.", hint=f"Submit 1 to {BULK} at once.")
        return await self._submit(actor, specs, idempotency_key, dlc=None, hold=hold, origin=origin)

    async def _submit(
        self,
        actor: Actor,
        several: Sequence[WorkloadSpec],
        key: str,
        *,
        dlc: Mapping[str, Any] | None,
        hold: bool,
        origin: str,
    ) -> list[WorkloadRecord]:
        for spec in several:
            submission.check(spec)
        validation.check_text("idempotency_key", key, longest=200)
        digest = digest_of(several, dlc, self._context.seal) if key else ""
        now = self._context.now()

        def work(connection: Connection) -> list[WorkloadRecord]:
            if key and (known := answered(connection, actor, key, digest)) is not None:
                return known
            records = submit_in(connection, self._context, actor, several, dlc=dlc, hold=hold, origin=origin)
            if key:
                keep_answer(connection, actor, key, digest, records, now)
            return records

        try:
            return await self._context.write(actor, "jobs.submit", several[0].workspace, work)
        except KeyTakenError:  # the same request, this moment, through another server: its answer is ours
            return await self._context.write(actor, "jobs.submit", several[0].workspace, work)

    async def clone(
        self,
        actor: Actor,
        job_id: str,
        changes: Mapping[str, Any] | None = None,
        *,
        idempotency_key: str = "",
    ) -> WorkloadRecord:
        """Submit a job like another one, with some fields of its spec changed.

        Somebody else's secrets are not copied: variables that are secrets are left out.
        """
        original = await self._context.db.read(lambda c: _visible(c, actor, job_id))
        spec = original.spec if original.user_id == actor.user_id else without_secrets(original.spec)
        for name in changes or {}:
            if name not in _CHANGEABLE:
                raise InvalidError(
                    f"A job has no field {name!r}.", hint=f"There are: {', '.join(sorted(_CHANGEABLE))}."
                )
        # What it waited for is in the past.
        spec = replace(spec, **{"workspace": original.workspace_id, "after": (), **(changes or {})})
        return await self.submit(actor, spec, idempotency_key=idempotency_key)

    # -- looking

    async def get(self, actor: Actor, job_id: str) -> WorkloadRecord:
        """One job. One of a workspace that the actor does not belong to is as if there were none.

        It has *** for its secrets, whoever asks and from whichever door they come.
        """
        return masked_record(await self._context.db.read(lambda c: _visible(c, actor, job_id)))

    async def is_known(self, job_id: str) -> bool:
        """Whether a job has this id, whoever may see it."""
        return await self._context.db.read(lambda c: workloads.find(c, job_id) is not None)

    async def list(self, actor: Actor, query: JobQuery | None = None) -> Page[WorkloadRecord]:
        """Jobs of the actor's workspaces, newest first."""
        wanted = query or JobQuery()
        limit = min(max(1, wanted.limit), PAGE)

        def work(connection: Connection) -> Page[WorkloadRecord]:
            criteria = _criteria(connection, actor, wanted)
            if criteria is None:
                return Page((), total=0 if wanted.with_total else None)
            found = workloads.list_page(
                connection,
                after_id=wanted.cursor,
                limit=limit + 1,
                offset=min(max(0, wanted.offset), FURTHEST),
                newest_first=wanted.newest_first,
                **criteria,
            )
            total = workloads.count(connection, **criteria) if wanted.with_total else None
            more = len(found) > limit
            return Page(tuple(found[:limit]), found[limit - 1].id if more else "", total)

        page = await self._context.db.read(work)
        shown = [masked_record(record) for record in page.items]
        return replace(page, items=await self._explainer.with_positions(actor, shown))

    async def counts(self, actor: Actor, workspace: str) -> dict[State, int]:
        """How many jobs of a workspace are in each state."""

        def work(connection: Connection) -> dict[State, int]:
            record = find_workspace(connection, actor, workspace)
            require(actor, "jobs:read", record.id)
            return workloads.counts_by_state(connection, record.id)

        return await self._context.db.read(work)

    async def tasks(self, actor: Actor, job_id: str, *, attempt: int | None = None) -> Sequence[TaskRecord]:
        """The tasks of a job's last attempt, or of another one; of all with `attempt` 0."""

        def work(connection: Connection) -> Sequence[TaskRecord]:
            record = _visible(connection, actor, job_id)
            wanted = record.attempt if attempt is None else attempt
            return workloads.tasks(connection, job_id, wanted or None)

        return await self._context.db.read(work)

    async def for_terminal(self, actor: Actor, job_id: str, task: str) -> tuple[WorkloadRecord, TaskRecord]:
        """A task that this actor may open a terminal in: one that runs, of a job of theirs."""

        def work(connection: Connection) -> tuple[WorkloadRecord, TaskRecord]:
            record = _visible(connection, actor, job_id)
            require_own(actor, record, "jobs:exec")
            self._context.audit(
                connection, actor, "jobs.exec", f"{job_id}/{task}", workspace_id=record.workspace_id
            )
            found = [
                one
                for one in workloads.tasks(connection, job_id, record.attempt)
                if not task or one.name == task
            ]
            if not found:
                raise NotFoundError(
                    f"The job {job_id} has no task {task!r}.", hint="See `trainyard jobs tasks`."
                )
            if record.state not in {State.RUNNING, State.RETAINED}:
                raise ConflictError(
                    f"The job {job_id} is {record.state.value}: nothing runs.", hint="Wait until it runs."
                )
            return masked_record(record), found[0]

        return await self._context.write(actor, "jobs.exec", job_id, work, wakes=False)

    async def explain(self, actor: Actor, job_id: str, *, language: str = "en") -> Explanation:
        """Why a job is where it is; for one that waits, its position, the reason, the remedy and an estimate."""
        return await self._explainer.explain(actor, await self.get(actor, job_id), language=language)

    async def dry_run(self, actor: Actor, spec: WorkloadSpec, *, language: str = "en") -> Explanation:
        """What would happen to this job now. Nothing is kept."""
        submission.check(spec)

        def work(connection: Connection) -> tuple[WorkloadSpec, str]:
            open_needs(connection, actor, spec)
            # As if it were submitted, so that what would be refused then is refused now.
            (made,) = submission.new_records(connection, self._context, actor, [kinds.fit(spec)])
            return made.spec, made.workspace_id

        fitted, workspace_id = await self._context.db.read(work)
        return await self._explainer.dry_run(actor, fitted, workspace_id, language=language)

    # -- saying what is wanted

    async def set_desired(
        self,
        actor: Actor,
        job_id: str,
        desired: Desired,
        *,
        version: int | None = None,
    ) -> WorkloadRecord:
        """Stop, pause or resume a job; the loops see to it. Refused, with the reason, where it cannot be."""

        def change(record: WorkloadRecord) -> WorkloadRecord:
            refuse_wish(record, desired)
            return replace(record, desired=desired)

        codes = {Desired.CANCEL: "stop", Desired.PAUSE: "pause", Desired.RUN: "resume"}
        said = {Desired.CANCEL: "stopped", Desired.PAUSE: "paused", Desired.RUN: "resumed"}
        return await self._change(
            actor, job_id, f"jobs.{codes[desired]}", f"{codes[desired]}_wanted",
            f"{actor.name} wants it {said[desired]}.", change, version=version, then=self._afford,
        )  # fmt: skip

    def _afford(self, connection: Connection, record: WorkloadRecord) -> WorkloadRecord:
        if record.desired is Desired.RUN:
            refuse_resuming(connection, self._context.now(), record)
        return record

    async def set_priority(
        self,
        actor: Actor,
        job_id: str,
        priority: int,
        *,
        version: int | None = None,
    ) -> WorkloadRecord:
        """Change the priority of a job that has not started; refused later, because it would have no effect."""
        validation.check_priority(priority)

        def change(record: WorkloadRecord) -> WorkloadRecord:
            if record.state not in _UNSTARTED:
                raise ConflictError(
                    f"The job {record.id} is {record.state.value}: its priority has no effect any more.",
                    hint="Priorities order the queue; stop it and clone it to queue again.",
                )
            return replace(record, priority=priority)

        message = f"{actor.name} set its priority to {priority}."
        return await self._change(
            actor, job_id, "jobs.set_priority", "priority_changed", message, change,
            version=version, data={"priority": priority},
        )  # fmt: skip

    async def approve(self, actor: Actor, job_id: str) -> WorkloadRecord:
        """Let a job go on that waits for approval."""

        def change(record: WorkloadRecord) -> WorkloadRecord:
            require(actor, "jobs:approve", record.workspace_id)
            if record.state is not State.HELD or record.reason != NEEDS_APPROVAL:
                raise ConflictError(f"The job {record.id} does not wait for approval.", hint="See its state.")
            return replace(record, desired=Desired.RUN, reason="", message="")

        return await self._change(
            actor, job_id, "jobs.approve", "approved", f"{actor.name} approved it.", change, own=False, then=waits_on
        )  # fmt: skip

    async def delete(self, actor: Actor, job_id: str) -> None:
        """Remove an ended job, with its logs, from everybody's sight."""

        def change(record: WorkloadRecord) -> WorkloadRecord:
            if record.state not in FINAL:
                raise ConflictError(f"The job {record.id} has not ended.", hint="Stop it first.")
            return replace(record, deleted_at=self._context.now())

        await self._change(actor, job_id, "jobs.delete", "deleted", f"{actor.name} deleted it.", change)

    async def _change(
        self,
        actor: Actor,
        job_id: str,
        action: str,
        code: str,
        message: str,
        change: Any,
        *,
        version: int | None = None,
        own: bool = True,
        data: Mapping[str, Any] | None = None,
        then: Callable[[Connection, WorkloadRecord], WorkloadRecord] | None = None,
    ) -> WorkloadRecord:
        def work(connection: Connection) -> WorkloadRecord:
            record = _visible(connection, actor, job_id, lock=True)
            if own:
                require_own(actor, record, "jobs:write")
            if version is not None and version != record.version:
                raise StaleError(
                    f"The job {job_id} has version {record.version} by now, not {version}.",
                    hint="Load it again.",
                )
            changed = change(record)
            if then is not None:
                changed = then(connection, changed)
            if changed == record:
                return record
            saved = workloads.save(connection, changed)
            space = record.workspace_id
            self._context.tell(
                connection, actor, Subject.WORKLOAD, job_id, code, message,
                workspace_id=space, state=record.state.value, data=data,
            )  # fmt: skip
            self._context.audit(connection, actor, action, job_id, workspace_id=space, data=data)
            return saved

        return masked_record(await self._context.write(actor, action, job_id, work))


def refuse_wish(record: WorkloadRecord, desired: Desired) -> None:
    """Raise ConflictError where a job cannot be stopped, paused or resumed as it is. Wishing twice is wishing once."""
    state = record.state
    if desired is record.desired and state not in FINAL:
        return
    if desired is Desired.CANCEL:
        if state in FINAL and state is not State.CANCELLED:
            raise ConflictError(
                f"The job {record.id} has {state.value} already.", hint="There is nothing to stop."
            )
        return
    if state in FINAL:
        raise ConflictError(f"The job {record.id} has ended.", hint="Clone it to run it again.")
    if record.desired is Desired.CANCEL:
        raise ConflictError(f"The job {record.id} is being stopped.", hint="Clone it to run it again.")
    if state is State.HELD and record.reason == NEEDS_APPROVAL:
        raise ConflictError(
            f"The job {record.id} waits for approval.",
            hint="An administrator of the workspace can approve it.",
        )
    over = state is State.RETAINED or (state is State.FINISHING and record.ending in FINAL)
    if desired is Desired.PAUSE and over:
        raise ConflictError(
            f"The program of the job {record.id} has ended.", hint="There is nothing to pause."
        )


def _visible(connection: Connection, actor: Actor, job_id: str, *, lock: bool = False) -> WorkloadRecord:
    record = workloads.find(connection, job_id, lock=lock)
    if record is None or not actor.can_see(record.workspace_id):
        raise failure(NotFoundError, "no_job", job=job_id)
    require(actor, "jobs:read", record.workspace_id)
    return record


class Owned(Protocol):
    """What belongs to somebody, in a workspace."""

    @property
    def id(self) -> str: ...
    @property
    def user_id(self) -> str: ...
    @property
    def workspace_id(self) -> str: ...


def require_own(actor: Actor, record: Owned, scope: str, *, what: str = "job") -> None:
    """Raise DeniedError unless it is the actor's own, or they manage jobs of others there."""
    require(actor, scope, record.workspace_id)
    if record.user_id == actor.user_id:
        return
    if not actor.can("jobs:manage", record.workspace_id):
        raise DeniedError(
            f"The {what} {record.id} is somebody else's.",
            hint="Ask them, or an administrator of the workspace.",
        )


def _criteria(connection: Connection, actor: Actor, query: JobQuery) -> dict[str, Any] | None:
    """What the store is asked; None where nothing can match."""
    criteria: dict[str, Any] = {
        "workspace_ids": actor.places("jobs:read"),
        "states": query.states,
        "kind": query.kind,
        "name_part": query.name_part,
        "id_part": query.id_part,
        "since": query.since,
        "until": query.until,
        "tags": query.tags,
        "origin": query.origin,
    }
    if query.workspace:
        record = find_workspace(connection, actor, query.workspace)
        require(actor, "jobs:read", record.id)
        criteria["workspace_ids"] = [record.id]
    if query.mine:
        criteria["user_id"] = actor.user_id
    elif query.user:
        found = users.find_by_name(connection, query.user)
        if found is None:
            return None
        criteria["user_id"] = found.id
    return criteria


__all__ = [
    "NEEDS_APPROVAL",
    "JobQuery",
    "Jobs",
    "RoleSpec",
    "masked",
    "refuse_wish",
    "without_secrets",
]
