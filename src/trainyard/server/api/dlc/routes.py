"""What DLC's clients can ask: jobs, their pods, events and logs, machine types, workspaces and quotas."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from trainyard.lib import strict_json
from trainyard.lib.errors import ConflictError, Error, InvalidError, NotFoundError
from trainyard.server.api.dlc import metrics, views
from trainyard.server.api.dlc import pod_logs as podlogs
from trainyard.server.api.dlc.dispatch import BODY_LIMIT, Identification, answer, problem
from trainyard.server.api.dlc.field_types import whole
from trainyard.server.api.dlc.job_ids import part_of, to_dlc, to_own
from trainyard.server.api.dlc.translate import ECS_SPECS, spec_of
from trainyard.server.api.http.app_state import Parts
from trainyard.server.api.http.languages import language_of
from trainyard.server.auth.actor import Actor
from trainyard.server.jobs.service import JobQuery
from trainyard.server.records.tasks import TaskRecord
from trainyard.server.records.workloads import WorkloadRecord
from trainyard.spec.workload import FINAL, Desired

logger = logging.getLogger(__name__)
Handler = Callable[["Call"], Awaitable[Response]]

MOST_LINES = 2000
PAGE_SIZE = 10
MOST_JOBS = 100


class Call:
    """One request, with who asks."""

    def __init__(self, parts: Parts, actor: Actor, request: Request, body: Mapping[str, Any]) -> None:
        self.parts = parts
        self.services = parts.services
        self.actor = actor
        self.body = body
        self.query = request.query_params
        self.path = request.path_params
        self.token = request.headers.get("idempotency-key", "")
        self.language = language_of(request)
        self.now = parts.services.clock.now().timestamp()

    def number(self, name: str, default: int, most: int) -> int:
        """A number of the query."""
        text = self.query.get(name, "")
        if not text:
            return default
        if not (text.isascii() and text.isdigit() and len(text) < 20) or int(text) < 1:
            raise InvalidError(f"{name} {text!r} is not a positive number.", hint="Write it like 10.")
        return min(int(text), most)

    def time(self, name: str) -> float | None:
        """A time of the query, as RFC 3339; without a zone it is UTC."""
        text = self.query.get(name, "").strip()
        if not text:
            return None
        try:
            found = datetime.fromisoformat(text)
        except ValueError as error:
            raise InvalidError(
                f"{name} {text!r} is not a time.", hint="Write it like 2026-11-16T08:00:00Z."
            ) from error
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()

    async def job(self) -> WorkloadRecord:
        """The job that the path names, in either spelling of its id."""
        given = self.path["job"]
        own = to_own(given)
        if own != given:
            try:
                return await self.services.jobs.get(self.actor, own)
            except NotFoundError:
                pass  # a job of an older version is stored under the id that was given
        return await self.services.jobs.get(self.actor, given)

    async def task(self) -> tuple[WorkloadRecord, TaskRecord]:
        """The pod that the path names; `PodUid` names one of an earlier start."""
        record = await self.job()
        name = views.task_of(record.id, self.path["pod"])
        attempt = None
        uid = self.query.get("PodUid", "")
        job, _, rest = uid.partition(".")
        number = rest.partition(".")[0]
        if job in {record.id, to_dlc(record.id)} and re.fullmatch("[0-9]{1,9}", number):
            attempt = int(number)
        tasks = await self.services.jobs.tasks(self.actor, record.id, attempt=attempt)
        found = [task for task in tasks if task.name == name]
        if not found:
            raise NotFoundError(
                f"Job {record.id} has no pod {self.path['pod']!r}.", hint="See `dlc get job`."
            )
        return record, found[-1]


async def create_job(call: Call) -> Response:
    """POST jobs."""
    call.parts.disk.check()
    spec = spec_of(call.body)
    record = await call.services.jobs.submit(
        call.actor, spec, dlc=dict(call.body), idempotency_key=call.token
    )
    return answer({"JobId": to_dlc(record.id)})


async def list_jobs(call: Call) -> Response:
    """GET jobs."""
    status = call.query.get("Status", "")
    if status and status not in views.STATES:
        raise InvalidError(f"Status {status!r} is unknown.", hint=f"Choose one of {', '.join(views.STATES)}.")
    size = call.number("PageSize", PAGE_SIZE, MOST_JOBS)
    page = call.number("PageNumber", 1, 10**6)
    tags = _tags(call.query.get("Tags", ""))
    found = await call.services.jobs.list(
        call.actor,
        JobQuery(
            workspace=call.query.get("WorkspaceId", ""),
            user=call.query.get("Username", ""),
            mine=call.query.get("ShowOwn", "").lower() == "true",
            states=views.STATES[status] if status else (),
            kind=call.query.get("JobType", ""),
            name_part=call.query.get("DisplayName", ""),
            id_part=part_of(call.query.get("JobId", "")),
            since=call.time("StartTime"),
            until=call.time("EndTime"),
            tags=tags,
            limit=size,
            offset=(page - 1) * size,
            newest_first=call.query.get("Order", "desc").lower() != "asc",
            with_total=True,
        ),
    )
    names = await call.services.names.workspaces([one.workspace_id for one in found.items])
    people = await call.services.names.users([one.user_id for one in found.items])
    jobs = [
        views.job_view(
            one, workspace=names.get(one.workspace_id, ""), user=people.get(one.user_id, ""), now=call.now
        )
        for one in found.items
        if not status or views.status_of(one) == status
    ]
    return answer({"Jobs": jobs, "TotalCount": found.total or 0})


async def get_job(call: Call) -> Response:
    """GET jobs/{id}."""
    record = await call.job()
    tasks = await call.services.jobs.tasks(call.actor, record.id, attempt=record.attempt or None)
    names = await call.services.names.workspaces([record.workspace_id])
    people = await call.services.names.users([record.user_id])
    return answer(
        views.job_view(
            record,
            tasks,
            workspace=names.get(record.workspace_id, ""),
            user=people.get(record.user_id, ""),
            now=call.now,
        )
    )


async def update_job(call: Call) -> Response:
    """PUT jobs/{id}: its priority, while that still has an effect."""
    record = await call.job()
    if priority := whole(call.body, "Priority", 0):
        record = await call.services.jobs.set_priority(call.actor, record.id, priority)
    return answer({"JobId": to_dlc(record.id)})


async def delete_job(call: Call) -> Response:
    """DELETE jobs/{id}."""
    record = await call.job()
    await call.services.jobs.delete(call.actor, record.id)
    return answer({"JobId": to_dlc(record.id)})


async def stop_job(call: Call) -> Response:
    """POST jobs/{id}/stop."""
    record = await call.job()
    if record.state in FINAL or record.desired is Desired.CANCEL:
        raise ConflictError(f"Job can't be stopped, because it is {views.status_of(record)}")
    await call.services.jobs.set_desired(call.actor, record.id, Desired.CANCEL)
    return answer({"JobId": to_dlc(record.id)})


async def job_events(call: Call) -> Response:
    """GET jobs/{id}/events."""
    record = await call.job()
    return answer({"JobId": to_dlc(record.id), "Events": await _event_lines(call, record.id)})


async def pod_events(call: Call) -> Response:
    """GET jobs/{id}/pods/{pod}/events: what happened to the job happened to its pods."""
    record, task = await call.task()
    lines = await _event_lines(call, record.id)
    pod = views.pod_id(record.id, task.name)
    uid = views.pod_view(record, task)["PodUid"]
    return answer({"JobId": to_dlc(record.id), "PodId": pod, "PodUid": uid, "Events": lines})


async def pod_logs(call: Call) -> Response:
    """GET jobs/{id}/pods/{pod}/logs: the last lines, of a span of time where one is given.

    With `Cursor`, which the vendor's clients do not know: all lines that follow, some at a time. `start` is the first; the answer
    has the next, which is the same again where nothing more has come.
    """
    record, task = await call.task()
    read = podlogs.page if call.query.get("Cursor") else podlogs.last
    most = call.number("MaxLines", MOST_LINES, podlogs.MOST_LINES)
    given = podlogs.Wanted(
        cursor=call.query.get("Cursor", ""),
        lines=most,
        since=call.time("StartTime"),
        until=call.time("EndTime"),
    )
    found = await asyncio.to_thread(read, call.parts.logs, record, task, given)
    return answer(
        {
            "JobId": to_dlc(record.id),
            "PodId": views.pod_id(record.id, task.name),
            "PodUid": views.pod_view(record, task)["PodUid"],
            **found,
        }
    )


async def job_metrics(call: Call) -> Response:
    """GET metrics of a job."""
    record = await call.job()
    metric = metrics.metric_of(call.query.get("MetricType", ""))
    step = metrics.step_of(call.query.get("TimeStep", ""))
    until = call.time("EndTime")
    since = call.time("StartTime")
    end = call.now if until is None else until
    found = await call.services.metrics.of_job(
        call.actor,
        record.id,
        metrics=(metric,),
        since=end - metrics.SPAN_SECONDS if since is None else since,
        until=end,
    )
    return answer({"JobId": to_dlc(record.id), "PodMetrics": metrics.pod_metrics(record, found, step)})


async def ecs_specs(call: Call) -> Response:
    """GET ecsspecs: machine types, and whether a node could hold one."""
    nodes = await call.services.nodes.list(call.actor)
    kind = call.query.get("AcceleratorType", "")
    found = [one for one in ECS_SPECS if not kind or (kind == "GPU") == bool(one.gpus)]
    size = call.number("PageSize", PAGE_SIZE, MOST_JOBS)
    page = call.number("PageNumber", 1, 10**6)
    shown = found[(page - 1) * size : page * size]
    rows = [
        views.spec_view(
            one,
            is_available=any(
                node.cpu >= one.cpu * 1000
                and node.memory_mib >= one.memory_gib * 1024
                and (not one.gpus or node.devices.get(one.gpu_type, 0) >= one.gpus)
                for node in nodes
            ),
        )
        for one in shown
    ]
    return answer({"EcsSpecs": rows, "TotalCount": len(found)})


async def list_workspaces(call: Call) -> Response:
    """GET workspaces: the caller's own."""
    found = await call.services.workspaces.list(call.actor)
    rows = [
        {
            "WorkspaceId": one.id,
            "WorkspaceName": one.name,
            "DisplayName": one.name,
            "Description": one.description,
            "Status": "ENABLED",
            "GmtCreateTime": views.stamp(one.created_at),
        }
        for one in found
    ]
    return answer({"Workspaces": rows, "TotalCount": len(rows)})


