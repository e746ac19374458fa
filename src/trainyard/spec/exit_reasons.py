"""How a task can end, and the exit codes that the platform itself gives to tasks: one table for nodes, server and client.

Python 3.8 and its standard library only: the program on a node has this module too, see engines/nodes/agent_bundle.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum


class ExitReason(str, Enum):  # noqa: UP042  # Python 3.8 has no StrEnum
    """Why a task's program has ended. Programs decide on these; the sentence beside it is for people."""

    EXITED = "exited"  # by itself: the exit code is its own verdict
    SIGNALLED = "signalled"
    TOLD = "told"  # it was asked to end: stopped, preempted, at its time limit
    FENCED = "fenced"  # its node heard no server for too long
    # What it used too much of.
    OUT_OF_MEMORY = "out_of_memory"
    TOO_MANY_PROCESSES = "too_many_processes"
    DISK_LIMIT = "disk_limit"  # more of the node's disk than it asked for
    DISK_FULL = "disk_full"  # the node's disk was full, and no other task used more of it
    # It never came to its command.
    NOT_STARTED = "not_started"
    NO_CONTAINER = "no_container"
    NO_SHELL = "no_shell"  # its image has none
    NO_ENVIRONMENT = "no_environment"  # its files, code or packages could not be prepared
    NO_PORT = "no_port"  # the ports for its ssh are taken on the node
    NO_PEERS = "no_peers"  # other tasks of the job were not reached in time
    NO_SSH = "no_ssh"
    ENDED_BEFORE_START = "ended_before_start"
    # Nobody saw it end.
    CONTAINER_LOST = "container_lost"
    SUPERVISOR_LOST = "supervisor_lost"
    UNSEEN = "unseen"


# A task that was ended by signal n has the exit code 128 + n, as shells say it.
SIGNAL_BASE, LAST_SIGNAL = 128, 64

# Exit codes that the platform chooses. Those from 200 are as the init containers of DLWorkspace ended, so that its users
# know them.
EXIT_CODES: Mapping[ExitReason, int] = {
    ExitReason.NO_CONTAINER: 125,
    ExitReason.NOT_STARTED: 126,
    ExitReason.NO_SHELL: 127,
    ExitReason.NO_ENVIRONMENT: 200,
    ExitReason.NO_PORT: 203,
    ExitReason.NO_PEERS: 204,
    ExitReason.NO_SSH: 205,
    ExitReason.ENDED_BEFORE_START: SIGNAL_BASE + 9,
    ExitReason.SUPERVISOR_LOST: SIGNAL_BASE + 9,
    ExitReason.CONTAINER_LOST: SIGNAL_BASE + 9,
    ExitReason.UNSEEN: SIGNAL_BASE,
}

# The task never came to its command: others that wait for it wait in vain.
NEVER_BEGAN = frozenset(
    {
        ExitReason.NOT_STARTED,
        ExitReason.NO_CONTAINER,
        ExitReason.NO_SHELL,
        ExitReason.NO_ENVIRONMENT,
        ExitReason.NO_PORT,
        ExitReason.NO_PEERS,
        ExitReason.NO_SSH,
    }
)

NOT_STARTED = EXIT_CODES[ExitReason.NOT_STARTED]
NOT_FOUND = EXIT_CODES[ExitReason.NO_SHELL]  # the command was not found, as shells say it
NO_CONTAINER = EXIT_CODES[ExitReason.NO_CONTAINER]  # also what podman and docker say themselves


def exit_reason(name: object) -> ExitReason:
    """What a node says; EXITED where it says nothing, or something of a newer version."""
    try:
        return ExitReason(name)
    except ValueError:
        return ExitReason.EXITED
