"""A stranger's client, made from our own description, tries everything: nothing may fail inside, all is as described."""

from __future__ import annotations

import collections
import os
import time
from dataclasses import replace

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from trainyard.server.auth.authentication import make_token
from trainyard.server.records.workloads import WorkloadRecord
from trainyard.server.store.jobs import workloads
from trainyard.server.store.people import tokens, users, workspaces
from trainyard.spec.workload import State, WorkloadSpec

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
ENDLESS = {"stream_events", "stream_job_events", "stream_log"}  # of a job that waits, they go on as it does
EXAMPLES = int(os.environ.get("TRAINYARD_REST_EXAMPLES", "4"))  # of each operation, valid and not


def fresh_token(rig) -> str:
    """Another one of the administrator's: what is tried may have closed the last, or them."""

    def work(connection):
        user = users.find_by_name(connection, "admin")
        users.save(connection, replace(user, is_active=True, is_admin=True))
        made = make_token(user.id, time.time())
        tokens.insert_token(connection, made.record)
        return made.token

    token = rig.db.write_now(work)
    rig.services.authentication.forget()
    return token


def real_jobs(rig) -> list[str]:
    def work(connection):
        user = users.find_by_name(connection, "admin")
        place = next(iter(workspaces.names(connection)))
        records = [
            WorkloadRecord(
                id=f"dlc{n:015d}",
                name=f"j{n}",
                kind="job",
                workspace_id=place,
                user_id=user.id,
                spec=WorkloadSpec(name=f"j{n}", command="true", workspace=place),
                submitted_at=time.time(),
                state=state,
            )
            for n, state in enumerate(State)
        ]
        workloads.insert_many(connection, records)
        return [record.id for record in records]

    return rig.db.write_now(work)


@pytest.mark.slow  # tries a thousand requests
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=lambda mode: mode.name.lower()
)
def test_nothing_fails_inside_when_a_stranger_tries_everything(rig_now, mode):
    rig = rig_now
    ids = real_jobs(rig)
    schema = schemathesis.openapi.from_asgi("/api/v1/openapi.json", rig.app)
    tried: collections.Counter[int] = collections.Counter()
    for found in schema.get_all_operations():
        operation = found.ok()
        name = operation.definition.raw["operationId"]
        if name in ENDLESS:
            continue
        headers = {"Authorization": f"Bearer {fresh_token(rig)}"}

        @seed(1)
        @settings(
            max_examples=EXAMPLES,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.generate],
        )
        @given(case=operation.as_strategy(generation_mode=mode))
        def attempt(case):
            if "job_id" in (case.path_parameters or {}) and sum(tried.values()) % 2:
                case.path_parameters["job_id"] = ids[sum(tried.values()) % len(ids)]
            answer = case.call(headers=headers)  # noqa: B023  # called in this turn
            tried[answer.status_code] += 1
            case.validate_response(answer, checks=CHECKS)

        try:
            attempt()
        except BaseException as error:  # NB: its own groups are no Exceptions
            if "Unsatisfiable" in type(error).__name__ or "NoExamples" in type(error).__name__:
                continue
            raise
    assert tried[200] > 10 or mode is GenerationMode.NEGATIVE
    assert not [status for status in tried if status >= 500]