async def list_quotas(call: Call) -> Response:
    """GET quotas."""
    tree = await call.services.quota.tree(call.actor)
    wanted = call.query.get("WorkspaceId", "")
    rows = [
        {
            "QuotaId": f"quota{one.id}",
            "QuotaName": one.name,
            "ParentQuotaId": f"quota{one.parent}" if one.parent else "",
            "ResourceType": "ECS",
            "Min": views.amounts(one.nominal or {}),
            "Max": views.amounts(one.limit or {}),
            "Used": views.amounts(one.used),
            "Queuing": one.waiting,
            "Running": one.running,
            "Workspaces": [{"WorkspaceId": one.id, "WorkspaceName": one.name}]
            if one.kind == "workspace"
            else [],
        }
        for one in tree
        if not wanted or wanted in {one.id, one.name}
    ]
    size = call.number("PageSize", PAGE_SIZE, MOST_JOBS)
    page = call.number("PageNumber", 1, 10**6)
    return answer({"Quotas": rows[(page - 1) * size : page * size], "TotalCount": len(rows)})


ROUTES: tuple[tuple[str, str, Handler], ...] = (
    ("POST", "/api/v1/jobs", create_job),
    ("GET", "/api/v1/jobs", list_jobs),
    ("GET", "/api/v1/jobs/{job}", get_job),
    ("PUT", "/api/v1/jobs/{job}", update_job),
    ("DELETE", "/api/v1/jobs/{job}", delete_job),
    ("POST", "/api/v1/jobs/{job}/stop", stop_job),
    ("GET", "/api/v1/jobs/{job}/events", job_events),
    ("GET", "/api/v1/jobs/{job}/metrics", job_metrics),
    ("GET", "/api/v1/jobs/{job}/pods/{pod}/logs", pod_logs),
    ("GET", "/api/v1/jobs/{job}/pods/{pod}/events", pod_events),
    ("GET", "/api/v1/ecsspecs", ecs_specs),
    ("GET", "/api/v1/workspaces", list_workspaces),
    ("GET", "/api/v1/quotas", list_quotas),
)


