"""Templates: jobs that are kept to be submitted again, for oneself, for a workspace or for all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection

from trainyard.lib.errors import DeniedError, InvalidError, NotFoundError
from trainyard.lib.ids import new_id
from trainyard.messages.catalogue import failure
from trainyard.server.auth.actor import Actor, require
from trainyard.server.jobs import submission
from trainyard.server.jobs.schedules import spec_from
from trainyard.server.jobs.service import Jobs
from trainyard.server.people.workspace_lookup import choose_workspace
from trainyard.server.records.templates import TemplateRecord
from trainyard.server.records.workloads import WorkloadRecord
from trainyard.server.secrets.masking import sealed, without_secrets
from trainyard.server.service_context import Context
from trainyard.server.store.jobs import templates
from trainyard.server.validation import FieldError, check_name, check_text
from trainyard.spec.workload import WorkloadSpec

PREFIX = "template:"
PERSONAL, WORKSPACE, ALL = SCOPES = ("personal", "workspace", "all")
_MERGED = ("env", "tags")


class Templates:
    """`services.templates`."""

    def __init__(self, context: Context, jobs: Jobs) -> None:
        self._context = context
        self._jobs = jobs

    async def save(
        self,
        actor: Actor,
        name: str,
        spec: WorkloadSpec | None = None,
        *,
        from_job: str = "",
        scope: str = PERSONAL,
        workspace: str = "",
        description: str = "",
    ) -> TemplateRecord:
        """Keep a job, or a copy of one, under a name; one's own of that name is replaced.

        What others see has no variables in it that are named like secrets.
        """
        check_name(name)
        check_text("description", description, longest=1000, lines=True)
        if scope not in SCOPES:
            raise FieldError("scope", f"is {scope!r}", hint=f"Choose one of {', '.join(SCOPES)}.")

        def work(connection: Connection) -> TemplateRecord:
            wanted = spec_from(connection, actor, spec, from_job)
            place = None
            if scope == WORKSPACE:
                place = choose_workspace(connection, actor, workspace or wanted.workspace).id
            _require(actor, scope, place)
            shared = (
                sealed(wanted, self._context.seal, actor.user_id)
                if scope == PERSONAL
                else without_secrets(wanted)
            )
            kept = replace(shared, workspace=workspace if scope == PERSONAL else "", after=())
            submission.check(kept)
            record = TemplateRecord(
                id=new_id("tpl"), name=name, scope=scope, user_id=actor.user_id, workspace_id=place, spec=kept,
                description=description, created_at=self._context.now(),
            )  # fmt: skip
            old = _same(connection, record)
            if old is None:
                templates.insert_template(connection, record)
            else:
                _require_owner(actor, old)
                record = templates.save_template(
                    connection, replace(old, spec=kept, description=description or old.description)
                )
            self._context.audit(connection, actor, "templates.save", record.id, workspace_id=place)
            return record

        return await self._context.write(actor, "templates.save", name, work, wakes=False)

    async def get(self, actor: Actor, text: str) -> TemplateRecord:
        """One by its id or name; one's own go before a workspace's, and those before everybody's."""
        return await self._context.db.read(lambda c: _visible(c, actor, text))

    async def submit(
        self,
        actor: Actor,
        text: str,
        changes: Mapping[str, Any] | None = None,
        *,
        role: Mapping[str, Any] | None = None,
        idempotency_key: str = "",
    ) -> WorkloadRecord:
        """Submit a job from a template. Variables and tags are added, `role` changes every role, all else replaces."""
        record = await self.get(actor, text)
        spec = changed(record.spec, changes or {}, role or {})
        if record.scope == WORKSPACE and not spec.workspace:
            spec = replace(spec, workspace=record.workspace_id or "")
        return await self._jobs.submit(
            actor, spec, idempotency_key=idempotency_key, origin=PREFIX + record.id
        )

    async def remove(self, actor: Actor, text: str) -> None:
        """Forget one."""

        def work(connection: Connection) -> None:
            record = _visible(connection, actor, text)
            _require(actor, record.scope, record.workspace_id)
            _require_owner(actor, record)
            templates.remove_template(connection, record.id)
            self._context.audit(
                connection, actor, "templates.remove", record.id, workspace_id=record.workspace_id
            )

        await self._context.write(actor, "templates.remove", text, work, wakes=False)

    async def list(self, actor: Actor) -> Sequence[TemplateRecord]:
        """Those that the actor may use."""
        require(actor, "templates:read")
        return await self._context.db.read(lambda c: _all(c, actor))


def changed(spec: WorkloadSpec, changes: Mapping[str, Any], role: Mapping[str, Any]) -> WorkloadSpec:
    """A template's job with somebody's wishes over it."""
    merged: dict[str, Any] = {
        name: {**getattr(spec, name), **value} if name in _MERGED else value
        for name, value in changes.items()
    }
    roles = merged.pop("roles", None) or spec.roles
    try:
        return replace(spec, **merged, roles=tuple(replace(one, **role) for one in roles))
    except TypeError as error:
        raise InvalidError("A job has no such field.", hint="See the reference of jobs.") from error


def _require(actor: Actor, scope: str, workspace_id: str | None) -> None:
    if scope == WORKSPACE:
        require(actor, "templates:share", workspace_id)
    else:
        require(actor, "templates:manage" if scope == ALL else "templates:write")


def _require_owner(actor: Actor, record: TemplateRecord) -> None:
    manages = record.workspace_id is not None and actor.can("jobs:manage", record.workspace_id)
    if record.user_id != actor.user_id and not (actor.is_admin or manages):
        raise DeniedError(
            f"The template {record.name} is somebody else's.",
            hint="Ask them, or save yours under another name.",
        )


def _same(connection: Connection, record: TemplateRecord) -> TemplateRecord | None:
    for one in templates.list_templates(connection):
        same = (one.name, one.scope, one.workspace_id) == (record.name, record.scope, record.workspace_id)
        if same and (record.scope != PERSONAL or one.user_id == record.user_id):
            return one
    return None


def _all(connection: Connection, actor: Actor) -> list[TemplateRecord]:
    return [
        one
        for one in templates.list_templates(connection)
        if one.scope == ALL
        or (one.scope == PERSONAL and one.user_id == actor.user_id)
        or (one.workspace_id is not None and actor.can("jobs:read", one.workspace_id))
    ]


def _visible(connection: Connection, actor: Actor, text: str) -> TemplateRecord:
    require(actor, "templates:read")
    found = [one for one in _all(connection, actor) if text in {one.id, one.name}]
    if not found:
        raise failure(NotFoundError, "no_template", template=text)
    return min(found, key=lambda one: (one.id != text, SCOPES.index(one.scope)))
