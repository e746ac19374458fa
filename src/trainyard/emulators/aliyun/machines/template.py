"""The /etc that new machines begin with: this computer's, with one account, a plain sshd and no secrets of the computer.

Made once per state folder. Machines lay their own changes over it (`launcher.py`), so it never changes while they live.
"""

from __future__ import annotations

import os
import pwd
import shutil
from pathlib import Path

from trainyard.emulators.aliyun.machines.isolation import Isolation

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# What belongs to this computer and not to a fresh machine.
LEFT_OUT = frozenset(
    {"hosts", "hostname", "resolv.conf", "machine-id", "environment", "motd", "mtab", "fstab", "crontab"}
    | {"passwd", "passwd-", "group", "group-", "shadow", "shadow-", "gshadow", "gshadow-", "sudoers.d"}
    | {"ssh", "ssl/private", "cron.d", "cron.daily", "cron.hourly", "cron.weekly", "cron.monthly"}
)
SSHD_CONFIG = """\
Include /run/trainyard/sshd.conf
Include /etc/ssh/sshd_config.d/*.conf
PermitRootLogin yes
KbdInteractiveAuthentication no
UsePAM no
X11Forwarding yes
PrintMotd no
PrintLastLog no
AcceptEnv LANG LC_*
Subsystem sftp {sftp}
SetEnv PATH={path} TRAINYARD_METADATA_FILE=/run/trainyard/metadata
"""
SSH_CONFIG = """\
Include /etc/ssh/ssh_config.d/*.conf
Host *
    SendEnv LANG LC_*
    HashKnownHosts yes
"""
SFTP_SERVERS = ("/usr/lib/openssh/sftp-server", "/usr/libexec/openssh/sftp-server")


def find_sshd() -> str:
    """The path of this computer's sshd; '' where none is installed."""
    return shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:/sbin:/usr/bin") or ""


def sftp_server() -> str:
    """What serves sftp."""
    return next((path for path in SFTP_SERVERS if Path(path).exists()), "internal-sftp")


def ensure_template(folder: Path, isolation: Isolation, *, port: int) -> None:
    """Make `folder`/etc where it is missing; whole or not at all."""
    if folder.exists():
        return
    fresh = folder.with_name(f"{folder.name}.new")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    _copy(Path("/etc"), fresh / "etc")
    _write_accounts(fresh / "etc", isolation)
    _write_ssh(fresh / "etc" / "ssh", port)
    resolver = Path("/etc/resolv.conf")
    texts = {
        "resolv.conf": resolver.read_text(errors="replace") if resolver.exists() else "",
        "environment": f'PATH="{PATH}"\n',
        "fstab": "",
    }
    for name, text in texts.items():
        (fresh / "etc" / name).write_text(text, encoding="utf-8")
    (fresh / "etc" / "mtab").symlink_to("../proc/self/mounts")
    fresh.replace(folder)


def _copy(source: Path, target: Path) -> None:
    """Copy what can be read; what cannot is no matter for a machine."""

    def unwanted(folder: str, names: list[str]) -> set[str]:
        here = Path(folder)
        return {name for name in names if not _is_wanted(here / name, str((here / name).relative_to(source)))}

    shutil.copytree(source, target, symlinks=True, ignore=unwanted)
    if os.geteuid() == 0:
        for path in target.rglob("*"):
            status = (source / path.relative_to(target)).lstat()
            os.chown(path, status.st_uid, status.st_gid, follow_symlinks=False)


def _is_wanted(path: Path, name: str) -> bool:
    if name in LEFT_OUT:
        return False
    if path.is_symlink():
        return True
    if path.is_dir():
        return os.access(path, os.R_OK | os.X_OK)
    return path.is_file() and os.access(path, os.R_OK)


def _write_accounts(etc: Path, isolation: Isolation) -> None:
    """An account `root` with a home in /root: our own number where we are not the computer's root."""
    user, group = (os.geteuid(), os.getegid()) if isolation is Isolation.USER else (0, 0)
    passwd = [f"root:x:{user}:{group}:root:/root:/bin/bash", *_others("/etc/passwd", user)]
    groups = [f"root:x:{group}:", *_others("/etc/group", group)]
    if isolation is Isolation.USER:
        # Terminals cannot be given to a group that does not exist here; without the name sshd does not try.
        groups = [line for line in groups if not line.startswith("tty:")]
    shadow = [f"{line.split(':')[0]}:*:19000:0:99999:7:::" for line in passwd]
    for name, lines, mode in (("passwd", passwd, 0o644), ("group", groups, 0o644), ("shadow", shadow, 0o600)):
        (etc / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
        (etc / name).chmod(mode)


def _others(path: str, number: int) -> list[str]:
    """System accounts of this computer; not its people, nor who has our number."""
    kept = []
    for line in Path(path).read_text(encoding="utf-8", errors="replace").splitlines():
        fields = line.split(":")
        if len(fields) > 3 and fields[0] != "root" and fields[2].isdigit():
            own = int(fields[2])
            if own != number and (own < 1000 or own == 65534):
                kept.append(":".join([*fields[:3], ""]) if len(fields) == 4 else line)
    return kept


def _write_ssh(folder: Path, port: int) -> None:
    for name in ("sshd_config.d", "ssh_config.d"):
        (folder / name).mkdir(parents=True)
    (folder / "sshd_config").write_text(SSHD_CONFIG.format(sftp=sftp_server(), path=PATH), encoding="utf-8")
    (folder / "ssh_config").write_text(SSH_CONFIG, encoding="utf-8")
    moduli = Path("/etc/ssh/moduli")
    if moduli.exists():
        shutil.copy(moduli, folder / "moduli")
    if port != 22:
        # So that `ssh <private address>` and mpirun need no option, as on machines where it is 22.
        text = f"Host 127.*\n    Port {port}\n"
        (folder / "ssh_config.d" / "trainyard.conf").write_text(text, encoding="utf-8")


def own_name() -> str:
    """Who we are to this computer's sshd; not $USER, which may be anything."""
    return pwd.getpwuid(os.geteuid()).pw_name
