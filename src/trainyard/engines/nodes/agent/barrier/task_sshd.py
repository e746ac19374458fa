"""The ssh of one task: an sshd of its own on the job's port, for the job's key and the task's user and nobody else, and an
`ssh` first in PATH that knows all tasks by name.

All tasks listen on one port, as far as they can. Where one cannot (two share an address, or somebody else has the port), ssh
goes through ssh_ports.py for all of them, which knows the port by the task: whatever port `ssh -p`, or horovodrun, was told.

Everything is below the task's folder. NB: ssh and sshd look for ~ in the table of accounts and not in HOME, so a file in a
private home would not be found: whoever starts `ssh` gets ours, with the file given by -F.
"""

from __future__ import annotations

import os
import pwd
import re
import socket
import subprocess
import sys
import time
from importlib import import_module
from typing import TYPE_CHECKING, Any

from trainyard.spec.exit_reasons import ExitReason

from .barrier import EntryError, ssh_marks
from .ssh_ports import choices, find

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..tasks.entry import Entry

PLACES = ("/usr/sbin", "/usr/local/sbin", "/usr/bin", "/usr/local/bin", "/sbin")
SFTP_PLACES = ("/usr/lib/openssh", "/usr/libexec/openssh", "/usr/lib/ssh", "/usr/libexec", "/usr/lib64/misc")
START_SECONDS = 20.0
NOT_BOUND = "Cannot bind any address"  # of sshd, when somebody has its port
TOLD = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "NCCL_", "DLWS_", "DLTS_")
PENALTIES_SINCE = (9, 8)  # of OpenSSH: whoever connects and says nothing is kept out for a while
OURS = "# Written by the platform for this job.\n"
# A session may come before this task has met the others, whose one has begun: it waits for the variables.
SESSION = """#!/bin/sh
folder={folder}
tries=0
while [ ! -f "$folder/env.sh" ] && [ $tries -lt 600 ]; do
    tries=$((tries + 1))
    sleep 0.1
done
. "$folder/env.sh"
cd {work} 2>/dev/null || cd
if [ -n "$SSH_ORIGINAL_COMMAND" ]; then
    exec {shell} -c "$SSH_ORIGINAL_COMMAND"
fi
exec {shell} -l
"""


def prepare(entry: Entry) -> None:
    """Write keys and configurations, and put our `ssh` first in PATH."""
    folder = f"{entry.folder}/ssh"
    os.makedirs(f"{folder}/bin", mode=0o700, exist_ok=True)
    os.chmod(folder, 0o700)
    given = entry.entry
    _write(f"{folder}/key", given["ssh_key"])
    _write(f"{folder}/key.pub", given["ssh_public_key"] + "\n")
    _write(f"{folder}/authorized_keys", given["ssh_public_key"] + "\n")
    _write(f"{folder}/host_key", given["host_key"])
    _write(f"{folder}/known_hosts", f"* {given['host_public_key']}\n")
    _write(f"{folder}/reach.py", _source_of("ssh_ports"))
    write_client(entry)
    session = SESSION.format(folder=_word(folder), work=_word(os.getcwd()), shell=_word(entry.shell))
    _write(f"{folder}/session.sh", session, 0o700)
    path = entry.env.get("PATH", "/usr/local/bin:/usr/bin:/bin")
    for name, option in (("ssh", "-F"), ("scp", "-F"), ("sftp", "-F")):
        real = find_program(name, path.split(":"))
        if real:
            line = f'#!/bin/sh\nexec {_word(real)} {option} {_word(folder + "/config")} "$@"\n'
            _write(f"{folder}/bin/{name}", line, 0o700)
    entry.env["PATH"] = f"{folder}/bin:{path}"


def write_client(entry: Entry) -> None:
    """Write what our `ssh` goes by, as far as the others' ports are known."""
    folder = f"{entry.folder}/ssh"
    is_mixed = len({peer["ssh_port"] for peer in entry.peers.values() if peer["ssh_port"]}) > 1
    # Who stands by is not told where the others are.
    looks = is_mixed or entry.entry["stands_by"]
    if looks:
        _write_marks(entry, folder)
    config = client_config(entry, folder, looks=looks)
    _write(f"{folder}/config", f"{config}Host *\n    Include ~/.ssh/config\n")
    if entry.env.get("TRAINYARD_VIEW"):  # a home of its own
        write_home(entry, client_config(entry, folder, looks=is_mixed))


