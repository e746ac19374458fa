"""The folder of one machine: its paths, and the files that are written before each boot.

<id>/init       who its first process is, and of which boot
     root/      its files, as it sees them from /
     layers/    its changes to folders that it shares with this computer
     shared/    what it and the emulator both see (inside: /run/trainyard)
     link       HOME isolation only: the short path by which it knows its root
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from trainyard.emulators.aliyun.api.call import MachineWish
from trainyard.emulators.aliyun.machines import template, userdata
from trainyard.emulators.aliyun.machines.isolation import Isolation
from trainyard.emulators.aliyun.machines.processes import Marks
from trainyard.lib.errors import ConflictError
from trainyard.lib.process_tree import ProcessId, boot_id, is_alive
from trainyard.lib.remove_tree import remove_tree

MARK = "TRAINYARD_EMULATED"  # in the environment of processes of a machine that has no processes of its own
# Short, since sockets lie below it, and free of signs that sshd's configuration cannot express.
LINK = "/tmp/tym-"
LOOK_SECONDS = 30.0  # between two looks of a machine whether its folder is still there
SHIMS = Path(__file__).with_name("shims")
# Programs of the machine that this computer would answer for otherwise → the shim that stands for them.
PROGRAMS = {
    "/usr/local/sbin/systemctl": "systemctl",
    "/usr/local/sbin/service": "service",
    **dict.fromkeys(
        (f"/usr/local/sbin/{name}" for name in ("reboot", "poweroff", "shutdown", "halt")), "reboot"
    ),
    "/usr/local/sbin/cloud-init": "cloud-init",
    "/usr/sbin/mount.nfs": "mount.nfs",
    "/usr/sbin/mount.nfs4": "mount.nfs",
}
# Where root of the machine is not root outside, /usr/sbin is not its own.
USER_PROGRAMS = {f"/usr/local/sbin/{name}": name for name in ("mount", "umount", "mountpoint", "mount.nfs")}
HOME_FOLDERS = ("root", "home", "data", "mnt", "media", "srv", "boot", "etc", "run", "dev", "var")
CONSOLE_BYTES = 64 * 1024  # of its end are kept in mind
HOME_PROGRAMS = ("ssh", "systemctl", "service", "cloud-init")
# Machines meet on the loopback interface and share the processors, so ranks are not bound to them.
MPI_SETTINGS = """\
oob_tcp_if_include = lo
orte_fork_agent = {root}/run/trainyard/rank.sh
orte_keep_fqdn_hostnames = 1
hwloc_base_binding_policy = none
mpi_yield_when_idle = 1
"""
PROFILE = 'if [ -n "$BASH" ] && [ -f ~/.bashrc ]; then . ~/.bashrc; fi\n'
HOSTS = "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n{address}\t{hostname}\t{hostname}\n"
HOME_SSHD = """\
Include {root}/run/trainyard/sshd.conf
HostKey {root}/etc/ssh/{key}
AuthorizedKeysFile {root}/root/.ssh/authorized_keys
PidFile none
StrictModes no
UsePAM no
PermitRootLogin yes
KbdInteractiveAuthentication no
X11Forwarding yes
PrintMotd no
PrintLastLog no
AcceptEnv LANG LC_*
Subsystem sftp {sftp}
SetEnv HOME={root}/root
ForceCommand . {root}/run/trainyard/env; cd; {run}
"""
HOME_RUN = 'if [ "$SSH_ORIGINAL_COMMAND" ]; then eval "$SSH_ORIGINAL_COMMAND"; else exec ${SHELL:-sh} -l; fi'
HOME_SSH = """\
Include {root}/root/.ssh/config
Host 127.*
    Port {port}
Host *
    UserKnownHostsFile {root}/root/.ssh/known_hosts
    IdentityFile {root}/root/.ssh/id_ed25519
    IdentityFile {root}/root/.ssh/id_ecdsa
    IdentityFile {root}/root/.ssh/id_rsa
