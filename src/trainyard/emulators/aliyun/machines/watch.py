"""Watches for the end of processes that are not our children."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable

from trainyard.lib.process_tree import ProcessId, is_alive


class Watch:
    """Calls `died` whenever one of the processes has ended that it follows."""

    def __init__(self, died: Callable[[], None]) -> None:
        self._died = died
        self._handles: dict[ProcessId, int] = {}

    def follow(self, processes: Iterable[ProcessId]) -> None:
        """Follow these and no others from now on."""
        wanted = set(processes)
        for process in self._handles.keys() - wanted:
            self._forget(process)
        for process in wanted - self._handles.keys():
            try:
                handle = os.pidfd_open(process.pid)
            except ProcessLookupError:
                self._died()
                continue
            self._handles[process] = handle
            asyncio.get_running_loop().add_reader(handle, self._ended, process)
            if not is_alive(process):  # its number may have been given to another meanwhile
                self._ended(process)

    def close(self) -> None:
        """Follow nobody any more."""
        self.follow(())

    def _ended(self, process: ProcessId) -> None:
        self._forget(process)
        self._died()

    def _forget(self, process: ProcessId) -> None:
        handle = self._handles.pop(process, None)
        if handle is not None:
            asyncio.get_running_loop().remove_reader(handle)
            os.close(handle)
