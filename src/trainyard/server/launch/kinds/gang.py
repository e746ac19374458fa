"""The tasks of one attempt as a kind of job sees them, and what it gives to each. Values only; pure.

Texts that a kind writes may hold marks, which the task's entry fills in when all tasks have met:

    %host:worker-0%           the name of a task's host where that can be looked up there, else its address
    %name:worker-0%           the same for who goes there by ssh: the name as well where several tasks share the address
    %port:worker-0:MASTER_PORT%  the port that a task took for a variable of `Part.ports`
    %port:worker-0:ssh%       the port of its ssh
    %path:/etc/mpi/hostfile%  where a file was really written: elsewhere where the task has no file view of its own
    %folder:/pod/bin/sudo%    the folder of such a file
    %env:PATH%                a variable as the task has it so far
    %id:user%, %id:group%     as whom the task runs, in numbers
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from trainyard.spec.rendezvous import slots_of
from trainyard.spec.workload import WorkloadSpec

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPlace:
    """One task: which it is, and where it runs."""

    name: str
    role: str
    number: int
    rank: int
    node: str
    address: str = ""  # of its node, as other nodes reach it
    devices: tuple[int, ...] = ()
    device_type: str = ""
    device_addresses: Mapping[int, str] = field(default_factory=dict)  # in the devices' own network
    cpu: float = 1.0
    ssh_port: int = 0
    runs: bool = True  # the command; else it stands by for the others

    @property
    def slots(self) -> int:
        """How many processes it has room for."""
        return slots_of(len(self.devices), self.cpu)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOwner:
    """Whose job it is."""

    name: str = ""
    email: str = ""

    @property
    def account(self) -> str:
        """A name for an account on a machine: what stands before the @."""
        return self.name.partition("@")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskGang:
    """All tasks of an attempt, in the order of ranks."""

    job_id: str
    attempt_id: str
    job_name: str
    spec: WorkloadSpec
    places: tuple[TaskPlace, ...]
    person: JobOwner = field(default_factory=JobOwner)
    workspace: str = ""
    token: str = field(default="", repr=False)  # of the attempt: what people may sign in to its tasks with
    seed: str = field(
        default="", repr=False
    )  # from which its ports and addresses follow: strangers cannot guess them
    has_late_peers: bool = False  # each task has an address of its own, which is known when it has started
    _made: dict[str, Any] = field(init=False, default_factory=dict, repr=False, compare=False)

    @property
    def first(self) -> TaskPlace:
        """The one that the others look for."""
        return self.places[0]

    @property
    def is_alone(self) -> bool:
        """Whether there is but one task."""
        return len(self.places) == 1

    @property
    def is_on_one_node(self) -> bool:
        """Whether all tasks share a node."""
        return self.once("is_on_one_node", lambda: len({place.node for place in self.places}) == 1)

    def once(self, what: str, make: Callable[[], T]) -> T:
        """What is the same for all tasks is made for the first of them: there may be a thousand."""
        if what not in self._made:
            self._made[what] = make()
        found: T = self._made[what]
        return found

    def of_role(self, *roles: str) -> tuple[TaskPlace, ...]:
        """The tasks of these roles."""
        return tuple(place for place in self.places if place.role in roles)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPart:
    """What a kind gives to one task."""

    env: Mapping[str, str] = field(default_factory=dict)
    late: Mapping[str, str] = field(default_factory=dict)  # variables with marks
    ports: Mapping[str, int] = field(
        default_factory=dict
    )  # variable → the port that it takes where that is free
    files: Mapping[str, str] = field(default_factory=dict)  # path → text with marks
    command: str = ""  # instead of the spec's


def host(place: TaskPlace) -> str:
    """The mark for a task's host."""
    return f"%host:{place.name}%"


def port(place: TaskPlace, variable: str) -> str:
    """The mark for a port that a task took."""
    return f"%port:{place.name}:{variable}%"


def ssh_host(place: TaskPlace, name: str = "") -> str:
    """The mark for a task's host in a file for those who go there by ssh; by another name of its, where one is given."""
    return f"%name:{place.name}:{name}%" if name else f"%name:{place.name}%"


def ssh_port(place: TaskPlace) -> str:
    """The mark for the port of a task's ssh; where it has none of its own, the node's."""
    return f"%port:{place.name}:ssh%" if place.ssh_port else "22"


def path(name: str, otherwise: str = "") -> str:
    """The mark for where a file was written; `otherwise` is for tasks that have it elsewhere, each in its own folder."""
    return f"%path:{name}|{otherwise}%" if otherwise else f"%path:{name}%"
