"""Boots machines. It is a separate program (`python -I -S launcher.py`), because forking needs one without threads.

Reads one JSON request; writes a line per machine that could not be booted, else nothing; its output ends when the
first process of each machine runs `init.sh`. That process belongs to nobody and outlives the emulator. Imports nothing
of ours. What each kind of isolation is: `isolation.py`.

A machine is a folder: `root` becomes its `/`, with `usr`, `opt`, `etc` and `var/lib` as layers over what this computer
has, so that whatever is written in the machine stays in its folder (`layers`), and devices, processes, name and
temporary files of its own. `shared` is seen as /run/trainyard inside and stays writable from outside.
"""

from __future__ import annotations

import base64
import ctypes
import fcntl
import glob
import grp
import json
import os
import pwd
import shutil
import signal
import socket
import sys
from typing import Any

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID = 0x10000000, 0x20000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32
MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18
MNT_DETACH = 2
PR_SET_CHILD_SUBREAPER = 36
REPORT = 10  # the descriptor on which failures are told; out of the way of what is opened meanwhile
DEVICES = ("null", "zero", "full", "random", "urandom", "tty", "fuse", "nvidia*", "davinci*")
FOLDERS = (
    "root",
    "home",
    "data",
    "mnt",
    "media",
    "srv",
    "boot",
    "usr",
    "opt",
    "etc",
    "run",
    "dev",
    "proc",
    "sys",
)
FOLDERS_OF_VAR = ("log", "lib", "cache", "spool", "mail")
libc = ctypes.CDLL(None, use_errno=True)


def check(result: int, what: str) -> None:
    """Turn C's way of failing into ours."""
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    """The system call."""
    words = [os.fsencode(word) or None for word in (source, target, kind)]
    check(libc.mount(*words, ctypes.c_ulong(flags), os.fsencode(data) or None), f"mount {target}")


def make_folder(path: str, mode: int = 0o755) -> None:
    """A folder that has this mode whatever the umask; one that is there keeps its own."""
    if not os.path.isdir(path):  # noqa: PTH112
        os.makedirs(path, exist_ok=True)  # noqa: PTH103
        os.chmod(path, mode)  # noqa: PTH101


def become_other_user_space() -> None:
    """As an ordinary user: a space in which we keep our number and have the rights that mounting asks for."""
    user, group = os.geteuid(), os.getegid()
    check(libc.unshare(CLONE_NEWUSER), "unshare")
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{user} {user} 1"),
        ("gid_map", f"{group} {group} 1"),
    ):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:  # noqa: PTH123
            file.write(text)


def start(machine: dict[str, Any], request: dict[str, Any]) -> None:
    """Fork the machine's first process, write down who it is, and let it go. Returns never."""
    os.setsid()
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        if signal.getsignal(number) is not signal.SIG_DFL:
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.umask(0o022)
    os.chdir(machine["folder"])
    if request["isolation"] == "user":
        become_other_user_space()
    if request["isolation"] != "home":
        check(libc.unshare(CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWPID), "unshare")
    gate, opener = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(opener)
        # Nobody boots who is not written down: then the emulator would start a second one.
        if os.read(gate, 1):
            os.close(gate)
            become_machine(machine, request)
        os._exit(1)
    register(pid, machine)
    os.write(opener, b"x")
    os._exit(0)


def register(pid: int, machine: dict[str, Any]) -> None:
    """Write down the first process: number, start in clock ticks, which run of the kernel, which boot of the machine."""
    with open(f"/proc/{pid}/stat", "rb") as stat:  # noqa: PTH123
        started = int(stat.read().rpartition(b")")[2].split()[19])
    with open("init.new", "w", encoding="ascii") as file:  # noqa: PTH123
        file.write(f"{pid} {started} {machine['kernel']} {machine['boot']}\n")
    os.replace("init.new", "init")  # noqa: PTH105


def become_machine(machine: dict[str, Any], request: dict[str, Any]) -> None:
    """Turn this process into the first one of the machine. Returns only by an exception."""
    isolation = request["isolation"]
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    make_skeleton()
    root = machine["root"]
    if isolation == "home":
        check(libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "prctl")
    else:
        build_view(isolation)
        socket.sethostname(machine["hostname"])
    settle(root, machine)
    os.chdir("/")
    script = f"{root}/run/trainyard/init.sh"
    os.execve("/bin/sh", ["sh", script, root], machine["env"])  # noqa: S606  # no shell between