def client_config(entry: Entry, folder: str, *, looks: bool) -> str:
    """Every task by all its names; where two share an address, that is the first one's. Other hosts are none of our business."""
    # "none", as homes are shared: the file there may be of another task, which looks with files of its own.
    direct = "    ProxyCommand none\n"
    blocks: list[str] = [OURS]
    known: list[str] = []
    peers = [peer for peer in entry.peers.values() if peer["ssh_port"]]
    for peer in peers:
        own = entry.entry["ssh_address"] if peer["task"] == entry.name else ""
        address, lines = own or peer["address"], direct
        if looks:
            lines = f"    ProxyCommand {_reaching(folder, address, peer)}\n    ProxyUseFdpass yes\n"
        names = [name for name in peer["names"] if name not in known]
        known += names
        if names:
            blocks.append(_host(names, address, peer, lines))
        if peer["address"] not in known:
            known.append(peer["address"])
            # By the port alone where several tasks are there.
            is_shared = sum(other["address"] == peer["address"] for other in peers) > 1
            blocks.append(_host([peer["address"]], address, peer, direct if is_shared else lines))
    blocks.append(
        f"Host {' '.join(known)}\n    User {_user()}\n    IdentityFile {_path(folder + '/key')}\n    IdentitiesOnly yes\n"
        f"    UserKnownHostsFile {_path(folder + '/known_hosts')}\n    GlobalKnownHostsFile /dev/null\n"
        "    StrictHostKeyChecking yes\n    PasswordAuthentication no\n    LogLevel ERROR\n"
        "    ServerAliveInterval 60\n    ConnectionAttempts 3\n"
    )
    return "".join(blocks)


def _host(names: list[str], address: str, peer: dict[str, Any], more: str) -> str:
    return f"Host {' '.join(names)}\n    HostName {address}\n    Port {peer['ssh_port']}\n{more}"


def _reaching(folder: str, address: str, peer: dict[str, Any]) -> str:
    """A line for ssh's shell that connects to one task, wherever among its ports that is."""
    words = [sys.executable, "-IS", f"{folder}/reach.py", f"{folder}/marks", peer["task"], address]
    return " ".join(map(_word, words)).replace("%", "%%")


def _write_marks(entry: Entry, folder: str) -> None:
    """Write at which ports each task may be, and what it says there."""
    lines = []
    for peer in entry.peers.values():
        if peer["ssh_port"]:
            ports = dict.fromkeys([peer["ssh_port"], *choices(peer["wanted_port"])])
            marks = ssh_marks(entry.entry, peer["task"], ports)
            lines += [f"{peer['task']} {port} {mark}\n" for port, mark in marks.items()]
    _write(f"{folder}/marks.new", "".join(lines))
    os.rename(f"{folder}/marks.new", f"{folder}/marks")  # sessions of others may be reading it


def _source_of(name: str) -> str:
    """A module of ours as text: it is run by programs that know nothing of our archive."""
    module = import_module(f".{name}", __package__)
    loader: Any = module.__loader__
    return str(loader.get_source(module.__name__))


def write_home(entry: Entry, config: str) -> None:
    """The same at home, where programs look that know no PATH. What the user has there is theirs, and stays."""
    folder = os.path.join(entry.env.get("HOME", ""), ".ssh")
    told = "".join(
        f"{name}={value}\n"
        for name, value in sorted(entry.env.items())
        if name.startswith(TOLD) and "\n" not in value
    )
    for name, text in (("config", config), ("environment", OURS + told)):
        path = f"{folder}/{name}"
        try:
            os.makedirs(folder, mode=0o700, exist_ok=True)
            with open(path, encoding="utf-8", errors="replace") as file:
                is_ours = file.readline() == OURS
        except FileNotFoundError:
            is_ours = True
        except OSError:
            return
        if is_ours:
            _write(path, text)


def server_config(entry: Entry, folder: str, port: int) -> str:
    """Only the job's key, only the task's user."""
    given = entry.entry
    lines = [
        f"Port {port}",
        f"ListenAddress {given['ssh_address'] or '0.0.0.0'}",  # noqa: S104  # the other nodes come from anywhere
        f"HostKey {_path(folder + '/host_key')}",
        f"AuthorizedKeysFile {_path(folder + '/authorized_keys')}",
        f"AllowUsers {_user()}",
        f"ForceCommand /bin/sh {_word(folder + '/session.sh')}",
        f"VersionAddendum {ssh_marks(given, entry.name, [port])[port]}",
        f"UsePAM {'yes' if _is_locked() else 'no'}",
        *("PidFile none", "StrictModes no", "PermitRootLogin yes", "PubkeyAuthentication yes"),
        *("PasswordAuthentication no", "KbdInteractiveAuthentication no", "UseDNS no", "PrintMotd no"),
        *("PrintLastLog no", "MaxStartups 1000", "MaxSessions 1000", "LoginGraceTime 60"),
        *("X11Forwarding no", "PermitUserEnvironment no", "LogLevel FATAL", "ClientAliveInterval 60"),
    ]
    files = find_program("sftp-server", list(SFTP_PLACES))
    if files:
        lines.append(f"Subsystem sftp {files}")
    if _version() >= PENALTIES_SINCE:
        lines.append("PerSourcePenalties no")
    return "\n".join(lines) + "\n"


