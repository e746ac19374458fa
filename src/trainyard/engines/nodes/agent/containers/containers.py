"""Tasks in containers, by the podman or docker of the node: how a container is put together, and removed.

What it sees, what limits it has and which devices are the same as in a view of view.py; a container only has other
programs. Who keeps one, from its start to its end, is container_supervisor.py; how its image gets here is images.py.
"""

from __future__ import annotations

import binascii
import contextlib
import json
import os
import re
import resource
import sys
from typing import Any

from trainyard.lib.read_file import read_file

from .. import kernel
from ..sandbox import syscall_filter
from ..sandbox.capabilities import DOCKER, RUNTIMES, Runtime, find_runtime, has_runtime, run_briefly
from ..sandbox.cgroups import limits_of
from ..sandbox.device_files import device_nodes
from ..sandbox.sandbox_user import NAMES, user_of
from ..sandbox.storage_mounts import MountedStorage, RefusalError
from ..sandbox.view import CONTAINER, NOBODY, Builder, WrappedCommand, place_of
from ..tasks.folder import TaskFolder, write_file
from ..tasks.supervisor import base_environment, end_marked, mark_of

REMOVE_SECONDS = (
    30.0  # a daemon that hangs goes on with it when it can; our container's processes do not wait for that
)
FIRST_FILE = "first"  # a file of the task, in which the first process of its container writes; there as long as that may be
RUNTIME = "runtime"  # a file of the task: which kind of program runs its container, and where that is
VARIABLES = "variables"  # a file of the task: those that the runtime may not inherit, without being words that everybody sees
LEFT = "containers"  # a folder of the node: a file for each container that nobody could remove when its task had ended
IS_GONE = re.compile(r"(?i)no such container|no container with|already in progress")
# Variables by which the node's own program, and what that runs, find their things; a task's values of these are told
# another way. NB: one for the loader of programs, or for podman's storage, would have a user's code run outside.
NODES_OWN = re.compile(
    r"(HOME|PATH|USER|LOGNAME|TMPDIR|SHELL|_.*|LD_.*|GLIBC_.*|GCONV_PATH|LOCPATH|XDG_.*|CONTAINERS?_.*|DOCKER_.*|PODMAN_.*|"
    r"BUILDAH_.*|STORAGE_.*|REGISTRY_.*|CNI_.*|NETAVARK_.*|DBUS_.*|LISTEN_.*|NOTIFY_SOCKET|SSL_.*|OTEL_.*|GO(?!OGLE)[A-Z0-9]*|"
    r"(https?|all|no)_proxy|(HTTPS?|ALL|NO)_PROXY)\Z"
)
OWN_TMP = "/tmp"
SHELL = 'if [ -x /bin/bash ]; then exec /bin/bash "$@"; fi; exec /bin/sh "$@"'


def name_of(order: dict[str, Any]) -> str:
    """What a task's container is called: the same whenever it is looked for, and nobody else's."""
    mark = order["mark"].encode()
    words = re.sub(rb"[^a-zA-Z0-9_.-]+", b"-", mark.rpartition(b"@")[2])[-100:].decode()
    return f"trainyard-{binascii.crc32(mark):08x}-{words}"


def wrap_image(
    folder: TaskFolder, order: dict[str, Any], words: list[str], env: dict[str, str]
) -> WrappedCommand:
    """The words of who keeps a container. RefusalError where the node has none."""
    if not has_runtime():
        raise RefusalError(no_runtime(order["view"], ""))
    own = [sys.executable, "-IS", sys.argv[0], "contain", os.getcwd(), folder.attempt, folder.name]
    # What the task was given is for its container: it leads neither us nor what we start on the node.
    ports = {name: env[name] for name in order.get("ports") or {} if name in env}
    return WrappedCommand(
        [*own, json.dumps(words)], {**base_environment(), **ports, kernel.MARK: order["mark"]}, CONTAINER
    )


def no_runtime(view: dict[str, Any], problem: str) -> str:
    """What people are told where nothing runs an image."""
    wanted = view["images"] if view.get("images") in RUNTIMES else "podman or docker"
    why = f" ({problem})" if problem else ""
    return f"the node has no {wanted} that answers, to run the image {view['image']}{why}"


def keep_runtime(folder: TaskFolder, found: Runtime) -> None:
    """Remember what runs a task's container: whatever is here later, no other one knows it."""
    write_file(folder.file(RUNTIME), f"{found.kind}\n{found.path}".encode(errors="surrogateescape"))


def runtime_of(folder: TaskFolder, order: dict[str, Any]) -> Runtime:
    """What runs a task's container; what would run one now where it has had none."""
    kind, _, path = folder.text(RUNTIME).partition("\n")
    return Runtime(kind, path) if path else find_runtime(order["view"].get("images", ""))


