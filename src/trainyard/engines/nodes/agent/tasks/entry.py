"""What is done in a task before its command: files are written, its ssh is started, all tasks of the job meet; then this
process becomes the command. It runs inside the task's view, below its supervisor, and knows only the task's own folder.

Whoever fails here ends the task with a status of its own, and a sentence in the log. How tasks meet is barrier.py; their ssh
is sshd.py; code and packages are code_fetch.py's.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Collection
from importlib import import_module
from typing import Any

from trainyard.spec.exit_reasons import EXIT_CODES, ExitReason

from .. import kernel
from ..barrier import barrier
from ..barrier.barrier import EntryError
from ..barrier.barrier_keeper import MissingError

MARK = re.compile(r"%(host|name|address|port|path|folder|env|id):([^%\n]*)%")
CHANGED = (
    signal.SIGPIPE,
    signal.SIGXFSZ,
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGCHLD,
    signal.SIGTERM,
    signal.SIGUSR1,
)
UNTOLD = frozenset({"HOME", "PWD", "OLDPWD", "SHLVL", "_", "LS_COLORS", "TRAINYARD_MARK"})
FOLDER, ORDER, PROBLEM = "entry", "order.json", "problem"  # in the task's folder: all that is ours
LONGEST_PROBLEM = 900


def say(text: str) -> None:
    """A line of the task's log."""
    os.write(1, f"{text}\n".encode(errors="surrogateescape"))


def begin(folder: str, shell: str, env: dict[str, str], output: int) -> int:
    """Do all of it in a new process; its number. For a task without a view: no Python has to be started for it."""
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    status = EXIT_CODES[ExitReason.NO_ENVIRONMENT]
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        for number in CHANGED:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        # It does not carry the task's mark yet, so nobody else would find it when its supervisor is killed.
        kernel.die_with_parent(signal.SIGKILL)
        os.dup2(output, 1)
        os.dup2(output, 2)
        if os.getppid() == parent:
            status = run(folder, shell, env)
    except BaseException:  # noqa: BLE001  # the task's user is told, and nobody else could be
        sys.excepthook(*sys.exc_info())
        sys.stderr.flush()
    finally:
        os._exit(status)


def run(folder: str, shell: str, env: dict[str, str] | None = None) -> int:
    """All of it. Returns only where the task cannot begin. `env` is that of the task, where this process has another one."""
    try:
        return Entry(folder, shell, env).run()
    except EntryError as error:
        problem = error
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        why = f"the task cannot begin: {place}{error.strerror or error}"
        problem = EntryError(ExitReason.NO_ENVIRONMENT, why)
    say(f"trainyard: {problem.message}")
    with contextlib.suppress(OSError):  # the disk may be what is wrong
        write(f"{folder}/{FOLDER}/{PROBLEM}", f"{problem.reason.value}\n{problem.message[:LONGEST_PROBLEM]}")
    return problem.status


