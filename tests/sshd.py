"""Debian's real sshd as test hosts: private configuration, own keys, own HOME, loopback only.

A host is a listener on a loopback address. Everything that runs on it carries `TRAINYARD_TEST_HOST=<id>` in its
environment, so that a test can end a host with all that lives there. Works as root and as an ordinary user.

    host = start_sshd(tmp_path)                  one host
    hosts = start_sshds(32, tmp_path)            many at once, each on an address of its own, 127.0.0.x
    host.cut()                                   every connection dies, the listener stays
    host.stop(); host.restart()                  the listener goes and comes back on the same port with the same key
    host.kill_all()                              ends every process on the host; the listener stays
    host.close()                                 all of it, folders included (what the fixtures do)
"""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519

from trainyard.lib.process_tree import find_marked, first_thread_children, name_of, start_time

PROGRAM = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:/sbin") or "/usr/sbin/sshd"
MARK = "TRAINYARD_TEST_HOST"
TEST_MARK = "TRAINYARD_TEST"
START_SECONDS = 20.0  # a loaded machine with two cores may start 32 of them slowly
STOP_SECONDS = 5.0


def user_name() -> str:
    """Who we are to sshd; not $USER, which a test may change."""
    return pwd.getpwuid(os.getuid()).pw_name


def write_key(path: Path, *, passphrase: str = "") -> str:
    """Make an ed25519 key pair at `path` and `path`.pub; return the public line."""
    key = ed25519.Ed25519PrivateKey.generate()
    lock = serialization.NoEncryption()
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, lock)
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(private)
    path.chmod(0o600)
    path.with_name(path.name + ".pub").write_bytes(public + b"\n")
    if passphrase:
        change = ["ssh-keygen", "-q", "-p", "-P", "", "-N", passphrase, "-f", str(path)]
        subprocess.run(change, check=True, stdout=subprocess.DEVNULL)
    return public.decode()


