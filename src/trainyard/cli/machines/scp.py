"""`scp`: copies files and folders to and from machines, with the syntax of scp."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

import click

from trainyard.cli.invocation import Invocation, current
from trainyard.cli.machines import machine_lookup
from trainyard.cli.machines.machine_lookup import MachineLookup
from trainyard.cli.verb import Verb, complete_name
from trainyard.lib.errors import InvalidError, NotFoundError
from trainyard.lib.shell import home_path
from trainyard.lib.units import format_size

if TYPE_CHECKING:
    from trainyard.runtime.task import Task
    from trainyard.transport.copy import CopyOptions, CopyReport


class CopyAddress(NamedTuple):
    """`task0.bert:/path`, taken apart; no name: a local path."""

    name: str
    path: str


@click.command("scp", cls=Verb)
@click.option("-r", "--recursive", is_flag=True, help="Accepted as scp's; folders always go whole.")
@click.option("--exclude", multiple=True, metavar="PATTERN", help="Leave out what fits, as in a .gitignore.")
@click.option("--gitignore", is_flag=True, help="Leave out what .gitignore files say, too.")
@click.option("--delete", is_flag=True, help="Remove at the target what the source folder does not have.")
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...", shell_complete=complete_name)
@click.argument("target", metavar="TARGET", shell_complete=complete_name)
def scp_command(
    sources: tuple[str, ...],
    target: str,
    recursive: bool,  # noqa: ARG001  # habit of the fingers
    exclude: tuple[str, ...],
    gitignore: bool,
    delete: bool,
) -> int:
    """Copy files and folders to machines (TARGET is NAME:path or {job}:path) or from them (SOURCE is NAME:path).

    A relative path is under the machine's home. A folder goes inside a target that exists and has another name, else it becomes the
    target. Only what changed travels, and an interrupted copy goes on where it was. What .trainyardignore names stays behind.
    """
    invocation = current()

    async def work(machines: MachineLookup) -> int:
        from trainyard.transport.copy import CopyOptions

        options = CopyOptions(exclude=exclude, use_gitignore=gitignore, delete=delete)
        copying = Copying(invocation, machines, options)
        froms = [_place(source) for source in sources]
        to = _place(target)
        remote = [place for place in froms if place.name]
        if remote and len(remote) < len(froms):
            raise InvalidError(
                "the sources are partly here and partly on machines", hint="Copy in two steps."
            )
        if remote and to.name:
            await copying.across(froms, to)
        elif remote:
            await copying.download(froms, Path(to.path))
        elif to.name:
            await copying.upload([Path(place.path) for place in froms], to)
        else:
            raise InvalidError(
                "neither side is on a machine", hint="Write NAME:path for one, such as task0.bert:code/."
            )
        copying.tell()
        return 0

    return machine_lookup.run(invocation, work)


class Copying:
    """The copies of one call and their reports."""

    def __init__(self, invocation: Invocation, machines: MachineLookup, options: CopyOptions) -> None:
        self._invocation = invocation
        self._machines = machines
        self._options = options
        self._reports: list[CopyReport] = []

    async def upload(self, sources: Sequence[Path], to: CopyAddress) -> None:
        """Copy local files to all machines that the name means; read once, sent together."""
        for source in sources:
            if not source.exists() and not source.is_symlink() and not set(source.name) & set("*?["):
                raise NotFoundError(f"there is no file {str(source)!r} here", hint="Check the path.")
        tasks = await self._machines.tasks([to.name])
        again = len(sources) == 1 and sources[0].absolute().name == PurePosixPath(to.path).name
        inside = await self._is_folder(tasks, to.path, again=again)
        self._machines.reporter.bar.label = "uploading"
        for into in (True, False):
            part = [task for task in tasks if inside[task.name] is into]
            if part:
                self._reports.append(await self._send(part, sources, to.path, into=into))

    async def download(self, sources: Sequence[CopyAddress], to: Path) -> None:
        """Copy from machines; from several of them into a folder for each."""
        from trainyard.runtime.job import on_each

        self._machines.reporter.bar.label = "downloading"
        pairs = [(place, await self._machines.tasks([place.name])) for place in sources]
        several = len(pairs) > 1 or len(pairs[0][1]) > 1
        if several and to.exists() and not to.is_dir():
            raise InvalidError(
                f"{str(to)!r} is a file, and several things are to go there", hint="Name a folder."
            )
        for place, tasks in pairs:

            async def one(task: Task, path: str = place.path, apart: bool = len(tasks) > 1) -> CopyReport:
                folder = to / task.name if apart else to
                if several:
                    folder.mkdir(parents=True, exist_ok=True)
                inside = several or (folder.is_dir() and folder.absolute().name != PurePosixPath(path).name)
                return await task.download(path or ".", folder, replace(self._options, into=inside))

            self._reports += await on_each(tasks, one)

    async def across(self, sources: Sequence[CopyAddress], to: CopyAddress) -> None:
        """From machines to machines, by way of this computer."""
        with tempfile.TemporaryDirectory(prefix="trainyard-") as folder:
            await self.download(sources, Path(folder))
            self._reports.clear()
            arrived = sorted(Path(folder).iterdir())
            if len(arrived) == 1:
                await self.upload(arrived, to)
            else:
                await self.upload(arrived, CopyAddress(to.name, f"{to.path}/" if to.path else ""))

    def tell(self) -> None:
        """What went, for people or programs."""
        output = self._invocation.output
        self._machines.reporter.close()
        sent = {name: count for report in self._reports for name, count in report.sent.items()}
        files = sum(report.files for report in self._reports)
        notes = list(dict.fromkeys(note for report in self._reports for note in report.notes))
        relayed = sorted({name for report in self._reports for name in report.relayed})
        if self._invocation.json:
            output.json({"files": files, "sent_bytes": sent, "relayed": relayed, "notes": notes})
            return
        for note in notes:
            output.warn(note)
        amount = sum(count for name, count in sent.items() if name not in relayed)
        noun = "file" if files == 1 else "files"
        machines = f" on {len(sent)} machines" if len(sent) > 1 else ""
        passed = f", {len(relayed)} of them passed it on among themselves" if relayed else ""
        output.note(f"{files} {noun}{machines}, {format_size(amount)} sent{passed}")

    async def _send(
        self, tasks: Sequence[Task], sources: Sequence[Path], path: str, *, into: bool
    ) -> CopyReport:
        from trainyard.runtime.task import TransferProgress
        from trainyard.transport.copy import upload

        return await upload(
            [(task.name, task.transport) for task in tasks],
            list(sources),
            path,
            options=replace(self._options, into=into),
            progress=TransferProgress(self._machines.reporter.transfer),
        )

    async def _is_folder(self, tasks: Sequence[Task], path: str, *, again: bool) -> dict[str, bool]:
        """Where the target is a folder, the copy goes inside; scp's users expect that.

        But not `code` into a folder `code`: that is the same copy once more, and not code/code.
        """
        from trainyard.runtime.job import on_each

        async def one(task: Task) -> bool:
            is_said = not path or path.endswith("/")
            if is_said or again:
                return is_said
            return (await task.transport.run(f"[ -d {home_path(path)} ]")).status == 0

        return dict(zip((task.name for task in tasks), await on_each(tasks, one), strict=True))


def _place(text: str) -> CopyAddress:
    """`name:path`; a colon after a slash belongs to a local path, as for scp."""
    head, colon, path = text.partition(":")
    if colon and head and "/" not in head:
        return CopyAddress(head, path)
    return CopyAddress("", text)
