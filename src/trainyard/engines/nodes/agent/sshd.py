"""The ssh of one task: an sshd of its own on the job's port, for the job's key and the task's user and nobody else, and an
`ssh` first in PATH that knows all tasks by name.

Everything is below the task's folder. NB: ssh and sshd look for ~ in the table of accounts and not in HOME, so a file in a
private home would not be found: whoever starts `ssh` gets ours, with the file given by -F.
"""

from __future__ import annotations

import os
import pwd
import re
import socket
import subprocess
import time
from typing import TYPE_CHECKING

from .gate import NO_PORT, NO_SSH, EntryError, banner_of

if TYPE_CHECKING:
    from .entry import Entry

PLACES = ("/usr/sbin", "/usr/local/sbin", "/usr/bin", "/usr/local/bin", "/sbin")
SFTP_PLACES = ("/usr/lib/openssh", "/usr/libexec/openssh", "/usr/lib/ssh", "/usr/libexec", "/usr/lib64/misc")
START_SECONDS = 20.0
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
    given, user = entry.entry, pwd.getpwuid(os.getuid()).pw_name
    _write(f"{folder}/key", given["ssh_key"])
    _write(f"{folder}/key.pub", given["ssh_public_key"] + "\n")
    _write(f"{folder}/authorized_keys", given["ssh_public_key"] + "\n")
    _write(f"{folder}/host_key", given["host_key"])
    _write(f"{folder}/known_hosts", f"* {given['host_public_key']}\n")
    config = client_config(entry, user, folder)
    _write(f"{folder}/config", f"{config}Host *\n    Include ~/.ssh/config\n")
    if entry.env.get("TRAINYARD_VIEW"):  # a home of its own
        write_home(entry, config)
    _write(f"{folder}/sshd_config", server_config(entry, user, folder))
    session = SESSION.format(folder=_word(folder), work=_word(os.getcwd()), shell=_word(entry.shell))
    _write(f"{folder}/session.sh", session, 0o700)
    path = entry.env.get("PATH", "/usr/local/bin:/usr/bin:/bin")
    for name, option in (("ssh", "-F"), ("scp", "-F"), ("sftp", "-F")):
        real = find(name, path.split(":"))
        if real:
            line = f'#!/bin/sh\nexec {_word(real)} {option} {_word(folder + "/config")} "$@"\n'
            _write(f"{folder}/bin/{name}", line, 0o700)
    entry.env["PATH"] = f"{folder}/bin:{path}"


def client_config(entry: Entry, user: str, folder: str) -> str:
    """Every task by all its names; where two share an address, that is the first one's. Other hosts are none of our business."""
    blocks: list[str] = [OURS]
    known: list[str] = []
    for peer in entry.peers.values():
        names = [name for name in (*peer["names"], peer["address"]) if name not in known]
        known += names
        if names and peer["ssh_port"]:
            own = entry.entry["ssh_address"] if peer["task"] == entry.name else ""
            address = own or peer["address"]
            blocks.append(f"Host {' '.join(names)}\n    HostName {address}\n    Port {peer['ssh_port']}\n")
    blocks.append(
        f"Host {' '.join(known)}\n    User {user}\n    IdentityFile {_path(folder + '/key')}\n    IdentitiesOnly yes\n"
        f"    UserKnownHostsFile {_path(folder + '/known_hosts')}\n    GlobalKnownHostsFile /dev/null\n"
        "    StrictHostKeyChecking yes\n    PasswordAuthentication no\n    LogLevel ERROR\n"
        "    ServerAliveInterval 60\n    ConnectionAttempts 3\n"
    )
    return "".join(blocks)


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


