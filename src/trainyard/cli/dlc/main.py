"""The program `dlc`: its commands and what they print. Requests are keys.py's, calls are connection.py's."""

from __future__ import annotations

import getpass
import json
import re
import secrets
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click

from trainyard.cli.dlc.connection import Account, Connection, FailedError, load_account, save_account
from trainyard.cli.dlc.keys import KNOWN, parse_file, request_of, shown
from trainyard.lib.errors import Error, InvalidError

F = TypeVar("F", bound=Callable[..., Any])
ENDED = frozenset({"Succeeded", "Failed", "Stopped", "SucceededReserving", "FailedReserving"})
POLL_SECONDS = 1.0
KINDS = {
    "tfjob": "TFJob",
    "pytorchjob": "PyTorchJob",
    "xgboostjob": "XGBoostJob",
    "mpijob": "MPIJob",
    "batchjob": "BatchJob",
    "rayjob": "RayJob",
}
GLOBALS = (
    ("-c", "--config", "config_file", "PATH", "another file than ~/.dlc/config"),
    ("-a", "--access_id", "access_id", "ID", "access key id"),
    ("-k", "--access_key", "access_key", "SECRET", "access key secret"),
    ("-e", "--endpoint", "endpoint", "HOST", "where the platform is"),
    ("-r", "--region", "region", "REGION", "region"),
    ("", "--protocol", "protocol", "http|https", "how to talk to it"),
)


class Session:
    """What the global flags said; they may stand before or after the command."""

    def __init__(self) -> None:
        self.given: dict[str, Any] = {}

    @property
    def path(self) -> Path:
        """The file of the account."""
        return Path(self.given.get("config_file") or Path.home() / ".dlc" / "config").expanduser()

    def account(self) -> Account:
        """The file's account with the flags over it."""
        stored = Account() if self.given.get("ignore") else load_account(self.path)
        changes = {
            name: self.given[name]
            for name in ("access_id", "access_key", "endpoint", "region", "protocol")
            if self.given.get(name)
        }
        return replace(stored, **changes)

    def connect(self) -> Connection:
        """The platform."""
        keeps = not self.given.get("ignore") and not self.given.get("access_id")
        return Connection(self.account(), self.path if keeps else None)


def _note(context: click.Context, option: click.Parameter, value: Any) -> Any:
    session = context.find_object(Session)
    if session is not None and value:
        session.given[str(option.name)] = value
    return value


def with_globals(command: F) -> F:
    """Give a command the flags that all have."""
    for short, long, name, metavar, text in reversed(GLOBALS):
        declared = [name, long, *([short] if short else [])]
        command = click.option(*declared, metavar=metavar, expose_value=False, callback=_note, help=text)(
            command
        )
    return click.option(
        "-I", "ignore", is_flag=True, expose_value=False, callback=_note, help="do not read the config file"
    )(command)


pass_session = click.make_pass_decorator(Session)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(None, "--version", package_name="trainyard", message="%(version)s")
@with_globals
def dlc() -> None:
    """Submit and manage training jobs of a platform."""


@dlc.command("config")
@click.option("--username", metavar="NAME", help="user of the platform")
@click.option("--password", metavar="PASSWORD", help="asked for where it is not given")
@with_globals
@pass_session
def config_command(session: Session, username: str | None, password: str | None) -> None:
    """Say where the platform is and who you are; without flags it asks."""
    account = session.account()
    asks = sys.stdin.isatty() and not (username or session.given.get("access_id"))
    if asks:
        endpoint = click.prompt("Endpoint", default=account.endpoint or None)
        username = click.prompt("User name", default=account.username or None)
        account = replace(account, endpoint=endpoint)
    if username and password is None and sys.stdin.isatty():
        password = getpass.getpass("Password: ")
    if username:
        account = replace(
            account, username=username, password=password or "", token="", access_id="", access_key=""
        )
    if not account.endpoint:
        raise InvalidError("No endpoint was given.", hint="Add --endpoint HOST:PORT.")
    if not account.username and not account.access_id:
        raise InvalidError(
            "No user was given.", hint="Add --username and --password, or --access_id and --access_key."
        )
    if account.username:
        Connection(account, session.path).sign_in()
    else:
        save_account(session.path, account)
    click.echo(f"[OK] Configured {session.path}")


