"""`hosts`: the hosts of the ssh backend and their leases."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar

import click

from trainyard import settings as settings_module
from trainyard.cli.invocation import Invocation, current
from trainyard.cli.terminal.table import Column, Table
from trainyard.cli.verb import PlainVerb, common_options
from trainyard.lib.aio import gather_all
from trainyard.lib.errors import Error, NotFoundError
from trainyard.lib.units import format_size

if TYPE_CHECKING:
    from trainyard.backends.ssh.hosts import HostReport

T = TypeVar("T")
STATE_STYLES = {"free": "green", "leased": "cyan", "taken": "yellow", "unreachable": "red", "denied": "red"}


def complete_host(_context: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Names of the inventory."""
    from trainyard.backends.ssh import inventory

    try:
        hosts = inventory.load(settings_module.load().hosts_file).hosts
    except Error:
        return []
    return [name for name in hosts if name.startswith(incomplete)]


@click.group("hosts", params=list(common_options(backend=False)), subcommand_metavar="VERB ...")
def hosts_command() -> None:
    """Manage the hosts that are reached by ssh. A machine of the ssh backend is a host under a lease.

    The hosts are in a TOML file, `hosts.toml` in ~/.trainyard, that you may also write by hand.
    """


@hosts_command.command("add", cls=PlainVerb)
@click.argument("name")
@click.argument("address", required=False, metavar="[[USER@]ADDRESS[:PORT]]")
@click.option("--address", "address_option", default="", metavar="ADDRESS", help="The same, as an option.")
@click.option("--user", default="", metavar="NAME", help="The account there.")
@click.option("--port", type=int, metavar="PORT", help="The port of its sshd.")
@click.option("--key", multiple=True, metavar="FILE", help="A private key.")
@click.option("--jump", multiple=True, metavar="HOST", help="A host to go through.")
@click.option("--private-address", default="", metavar="ADDRESS", help="Where the other hosts reach it.")
@click.option("--type", "machine_type", default="", metavar="TYPE", help="A name for this kind of machine.")
@click.option(
    "--tag",
    "tags",
    multiple=True,
    metavar="WORD",
    help="A word to choose it by: make_job(labels={'tag': WORD}).",
)
@click.option("--lease-dir", default="", metavar="FOLDER", help="Where leases are kept on it.")
@click.option("--ssh-config", default="", metavar="FILE", help="Instead of ~/.ssh/config.")
@click.option("--known-hosts", default="", metavar="FILE", help="Instead of ~/.ssh/known_hosts.")
@click.option("--replace", is_flag=True, help="Put it in the place of a host of that name.")
def add_command(name: str, address: str | None, replace: bool, **options: Any) -> int:
    """Put a host into the inventory, and check it.

    Without an address, NAME is what ssh is given, so that a Host of your ~/.ssh/config is enough.
    """
    from trainyard.backends.ssh import hosts
    from trainyard.backends.ssh.inventory import LEASE_DIR, Host
    from trainyard.transport.ssh_address import DEFAULT_PORT, parse_address

    invocation = current()
    host_name, user, port = "", options["user"], options["port"] or 0
    if address or options["address_option"]:
        parsed = parse_address(address or options["address_option"])
        host_name = parsed.host
        user = user or parsed.user
        port = port or (parsed.port if parsed.port != DEFAULT_PORT else 0)
    host = Host(
        name=name,
        address=host_name,
        user=user,
        port=port,
        key=options["key"],
        jump=options["jump"],
        private_address=options["private_address"],
        lease_dir=options["lease_dir"] or LEASE_DIR,
        type=options["machine_type"],
        tags=options["tags"],
        ssh_config=options["ssh_config"],
        known_hosts=options["known_hosts"],
    )
    report = _run(hosts.add_host(settings_module.load(), host, replace=replace))
    return _tell_checks(invocation, [report], added=True)