def create_dlc(parts: Parts) -> Starlette:
    """The application for the vendor's clients."""
    identification = Identification(parts)
    by_path: dict[str, dict[str, Handler]] = {}
    for method, path, handler in ROUTES:
        by_path.setdefault(path, {})[method] = handler
    routes = [
        Route(path, _endpoint(parts, identification, handlers), methods=list(handlers))
        for path, handlers in by_path.items()
    ]

    async def refused(_request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        code = {404: "NotFound", 405: "MethodNotAllowed"}.get(status, "InvalidParameter")
        return answer(
            {"Code": code, "Message": "There is no such call here.", "HttpStatusCode": status}, status=status
        )

    return Starlette(routes=routes, exception_handlers={HTTPException: refused})


def _endpoint(
    parts: Parts, identification: Identification, handlers: Mapping[str, Handler]
) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        try:
            _check_address(request)
            async with parts.bodies.body(
                request.scope,
                request.receive,
                limit=BODY_LIMIT,
                identify=lambda: identification.whose(request),
            ) as body:
                actor = await identification.actor(request, body)
                call = Call(parts, actor, request, _parsed(body))
                method = "GET" if request.method == "HEAD" else request.method
                return await handlers[method](call)
        except Error as error:
            return problem(error, language_of(request))
        except Exception:  # the last net: what nobody foresaw must not show its insides
            logger.exception("%s %s failed", request.method, request.url.path)
            return answer(
                {"Code": "InternalError", "Message": "The request has failed.", "HttpStatusCode": 500},
                status=500,
            )

    return endpoint


def _check_address(request: Request) -> None:
    query = request.scope.get("query_string", b"")
    if "\0" in request.scope["path"] or b"\0" in query or b"%00" in query:
        raise InvalidError("The address has a NUL in it.", hint="Leave the NUL character out.")


def _parsed(body: bytes) -> Mapping[str, Any]:
    if not body:
        return {}
    try:
        data = strict_json.parse(body)
    except ValueError as error:
        raise InvalidError("The body is not JSON that can be read.", hint="Send a JSON object.") from error
    if not isinstance(data, Mapping):
        raise InvalidError("The body is not an object.", hint="Send a JSON object.")
    return data


def _tags(text: str) -> Mapping[str, str]:
    if not text:
        return {}
    data = _parsed(text.encode())
    return {str(key): str(value) for key, value in data.items()}


async def _event_lines(call: Call, job: str) -> list[str]:
    most = call.number("MaxEventsNum", MOST_LINES, MOST_LINES)
    since, until = call.time("StartTime"), call.time("EndTime")
    found = await call.services.events.page(call.actor, job=job, limit=most)
    return [
        views.event_line(event, call.language)
        for event in found
        if (since is None or event.time >= since) and (until is None or event.time < until)
    ]


__all__ = ["create_dlc"]
