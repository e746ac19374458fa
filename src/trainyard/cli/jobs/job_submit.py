"""`jobs submit`, `clone` and `explain`: make a job from a document and flags, or say what would happen to it."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from trainyard.cli.invocation import Invocation, current
from trainyard.cli.jobs.job_flags import job_flags, with_flags
from trainyard.cli.platform.platform_client import (
    complete_workspace,
    find_job,
    job_argument,
    run,
)
from trainyard.cli.verb import PlainVerb
from trainyard.lib.errors import InvalidError, NotFoundError
from trainyard.spec.workload import (
    Condition,
    NeedSpec,
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
@job_flags(WorkloadSpec)
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
        return await client.jobs.dry_run(await _with_needs(client, spec, options["after"]))

    if axes:
        return submit_sweep(invocation, spec, axes, options, dry_run=dry_run)
    if dry_run:
        return tell(invocation, run(look))

    async def work(client: Client) -> JobDetail:
        wanted = await _with_needs(client, spec, options["after"])
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
    "--language", type=click.Choice(["en", "zh"]), help="English or Chinese.  [default: that of LANG]"
)
def explain_command(job: str, language: str | None) -> int:
    """Say why a job waits: its position, what holds it, what would help, when it may start; or why it has failed."""
    from trainyard import settings
    from trainyard.messages.text import ZH

    tongue = language or settings.language()

    async def work(client: Client) -> Explanation:
        return await client.jobs.explain((await find_job(client, job)).id, language=tongue)

    return tell(current(), run(work), _CHINESE if tongue == ZH else _ENGLISH)


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
        wanted = await _with_needs(client, spec, options["after"])
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
    if command:
        spec = replace(spec, command=command)
    return with_flags(spec, options)


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
