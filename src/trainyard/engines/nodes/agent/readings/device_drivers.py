"""Tools of devices' drivers, asked through shell scripts of the server's. Nobody waits for them, and none may pile up.

A script may print lines `known NAME VALUE`: what it has learnt about the node's tools. It gets them back as variables the next
time, so that it needs not find out every time.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time

MOST_OUTPUT = 1 << 20
LEARN_SECONDS = 600.0  # then is found out anew what tools know: one may have been started, or exchanged
STUCK_SECONDS = 600.0  # so long nobody is asked again where the one asked before cannot even be killed
# Where drivers are, beside what the node's own PATH says.
PLACES = ("/usr/local/bin", "/usr/local/sbin", "/usr/bin", "/usr/sbin", "/bin", "/sbin")
_KNOWN = re.compile(r"^known ([a-z_]+) ?([A-Za-z0-9_.,]*)$", re.MULTILINE)


class Source:
    """One script: what it has learnt, and who is being asked."""

    def __init__(self, programs: tuple[str, ...], patience: float) -> None:
        self._programs = programs
        self._patience = patience
        self._script = ""
        self._known: dict[str, str] = {}
        self._forget_at = 0.0
        self._driver: Driver | None = None
        self._stuck: tuple[Driver, float] | None = None

    def configure(self, script: str) -> bool:
        """Which script; True where that is another one, which has nothing learnt yet."""
        if script == self._script:
            return False
        self._script, self._forget_at = script, 0.0
        return True

    @property
    def is_asked(self) -> bool:
        """Whether an answer may still come."""
        return self._driver is not None

    def begin(self) -> bool:
        """Ask, where there is anybody to ask."""
        if not self._script or not has_program(self._programs) or self._is_stuck():
            return False
        if time.monotonic() >= self._forget_at:
            self._known, self._forget_at = {}, time.monotonic() + LEARN_SECONDS
        lines = [f"{name}='{value}'\n" for name, value in self._known.items()]
        try:
            self._driver = Driver("".join(lines) + self._script, self._patience)
        except OSError:  # no process, or no file, can be had now
            return False
        return True

    def answer(self) -> str | None:
        """What was said, once all is said; nothing where it took too long."""
        driver = self._driver
        if driver is None or not driver.is_done():
            return None
        self._driver = None
        if driver.is_late:
            self._stuck = driver, time.monotonic() + STUCK_SECONDS
        text = driver.text()
        self._known |= dict(_KNOWN.findall(text))
        return text

    def stop(self) -> None:
        """Let go of whom is being asked."""
        if self._driver is not None:
            self._driver.kill()
            self._driver = None

    def _is_stuck(self) -> bool:
        """A process that waits for broken hardware outlives every signal: one such is enough."""
        if self._stuck is not None:
            driver, until = self._stuck
            if driver.is_there() and time.monotonic() < until:
                return True
            self._stuck = None
        return False


class Driver:
    """A shell that asks the drivers, and what it has said so far."""

    def __init__(self, script: str, patience: float) -> None:
        reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        os.set_blocking(writer, True)
        null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        env = {**os.environ, "PATH": search_path(), "LC_ALL": "C"}
        actions = [
            (os.POSIX_SPAWN_DUP2, null, 0),
            (os.POSIX_SPAWN_DUP2, writer, 1),
            (os.POSIX_SPAWN_DUP2, null, 2),
        ]
        try:
            self.pid = os.posix_spawn("/bin/sh", ["sh", "-c", script], env, file_actions=actions, setpgroup=0)
        except OSError:
            os.close(reader)
            raise
        finally:
            os.close(writer)
            os.close(null)
        self.is_late = False
        self._reader = reader
        self._output = b""
        self._deadline = time.monotonic() + patience

    def is_done(self) -> bool:
        """Whether all is said, or it took too long."""
        while len(self._output) < MOST_OUTPUT:
            try:
                piece = os.read(self._reader, 65536)
            except BlockingIOError:
                if time.monotonic() < self._deadline:
                    return False
                self._output = b""
                self.is_late = True
                break
            if not piece:
                break
            self._output += piece
        self.kill()
        return True

    def text(self) -> str:
        """What it has said."""
        return self._output.decode(errors="replace")

    def is_there(self) -> bool:
        """Whether any of its processes is left."""
        try:
            os.killpg(self.pid, 0)
        except OSError:
            return False
        return True

    def kill(self) -> None:
        """End it, and whom it asks. The agent's own loop takes leave of it."""
        if self._reader >= 0:
            os.close(self._reader)
            self._reader = -1
            with contextlib.suppress(OSError):
                os.killpg(self.pid, signal.SIGKILL)


def search_path() -> str:
    """Where programs of the node are looked for."""
    return ":".join([os.environ.get("PATH", ""), *PLACES])


def has_program(names: tuple[str, ...]) -> bool:
    """Whether the node has one of them."""
    folders = search_path().split(":")
    return any(os.access(f"{folder}/{name}", os.X_OK) for folder in folders if folder for name in names)
