"""Tasks in containers, by the podman or docker of the node: the image is fetched, the container kept, told of and removed.

`keep` is a process of its own between a task's supervisor and the container. What it sees, what limits it has and which
devices are the same as in a view of view.py; a container only has other programs.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from typing import Any

from .devices import device_nodes
from .folder import TaskFolder, note, write_file
from .ground import Ground, run_briefly
from .view import CONTAINER, Builder, RefusalError, Wrapped, place_of

NO_CONTAINER = 125  # what both say when they could not start one
NOT_STARTED = 126
REMOVE_SECONDS = 60.0
PULL_TRIES = 3
PULL_PAUSE_SECONDS = 2.0
STARVED = "starved"  # a file that its first process writes
PROBLEM = "problem"  # a file of the task: why it could not begin
# Variables by which the node's own program finds its things; a task's values of these are told another way.
NODES_OWN = re.compile(
    r"(HOME|PATH|USER|LOGNAME|TMPDIR|SHELL|LD_.*|XDG_.*|CONTAINERS?_.*|DOCKER_.*|GO.*|https?_proxy|HTTPS?_PROXY)\Z"
)
# What failed, by what registries and programs say.
CAUSES = (
    ("unauthorized", re.compile(r"(?i)unauthori[sz]ed|authentication required|denied|forbidden|login")),
    ("not found", re.compile(r"(?i)not found|manifest unknown|no such image|name unknown|404|does not exist")),
    ("disk full", re.compile(r"(?i)no space left")),
    ("not reached", re.compile(r"(?i)timeout|timed out|no such host|refused|unreachable|reset by peer|dial tcp|tls|eof")),
    ("no such name", re.compile(r"(?i)short-name|invalid reference")),
)  # fmt: skip
# The first process of a container: it passes on that the task has to go, to all in it, and cleans up after them.
FIRST = (
    'trap "kill -TERM -1" TERM; '
    'if [ -n "$1" ]; then mkdir -p -- "$1" && cd -- "$1" || exit 126; fi; shift; '
    '"$@" & main=$!; while :; do wait $main; status=$?; kill -0 $main 2>/dev/null || break; done; '
    "for file in /sys/fs/cgroup/memory/memory.oom_control /sys/fs/cgroup/memory.events; do "
    'if [ -r $file ]; then while read -r name count; do if [ "$name" = oom_kill ]; then echo "$count" > /.starved; fi; '
    "done < $file; fi; done; exit $status"
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


def remove(order: dict[str, Any]) -> None:
    """End and remove a task's container; no error where there is none."""
    path = Ground().runtime[1]
    if path:
        run_briefly([path, "rm", "-f", name_of(order)], REMOVE_SECONDS)


def words_beside(runtime: str, order: dict[str, Any], place: str, command: str) -> list[str]:
    """What runs a command inside of a task's container; an empty one is a login shell."""
    inner = ["-c", command] if command else ["-l"]
    words = [runtime, "exec", "-i", *(["-t"] if os.isatty(0) else []), "-w", place]
    if os.environ.get("TERM"):
        words += ["--env", f"TERM={os.environ['TERM']}"]
    return [*words, name_of(order), "/bin/sh", "-c", SHELL, "sh", *inner]


def run(attempt: str, name: str, words: str) -> int:
    """Keep one container from the fetching of its image to its removal."""
    folder = TaskFolder(attempt, name)
    order = folder.order()
    if order is None:
        return NOT_STARTED
    return Keeper(folder, order, json.loads(words)).run()


