"""Tasks in containers, by the podman or docker of the node: the container is started, kept, told of and removed.

`keep` is a process of its own between a task's supervisor and the container. What it sees, what limits it has and which
devices are the same as in a view of view.py; a container only has other programs. How its image gets here is images.py.
"""

from __future__ import annotations

import binascii
import contextlib
import json
import os
import re
import resource
import signal
import subprocess
import sys
from typing import Any

from . import kernel
from .devices import device_nodes
from .folder import TaskFolder, write_file
from .ground import Ground, run_briefly
from .hearing import Hearing
from .images import Fetcher
from .placing import Placed, RefusalError, check
from .supervisor import MARK, mark_of
from .view import CONTAINER, Builder, Wrapped, place_of

NO_CONTAINER = 125  # what both say when they could not start one
NOT_STARTED = 126
NO_SHELL = (126, 127)  # what both say when the image has nothing that could be started
REMOVE_SECONDS = 60.0
TELL_SECONDS = 30.0
TELL_AGAIN_SECONDS = 0.5
LOOK_SECONDS = 0.01
FIRST_FILE = "first"  # a file of the task, in which the first process of its container writes; there as long as that may be
PROBLEM = "problem"  # a file of the task: why it could not begin
# Variables by which the node's own program finds its things; a task's values of these are told another way.
NODES_OWN = re.compile(
    r"(HOME|PATH|USER|LOGNAME|TMPDIR|SHELL|LD_.*|XDG_.*|CONTAINERS?_.*|DOCKER_.*|GO.*|https?_proxy|HTTPS?_PROXY)\Z"
)
# The first process of a container: it passes on that the task has to go, to all in it and once, and cleans up after them.
# NB: shells differ in what `wait` says of who was waited for already, or ended while a signal came.
FIRST = (
    "told= heard=; "
    "trap 'heard=1; if [ -z \"$told\" ]; then told=1; echo told >> /.first; kill -TERM -1 2>/dev/null; fi' TERM; "
    "echo began >> /.first; "
    "if [ -e /.go ]; then until read -r go < /.go; do :; done; fi; "
    'if [ -n "$1" ]; then mkdir -p -- "$1" && cd -- "$1" || exit 126; fi; shift; '
    '[ -z "$told" ] || exit 143; '
    '"$@" & main=$!; status=127; [ -z "$told" ] || kill -TERM -1 2>/dev/null; '
    "while :; do heard=; wait $main; now=$?; [ $now = 127 ] || status=$now; "
    '[ -n "$heard" ] || break; done; '
    "for file in /sys/fs/cgroup/memory/memory.oom_control /sys/fs/cgroup/memory.events; do "
    'if [ -r $file ]; then while read -r name count; do if [ "$name" = oom_kill ]; then echo "oom_kill $count" >> /.first; '
    "fi; done < $file; fi; done; exit $status"
)
# What comes before a command is a program of ours, and an image may have nothing to run it with.
PYTHON = (
    'if python3 -ISc "import sys; sys.exit(sys.version_info < (3, 8))" 2>/dev/null; then exec python3 -IS "$@"; fi; '
    'echo "trainyard: the image has no Python 3.8 or newer, by which the tasks of this job find each other" >&2; exit 200'
)
SHELL = 'if [ -x /bin/bash ]; then exec /bin/bash "$@"; fi; exec /bin/sh "$@"'


def name_of(order: dict[str, Any]) -> str:
    """What a task's container is called: the same whenever it is looked for, and nobody else's."""
    mark = order["mark"].encode()
    words = re.sub(rb"[^a-zA-Z0-9_.-]+", b"-", mark.rpartition(b"@")[2])[-100:].decode()
    return f"trainyard-{binascii.crc32(mark):08x}-{words}"