@dataclass
class Sshd:
    """One test host."""

    id: str
    folder: Path
    home: Path
    tmux_tmpdir: Path
    address: str
    port: int
    user: str
    client_key: Path
    known_hosts: Path
    host_public_key: str
    settings: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    shell: str = ""
    process: subprocess.Popen[bytes] | None = None

    @property
    def target(self) -> str:
        """user@address, as ssh takes it."""
        return f"{self.user}@{self.address}"

    @property
    def known_hosts_line(self) -> str:
        """The entry that makes this host known."""
        return f"[{self.address}]:{self.port} {self.host_public_key}\n"

    @property
    def log(self) -> str:
        """What sshd said; for messages of failing tests."""
        return (self.folder / "log").read_text(errors="replace") if (self.folder / "log").exists() else ""

    def ssh_argv(self, *words: str) -> list[str]:
        """The real ssh client's command line to this host."""
        options = [
            *("-F", "none", "-p", str(self.port), "-i", str(self.client_key)),
            *("-o", f"UserKnownHostsFile={self.known_hosts}", "-o", "GlobalKnownHostsFile=none"),
            *("-o", "BatchMode=yes", "-o", "IdentitiesOnly=yes", "-o", "IdentityAgent=none"),
        ]
        return ["ssh", *options, self.target, *words]

    def connection_pids(self) -> list[int]:
        """The processes of sshd that serve connections now, not the commands they run."""
        if self.process is None or self.process.poll() is not None:
            return []
        found, waiting = [], first_thread_children(self.process.pid)
        while waiting:
            pid = waiting.pop()
            if command_name(pid).startswith("sshd"):
                found.append(pid)
                waiting += first_thread_children(pid)
        return found

    def pids(self) -> list[int]:
        """Every process that runs on this host (not sshd's own)."""
        return marked(f"{MARK}={self.id}")

    def cut(self) -> None:
        """Kill all established connections; the listener keeps listening, commands live on."""
        end_pids(self.connection_pids, signal.SIGKILL)

    def freeze(self) -> None:
        """Make established connections silent without closing them, as a pulled cable does."""
        for pid in self.connection_pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Undo `freeze`."""
        for pid in self.connection_pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def kill_all(self) -> None:
        """End every process on this host at once, daemons and tmux servers included."""
        end_pids(self.pids, signal.SIGKILL)

    def stop(self) -> None:
        """End the listener and its connections; commands on the host live on. Stopping twice is no error."""
        if self.process is None:
            return
        connections = self.connection_pids()
        self.process.terminate()
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process = None
        end_pids(lambda: [pid for pid in connections if command_name(pid).startswith("sshd")], signal.SIGKILL)

    def restart(self) -> None:
        """Stop where needed, then listen again on the same address, port and key."""
        self.stop()
        self.launch()
        self.wait_ready()

    def close(self) -> None:
        """Stop, end everything on the host, remove its socket folder."""
        self.stop()
        self.kill_all()
        shutil.rmtree(self.tmux_tmpdir, ignore_errors=True)

    def launch(self) -> None:
        """Start the listener without waiting."""
        (self.folder / "log").unlink(missing_ok=True)
        self._write_config()
        self.process = subprocess.Popen(
            [PROGRAM, "-D", "-f", str(self.folder / "config"), "-E", str(self.folder / "log")],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def wait_ready(self) -> None:
        """Wait until it listens. RuntimeError with sshd's own words where it does not."""
        deadline = time.monotonic() + START_SECONDS
        while "Server listening on" not in self.log:
            if self.process is None or self.process.poll() is not None or time.monotonic() > deadline:
                words = self.log
                self.stop()
                raise RuntimeError(f"sshd did not start on {self.address}:{self.port}: {words}")
            time.sleep(0.002)

    def _write_config(self) -> None:
        environment = {
            "TMUX_TMPDIR": str(self.tmux_tmpdir),
            "TMPDIR": str(self.folder / "tmp"),
            MARK: self.id,
            **({TEST_MARK: os.environ[TEST_MARK]} if TEST_MARK in os.environ else {}),
            **self.env,
        }
        # HOME is set twice: here in a sourced file, where any path can be written, and by SetEnv where sshd's
        # configuration can express it, because Debian's bash reads ~/.bashrc before it reads our command.
        exports = {"HOME": str(self.home), **environment}
        lines = [f"export {name}={shlex.quote(value)}\n" for name, value in exports.items()]
        (self.folder / "env").write_text("".join(lines))
        early_home = self.folder if any(c in str(self.home) for c in '\n"\\') else self.home
        if self.shell:
            run = f'exec {self.shell} -c "$SSH_ORIGINAL_COMMAND"'
        else:
            run = 'eval "$SSH_ORIGINAL_COMMAND"'  # no process more than sshd without ForceCommand
        login = self.shell or "${SHELL:-sh}"
        command = (
            f'. {self.folder}/env; cd; if [ "$SSH_ORIGINAL_COMMAND" ]; then {run}; else exec {login} -l; fi'
        )
        settings = [
            *self.settings,  # first value wins
            f"ListenAddress {self.address}",
            f"Port {self.port}",
            f"HostKey {self.folder}/host_key",
            # The second is what programs on the host itself may add to, as on a real one.
            f"AuthorizedKeysFile {self.folder}/authorized_keys {early_home}/.ssh/authorized_keys",
            "PidFile none",
            "StrictModes no",
            f"UsePAM {'yes' if _is_locked_root() else 'no'}",
            "PermitRootLogin yes",
            "PasswordAuthentication no",
            "KbdInteractiveAuthentication no",
            "MaxSessions 200",
            "MaxStartups 200",
            "LoginGraceTime 30",
            "LogLevel INFO",
            "UseDNS no",
            "PrintMotd no",
            "PrintLastLog no",
            "AllowTcpForwarding yes",
            f"Subsystem sftp {_sftp_server()}",
            f'SetEnv "HOME={early_home}"',
            f"ForceCommand {command}",
        ]
        (self.folder / "config").write_text("\n".join(settings) + "\n")


def start_sshd(
    folder: Path,
    *,
    address: str = "127.0.0.1",
    port: int | None = None,
    home: Path | None = None,
    settings: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    shell: str = "",
    client_key: Path | None = None,
    known_hosts: Path | None = None,
) -> Sshd:
    """Start one host and wait until it listens.

    `settings` are sshd_config lines that win over ours; `env` is set for every command; `shell` names another login
    shell; `client_key` and `known_hosts` may be shared between hosts (a line is appended).
    """
    host = prepare_sshd(
        folder,
        address=address,
        port=port,
        home=home,
        settings=settings,
        env=env,
        shell=shell,
        client_key=client_key,
        known_hosts=known_hosts,
    )
    host.launch()
    _wait_or_move(host, movable=port is None)
    return host


def start_sshds(
    count: int,
    folder: Path,
    *,
    first_address: int = 1,
    same_port: int | None = None,
    settings: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    shell: str = "",
) -> list[Sshd]:
    """Start `count` hosts in parallel on 127.0.0.`first_address` and up, with one client key and one known_hosts."""
    client_key, known_hosts = folder / "client_key", folder / "known_hosts"
    hosts: list[Sshd] = []
    try:
        for index in range(count):
            number = first_address + index
            address = f"127.0.{number // 250}.{number % 250}"
            host = prepare_sshd(
                folder,
                address=address,
                port=same_port,
                settings=settings,
                env=env,
                shell=shell,
                client_key=client_key,
                known_hosts=known_hosts,
            )
            hosts.append(host)
            host.launch()
        for host in hosts:
            _wait_or_move(host, movable=same_port is None)
    except BaseException:
        for host in hosts:
            host.close()
        raise
    return hosts