def remove(folder: TaskFolder, order: dict[str, Any]) -> None:
    """End and remove a task's container, where its keeper has not; no error where there is none."""
    if os.path.exists(folder.file(FIRST_FILE)):
        discard(runtime_of(folder, order), order)


def discard(runtime: Runtime, order: dict[str, Any]) -> None:
    """Remove a task's container. Where nobody answers who could, its processes are ended, and it is removed before the next begins."""
    name = name_of(order)
    if not _is_removed(runtime, name):
        end_marked(mark_of(order), 0, {os.getpid()}, grace=0.0)
        os.makedirs(LEFT, mode=0o700, exist_ok=True)
        write_file(f"{LEFT}/{name}", runtime.kind.encode())


def discard_left(runtime: Runtime) -> None:
    """Remove the containers of tasks that ended while nobody answered who could."""
    if not os.path.isdir(LEFT):
        return
    for name in os.listdir(LEFT):
        with contextlib.suppress(FileNotFoundError):  # another task's keeper has
            kind = read_file(f"{LEFT}/{name}").decode()
            if kind == runtime.kind and _is_removed(runtime, name):
                os.unlink(f"{LEFT}/{name}")


def _is_removed(runtime: Runtime, name: str) -> bool:
    if not runtime.path:
        return False
    status, said = run_briefly([runtime.path, "rm", "-f", "-v", name], REMOVE_SECONDS)
    return status == 0 or IS_GONE.search(said) is not None


