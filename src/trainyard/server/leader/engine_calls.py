"""What the conductor asks of nodes, beside its turns: launch, end, forget. What came of it goes back as input.

Deciding is reconciler.py; how a node does it is the engine's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass

from trainyard.engines.api import Engine, LatePeers, Launch, NotSentError, end_one
from trainyard.lib.errors import ConflictError, Error, InvalidError, UnreachableError
from trainyard.server.jobs.turn_changes import Job, split_attempt
from trainyard.server.launch.job_launch import launch_of
from trainyard.server.launch.job_secrets import SecretMissingError
from trainyard.server.launch.launch_facts import LaunchFacts

logger = logging.getLogger(__name__)

# A launch that was surely not sent goes elsewhere after so many tries. One that may have been taken is tried until the
# node answers: it may run there, so it must not run elsewhere.
UNSENT_TRIES = 3
PAUSE_SECONDS = 1.0
# So many are put together in a thread of their own: everybody knows everybody, and that takes its time.
MANY_TASKS = 200


@dataclass(frozen=True, slots=True)
class NotLaunched:
    """A launch that a node did not take."""

    workload_id: str
    attempt_id: str
    node: str  # which did not take it, where that is known
    message: str
    is_nodes_fault: bool  # neither the network's nor the job's own: the node is trusted less
    was_sent: bool  # False: the node cannot know of it
    is_final: bool = False  # another start would end the same way


@dataclass(frozen=True, slots=True)
class Ended:
    """An end that nodes have taken: the tasks that each of them has."""

    workload_id: str
    attempt_id: str
    tasks: Mapping[str, frozenset[str]]


class EngineCalls:
    """Calls to the engine that run beside the conductor's turns."""

    def __init__(
        self,
        engine: Engine,
        arrived: Callable[[NotLaunched | Ended], None],
        surround: Callable[[Sequence[Job]], Awaitable[LaunchFacts]],
    ) -> None:
        self._engine = engine
        self._surround = surround
        self._arrived = arrived
        self._running: set[asyncio.Task[None]] = set()
        self._launching: set[str] = set()  # attempts that are being started, until their nodes have answered
        self._binding: set[str] = set()  # attempts whose tasks are told now where each of them is
        self._clearing: set[tuple[str, str]] = set()  # attempts that are over, and nodes that are told so now

    def launch(self, jobs: Sequence[Job], *, were_sent: bool = False) -> None:
        """Start these on their nodes. `were_sent`: an earlier leader may have done so."""
        if jobs:
            # As they are now: what becomes of them meanwhile is the next turns' matter.
            several = [Job(job.record, dict(job.tasks)) for job in jobs]
            self._launching |= {job.attempt_id for job in several}
            self._start(self._prepare(several, were_sent=were_sent))

    def end(self, jobs: Sequence[tuple[Job, float]]) -> None:
        """End what is left of these, by node and grace: so many seconds."""
        wishes = {job.attempt_id: (tuple(sorted(_nodes_left(job))), grace) for job, grace in jobs}
        self._launching -= wishes.keys()
        self._binding -= wishes.keys()
        wishes = {attempt: wish for attempt, wish in wishes.items() if wish[0]}
        if wishes:
            self._start(self._end(wishes))

    def forget(self, forgets: Iterable[tuple[str, frozenset[str]]]) -> None:
        """Let nodes remove what they keep of attempts that are over."""
        by_nodes: dict[frozenset[str], list[str]] = {}
        for attempt, nodes in forgets:
            # NB: it has run, so the answer to its launch was lost. Sent again after it is forgotten, it would run twice.
            self._launching.discard(attempt)
            by_nodes.setdefault(nodes, []).append(attempt)
        for nodes, attempts in by_nodes.items():
            self._start(self._forget(attempts, nodes))

    def bind_peers(self, jobs: Sequence[Job]) -> None:
        """Tell the tasks of these where each of them is, by the words of their engine."""
        for job in jobs:
            if job.attempt_id not in self._binding:
                self._binding.add(job.attempt_id)
                addresses = {task.name: task.address for task in job.tasks.values()}
                self._start(self._bind_peers(job.attempt_id, sorted(job.nodes), addresses))

    def clear_stray(self, attempt: str, nodes: Iterable[str]) -> None:
        """End and forget an attempt that the store has closed.

        A node that does not answer reports it again when it does, and is then told again.
        """
        for node in nodes:
            if (attempt, node) not in self._clearing:
                self._clearing.add((attempt, node))
                self._start(self._clear_stray(attempt, node))

    def cancel(self) -> None:
        """Leave what is under way to the next leader, who asks for it again."""
        for task in self._running:
            task.cancel()

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.ensure_future(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _prepare(self, jobs: Sequence[Job], *, were_sent: bool) -> None:
        """Bring together what the launches have to know, and launch."""
        while True:
            try:
                launch_facts = await self._surround(jobs)
            except Error as error:
                logger.warning("what launches have to know cannot be read now: %s", error)
                await asyncio.sleep(PAUSE_SECONDS)
            else:
                break
        several = [job for job in jobs if job.attempt_id in self._launching]  # others were ended meanwhile
        is_large = sum(len(job.tasks) for job in several) > MANY_TASKS
        made = (
            await asyncio.to_thread(_launches, several, launch_facts)
            if is_large
            else _launches(several, launch_facts)
        )
        launches = {}
        for job, launch in zip(several, made, strict=True):
            if isinstance(launch, Launch):
                launches[job.attempt_id] = launch
            elif job.attempt_id in self._launching:
                self._launching.discard(job.attempt_id)
                self._refused(job.attempt_id, launch, was_sent=were_sent)
        await self._launch(launches, set(launches) if were_sent else set())

    async def _launch(self, left: dict[str, Launch], sent: set[str]) -> None:
        tries = 0
        while left:
            if tries:
                await asyncio.sleep(min(PAUSE_SECONDS * tries, 5 * PAUSE_SECONDS))
                left = {one: launch for one, launch in left.items() if one in self._launching}
            tries += 1
            # A gang over several nodes begins only when all of them are there: half a gang would run in vain, and again.
            apart = {
                one: node
                for one, launch in left.items()
                if one not in sent and (node := self._missing(launch))
            }
            going = [launch for one, launch in left.items() if one not in apart]
            answers = dict(await self._engine.launch(going)) if going else {}
            gangs = {launch.attempt_id for launch in going if len(launch.nodes) > 1}
            sent |= gangs | {one for one, error in answers.items() if not isinstance(error, NotSentError)}
            answers |= {
                one: NotSentError(f"the node {node} does not answer", values={"node": node})
                for one, node in apart.items()
            }
            for one, error in answers.items():
                waits = isinstance(error, UnreachableError) and (one in sent or tries < UNSENT_TRIES)
                if waits:
                    continue
                del left[one]
                self._launching.discard(one)
                if error is not None:
                    self._refused(one, error, was_sent=one in sent)

    def _missing(self, launch: Launch) -> str:
        """A node of a gang that does not answer."""
        if len(launch.nodes) == 1:
            return ""
        return next((node for node in launch.nodes if not self._engine.is_reachable(node)), "")

    def _refused(self, attempt_id: str, error: Error, *, was_sent: bool) -> None:
        is_fault = not isinstance(error, UnreachableError | ConflictError | InvalidError)
        workload = split_attempt(attempt_id)[0]
        node = str(error.values.get("node", ""))  # so that it can be avoided
        self._arrived(
            NotLaunched(
                workload,
                attempt_id,
                node,
                error.message,
                is_fault,
                was_sent,
                is_final=isinstance(error, SecretMissingError),
            )
        )

    async def _end(self, wishes: Mapping[str, tuple[tuple[str, ...], float]]) -> None:
        answers = await self._engine.end(wishes)
        for attempt, answer in answers.items():
            if isinstance(answer, Error):
                logger.info("the end of %s is asked for again later: %s", attempt, answer)
            else:
                self._arrived(Ended(split_attempt(attempt)[0], attempt, answer))

    async def _forget(self, attempts: Sequence[str], nodes: Iterable[str]) -> None:
        try:
            await self._engine.forget(attempts, nodes)
        except Error as error:  # it reports them again when it is back, and is then told again
            logger.info("%d ended attempts stay on their nodes for now: %s", len(attempts), error)

    async def _bind_peers(self, attempt_id: str, nodes: Sequence[str], addresses: Mapping[str, str]) -> None:
        """Tell them, again and again until they have heard it or are ended."""
        while attempt_id in self._binding and isinstance(self._engine, LatePeers):
            try:
                await self._engine.bind_peers(attempt_id, nodes, addresses)
            except UnreachableError as error:
                logger.info("the peers of %s are told later: %s", attempt_id, error)
                await asyncio.sleep(PAUSE_SECONDS)
            except Error as error:
                logger.warning("the peers of %s are not told: %s", attempt_id, error)
                break
            else:
                break
        self._binding.discard(attempt_id)

    async def _clear_stray(self, attempt: str, node: str) -> None:
        try:
            await end_one(self._engine, attempt, [node], grace_seconds=0)
            await self._engine.forget([attempt], [node])
        except Error as error:
            logger.info("what is left of %s on %s stays for now: %s", attempt, node, error)
        finally:
            self._clearing.discard((attempt, node))


def _launches(jobs: Sequence[Job], launch_facts: LaunchFacts) -> list[Launch | Error]:
    """A launch for each, or what is wrong with it."""
    made: list[Launch | Error] = []
    for job in jobs:
        try:
            made.append(launch_of(job, launch_facts))
        except Error as error:
            made.append(error)
        except (
            Exception
        ):  # a mistake of ours with one job is not to keep it, and all that start with it, starting for ever
            logger.exception("the launch of %s could not be made", job.attempt_id)
            made.append(
                InvalidError("the server could not make out how to start it", hint="Tell an administrator.")
            )
    return made


def _nodes_left(job: Job) -> set[str]:
    return {task.node for task in job.tasks.values() if not task.is_cleared}