def make_skeleton() -> None:
    """The folders of a fresh disk."""
    for name in FOLDERS:
        make_folder(f"root/{name}", 0o700 if name == "root" else 0o755)
    for name in FOLDERS_OF_VAR:
        make_folder(f"root/var/{name}")
    for name in ("tmp", "var/tmp"):
        make_folder(f"root/{name}", 0o1777)
    for name in ("lastlog", "wtmp", "btmp"):  # sshd writes there if they are there, and complains if not
        if not os.path.exists(f"root/var/log/{name}"):  # noqa: PTH110
            with open(f"root/var/log/{name}", "wb"):  # noqa: PTH123
                pass
    for name, target in (("var/run", "/run"), ("var/lock", "/run/lock")):
        if not os.path.lexists(f"root/{name}"):
            os.symlink(target, f"root/{name}")  # noqa: PTH211


def build_view(isolation: str) -> None:
    """Mount everything below `root`, then make that the only thing this process sees."""
    mount("", "/", flags=MS_REC | MS_PRIVATE)
    mount("root", "root", flags=MS_BIND)
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        mirror(name)
    lay("usr", "/usr", isolation)
    lay("opt", "/opt", isolation)
    lay("etc", "../../template/etc", isolation)
    if isolation == "root":  # an ordinary user could not write there
        lay("var/lib", "/var/lib", isolation)
    mount("proc", "root/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    mount("/sys", "root/sys", flags=MS_BIND | MS_REC)
    make_devices(isolation)
    mount("tmpfs", "root/run", "tmpfs", MS_NOSUID | MS_NODEV, "mode=755")
    for name in ("trainyard", "lock", "sshd"):
        make_folder(f"root/run/{name}")
    mount("shared", "root/run/trainyard", flags=MS_BIND)
    mount("../../nas", "root/run/trainyard/nas", flags=MS_BIND)
    os.chdir("root")
    check(libc.pivot_root(b".", b"."), "pivot_root")
    check(libc.umount2(b".", MNT_DETACH), "umount")
    os.chdir("/")


def mirror(name: str) -> None:
    """A top folder that is a link on this computer is one in the machine; a real one is shown as it is."""
    if os.path.lexists(f"root/{name}") and os.path.islink(f"root/{name}"):  # noqa: PTH114
        return
    if os.path.islink(f"/{name}"):  # noqa: PTH114
        os.symlink(os.readlink(f"/{name}"), f"root/{name}")  # noqa: PTH115, PTH211
    elif os.path.isdir(f"/{name}"):  # noqa: PTH112
        make_folder(f"root/{name}")
        show(f"/{name}", f"root/{name}")


def show(source: str, target: str) -> None:
    """Show a folder of this computer, read-only where the kernel lets us."""
    mount(source, target, flags=MS_BIND | MS_REC)
    try:
        mount("", target, flags=MS_BIND | MS_REMOUNT | MS_RDONLY)
    except OSError:
        return  # its other flags are locked: an ordinary user cannot write there anyway


def lay(name: str, lower: str, isolation: str) -> None:
    """Put a layer that belongs to the machine over a folder of this computer."""
    if not os.path.isdir(lower):  # noqa: PTH112
        return
    layer = f"layers/{name.replace('/', '-')}"
    for part in ("upper", "work"):
        make_folder(f"{layer}/{part}")
    if name == "usr":  # in a layer's own folders the machine's root may write, whoever that is outside
        for part in ("", "/bin", "/sbin", "/lib", "/share"):
            make_folder(f"{layer}/upper/local{part}")
    options = f"lowerdir={lower},upperdir={layer}/upper,workdir={layer}/work"
    try:
        mount(
            "overlay", f"root/{name}", "overlay", 0, options + (",userxattr" if isolation == "user" else "")
        )
    except OSError:
        # The disk or the kernel has no layers: what must be writable is copied or begins empty, the rest is shown.
        if name == "usr":
            show(lower, "root/usr")
            if os.path.isdir("root/usr/local/sbin"):  # noqa: PTH112
                mount("tmpfs", "root/usr/local/sbin", "tmpfs", MS_NOSUID, "mode=755")
        elif name == "opt":
            show(lower, "root/opt")
        elif name == "etc" and not os.path.exists("root/etc/passwd"):  # noqa: PTH110
            shutil.copytree(lower, "root/etc", symlinks=True, dirs_exist_ok=True)


def make_devices(isolation: str) -> None:
    """A /dev with what programs expect, and terminals and shared memory of the machine's own."""
    mount("tmpfs", "root/dev", "tmpfs", MS_NOSUID, "mode=755,size=1m")
    for pattern in DEVICES:
        for path in glob.glob(f"/dev/{pattern}"):  # noqa: PTH207
            if not os.path.isdir(path):  # noqa: PTH112
                with open(f"root{path}", "w", encoding="ascii"):  # noqa: PTH123
                    pass
                mount(path, f"root{path}", flags=MS_BIND)
    with open("root/dev/console", "w", encoding="ascii"):  # noqa: PTH123
        pass
    mount("console", "root/dev/console", flags=MS_BIND)
    for name in ("pts", "shm"):
        make_folder(f"root/dev/{name}")
    group = "" if isolation == "user" else tty_group()
    mount(
        "devpts",
        "root/dev/pts",
        "devpts",
        MS_NOSUID | MS_NOEXEC,
        f"newinstance,ptmxmode=0666,mode=620{group}",
    )
    mount("tmpfs", "root/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777")
    links = {"ptmx": "pts/ptmx", "fd": "/proc/self/fd", "core": "/proc/kcore"}
    links |= {name: f"/proc/self/fd/{number}" for number, name in enumerate(("stdin", "stdout", "stderr"))}
    for name, target in links.items():
        os.symlink(target, f"root/dev/{name}")  # noqa: PTH211


def tty_group() -> str:
    """Terminals that sshd hands out belong to this group."""
    try:
        return f",gid={grp.getgrnam('tty').gr_gid}"
    except KeyError:
        return ""


def settle(root: str, machine: dict[str, Any]) -> None:
    """Write the machine's own files: at every boot its name and keys, at the first what UserData brings."""
    for file in machine["files"]:
        write(root, file)
    if machine["secret"]:
        set_password(f"{root}/etc/shadow", machine["secret"])
    keys = f"{root}/root/.ssh/authorized_keys"
    make_folder(os.path.dirname(keys), 0o700)  # noqa: PTH120
    held = ""
    if os.path.exists(keys):  # noqa: PTH110
        with open(keys, encoding="utf-8", errors="replace") as stream:  # noqa: PTH123
            held = stream.read()
    missing = [line for line in machine["authorized_keys"] if line.strip() not in held.splitlines()]
    text = "".join(f"{line.strip()}\n" for line in missing)
    if text:
        break_line = "\n" if held and not held.endswith("\n") else ""
        write(
            root,
            {"path": "/root/.ssh/authorized_keys", "text": break_line + text, "mode": 0o600, "append": True},
        )


def write(root: str, file: dict[str, Any]) -> None:
    """Write one file; a relative path and `..` stay inside the machine."""
    path = root + os.path.normpath("/" + file["path"])
    content = file["text"].encode() if "text" in file else base64.b64decode(file["data"])
    try:
        make_folder(os.path.dirname(path))  # noqa: PTH120
        if file.get("keep") and os.path.lexists(path):
            return
        with open(path, "ab" if file.get("append") else "wb") as stream:  # noqa: PTH123
            stream.write(content)
        os.chmod(path, file.get("mode", 0o644))  # noqa: PTH101
        if file.get("owner") and os.geteuid() == 0:
            give(path, file["owner"])
    except (OSError, KeyError) as error:
        if file.get("try"):
            return
        with open(f"{root}/var/log/cloud-init-output.log", "a", encoding="utf-8", errors="replace") as log:  # noqa: PTH123
            log.write(f"{file['path']}: {error}\n")


def set_password(path: str, secret: str) -> None:
    """Give root the password of this hash."""
    with open(path, encoding="utf-8") as stream:  # noqa: PTH123
        lines = stream.read().splitlines()
    lines = [f"root:{secret}:19000:0:99999:7:::" if line.startswith("root:") else line for line in lines]
    with open(path, "w", encoding="utf-8") as stream:  # noqa: PTH123
        stream.write("\n".join(lines) + "\n")


def give(path: str, owner: str) -> None:
    """Change the owner, as `user`, `user:group` or numbers."""
    user, _, group = owner.partition(":")
    user_id = int(user) if user.isdigit() else pwd.getpwnam(user).pw_uid if user else -1
    group_id = int(group) if group.isdigit() else grp.getgrnam(group).gr_gid if group else -1
    os.chown(path, user_id, group_id)


def main() -> None:
    """Fork one machine after the other, and wait until each has been let go."""
    request = json.load(sys.stdin)
    fcntl.fcntl(1, fcntl.F_DUPFD_CLOEXEC, REPORT)
    if "lock" in request:
        os.set_inheritable(request["lock"], False)  # it ends with our work, not with the machines
    for machine in request["machines"]:
        if os.fork() == 0:
            try:
                start(machine, request)
            except (OSError, KeyError, ValueError) as error:
                os.write(REPORT, f"{machine['name']} {error}\n".encode(errors="replace"))
            finally:
                os._exit(1)
    for _ in request["machines"]:
        os.wait()


if __name__ == "__main__":
    main()