@hosts_command.command("ls", cls=PlainVerb)
@click.option("--tag", default="", metavar="WORD", help="Only those with this tag.")
def ls_command(tag: str) -> int:
    """List hosts: what they have, and who holds them."""
    from trainyard.backends.ssh import hosts

    invocation = current()
    reports = _run(hosts.list_hosts(settings_module.load()))
    reports = [report for report in reports if not tag or tag in report.host.tags]
    if invocation.json:
        invocation.output.json([_record(report) for report in reports])
        return 0
    if not reports:
        invocation.output.line("no hosts")
        invocation.output.note("Add one with `trainyard hosts add NAME USER@ADDRESS`.", "dim")
        return 0
    columns = [
        Column("Host"),
        Column("Address", shrink=14, drop=2),
        Column("CPUs", right=True, drop=4),
        Column("Memory", right=True, drop=3),
        Column("GPU"),
        Column("State", styles=STATE_STYLES),
        Column("Holder", shrink=16, drop=5),
    ]
    Table(columns, [_row(report) for report in reports]).print(invocation.output)
    silent = [report for report in reports if report.error is not None]
    for report in silent:
        invocation.output.note(f"{report.host.name}: {_message(report)}", "red")
    if silent:
        invocation.output.note(f"See more with `trainyard hosts check {silent[0].host.name}`.", "dim")
    return 0


@hosts_command.command("check", cls=PlainVerb)
@click.argument("names", nargs=-1, metavar="[NAME]...", shell_complete=complete_host)
def check_command(names: tuple[str, ...]) -> int:
    """Probe hosts and say what stands in the way.

    All of them if none is named. The status is 1 where something stands in the way.
    """
    from trainyard.backends.ssh import hosts, inventory

    invocation = current()
    settings = settings_module.load()
    chosen = names or tuple(inventory.load(settings.hosts_file).hosts)
    if not chosen:
        raise NotFoundError(
            f"there are no hosts in {settings.hosts_file}",
            hint="Add one with `trainyard hosts add NAME USER@ADDRESS`.",
        )

    async def all_of_them() -> list[HostReport]:
        results = await gather_all([hosts.check_host(settings, name) for name in dict.fromkeys(chosen)])
        reports = []
        for result in results:
            if isinstance(result, BaseException):
                raise result
            reports.append(result)
        return reports

    return _tell_checks(invocation, _run(all_of_them()))


@hosts_command.command("accept", cls=PlainVerb)
@click.argument("name", shell_complete=complete_host)
@click.option(
    "--fingerprint", default="", metavar="TEXT", help="The fingerprint that its owner has told you."
)
@click.option("-y", "--yes", is_flag=True, help="Do not ask, whatever key it shows.")
def accept_command(name: str, fingerprint: str, yes: bool) -> int:
    """Make the key of a host known.

    It is the key with the given fingerprint, or the one that the host shows, after a question.
    """
    from trainyard.backends.ssh import hosts

    invocation = current()
    settings = settings_module.load()
    if not fingerprint:
        shown = _run(hosts.fetch_key(settings, name))
        if not yes:
            invocation.output.note(f"{name} shows the {shown.algorithm} key\n  {shown.fingerprint}")
            invocation.output.note(
                "Compare it with what its owner tells you, by another way than this network."
            )
            if not invocation.output.confirm("Trust it?"):
                invocation.output.note("Nothing was done.")
                return 1
        fingerprint = shown.fingerprint
    key = _run(hosts.accept_host(settings, name, fingerprint))
    if invocation.json:
        invocation.output.json({"name": name, "algorithm": key.algorithm, "fingerprint": key.fingerprint})
    else:
        invocation.output.line(f"accepted {name}: {key.algorithm} {key.fingerprint}")
    return 0


