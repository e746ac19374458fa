"""The types of copying: options, report, progress, peers. The work is in `uploading.py` and `downloading.py`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from trainyard.transport.api import is_loopback

IGNORE_FILE = ".trainyardignore"
MOST_NOTES = 50


@dataclass(frozen=True, slots=True)
class CopyOptions:
    """How a tree is copied.

    `ignore_file` names the file that lists what stays behind, in gitignore's syntax; `use_gitignore` obeys .gitignore
    too; `exclude` adds patterns. `delete` removes at the target what the source does not have (what is ignored stays).
    `dont_overwrite` leaves every file that exists alone. `into` puts a folder inside the target instead of making the
    target the copy, as `cp -r folder existing/` does.
    """

    ignore_file: str = IGNORE_FILE
    use_gitignore: bool = False
    exclude: tuple[str, ...] = ()
    delete: bool = False
    dont_overwrite: bool = False
    into: bool = False


DEFAULT_OPTIONS = CopyOptions()


class Progress(Protocol):
    """Shows the progress of a copy."""

    def update(self, machine: str, done: int, total: int) -> None:
        """`done` of `total` bytes have gone to or come from `machine`; never goes back."""
        ...


@dataclass(frozen=True, slots=True)
class CopyReport:
    """The result of a copy. `sent` counts the bytes sent to or from each machine; 0 means that nothing had changed.

    `files` counts the files of the source; `relayed` names the machines that got the data from another machine;
    `notes` are sentences about files that were left out or changed during the copy.
    """

    files: int
    sent: Mapping[str, int] = field(default_factory=dict)
    relayed: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class Notes:
    """Sentences for a report: the first MOST_NOTES, and how many more there were. A machine may cause millions."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._more = 0

    def add(self, text: str) -> None:
        """One more."""
        if len(self._texts) < MOST_NOTES:
            self._texts.append(text)
        else:
            self._more += 1

    def __iter__(self) -> Iterator[str]:
        yield from self._texts
        if self._more:
            yield f"{self._more} more were left out or refused for reasons like these"


@dataclass(frozen=True, slots=True)
class Peer:
    """The address at which other machines reach this one by ssh."""

    address: str
    port: int = 22
    user: str = ""


@dataclass(frozen=True, slots=True)
class Peers:
    """Machines that can log in to each other. `key_file` and `known_hosts` are paths on every machine (`~/` allowed).

    `force` relays on loopback too, where passing bytes on saves nothing.
    """

    members: Mapping[str, Peer]
    key_file: str
    known_hosts: str
    force: bool = False

    def can_relay(self, names: list[str]) -> bool:
        """Tell whether passing the data on from machine to machine is possible and saves anything."""
        if len(names) < 2 or not all(name in self.members for name in names):
            return False
        return self.force or not all(is_loopback(self.members[name].address) for name in names)