class Entry:
    """One task's entry."""

    def __init__(self, folder: str, shell: str, env: dict[str, str] | None) -> None:
        self.is_forked = env is not None
        self.command = f"{folder}/command"
        self.folder = f"{folder}/{FOLDER}"
        self.shell = shell
        with open(f"{self.folder}/{ORDER}", encoding="utf-8") as file:
            self.entry: dict[str, Any] = json.load(file)
        self.name: str = self.entry["name"]
        self.peers: dict[str, dict[str, Any]] = {
            peer["task"]: {**peer, "wanted_port": peer["ssh_port"]} for peer in self.entry["peers"]
        }
        self.ports: dict[str, dict[str, str]] = {}  # task → variable → port
        self.paths: dict[str, str] = {}  # as it was wanted → as it is
        self._hosts: dict[str, set[str]] | None = None  # name → addresses, of the task's table of hosts
        self.env = dict(os.environ if env is None else env)
        self.until = time.monotonic() + float(self.entry["ready_seconds"])

    def run(self) -> int:  # noqa: RET503  # its end is another program
        """Step by step."""
        sshd = import_module("..barrier.task_sshd", __package__) if self.entry["ssh_port"] else None
        if sshd is not None:
            sshd.prepare(self)
        self._fetch()
        if sshd is not None and self.entry["stands_by"]:
            sshd.choose(self)
        elif sshd is not None:
            sshd.start(self)
        self._meet()
        if sshd is not None:
            self._learn_ports(sshd)
        self._write_files()
        self._set_variables()
        if self.entry["stands_by"]:
            return self._stand_by(sshd)
        self.let_go()
        os.execve(self.shell, [self.shell, self.command], self.env)  # noqa: S606  # it is a shell

    def _fetch(self) -> None:
        if self.entry["code"] or self.entry["requirements"] or self.entry["requirements_dir"]:
            fetch: Callable[..., str | None] = import_module(".code_fetch", __package__).fetch
            self.entry["folder"] = self.folder
            problem = fetch(self.entry, say)
            if problem:
                raise EntryError(ExitReason.NO_ENVIRONMENT, problem)

    def _meet(self) -> None:
        own = {name: self.env[name] for name in self.entry["ports"] if name in self.env}
        if self.entry["ssh_port"]:
            own[barrier.SSH] = str(self.peers[self.name]["ssh_port"])
        self.ports = {self.name: own}
        if not (self.entry["meets"] or self.entry["reports"] or self.entry["waits_for"]):
            return
        os.write(1, b"Network is under initialization... ")
        try:
            self.ports = barrier.meet(self.entry, self.name, own, self.until)
        except MissingError as error:
            seconds = float(self.entry["ready_seconds"])
            os.write(1, b"\n")
            raise EntryError(
                ExitReason.NO_PEERS,
                f"not reached within {seconds:g} s: {', '.join(error.missing)}{error.why}",
            ) from error
        say("Network successfully initialized.")

    def take_ssh_port(self, port: int) -> None:
        """Its own ssh listens there: not where it was to, if somebody else has that."""
        self.peers[self.name]["ssh_port"] = port

    def _learn_ports(self, sshd: Any) -> None:
        """Know where everybody's ssh is, now that all have met."""
        for task, found in self.ports.items():
            if barrier.SSH in found and task in self.peers:
                self.peers[task]["ssh_port"] = int(found[barrier.SSH])
        if any(peer["ssh_port"] != peer["wanted_port"] for peer in self.peers.values()):
            sshd.write_client(self)

    # -- files and variables

    def _write_files(self) -> None:
        moved, secrets = [], self.entry.get("secret_files", {})
        for wanted in (*self.entry["files"], *secrets):
            self.paths[wanted] = wanted if self._is_own(wanted) else f"{self.folder}/files{wanted}"
            if self.paths[wanted] != wanted:
                moved.append(wanted)
        for wanted, text in self.entry["files"].items():
            if text != "%exports%":
                write(self.paths[wanted], self.filled(text))
        for wanted, text in secrets.items():
            write(self.paths[wanted], text, mode=0o600)
        if moved:
            say(
                f"trainyard: this node gives the task no file view of its own: {', '.join(sorted(moved))} "
                f"{'is' if len(moved) == 1 else 'are'} below {self.folder}/files"
            )

    def _is_own(self, path: str) -> bool:
        """Whether a file there is the task's alone: the node's folders are everybody's."""
        seen = self.env.get("TRAINYARD_VIEW")
        # Both have put one in its place.
        return seen in ("closed", "container") and os.access(path, os.W_OK)

    def _set_variables(self) -> None:
        more = {name: self.filled(text) for name, text in self.entry["env"].items()}
        self.env.update(more)
        for wanted, text in self.entry["files"].items():
            if text == "%exports%":
                write(self.paths[wanted], exports(self.env))
        if self.entry["ssh_port"]:
            home = {"HOME": self.env.get("HOME", "/"), "TRAINYARD_MARK": self.env.get("TRAINYARD_MARK", "")}
            path = f"{self.folder}/ssh/env.sh"
            write(f"{path}.new", exports(self.env) + exports(home, untold=()))
            os.rename(f"{path}.new", path)  # sessions wait for it

    def filled(self, text: str) -> str:
        """A text with its marks replaced."""
        return MARK.sub(self._fill, text)

    def _fill(self, match: re.Match[str]) -> str:
        what, value = match[1], match[2]
        if what == "path":
            wanted, _, otherwise = value.partition("|")
            place = self.paths.get(wanted, wanted)
            return otherwise if otherwise and place != wanted else place
        if what == "folder":
            return os.path.dirname(self.paths.get(value, value))
        if what == "env":
            return self.env.get(value, "")
        if what == "id":
            return str(os.getuid() if value == "user" else os.getgid())
        task, _, rest = value.partition(":")
        if what == "port" and rest == barrier.SSH:
            return str(self.peers[task]["ssh_port"])
        if what == "port":
            return self.ports.get(task, {}).get(rest, "")
        peer = self.peers[task]
        name, address = rest or peer["names"][0], str(peer["address"])
        if what == "address" or (what == "host" and not self._leads(name, address)):
            return address
        if what == "name" and not self._leads(name, address) and not self._is_shared(address):
            return address
        return str(name)

    def _is_shared(self, address: str) -> bool:
        """Whether several tasks are there: only our `ssh` can tell them apart then, by their names."""
        return [str(peer["address"]) for peer in self.peers.values()].count(address) > 1

    def _leads(self, name: str, address: str) -> bool:
        """Whether the name leads to the address here."""
        # No server of names is asked: it knows no tasks, and many questions at once may keep it busy for seconds.
        if self._hosts is None:
            self._hosts = hosts_table()
        return name == address or address in self._hosts.get(name, ())

    def let_go(self) -> None:
        """Be found by the mark from now on, as every other process of the task."""
        if self.is_forked:
            kernel.die_with_parent(0)

    # -- without a command

    def _stand_by(self, sshd: Any) -> int:
        say("trainyard: this task stands by for the others")
        if sshd is not None:
            sshd.become(self)
        signal.signal(signal.SIGTERM, _leave)
        while True:
            signal.pause()


def _leave(_number: int, _frame: object) -> None:
    sys.exit(0)


def hosts_table(path: str = "/etc/hosts") -> dict[str, set[str]]:
    """Which addresses a name has in the task's own table; nothing where there is none."""
    found: dict[str, set[str]] = {}
    with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            address, *names = line.partition("#")[0].split() or [""]
            for name in names:
                found.setdefault(name, set()).add(address)
    return found


def write(path: str, text: str, mode: int = 0) -> None:
    """Write a file, with the folders that it is in; without a mode, a script can be run."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    mode = mode or (0o700 if text.startswith("#!") else 0o600)
    # In place: one that a view has put there cannot be exchanged.
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    with os.fdopen(handle, "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(text)
    os.chmod(path, mode)


def exports(env: dict[str, str], untold: Collection[str] = UNTOLD) -> str:
    """Variables for a shell to read."""
    return "".join(
        f"export {name}={quoted(value)}\n"
        for name, value in sorted(env.items())
        if name not in untold and name.isidentifier()
    )


def quoted(text: str) -> str:
    """One word for a shell."""
    return "'" + text.replace("'", "'\"'\"'") + "'"
