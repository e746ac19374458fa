"""What a task sees of its node: its own folder, its storages, its devices, the node's programs, and nobody else's.

Made by bubblewrap, where the node has it and lets it work. A closed view is for people who share a node; an open one adds
storages to all that the node has, for who owns the machine anyway. Images are containers.py's.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from importlib import import_module
from typing import Any

from trainyard.lib.read_file import read_file

from ..tasks.folder import TaskFolder
from . import syscall_filter
from .capabilities import PATHS, Capabilities
from .device_files import device_nodes
from .sandbox_user import UNGUARDED, TaskUser, user_of
from .storage_mounts import NETWORK, MountedStorage, RefusalError, StorageMounts, source_of

CLOSED, OPEN, OFF, REQUIRED = "closed", "open", "off", "required"
CONTAINER, IGNORE = "container", "ignore"
# What of a node's files a closed view has; the rest of `/` is not there.
SHOWN = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "opt", "etc")
# Of /sys only what programs ask for devices and cores: all of it has a dozen mounts of its own, and each costs a start.
SHOWN_BELOW = (
    "sys/devices", "sys/class", "sys/bus", "sys/module", "run/systemd/resolve", "run/nvidia-persistenced", "var/log/npu",
)  # fmt: skip
# Secrets of the node inside of those.
SECRET = (
    "etc/shadow", "etc/shadow-", "etc/gshadow", "etc/gshadow-", "etc/sudoers", "etc/sudoers.d", "etc/ssl/private",
    "etc/ssh", "etc/krb5.keytab", "etc/wireguard", "etc/NetworkManager", "etc/netplan", "etc/trainyard", "etc/kubernetes",
    "etc/docker", "etc/containers/auth.json",
)  # fmt: skip
# What root needs inside of a view to enter the task's folder and to become its user. None of it is left to the task.
CAPABILITIES = ("CAP_SETGID", "CAP_SETUID", "CAP_SETPCAP", "CAP_DAC_READ_SEARCH")
# Variables of the node itself that programs in a closed view get; others may hold the operator's secrets.
KEPT = re.compile(
    r"(?i)(PATH|LANG|LANGUAGE|LC_\w+|TZ|LD_LIBRARY_PATH|PYTHONPATH|(https?|no|all|ftp)_proxy"
    r"|(CUDA|NCCL|GLOO|ASCEND|HCCL|NVIDIA|MPI|OMPI|UCX|PIP|CONDA|OPENBLAS|OMP|MKL)_\w+)\Z"
)
OWN = ("TRAINYARD_MARK", "TRAINYARD_TASK_DIR", "TRAINYARD_AGENT")
ETC = "/.etc"  # beside /etc, so that links of it that lead upwards lead to the same
NAMED = ("hosts", "passwd", "group")  # files of /etc that a task may have its own of
NOBODY = "task"  # what the user of a task is called whose server does not say
NOT_FILES = ("/proc/", "/sys/", "/dev/")

# The system's own places, where no file of a task may be: programs of root's read there before they become the task's user.
SYSTEM = (
    "usr",
    "bin",
    "sbin",
    "lib",
    "lib32",
    "lib64",
    "libx32",
    "etc/ld.so.preload",
    "etc/ld.so.cache",
    "etc/ld.so.conf.d",
)
VARIABLES = "/run/trainyard-variables"
# Variables that shells keep to themselves: no shell can set them for its program.
SHELLS_OWN = ("UID", "EUID", "GROUPS", "PPID", "SHELLOPTS", "BASHOPTS", "BASH_VERSINFO", "OPTIND")
RUN_BYTES = 64 << 20  # what a task may keep below /run: it is memory
MOST_ENTRIES = 500  # of a folder that has to be put together anew, in an open view


class WrappedCommand:
    """A program's words with its view around them, the environment for it, and what its user should know."""

    def __init__(self, words: list[str], env: dict[str, str], kind: str = "") -> None:
        self.words = words
        self.env = env
        self.kind = kind  # empty: it sees the node as it is
        self.notes: list[tuple[str, str]] = []
        self.placed: list[MountedStorage] = []  # its storages
        self.handles: list[int] = []  # what else it reads from

    def close(self) -> None:
        """Let go of what was open for its start."""
        for handle in (*(one.handle for one in self.placed), *self.handles):
            os.close(handle)
        self.placed, self.handles = [], []