def wrap_image(
    ground: Ground, folder: TaskFolder, order: dict[str, Any], words: list[str], env: dict[str, str]
) -> Wrapped:
    """The words of who keeps a container. RefusalError where the node has none."""
    if not ground.runtime[1]:
        raise RefusalError(
            f"the node has no podman or docker that answers, to run the image {order['view']['image']}"
        )
    own = [sys.executable, "-IS", sys.argv[0], "contain", os.getcwd(), folder.attempt, folder.name]
    return Wrapped([*own, json.dumps(words)], env, CONTAINER)


def remove(folder: TaskFolder, order: dict[str, Any]) -> None:
    """End and remove a task's container, where its keeper has not; no error where there is none."""
    path = Ground().runtime[1]
    if path and os.path.exists(folder.file(FIRST_FILE)):
        run_briefly([path, "rm", "-f", name_of(order)], REMOVE_SECONDS)


def run(attempt: str, name: str, words: str) -> int:
    """Keep one container from the fetching of its image to its removal."""
    folder = TaskFolder(attempt, name)
    order = folder.order()
    if order is None:
        return NOT_STARTED
    return Keeper(folder, order, json.loads(words)).run()


class Box:
    """How the container of a task is put together: what it has and sees, whoever runs in it."""

    def __init__(self, folder: TaskFolder, order: dict[str, Any]) -> None:
        self.folder = folder
        self.order = order
        self.view: dict[str, Any] = order["view"]
        self.kind, self.runtime = Ground().runtime
        self.placed: list[Placed] = []  # its storages, held open

    def words(self, name: str, options: list[str], inner: list[str]) -> tuple[list[str], dict[str, str]]:
        """What runs it under a name, with `inner` for its shell; and the environment for who does. RefusalError where it cannot be."""
        words = [self.runtime, "run", "--name", name, "--network", "host", "--log-driver", "none"]
        words += ["--pull", "never", "--label", "trainyard=1", "--entrypoint", "/bin/sh", "--user", "0:0"]
        words += [
            "--security-opt",
            "label=disable",
            "--stop-timeout",
            "0",
        ]  # it has had its time when we remove it
        words += options + self._limits()
        for mount in self._mounts():
            words += ["--mount", mount]
        for host, address in (self.view.get("hosts") or {}).items():
            words += ["--add-host", f"{host}:{address}"]
        words += self._devices()
        more, env = self._environment()
        work = os.path.abspath(self.folder.file("work"))
        return [*words, *more, "--workdir", work, "--", self.view["image"], *inner], env

    def place(self) -> str:
        """The working folder that the user named, as it is inside; empty where none was."""
        wanted = self.order["working_dir"]
        return place_of(wanted, self.view.get("home") or "/root") if wanted else ""

    def _limits(self) -> list[str]:
        words = []
        memory, cpu = int(self.order.get("memory_mib") or 0), int(self.order.get("cpu_milli") or 0)
        if memory:
            words += ["--memory", f"{memory}m", "--memory-swap", f"{memory}m"]
        if cpu:
            words += ["--cpus", f"{cpu / 1000:g}"]
        size = int(self.view.get("shared_memory_mib") or 0) or memory
        if size:
            words += ["--shm-size", f"{size}m"]
        for name, number in (("nofile", resource.RLIMIT_NOFILE), ("nproc", resource.RLIMIT_NPROC)):
            _, most = resource.getrlimit(number)
            if most != resource.RLIM_INFINITY:  # it may not be raised, and both programs try
                most = min(most, _pid_max()) if name == "nproc" else most  # podman has no more itself
                words += ["--ulimit", f"{name}={most}:{most}"]
        return words

    def _mounts(self) -> list[str]:
        """Storages and the task's own folder, as in a view."""
        builder = Builder.for_container(self.folder, self.order)
        work = os.path.abspath(self.folder.file("work"))
        os.makedirs(work, mode=0o700, exist_ok=True)
        command, program = os.path.abspath(self.folder.file("command")), os.path.abspath(sys.argv[0])
        own = [(work, work, False), (command, command, True), (program, program, True)]
        if self.order.get("entry"):
            entry = os.path.abspath(self.folder.file("entry"))
            own.append((entry, entry, False))
        self.placed = builder.places.all()
        storages = [(one.source, one.target, one.read_only) for one in self.placed]
        # One that lies in a storage is the task's own all the same: the storage is others' as well.
        own += [(path, target, False) for path, target in builder.files()]
        return [mounted(*one) for one in [*storages, *own]]

    def _devices(self) -> list[str]:
        nodes, _ = device_nodes(self.order)
        indices = self.order["env"].get("TRAINYARD_DEVICES", "")
        if nodes and nodes[0].startswith("/dev/nvidia"):
            if self.kind == "docker":
                return ["--gpus", f'"device={indices}"']
            if any(os.path.exists(path) for path in ("/etc/cdi/nvidia.yaml", "/var/run/cdi/nvidia.yaml")):
                return [word for one in indices.split(",") for word in ("--device", f"nvidia.com/gpu={one}")]
        return [word for path in nodes for word in ("--device", path)]

    def _environment(self) -> tuple[list[str], dict[str, str]]:
        """Variables of the task. Their values are in the environment and not among the words, which everybody on the node sees."""
        given = {**self.order["env"], **device_nodes(self.order)[1], "TRAINYARD_VIEW": "container"}
        given.update({name: os.environ[name] for name in self.order.get("ports") or {} if name in os.environ})
        given[MARK] = self.order["mark"]
        given["TRAINYARD_TASK_DIR"] = os.path.abspath(self.folder.path)
        given["TRAINYARD_AGENT"] = os.path.abspath(sys.argv[0])
        home, user = self.view.get("home"), self.view.get("user")
        if home:
            given.setdefault("HOME", home)
        if user:
            given.setdefault("USER", user)
        words, env = [], dict(os.environ)
        for name, value in given.items():
            if NODES_OWN.match(name):
                words += ["--env", f"{name}={value}"]
            else:
                words += ["--env", name]
                env[name] = value
        return words, env