class Box:
    """How the container of a task is put together: what it has and sees, whoever runs in it."""

    def __init__(self, folder: TaskFolder, order: dict[str, Any], runtime: Runtime) -> None:
        self.folder = folder
        self.order = order
        self.view: dict[str, Any] = order["view"]
        self.kind, self.runtime = runtime.kind, runtime.path
        self.user = user_of(order)  # as whom all in it run; None: as far as that goes, root
        self.home = home_of(order)
        self.placed: list[MountedStorage] = []  # its storages, held open

    def words(self, name: str, options: list[str], inner: list[str]) -> tuple[list[str], dict[str, str]]:
        """What runs it under a name, with `inner` for its shell; and the environment for who does. RefusalError where it cannot be."""
        words = [self.runtime, "run", "--name", name, "--network", "host", "--log-driver", "none"]
        words += ["--pull", "never", "--label", "trainyard=1", "--entrypoint", "/bin/sh"]
        words += ["--security-opt", "label=disable", "--user", self._user(), "--no-healthcheck"]
        words += ["--security-opt", "no-new-privileges", "--security-opt", f"seccomp={self._profile()}"]
        if self.user is not None:
            words += [
                "--cap-drop",
                "ALL",
                *(word for one in self.user.groups for word in ("--group-add", str(one))),
            ]
        if self.kind == DOCKER:  # the network of the node goes only with its users
            words += ["--userns", "host", "--stop-signal", "TERM"]
        else:
            words += ["--stop-timeout", "0"]  # it has had its time when we remove it
        words += options + self._limits()
        for mount in self._mounts():
            words += ["--mount", mount]
        for host, address in (self.view.get("hosts") or {}).items():
            words += ["--add-host", f"{host}:{address}"]
        words += self._home() + self._devices()
        more, env = self._environment()
        work = os.path.abspath(self.folder.file("work"))
        return [*words, *more, "--workdir", work, "--", self.view["image"], *inner], env

    def _profile(self) -> str:
        """A file with the calls that are denied inside, as in a view. An sshd of the container's root puts itself aside."""
        path = os.path.abspath(self.folder.file("seccomp.json"))
        spared = ("chroot",) if self.user is None else ()
        write_file(path, json.dumps(syscall_filter.profile(*spared)).encode())
        return path

    def place(self) -> str:
        """The working folder that the user named, as it is inside; empty where none was."""
        wanted = self.order["working_dir"]
        return place_of(wanted, self.home) if wanted else ""

    def _user(self) -> str:
        """The task's own user; else root, as far as that is no more than we are: a daemon of root's would make it the node's."""
        if self.user is not None:
            return f"{self.user.uid}:{self.user.gid}"
        if self.kind == DOCKER and os.getuid():
            options = run_briefly([self.runtime, "info", "--format", "{{.SecurityOptions}}"])[1]
            if "rootless" not in options:
                return f"{os.getuid()}:{os.getgid()}"
        return "0:0"

    def _limits(self) -> list[str]:
        words = []
        memory, cpu = int(self.order.get("memory_mib") or 0), int(self.order.get("cpu_milli") or 0)
        if memory:
            words += ["--memory", f"{memory}m", "--memory-swap", f"{memory}m"]
        if cpu:
            words += ["--cpus", f"{cpu / 1000:g}"]
        processes = limits_of(self.order).processes
        words += ["--pids-limit", str(processes or -1)]
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
        if self.user is not None:
            self.user.give(work)
            self.user.give(command)  # it is mounted to be read
            os.chmod(program, 0o644)  # nobody else comes into the folder that it is in
            own += [(self._names(name), f"/etc/{name}", True) for name in NAMES]
        if self.order.get("entry"):
            entry = os.path.abspath(self.folder.file("entry"))
            own.append((entry, entry, False))
        self.placed = builder.places.all()
        storages = [(one.source, one.target, one.read_only) for one in self.placed]
        # One that lies in a storage is the task's own all the same: the storage is others' as well.
        own += [(path, target, False) for path, target in builder.files()]
        return [mounted(*one) for one in [*storages, *own]]

    def _names(self, name: str) -> str:
        """A table of accounts with the task's user, for programs that ask who they are. Nobody else of the image can be."""
        path = os.path.abspath(self.folder.file(name))
        if self.user is not None:
            user = self.view.get("user") or NOBODY
            write_file(path, self.user.names(name, user, self.home, "/bin/sh", NAMES[name]).encode())
            os.chmod(path, 0o644)  # same
        return path

    def _home(self) -> list[str]:
        """A home to write in, where no storage is that: an image has none for users that it does not know."""
        if self.user is None or self.home == OWN_TMP or any(one.target == self.home for one in self.placed):
            return []
        return ["--tmpfs", f"{self.home}:rw,exec,mode=1777"]

    def _devices(self) -> list[str]:
        nodes, _ = device_nodes(self.order)
        indices = self.order["env"].get("TRAINYARD_DEVICES", "")
        if nodes and nodes[0].startswith("/dev/nvidia"):
            if self.kind == DOCKER:
                others = [path for path in nodes if not path.startswith("/dev/nvidia")]
                return [*requested(indices), *(word for path in others for word in ("--device", path))]
            if any(os.path.exists(path) for path in ("/etc/cdi/nvidia.yaml", "/var/run/cdi/nvidia.yaml")):
                return [word for one in indices.split(",") for word in ("--device", f"nvidia.com/gpu={one}")]
        return [word for path in nodes for word in ("--device", path)]

    def _environment(self) -> tuple[list[str], dict[str, str]]:
        """Variables of the task. Their values are in the environment and not among the words, which everybody on the node sees."""
        given = {**self.order["env"], **device_nodes(self.order)[1], "TRAINYARD_VIEW": "container"}
        given.update({name: os.environ[name] for name in self.order.get("ports") or {} if name in os.environ})
        given[kernel.MARK] = self.order["mark"]
        given["TRAINYARD_TASK_DIR"] = os.path.abspath(self.folder.path)
        given["TRAINYARD_AGENT"] = os.path.abspath(sys.argv[0])
        home, user = self.view.get("home"), self.view.get("user")
        if home or self.user is not None:
            given.setdefault("HOME", self.home)
        if user:
            given.setdefault("USER", user)
        words, env, filed = [], dict(os.environ), ""
        for name, value in given.items():
            if not NODES_OWN.match(name):
                words += ["--env", name]
                env[name] = value
            elif "\n" in value:  # a file of variables has no way to say it
                words += ["--env", f"{name}={value}"]
            else:
                filed += f"{name}={value}\n"
        path = os.path.abspath(self.folder.file(VARIABLES))
        write_file(path, filed.encode(errors="surrogateescape"))
        named = path if self.kind == DOCKER else _field(path)  # podman reads several from one word
        return [*words, "--env-file", named], env


def home_of(order: dict[str, Any]) -> str:
    """Where a task's user is at home inside of its container."""
    return str(order["view"].get("home") or (OWN_TMP if user_of(order) is not None else "/root"))


def requested(indices: str) -> list[str]:
    """How docker is asked for devices of NVIDIA: in quotes of its own, as a field of a line of CSV that has commas."""
    return ["--gpus", f'"device={indices}"']


def _pid_max() -> int:
    with open("/proc/sys/kernel/pid_max", encoding="ascii") as file:
        return int(file.read())


def mounted(source: str, target: str, read_only: bool) -> str:
    """A mount as both programs read it: fields of a line of CSV."""
    fields = ["type=bind", f"src={source}", f"dst={target}", *(["ro"] if read_only else [])]
    return ",".join(_field(one) for one in fields)


def _field(text: str) -> str:
    return '"' + text.replace('"', '""') + '"' if re.search(r'[",\n\r]', text) else text
