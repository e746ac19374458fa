"""`dlc get`, `logs` and `describe`: show resources as JSON or in the tables that scripts parse."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Sequence
from itertools import count, islice
from typing import Any

import click

from trainyard.cli.dlc.connection import Connection
from trainyard.cli.dlc.session import ENDED, POLL_SECONDS, F, Session, pass_session, with_globals
from trainyard.lib.errors import InvalidError

FULL_PAGE = 100  # the most that the server gives at once


@click.group("get")
def get_group() -> None:
    """Show jobs, pods, workspaces, quotas, machine types."""


def _job_options(command: F) -> F:
    for name, text in (
        ("workspace_id", "of this workspace"),
        ("display_name", "with this in the name"),
        ("display_name_regex", "whose name matches"),
        ("job_type", "of this kind"),
        ("status", "in this status"),
        ("resource_id", "in this quota"),
        ("start_time", "submitted after, as 2026-11-16T08:00:00Z"),
        ("end_time", "submitted before"),
    ):
        command = click.option(f"--{name}", name, default="", metavar="VALUE", help=text)(command)
    command = click.option("--page_num", default=1, metavar="N", help="which page")(command)
    return click.option("--page_size", default=10, metavar="N", help="how many on a page")(command)


@get_group.command("job")
@click.argument("job", required=False, default="")
@_job_options
@click.option("--events", is_flag=True, help="with its events")
@click.option("--events_only", is_flag=True, help="only its events")
@click.option("--max_events_num", default=2000, metavar="N", help="at most so many events")
@click.option("--show_detail", is_flag=True, help="with everything")
@with_globals
@pass_session
def get_job_command(session: Session, /, job: str, **given: Any) -> None:
    """Show one job as JSON, or list jobs."""
    connection = session.connect()
    if not job:
        _list_jobs(connection, given)
        return
    found = {} if given["events_only"] else connection.call("GET", f"/api/v1/jobs/{job}")
    if given["events"] or given["events_only"]:
        answer = connection.call(
            "GET", f"/api/v1/jobs/{job}/events", {"MaxEventsNum": given["max_events_num"]}
        )
        if given["events_only"]:
            for line in answer["Events"]:
                click.echo(line)
            return
        found["Events"] = answer["Events"]
    click.echo(json.dumps(found, indent=3, ensure_ascii=False))


get_group.add_command(get_job_command, "jobs")


def _list_jobs(connection: Connection, given: dict[str, Any]) -> None:
    try:
        wanted = re.compile(given["display_name_regex"])
    except re.error as error:
        raise InvalidError(
            f"--display_name_regex does not read: {error}.", hint="Write it like '^bert-.*'."
        ) from error
    query = {
        "WorkspaceId": given["workspace_id"],
        "DisplayName": given["display_name"],
        "JobType": given["job_type"],
        "Status": given["status"],
        "StartTime": given["start_time"],
        "EndTime": given["end_time"],
    }
    number, size = given["page_num"], given["page_size"]
    if given["display_name_regex"] or given["resource_id"]:
        # The server knows neither, so its pages are others than those that were asked for.
        chosen = (
            job
            for job in _all_jobs(connection, query)
            if wanted.search(job["DisplayName"]) and given["resource_id"] in ("", job["ResourceId"])
        )
        jobs = list(islice(chosen, max(0, number - 1) * size, max(0, number * size)))
    else:
        jobs = connection.call("GET", "/api/v1/jobs", {**query, "PageNumber": number, "PageSize": size})[
            "Jobs"
        ]
    rows = [
        (
            _word(job["DisplayName"]),
            job["JobId"],
            job["JobType"],
            job["WorkspaceId"],
            _word(job.get("Username", "") or job["UserId"]),
            job["GmtCreateTime"] or "-",
            str(job["Duration"]),
            job["Status"],
        )
        for job in jobs
    ]
    head = ("DisplayName", "JobId", "JobType", "WorkspaceId", "User", "CreateTime", "Duration", "Status")
    click.echo(columns(head, rows))


def _all_jobs(connection: Connection, query: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """All that the server has, page by page."""
    for number in count(1):
        answer = connection.call(
            "GET", "/api/v1/jobs", {**query, "PageNumber": number, "PageSize": FULL_PAGE}
        )
        yield from answer["Jobs"]
        if number * FULL_PAGE >= answer["TotalCount"]:  # NB: a page may have fewer, of some statuses
            return


@get_group.command("pod")
@click.argument("job")
@click.argument("pod")
@click.option("--max_events_num", default=2000, metavar="N", help="at most so many events")
@with_globals
@pass_session
def get_pod_command(session: Session, job: str, pod: str, max_events_num: int) -> None:
    """Show one pod with its events, as JSON."""
    connection = session.connect()
    found = connection.call("GET", f"/api/v1/jobs/{job}")
    pods = [one for one in found.get("Pods", []) if one["PodId"] == _pod_of(found, job, pod)]
    if not pods:
        raise InvalidError(f"Job {job} has no pod {pod!r}.", hint="See its Pods with `dlc get job`.")
    path = f"/api/v1/jobs/{job}/pods/{pods[0]['PodId']}/events"
    answer = connection.call("GET", path, {"MaxEventsNum": max_events_num})
    click.echo(json.dumps({**pods[0], "Events": answer["Events"]}, indent=3, ensure_ascii=False))


@get_group.command("workspace")
@with_globals
@pass_session
def get_workspace_command(session: Session) -> None:
    """List your workspaces."""
    answer = session.connect().call("GET", "/api/v1/workspaces")
    rows = [(one["WorkspaceId"], one["WorkspaceName"]) for one in answer["Workspaces"]]
    click.echo(boxed(("WorkspaceId", "WorkspaceName"), rows))


get_group.add_command(get_workspace_command, "workspaces")


@get_group.command("quota")
@click.option("--workspace_id", default="", metavar="ID", help="of this workspace")
@click.option("--page_num", default=1, metavar="N", help="which page")
@click.option("--page_size", default=10, metavar="N", help="how many on a page")
@with_globals
@pass_session
def get_quota_command(session: Session, workspace_id: str, page_num: int, page_size: int) -> None:
    """List quotas as JSON."""
    query = {"WorkspaceId": workspace_id, "PageNumber": page_num, "PageSize": page_size}
    answer = session.connect().call("GET", "/api/v1/quotas", query)
    click.echo(json.dumps(answer, indent=3, ensure_ascii=False))


@get_group.command("specs")
@click.option("--page_num", default=1, metavar="N", help="which page")
@click.option("--page_size", default=100, metavar="N", help="how many on a page")
@with_globals
@pass_session
def get_specs_command(session: Session, page_num: int, page_size: int) -> None:
    """List machine types."""
    answer = session.connect().call(
        "GET", "/api/v1/ecsspecs", {"PageNumber": page_num, "PageSize": page_size}
    )
    rows = [
        (one["InstanceType"], str(one["Cpu"]), str(one["Memory"]), str(one["Gpu"]), one["GpuType"] or "-")
        for one in answer["EcsSpecs"]
    ]
    click.echo(boxed(("InstanceType", "CPU", "Memory", "GPU", "GPUType"), rows))


@click.command("logs")
@click.argument("job")
@click.argument("pod", required=False, default="")
@click.option("--max_events_num", default=2000, metavar="N", help="at most so many lines")
@click.option("--start_time", default="", metavar="TIME", help="from then on")
@click.option("--end_time", default="", metavar="TIME", help="until then")
@click.option("-f", "--follow", is_flag=True, help="go on until the job ends")
@with_globals
@pass_session
def logs_command(
    session: Session, /, job: str, pod: str, max_events_num: int, follow: bool, **span: str
) -> int:
    """Print a pod's log; without POD, that of the job's first."""
    connection = session.connect()
    if follow:
        is_printed = _follow_log(connection, job, pod)
    else:
        name = _pod_of(connection.call("GET", f"/api/v1/jobs/{job}"), job, pod)
        query = {"MaxLines": max_events_num, "StartTime": span["start_time"], "EndTime": span["end_time"]}
        is_printed = name != "" and _print_log(connection.call("GET", _log_path(job, name), query))
    if not is_printed:
        click.echo("[WARN] No logs found for the pod", err=True)
    return 0


def _follow_log(connection: Connection, job: str, pod: str) -> bool:
    """Print all of a log, and what comes, until the job has ended; whether there was anything."""
    cursor, is_printed = "start", False
    while True:
        found = connection.call("GET", f"/api/v1/jobs/{job}")  # first: what came until its end is read below
        name = _pod_of(found, job, pod)
        while name:
            answer = connection.call("GET", _log_path(job, name), {"Cursor": cursor})
            is_printed = _print_log(answer) or is_printed
            if answer["Cursor"] == cursor:
                break
            cursor = answer["Cursor"]
        if found["Status"] in ENDED:
            return is_printed
        time.sleep(POLL_SECONDS)


def _print_log(answer: dict[str, Any]) -> bool:
    if answer["Logs"]:
        click.echo("\n".join(answer["Logs"]))
    return bool(answer["Logs"])


def _log_path(job: str, pod: str) -> str:
    return f"/api/v1/jobs/{job}/pods/{pod}/logs"


get_group.add_command(logs_command, "logs")


def _pod_of(found: dict[str, Any], job: str, pod: str) -> str:
    pods = [one["PodId"] for one in found.get("Pods", [])]
    if not pod:
        return pods[0] if pods else ""
    # NB: a job has two ids, and the platform answers with this one whichever was given.
    shown = str(found["JobId"])
    return f"{shown}-{pod.removeprefix(f'{shown}-').removeprefix(f'{job}-')}"


@click.group("describe")
def describe_group() -> None:
    """Show everything about a job."""


@describe_group.command("job")
@click.argument("job")
@with_globals
@pass_session
def describe_job_command(session: Session, job: str) -> None:
    """Show a job with its pods and events, as JSON."""
    connection = session.connect()
    found = connection.call("GET", f"/api/v1/jobs/{job}")
    found["Events"] = connection.call("GET", f"/api/v1/jobs/{job}/events")["Events"]
    click.echo(json.dumps(found, indent=3, ensure_ascii=False))


# -- printing


def boxed(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table with bars, which scripts take apart: blanks and bars are part of it."""
    widths = [
        max(len(head[at]), *(len(row[at]) for row in rows)) if rows else len(head[at])
        for at in range(len(head))
    ]
    rule = "+" + "+".join("-" * (width + 2) for width in widths) + "+"
    lines = [
        rule,
        "|" + "|".join(f" {text:^{width}} " for text, width in zip(head, widths, strict=True)) + "|",
        rule,
    ]
    lines += [
        "|" + "|".join(f" {text:<{width}} " for text, width in zip(row, widths, strict=True)) + "|"
        for row in rows
    ]
    return "\n".join([*lines, rule])


def columns(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns with blanks between them: the first is the name, the second the id, the eighth the status."""
    widths = [max(len(row[at]) for row in [head, *rows]) for at in range(len(head))]
    return "\n".join(
        "  ".join(f"{text:<{width}}" for text, width in zip(row, widths, strict=True)).rstrip()
        for row in [head, *rows]
    )


def _word(text: str) -> str:
    """A value as one word, so that columns stay columns."""
    return re.sub(r"\s+", "_", text.strip()) or "-"