class Keeper:
    """One task's container."""

    def __init__(self, folder: TaskFolder, order: dict[str, Any], words: list[str]) -> None:
        self.folder = folder
        self.order = order
        self.view: dict[str, Any] = order["view"]
        self.words = words
        self.box = Box(folder, order)
        self.kind, self.runtime = self.box.kind, self.box.runtime
        self.name = name_of(order)
        self.hearing = Hearing()
        self.gate = -1  # what its first process waits at, until we have looked at it
        self.problem = ""

    def run(self) -> int:
        """Its status; one that could not begin leaves the reason in a file."""
        try:
            Fetcher(self.folder, self.view, (self.kind, self.runtime)).ensure(self.hearing)
            words, env = self._words()
        except RefusalError as error:
            return self._give_up(str(error))
        finally:
            self._forget_password()
        if self.hearing.is_told:
            return 128 + signal.SIGTERM
        if self.kind != "podman":  # of a supervisor that was killed; podman is asked for that with the start
            run_briefly([self.runtime, "rm", "-f", self.name], REMOVE_SECONDS)
        status = self._wait(subprocess.Popen(words, env=env, stdin=subprocess.DEVNULL))
        said = self.folder.text(FIRST_FILE).splitlines()
        if status == NO_CONTAINER and "began" not in said:
            status = self._give_up(f"{self.kind} could not start the container; the log says why")
        elif status in NO_SHELL and "began" not in said:
            status = self._give_up(
                f"the image {self.view['image']} has no /bin/sh, by which commands are run"
            )
        elif status and is_starved(said):
            limit = int(self.order.get("memory_mib") or 0)
            self._give_up(f"out of memory: it used more than its {limit} MiB")
        if run_briefly([self.runtime, "rm", "-f", self.name], REMOVE_SECONDS)[0] == 0:
            with contextlib.suppress(OSError):
                os.unlink(self.folder.file(FIRST_FILE))
        return status

    def _wait(self, child: subprocess.Popen[bytes]) -> int:
        """Wait for its end. Who has to go is told until it has heard: it may not have been there yet."""
        is_open = not self.box.placed
        while (status := child.poll()) is None:
            if not is_open:
                is_open = self._open()
            is_due = self.hearing.is_told and "told" not in self.folder.text(FIRST_FILE).splitlines()
            if is_due:
                self._tell()
            again = TELL_AGAIN_SECONDS if is_due else None
            self.hearing.pause(again if is_open else LOOK_SECONDS)
        if self.problem:
            return self._give_up(self.problem)
        return status if status >= 0 else 128 - status

    def _open(self) -> bool:
        """Let it begin when it sees of its storages what it should; whether that is settled."""
        if "began" not in self.folder.text(FIRST_FILE).splitlines():
            return False
        pid = self._first()
        try:
            if pid:  # else we have no right to look at it, and it none that we would have to fear
                check(pid, self.box.placed)
        except RefusalError as error:
            self.problem = str(error)
            os.kill(pid, signal.SIGKILL)
        else:
            os.write(
                self.gate, b"go\n" * 8
            )  # one is enough, but a shell may be called away while it reads it
        return True

    def _first(self) -> int:
        """The first process of the container; 0 where it is not to be found."""
        mark = mark_of(self.order)
        return next((pid for pid in kernel.all_pids() if kernel.has_mark(pid, mark) and is_first(pid)), 0)

    def _tell(self) -> None:
        """Tell the first process of the container: it knows the others. By ourselves where we may; else by who runs it."""
        pid = self._first()
        with contextlib.suppress(OSError):
            if pid:
                os.kill(pid, signal.SIGTERM)
                return
        run_briefly([self.runtime, "kill", "--signal", "TERM", self.name], TELL_SECONDS)

    def _forget_password(self) -> None:
        """Whoever fetched an image needs it no more."""
        if self.view.get("password"):
            self.view["password"] = ""
            write_file(self.folder.file("task.json"), json.dumps(self.order).encode())

    def _give_up(self, message: str) -> int:
        write_file(self.folder.file(PROBLEM), message.encode(errors="replace")[:1000])
        return NOT_STARTED

    def _words(self) -> tuple[list[str], dict[str, str]]:
        first = os.path.abspath(self.folder.file(FIRST_FILE))
        write_file(first, b"")
        options = ["--mount", mounted(first, "/.first", False)]
        if self.view["mounts"]:
            gate = os.path.abspath(self.folder.file("go"))
            with contextlib.suppress(FileExistsError):
                os.mkfifo(gate, 0o600)
            self.gate = os.open(gate, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
            options += ["--mount", mounted(gate, "/.go", False)]
        if self.kind == "podman":
            options += ["--replace"]
        return self.box.words(self.name, options, ["-c", FIRST, "sh", self.box.place(), *self._inner()])

    def _inner(self) -> list[str]:
        """The task's own words, by the programs of the image."""
        if self.order.get("entry"):
            return ["/bin/sh", "-c", PYTHON, "sh", *self.words[2:]]
        return ["/bin/sh", "-c", SHELL, "sh", *self.words[1:]]


def _pid_max() -> int:
    with open("/proc/sys/kernel/pid_max", encoding="ascii") as file:
        return int(file.read())


def is_starved(said: list[str]) -> bool:
    """Whether something of it was killed for want of memory, as the kernel counted for the container."""
    return any(line.startswith("oom_kill ") and line != "oom_kill 0" for line in said)


def is_first(pid: int) -> bool:
    """Whether a process is the first one in a tree of processes that is not ours."""
    try:
        lines = kernel.read_file(f"/proc/{pid}/status").splitlines()
    except OSError:
        return False
    numbers = next((line.split()[1:] for line in lines if line.startswith(b"NSpid:")), [])
    return len(numbers) > 1 and numbers[-1] == b"1"


def mounted(source: str, target: str, read_only: bool) -> str:
    """A mount as both programs read it: fields of a line of CSV."""
    fields = ["type=bind", f"src={source}", f"dst={target}", *(["ro"] if read_only else [])]
    return ",".join(_field(one) for one in fields)


def _field(text: str) -> str:
    return '"' + text.replace('"', '""') + '"' if re.search(r'[",\n\r]', text) else text
