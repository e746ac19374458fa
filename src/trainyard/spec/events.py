"""Something that happened on the platform, with a reason and an actor. Pure data; who keeps them is the server's store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Subject(StrEnum):
    """What an event is about."""

    WORKLOAD = "workload"
    NODE = "node"
    WORKSPACE = "workspace"
    GROUP = "group"
    SETTINGS = "settings"
    USER = "user"
    POOL = "pool"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One thing that happened. Append-only; `seq` is given by the store and goes up."""

    time: float  # POSIX seconds
    subject: str  # one of Subject
    subject_id: str
    code: str  # one word for programs: submitted, admitted, preempted …
    message: str  # one sentence for people
    workspace_id: str | None = None  # whose members may see it; None: everybody's or the administrators'
    state: str = ""  # of the workload after it
    actor: str = ""  # a user's name; empty: the platform itself
    data: Mapping[str, object] | None = None
    seq: int = 0
