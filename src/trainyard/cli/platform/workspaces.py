"""`workspaces`: teams, their quota and members."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from trainyard.cli.duration_option import duration_option
from trainyard.cli.invocation import current
from trainyard.cli.platform.platform_client import age, complete_workspace, pairs, run
from trainyard.cli.terminal.table import Column, Table
from trainyard.cli.verb import PlainVerb, common_options
from trainyard.lib.errors import InvalidError, NotFoundError

if TYPE_CHECKING:
    from trainyard.client import Client
    from trainyard.client.schemas import Group, Member, Request, Workspace

Function = TypeVar("Function", bound=Callable[..., Any])
ROLES = ["admin", "member", "viewer"]


@click.group(
    "workspaces",
    params=list(common_options(backend=False)),
    subcommand_metavar="[VERB ...]",
    invoke_without_command=True,
)
@click.pass_context
def workspaces_command(context: click.Context) -> int:
    """Manage workspaces: teams with a quota and members; without a verb, list them."""
    if context.invoked_subcommand is not None:
        return 0
    result: int = context.invoke(ls_command)
    return result


def _workspace() -> Callable[[Function], Function]:
    return click.argument("workspace", metavar="WORKSPACE", shell_complete=complete_workspace)


def _quota_options(*, per_user: bool) -> Callable[[Function], Function]:
    """The amounts of a quota: those of a workspace have one for each user too."""
    amounts = {
        "--quota": ("nominal", "Guaranteed: cpu=64, memory=256GiB, V100=8."),
        "--borrow": ("borrow", "At most so much above it, of what others leave free."),
        "--lend": ("lend", "At most so much of what is unused may be borrowed."),
    }
    if per_user:
        amounts["--per-user"] = ("per_user", "At most so much for one user.")

    def decorate(function: Function) -> Function:
        for flag, (name, text) in reversed(amounts.items()):
            function = click.option(flag, name, multiple=True, metavar="RESOURCE=N", help=text)(function)
        return function

    return decorate


@workspaces_command.command("ls", cls=PlainVerb)
def ls_command() -> int:
    """List the workspaces that you may see, with your role in them."""
    invocation = current()

    async def work(client: Client) -> list[Workspace]:
        return [workspace async for workspace in client.workspaces.list()]

    found = run(work)
    if invocation.json:
        from trainyard.cli.jobs.jobs import record_all

        invocation.output.json(record_all(found))
        return 0
    if not found:
        invocation.output.line("no workspaces")
        invocation.output.note("Ask an administrator to make you a member of one.", "dim")
        return 0
    columns = [
        Column("Name", shrink=10),
        Column("Id"),
        Column("Role"),
        Column("Guaranteed", shrink=16, drop=2),
        Column("Description", shrink=12, drop=1),
    ]
    rows = [
        [each.name, each.id, each.role or "-", _amounts(each.quota.get("nominal")), each.description or "-"]
        for each in found
    ]
    Table(columns, rows).print(invocation.output)
    return 0


@workspaces_command.command("show", cls=PlainVerb)
@_workspace()
def show_command(workspace: str) -> int:
    """Show a workspace: quota, rules and members."""
    from trainyard.cli.jobs.jobs import record, record_all

    invocation = current()

    async def work(client: Client) -> tuple[Workspace, list[Member]]:
        found = await client.workspaces.get(workspace)
        return found, [member async for member in client.workspaces.members(found.id)]

    found, members = run(work)
    if invocation.json:
        invocation.output.json({**record(found), "members": record_all(members)})
        return 0
    output = invocation.output
    output.line(f"{'name':<12} {found.name}")
    output.line(f"{'id':<12} {found.id}")
    if found.description:
        output.line(f"{'description':<12} {found.description}")
    for key, value in found.quota.items():
        output.line(f"{key:<12} {_amounts(value)}")
    if found.needs_approval:
        output.line(f"{'approval':<12} every job waits for a person first")
    if members:
        output.line()
        Table([Column("Member"), Column("Role")], [[each.user, each.role] for each in members]).print(output)
    return 0


@workspaces_command.command("create", cls=PlainVerb)
@click.argument("name")
@click.option("--description", default="", metavar="TEXT", help="What it is for.")
@click.option("--group", metavar="ID", help="The group whose quota stands above it.")
@_quota_options(per_user=True)
@click.option("--approval", is_flag=True, help="Every job waits for a person first.")
@duration_option("--max-time", "The longest that a job may run.")
def create_command(
    name: str,
    description: str,
    group: str | None,
    nominal: tuple[str, ...],
    borrow: tuple[str, ...],
    lend: tuple[str, ...],
    per_user: tuple[str, ...],
    approval: bool,
    max_time: float | None,
) -> int:
    """Make a workspace."""
    from trainyard.client.schemas import WorkspaceCreate

    create = WorkspaceCreate(
        name=name,
        description=description,
        group_id=group,
        quota=_quota(nominal, borrow, lend, per_user),
        needs_approval=approval,
        max_run_seconds=round(max_time or 0),
    )
    return _tell(run(lambda client: client.workspaces.create(create)), "is made")


@workspaces_command.command("set", cls=PlainVerb)
@click.option("--description", metavar="TEXT", help="What it is for.")
@_quota_options(per_user=True)
@click.option("--approval/--no-approval", default=None, help="Whether every job waits for a person first.")
@_workspace()
def set_command(
    workspace: str,
    description: str | None,
    nominal: tuple[str, ...],
    borrow: tuple[str, ...],
    lend: tuple[str, ...],
    per_user: tuple[str, ...],
    approval: bool | None,
) -> int:
    """Change a workspace; what is not named stays."""
    from trainyard.client.schemas import WorkspaceChange

    given = _quota(nominal, borrow, lend, per_user)

    async def work(client: Client) -> Workspace:
        found = await client.workspaces.get(workspace)
        change = WorkspaceChange(
            description=description,
            quota={**found.quota, **given} if given else None,
            needs_approval=approval,
        )
        return await client.workspaces.change(found.id, change)

    return _tell(run(work), "is changed")


@workspaces_command.command("archive", cls=PlainVerb)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@_workspace()
def archive_command(workspace: str, yes: bool) -> int:
    """Close a workspace for new jobs, and hide it."""
    if not yes and not current().output.confirm(f"Archive {workspace}?"):
        return 1
    run(lambda client: client.workspaces.archive(workspace))
    current().output.line(f"{workspace} is archived")
    return 0


@workspaces_command.command("member", cls=PlainVerb)
@click.option(
    "--role",
    type=click.Choice(ROLES),
    default="member",
    metavar="ROLE",
    help="admin, member or viewer.  [default: member]",
)
@click.option("--remove", is_flag=True, help="End the membership.")
@_workspace()
@click.argument("user")
def member_command(workspace: str, user: str, role: str, remove: bool) -> int:
    """Make somebody a member of a workspace, give them another role, or remove them."""

    async def work(client: Client) -> None:
        if remove:
            await client.workspaces.remove_member(workspace, user)
        else:
            await client.workspaces.set_member(workspace, user, role)

    run(work)
    current().output.line(
        f"{user} is no member of {workspace}" if remove else f"{user} is {role} of {workspace}"
    )
    return 0


@workspaces_command.command("join", cls=PlainVerb)
@click.option(
    "--role",
    type=click.Choice(ROLES),
    default="member",
    metavar="ROLE",
    help="admin, member or viewer.  [default: member]",
)
@click.option("--reason", default="", metavar="TEXT", help="Why, for whoever decides.")
@click.argument("name")
def join_command(name: str, role: str, reason: str) -> int:
    """Ask to become a member of a workspace; its administrators decide."""
    wish = run(lambda client: client.requests.ask_for_membership(name, role=role, reason=reason))
    return _tell_requests([wish])


@workspaces_command.command("ask", cls=PlainVerb)
@_quota_options(per_user=True)
@click.option("--reason", default="", metavar="TEXT", help="Why, for whoever decides.")
@_workspace()
def ask_command(
    workspace: str,
    nominal: tuple[str, ...],
    borrow: tuple[str, ...],
    lend: tuple[str, ...],
    per_user: tuple[str, ...],
    reason: str,
) -> int:
    """Ask for another quota of your workspace; an administrator decides. What is not named stays."""
    given = _quota(nominal, borrow, lend, per_user)
    if not given:
        raise InvalidError("No amount was named.", hint="Say how much, like --quota cpu=64.")

    async def work(client: Client) -> Request:
        found = await client.workspaces.get(workspace)
        return await client.requests.ask_for_quota(found.name, {**found.quota, **given}, reason=reason)

    return _tell_requests([run(work)])


@workspaces_command.command("requests", cls=PlainVerb)
@click.option("--approve", "approved", multiple=True, metavar="ID", help="Grant this one.")
@click.option("--refuse", "refused", multiple=True, metavar="ID", help="Refuse this one.")
@click.option("--answer", default="", metavar="TEXT", help="What to tell who asked.")
@click.option("-a", "--all", "everything", is_flag=True, help="Decided ones too.")
def requests_command(
    approved: tuple[str, ...], refused: tuple[str, ...], answer: str, everything: bool
) -> int:
    """List requests for accounts, membership and quota: yours, and those that you may decide; or decide some."""

    async def work(client: Client) -> list[Request]:
        for name in approved:
            await client.requests.decide(name, approve=True, answer=answer)
        for name in refused:
            await client.requests.decide(name, approve=False, answer=answer)
        wanted = {} if everything or approved or refused else {"state": "open"}
        return [each async for each in client.requests.list(**wanted)]

    return _tell_requests(run(work))


def _tell_requests(found: Sequence[Request]) -> int:
    from trainyard.cli.jobs.jobs import record_all

    invocation = current()
    if invocation.json:
        invocation.output.json(record_all(found))
        return 0
    if not found:
        invocation.output.line("no requests")
        return 0
    columns = [
        Column("Id"),
        Column("For"),
        Column("Name", shrink=10),
        Column("State", styles={"open": "yellow", "approved": "green", "refused": "red"}),
        Column("Age", right=True, drop=2),
        Column("Reason", shrink=12, drop=1),
    ]
    rows = [
        [each.id, each.kind, each.name, each.state, age(each.created_at), str(each.body.get("reason") or "-")]
        for each in found
    ]
    Table(columns, rows).print(invocation.output)
    return 0


@workspaces_command.command("groups", cls=PlainVerb)
@click.option("--create", "name", metavar="NAME", help="Make a group.")
@click.option("--change", metavar="NAME", help="Change the quota of a group.")
@click.option("--remove", metavar="NAME", help="Forget a group that no workspace belongs to.")
@_quota_options(per_user=False)
def groups_command(
    name: str | None,
    change: str | None,
    remove: str | None,
    nominal: tuple[str, ...],
    borrow: tuple[str, ...],
    lend: tuple[str, ...],
) -> int:
    """List groups, the quotas above workspaces; or make, change or remove one."""
    from trainyard.cli.jobs.jobs import record_all

    invocation = current()
    quota = _quota(nominal, borrow, lend, ())

    async def work(client: Client) -> list[Group]:
        groups = {each.name: each async for each in client.groups.list()}
        if name is not None:
            await client.groups.create(name, quota)
        for wanted in (change, remove):
            if wanted is not None and wanted not in groups:
                raise NotFoundError(
                    f"There is no group {wanted!r}.", hint="See `trainyard workspaces groups`."
                )
        if change is not None:
            await client.groups.change(groups[change].id, quota={**groups[change].quota, **quota})
        if remove is not None:
            await client.groups.remove(groups[remove].id)
        return [each async for each in client.groups.list()]

    found = run(work)
    if invocation.json:
        invocation.output.json(record_all(found))
    elif found:
        rows = [[each.name, each.id, _amounts(each.quota.get("nominal"))] for each in found]
        Table([Column("Name", shrink=10), Column("Id"), Column("Guaranteed", shrink=16)], rows).print(
            invocation.output
        )
    else:
        invocation.output.line("no groups")
    return 0


def _tell(workspace: Workspace, done: str) -> int:
    from trainyard.cli.jobs.jobs import record

    invocation = current()
    if invocation.json:
        invocation.output.json(record(workspace))
    else:
        invocation.output.line(f"{workspace.name} ({workspace.id}) {done}")
    return 0


def _quota(*parts: tuple[str, ...]) -> dict[str, object]:
    """Amounts as the API counts them: thousandths of a core, MiB, devices."""
    return {
        name: {resource: _amount(resource, text) for resource, text in pairs(words, "amount").items()}
        for name, words in zip(("nominal", "borrow", "lend", "per_user"), parts, strict=True)
        if words
    }


def _amount(resource: str, text: str) -> int:
    from trainyard.lib.units import parse_mebibytes

    try:
        if resource == "cpu":
            return round(float(text) * 1000)
        if resource == "memory":
            return parse_mebibytes(text)
        return int(text)
    except ValueError as error:
        raise InvalidError(
            f"{resource}={text}: {error}.", hint="Write cpu=64, memory=256GiB or V100=8."
        ) from error


def _amounts(value: object) -> str:
    if not isinstance(value, dict):
        return "-" if value in (None, "") else str(value)
    return ", ".join(f"{shown(resource, amount)} {resource}" for resource, amount in value.items()) or "-"


def shown(resource: str, amount: float) -> str:
    """An amount as people say it."""
    if resource == "cpu":
        return f"{amount / 1000:g}"
    if resource == "memory":
        return f"{amount / 1024:g}G"
    return f"{amount:g}"