def prepare_sshd(
    folder: Path,
    *,
    address: str,
    port: int | None = None,
    home: Path | None = None,
    settings: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    shell: str = "",
    client_key: Path | None = None,
    known_hosts: Path | None = None,
) -> Sshd:
    """Keys, folders and a port for a host that is not started yet."""
    if os.getuid() == 0:
        os.makedirs("/run/sshd", mode=0o755, exist_ok=True)  # sshd's privilege separation wants it
    host_id = secrets.token_hex(6)
    own = folder / f"host-{host_id}"
    (own / "tmp").mkdir(parents=True)
    home = own / "home" if home is None else home
    home.mkdir(parents=True, exist_ok=True)
    host_public_key = write_key(own / "host_key")
    client_key = own / "client_key" if client_key is None else client_key
    if not client_key.exists():
        write_key(client_key)
    shutil.copy(client_key.with_name(client_key.name + ".pub"), own / "authorized_keys")
    host = Sshd(
        id=host_id,
        folder=own,
        home=home,
        # A unix socket's path has 107 bytes at most, and pytest's folders are long.
        tmux_tmpdir=Path(tempfile.mkdtemp(prefix="tyh-", dir="/tmp")),
        address=address,
        port=port or free_port(address),
        user=user_name(),
        client_key=client_key,
        known_hosts=own / "known_hosts" if known_hosts is None else known_hosts,
        host_public_key=host_public_key,
        settings=tuple(settings),
        env=dict(env or {}),
        shell=shell,
    )
    _make_known(host)
    return host


def free_port(address: str = "127.0.0.1") -> int:
    """A TCP port that nobody listens on just now."""
    with socket.socket() as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])


def marked(mark: str, *, among: Sequence[int] | None = None) -> list[int]:
    """Processes whose environment holds `NAME=value`, without ourselves; zombies have none."""
    return [pid for pid in find_marked(mark.encode(), among) if pid != os.getpid()]


def end_pids(find: Callable[[], Sequence[int]], number: int, *, seconds: float = STOP_SECONDS) -> None:
    """Signal what `find` finds until it finds nothing more."""
    deadline = time.monotonic() + seconds
    while pids := find():
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        if time.monotonic() > deadline:
            raise RuntimeError(f"processes {pids} do not end")
        time.sleep(0.002)


def command_name(pid: int) -> str:
    """The program's short name; empty for a process that has gone or is a zombie."""
    return name_of(pid) if start_time(pid) else ""


def live_tmux_sockets(folder: Path) -> Iterator[Path]:
    """Sockets under `folder` where a tmux server still answers; a file left by a killed server does not count."""
    for path in folder.glob("tmux-*/*"):
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(str(path))
            except OSError:
                continue
            yield path


def can_give_terminals() -> bool:
    """Whether sshd run by us can hand out terminals: one of an ordinary user needs /dev/pts mounted with gid=tty."""
    if os.getuid() == 0:
        return True
    master, slave = os.openpty()
    try:
        return os.fstat(slave).st_gid == grp.getgrnam("tty").gr_gid
    except KeyError:
        return True
    finally:
        os.close(master)
        os.close(slave)


def _wait_or_move(host: Sshd, *, movable: bool) -> None:
    # Between finding a free port and listening on it somebody else may have taken it.
    for _ in range(5):
        try:
            host.wait_ready()
        except RuntimeError as error:
            if not movable or "Address already in use" not in str(error):
                raise
            host.port = free_port(host.address)
            _make_known(host)
            host.launch()
        else:
            return
    host.wait_ready()


def _make_known(host: Sshd) -> None:
    with host.known_hosts.open("a") as file:
        file.write(host.known_hosts_line)


def _is_locked_root() -> bool:
    """Without PAM sshd refuses a locked account, and Debian's installer may lock root's."""
    if os.getuid() != 0:
        return False
    try:
        lines = Path("/etc/shadow").read_text().splitlines()
    except OSError:
        return False
    return any(line.startswith("root:!") for line in lines)


def _sftp_server() -> str:
    for path in ("/usr/lib/openssh/sftp-server", "/usr/libexec/openssh/sftp-server"):
        if os.path.exists(path):
            return path
    return "internal-sftp"