def server_config(entry: Entry, user: str, folder: str) -> str:
    """Only the job's key, only the task's user."""
    given = entry.entry
    lines = [
        f"Port {given['ssh_port']}",
        f"ListenAddress {given['ssh_address'] or '0.0.0.0'}",  # noqa: S104  # the other nodes come from anywhere
        f"HostKey {_path(folder + '/host_key')}",
        f"AuthorizedKeysFile {_path(folder + '/authorized_keys')}",
        f"AllowUsers {user}",
        f"ForceCommand /bin/sh {_word(folder + '/session.sh')}",
        f"VersionAddendum {banner_of(given['token'])}",
        f"UsePAM {'yes' if _is_locked() else 'no'}",
        *("PidFile none", "StrictModes no", "PermitRootLogin yes", "PubkeyAuthentication yes"),
        *("PasswordAuthentication no", "KbdInteractiveAuthentication no", "UseDNS no", "PrintMotd no"),
        *("PrintLastLog no", "MaxStartups 1000", "MaxSessions 1000", "LoginGraceTime 60"),
        *("X11Forwarding no", "PermitUserEnvironment no", "LogLevel FATAL", "ClientAliveInterval 60"),
    ]
    files = find("sftp-server", list(SFTP_PLACES))
    if files:
        lines.append(f"Subsystem sftp {files}")
    if _version() >= PENALTIES_SINCE:
        lines.append("PerSourcePenalties no")
    return "\n".join(lines) + "\n"


def start(entry: Entry) -> None:
    """Start it beside the command. Returns when it answers."""
    program = _program(entry)
    folder = f"{entry.folder}/ssh"
    done = subprocess.run(
        [program, "-f", f"{folder}/sshd_config", "-E", f"{folder}/log"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    if done.returncode:
        raise EntryError(NO_SSH, f"sshd does not start: {done.stdout.decode(errors='replace').strip()}")
    deadline = time.monotonic() + START_SECONDS
    place = (entry.entry["ssh_address"] or "127.0.0.1", entry.entry["ssh_port"])
    while not _answers(place, banner_of(entry.entry["token"])):
        if time.monotonic() > deadline:
            with open(f"{folder}/log", encoding="utf-8", errors="replace") as file:
                said = file.read().strip().rpartition("\n")[2]
            raise EntryError(NO_SSH, f"the sshd of this task does not answer: {said or 'no word'}")
        time.sleep(0.01)


def become(entry: Entry) -> None:
    """Be it: a task that stands by has nothing else to do."""
    program = _program(entry)
    folder = f"{entry.folder}/ssh"
    entry.let_go()
    os.execve(program, [program, "-D", "-e", "-f", f"{folder}/sshd_config"], entry.env)  # noqa: S606  # no shell


def _program(entry: Entry) -> str:
    """The path of sshd, where it can run now."""
    program = find("sshd", [*PLACES, *entry.env.get("PATH", "").split(":")])
    if not program:
        raise EntryError(
            NO_SSH,
            "there is no sshd here, by which the tasks of this job reach each other; install openssh-server",
        )
    if os.getuid() == 0:
        try:
            os.makedirs("/run/sshd", mode=0o755, exist_ok=True)
        except OSError as error:
            raise EntryError(NO_SSH, f"sshd needs the folder /run/sshd: {error.strerror}") from error
    place = (entry.entry["ssh_address"] or "0.0.0.0", entry.entry["ssh_port"])  # noqa: S104  # as sshd does
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(place)
        except OSError as error:
            raise EntryError(NO_PORT, f"the port {place[1]} for ssh is taken: {error.strerror}") from error
    return program


def find(name: str, folders: list[str]) -> str:
    """The path of a program, or nothing."""
    for folder in folders:
        path = f"{folder}/{name}"
        if folder and os.access(path, os.X_OK) and not os.path.isdir(path):
            return path
    return ""


def _answers(place: tuple[str, int], expected: str) -> bool:
    try:
        with socket.create_connection(place, timeout=2.0) as connection:
            connection.settimeout(2.0)
            return expected.encode() in connection.recv(256)
    except OSError:
        return False


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
