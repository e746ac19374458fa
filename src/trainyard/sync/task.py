"""The blocking class Task. It forwards to the async Task of `runtime/`, and also has the names of older scripts."""

from __future__ import annotations

import posixpath
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainyard.lib.errors import CommandError
from trainyard.lib.portal import Portal
from trainyard.runtime import task as core
from trainyard.runtime.task import FOREVER, Commands
from trainyard.settings import pick
from trainyard.spec import names
from trainyard.sync.instance import Instance
from trainyard.sync.paramiko_calls import Sftp, SshClient
from trainyard.transport.api import Completed
from trainyard.transport.copy import CopyOptions, CopyReport

if TYPE_CHECKING:
    from trainyard.sync.job import Job


class Task:
    """One machine of a job and the shell on it."""

    def __init__(self, portal: Portal, task: core.Task, *, job: Job | None = None, **kwargs: Any) -> None:
        self._portal = portal
        self._task = task
        self._windows = [0]
        self._cmd = ""
        self.job = job
        self.kwargs = self.extra_kwargs = kwargs
        self.install_script = str(kwargs.get("install_script", ""))

    def __repr__(self) -> str:
        return f"<Task {self.name} on {self.ip}>"

    # -- what it is ----------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The machine's name, such as task0.bert."""
        return self._task.name

    @property
    def ip(self) -> str:
        """The address by which the other tasks reach it."""
        return self._task.machine.address

    @property
    def public_ip(self) -> str:
        """The address by which this client reaches it."""
        return self._task.machine.public_address or self.ip

    @property
    def instance(self) -> Instance:
        """The machine's facts."""
        return Instance(self._task.machine)

    @property
    def num_gpus(self) -> int:
        """How many accelerators it has."""
        return len(self._task.machine.devices)

    @property
    def zone(self) -> str:
        """Its zone."""
        return self._task.machine.zone

    @property
    def homedir(self) -> str:
        """Its home directory."""
        return self._task.machine.home or "~"

    @property
    def ssh_username(self) -> str:
        """The user that commands run as."""
        return self._task.machine.user

    @property
    def last_status(self) -> int:
        """The exit status of the last command that was waited for; -1 before the first."""
        return self._task.last_status

    @property
    def run_counter(self) -> int:
        """How many commands this object has run."""
        return self._task.run_counter

    @property
    def local_scratch(self) -> str:
        """A folder for small files on this side."""
        folder = (
            Path("/tmp") / f"trainyard-{self._task.machine.owner.partition('@')[0] or 'user'}" / self.name
        )
        folder.mkdir(parents=True, exist_ok=True)
        return str(folder)

    @property
    def remote_scratch(self) -> str:
        """The folder on the machine with the commands' files."""
        return posixpath.join(self.homedir, self._task.session.folder)

    @property
    def tmux_session(self) -> str:
        """The tmux session that people attach to."""
        return names.session_name(self.name)

    @property
    def tmux_window_id(self) -> int:
        """The window that commands go to."""
        return self._task.session.window

    @property
    def tmux_available_window_ids(self) -> list[int]:
        """The windows made so far."""
        return list(self._windows)

    @property
    def connect_instructions(self) -> str:
        """How a person gets there."""
        return f"To see it: trainyard tmux {self.name}\nTo log in:  trainyard ssh {self.name}"

    @property
    def ssh_client(self) -> SshClient:
        """Commands beside the task's shell, as paramiko's client runs them."""
        return SshClient(self)

    @property
    def sftp(self) -> Sftp:
        """Single files, as paramiko's client copies them."""
        return Sftp(self)

    @property
    def output(self) -> str:
        """What the last command printed so far."""
        return self._portal.call(self._task.output())

    @property
    def logdir(self) -> str:
        """The folder of this run; made on first use."""
        return self._portal.call(self._task.logdir())

    @property
    def _out_fn(self) -> str:
        return self._task.output_path

    @property
    def _status_fn(self) -> str:
        return self._out_fn.removesuffix(".out") + ".status"

    @property
    def _cmd_fn(self) -> str:
        return self._out_fn.removesuffix(".out") + ".cmd"

    @property
    def _can_run(self) -> bool:
        return self.instance.is_running()

    @property
    def _linux_type(self) -> str:
        return self._run_raw("uname -s")[0].strip()

    # -- commands ------------------------------------------------------------------------------------------------

    def run(
        self,
        cmd: Commands,
        sudo: bool = False,
        non_blocking: bool = False,
        ignore_errors: bool = False,
        max_wait_sec: float = FOREVER,
        check_interval: float = 0.2,  # noqa: ARG002  # the family's; completion is pushed here, not polled
        show_realtime: bool = False,
        show: bool = False,
        stream_output: bool = False,
        sanitized: bool = False,
        return_output: bool = True,  # noqa: ARG002  # the family's; the output is always returned
        quiet: bool = False,
        prefix: bool = False,
    ) -> str:
        """Run a command in the task's shell and return what it printed; '0' at once with `non_blocking`.

        The shell persists: `cd`, `export`, `conda activate` hold for later commands. A non-zero status is a
        CommandError unless `ignore_errors`. Past `max_wait_sec` seconds: StillRunningError, and the command runs on.
        `show_realtime` (or `stream_output`) shows what it prints as it prints it, `show` once it has ended; with
        `prefix`, each line begins with the task's name. `sanitized` and `quiet` keep the command out of the log.
        """
        self._cmd = core.command_text(cmd, sudo=sudo)
        return self._portal.call(
            self._task.run(
                cmd,
                sudo=sudo,
                non_blocking=non_blocking,
                ignore_errors=ignore_errors,
                max_wait_sec=max_wait_sec,
                show_realtime=show_realtime or stream_output,
                show=show,
                quiet=quiet or sanitized,
                prefix=prefix,
            )
        )

    def run_with_output(
        self, cmd: str, non_blocking: bool = False, ignore_errors: bool = False
    ) -> tuple[str, str]:
        """Run a command and return what it printed, (stdout, stderr) apart. It runs in the task's shell."""
        return self._portal.call(self._task.run_with_output(cmd, non_blocking, ignore_errors))

    def join(self, ignore_errors: bool = False, max_wait_sec: float = FOREVER) -> int:
        """Wait for the last command, also one that an earlier client started; returns its status."""
        return self._portal.call(self._task.join(ignore_errors, max_wait_sec))

    def raw(self, cmd: str) -> Completed:
        """Run beside the task's shell, on a channel of its own; status and bytes as they are."""
        return self._portal.call(self._task.transport.run(cmd))

    def _run_raw(self, cmd: str, ignore_errors: bool = False) -> tuple[str, str]:
        """`raw`, with text and an error for a non-zero status."""
        done = self.raw(cmd)
        stdout, stderr = (text.decode(errors="backslashreplace") for text in (done.stdout, done.stderr))
        if done.status and not ignore_errors:
            raise CommandError(
                f"Command {cmd} returned status {done.status} on {self.name}: {stderr.strip()}",
                status=done.status,
                output=stdout + stderr,
            )
        return stdout, stderr

    def switch_window(self, window_id: int) -> None:
        """Send later commands to another tmux window, made if missing: a second shell on the same machine."""
        self._portal.call(self._task.switch_window(window_id))
        self._windows = sorted({*self._windows, window_id})

    def propagate_env(self, env: Iterable[str] | Mapping[str, str], sanitized: bool = True) -> None:  # noqa: ARG002
        """Export variables in the task's shell: names of variables of this process, or a mapping of values."""
        values = dict(env) if isinstance(env, Mapping) else pick(env)
        self._portal.call(self._task.propagate_env(values))

    def interrupt(self) -> None:
        """Ctrl-C for whatever runs in the task's shell."""
        self._portal.call(self._task.interrupt())

    # -- files ---------------------------------------------------------------------------------------------------

    def upload(
        self,
        local_fn: str | Path,
        remote_fn: str = "",
        dont_overwrite: bool = False,
        options: CopyOptions | None = None,
        show_info: bool = True,  # noqa: ARG002  # the family's; a terminal sees a progress line
    ) -> CopyReport:
        """Copy a file or folder (or what a pattern fits) to the machine; a relative target is under its home."""
        return self._portal.call(self._task.upload(local_fn, remote_fn, dont_overwrite, options))

    def download(
        self, remote_fn: str, local_fn: str | Path = "", options: CopyOptions | None = None
    ) -> CopyReport:
        """Copy a file or folder from the machine; the default target is its own name in the current folder."""
        return self._portal.call(self._task.download(remote_fn, local_fn, options))

    def rsync(self, local_fn: str | Path, remote_fn: str = "", exclude_git: bool = False) -> CopyReport:
        """Upload what has changed; with `exclude_git` without .git."""
        options = CopyOptions(exclude=(".git",)) if exclude_git else None
        return self.upload(local_fn, remote_fn, options=options)

    def write(self, fn: str, contents: str | bytes) -> None:
        """Write a file on the machine: whole or not at all."""
        self._portal.call(self._task.write(fn, contents))

    def read(self, fn: str) -> str:
        """The text of a file on the machine."""
        return self._portal.call(self._task.read(fn))

    def read_bytes(self, fn: str) -> bytes:
        """The bytes of a file on the machine."""
        return self._portal.call(self._task.read_bytes(fn))

    def exists(self, fn: str) -> bool:
        """Say whether there is such a file or folder on the machine."""
        return self._portal.call(self._task.exists(fn))

    def isdir(self, fn: str) -> bool:
        """Say whether there is such a folder on the machine."""
        return self._portal.call(self._task.isdir(fn))

    def file_write(self, fn: str, contents: str | bytes) -> None:
        """`write`, under the family's old name."""
        self.write(fn, contents)

    def file_read(self, fn: str) -> str:
        """`read`, under the family's old name."""
        return self.read(fn)

    def file_exists(self, fn: str) -> bool:
        """`exists`, under the family's old name."""
        return self.exists(fn)

    def wait_for_file(self, fn: str, max_wait_sec: float = FOREVER, check_interval: float = 0.5) -> bool:
        """Wait until a file is there; False when `max_wait_sec` have passed."""
        return self._portal.call(self._task.wait_for_file(fn, max_wait_sec, check_interval))

    def tail_file(self, fn: str, line_prefix: str = "") -> Callable[[], None]:
        """Show a growing file in the background; call what comes back to end it."""
        return _Tail(self._portal, self._task, fn, line_prefix).close

    def setup_logdir(self) -> str:
        """Make the folder of this run and return it."""
        return self.logdir

    # -- the machine ---------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Stop the machine once the commands started here have ended; files are kept."""
        self._portal.call(self._task.stop())
        self.log("stopped; see it with `trainyard ls --stop`, start it with `trainyard start %s`", self.name)

    def start(self) -> None:
        """Start the machine again."""
        self._portal.call(self._task.start())

    def kill(self) -> None:
        """Release the machine for good, whatever runs there. Twice is no error."""
        self._portal.call(self._task.kill())
        self.log("released")

    def log(self, message: str, *args: object, log_level: str = "INFO") -> None:
        """Print a line with the time and the task's name."""
        self._task.log(message, *args, log_level=log_level)


class _Tail:
    """A background `tail -F` whose lines go to the reporter."""

    def __init__(self, portal: Portal, task: core.Task, fn: str, prefix: str) -> None:
        self._future: Future[None] = portal.submit(task.tail_file(fn, prefix))
        self._closed = threading.Event()

    def close(self) -> None:
        """End it. Twice is no error."""
        if not self._closed.is_set():
            self._closed.set()
            self._future.cancel()