def find_out(capabilities: Capabilities, order: dict[str, Any]) -> None:
    """Find out now what the node can, as far as the order needs it: once, for all tasks to come."""
    wanted = order.get("view")
    has_image = wanted is not None and wanted.get("image") and wanted.get("images") != IGNORE
    if wanted is not None and not has_image:  # who keeps a container finds out by itself: a daemon may hang
        capabilities.bwrap  # noqa: B018  # kept by the ground


def wrap(
    capabilities: Capabilities,
    folder: TaskFolder,
    order: dict[str, Any],
    words: list[str],
    env: dict[str, str],
) -> WrappedCommand:
    """Put a task's view around its words. RefusalError where it needs what the node cannot give."""
    view = order.get("view")
    if view is None:
        return WrappedCommand(words, env)
    notes = []
    if view.get("image"):
        if view.get("images") != IGNORE:
            contained: WrappedCommand = import_module("..containers.containers", __package__).wrap_image(
                folder, order, words, env
            )
            return contained
        notes.append(
            ("image_ignored", f"The image {view['image']} is not used: the node is set to ignore images.")
        )
    wanted = view.get("isolation") or CLOSED
    if wanted == OFF or not capabilities.bwrap:
        wrapped = _without(capabilities, wanted, view, WrappedCommand(words, env))
    else:
        builder = Builder(capabilities, folder, order, env)
        if wanted != OPEN:
            wrapped = builder.closed(words)
        else:
            adds = builder.added() or view.get("shared_memory_mib")
            wrapped = builder.open(words) if adds else WrappedCommand(words, env)
    wrapped.notes += notes
    return wrapped


def _without(
    capabilities: Capabilities, wanted: str, view: dict[str, Any], plain: WrappedCommand
) -> WrappedCommand:
    if wanted == REQUIRED:
        raise RefusalError(f"the node must keep tasks apart and cannot: {capabilities.why_not}")
    if os.getuid() == 0 and wanted not in UNGUARDED:
        raise RefusalError(
            f"the node would run the task as root, and cannot keep it apart: {capabilities.why_not}"
        )
    for mount in view["mounts"]:
        source = source_of(mount) if mount["kind"] != NETWORK else str(mount["source"])
        if os.path.normpath(source) != os.path.normpath(mount["target"]):
            if mount.get("options", {}).get("default"):
                continue  # nobody asked for it by name
            why = "its isolation is off" if wanted == OFF else capabilities.why_not
            raise RefusalError(f"the storage at {mount['target']} cannot be shown on this node: {why}")
    if view.get("shared_memory_mib"):
        message = "The /dev/shm of this node is everybody's, and as large as the node has it."
        plain.notes.append(("shared_memory_missing", message))
    if wanted not in (OFF, OPEN):
        message = f"Tasks are not kept apart on this node: {capabilities.why_not}."
        plain.notes.append(("isolation_missing", message))
    return plain