def start(entry: Entry) -> None:
    """Start it beside the command. Returns when it answers; its port is known then."""
    program = _program(entry)
    for port in _free_ports(entry):
        if _starts(entry, program, port):
            entry.take_ssh_port(port)
            return
    raise _no_port(entry)


def _starts(entry: Entry, program: str, port: int) -> bool:
    """Whether it answers there; False where somebody else was quicker."""
    folder = f"{entry.folder}/ssh"
    done = subprocess.run(
        [program, "-f", _write_config(entry, port), "-E", f"{folder}/log"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    if done.returncode:
        raise EntryError(
            ExitReason.NO_SSH, f"sshd does not start: {done.stdout.decode(errors='replace').strip()}"
        )
    deadline = time.monotonic() + START_SECONDS
    address = entry.entry["ssh_address"] or "127.0.0.1"
    while True:
        found = find({"": (address, ssh_marks(entry.entry, entry.name, [port]))}, 2.0)
        for connection in found.values():
            connection.close()
            return True
        with open(f"{folder}/log", encoding="utf-8", errors="replace") as file:
            said = file.read().strip().rpartition("\n")[2]
        if NOT_BOUND in said:
            os.truncate(f"{folder}/log", 0)
            return False
        if time.monotonic() > deadline:
            raise EntryError(ExitReason.NO_SSH, f"the sshd of this task does not answer: {said or 'no word'}")
        time.sleep(0.01)


def choose(entry: Entry) -> None:
    """Say where it will be, for one that becomes it later."""
    for port in _free_ports(entry):
        entry.take_ssh_port(port)
        return
    raise _no_port(entry)


def become(entry: Entry) -> None:
    """Be it: a task that stands by has nothing else to do."""
    program = _program(entry)
    for port in _free_ports(entry):
        entry.let_go()
        words = [program, "-D", "-e", "-f", _write_config(entry, port)]
        os.execve(program, words, entry.env)  # noqa: S606  # no shell
    raise _no_port(entry)


def _program(entry: Entry) -> str:
    """The path of sshd, where it can run now."""
    program = find_program("sshd", [*PLACES, *entry.env.get("PATH", "").split(":")])
    if not program:
        raise EntryError(
            ExitReason.NO_SSH,
            "there is no sshd here, by which the tasks of this job reach each other; install openssh-server",
        )
    if os.getuid() == 0:
        try:
            os.makedirs("/run/sshd", mode=0o755, exist_ok=True)
        except OSError as error:
            raise EntryError(
                ExitReason.NO_SSH, f"sshd needs the folder /run/sshd: {error.strerror}"
            ) from error
    return program


def _write_config(entry: Entry, port: int) -> str:
    """Write what sshd goes by at a port; the file's path."""
    folder = f"{entry.folder}/ssh"
    _write(f"{folder}/sshd_config", server_config(entry, folder, port))
    return f"{folder}/sshd_config"


def _free_ports(entry: Entry) -> Iterator[int]:
    address = entry.entry["ssh_address"] or "0.0.0.0"  # noqa: S104  # as sshd does
    for port in choices(entry.entry["ssh_port"]):
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((address, port))
            except OSError:
                continue
        yield port


def _no_port(entry: Entry) -> EntryError:
    tried = ", ".join(map(str, choices(entry.entry["ssh_port"])))
    return EntryError(ExitReason.NO_PORT, f"all ports for ssh are taken: {tried}")


def _user() -> str:
    return pwd.getpwuid(os.getuid()).pw_name


def find_program(name: str, folders: list[str]) -> str:
    """The path of a program, or nothing."""
    for folder in folders:
        path = f"{folder}/{name}"
        if folder and os.access(path, os.X_OK) and not os.path.isdir(path):
            return path
    return ""


def _version() -> tuple[int, int]:
    try:
        done = subprocess.run(["ssh", "-V"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    except OSError:
        return (0, 0)
    found = re.search(rb"OpenSSH_(\d+)\.(\d+)", done.stdout)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _is_locked() -> bool:
    """Without PAM, sshd refuses a locked account; Debian's installer may lock root's."""
    if os.getuid() != 0:
        return False
    try:
        with open("/etc/shadow", encoding="utf-8", errors="replace") as file:
            return any(line.startswith("root:!") for line in file)
    except OSError:
        return False


def _word(text: str) -> str:
    return "'" + text.replace("'", "'\"'\"'") + "'"


def _path(text: str) -> str:
    """A path in a configuration of ssh: blanks need quotes, and % is a sign of its own."""
    return '"' + text.replace("%", "%%") + '"'


def _write(path: str, text: str, mode: int = 0o600) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    with os.fdopen(handle, "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(text)