"""


@dataclass(frozen=True, slots=True)
class Init:
    """The first process of a machine, and of which boot."""

    process: ProcessId
    boot: int


@dataclass(frozen=True, slots=True)
class MachineFolder:
    """Paths of one machine, and reading and writing what they hold."""

    path: Path
    isolation: Isolation

    @property
    def instance_id(self) -> str:
        """Whose folder it is."""
        return self.path.name

    @property
    def shared(self) -> Path:
        """What the machine sees as /run/trainyard."""
        return self.path / "shared"

    @property
    def root(self) -> str:
        """What stands in front of the machine's own paths when seen by its processes."""
        if self.isolation is not Isolation.HOME:
            return ""
        return (self.path / "link").read_text(encoding="ascii")

    @property
    def marks(self) -> Marks:
        """By what its processes are known where they are not kept apart."""
        place = hashlib.sha256(os.fsencode(self.path)).hexdigest()[:12]
        try:
            root = (self.path / "link").read_text(encoding="ascii")
        except OSError:
            root = str(self.path)
        return Marks(
            f"{MARK}={self.instance_id}:{place}".encode(), f"{root}/run/trainyard/sshd_config".encode()
        )

    def find_init(self) -> Init | None:
        """The first process, if it lives."""
        try:
            words = (self.path / "init").read_text(encoding="ascii", errors="replace").split()
        except OSError:
            return None
        if len(words) != 4 or words[2] != boot_id():
            return None
        process = ProcessId(int(words[0]), int(words[1]))
        return Init(process, int(words[3])) if is_alive(process) else None

    @property
    def console(self) -> Path:
        """What the machine sees as /dev/console."""
        return self.path / "console"

    def read_console(self) -> bytes:
        """The end of what was printed there."""
        try:
            with self.console.open("rb") as file:
                file.seek(max(0, self.console.stat().st_size - CONSOLE_BYTES))
                return file.read(CONSOLE_BYTES)
        except OSError:
            return b""

    def is_settled(self) -> bool:
        """Whether UserData has been taken in."""
        return (self.shared / "settled").exists()

    def prepare(self, wish: MachineWish, port: int, metadata_url: str) -> None:
        """Everything that the next boot needs from outside."""
        self._take_disk(wish.disk)
        for folder in (self.shared / "nas", self.shared / "jobs", self.path / "root" / "run"):
            folder.mkdir(parents=True, exist_ok=True)
        self.path.chmod(0o700)
        for folder in (self.shared, self.shared / "jobs"):
            folder.chmod(0o755)  # accounts of the machine other than root read here
        for name in ("rank.sh", "run.sh"):
            _install(SHIMS / name, self.shared / name)
        _install(Path(__file__).with_name("init.sh"), self.shared / "init.sh")
        self.write_listening(wish, port)
        self.write_metadata(metadata_url)
        _put(self.console, "", mode=0o600)
        if self.isolation is Isolation.HOME:
            self._prepare_home(wish, port)

    def _take_disk(self, disk: str) -> None:
        """Empty the folder where the machine has been given another system disk; its data disk stays."""
        note = self.path / "disk"
        try:
            is_other = note.read_text(encoding="ascii") != disk
        except OSError:
            is_other = False
        if is_other:
            for path in [self.path / "layers", *(self.path / "root").glob("*")]:
                if path.name != "data" and path.is_dir() and not path.is_symlink():
                    remove_tree(path)
                elif path.name != "data":
                    path.unlink(missing_ok=True)
            (self.shared / "settled").unlink(missing_ok=True)
        self.path.mkdir(parents=True, exist_ok=True)
        _put(note, disk)  # last: who dies on the way does it again

    def write_listening(self, wish: MachineWish, port: int) -> None:
        """Where its sshd answers from the next time it reads its configuration."""
        _put(self.shared / "sshd.conf", listening_text(wish, port))

    def write_metadata(self, url: str) -> None:
        """Where the machine finds its metadata."""
        _put(self.shared / "metadata", f"{url}\n")

    def order(self, wish: MachineWish, *, secret: str) -> dict[str, object]:
        """What the launcher is to do; `secret` is the hash of the machine's password."""
        root = self.root
        env = self._environment(wish, root)
        boot = userdata.FirstBoot() if self.is_settled() else userdata.read(wish.user_data)
        return {
            "name": wish.instance_id,
            "folder": str(self.path),
            "root": root,
            "hostname": wish.hostname[:64],
            "boot": wish.boot,
            "kernel": boot_id(),
            "env": {
                **env,
                "HOSTNAME": wish.hostname,
                "TRAINYARD_SSHD": template.find_sshd(),
                "TRAINYARD_LOOK_SECONDS": str(LOOK_SECONDS),
            },
            "files": self._files(wish, boot, root),
            "secret": secret,
            "authorized_keys": [*wish.authorized_keys, *boot.authorized_keys],
        }

    def remove(self) -> None:
        """Delete the folder and all that lies elsewhere for it."""
        with suppress(OSError):
            link = Path((self.path / "link").read_text(encoding="ascii"))
            if str(link).startswith(LINK) and link.stat().st_uid == os.geteuid():
                remove_tree(link)
        remove_tree(self.path)

    def _files(self, wish: MachineWish, boot: userdata.FirstBoot, root: str) -> list[dict[str, object]]:
        files: list[dict[str, object]] = [{"path": "/etc/hostname", "text": f"{wish.hostname}\n"}]
        if self.isolation is not Isolation.HOME:
            programs = PROGRAMS | (USER_PROGRAMS if self.isolation is Isolation.USER else {})
            files += [
                {
                    "path": path,
                    "text": (SHIMS / f"{shim}.sh").read_text(encoding="utf-8"),
                    "mode": 0o755,
                    "try": True,
                }
                for path, shim in programs.items()
            ]
        if self.is_settled():
            return files
        identity = hashlib.sha256(wish.instance_id.encode()).hexdigest()[:32]
        bashrc = Path("/etc/skel/.bashrc")
        files += [
            {"path": "/etc/hosts", "text": HOSTS.format(address=wish.address, hostname=wish.hostname)},
            {"path": "/etc/machine-id", "text": f"{identity}\n"},
            {"path": "/root/.openmpi/mca-params.conf", "text": MPI_SETTINGS.format(root=root)},
            {"path": "/root/.bashrc", "text": bashrc.read_text(encoding="utf-8") if bashrc.exists() else ""},
            {"path": "/root/.profile", "text": PROFILE},
            {"path": "/etc/ssh/.keep", "text": ""},
            {
                "path": "/var/log/cloud-init-output.log",
                "text": "".join(f"cloud-init: {note}\n" for note in boot.notes),
            },
            {
                "path": "/var/lib/cloud/instance/user-data.txt",
                "data": base64.b64encode(wish.user_data).decode(),
                "mode": 0o600,
            },
        ]
        files += [
            {
                "path": file.path,
                "data": base64.b64encode(file.content).decode(),
                "mode": file.mode,
                "owner": file.owner,
                "append": file.append,
            }
            for file in boot.files
        ]
        # Last: a boot that dies on the way is taken for none.
        return [*files, {"path": "/run/trainyard/settled", "text": ""}]

    def _environment(self, wish: MachineWish, root: str) -> dict[str, str]:
        env = {
            "PATH": template.PATH,
            "HOME": f"{root}/root",
            "USER": "root",
            "LOGNAME": "root",
            "SHELL": "/bin/bash" if Path("/bin/bash").exists() else "/bin/sh",
            "LANG": "C.UTF-8",
            "TRAINYARD_METADATA_FILE": f"{root}/run/trainyard/metadata",
        }
        if self.isolation is Isolation.HOME:
            name, _, value = self.marks.variable.decode().partition("=")
            env |= {
                "PATH": f"{root}/run/trainyard/bin:{template.PATH}",
                "TMPDIR": f"{root}/tmp",
                "TMUX_TMPDIR": f"{root}/tmp",
                "TRAINYARD_ROOT": root,
                "HOSTNAME": wish.hostname,
                name: value,
            }
        return env

    def environment(self, wish: MachineWish) -> dict[str, str]:
        """What programs that are started from outside find in their environment."""
        return self._environment(wish, self.root)

    def _prepare_home(self, wish: MachineWish, port: int) -> None:
        root = self._ensure_link()
        device = self.path / "root" / "dev" / "console"
        device.parent.mkdir(parents=True, exist_ok=True)
        if not device.is_symlink():
            device.symlink_to(self.console)
        inside = self.path / "root" / "run" / "trainyard"
        if not inside.is_symlink():
            inside.symlink_to("../../shared")
        (self.shared / "bin").mkdir(exist_ok=True)
        for name in HOME_PROGRAMS:
            _install(SHIMS / f"{name}.sh", self.shared / "bin" / name)
        exports = _exports(self._environment(wish, root))
        key = _host_key_name(wish, self.path / "root" / "etc" / "ssh")
        config = HOME_SSHD.format(root=root, key=key, sftp=template.sftp_server(), run=HOME_RUN)
        _put(self.shared / "env", exports)
        _put(self.shared / "sshd_config", config)
        _put(self.shared / "ssh_config", HOME_SSH.format(root=root, port=port))

    def _ensure_link(self) -> str:
        """Make the short place; its sockets really lie there, since tmux follows links before it counts letters."""
        try:
            link = Path((self.path / "link").read_text(encoding="ascii"))
        except OSError:
            link = Path(f"{LINK}{os.urandom(5).hex()}")
            _put(self.path / "link", str(link))
        link.mkdir(mode=0o700, exist_ok=True)
        if link.is_symlink() or link.stat().st_uid != os.geteuid():
            raise ConflictError(f"{str(link)!r} belongs to somebody else", hint="Remove it.")
        for name in HOME_FOLDERS:
            if not (link / name).is_symlink():
                (link / name).symlink_to(self.path / "root" / name)
        (link / "tmp").mkdir(exist_ok=True)
        return str(link)


