"""Schedules: jobs that are submitted by the clock, with the rights that their owner has at that time.

Who looks at the clock is leader/schedule_loop.py; when the moments are is spec/cron.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection

from trainyard.lib.errors import ConflictError, DeniedError, Error, InvalidError, NotFoundError, StaleError
from trainyard.lib.ids import new_id
from trainyard.messages.catalogue import failure
from trainyard.server.auth.actor import Actor, require
from trainyard.server.jobs import submission
from trainyard.server.jobs.service import require_own
from trainyard.server.people.workspace_lookup import choose_workspace
from trainyard.server.records.schedules import ScheduleRecord
from trainyard.server.records.workloads import WorkloadRecord
from trainyard.server.secrets.masking import sealed, without_secrets
from trainyard.server.service_context import Context
from trainyard.server.store.jobs import schedules, workloads
from trainyard.server.store.people import users, workspaces
from trainyard.server.validation import FieldError, check_name
from trainyard.spec import cron
from trainyard.spec.events import Subject
from trainyard.spec.workload import FINAL, Desired, WorkloadSpec

PREFIX = "schedule:"
SKIP, ALLOW, REPLACE = OVERLAPS = ("skip", "allow", "replace")
MOST = 1000  # of one workspace
# Set back by less than this, the clock shows moments again whose jobs there are; by more, it was wrong when they came.
REPEATED_SECONDS = 3 * 3600.0
_CHANGEABLE = frozenset({"name", "cron", "timezone", "overlap", "spec", "is_active"})


class Schedules:
    """`services.schedules`."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def add(
        self,
        actor: Actor,
        name: str,
        line: str,
        spec: WorkloadSpec | None = None,
        *,
        from_job: str = "",
        timezone: str = "UTC",
        overlap: str = SKIP,
    ) -> ScheduleRecord:
        """Submit this job, or one like another, whenever the clock shows `line` in that time zone."""

        def work(connection: Connection) -> ScheduleRecord:
            wanted = spec_from(connection, actor, spec, from_job)
            place = choose_workspace(connection, actor, wanted.workspace)
            require(actor, "jobs:write", place.id)
            record = ScheduleRecord(
                id=new_id("sch"), name=name, workspace_id=place.id, user_id=actor.user_id, cron=line,
                timezone=timezone, overlap=overlap, spec=replace(wanted, workspace=place.id),
                created_at=self._context.now(),
            )  # fmt: skip
            made = _planned(_checked(record), self._context.now())
            made = replace(made, spec=sealed(made.spec, self._context.seal, made.user_id))
            if len(schedules.list_schedules(connection, [place.id])) >= MOST:
                raise ConflictError(f"{place.name} has {MOST} schedules already.", hint="Remove some.")
            schedules.insert_schedule(connection, made)
            self._context.audit(connection, actor, "schedules.add", made.id, workspace_id=place.id)
            return made

        return await self._context.write(actor, "schedules.add", name, work, wakes=False)

    async def get(self, actor: Actor, text: str) -> ScheduleRecord:
        """One, by id or name."""
        return await self._context.db.read(lambda c: _visible(c, actor, text))

    async def change(self, actor: Actor, text: str, **changes: Any) -> ScheduleRecord:
        """Change name, cron, timezone, overlap, spec or is_active. Resumed, it goes on with the next moment."""
        for name in changes:
            if name not in _CHANGEABLE:
                raise InvalidError(
                    f"A schedule has no {name!r}.", hint=f"There are: {', '.join(_CHANGEABLE)}."
                )

        def work(connection: Connection) -> ScheduleRecord:
            record = _own(connection, actor, text)
            if "spec" in changes and record.user_id != actor.user_id:
                raise DeniedError(
                    f"The job of the schedule {record.name} runs with their rights and secrets: only they may change it.",
                    hint="Pause theirs, and make a schedule of your own.",
                )
            if "spec" in changes:
                changes["spec"] = replace(changes["spec"], workspace=record.workspace_id)
            changed = replace(record, **changes)
            if changed.is_active:
                changed = replace(changed, message="")
            changed = _planned(_checked(changed), self._context.now())
            changed = replace(changed, spec=sealed(changed.spec, self._context.seal, changed.user_id))
            saved = schedules.save_schedule(connection, changed)
            self._context.audit(
                connection, actor, "schedules.change", record.id, workspace_id=record.workspace_id,
                data={"fields": sorted(changes)},
            )  # fmt: skip
            return saved

        return await self._context.write(actor, "schedules.change", text, work, wakes=False)

    async def run_now(self, actor: Actor, text: str) -> WorkloadRecord:
        """Submit its job now, beside the clock: once for every call, whatever runs already."""

        def work(connection: Connection) -> WorkloadRecord:
            record = _own(connection, actor, text)
            owner = owner_of(connection, record)
            made = submission.submit_in(
                connection, self._context, owner, [record.spec], origin=PREFIX + record.id
            )[0]
            schedules.save_schedule(connection, replace(record, last_job=made.id, message=""))
            self._context.audit(
                connection, actor, "schedules.run", record.id, workspace_id=record.workspace_id
            )
            return made

        return await self._context.write(actor, "schedules.run", text, work)

    async def remove(self, actor: Actor, text: str) -> None:
        """Forget one. Jobs that it submitted stay."""

        def work(connection: Connection) -> None:
            record = _own(connection, actor, text)
            schedules.remove_schedule(connection, record.id)
            self._context.audit(
                connection, actor, "schedules.remove", record.id, workspace_id=record.workspace_id
            )

        await self._context.write(actor, "schedules.remove", text, work, wakes=False)

    async def list(self, actor: Actor) -> Sequence[ScheduleRecord]:
        """Those of the actor's workspaces."""
        return await self._context.db.read(lambda c: _all(c, actor))


