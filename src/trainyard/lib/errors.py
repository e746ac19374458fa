"""The error tree, cut by what the reader can do next.

    Error                      code, message, hint; never raised itself           exit
    ├── InvalidError           the request is wrong: fix it, then call again         2
    ├── NotFoundError          no such machine, job, host …                          3
    ├── ConflictError          the name is taken, or somebody else holds it          4
    │   └── StaleError         somebody wrote this record after we read it
    ├── DeniedError            who you are does not allow this                       5
    ├── UnsupportedError       this backend cannot do that verb                      6
    ├── CapacityError          nobody has such a machine now                         7
    │   └── QuotaError         your own limit, not the provider's
    ├── UnreachableError       the network or the machine is silent                  8
    │   └── DiskFullError      a disk has no room left: make some, then call again
    ├── StillRunningError      we stopped waiting; the command runs on               9
    └── CommandError           the user's command ended with a non-zero status   its own

Rendering them for people is `terminal/output.py`'s work; nothing here prints.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar


class Error(Exception):
    """One sentence that names the thing, and one imperative sentence what to do next."""

    code: ClassVar[str] = "error"
    exit_code: ClassVar[int] = 1

    def __init__(
        self,
        message: str,
        *,
        hint: str = "",
        reason: str = "",
        values: Mapping[str, object] | None = None,
    ) -> None:
        """`reason` says to programs what exactly is wrong, and `values` names what; both are of the catalogue of messages."""
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.reason = reason
        self.values: Mapping[str, object] = values or {}

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class InvalidError(Error, ValueError):
    """The request is wrong: fix it, then call again."""

    code = "invalid"
    exit_code = 2


class NotFoundError(Error):
    """There is no such thing."""

    code = "not_found"
    exit_code = 3


class ConflictError(Error):
    """The name is taken, or somebody else holds the thing."""

    code = "conflict"
    exit_code = 4


class StaleError(ConflictError):
    """Somebody wrote this record after we read it: load it again, then repeat the change."""

    code = "stale"


class DeniedError(Error):
    """Who you are does not allow this."""

    code = "denied"
    exit_code = 5


class UnsupportedError(Error):
    """This backend cannot do that verb."""

    code = "unsupported"
    exit_code = 6


class CapacityError(Error):
    """Nobody has such a machine now."""

    code = "capacity"
    exit_code = 7


class QuotaError(CapacityError):
    """Your own limit, not the provider's."""

    code = "quota"


class UnreachableError(Error, ConnectionError):
    """The network or the machine is silent; trying again may help."""

    code = "unreachable"
    exit_code = 8


class DiskFullError(UnreachableError):
    """A disk has no room left: make some, then call again."""

    code = "disk_full"


class StillRunningError(Error, TimeoutError):
    """We stopped waiting; the command runs on."""

    code = "still_running"
    exit_code = 9


class CommandError(Error, RuntimeError):
    """The user's command ended with a non-zero status. A RuntimeError, as scripts of the family expect."""

    code = "command"

    def __init__(self, message: str, *, status: int, output: str = "", hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.status = status
        self.output = output


class TaskErrors(ExceptionGroup[Exception], RuntimeError):  # noqa: N818  # it is a group, named for what it holds
    """Several tasks failed. Holds one exception per failed task; healthy tasks have finished their work."""

    def derive(self, excs: Sequence[Exception]) -> TaskErrors:  # type: ignore[override]  # typeshed's is generic
        """Keep the class when the group is split by `except*`."""
        return TaskErrors(self.message, excs)