# -- submitting


def with_keys(command: F, *, but: str = "") -> F:
    """Give a command every key as a flag, but for one that it takes otherwise."""
    for key, text in reversed(list(KNOWN.items())):
        if key in {"region", "protocol", but}:
            continue  # global already
        command = click.option(f"--{key}", key, metavar="VALUE", help=text)(command)
    return command


@dlc.group("create")
def create_group() -> None:
    """Make a job."""


@create_group.command("job")
@click.option("--params_file", "--job_file", "params_file", metavar="FILE", help="key=value lines")
@with_keys
@with_globals
@pass_session
def create_job_command(session: Session, /, params_file: str | None, **given: str | None) -> int:
    """Make a job from a params file, or from flags."""
    return _submit(session, params_file, given)


@dlc.command("submit")
@click.argument("kind", type=click.Choice(list(KINDS), case_sensitive=False))
@click.option("--job_file", "--params_file", "params_file", metavar="FILE", help="key=value lines")
@partial(with_keys, but="kind")
@with_globals
@pass_session
def submit_command(session: Session, /, kind: str, params_file: str | None, **given: str | None) -> int:
    """Make a job of this kind."""
    return _submit(session, params_file, given, kind=KINDS[kind.lower()])


def _submit(
    session: Session, params_file: str | None, given: dict[str, str | None], *, kind: str = ""
) -> int:
    values = {key: value for key, value in given.items() if value is not None}
    if params_file is not None:
        try:
            text = Path(params_file).expanduser().read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not text"
            raise InvalidError(
                f"Cannot read {params_file}: {reason}.", hint="Name the file with its path."
            ) from error
        values |= parse_file(text, params_file)  # the file wins
    if kind and values.get("kind", kind).lower() != kind.lower():
        raise InvalidError(
            f"{params_file} says kind={values['kind']}, and the command says {kind}.",
            hint="Say the same in both.",
        )
    if kind:
        values["kind"] = kind
    wanted = request_of(values)
    for remark in wanted.remarks:
        click.echo(f"[WARN] {remark}", err=True)
    connection = session.connect()
    answer = connection.call("POST", "/api/v1/jobs", body=wanted.body, key=f"dlc-{secrets.token_hex(16)}")
    click.echo(json.dumps(shown(wanted.body), indent=3, ensure_ascii=False))
    click.echo(boxed(("JobId", "RequestId"), [(answer["JobId"], answer["RequestId"])]))
    if not wanted.is_interactive:
        return 0
    return _follow(connection, answer["JobId"], wanted.exit_code_on_stopped)


def _follow(connection: Connection, job: str, code_on_stopped: int) -> int:
    said = ""
    while True:
        found = connection.call("GET", f"/api/v1/jobs/{job}")
        if found["Status"] != said:
            said = found["Status"]
            click.echo(f"Job {job} is [{said}]")
        if said in ENDED:
            break
        time.sleep(POLL_SECONDS)
    if said.startswith("Succeeded"):
        return 0
    if said == "Stopped":
        return code_on_stopped
    click.echo(found.get("ReasonMessage", ""), err=True)
    code = re.search(r"ended with (\d+)", found.get("ReasonMessage", ""))
    return int(code[1]) if code else 1


# -- looking


@dlc.group("get")
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
    answer = connection.call(
        "GET",
        "/api/v1/jobs",
        {
            "WorkspaceId": given["workspace_id"],
            "DisplayName": given["display_name"],
            "JobType": given["job_type"],
            "Status": given["status"],
            "ResourceId": given["resource_id"],
            "StartTime": given["start_time"],
            "EndTime": given["end_time"],
            "PageNumber": given["page_num"],
            "PageSize": given["page_size"],
        },
    )
    try:
        wanted = re.compile(given["display_name_regex"])
    except re.error as error:
        raise InvalidError(
            f"--display_name_regex does not read: {error}.", hint="Write it like '^bert-.*'."
        ) from error
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
        for job in answer["Jobs"]
        if wanted.search(job["DisplayName"])
    ]
    head = ("DisplayName", "JobId", "JobType", "WorkspaceId", "User", "CreateTime", "Duration", "Status")
    click.echo(columns(head, rows))


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
    pods = [one for one in found.get("Pods", []) if one["PodId"] in {pod, f"{job}-{pod}"}]
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


