"""Lets machines stop themselves: when a job's commands have ended and its client is gone, or when nothing runs.

If the provider allows it (`verbs.stop_program`), a script on each machine (`self_stop.sh`) decides, and the client only
sends heartbeats. Otherwise the client stops the machines itself, for as long as it lives (`watch.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from trainyard.lib.errors import Error, TaskErrors
from trainyard.lib.ids import new_id
from trainyard.lib.shell import join, quote
from trainyard.runtime import verbs
from trainyard.runtime.job import Job, on_each
from trainyard.runtime.task import Task
from trainyard.spec.machine import MachineState

LOG = "~/.trainyard/self-stop/log"  # on each machine
BEAT_SECONDS = 60.0
BEATS_OF_GRACE = 10  # a laptop may be unreachable for so many heartbeats
LONGEST_LOOK_SECONDS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class StopTerms:
    """The conditions on which machines stop themselves."""

    when_done: bool = False  # stop when the commands have ended and no client lives
    idle_minutes: float = 0.0  # stop when no command has run for so long
    beat_seconds: float = BEAT_SECONDS  # the interval between two heartbeats of a client

    @property
    def is_needed(self) -> bool:
        """Whether any condition is set."""
        return bool(self.when_done or self.idle_minutes)


@dataclass(kw_only=True)
class SelfStop:
    """The self-stop of one job."""

    job: Job
    terms: StopTerms
    client: str = field(default_factory=new_id)

    async def arrange(self) -> bool:
        """Start the script on the machines. Returns False, after a warning with the reason, if they cannot run it."""
        machines = [task.machine for task in self.job.tasks]
        program = verbs.stop_program(self.job.context.backend, machines)
        if program is None:
            return False
        facts = {
            "names": " ".join(machine.name for machine in machines),
            "ids": " ".join(machine.id for machine in machines),
            "arguments": join(program.arguments),
            **self._numbers(),
        }

        async def one(task: Task) -> str:
            terms = "".join(f"{name}={quote(value)}\n" for name, value in {"me": task.name, **facts}.items())
            words = {
                "client": self.client,
                "terms": terms,
                "program": program.text,
                "script": _body("session_alive.sh") + _body("self_stop.sh"),
            }
            head = "".join(f"{name}={quote(value)}\n" for name, value in words.items())
            done = await task.transport.run(head + _body("self_stop_set.sh"))
            said = (done.stdout or done.stderr).decode(errors="replace").strip()
            return (said or f"status {done.status}") if done.status else ""

        answers = await on_each(self.job.tasks, one)
        for task, answer in zip(self.job.tasks, answers, strict=True):
            if answer:
                task.log("the machine cannot stop itself: %s", answer, log_level="WARN")
        if any(answers):
            await self.withdraw()
            return False
        return True

    async def beat(self) -> None:
        """Send heartbeats until cancelled."""
        while True:
            await self.job.context.clock.sleep(self.terms.beat_seconds)
            try:
                await self._tell(
                    f'f="$HOME/.trainyard/self-stop/clients/{self.client}"; [ ! -e "$f" ] || echo >"$f"'
                )
            except (Error, TaskErrors):
                continue  # the machine is unreachable for a while; the grace period is longer

    async def leave(self) -> None:
        """Say that this client is done. From now on the machines stop when their commands have ended."""
        await self._tell(f'cd "$HOME/.trainyard/self-stop" && echo >left && rm -f clients/{self.client}')

    async def withdraw(self) -> None:
        """Stop the script, so that the machines stay on."""
        await self._tell(
            'cd "$HOME/.trainyard/self-stop" 2>/dev/null && rm -f pid terms; '
            "rm -f /var/lib/cloud/scripts/per-boot/trainyard-self-stop.sh"
        )

    async def is_quiet(self) -> bool:
        """Return whether no command runs in the sessions that this client uses."""
        states = await on_each(self.job.tasks, lambda task: task.session.state())
        return not any(state.running is not None for state in states)

    def _numbers(self) -> dict[str, str]:
        idle = round(self.terms.idle_minutes * 60)
        grace = max(1, round(self.terms.beat_seconds * BEATS_OF_GRACE))
        look = max(1, min(LONGEST_LOOK_SECONDS, grace // 4, (idle or grace) // 4))
        return {
            "when_done": "yes" if self.terms.when_done else "",
            "idle_seconds": str(max(1, idle)) if idle or self.terms.idle_minutes else "",
            "grace_seconds": str(grace),
            "look_seconds": str(look),
        }

    async def _tell(self, script: str) -> None:
        running = [task for task in self.job.tasks if task.machine.state is MachineState.RUNNING]
        await on_each(running, lambda task: task.transport.run(script))


@cache
def _body(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")
