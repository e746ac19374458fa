"""`admin`: users, tokens, backup and migrations of a platform, on its own machine and without its API.

Every account that can read the platform's folder or has its database's URL can use it. The audit log says `operator`.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from trainyard.cli.duration_option import duration_option
from trainyard.cli.invocation import current
from trainyard.cli.terminal.table import Column, Table
from trainyard.cli.verb import PlainVerb, common_options
from trainyard.lib.errors import InvalidError, NotFoundError

if TYPE_CHECKING:
    from trainyard.server.auth.actor import Actor
    from trainyard.server.services import Services
    from trainyard.server.settings import ServerSettings

T = TypeVar("T")
Function = TypeVar("Function", bound=Callable[..., Any])
OPERATOR = "operator"


@click.group("admin", params=list(common_options(backend=False)), subcommand_metavar="VERB ...")
def admin_command() -> None:
    """Look after a platform from the machine that it runs on.

    Works on the database itself, so it needs no token: when the last administrator has forgotten the password, too.
    """


def _place(function: Function) -> Function:
    """--config and --data: which platform."""
    for option in (
        click.option(
            "--config", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="The server's settings."
        ),
        click.option(
            "--data",
            type=click.Path(file_okay=False, path_type=Path),
            metavar="DIR",
            help="The platform's folder; by default ~/.trainyard/platform.",
        ),
    ):  # fmt: skip
        function = option(function)
    return function


# -- users


@admin_command.group("users", params=list(common_options(backend=False)), subcommand_metavar="VERB ...")
def users_group() -> None:
    """List and change accounts."""


@users_group.command("ls", cls=PlainVerb)
@_place
def users_ls_command(config: Path | None, data: Path | None) -> int:
    """List all accounts."""
    invocation = current()

    async def work(services: Services, operator: Actor) -> list[dict[str, Any]]:
        found, cursor = [], ""
        while True:
            page = await services.users.list(operator, cursor=cursor, limit=1000)
            found += [_user(record) for record in page.items]
            cursor = page.cursor
            if not cursor:
                return found

    rows = _run(config, data, work)
    if invocation.json:
        invocation.output.json(rows)
        return 0
    columns = [Column("NAME"), Column("ADMIN"), Column("ACTIVE"), Column("EMAIL", shrink=8)]
    table = [[row["name"], "yes" if row["is_admin"] else "", "yes" if row["is_active"] else "closed", row["email"]]
             for row in rows]  # fmt: skip
    Table(columns, table).print(invocation.output)
    return 0


@users_group.command("add", cls=PlainVerb)
@click.argument("name")
@click.option("--admin", "is_admin", is_flag=True, help="An administrator of the platform.")
@click.option("--display-name", default="", metavar="TEXT", help="The name of the person.")
@click.option("--email", default="", metavar="ADDRESS", help="Where they are written to.")
@click.option("--password-stdin", is_flag=True, help="Read the password from standard input.")
@_place
def users_add_command(
    name: str, password_stdin: bool, config: Path | None, data: Path | None, **details: Any
) -> int:
    """Make an account; without --password-stdin it gets a one-time password, which is printed once."""
    password = _read_password() if password_stdin else ""

    async def work(services: Services, operator: Actor) -> dict[str, Any]:
        made = await services.users.create(operator, name, password=password, **details)
        return {**_user(made.user), "password": made.password}

    return _tell_password(_run(config, data, work))


@users_group.command("reset-password", cls=PlainVerb)
@click.argument("name")
@_place
def users_reset_command(name: str, config: Path | None, data: Path | None) -> int:
    """Give somebody a new one-time password; their sessions and tokens end."""

    async def work(services: Services, operator: Actor) -> dict[str, Any]:
        made = await services.users.reset_password(operator, name)
        return {**_user(made.user), "password": made.password}

    return _tell_password(_run(config, data, work))


@users_group.command("change", cls=PlainVerb)
@click.argument("name")
@click.option(
    "--admin/--no-admin", "is_admin", default=None, help="Make them an administrator, or not any more."
)
@click.option(
    "--open/--close", "is_active", default=None, help="Let them in again, or shut them out with their tokens."
)
@_place
def users_change_command(name: str, config: Path | None, data: Path | None, **changes: Any) -> int:
    """Make somebody an administrator, or close an account."""

    async def work(services: Services, operator: Actor) -> dict[str, Any]:
        return _user(await services.users.change(operator, name, **changes))

    row = _run(config, data, work)
    invocation = current()
    if invocation.json:
        invocation.output.json(row)
    else:
        invocation.output.line(f"changed {name}")
    return 0


# -- tokens


@admin_command.group("tokens", params=list(common_options(backend=False)), subcommand_metavar="VERB ...")
def tokens_group() -> None:
    """Make and revoke tokens of users."""


@tokens_group.command("add", cls=PlainVerb)
@click.argument("user")
@click.option("--name", default="", metavar="TEXT", help="What it is for.")
@click.option(
    "--scope", "scopes", multiple=True, metavar="SCOPE", help="What it may; by default all that they may."
)
@duration_option("--expires", "How long it is valid; by default until it is revoked.")
@_place
def tokens_add_command(
    user: str,
    name: str,
    scopes: tuple[str, ...],
    expires: float | None,
    config: Path | None,
    data: Path | None,
) -> int:
    """Make a token for somebody; it is printed once."""

    async def work(services: Services, operator: Actor) -> dict[str, Any]:
        from dataclasses import replace

        found = await services.users.get(operator, user)
        as_user = replace(operator, user_id=found.id)
        made = await services.tokens.create(
            as_user, name=name, scopes=scopes or ("*",), expires_in_seconds=expires
        )
        return {"id": made.record.id, "token": made.token, "scopes": list(made.record.scopes)}

    made = _run(config, data, work)
    invocation = current()
    if invocation.json:
        invocation.output.json(made)
    else:
        invocation.output.line(made["token"])
        invocation.output.note(
            f"Shown this once. Revoke it with `trainyard admin tokens revoke {made['id']}`.", "dim"
        )
    return 0


@tokens_group.command("ls", cls=PlainVerb)
@click.argument("user")
@_place
def tokens_ls_command(user: str, config: Path | None, data: Path | None) -> int:
    """List somebody's tokens."""

    async def work(services: Services, operator: Actor) -> list[dict[str, Any]]:
        from dataclasses import replace

        found = await services.users.get(operator, user)
        records = await services.tokens.list(replace(operator, user_id=found.id))
        return [
            {
                "id": one.id,
                "name": one.name,
                "kind": one.kind,
                "scopes": list(one.scopes),
                "expires_at": one.expires_at,
            }
            for one in records
        ]

    rows = _run(config, data, work)
    invocation = current()
    if invocation.json:
        invocation.output.json(rows)
        return 0
    columns = [Column("ID"), Column("KIND"), Column("NAME", shrink=8), Column("SCOPES", shrink=8)]
    table = [[row["id"], row["kind"], row["name"], " ".join(row["scopes"])] for row in rows]
    Table(columns, table).print(invocation.output)
    return 0


