"""`templates`: stored jobs that can be submitted again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from trainyard.cli.invocation import current
from trainyard.cli.jobs.job_flags import size_in_mib
from trainyard.cli.jobs.job_submit import read_document, tell_submitted
from trainyard.cli.platform.platform_client import (
    complete_job,
    complete_workspace,
    find_job,
    pairs,
    run,
    variables,
)
from trainyard.cli.terminal.table import Column, Table
from trainyard.cli.verb import PlainVerb, common_options
from trainyard.lib.errors import InvalidError

if TYPE_CHECKING:
    from trainyard.client import Client
    from trainyard.client.job_sources import Template, TemplateDetail


@click.group(
    "templates",
    params=list(common_options(backend=False)),
    subcommand_metavar="[VERB ...]",
    invoke_without_command=True,
)
@click.pass_context
def templates_command(context: click.Context) -> int:
    """Manage templates of jobs; without a verb, list them. TEMPLATE is an id or a name."""
    if context.invoked_subcommand is not None:
        return 0
    result: int = context.invoke(ls_command)
    return result


@templates_command.command("ls", cls=PlainVerb)
def ls_command() -> int:
    """List the templates that you may use: yours, your workspaces' and everybody's."""
    from trainyard.cli.jobs.jobs import record_all

    invocation = current()

    async def work(client: Client) -> list[Template]:
        return [one async for one in client.templates.list()]

    found = run(work)
    if invocation.json:
        invocation.output.json(record_all(found))
        return 0
    rows = [[one.name, one.scope, one.workspace or "-", one.user, one.description or "-"] for one in found]
    columns = [Column("Name", shrink=8), Column("For"), Column("Workspace", drop=2), Column("By", drop=3)]
    Table([*columns, Column("Description", shrink=12, drop=1)], rows).print(invocation.output)
    return 0


@templates_command.command("save", cls=PlainVerb)
@click.option("-f", "--file", "path", metavar="FILE", help="A job in YAML or TOML; - is standard input.")
@click.option("--job", metavar="JOB", shell_complete=complete_job, help="A job to copy.")
@click.option(
    "--for",
    "scope",
    type=click.Choice(["personal", "workspace", "all"]),
    default="personal",
    metavar="WHOM",
    help="personal, workspace or all.  [default: personal]",
)
@click.option("--workspace", default="", metavar="NAME", shell_complete=complete_workspace, help="Which.")
@click.option("--description", default="", metavar="TEXT", help="What it is for.")
@click.argument("name", metavar="NAME")
def save_command(name: str, path: str | None, job: str | None, **options: str) -> int:
    """Keep a job under a name; yours of that name is replaced. Others do not get your secrets with it."""
    if (path is None) == (job is None):
        raise InvalidError("Say which job.", hint="Give -f FILE or --job JOB.")
    spec = read_document(path) if path is not None else None

    async def work(client: Client) -> TemplateDetail:
        given = dict(options)
        if job is not None:
            given["from_job"] = (await find_job(client, job)).id
        return await client.templates.save(name, spec, **given)

    current().output.line(run(work).id)
    return 0


@templates_command.command("show", cls=PlainVerb)
@click.argument("template", metavar="TEMPLATE")
def show_command(template: str) -> int:
    """Show one with its job."""
    from trainyard.client.encode import encode

    invocation = current()
    found = run(lambda client: client.templates.get(template))
    invocation.output.json(encode(found, whole=invocation.json))
    return 0


@templates_command.command("rm", cls=PlainVerb)
@click.argument("template", metavar="TEMPLATE")
def rm_command(template: str) -> int:
    """Forget one."""
    run(lambda client: client.templates.remove(template))
    current().output.line(f"{template} is removed")
    return 0


@templates_command.command("submit", cls=PlainVerb)
@click.option("--name", metavar="NAME", help="Another name.")
@click.option("--command", metavar="TEXT", help="Another command.")
@click.option("--workspace", metavar="NAME", shell_complete=complete_workspace, help="Another workspace.")
@click.option("--working-dir", metavar="FOLDER", help="Another working folder.")
@click.option("--priority", type=click.IntRange(1, 9), metavar="1-9", help="Another priority.")
@click.option("--env", multiple=True, metavar="NAME[=VALUE]", help="One more variable.")
@click.option("--tag", "tags", multiple=True, metavar="NAME=VALUE", help="One more tag.")
@click.option("--replicas", type=click.IntRange(1), metavar="N", help="Replicas of every role.")
@click.option("--gpus", "--devices", "devices", type=click.IntRange(0), metavar="N", help="Devices of each.")
@click.option("--device", metavar="TYPE", help="Their type.")
@click.option("--cpu", type=click.FloatRange(0), metavar="CORES", help="Cores of each.")
@click.option("--memory", metavar="SIZE", help="Memory of each: 16GiB.")
@click.option("--image", metavar="IMAGE", help="The image.")
@click.option("--key", default="", metavar="TEXT", help="Submit it once with the same text.")
@click.option("--wait", "waits", is_flag=True, help="Wait for its end; the exit status is its program's.")
@click.option("--follow", is_flag=True, help="Show its output meanwhile.")
@click.argument("template", metavar="TEMPLATE")
def submit_command(template: str, key: str, waits: bool, follow: bool, **options: Any) -> int:
    """Submit a job from a template, with changes. Prints the id."""
    own = ("name", "command", "workspace", "working_dir", "priority")
    changes: dict[str, Any] = {name: options[name] for name in own if options[name] is not None}
    if options["env"]:
        changes["env"] = variables(options["env"])
    if options["tags"]:
        changes["tags"] = pairs(options["tags"], "tag")
    role = {name: options[name] for name in ("replicas", "devices", "device", "cpu", "image")}
    role["memory_mib"] = size_in_mib(options["memory"])
    role = {name: value for name, value in role.items() if value is not None}
    if role:
        changes["role"] = role
    made = run(lambda client: client.templates.submit(template, changes, key=key))
    return tell_submitted(current(), made, waits=waits, follow=follow)