class Keeper:
    """One task's container."""

    def __init__(self, folder: TaskFolder, order: dict[str, Any], words: list[str]) -> None:
        self.folder = folder
        self.order = order
        self.view: dict[str, Any] = order["view"]
        self.words = words
        self.kind, self.runtime = Ground().runtime
        self.name = name_of(order)
        self.is_told = False
        self.child: subprocess.Popen[bytes] | None = None

    def run(self) -> int:
        """Its status; one that could not begin leaves the reason in a file."""
        signal.signal(signal.SIGTERM, self._hear)
        try:
            self._ensure_image()
            words, env = self._words()
        except RefusalError as error:
            return self._give_up(str(error))
        if self.is_told:
            return 128 + signal.SIGTERM
        run_briefly([self.runtime, "rm", "-f", self.name], REMOVE_SECONDS)  # of a supervisor that was killed
        self.child = subprocess.Popen(words, env=env, stdin=subprocess.DEVNULL)
        if self.is_told:  # while it was being started
            self._hear(signal.SIGTERM, None)
        status = self._wait(self.child)
        if status == NO_CONTAINER:
            status = self._give_up(f"{self.kind} could not start the container; the log says why")
        elif status and self._is_starved():
            limit = int(self.order.get("memory_mib") or 0)
            write_file(
                self.folder.file(PROBLEM), f"out of memory: it used more than its {limit} MiB".encode()
            )
        run_briefly([self.runtime, "rm", "-f", self.name], REMOVE_SECONDS)
        return status

    def _hear(self, number: int, _frame: object) -> None:
        """Pass on that it has to go."""
        self.is_told = True
        if self.child is not None:
            with contextlib.suppress(OSError):
                self.child.send_signal(number)

    def _wait(self, child: subprocess.Popen[bytes]) -> int:
        status = child.wait()
        return status if status >= 0 else 128 - status

    def _give_up(self, message: str) -> int:
        write_file(self.folder.file(PROBLEM), message.encode(errors="replace")[:1000])
        return NOT_STARTED

    def _is_starved(self) -> bool:
        """Whether something of it was killed for want of memory, as the kernel counted for the container."""
        return self.folder.text(STARVED).strip() not in ("", "0")

    # -- the image

    def _ensure_image(self) -> None:
        image = self.view["image"]
        if run_briefly([self.runtime, "image", "inspect", "--format", "{{.Id}}", "--", image])[0] == 0:
            return
        begun = time.monotonic()
        self._note("image_pulling", f"The image {image} is being fetched.")
        said = ""
        for number in range(PULL_TRIES):
            status, said = self._pull(image)
            if status == 0:
                self._note(
                    "image_pulled", f"The image {image} was fetched in {time.monotonic() - begun:.0f} s."
                )
                return
            if self.is_told or cause_of(said) != "not reached" or number == PULL_TRIES - 1:
                break
            time.sleep(PULL_PAUSE_SECONDS)
        last = said.strip().rpartition("\n")[2][:500]
        message = f"the image {image} cannot be fetched ({cause_of(said)}): {last}"
        self._note("image_failed", f"T{message[1:]}")
        raise RefusalError(message)

    def _pull(self, image: str) -> tuple[int, str]:
        with self._signed_in(image) as options:
            env = dict(os.environ)
            words = [self.runtime, "pull", "-q", "--", image]
            if options and self.kind == "podman":
                words[2:2] = ["--authfile", f"{options}/config.json"]
            elif options:
                words[1:1] = ["--config", options]
            self.child = subprocess.Popen(
                words, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
            )
            said, _ = self.child.communicate()
            status = self.child.returncode
            self.child = None
        return status, said.decode(errors="replace")

    @contextlib.contextmanager
    def _signed_in(self, image: str) -> Any:
        """A folder with the sign-in of a registry, for as long as it is needed."""
        if not self.view.get("username"):
            yield ""
            return
        folder = os.path.abspath(self.folder.file("registry"))
        os.makedirs(folder, mode=0o700, exist_ok=True)
        words = f"{self.view['username']}:{self.view.get('password', '')}".encode()
        host = image.split("/", 1)[0]
        data = {"auths": {host: {"auth": base64.b64encode(words).decode()}}}
        path = f"{folder}/config.json"
        try:
            write_file(path, json.dumps(data).encode())
            yield folder
        finally:
            with contextlib.suppress(OSError):
                os.unlink(path)
                os.rmdir(folder)

    def _note(self, code: str, message: str) -> None:
        state = os.open(self.folder.file("state"), os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        try:
            note(state, {"note": [code, message, time.time()]})
        finally:
            os.close(state)

    # -- the container

    def _words(self) -> tuple[list[str], dict[str, str]]:
        words = [
            self.runtime,
            "run",
            "--name",
            self.name,
            "--network",
            "host",
            "--log-driver",
            "none",
            "--pull",
            "never",
        ]
        words += [
            "--label",
            "trainyard=1",
            "--entrypoint",
            "/bin/sh",
            "--user",
            "0:0",
            "--security-opt",
            "label=disable",
        ]
        words += self._limits()
        for mount in self._mounts():
            words += ["--mount", mount]
        for name, address in (self.view.get("hosts") or {}).items():
            words += ["--add-host", f"{name}:{address}"]
        words += self._devices()
        more, env = self._environment()
        words += more
        wanted = self.order["working_dir"]
        work = os.path.abspath(self.folder.file("work"))
        place = place_of(wanted, self.view.get("home") or "/root") if wanted else ""
        words += ["--workdir", work, "--", self.view["image"], "-c", FIRST, "sh", place]
        return [*words, *self._inner()], env

    def _inner(self) -> list[str]:
        """The task's own words, by the programs of the image."""
        if self.order.get("entry"):
            return ["/bin/sh", "-c", PYTHON, "sh", *self.words[2:]]
        return ["/bin/sh", "-c", SHELL, "sh", *self.words[1:]]

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
        starved = os.path.abspath(self.folder.file(STARVED))
        write_file(starved, b"")
        own.append((starved, "/.starved", False))
        if self.order.get("entry"):
            entry = os.path.abspath(self.folder.file("entry"))
            own.append((entry, entry, False))
        return [mounted(*one) for one in [*builder.binds(), *own]]

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


def _pid_max() -> int:
    with open("/proc/sys/kernel/pid_max", encoding="ascii") as file:
        return int(file.read())


def cause_of(said: str) -> str:
    """Why an image could not be fetched, in a word or two."""
    return next((cause for cause, pattern in CAUSES if pattern.search(said)), "failed")


def mounted(source: str, target: str, read_only: bool) -> str:
    """A mount as both programs read it: fields of a line of CSV."""
    fields = ["type=bind", f"src={source}", f"dst={target}", *(["ro"] if read_only else [])]
    return ",".join(_field(one) for one in fields)


def _field(text: str) -> str:
    return '"' + text.replace('"', '""') + '"' if re.search(r'[",\n\r]', text) else text
