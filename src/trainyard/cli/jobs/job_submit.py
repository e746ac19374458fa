"""`jobs submit`, `clone` and `explain`: from a document and flags to a job, or to what would become of one."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from trainyard.cli.duration_option import duration_option
from trainyard.cli.invocation import Invocation, current
from trainyard.cli.platform.platform_client import (
    complete_workspace,
    find_job,
    job_argument,
    pairs,
    run,
    variables,
)
from trainyard.cli.verb import PlainVerb
from trainyard.lib.errors import InvalidError, NotFoundError
from trainyard.lib.units import parse_mebibytes
from trainyard.spec.workload import (
    CodeSpec,
    Condition,
    Launcher,
    MountSpec,
    NeedSpec,
    Restart,
    RoleSpec,
    SecretSpec,
    WorkloadSpec,
)

if TYPE_CHECKING:
    from trainyard.cli.terminal.output import Output
    from trainyard.client import Client
    from trainyard.client.schemas import Diagnosis, Explanation, Job, JobDetail, SweepDetail
    from trainyard.spec.sweep import Axis

FORMATS = {".yaml": "yaml", ".yml": "yaml", ".toml": "toml"}


class SubmitVerb(PlainVerb):
    """Options end where the job's own command line begins; after a document they go on."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        """Everything after the first word that is neither an option of ours nor a document is the command."""
        with_value = {
            spelling
            for param in self.get_params(context)
            if isinstance(param, click.Option) and not param.is_flag and not param.count
            for spelling in param.opts
        }
        place, has_document = 0, False
        while place < len(args) and args[place] != "--":
            if Path(args[place]).suffix in FORMATS and not args[place].startswith("-") and not has_document:
                args = [*args[:place], "--file", *args[place:]]
                has_document = True
            if not args[place].startswith("-") or args[place] == "-":
                args = [*args[:place], "--", *args[place:]]
                break
            place += 1 + (args[place].replace("_", "-") in with_value)
        return super().parse_args(context, args)