class Builder:
    """Puts the words of bubblewrap together."""

    def __init__(
        self, capabilities: Capabilities, folder: TaskFolder, order: dict[str, Any], env: dict[str, str]
    ) -> None:
        self.capabilities = capabilities
        self.folder = folder
        self.order = order
        self.view: dict[str, Any] = order["view"]
        self.env = dict(env)
        self.words: list[str] = [capabilities.bwrap]
        self.handles: list[int] = []
        self._ways = {"/"}  # folders that are there for the task to go through
        self.user = user_of(order)
        self.places = StorageMounts(self.view, order["mark"], self.user)

    @classmethod
    def for_container(cls, folder: TaskFolder, order: dict[str, Any]) -> Builder:
        """One that only says which folders are to be seen."""
        return cls(Capabilities(), folder, order, {})

    def closed(self, words: list[str]) -> WrappedCommand:
        """Only what is the task's own, and the node's programs to read."""
        self.words += ["--unshare-pid", "--unshare-ipc", "--cap-drop", "ALL"]
        for name in CAPABILITIES if self.user is not None else ():
            self.words += ["--cap-add", name]
        self._deny_calls()
        self._show_node()
        self._show_devices()
        self._show_own()
        self._mount_all()
        self._name_things()
        self._put_files()
        words = self._show_python(words)
        self.words += ["--remount-ro", "/"]
        self._clean_environment()
        self.env["TRAINYARD_VIEW"] = CLOSED
        return self._finished(words, CLOSED)

    def added(self) -> list[dict[str, Any]]:
        """The mounts that an open view has: of those that nobody asked for, only where the node has nothing itself."""
        return [
            mount
            for mount in self.view["mounts"]
            if not ((mount.get("options") or {}).get("default") and os.path.isdir(mount["target"]))
        ]

    def open(self, words: list[str]) -> WrappedCommand:
        """All that the node has, and storages at their places, where it has nothing there itself."""
        self.view["mounts"] = self.added()
        targets = [mount["target"] for mount in self.view["mounts"]]
        self._rebind("/", ["--dev-bind"], targets)
        for parent in sorted({_existing(target) for target in targets} - {"/", *targets}):
            self.words += ["--tmpfs", parent]
            self._rebind(parent, ["--dev-bind"], targets)
        if self.view.get("shared_memory_mib"):
            self._share_memory()
        self._mount_all()
        self._name_things()
        if self.view.get("home"):
            self.env["HOME"] = self.view["home"]
        return self._finished(words, OPEN)

    def _finished(self, words: list[str], kind: str) -> WrappedCommand:
        inner, env = self._enter(words), self.env
        if self.user is not None:
            inner = [*self.user.words(self.capabilities.setpriv), *self._set_as_user(inner)]
            env = {name: value for name, value in env.items() if name in OWN}
        else:
            self._set_inside()
        wrapped = WrappedCommand([*self.words, "--", *inner], env, kind)
        wrapped.placed, wrapped.handles = self.places.all(), self.handles
        return wrapped

    def _deny_calls(self) -> None:
        handle = syscall_filter.as_file()
        if handle >= 0:
            self._hand_in("--seccomp", handle)

    def _hand_in(self, option: str, handle: int, *words: str) -> None:
        """Have bubblewrap read from a handle."""
        os.set_inheritable(handle, True)
        self.handles.append(handle)
        self.words += [option, str(handle), *words]

    def _own_folder(self, name: str) -> str:
        """A folder of the task that it may write in."""
        path = os.path.abspath(self.folder.file(name))
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
        if self.user is not None:
            self.user.give(path)
        return path

    def _set_inside(self) -> None:
        """Have what leads the loader of programs be set inside: outside it would bring a user's code into bubblewrap itself."""
        names = [name for name in self.order["env"] if name.startswith("LD_") and name in self.env]
        words = [word for name in names for word in ("--setenv", name, self.env.pop(name))]
        if not words:
            return
        # Through a descriptor: everybody on the node sees the words of a command.
        handle = os.memfd_create("variables")
        with open(handle, "wb", closefd=False) as file:
            file.write(b"".join(os.fsencode(word) + b"\0" for word in words))
        os.lseek(handle, 0, os.SEEK_SET)
        self._hand_in("--args", handle)

    def _set_as_user(self, words: list[str]) -> list[str]:
        """Set the task's variables when it is its user already: LD_PRELOAD and the like would lead a program of root's.

        Through a file that only this view has: everybody on the node sees the words of a command.
        """
        quoted = {name: "'" + value.replace("'", "'\\''") + "'" for name, value in self.env.items()}
        lines = [f"export {name}={value}\n" for name, value in quoted.items() if name not in SHELLS_OWN]
        last = [f"{name}={quoted[name]}" for name in SHELLS_OWN if name in quoted]
        if last:
            lines.append(f'set -- /usr/bin/env {" ".join(last)} "$@"\n')
        handle = os.memfd_create("variables")
        with open(handle, "wb", closefd=False) as file:
            file.write(os.fsencode("".join(lines)))
        os.lseek(handle, 0, os.SEEK_SET)
        self.words += ["--perms", "0444"]
        self._hand_in("--ro-bind-data", handle, VARIABLES)
        return ["/bin/sh", "-c", '. "$0" && exec "$@"', VARIABLES, *words]

    def _enter(self, words: list[str]) -> list[str]:
        """Go to the working folder. Inside: a link that the user put into a storage leads nowhere else from there."""
        wanted = self.order["working_dir"]
        if not wanted:
            self.words += ["--chdir", self._own_folder("work")]
            return words
        path = place_of(wanted, self.env.get("HOME") or "/")
        script = 'mkdir -p -- "$1" && cd -- "$1" && shift && exec "$@"'
        return ["/bin/sh", "-c", script, "sh", path, *words]

    def _show_node(self) -> None:
        for name in SHOWN:
            path = f"/{name}"
            if os.path.islink(path):
                self.words += ["--symlink", os.readlink(path), path]
            elif os.path.isdir(path):
                self.words += ["--ro-bind", path, path]
        for name in SECRET:
            self._cover(f"/{name}")
        self._open_etc()
        for path in self.view.get("hidden", ()):
            self._cover(path)
        self._cover(self._closed_part(os.getcwd()))
        self.words += ["--proc", "/proc", "--dev", "/dev"]
        if self.user is not None:  # bubblewrap asks whether it may write there as another than it is
            self.words += ["--ro-bind", "/proc/sys", "/proc/sys"]
        self.words += [*self._writable(), "--size", str(RUN_BYTES), "--tmpfs", "/run"]
        self.words += [*self._writable(), "--dir", "/run/lock"]
        self.words += ["--dir", "/var/log", "--dir", "/var/lib", "--dir", "/var/cache"]
        self.words += ["--symlink", "/run", "/var/run", "--symlink", "/tmp", "/var/tmp"]
        for name in SHOWN_BELOW:
            if os.path.isdir(f"/{name}"):
                self._make_way(f"/{name}")
                self.words += ["--ro-bind", f"/{name}", f"/{name}"]

    def _writable(self) -> list[str]:
        """Words before a place of bubblewrap's own making, which is root's, for the task to write in."""
        return ["--perms", "1777"] if self.user is not None else []

    def _make_way(self, target: str) -> None:
        """Make the folders above a place that the task is to reach: bubblewrap would close them as what is put there is closed."""
        above = os.path.dirname(target)
        if self.user is None or above in self._ways or self.places.is_inside(target):
            return
        self._ways.add(above)
        self.words += ["--dir", above]

    def _cover(self, path: str) -> None:
        """Put nothing in the place of something, where a folder that is shown has it."""
        top = path.split("/", 2)[1]
        if top not in SHOWN or os.path.islink(f"/{top}"):
            return
        self._mask(path)

    def _closed_part(self, path: str) -> str:
        """The uppermost folder on the way to one of ours that the task's user could not pass; the folder itself where there is none."""
        above = "/"
        for part in path.split("/")[1:-1] if self.user is not None else ():
            above = os.path.join(above, part)
            if not os.stat(above).st_mode & stat.S_IXOTH:
                return above
        return path

    def _mask(self, path: str, target: str = "") -> None:
        if os.path.isdir(path):
            self.words += ["--tmpfs", target or path]
        elif os.access(path, os.R_OK):
            self.words += ["--ro-bind", "/dev/null", target or path]

    def _show_devices(self) -> None:
        nodes, renumbered = device_nodes(self.order)
        for path in nodes:
            self.words += ["--dev-bind", path, path]
        self.env.update(renumbered)
        self._share_memory()

    def _share_memory(self) -> None:
        """A /dev/shm of its own."""
        size = int(self.view.get("shared_memory_mib") or 0) or int(self.order.get("memory_mib") or 0)
        self.words += [
            "--perms",
            "1777",
            *(["--size", str(size << 20)] if size else []),
            "--tmpfs",
            "/dev/shm",
        ]

    def _show_own(self) -> None:
        """What of the task's own folder it sees, at the same place as on the node."""
        for name, target in (("tmp", "/tmp"), ("work", "")):
            path = self._own_folder(name)
            if name == "tmp":
                os.chmod(path, 0o1777)  # noqa: S103  # as every /tmp; what it is in is ours alone
            self._make_way(target or path)
            self.words += ["--bind", path, target or path]
        command = os.path.abspath(self.folder.file("command"))
        self._show_file(command)
        if self.order.get("entry"):
            own = os.path.abspath(self.folder.file("entry"))
            self._make_way(own)
            self.words += ["--bind", own, own]
        if self.order.get("entry") or b"TRAINYARD_AGENT" in read_file(command):
            self._show_file(agent_file())

    def _show_file(self, path: str) -> None:
        """A file of ours to read: as a copy, where the task may not read the file itself."""
        if self.user is None:
            self.words += ["--ro-bind", path, path]
        else:
            self._make_way(path)
            self.words += ["--perms", "0444"]
            self._hand_in("--ro-bind-data", os.open(path, os.O_RDONLY | os.O_CLOEXEC), path)

    def _show_python(self, words: list[str]) -> list[str]:
        """Our own program runs inside too, before the command: by the Python that runs us, or that which it stands for."""
        if not self.order.get("entry") or _is_shown(words[0]):
            return words
        real = os.path.realpath(words[0])
        if not _is_shown(real):
            prefix = os.path.dirname(os.path.dirname(real))
            self._make_way(prefix)
            self.words += ["--ro-bind", prefix, prefix]
        return [real, *words[1:]]

    def _put_files(self) -> None:
        for path, target in self.files():
            self._make_way(target)
            self.words += ["--bind", path, target]

    def files(self) -> list[tuple[str, str]]:
        """A file of the task's own for each that is written before its command, and where that is to be."""
        wanted = sorted(self._file_names())
        if not wanted:
            return []
        folder = os.path.abspath(self.folder.file("files"))
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, 0o700)
        found = []
        for number, name in enumerate(wanted):
            target = os.path.normpath(name)
            if target.startswith(NOT_FILES):
                continue
            if any(f"{target}/".startswith(f"/{one}/") for one in SYSTEM) and not target.startswith(
                "/usr/local/"
            ):
                raise RefusalError(
                    f"a file at {target} would stand for the system's own: choose a path like /run/NAME"
                )
            self.places.make_room(target, is_file=True)
            path = f"{folder}/{number}"
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
            if self.user is not None:
                self.user.give(path)
            found.append((path, target))
        return found

    def _file_names(self) -> set[str]:
        """Where files are written before the command, as the task sees them."""
        entry = self.order.get("entry") or {}
        return {*entry.get("files", ()), *entry.get("secret_files", ())}

    def _open_etc(self) -> None:
        """Let files be put where the node's /etc has none: a folder of links to it, in its place."""
        names = self._file_names()
        if all(not name.startswith("/etc/") or os.path.isfile(name) for name in names):
            return
        taken = {name.split("/")[2] for name in names if name.startswith("/etc/")}
        self.words += ["--ro-bind", "/etc", ETC]
        for name in SECRET:
            if name.startswith("etc/"):
                self._mask(f"/{name}", f"{ETC}{name[3:]}")
        self.words += ["--tmpfs", "/etc"]
        for name in sorted(os.listdir("/etc")):
            if name in taken and os.path.isdir(f"/etc/{name}"):
                self.words += ["--dir", f"/etc/{name}"]
                for inner in sorted(os.listdir(f"/etc/{name}")):
                    if f"/etc/{name}/{inner}" not in names:
                        self.words += ["--symlink", f"{ETC}/{name}/{inner}", f"/etc/{name}/{inner}"]
            elif f"/etc/{name}" not in names and name not in NAMED:
                self.words += ["--symlink", f"{ETC}/{name}", f"/etc/{name}"]
        for name in NAMED:
            if os.path.exists(f"/etc/{name}"):
                self.words += ["--ro-bind", f"/etc/{name}", f"/etc/{name}"]

    def _mount_all(self) -> None:
        home = self.view.get("home")
        placed = self.places.all()
        if home and not any(one.target == home for one in placed):
            self._make_way(home)
            self.words += [*self._writable(), "--tmpfs", home]
        for one in placed:
            self._make_way(one.target)
            verb = "--ro-bind" if one.read_only else "--bind"
            if self.capabilities.takes_handles:
                os.set_inheritable(one.handle, True)
                self.words += [f"{verb}-fd", str(one.handle), one.target]
            else:
                self.words += [verb, one.source, one.target]

    def _name_things(self) -> None:
        """Who and where the task is, as the files of its system say."""
        files = {}
        if self.view.get("hosts"):
            known = "".join(f"{address}\t{name}\n" for name, address in self.view["hosts"].items())
            files["/etc/hosts"] = known + _text("/etc/hosts")
        user, home = self.view.get("user"), self.view.get("home")
        if self.user is not None or (user and home):
            who = self.user or TaskUser(os.getuid(), os.getgid())
            for name in ("passwd", "group"):
                known = _text(f"/etc/{name}")
                files[f"/etc/{name}"] = who.names(name, user or NOBODY, home or "/tmp", "/bin/bash", known)
        for path, text in files.items():
            if os.path.exists(path):
                self.words += ["--ro-bind", self._file(os.path.basename(path), text), path]

    def _file(self, name: str, text: str) -> str:
        path = os.path.abspath(self.folder.file(name))
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            os.write(handle, text.encode(errors="surrogateescape"))
        finally:
            os.close(handle)
        return path

    def _rebind(self, parent: str, verb: list[str], targets: list[str]) -> None:
        """Put a folder together from what it has, so that more can be put into it."""
        entries = sorted(os.scandir(parent), key=lambda one: one.name)
        if len(entries) > MOST_ENTRIES:
            raise RefusalError(f"a storage cannot be shown below {parent}: too much else is there")
        for entry in entries:
            if entry.path in targets:
                continue
            if entry.is_symlink():
                self.words += ["--symlink", os.readlink(entry.path), entry.path]
            else:
                self.words += [*verb, entry.path, entry.path]

    def _clean_environment(self) -> None:
        given = {**self.order["env"], **(self.order.get("ports") or {})}
        self.env = {
            name: value
            for name, value in self.env.items()
            if name in given or name in OWN or KEPT.match(name)
        }
        user, home = self.view.get("user"), self.view.get("home")
        self.env.setdefault("PATH", PATHS)
        for name, value in (
            ("HOME", home or "/tmp"),
            ("USER", user),
            ("LOGNAME", user),
            ("SHELL", "/bin/sh"),
        ):
            if value and name not in given:
                self.env[name] = value


def place_of(wanted: str, home: str) -> str:
    """The working folder that a user named, as the task sees it."""
    if wanted == "~" or wanted.startswith("~/"):
        wanted = wanted[2:]
    return os.path.join(home, wanted)


def agent_file() -> str:
    """The file that we run from, for programs of ours inside of a view."""
    path = os.path.abspath(__file__)
    while path != "/" and not os.path.isfile(path):  # inside of an archive
        path = os.path.dirname(path)
    return path


def _is_shown(path: str) -> bool:
    """Whether a closed view has it."""
    return path.split("/", 2)[1] in SHOWN


def _existing(path: str) -> str:
    """The lowest folder on the way to a path that is there."""
    while not os.path.isdir(path):
        path = os.path.dirname(path)
    return path


def _text(path: str) -> str:
    try:
        return read_file(path).decode(errors="surrogateescape")
    except OSError:
        return ""
