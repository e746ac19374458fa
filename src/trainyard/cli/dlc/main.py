"""The program `dlc`: signing in, submitting and changing. Showing is show.py's, requests keys.py's, calls connection.py's."""

from __future__ import annotations

import getpass
import json
import secrets
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import click

from trainyard.cli.dlc.connection import Connection, FailedError, save_account
from trainyard.cli.dlc.job_keys import KNOWN, parse_file, request_of, shown
from trainyard.cli.dlc.session import ENDED, POLL_SECONDS, F, Session, pass_session, with_globals
from trainyard.cli.dlc.show import boxed, describe_group, get_group, logs_command
from trainyard.lib.errors import Error, InvalidError

KINDS = {
    "tfjob": "TFJob",
    "pytorchjob": "PyTorchJob",
    "xgboostjob": "XGBoostJob",
    "mpijob": "MPIJob",
    "batchjob": "BatchJob",
    "rayjob": "RayJob",
}


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(None, "--version", package_name="trainyard", message="%(version)s")
@with_globals
def dlc() -> None:
    """Submit and manage training jobs of a platform."""


for command in (get_group, logs_command, describe_group):
    dlc.add_command(command)


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
            text = (
                Path(params_file).expanduser().read_text(encoding="utf-8-sig")
            )  # some editors begin with a mark
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
    return int(found.get("ExitCode") or 1)


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


# -- running


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