def listening_text(wish: MachineWish, port: int) -> str:
    """The part of sshd's configuration that changes while a machine lives."""
    addresses = dict.fromkeys(address for address in (wish.address, wish.public_address) if address)
    lines = [f"Port {port}", *(f"ListenAddress {address}" for address in addresses)]
    return "\n".join([*lines, f"PasswordAuthentication {'yes' if wish.password else 'no'}", ""])


def _put(path: Path, text: str, mode: int = 0o644) -> None:
    """Written aside: who reads it meanwhile sees the old or the new. Not forced to the disk: made anew at each boot."""
    fresh = path.with_name(f".{path.name}.new")
    fresh.write_text(text, encoding="utf-8")
    fresh.chmod(mode)
    fresh.replace(path)


def _install(source: Path, target: Path) -> None:
    _put(target, source.read_text(encoding="utf-8"), mode=0o755)


def _exports(values: Mapping[str, str]) -> str:
    return "".join(f"export {name}='{value}'\n" for name, value in values.items())


def _host_key_name(wish: MachineWish, folder: Path) -> str:
    """The one key that sshd is told of: what UserData brings, else what is made at the first boot."""
    names: Sequence[str] = [path.name for path in sorted(folder.glob("ssh_host_*_key"))]
    if not names:
        files = userdata.read(wish.user_data).files
        names = [Path(file.path).name for file in files if file.path.startswith("/etc/ssh/ssh_host_")]
    return next((name for name in names if name.endswith("_key")), "ssh_host_ed25519_key")
