"""Checks before each use of a transport that the machine runs, and gets its environment."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from trainyard.backends.local.folder import DamagedError, MachineFolder, Record
from trainyard.lib.errors import UnreachableError
from trainyard.lib.process_tree import ProcessId


class LivenessCheck:
    """Returns the environment of one machine while it runs, with two small reads if nothing has changed."""

    def __init__(
        self,
        folder: MachineFolder,
        machine_id: str,
        environment: Callable[[MachineFolder, Record], Mapping[str, str]],
    ) -> None:
        self._folder = folder
        self._id = machine_id
        self._environment = environment
        self._keeper: ProcessId | None = None
        self._env: Mapping[str, str] = {}

    def enter(self) -> Mapping[str, str]:
        """Return the machine's own variables. UnreachableError if it is stopped, gone or replaced."""
        keeper = self._folder.find_keeper()
        if keeper is not None and keeper == self._keeper:
            return self._env
        name = self._folder.name
        try:
            record = self._folder.load_record()
        except DamagedError as error:
            if not self._folder.exists():
                raise self._gone() from error
            raise UnreachableError(
                f"the machine {name!r} is lost: {error}", hint=f"Run `trainyard kill {name}`."
            ) from error
        if record.id != self._id:
            raise self._gone()
        if keeper is None:
            raise UnreachableError(f"the machine {name!r} is stopped", hint=f"Run `trainyard start {name}`.")
        self._env = self._environment(self._folder, record)
        self._keeper = keeper
        return self._env

    def _gone(self) -> UnreachableError:
        return UnreachableError(
            f"the machine {self._folder.name!r} does not exist any more",
            hint="Make it again, or see `trainyard ls`.",
        )