@tokens_group.command("revoke", cls=PlainVerb)
@click.argument("token_id", metavar="ID")
@_place
def tokens_revoke_command(token_id: str, config: Path | None, data: Path | None) -> int:
    """Close a token for good."""

    async def work(services: Services, operator: Actor) -> None:
        await services.tokens.revoke(operator, token_id)

    _run(config, data, work)
    current().output.note(f"revoked {token_id}")
    return 0


# -- the database


@admin_command.command("backup", cls=PlainVerb)
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--force", is_flag=True, help="Put it in the place of a file of that name.")
@_place
def backup_command(file: Path, force: bool, config: Path | None, data: Path | None) -> int:
    """Copy the database into a file, also while a server runs. For PostgreSQL, use pg_dump."""
    from trainyard.server.store.backup import make_backup

    settings = _settings(config, data)
    make_backup(settings, file, replace=force)
    output = current().output
    output.note(f"The database is in {file}; logs of jobs are not.")
    output.note(
        f"Its secrets are sealed with {settings.sealing_key}, which is not in it: keep a copy elsewhere.",
        "dim",
    )
    return 0


@admin_command.command("restore", cls=PlainVerb)
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@_place
def restore_command(file: Path, config: Path | None, data: Path | None) -> int:
    """Put a backup in the place of the database, while no server runs. The old database is kept beside it.

    A job that ran at the time of the backup and has ended since is found to be gone by its node, and is run again.
    """
    from trainyard.server.store.backup import restore_backup

    settings = _settings(config, data)
    kept = restore_backup(settings, file)
    output = current().output
    with _database(settings):  # an older backup is brought up to date
        output.note(f"The database of {settings.data} is that of {file} now.")
    if kept is not None:
        output.note(f"The old one is {kept}.", "dim")
    return 0


