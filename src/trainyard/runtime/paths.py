"""The paths of all files that Trainyard puts on a machine. Relative paths are relative to the home directory there."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MachinePaths:
    """The paths of our files on one machine. `home` is '' if it is unknown; then paths are relative to it."""

    machine: str
    home: str = ""

    @property
    def root(self) -> str:
        """The folder that holds all our files."""
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
        """The file with the digest of the list of tasks that this task was last introduced to."""
        return f"{self.root}/{self.machine}/introduced"

    @property
    def uploads(self) -> str:
        """Stamps and partial files of transfers."""
        return f"{self.root}/uploads"

    @property
    def install_marker(self) -> str:
        """The file with the hash of the last install script that succeeded."""
        return f"{self.root}/{self.machine}/installed"

    def command(self, number: int) -> str:
        """The text of command `number`."""
        return f"{self.session}/{number}.cmd"

    def output(self, number: int) -> str:
        """The output of command `number`: exact bytes of both streams."""
        return f"{self.session}/{number}.out"

    def status(self, number: int) -> str:
        """The exit status of command `number`, once it has ended."""
        return f"{self.session}/{number}.status"
