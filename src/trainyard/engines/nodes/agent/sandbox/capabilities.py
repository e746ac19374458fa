"""What this node can: keep tasks apart, hold them to their limits. Found out once, when it is first needed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import time

from trainyard.lib.read_file import read_file

from . import cgroups
from .sandbox_user import FIRST, TaskUser

PATHS = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
TRY_SECONDS = 10.0
PODMAN, DOCKER = RUNTIMES = ("podman", "docker")
NO_BUBBLEWRAP = "it has no bubblewrap (bwrap)"
NO_SETPRIV = "it has no setpriv (util-linux), by which tasks of a node that is root's run as others"
MFD_EXEC = 0x10  # of newer kernels, where files in memory are not run unless they were made for it
F_ADD_SEALS, ALL_SEALS = 1033, 0xF  # against more seals, shrinking, growing and writing
PROGRAM = b"\x7fELF"


class Runtime:
    """What runs containers on this node; where nothing does, why."""

    __slots__ = ("kind", "path", "problem")

    def __init__(self, kind: str = "", path: str = "", problem: str = "") -> None:
        self.kind = kind  # podman or docker; empty: none that answers
        self.path = path
        self.problem = problem


class Capabilities:
    """What this node can. Found out once, when it is first needed."""

    def __init__(self) -> None:
        self._bwrap: tuple[str, str] | None = None
        self._setpriv = ""
        self.handles: tuple[int, ...] = ()  # what a process forked from us needs, to make views by itself
        self._trees: cgroups.Trees | None = None
        self.takes_handles = (
            False  # its bubblewrap mounts an open folder, which nobody can exchange meanwhile
        )

    @property
    def bwrap(self) -> str:
        """The path of a bubblewrap that works; empty where there is none.

        It leads to a copy that nobody can write to: a task sees the process that holds its view.
        """
        return self._tried()[0]

    @property
    def setpriv(self) -> str:
        """The program by which tasks become somebody else, where we are root."""
        self._tried()
        return self._setpriv

    @property
    def why_not(self) -> str:
        """Why there is none."""
        return self._tried()[1]

    @property
    def trees(self) -> cgroups.Trees:
        """Where groups of processes can be made."""
        if self._trees is None:
            self._trees = cgroups.Trees()
        return self._trees

    def _tried(self) -> tuple[str, str]:
        if self._bwrap is None:
            self._bwrap = self._try()
        return self._bwrap

    def _try(self) -> tuple[str, str]:
        path = find_program("bwrap")
        if not path:
            return "", NO_BUBBLEWRAP
        inner = ["true"]
        if os.getuid() == 0:
            self._setpriv = find_program("setpriv")
            if not self._setpriv:
                return "", NO_SETPRIV
            inner = [*TaskUser(FIRST).words(self._setpriv), *inner]
        rooms = ["--unshare-pid", "--unshare-ipc", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev"]
        status, said = run_briefly([path, *rooms, "--", *inner])
        if status:
            return "", f"its bubblewrap does not work: {said.strip().rpartition(chr(10))[2]}"
        self.takes_handles = "--bind-fd" in run_briefly([path, "--help"])[1]
        return self._sealed(path), ""

    def _sealed(self, path: str) -> str:
        """A way to a copy of a program in memory that cannot be changed any more; its own path where that cannot be."""
        with contextlib.suppress(OSError):
            content = read_file(path)
            is_lent = (
                os.stat(path).st_mode & 0o6000
            )  # one that gets its rights from its file has none as a copy
            if not content.startswith(PROGRAM) or is_lent:
                return path
            handle = _memory_file(os.path.basename(path))
            os.write(handle, content)
            fcntl.fcntl(handle, F_ADD_SEALS, ALL_SEALS)
            found = f"/proc/self/fd/{handle}"
            if run_briefly([found, "--version"])[0] == 0:
                self.handles = (handle,)
                return found
            os.close(handle)
        return path


def _memory_file(name: str) -> int:
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    with contextlib.suppress(OSError):  # a kernel that does not know it yet
        return os.memfd_create(name, flags | MFD_EXEC)
    return os.memfd_create(name, flags)


def find_program(name: str) -> str:
    """Where a program is; empty where the node does not have it."""
    for folder in [*os.environ.get("PATH", "").split(":"), *PATHS.split(":")]:
        path = os.path.join(folder, name)
        if folder and os.access(path, os.X_OK) and os.path.isfile(path):
            return path
    return ""


def run_briefly(
    words: list[str], seconds: float = TRY_SECONDS, env: dict[str, str] | None = None
) -> tuple[int, str]:
    """Run a program that takes no time; its status and what it said. Importing subprocess would make every agent larger."""
    reader, writer = os.pipe2(os.O_CLOEXEC)
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
        (os.POSIX_SPAWN_DUP2, writer, 1),
        (os.POSIX_SPAWN_DUP2, writer, 2),
    ]
    try:
        given = os.environ if env is None else env
        # Supervisors have signals blocked meanwhile, and who hangs has to hear them.
        pid = os.posix_spawn(words[0], words, given, file_actions=actions, setsigmask=())
    except OSError as error:
        os.close(reader)
        return 127, error.strerror or "cannot be run"
    finally:
        os.close(writer)
    said, deadline = b"", time.monotonic() + seconds
    try:
        while select.select([reader], [], [], max(0.0, deadline - time.monotonic()))[0]:
            piece = os.read(reader, 65536)
            if not piece:
                break
            said += piece
        else:
            os.kill(pid, 9)
            said += b"no answer in time"
    finally:
        os.close(reader)
        _, status = os.waitpid(pid, 0)
    return status, said.decode(errors="replace")


def find_runtime(wanted: str = "") -> Runtime:
    """What runs containers here; a wanted one or none. It may take its time to answer: not to be asked by who has others to serve."""
    problems = []
    for name in (wanted,) if wanted in RUNTIMES else RUNTIMES:
        path = find_program(name)
        if path:
            kind, problem = _try_runtime(path)
            if not problem:
                return Runtime(kind, path)
            problems.append(f"{name} says: {problem}")
    return Runtime(problem="; ".join(problems))


def has_runtime() -> bool:
    """Whether there is a program that may run containers; nobody is asked."""
    return any(find_program(name) for name in RUNTIMES)


def _try_runtime(path: str) -> tuple[str, str]:
    """Which kind it is, whatever its name: each may stand in for the other. And why it cannot be used."""
    # NB: podman, asked for more than its version, leaves a process behind for a user who is not root.
    status, said = run_briefly([path, "--version"])
    kind = PODMAN if PODMAN in said.lower() else DOCKER
    if status == 0 and kind == DOCKER:
        status, said = run_briefly([path, "version", "--format", "{{.Server.Version}}"])
    return kind, (last_line(said) or "nothing") if status else ""


def last_line(said: str) -> str:
    """What a program said last, but for how it should be used."""
    lines = [line.strip() for line in said.splitlines() if not line.startswith(("Run '", "See '"))]
    return next((line for line in reversed(lines) if line), "")
