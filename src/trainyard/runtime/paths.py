"""Every file we put on a machine, in one class. Relative paths are relative to the home directory there."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MachinePaths:
    """Where a machine keeps what we put there. `home` may be unknown ('' = relative to the home directory)."""

    machine: str
    home: str = ""

    @property
    def root(self) -> str:
        """Everything of ours on the machine."""
        return f"{self.home}/.trainyard" if self.home else ".trainyard"

    @property
    def session(self) -> str:
        """The session's folder: N.cmd, N.out, N.status of every command."""
        return f"{self.root}/{self.machine}"

    @property
    def rendezvous(self) -> str:
        """Host files and the environment that every task of a job gets."""
        return f"{self.root}/{self.machine}/rendezvous"

    @property
    def introduced_marker(self) -> str:
        """Holds the digest of the list of tasks that this one was last introduced to."""
        return f"{self.root}/{self.machine}/introduced"

    @property
    def uploads(self) -> str:
        """Stamps and partial files of transfers."""
        return f"{self.root}/uploads"

    @property
    def install_marker(self) -> str:
        """Holds the hash of the install script that last succeeded."""
        return f"{self.root}/{self.machine}/installed"

    def command(self, number: int) -> str:
        """The text of command `number`."""
        return f"{self.session}/{number}.cmd"

    def output(self, number: int) -> str:
        """What command `number` printed: exact bytes, both streams."""
        return f"{self.session}/{number}.out"

    def status(self, number: int) -> str:
        """The exit status of command `number`, once it has ended."""
        return f"{self.session}/{number}.status"
