"""A view whose program waits until we let it go: until it is counted where it should be, and sees what it should."""

from __future__ import annotations

import contextlib
import json
import os

PIECE = 65536


class GatedStart:
    """What bubblewrap is asked for to hold a program back."""

    def __init__(self) -> None:
        self._told, self._tells = os.pipe2(os.O_CLOEXEC)
        waits, self._goes = os.pipe2(os.O_CLOEXEC)
        # Bubblewrap takes the end of the pipe for a word. So it can write there itself: should we die, it waits until it is ended.
        self._waits = os.open(f"/proc/self/fd/{waits}", os.O_RDWR | os.O_CLOEXEC)
        os.close(waits)
        for handle in (self._tells, self._waits):
            os.set_inheritable(handle, True)
        self.options = ["--info-fd", str(self._tells), "--block-fd", str(self._waits)]

    def started(self) -> None:
        """It has its ends of the pipes, or will never have them."""
        for handle in (self._tells, self._waits):
            if handle >= 0:
                os.close(handle)
        self._tells = self._waits = -1

    def pid(self) -> int:
        """The first process in the view; 0 where it has failed, and says why."""
        found = b""
        while piece := os.read(self._told, PIECE):
            found += piece
        return int(json.loads(found)["child-pid"]) if found else 0

    def let_go(self) -> None:
        """Have the program begin."""
        with contextlib.suppress(BrokenPipeError):  # it has gone
            os.write(self._goes, b"\n")

    def close(self) -> None:
        """Done with it."""
        self.started()
        os.close(self._told)
        os.close(self._goes)
