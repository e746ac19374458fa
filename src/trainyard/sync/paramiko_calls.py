"""`task.ssh_client` and `task.sftp`: the few calls of paramiko that existing scripts make, over our own transport.

New scripts should use `run`, `upload`, `download`, `exists` and `read`. Nothing else in this project uses these classes.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

from trainyard.lib.errors import NotFoundError
from trainyard.lib.shell import home_path, quote

if TYPE_CHECKING:
    from trainyard.sync.task import Task


class Stream(io.BytesIO):
    """What a command printed, with the exit status where paramiko keeps it."""

    def __init__(self, data: bytes, status: int) -> None:
        super().__init__(data)
        self.channel = self
        self._status = status

    def recv_exit_status(self) -> int:
        """The exit status."""
        return self._status


class SshClient:
    """Commands beside the task's shell."""

    def __init__(self, task: Task) -> None:
        self._task = task

    def exec_command(self, command: str) -> tuple[Stream, Stream, Stream]:
        """Run a command and wait; (stdin, stdout, stderr)."""
        done = self._task.raw(command)
        return Stream(b"", 0), Stream(done.stdout, done.status), Stream(done.stderr, done.status)

    def close(self) -> None:
        """Nothing to do: the connection is shared."""


class Sftp:
    """Single files and folders; paths as on the machine, relative ones under its home."""

    def __init__(self, task: Task) -> None:
        self._task = task

    def put(self, local: str, remote: str) -> None:
        """Copy a file to the machine."""
        self._task.upload(local, remote)

    def get(self, remote: str, local: str) -> None:
        """Copy a file from the machine."""
        self._task.download(remote, Path(local))

    def stat(self, path: str) -> int:
        """Size in bytes. FileNotFoundError where there is nothing, as paramiko has it."""
        done = self._task.raw(f"stat -c %s {home_path(path)}")
        if done.status:
            raise FileNotFoundError(path)
        return int(done.stdout)

    def listdir(self, path: str = ".") -> list[str]:
        """The names in a folder."""
        folder = '"$HOME"' if path == "." else home_path(path)
        done = self._task.raw(f"cd {folder} && find . -mindepth 1 -maxdepth 1 -print0")
        if done.status:
            raise FileNotFoundError(path)
        return [name.decode(errors="surrogateescape")[2:] for name in done.stdout.split(b"\0") if name]

    def mkdir(self, path: str, mode: int = 0o777) -> None:
        """Make a folder."""
        self._check(f"mkdir -m {mode:o} {home_path(path)}", path)

    def remove(self, path: str) -> None:
        """Remove a file."""
        self._check(f"rm {home_path(path)}", path)

    def chmod(self, path: str, mode: int) -> None:
        """Change a file's mode."""
        self._check(f"chmod {quote(format(mode, 'o'))} {home_path(path)}", path)

    def _check(self, script: str, path: str) -> None:
        done = self._task.raw(script)
        if done.status:
            raise NotFoundError(
                f"{path!r} on {self._task.name}: {done.stderr.decode(errors='replace').strip()}"
            )
