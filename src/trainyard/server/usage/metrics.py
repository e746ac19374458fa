"""What tasks and nodes used, as series over time. Gathering is leader/sample_writer.py; the text for Prometheus, prometheus_text.py."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence

from sqlalchemy import Connection

from trainyard.client.schemas import MetricsAnswer, MetricSeries
from trainyard.lib.errors import InvalidError
from trainyard.server.auth.actor import Actor, require
from trainyard.server.records.device_figures import Figures
from trainyard.server.records.samples import (
    KEPT_SECONDS,
    NODE,
    STEPS,
    SampleRecord,
    Values,
    task_subject,
)
from trainyard.server.records.tasks import TaskRecord
from trainyard.server.records.workloads import WorkloadRecord
from trainyard.server.service_context import Context
from trainyard.server.store.cluster import nodes
from trainyard.server.store.jobs import workloads
from trainyard.server.store.people import users, workspaces
from trainyard.server.store.usage import device_figures, latencies, samples
from trainyard.server.usage.overview import CurrentTask, Overview, has_own_network
from trainyard.spec.workload import role_of

# A job that an actor may see, by its id.
FindJob = Callable[[Actor, str], Awaitable[WorkloadRecord]]

POINTS = 400  # as many as anybody looks at: a longer time is shown in longer steps
SPAN_SECONDS = 3600.0
FRESH_SECONDS = 60.0
# What each is called in the rows, and where it is of a device.
METRICS: Mapping[str, str] = {
    "cpu": "cores", "memory": "MiB", "in": "B/s", "out": "B/s", "read": "B/s", "write": "B/s", "gpu": "percent",
    "gpu_memory": "MiB",
}  # fmt: skip
_OF_DEVICES = {"gpu": "busy", "gpu_memory": "memory"}
_OF_NETWORK = frozenset({"in", "out"})


class Metrics:
    """`services.metrics`."""

    def __init__(self, context: Context, find_job: FindJob, *, sample_seconds: float = 10.0) -> None:
        self._context = context
        self._find_job = find_job
        self._fresh = max(FRESH_SECONDS, 3 * sample_seconds)

    async def of_job(
        self,
        actor: Actor,
        job_id: str,
        *,
        metrics: Collection[str] = (),
        step: int = 0,
        since: float | None = None,
        until: float | None = None,
    ) -> MetricsAnswer:
        """Of all tasks of a job; of the last hour that it ran, unless a time is given."""
        record = await self._find_job(actor, job_id)
        now = self._context.now()
        begin, end = span_of(since, until, last=min(now, record.ended_at or now))
        size = choose_step(step, begin, end, now)
        found = await self._context.db.read(
            lambda c: samples.of_job(c, record.id, step=size, since=begin, until=end)
        )
        return MetricsAnswer(step=size, series=tuple(series_of(found, _wanted(metrics))))

    async def of_node(
        self,
        actor: Actor,
        name: str,
        *,
        metrics: Collection[str] = (),
        step: int = 0,
        since: float | None = None,
        until: float | None = None,
    ) -> MetricsAnswer:
        """Of a node; of the last hour, unless a time is given."""
        require(actor, "nodes:read")
        now = self._context.now()
        begin, end = span_of(since, until, last=now)
        size = choose_step(step, begin, end, now)

        def work(c: Connection) -> list[SampleRecord]:
            nodes.load(c, name)
            return samples.of_node(c, name, step=size, since=begin, until=end)

        found = await self._context.db.read(work)
        return MetricsAnswer(step=size, series=tuple(series_of(found, _wanted(metrics))))

    async def overview(self, actor: Actor) -> Overview:
        """Everything now, for who watches over the platform."""
        require(actor, "metrics:read")
        since = self._context.now() - self._fresh

        def work(c: Connection) -> Overview:
            newest = samples.latest(c, since)
            given = workloads.tasks_holding(c)
            records = workloads.load_many(c, given)
            heard = {one.subject: one.values for one in newest}
            told = device_figures.since(c, since)
            return Overview(
                tasks=tuple(_now(records, given, heard, told)),
                nodes={
                    subject.removeprefix(NODE): values
                    for subject, values in heard.items()
                    if subject.startswith(NODE)
                },
                records=nodes.list_nodes(c),
                held=_held(records, given),
                states={state.value: count for state, count in workloads.counts_by_state(c).items()},
                changes=latencies.state_changes(c),
                workspace_names=workspaces.names(c),
                user_mails=users.mails(c, {record.user_id for record in records.values()}),
            )

        return await self._context.db.read(work)


def span_of(since: float | None, until: float | None, *, last: float) -> tuple[float, float]:
    """From when to when: what is given, else an hour until `last`. InvalidError where it would end before it begins."""
    if since is not None and until is not None and since > until:
        raise InvalidError(
            "`since` is later than `until`.", hint="Give the beginning as `since`, the end as `until`."
        )
    end = last if until is None else until
    return min(end, last) - SPAN_SECONDS if since is None else since, end


def choose_step(wanted: int, begin: float, end: float, now: float) -> int:
    """The shortest step that is still kept for that time and has not too many points; InvalidError for one there is not."""
    if wanted:
        if wanted not in STEPS:
            raise InvalidError(
                f"There are no readings of {wanted} s.", hint=f"Ask for {', '.join(map(str, STEPS))}."
            )
        return wanted
    for step in STEPS:
        if begin >= now - KEPT_SECONDS[step] and (end - begin) / step <= POINTS:
            return step
    return STEPS[-1]


def series_of(found: Iterable[SampleRecord], metrics: Collection[str]) -> list[MetricSeries]:
    """Rows in the order of time become one series for each metric of each task and device."""
    points: dict[tuple[str, str, int | None], list[tuple[int, float]]] = {}
    separate: set[str] = set()  # whose network is their own, as far as was heard last
    totals: dict[tuple[str, int], float] = {}  # memory of devices
    for record in found:
        (separate.add if has_own_network(record.values) else separate.discard)(record.subject)
        for index, one in record.values.get("devices", {}).items():
            if one.get("total"):
                totals[record.subject, int(index)] = one["total"]
        for metric in metrics:
            for device, value in _values(record.values, metric):
                points.setdefault((record.subject, metric, device), []).append((record.time, value))
    made = []
    for (subject, metric, device), each in sorted(points.items(), key=_order):
        attempt_id, _, task = subject.partition("/") if not subject.startswith(NODE) else ("", "", "")
        is_nodes = not attempt_id or (metric in _OF_NETWORK and subject not in separate)
        number = int(attempt_id.rpartition(".")[2]) if attempt_id else 0
        made.append(
            MetricSeries(
                metric=metric,
                unit=METRICS[metric],
                task=task,
                attempt=number,
                device=device,
                of="node" if is_nodes else "task",
                most=totals.get((subject, device)) if metric == "gpu_memory" and device is not None else None,
                points=tuple(each),
            )
        )
    return made


def _order(one: tuple[tuple[str, str, int | None], object]) -> tuple[str, str, int]:
    (subject, metric, device), _ = one
    return subject, metric, -1 if device is None else device


def _values(values: Values, metric: str) -> list[tuple[int | None, float]]:
    if metric in _OF_DEVICES:
        key = _OF_DEVICES[metric]
        devices = values.get("devices", {})
        return [(int(index), one[key]) for index, one in devices.items() if one.get(key) is not None]
    value = values.get(metric)
    return [] if value is None else [(None, value)]


def _wanted(metrics: Collection[str]) -> Sequence[str]:
    for name in metrics:
        if name not in METRICS:
            raise InvalidError(f"There is no metric {name!r}.", hint=f"There are: {', '.join(METRICS)}.")
    return tuple(metrics) or tuple(METRICS)


def _now(
    records: Mapping[str, WorkloadRecord],
    given: Mapping[str, Sequence[TaskRecord]],
    heard: Mapping[str, Values],
    told: Mapping[str, Figures],
) -> Iterable[CurrentTask]:
    for workload_id, several in given.items():
        record = records.get(workload_id)
        for task in several if record is not None else ():
            subject = task_subject(f"{workload_id}.{task.attempt}", task.name)
            if record is not None and subject in heard:
                yield CurrentTask(
                    workload=record, task=task, values=heard[subject], figures=told.get(subject, {})
                )


def _held(
    records: Mapping[str, WorkloadRecord], given: Mapping[str, Sequence[TaskRecord]]
) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for workload_id, several in given.items():
        record = records.get(workload_id)
        for task in several:
            kind = "" if record is None else role_of(record.spec, task.role).device
            on = found.setdefault(task.node, {})
            on[kind] = on.get(kind, 0) + len(task.devices)
    return found


__all__ = ["METRICS", "Metrics", "choose_step", "series_of"]