@admin_command.command("rotate-key", cls=PlainVerb)
@_place
def rotate_key_command(config: Path | None, data: Path | None) -> int:
    """Seal all secrets of the platform with a new key, also while servers run.

    Broken off, it leaves both keys in use; called again, it goes on. Backups that were made before need the old key file.
    """
    from trainyard.server.secrets.sealed_columns import ensure_sealed, rotate
    from trainyard.server.secrets.sealing import Seal

    settings = _settings(config, data)
    seal = Seal(settings.sealing_key)
    with _database(settings) as database:
        rows = ensure_sealed(database, seal) + rotate(database, seal)
    invocation = current()
    if invocation.json:
        invocation.output.json({"rows": rows, "key_file": str(seal.path)})
    else:
        invocation.output.line(f"sealed {rows} rows with a new key")
    return 0


@admin_command.command("migrate", cls=PlainVerb)
@_place
def migrate_command(config: Path | None, data: Path | None) -> int:
    """Bring the database up to date. A server that starts does so by itself."""
    from trainyard.server.store import migrations, upgrade
    from trainyard.server.store.database import Database

    settings = _settings(config, data)
    if settings.is_embedded and not settings.data.is_dir():
        raise NotFoundError(f"There is no platform in {settings.data}.", hint="Name its folder with --data.")
    database = Database(settings.database_url)
    try:
        before = upgrade.ensure(database)
    finally:
        database.close()
    invocation = current()
    if invocation.json:
        invocation.output.json({"before": before, "now": migrations.HEAD})
    elif before == migrations.HEAD:
        invocation.output.line(f"up to date ({before})")
    else:
        invocation.output.line(f"from {before or 'nothing'} to {migrations.HEAD}")
    return 0


# -- inside


def _settings(config: Path | None, data: Path | None) -> ServerSettings:
    from trainyard.server import settings

    return settings.load(config, data=data)


@contextmanager
def _database(settings: ServerSettings) -> Iterator[Any]:
    from sqlalchemy.engine import make_url

    from trainyard.server.store import upgrade
    from trainyard.server.store.database import Database

    if settings.is_embedded and not Path(make_url(settings.database_url).database or "").exists():
        raise NotFoundError(
            f"There is no platform in {settings.data}.",
            hint="Name its folder with --data, or start one: `trainyard up`.",
        )
    database = Database(settings.database_url)
    try:
        upgrade.ensure(database)
        yield database
    finally:
        database.close()


def _run(
    config: Path | None, data: Path | None, work: Callable[[Services, Actor], Coroutine[Any, Any, T]]
) -> T:
    """Do something with the services of a platform, as its operator."""
    from trainyard.lib.clock import SystemClock
    from trainyard.server.auth.actor import Actor
    from trainyard.server.services import Services
    from trainyard.server.wakeups import Wakeups

    settings = _settings(config, data)
    with _database(settings) as database:
        services = Services(database, SystemClock(), Wakeups(), settings=settings)
        try:
            return asyncio.run(work(services, Actor(user_id="", name=OPERATOR, is_admin=True)))
        finally:
            services.close()


def _user(record: Any) -> dict[str, Any]:
    names = ("id", "name", "display_name", "email", "is_admin", "is_active", "must_change_password")
    return {name: getattr(record, name) for name in names}


def _tell_password(made: dict[str, Any]) -> int:
    invocation = current()
    if invocation.json:
        invocation.output.json(made)
        return 0
    if made["password"]:
        invocation.output.line(made["password"])
        invocation.output.note(f"The one-time password of {made['name']}, shown this once.", "dim")
    else:
        invocation.output.line(f"made {made['name']}")
    return 0


def _read_password() -> str:
    password = sys.stdin.readline().rstrip("\r\n")
    if not password:
        raise InvalidError(
            "Standard input has no password.", hint="Pipe it in, or leave out --password-stdin."
        )
    return password
