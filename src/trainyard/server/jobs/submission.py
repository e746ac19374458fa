"""New jobs: from specs to records, and what is remembered so that a repeated request submits once.

Who asks for it, and through which door, is jobs.py's, sweeps.py's and schedules.py's.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection

from trainyard.lib.ids import Serials
from trainyard.server import validation
from trainyard.server.auth.actor import Actor, require
from trainyard.server.cluster.storages import check_mounts
from trainyard.server.jobs.code_sources import check_code, fit_code
from trainyard.server.jobs.dependency_checks import check_needs, hold_for_needs
from trainyard.server.jobs.device_types import Devices
from trainyard.server.launch import kinds
from trainyard.server.people.secrets import check_secrets, require_secrets
from trainyard.server.people.workspace_lookup import choose_workspace
from trainyard.server.records.idempotency import AnswerRecord
from trainyard.server.records.workloads import WorkloadRecord
from trainyard.server.secrets.masking import sealed, sealed_request
from trainyard.server.secrets.sealing import Seal
from trainyard.server.service_context import Context
from trainyard.server.store import audit, events
from trainyard.server.store.jobs import dependencies, idempotency, specs, workloads
from trainyard.server.usage.costs import refuse_over_budget
from trainyard.spec.events import Event, Subject
from trainyard.spec.workload import Desired, State, WorkloadSpec

NEEDS_APPROVAL = "needs_approval"

JOB_PREFIX = "job"  # as long as "dlc", with which ids began before, and later in the alphabet: new ones sort after old ones
_ids = Serials()


def check(spec: WorkloadSpec) -> None:
    """Everything about a job that can be said without looking at anything else."""
    spec = kinds.fit(spec)
    validation.check_spec(spec)
    check_needs(spec)
    check_code(spec)
    check_secrets(spec)


def submit_in(
    connection: Connection,
    context: Context,
    actor: Actor,
    several: Sequence[WorkloadSpec],
    *,
    dlc: Mapping[str, Any] | None = None,
    hold: bool = False,
    origin: str = "",
) -> list[WorkloadRecord]:
    """Write new jobs, their events and the audit, in the caller's transaction. They were checked before."""
    now = context.now()
    several = [kinds.fit(spec) for spec in several]
    made = new_records(connection, context, actor, several, dlc=dlc, hold=hold, origin=origin)
    records, needs = hold_for_needs(connection, actor, made)
    workloads.insert_many(connection, records)
    dependencies.insert_needs(connection, needs)
    events.append_many(connection, [submitted(actor, record, now) for record in records])
    entries = [
        context.entry(actor, "jobs.submit", record.id, workspace_id=record.workspace_id) for record in records
    ]
    audit.append_many(connection, entries)
    return records


def new_records(
    connection: Connection,
    context: Context,
    actor: Actor,
    several: Sequence[WorkloadSpec],
    *,
    dlc: Mapping[str, Any] | None = None,
    hold: bool = False,
    origin: str = "",
) -> list[WorkloadRecord]:
    """What a submission makes, not written yet; raises where the actor may not, or a job does not fit its workspace."""
    now, seal = context.now(), context.seal
    kept_dlc = None if dlc is None else sealed_request(dlc, seal, actor.user_id)
    places = {
        name: choose_workspace(connection, actor, name) for name in {spec.workspace for spec in several}
    }
    for place in places.values():
        require(actor, "jobs:write", place.id)
        refuse_over_budget(connection, now, place.id, actor.user_id)
    ids, devices = [_ids.new(JOB_PREFIX) for _ in several], Devices(connection)
    records = []
    for job_id, asked in zip(ids, several, strict=True):
        place = places[asked.workspace]
        spec = replace(validation.fit_to_workspace(asked, place), workspace=place.id)
        spec = devices.settle(spec, place)
        spec = fit_code(connection, spec, place.id)
        require_secrets(connection, actor, spec, place.id)
        check_mounts(connection, spec, user=actor.name, workspace_id=place.id)
        approval = spec.needs_approval or (place.needs_approval and not actor.can("jobs:approve", place.id))
        held = approval or hold
        records.append(
            WorkloadRecord(
                id=job_id,
                name=spec.name,
                kind=spec.kind,
                workspace_id=place.id,
                user_id=actor.user_id,
                spec=sealed(spec, seal, actor.user_id),
                priority=spec.priority,
                preemptible=spec.preemptible,
                state=State.HELD if held else State.WAITING,
                desired=Desired.PAUSE if held else Desired.RUN,
                reason=NEEDS_APPROVAL if approval else "",
                message="It waits for approval." if approval else "",
                submitted_at=now,
                queued_at=None if held else now,
                dlc=kept_dlc,
                origin=origin,
            )
        )
    return records


def submitted(actor: Actor, record: WorkloadRecord, now: float) -> Event:
    """What is said of a new job."""
    return Event(
        time=now,
        subject=Subject.WORKLOAD,
        subject_id=record.id,
        workspace_id=record.workspace_id,
        code="submitted",
        message=f"{actor.name} submitted it." + (f" {record.message}" if record.message else ""),
        state=record.state.value,
        actor=actor.name,
    )


def digest_of(several: Sequence[WorkloadSpec], dlc: Mapping[str, Any] | None, seal: Seal) -> str:
    """What tells one request from another; with a key, so that nobody who reads it can try secrets out."""
    data = [specs.encode(spec) for spec in several]
    text = json.dumps([data, dlc], sort_keys=True, default=str)
    key = seal.derive("idempotency")
    return hmac.new(key, text.encode(errors="surrogatepass"), hashlib.sha256).hexdigest()


def answered(connection: Connection, actor: Actor, key: str, digest: str) -> list[WorkloadRecord] | None:
    """What was submitted with this key before."""
    answer = idempotency.find(connection, actor.user_id, f"jobs:{key}", digest)
    if answer is None:
        return None
    known = workloads.load_many(connection, answer.body.decode().split())
    if not known:  # all of them were removed since
        idempotency.forget(connection, actor.user_id, answer.key)
    return list(known.values()) or None


def keep_answer(
    connection: Connection, actor: Actor, key: str, digest: str, records: Sequence[WorkloadRecord], now: float
) -> None:
    """Remember what was submitted with a key."""
    body = " ".join(record.id for record in records).encode()
    idempotency.keep(
        connection,
        AnswerRecord(
            user_id=actor.user_id, key=f"jobs:{key}", digest=digest, status=201, body=body, created_at=now
        ),
    )
