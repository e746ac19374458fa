"""Cloud Assistant's agent: runs the waiting scripts of a machine there and reports their results.

What waits is `assistant_runs.py`'s matter, how a script runs inside a machine `machines/execution.py`'s.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Callable, Collection
from pathlib import Path

from trainyard.emulators.aliyun.assistant_runs import AssistantRun, begin, errands, finish, is_wanted
from trainyard.emulators.aliyun.cloud.clock import AdjustableClock
from trainyard.emulators.aliyun.cloud.world import World
from trainyard.emulators.aliyun.machines import Execution, Machines
from trainyard.lib.aio import gather_all
from trainyard.lib.shell import quote

SEND_FILE = Path(__file__).with_name("sendfile.sh")
FILE_PROBLEMS = {11: "FileAlreadyExists", 12: "FileAuthorityInvalid"}
WORDS = {
    "FileAlreadyExists": "The file exists and Overwrite is false.",
    "FileAuthorityInvalid": "The owner or group of the file does not exist.",
    "ExecutionTimeout": "The command ran longer than its time-out.",
    "ExecutionInterrupted": "The instance went away meanwhile.",
    "DirectoryNotExists": "The WorkingDir does not exist.",
    "AccountNotExists": "The Username does not exist.",
}


class Agent:
    """Runs errands, each in a task of its own."""

    def __init__(
        self, world: World, machines: Machines, clock: AdjustableClock, changed: Callable[[], None]
    ) -> None:
        self._world = world
        self._machines = machines
        self._clock = clock
        self._changed = changed
        self._running: dict[asyncio.Task[None], tuple[AssistantRun, asyncio.Event]] = {}

    def look(self, ready: Collection[str]) -> None:
        """Begin what waits for machines that are `ready`; stop what is no longer wanted."""
        now = self._clock.now()
        for errand in errands(self._world, now):
            if errand.instance in ready and begin(self._world, errand.invocation, errand.instance, now):
                stop = asyncio.Event()
                task = asyncio.ensure_future(self._run(errand, stop))
                self._running[task] = (errand, stop)
                task.add_done_callback(lambda done: self._running.pop(done, None))
        for errand, stop in self._running.values():
            if not is_wanted(self._world, errand.invocation, errand.instance):
                stop.set()

    async def close(self) -> None:
        """End what runs; it is told as an agent that does not respond."""
        tasks = list(self._running)
        for task in tasks:
            task.cancel()
        await gather_all(tasks)

    async def _run(self, errand: AssistantRun, stop: asyncio.Event) -> None:
        try:
            ended = await self._machines.execute(
                errand.instance,
                _script_of(errand) if errand.file else errand.script,
                timeout=errand.timeout.total_seconds(),
                working_dir=errand.working_dir,
                user=errand.username or "root",
                cancelled=stop,
            )
        except (OSError, ValueError) as error:  # ValueError: a name with a NUL
            ended = Execution(status=-1, output=str(error).encode(), problem="ExecutionException")
        problem = ended.problem
        if errand.file and not problem and ended.status:
            problem = FILE_PROBLEMS.get(ended.status, "ExecutionException")
        finish(
            self._world,
            errand.invocation,
            errand.instance,
            self._clock.now(),
            exit_code=None if ended.problem else ended.status,
            output=ended.output,
            error_code="" if problem == "Terminated" else problem,
            error=WORDS.get(problem, problem),
        )
        self._changed()


def _script_of(errand: AssistantRun) -> bytes:
    """The script that puts a file in its place."""
    file = errand.file
    try:
        content = base64.b64encode(base64.b64decode(file["Content"])).decode()
    except binascii.Error:
        content = ""
    values = {
        "name": file["Name"],
        "folder": file["TargetDir"],
        "mode": file["FileMode"],
        "owner": file["FileOwner"],
        "group": file["FileGroup"],
        "overwrite": file["Overwrite"],
        "content": content,
    }
    lines = [f"{name}={quote(value)}" for name, value in values.items()]
    return ("\n".join(lines) + "\n" + SEND_FILE.read_text("utf-8")).encode()