@hosts_command.command("rm", cls=PlainVerb)
@click.argument("names", nargs=-1, required=True, metavar="NAME...", shell_complete=complete_host)
@click.option("-f", "--force", is_flag=True, help="Also where we hold it; the lease stays on the host.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def rm_command(names: tuple[str, ...], force: bool, yes: bool) -> int:
    """Take hosts out of the inventory. Nothing changes on the hosts themselves."""
    from trainyard.backends.ssh import hosts, inventory

    invocation = current()
    settings = settings_module.load()
    known = inventory.load(settings.hosts_file)
    for name in names:
        known.host(name)
    if not (yes or force):
        invocation.output.plan(f"{name}  {known.host(name).target}" for name in names)
        if not invocation.output.confirm(f"Take {_count(names)} out of {settings.hosts_file}?"):
            invocation.output.note("Nothing was done.")
            return 1
    for name in dict.fromkeys(names):
        _run(hosts.remove_host(settings, name, force=force))
        if not invocation.json:
            invocation.output.line(f"removed {name}")
    if invocation.json:
        invocation.output.json([{"name": name, "done": "removed"} for name in names])
    return 0


@hosts_command.command("break", cls=PlainVerb)
@click.argument("name", shell_complete=complete_host)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def break_command(name: str, yes: bool) -> int:
    """End the lease of a host, whoever holds it.

    This is for clients that are gone for good. What runs there is ended too where the account is yours.
    """
    from trainyard.backends.ssh import hosts

    invocation = current()
    settings = settings_module.load()
    lease_id = ""
    if not yes:
        found = [report for report in _run(hosts.list_hosts(settings)) if report.host.name == name]
        lease = found[0].lease if found and found[0].error is None else None
        if lease is not None:
            lease_id = lease.id
            invocation.output.plan([f"{name} is leased by {lease.holder}"])
            if not invocation.output.confirm("Break this lease?"):
                invocation.output.note("Nothing was done.")
                return 1
    broken = _run(hosts.break_lease(settings, name, lease_id=lease_id))
    if invocation.json:
        invocation.output.json(
            {"name": name, "broken": broken.id, "machine": broken.name, "owner": broken.owner}
        )
    else:
        invocation.output.line(f"broke the lease of {name}: {broken.holder}")
    return 0


def _message(report: HostReport) -> str:
    return report.error.message if report.error else ""


def _run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


def _tell_checks(invocation: Invocation, reports: Sequence[HostReport], *, added: bool = False) -> int:
    """One paragraph a host; 1 where something stands in the way. A host that was added stays added."""
    broken = [report for report in reports if any(problem.severity == "error" for problem in report.problems)]
    if invocation.json:
        invocation.output.json([_record(report) for report in reports])
        return 1 if broken else 0
    output = invocation.output
    for report in reports:
        verb = "added " if added else ""
        what = "problems" if report in broken else "ok"
        output.line(f"{verb}{report.host.name}: {what}", "red" if report in broken else "green")
        if report.facts is not None:
            output.line(f"  {_facts(report)}")
        if report.lease is not None:
            output.line(f"  held by {report.lease.holder}")
        for problem in report.problems:
            output.note(
                f"  {problem.severity}: {problem.sentence}",
                "red" if problem.severity == "error" else "yellow",
            )
            if problem.hint:
                output.note(f"  hint: {problem.hint}")
    return 1 if broken else 0


def _facts(report: HostReport) -> str:
    facts = report.facts
    if facts is None:
        return "-"
    parts = [
        facts.os or "?",
        f"{facts.cores} CPUs",
        f"{format_size(facts.memory_mib * 2**20)} memory",
        f"{format_size(facts.disk_free_mib * 2**20)} free on disk",
        _gpus(report),
    ]
    return ", ".join(part for part in parts if part != "-")


def _gpus(report: HostReport) -> str:
    devices = report.facts.devices if report.facts else ()
    if not devices:
        return "-"
    model = devices[0].model
    return f"{model} x {len(devices)}" if model else f"{len(devices)} {devices[0].kind.upper()}"


def _row(report: HostReport) -> list[str]:
    facts, host = report.facts, report.host
    user = f"{host.user}@" if host.user else ""
    port = f":{host.port}" if host.port else ""
    return [
        host.name,
        f"{user}{host.target}{port}",
        str(facts.cores) if facts else "-",
        format_size(facts.memory_mib * 2**20) if facts else "-",
        _gpus(report),
        report.state,
        f"{report.lease.owner} ({report.lease.name})" if report.lease else "-",
    ]


def _record(report: HostReport) -> dict[str, object]:
    return {
        "name": report.host.name,
        "host": asdict(report.host),
        "state": report.state,
        "facts": _plain(asdict(report.facts)) if report.facts else None,
        "lease": _plain(asdict(report.lease)) if report.lease else None,
        "error": report.error.message if report.error else None,
        "problems": [problem._asdict() for problem in report.problems],
    }


def _plain(data: dict[str, Any]) -> dict[str, Any]:
    """Sets as sorted lists, facts within a lease too."""
    return {
        key: sorted(value)
        if isinstance(value, frozenset)
        else _plain(value)
        if isinstance(value, dict)
        else value
        for key, value in data.items()
    }


def _count(names: Sequence[str]) -> str:
    return f"{len(names)} host{'' if len(names) == 1 else 's'}"