@click.command("submit", cls=SubmitVerb)
@click.option(
    "-f",
    "--file",
    "path",
    metavar="FILE",
    help="A job in YAML or TOML; - is standard input. Flags win over it.",
)
@click.option("--name", metavar="NAME", help="What to call it.  [default: the first word of the command]")
@click.option(
    "--workspace", metavar="NAME", shell_complete=complete_workspace, help="Whose quota it counts for."
)
@click.option("--replicas", type=click.IntRange(1), metavar="N", help="How many run together.")
@click.option(
    "--gpus", "--devices", "devices", type=click.IntRange(0), metavar="N", help="Devices of each replica."
)
@click.option("--device", metavar="TYPE", help="Their type, where there are several: V100, Ascend910.")
@click.option("--cpu", type=click.FloatRange(0), metavar="CORES", help="Cores of each replica.")
@click.option("--memory", metavar="SIZE", help="Memory of each replica: 16GiB.")
@click.option(
    "--env",
    multiple=True,
    metavar="NAME[=VALUE]",
    help="A variable of its environment; without a value, as it is here.",
)
@click.option(
    "--secret",
    "secret_variables",
    multiple=True,
    metavar="NAME[=VARIABLE]",
    help="A secret of yours or the workspace's, as a variable.",
)
@click.option(
    "--secret-file",
    "secret_files",
    multiple=True,
    metavar="NAME=PATH",
    help="The same as a file of its tasks.",
)
@click.option("--working-dir", metavar="FOLDER", help="Where it runs.  [default: a fresh folder]")
@click.option("--priority", type=click.IntRange(1, 9), metavar="1-9", help="9 comes first.  [default: 5]")
@click.option(
    "--preemptible",
    is_flag=True,
    default=None,
    help="May run on what others leave free, and has to go when they want it.",
)
@duration_option(
    "--max-time", "Stop it when it has run for 90s, 30m, 2h. Every start has the whole time, but one to grow."
)
@duration_option(
    "--grace",
    "Between being asked to go (stopped, preempted, at its limit) and being killed.  [default: 30s]",
)
@duration_option("--retain", "Keep its places so long after its end, for a look.")
@click.option("--retries", type=click.IntRange(0), metavar="N", help="Run it again so often after a failure.")
@click.option(
    "--restart",
    type=click.Choice([each.value for each in Restart]),
    metavar="WHEN",
    help="never, on_failure, exit_code or always.",
)
@click.option("--node", "nodes", multiple=True, metavar="NAME", help="Only on this node.")
@click.option("--label", "labels", multiple=True, metavar="NAME=VALUE", help="Only on nodes with this label.")
@click.option("--tag", "tags", multiple=True, metavar="NAME=VALUE", help="A word to find it by.")
@click.option("--kind", metavar="KIND", help="PyTorchJob, TFJob, MPIJob and so on.  [default: a plain job]")
@click.option("--image", metavar="IMAGE", help="The image of its container.")
@click.option("--shared-memory", metavar="SIZE", help="Size of /dev/shm: 8GiB.")
@click.option(
    "--disk", metavar="SIZE", help="Of the node's disk for each task: 200GiB.  [default: the platform's]"
)
@click.option(
    "--launcher",
    type=click.Choice([each.value for each in Launcher if each]),
    metavar="WHO",
    help="Who starts one process for each device: own, torchrun, mpirun or horovodrun.",
)
@click.option(
    "--mount",
    "mounts",
    multiple=True,
    metavar="STORAGE[:FOLDER[:ro]]",
    help="A storage of the workspace, and where tasks see it.",
)
@click.option(
    "--code", metavar="URL", help="Check out this repository first; or the name or id of a code source."
)
@click.option("--code-branch", metavar="NAME", help="Its branch or tag.")
@click.option("--code-commit", metavar="COMMIT", help="Its commit.")
@click.option(
    "--requirement",
    "requirements",
    multiple=True,
    metavar="PACKAGE",
    help="A Python package to install first.",
)
@click.option(
    "--requirements-dir", metavar="FOLDER", help="A folder whose requirements.txt is installed first."
)
@duration_option("--hang", "Without output and use of devices for so long, it has failed.")
@click.option(
    "--minimum",
    type=click.IntRange(1),
    metavar="N",
    help="Start with so many replicas where not all find room.",
)
@duration_option("--grow", "With fewer replicas for so long, start anew with more where there is room.")
@click.option(
    "--after",
    "needs",
    multiple=True,
    metavar="JOB[:HOW]",
    help="Only when this job has succeeded; or failed or ended, as HOW says.",
)
@click.option(
    "--sweep",
    "sweep",
    multiple=True,
    metavar="NAME=VALUES",
    help="One job for each value: lr=0.1,0.01 or seed=1..5; {NAME} in the command and the variable NAME have it.",
)
@click.option("--hold", is_flag=True, help="Wait for an approval before the queue.")
@click.option(
    "--key", default="", metavar="TEXT", help="Submit it once, however often this is run with the same text."
)
@click.option("--dry-run", is_flag=True, help="Say what would happen, and submit nothing.")
@click.option("--wait", "waits", is_flag=True, help="Wait for its end; the exit status is its program's.")
@click.option("--follow", is_flag=True, help="Show its output meanwhile.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def submit_command(path: str | None, dry_run: bool, **options: Any) -> int:
    """Put a job into the queue, from a document or from flags: `jobs submit --gpus 2 -- python train.py`.

    One word of COMMAND is given to the shell as it is, several are quoted each. A first word that ends with .yaml,
    .yml or .toml is the document. Prints the id.
    """
    invocation = current()
    words: tuple[str, ...] = options.pop("command")
    if path is None and len(words) == 1 and Path(words[0]).suffix in FORMATS:
        path, words = words[0], ()
    document, axes = _document(path) if path else (None, ())
    axes = _axes(axes, options["sweep"])
    spec = _changed(document, _joined(words, axes), options)

    async def look(client: Client) -> Explanation:
        return await client.jobs.dry_run(await _with_needs(client, spec, options["needs"]))

    if axes:
        return submit_sweep(invocation, spec, axes, options, dry_run=dry_run)
    if dry_run:
        return tell(invocation, run(look))

    async def work(client: Client) -> JobDetail:
        wanted = await _with_needs(client, spec, options["needs"])
        return await client.jobs.submit(wanted, key=options["key"], hold=options["hold"])

    return tell_submitted(invocation, run(work), waits=options["waits"], follow=options["follow"])


@click.command("clone", cls=PlainVerb)
@click.option("--name", metavar="NAME", help="Another name.")
@click.option("--priority", type=click.IntRange(1, 9), metavar="1-9", help="Another priority.")
@click.option("--workspace", metavar="NAME", shell_complete=complete_workspace, help="Another workspace.")
@click.option("--command", metavar="TEXT", help="Another command.")
@click.option("--wait", "waits", is_flag=True, help="Wait for its end; the exit status is its program's.")
@click.option("--follow", is_flag=True, help="Show its output meanwhile.")
@job_argument()
def clone_command(job: str, waits: bool, follow: bool, **changes: Any) -> int:
    """Submit a job again, with changes."""
    invocation = current()
    wanted = {name: value for name, value in changes.items() if value is not None}

    async def work(client: Client) -> JobDetail:
        return await client.jobs.clone((await find_job(client, job)).id, wanted)

    return tell_submitted(invocation, run(work), waits=waits, follow=follow)


@click.command("explain", cls=PlainVerb)
@job_argument()
@click.option(
    "--language", type=click.Choice(["en", "zh"]), default="en", help="English or Chinese.  [default: en]"
)
def explain_command(job: str, language: str) -> int:
    """Say why a job waits: its position, what holds it, what would help, when it may start; or why it has failed."""

    async def work(client: Client) -> Explanation:
        return await client.jobs.explain((await find_job(client, job)).id, language=language)

    return tell(current(), run(work), _CHINESE if language == "zh" else _ENGLISH)


class _Frame(NamedTuple):
    """What stands around the server's own sentences."""

    at_once: str
    state: str
    position: str
    start: str
    code: str
    cause: str


_ENGLISH = _Frame(
    at_once="It starts at once{}.",
    state="It is {}.",
    position="Position in the queue: {}.",
    start="Estimated start: {}.",
    code="Exit code {}: {}.",
    cause="Likely cause: {}. {} says:",
)
_CHINESE = _Frame(
    at_once="可立即启动{}。",
    state="状态：{}。",
    position="排队位置：{}。",
    start="预计启动时间：{}。",
    code="退出码 {}：{}。",
    cause="可能原因：{}。{} 的日志：",
)


def tell(invocation: Invocation, said: Explanation, frame: _Frame = _ENGLISH) -> int:
    """Say why a job waits, or what would become of one."""
    from trainyard.cli.jobs.jobs import record

    output = invocation.output
    if invocation.json:
        output.json(record(said))
        return 0
    if said.sentence:
        output.line(said.sentence)
    elif said.starts_now:
        where = f" on {', '.join(said.nodes)}" if said.nodes else ""
        output.line(frame.at_once.format(where))
    else:
        output.line(frame.state.format(said.state))
    if said.remedy:
        output.line(said.remedy)
    if said.position is not None and not said.starts_now:
        output.line(frame.position.format(said.position))
    if said.estimated_start is not None:
        output.line(frame.start.format(f"{said.estimated_start.astimezone():%Y-%m-%d %H:%M:%S}"))
    if said.diagnosis is not None:
        _tell_failure(output, said.diagnosis, frame)
    return 0


def _tell_failure(output: Output, found: Diagnosis, frame: _Frame) -> None:
    if found.meaning:
        output.line(frame.code.format(found.exit_code, found.meaning))
    if found.cause:
        output.line(frame.cause.format(found.cause, found.task))
        output.line(f"    {found.line}")
        output.line(found.remedy)


def tell_submitted(invocation: Invocation, job: Job, *, waits: bool, follow: bool) -> int:
    """Say the id of a new job; where that is wanted, follow it to its end."""
    from trainyard.cli.jobs.job_logs import look_to_end
    from trainyard.cli.jobs.jobs import INTERRUPTED, record, tell_end

    if invocation.json and not (waits or follow):
        invocation.output.json(record(job))
    elif waits or follow:
        invocation.output.note(f"{job.id} is submitted")
    else:
        invocation.output.line(job.id)
    if not (waits or follow):
        return 0
    invocation.output.flush()
    try:
        ended = look_to_end(invocation, job.id, follow=follow)
    except KeyboardInterrupt:
        invocation.output.note(
            f"Stopped looking; the job goes on. Stop it with `trainyard jobs stop {job.id}`."
        )
        return INTERRUPTED
    return tell_end(invocation, ended)


def submit_sweep(
    invocation: Invocation,
    spec: WorkloadSpec,
    axes: Sequence[Axis],
    options: Mapping[str, Any],
    *,
    dry_run: bool,
) -> int:
    """Submit a sweep, and say its id; the ids of its jobs follow, one a line."""
    from trainyard.cli.jobs.jobs import record
    from trainyard.spec.sweep import expand

    output = invocation.output
    several = expand(spec, axes)
    if dry_run:
        for one in several:
            output.line(f"{one.name}: {one.command}")
        return 0
    if options["waits"] or options["follow"]:
        raise InvalidError("A sweep is not waited for.", hint="See `trainyard jobs ls --sweep ID`.")

    async def work(client: Client) -> SweepDetail:
        wanted = await _with_needs(client, spec, options["needs"])
        values = {axis.name: axis.values for axis in axes}
        return await client.sweeps.submit(wanted, values, key=options["key"], hold=options["hold"])

    made = run(work)
    if invocation.json:
        output.json(record(made))
        return 0
    output.note(f"{made.jobs} jobs are submitted; `trainyard jobs ls --sweep {made.id}` lists them.")
    output.line(made.id)
    return 0


def _axes(own: Sequence[Axis], words: Sequence[str]) -> list[Axis]:
    """The document's parameters, with those of the flags over them."""
    if not own and not words:
        return []
    from trainyard.spec.sweep import parse_axis

    found = {axis.name: axis for axis in own}
    given: dict[str, Axis] = {}
    for word in words:
        axis = parse_axis(word)
        if axis.name in given:
            raise InvalidError(f"--sweep {axis.name} is there twice.", hint="Join its values with commas.")
        given[axis.name] = axis
    return list({**found, **given}.values())


def _joined(words: tuple[str, ...], axes: Sequence[Axis]) -> str:
    """One line for the shell; a single word is one already."""
    if len(words) < 2:
        return "".join(words)
    if not axes:
        return shlex.join(words)
    from trainyard.spec.sweep import join_words

    return join_words(words, axes)


def read_document(path: str) -> WorkloadSpec:
    """One job from a file; a sweep is refused."""
    spec, axes = _document(path)
    if axes:
        raise InvalidError(f"{path} is a sweep of many jobs.", hint="Leave `sweep` out.")
    return spec


def _document(path: str) -> tuple[WorkloadSpec, Sequence[Axis]]:
    from trainyard.spec.document import parse_with_sweep as parse

    if path == "-":
        return parse(sys.stdin.read(), "yaml", source="standard input")
    kind = FORMATS.get(Path(path).suffix)
    if kind is None:
        raise InvalidError(
            f"{path} is neither YAML nor TOML by its name.",
            hint="Name it .yaml or .toml, or pipe YAML into `-f -`.",
        )
    return parse(Path(path).read_text(encoding="utf-8-sig"), kind, source=path)


def _changed(spec: WorkloadSpec | None, command: str, options: dict[str, Any]) -> WorkloadSpec:
    """The document with the flags over it; the flags alone where there is none."""
    if not command and spec is None:
        raise InvalidError(
            "There is nothing to run.", hint="Give a command after `--`, or a document with -f FILE."
        )
    if spec is None:
        spec = WorkloadSpec(name=Path(command.split(maxsplit=1)[0]).name if command.split() else "job")
    changes: dict[str, Any] = {
        "command": command or None,
        "name": options["name"],
        "workspace": options["workspace"],
        "working_dir": options["working_dir"],
        "priority": options["priority"],
        "preemptible": options["preemptible"] or None,
        "max_run_seconds": _whole(options["max_time"]),
        "grace_seconds": _whole(options["grace"]),
        "retain_seconds": _whole(options["retain"]),
        "max_retries": options["retries"],
        "restart": None if options["restart"] is None else Restart(options["restart"]),
        "kind": options["kind"],
        "launcher": None if options["launcher"] is None else Launcher(options["launcher"]),
        "mounts": (*spec.mounts, *map(_mount, options["mounts"])) if options["mounts"] else None,
        "code": _code(spec, options),
        "secrets": _secrets(spec, options),
        "requirements": options["requirements"] or None,
        "requirements_dir": options["requirements_dir"],
        "hang_seconds": _whole(options["hang"]),
        "grow_seconds": _whole(options["grow"]),
        "env": {**spec.env, **variables(options["env"])} if options["env"] else None,
        "tags": {**spec.tags, **pairs(options["tags"], "tag")} if options["tags"] else None,
    }
    spec = replace(spec, **{name: value for name, value in changes.items() if value is not None})
    return replace(spec, roles=tuple(_role(role, options) for role in spec.roles))


def _code(spec: WorkloadSpec, options: dict[str, Any]) -> CodeSpec | None:
    """The document's code with the flags over it; a word with a slash or a colon is an address, any other a source."""
    code, word = spec.code, options["code"]
    if word:
        is_url = "/" in word or ":" in word
        code = CodeSpec(url=word) if is_url else CodeSpec(source=word)
    if code is None and (options["code_branch"] or options["code_commit"]):
        raise InvalidError("There is no code to take this branch or commit of.", hint="Add --code URL.")
    if code is None:
        return None
    changes = {"branch": options["code_branch"], "commit": options["code_commit"]}
    return replace(code, **{name: value for name, value in changes.items() if value is not None})


def _secrets(spec: WorkloadSpec, options: dict[str, Any]) -> tuple[SecretSpec, ...] | None:
    """The document's secrets, and those of the flags."""
    given = []
    for word in options["secret_variables"]:
        name, _, variable = word.partition("=")
        given.append(SecretSpec(name=name, variable=variable))
    for word in options["secret_files"]:
        name, equals, path = word.partition("=")
        if not equals or not path:
            raise click.UsageError(f"{word!r} is no secret with its file; write NAME=/run/secrets/NAME")
        given.append(SecretSpec(name=name, file=path))
    return (*spec.secrets, *given) if given else None


def _mount(word: str) -> MountSpec:
    """`data`, `data:/data` or `nas://host/path:/data:ro`."""
    text = word.removesuffix(":ro")
    is_read_only, text = text != word, text.removesuffix(":rw")
    source, colon, target = text.rpartition(":/")
    if not colon or source.endswith("/") or target.startswith("/"):  # an address has a colon of its own
        source, colon, target = text, "", ""
    if ":" in target:
        raise click.UsageError(f"{word!r} is no mount; write STORAGE, STORAGE:/FOLDER or STORAGE:/FOLDER:ro")
    return MountSpec(source=source, target=f"/{target}" if colon else "", read_only=is_read_only)


def _role(role: RoleSpec, options: dict[str, Any]) -> RoleSpec:
    changes: dict[str, Any] = {
        "replicas": options["replicas"],
        "minimum": options["minimum"],
        "devices": options["devices"],
        "device": options["device"],
        "cpu": options["cpu"],
        "memory_mib": size_in_mib(options["memory"]),
        "shared_memory_mib": size_in_mib(options["shared_memory"], "--shared-memory"),
        "disk_mib": size_in_mib(options["disk"], "--disk"),
        "image": options["image"],
        "nodes": options["nodes"] or None,
        "labels": {**role.labels, **pairs(options["labels"], "label")} if options["labels"] else None,
    }
    return replace(role, **{name: value for name, value in changes.items() if value is not None})


async def _with_needs(client: Client, spec: WorkloadSpec, words: tuple[str, ...]) -> WorkloadSpec:
    """The job with those that --after names; names become ids."""
    needs = {need.job: need for need in spec.after}
    for word in words:
        job, colon, how = word.rpartition(":")
        if not colon or how not in set(Condition):
            job, how = word, Condition.SUCCEEDED
        try:
            found = (await find_job(client, job)).id
        except NotFoundError as error:
            if not colon:
                raise
            hint = f"Write JOB, or JOB:HOW with one of {', '.join(Condition)}."
            raise NotFoundError(error.message, hint=hint) from error
        needs[found] = NeedSpec(job=found, condition=Condition(how))
    return replace(spec, after=tuple(needs.values()))


def size_in_mib(text: str | None, flag: str = "--memory") -> int | None:
    """What a flag says; None where it says nothing."""
    try:
        return None if text is None else parse_mebibytes(text)
    except ValueError as error:
        bare = str(text).strip()
        example = f"{bare}GiB" if bare.isdigit() else "16GiB"
        raise InvalidError(f"{flag}: {error}.", hint=f"Write {flag} {example}.") from error


def _whole(seconds: float | None) -> int | None:
    return None if seconds is None else max(1, round(seconds)) if seconds > 0 else 0