# -- the clock's own verb


def tick(connection: Connection, context: Context, schedule_id: str, now: float) -> WorkloadRecord | None:
    """Submit the job of a schedule whose time has come, and plan the next, in one transaction: so there is one job a moment.

    However many moments were missed, one job is submitted for them. What cannot be submitted leaves a sentence; an owner
    who may not any more pauses the schedule.
    """
    record = schedules.find_schedule(connection, schedule_id, lock=True)
    if record is None or not record.is_active or record.next_at is None or record.next_at > now:
        return None  # somebody else has done it, or it was changed
    noted = replace(record, last_at=record.next_at, message="")
    made: WorkloadRecord | None = None
    try:
        with connection.begin_nested():
            owner = owner_of(connection, record)
            if _makes_room(connection, context, owner, record):
                made = submission.submit_in(
                    connection, context, owner, [record.spec], origin=PREFIX + record.id
                )[0]
                noted = replace(noted, last_job=made.id)
            else:
                noted = replace(noted, message=f"Skipped: {record.last_job or 'the last job'} had not ended.")
    except OwnerError as error:
        noted = replace(noted, is_active=False, message=f"Paused: {error.message}")
    except StaleError:
        raise  # it is still due, and is looked at again
    except Error as error:
        noted = replace(noted, message=f"Not submitted: {error.message}")
    following = _following(noted, now)
    if following is None and noted.is_active:
        noted = replace(
            noted, is_active=False, message=noted.message or "Paused: its time never comes again."
        )
    schedules.save_schedule(connection, replace(noted, next_at=following))
    return made


def too_late(connection: Connection, now: float) -> list[str]:
    """Schedules that wait for a later moment than the next: it was planned by a clock that was ahead, and set back since."""
    found = []
    for schedule_id, line, timezone, next_at, last_at in schedules.planned(connection):
        following = _moment_after(line, timezone, now, last_at)
        if following is not None and following < next_at:
            found.append(schedule_id)
    return found


def plan_anew(connection: Connection, schedule_id: str, now: float) -> None:
    """Let a schedule wait for its next moment by the clock as it is now."""
    record = schedules.find_schedule(connection, schedule_id, lock=True)
    if record is None or not record.is_active:
        return
    following = _following(record, now)
    if following is not None and record.next_at is not None and following < record.next_at:
        schedules.save_schedule(connection, replace(record, next_at=following))


class OwnerError(ConflictError):
    """The owner of a schedule cannot submit any more."""


