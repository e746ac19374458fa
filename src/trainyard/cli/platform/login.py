"""`login` and `logout`: choose the platform and the account that this computer uses."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

import click

from trainyard import settings as settings_module
from trainyard.cli.invocation import current
from trainyard.cli.platform.platform_client import is_watched
from trainyard.cli.verb import PlainVerb
from trainyard.lib.errors import Error, InvalidError

if TYPE_CHECKING:
    from trainyard.client.schemas import Identity, Request


@click.command("login", cls=PlainVerb)
@click.option("--username", default="", metavar="NAME", help="The account.  [default: asks]")
@click.option("--password-stdin", is_flag=True, help="Read the password from standard input.")
@click.option("--token-stdin", is_flag=True, help="Read a token from standard input instead.")
@click.option(
    "--access-key", is_flag=True, help="Make a key for programs that sign, as Alibaba's clients do."
)
@click.option(
    "--ask", "reason", metavar="REASON", help="Ask for an account instead; an administrator decides."
)
@click.argument("url", required=False, metavar="[URL]")
def login_command(
    url: str | None,
    username: str,
    password_stdin: bool,
    token_stdin: bool,
    access_key: bool,
    reason: str | None,
) -> int:
    """Log in to a platform: trades a password for a token, and keeps it for this user of this computer.

    Without URL, says who is logged in where. The password is never written anywhere, and never an option.
    """
    from trainyard.client.login import Login, find_login, save_login

    invocation = current()
    settings = settings_module.load()
    if access_key:
        return _make_access_key(settings.client)
    if url is None and not (password_stdin or token_stdin or username or reason):
        return _tell(find_login(settings))
    known = find_login(settings)
    url = (url or (known.url if known else "")).rstrip("/")
    if not url:
        raise InvalidError("A login needs the address of a server.", hint="Run `trainyard login URL`.")
    if "://" not in url:
        url = f"https://{url}"
    if token_stdin:
        token = sys.stdin.readline().strip()
    else:
        username = username or _ask("Username: ")
        password = (
            sys.stdin.readline().rstrip("\n") if password_stdin else _ask_secret(f"Password of {username}: ")
        )
        if reason is not None:
            return _ask_for_account(url, username, password, reason)
        token = asyncio.run(_trade(url, username, password, settings.client))
    if not token:
        raise InvalidError("There was no token on standard input.", hint="Pipe it in.")
    who = asyncio.run(_identity(url, token))
    save_login(settings, Login(url, token, who.name))
    if invocation.json:
        invocation.output.json({"url": url, "user": who.name, "is_admin": who.is_admin})
    else:
        invocation.output.line(f"logged in to {url} as {who.name}")
    if who.must_change_password:
        invocation.output.note("Change the password that you were given with `trainyard passwd`.", "yellow")
    return 0


@click.command("logout", cls=PlainVerb)
def logout_command() -> int:
    """Revoke the token that `login` got, and forget it."""
    from trainyard.client import Client
    from trainyard.client.login import find_login, forget_login

    invocation = current()
    settings = settings_module.load()
    login = find_login(settings)

    async def revoke(url: str, token: str) -> None:
        async with Client(url, token, patient=not is_watched()) as client:
            await client.session.logout()

    if login is not None and login.token:
        try:
            asyncio.run(revoke(login.url, login.token))
        except Error as error:
            invocation.output.warn(f"The token could not be revoked: {error.message}")
    forget_login(settings)
    invocation.output.line("logged out")
    return 0


@click.command("passwd", cls=PlainVerb)
@click.option(
    "--password-stdin",
    is_flag=True,
    help="Read the old and the new password from standard input, a line each.",
)
def passwd_command(password_stdin: bool) -> int:
    """Change your password on the platform."""
    from trainyard.cli.platform.platform_client import run

    if password_stdin:
        old, new = (sys.stdin.readline().rstrip("\n") for _ in range(2))
    else:
        old = _ask_secret("Old password: ")
        new = _ask_secret("New password: ")
        if _ask_secret("New password again: ") != new:
            raise InvalidError("The two are not the same.", hint="Type it again.")
    run(lambda client: client.session.set_password(old, new))
    current().output.line("password changed")
    return 0


def _ask_for_account(url: str, username: str, password: str, reason: str) -> int:
    from trainyard.cli.jobs.jobs import record
    from trainyard.client import Client

    async def ask() -> Request:
        async with Client(url, patient=not is_watched()) as client:
            return await client.requests.ask_for_account(username, password=password, reason=reason)

    wish = asyncio.run(ask())
    invocation = current()
    if invocation.json:
        invocation.output.json(record(wish))
    else:
        invocation.output.line(f"asked for the account {username} ({wish.id})")
        invocation.output.note(
            f"When an administrator has approved it, run `trainyard login {url} --username {username}`."
        )
    return 0


def _make_access_key(computer: str) -> int:
    from trainyard.cli.platform.platform_client import run

    invocation = current()
    key = run(lambda client: client.tokens.create_access_key(f"access key for {computer}"))
    if invocation.json:
        invocation.output.json({"id": key.id, "secret": key.secret})
    else:
        invocation.output.line(f"access_id  {key.id}")
        invocation.output.line(f"access_key {key.secret}")
        invocation.output.note("The key is shown this once.", "yellow")
    return 0


def _tell(login: object) -> int:
    from trainyard.client.login import Login

    invocation = current()
    if not isinstance(login, Login):
        raise InvalidError("This computer is not logged in.", hint="Run `trainyard login URL`.")
    who = asyncio.run(_identity(login.url, login.token))
    if invocation.json:
        invocation.output.json({"url": login.url, "user": who.name, "is_admin": who.is_admin})
    else:
        invocation.output.line(f"{who.name} at {login.url}" + (" (administrator)" if who.is_admin else ""))
    return 0


async def _trade(url: str, username: str, password: str, computer: str) -> str:
    from trainyard.client import Client

    async with Client(url, patient=not is_watched()) as client:
        return (await client.session.login(username, password, token_name=f"login on {computer}")).token


async def _identity(url: str, token: str) -> Identity:
    from trainyard.client import Client

    async with Client(url, token, patient=not is_watched()) as client:
        return await client.session.identity()


def _ask(question: str) -> str:
    if not sys.stdin.isatty():
        raise InvalidError(
            "This asks, and standard input is no terminal.", hint="Pass --username and --password-stdin."
        )
    current().output.plan([])
    return input(question).strip()


def _ask_secret(question: str) -> str:
    import getpass

    if not sys.stdin.isatty():
        raise InvalidError("This asks, and standard input is no terminal.", hint="Pass --password-stdin.")
    return getpass.getpass(question)
