"""Sweeps: one job for every combination of some parameters, submitted, looked at and stopped together.

What the jobs are is spec/sweep.py; each of them is a job like any other, whose `origin` names its sweep.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sqlalchemy import Connection

from trainyard.lib.errors import ConflictError, InvalidError, NotFoundError
from trainyard.lib.ids import new_id
from trainyard.lib.secret_names import is_secret
from trainyard.server.auth.actor import Actor, require, require_of_token
from trainyard.server.jobs.service import Jobs, refuse_wish, require_own
from trainyard.server.records.workloads import WorkloadRecord
from trainyard.server.secrets.masking import masked_record
from trainyard.server.service_context import Context
from trainyard.server.store.jobs import workloads
from trainyard.server.usage.costs import refuse_resuming
from trainyard.spec import sweep
from trainyard.spec.events import Subject
from trainyard.spec.sweep import Axis
from trainyard.spec.workload import FINAL, Desired, State, WorkloadSpec

PREFIX = "sweep:"
MOST_LISTED = 100
_SAID = {Desired.CANCEL: "stopped", Desired.PAUSE: "paused", Desired.RUN: "resumed"}
_CODES = {Desired.CANCEL: "stop", Desired.PAUSE: "pause", Desired.RUN: "resume"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepView:
    """A sweep, from its jobs."""

    id: str
    workspace_id: str
    user_id: str
    submitted_at: float
    jobs: int
    states: Mapping[State, int]
    parameters: Mapping[str, Sequence[str]]


class Sweeps:
    """`services.sweeps`."""

    def __init__(self, context: Context, jobs: Jobs) -> None:
        self._context = context
        self._jobs = jobs

    async def submit(
        self,
        actor: Actor,
        spec: WorkloadSpec,
        axes: Sequence[Axis],
        *,
        idempotency_key: str = "",
        hold: bool = False,
    ) -> tuple[str, list[WorkloadRecord]]:
        """Submit all jobs of a sweep, or none. With the same key it is submitted once."""
        require_of_token(actor, "jobs:read")  # the answer shows them: not after they were submitted
        for axis in axes:
            if any(is_secret(axis.name, value) for value in axis.values):
                raise InvalidError(
                    f"The parameter {axis.name} is a secret: names and tags of the jobs would show it.",
                    hint="Give it as a variable of the job, the same for all of them.",
                )
        several = sweep.expand(spec, axes)
        records = await self._jobs.submit_many(
            actor, several, idempotency_key=idempotency_key, hold=hold, origin=PREFIX + new_id("sw")
        )
        return records[0].origin.removeprefix(PREFIX), records

    async def get(self, actor: Actor, sweep_id: str) -> SweepView:
        """One sweep."""
        return await self._context.db.read(lambda c: _view(_visible(c, actor, sweep_id)))

    async def jobs(self, actor: Actor, sweep_id: str) -> list[WorkloadRecord]:
        """Its jobs, in the order of their parameters."""
        found = await self._context.db.read(lambda c: _visible(c, actor, sweep_id))
        return [masked_record(record) for record in found]

    async def set_desired(self, actor: Actor, sweep_id: str, desired: Desired) -> list[WorkloadRecord]:
        """Stop, pause or resume every job of it that can still be; the others stay as they are."""

        def work(connection: Connection) -> list[WorkloadRecord]:
            changed = []
            for record in _visible(connection, actor, sweep_id):
                require_own(actor, record, "jobs:write")
                if record.state in FINAL or record.desired is desired:
                    continue
                try:
                    refuse_wish(record, desired)
                except ConflictError:  # it is past that; its mates may not be
                    continue
                if desired is Desired.RUN:
                    refuse_resuming(connection, self._context.now(), record)
                saved = workloads.save(connection, replace(record, desired=desired))
                self._context.tell(
                    connection, actor, Subject.WORKLOAD, record.id, f"{_CODES[desired]}_wanted",
                    f"{actor.name} wants its sweep {_SAID[desired]}.",
                    workspace_id=record.workspace_id, state=record.state.value,
                )  # fmt: skip
                changed.append(saved)
            self._context.audit(
                connection, actor, f"sweeps.{_CODES[desired]}", sweep_id, data={"jobs": len(changed)}
            )
            return changed

        return await self._context.write(actor, f"sweeps.{_CODES[desired]}", sweep_id, work)

    async def list(self, actor: Actor, *, mine: bool = False) -> list[SweepView]:
        """The newest sweeps of the actor's workspaces."""

        def work(connection: Connection) -> list[SweepView]:
            places = actor.places("jobs:read")
            found = workloads.origins(
                connection, PREFIX, places, user_id=actor.user_id if mine else "", limit=MOST_LISTED
            )
            return [_view(workloads.of_origin(connection, one)) for one in found]

        return await self._context.db.read(work)


def _visible(connection: Connection, actor: Actor, sweep_id: str) -> list[WorkloadRecord]:
    found = [
        record
        for record in workloads.of_origin(connection, PREFIX + sweep_id)
        if actor.can_see(record.workspace_id)
    ]
    if not found:
        raise NotFoundError(f"There is no sweep {sweep_id!r}.", hint="See `trainyard jobs sweeps`.")
    require(actor, "jobs:read", found[0].workspace_id)
    return found


def _view(records: Sequence[WorkloadRecord]) -> SweepView:
    first = records[0]
    states: dict[State, int] = {}
    parameters: dict[str, dict[str, None]] = {}
    for record in records:
        states[record.state] = states.get(record.state, 0) + 1
        for key, value in record.spec.tags.items():
            if key.startswith(sweep.TAG):
                parameters.setdefault(key.removeprefix(sweep.TAG), {})[value] = None
    return SweepView(
        id=first.origin.removeprefix(PREFIX),
        workspace_id=first.workspace_id,
        user_id=first.user_id,
        submitted_at=first.submitted_at,
        jobs=len(records),
        states=states,
        parameters={name: tuple(values) for name, values in parameters.items()},
    )