def owner_of(connection: Connection, record: ScheduleRecord) -> Actor:
    """The owner as they are now; OwnerError where they may not submit there any more."""
    user = users.find(connection, record.user_id)
    if user is None or not user.is_active:
        raise OwnerError("its owner's account is closed.", hint="Somebody else can make it anew.")
    roles = workspaces.roles_of(connection, user.id)
    owner = Actor(user_id=user.id, name=user.name, is_admin=user.is_admin, roles=roles)
    if not owner.can("jobs:write", record.workspace_id):
        raise OwnerError(
            f"{user.name} may not submit to the workspace any more.", hint="Ask for membership again."
        )
    return owner


def _makes_room(connection: Connection, context: Context, owner: Actor, record: ScheduleRecord) -> bool:
    """Whether another one may run beside those that still do; those that are to be replaced are stopped."""
    if record.overlap == ALLOW:
        return True
    live = [one for one in workloads.of_origin(connection, PREFIX + record.id) if one.state not in FINAL]
    if record.overlap == SKIP or not live:
        return not live
    for one in live:
        if one.desired is not Desired.CANCEL:
            workloads.save(connection, replace(one, desired=Desired.CANCEL))
            context.tell(
                connection, owner, Subject.WORKLOAD, one.id, "stop_wanted",
                f"Its schedule {record.name} replaces it.", workspace_id=one.workspace_id, state=one.state.value,
            )  # fmt: skip
    return True


# -- inside


def spec_from(connection: Connection, actor: Actor, spec: WorkloadSpec | None, from_job: str) -> WorkloadSpec:
    """The job that is given, or a copy of one; somebody else's secrets are not copied."""
    if (spec is None) == (not from_job):
        raise InvalidError("Give a job, or the id of one to copy.", hint="Leave one of them out.")
    if spec is not None:
        return spec
    record = workloads.find(connection, from_job)
    if record is None or not actor.can("jobs:read", record.workspace_id):
        raise failure(NotFoundError, "no_job", job=from_job)
    own = record.spec if record.user_id == actor.user_id else without_secrets(record.spec)
    return replace(own, after=(), workspace=record.workspace_id)


def _checked(record: ScheduleRecord) -> ScheduleRecord:
    check_name(record.name)
    if record.overlap not in OVERLAPS:
        raise FieldError("overlap", f"is {record.overlap!r}", hint=f"Choose one of {', '.join(OVERLAPS)}.")
    cron.parse_cron(record.cron)
    cron.find_timezone(record.timezone)
    submission.check(record.spec)
    if record.spec.after:
        raise FieldError("after", "cannot be in a schedule", hint="Leave it out.")
    return record


def _planned(record: ScheduleRecord, now: float) -> ScheduleRecord:
    """The same with its next moment."""
    following = _following(record, now)
    if following is None and record.is_active:
        raise FieldError("cron", f"{record.cron!r} never comes", hint="The 31st of February is no day.")
    return replace(record, next_at=following)


def _following(record: ScheduleRecord, now: float) -> float | None:
    if not record.is_active:
        return None
    return _moment_after(record.cron, record.timezone, now, record.last_at)


def _moment_after(line: str, timezone: str, now: float, last_at: float | None) -> float | None:
    """The next moment whose job was not submitted yet."""
    is_repeated = last_at is not None and now < last_at <= now + REPEATED_SECONDS
    after = last_at if last_at is not None and is_repeated else now
    return cron.next_after(cron.parse_cron(line), after, cron.find_timezone(timezone))


def _all(connection: Connection, actor: Actor) -> list[ScheduleRecord]:
    return schedules.list_schedules(connection, actor.places("jobs:read"))


def _visible(connection: Connection, actor: Actor, text: str) -> ScheduleRecord:
    found = [one for one in _all(connection, actor) if text in {one.id, one.name}]
    exact = [one for one in found if one.id == text] or found
    mine = [one for one in exact if one.user_id == actor.user_id]
    if len(exact) == 1 or len(mine) == 1:
        return exact[0] if len(exact) == 1 else mine[0]
    if exact:
        ids = ", ".join(one.id for one in exact[:5])
        raise ConflictError(
            f"{len(exact)} schedules are called {text!r}.", hint=f"Name one by its id: {ids}."
        )
    raise failure(NotFoundError, "no_schedule", schedule=text)


def _own(connection: Connection, actor: Actor, text: str) -> ScheduleRecord:
    record = _visible(connection, actor, text)
    require_own(actor, record, "jobs:write", what="schedule")
    return record