@dlc.command("logs")
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
    return pod if pod.startswith(f"{job}-") else f"{job}-{pod}"


# -- changing


@dlc.group("stop")
def stop_group() -> None:
    """Stop a job."""


@stop_group.command("job")
@click.argument("job")
@click.option("-f", "--force", is_flag=True, help="do not ask")
@click.option("--quiet", is_flag=True, help="neither ask nor tell")
@click.option("--workspace_id", default="", metavar="ID", help="(not needed)")
@with_globals
@pass_session
def stop_job_command(session: Session, job: str, force: bool, quiet: bool, workspace_id: str) -> int:
    """Stop a job that has not ended."""
    del workspace_id
    if not _sure(f"Stop job {job}?", force or quiet):
        return 1
    session.connect().call("POST", f"/api/v1/jobs/{job}/stop")
    if not quiet:
        click.echo(f"[OK] Job [{job}] was stopped successfully")
    return 0


@dlc.group("describe")
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


@dlc.group("delete")
def delete_group() -> None:
    """Remove a job that has ended."""


@delete_group.command("job")
@click.argument("job")
@click.option("-f", "--force", is_flag=True, help="do not ask")
@click.option("--quiet", is_flag=True, help="neither ask nor tell")
@with_globals
@pass_session
def delete_job_command(session: Session, job: str, force: bool, quiet: bool) -> int:
    """Remove a job that has ended, with its log."""
    if not _sure(f"Delete job {job}?", force or quiet):
        return 1
    session.connect().call("DELETE", f"/api/v1/jobs/{job}")
    if not quiet:
        click.echo(f"[OK] Job [{job}] was deleted successfully")
    return 0


@dlc.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish", "powershell"]))
def completion_command(shell: str) -> int:
    """Print the completion script of a shell."""
    from click.shell_completion import get_completion_class

    found = get_completion_class(shell)
    if found is None:
        raise InvalidError(f"There is no completion for {shell}.", hint="Use bash, zsh or fish.")
    click.echo(found(dlc, {}, "dlc", "_DLC_COMPLETE").source())
    return 0


@dlc.command("help")
@click.argument("words", nargs=-1)
@click.pass_context
def help_command(context: click.Context, words: tuple[str, ...]) -> None:
    """Show the help of a command."""
    command: click.Command = dlc
    parent = context.parent or context
    for word in words:
        found = command.get_command(parent, word) if isinstance(command, click.Group) else None
        if found is None:
            raise InvalidError(f"There is no command {' '.join(words)!r}.", hint="See `dlc help`.")
        parent = click.Context(found, info_name=word, parent=parent)
        command = found
    click.echo(command.get_help(parent))


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


def _sure(question: str, is_forced: bool) -> bool:
    if is_forced:
        return True
    if not sys.stdin.isatty():
        raise InvalidError("There is nobody to ask.", hint="Add -f to do it without a question.")
    return click.confirm(question)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; what goes wrong is one line, and the exit code is not 0."""
    try:
        result = dlc.main(args=arguments, prog_name="dlc", standalone_mode=False, obj=Session())
    except click.exceptions.Abort:
        return 130
    except KeyboardInterrupt:
        return 130
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except FailedError as error:
        click.echo(f"[FAILED] {error.message}", err=True)
        return 1
    except Error as error:
        click.echo(f"[FAILED] {error.message}" + (f" {error.hint}" if error.hint else ""), err=True)
        return error.exit_code
    return result if isinstance(result, int) else 0


def run() -> None:
    """The entry point."""
    sys.exit(main())


if __name__ == "__main__":
    run()
