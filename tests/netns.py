"""Hosts with addresses, names and process trees of their own, on one computer: Linux namespaces with a real sshd each.

For what loopback cannot show: programs that ask whether an address is their own (OpenMPI), ssh's real ~/.ssh. Root only.
Nothing of the computer's own network, home or process table is touched; ending a host's first process ends all of it.

    with Network(tmp_path) as network:
        a, b = network.add_host("a"), network.add_host("b")
        network.run([python, "script.py"])       in the namespace of a client that reaches both
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import sshd as sshd_module
from trainyard.lib.process_tree import first_thread_children

PREFIX = "10.201.77"
CLIENT = f"{PREFIX}.254"
START_SECONDS = 20.0

_CLIENT_SCRIPT = f"""
ip link set lo up && ip link add br0 type bridge && ip addr add {CLIENT}/24 dev br0 && ip link set br0 up || exit 1
echo ready
exec sleep 1000000
"""
# The account's home is the host's own folder: ssh and sshd look there whatever HOME says.
_HOST_SCRIPT = """
name=$1 address=$2 home=$3 folder=$4 real_home=$5
hostname "$name" && mount --bind "$home" "$real_home" && ip link set lo up || exit 1
echo waiting
read -r go
ip addr add "$address/24" dev eth0 && ip link set eth0 up || exit 1
mkdir -p /run/sshd
exec /usr/sbin/sshd -D -e -f "$folder/config"
"""


def why_not() -> str:
    """Why namespaces cannot be made here; '' where they can."""
    if os.getuid() != 0:
        return "network namespaces need root"
    for program in ("ip", "unshare", "nsenter"):
        if not shutil.which(program):
            return f"{program} is not installed"
    probe = subprocess.run(["unshare", "-n", "-u", "-m", "-p", "-f", "true"], capture_output=True, text=True)
    return probe.stderr.strip() if probe.returncode else ""


@dataclass
class NetHost:
    """One host: its address, its home (the account's home there), and who runs it."""

    name: str
    address: str
    home: Path
    host_public_key: str
    process: subprocess.Popen[str]


class Network:
    """A bridge, hosts on it, and a client's place at it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.hosts: list[NetHost] = []
        self.client_key = folder / "client_key"
        self.known_hosts = folder / "known_hosts"
        sshd_module.write_key(self.client_key)
        self.hub = subprocess.Popen(
            ["unshare", "-n", "sh", "-c", _CLIENT_SCRIPT],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        if self.hub.stdout is None or self.hub.stdout.readline() != "ready\n":
            self.close()
            raise RuntimeError("the network could not be made")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def add_host(self, name: str) -> NetHost:
        """Start a host with sshd on port 22."""
        number = len(self.hosts) + 1
        address = f"{PREFIX}.{number}"
        folder = self.folder / f"net-{name}"
        home = folder / "home"
        (home / ".ssh").mkdir(parents=True, mode=0o700)
        public = self.client_key.with_name("client_key.pub").read_text()
        (home / ".ssh/authorized_keys").write_text(public)
        (home / ".ssh/authorized_keys").chmod(0o600)
        host_key = sshd_module.write_key(folder / "host_key")
        with self.known_hosts.open("a") as file:
            file.write(f"{address} {host_key}\n")
        self._write_config(folder)
        real_home = pwd.getpwuid(os.getuid()).pw_dir
        # The first process of the host belongs to this one; when it is killed, the kernel ends all of the host.
        command = ["unshare", "-n", "-u", "-m", "-p", "-f", "--kill-child", "--mount-proc"]
        with (folder / "log").open("w") as log:
            process = subprocess.Popen(
                [*command, "sh", "-c", _HOST_SCRIPT, "sh", name, address, str(home), str(folder), real_home],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        host = NetHost(name, address, home, host_key, process)
        self.hosts.append(host)
        if process.stdin is None or process.stdout is None or process.stdout.readline() != "waiting\n":
            raise RuntimeError(f"the host {name} could not be made: {(folder / 'log').read_text()}")
        inner = first_thread_children(process.pid)[0]
        link = f"v{number}"
        self._in_hub("ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", str(inner))
        self._in_hub("ip", "link", "set", link, "master", "br0", "up")
        process.stdin.write("go\n")
        process.stdin.close()
        deadline = time.monotonic() + START_SECONDS
        while "Server listening on" not in (folder / "log").read_text():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"sshd did not start on {name}: {(folder / 'log').read_text()}")
            time.sleep(0.005)
        return host

    def run(
        self, command: list[str], *, env: dict[str, str] | None = None, timeout: float = 100
    ) -> subprocess.CompletedProcess[str]:
        """Run a program as the client, which reaches all hosts and nothing else."""
        words = ["nsenter", f"--net=/proc/{self.hub.pid}/ns/net", *command]
        return subprocess.run(words, capture_output=True, text=True, env=env, timeout=timeout)

    def close(self) -> None:
        """End all hosts, then the network."""
        for process in [*(host.process for host in self.hosts), self.hub]:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    with contextlib.suppress(BrokenPipeError):
                        stream.close()

    def _in_hub(self, *command: str) -> None:
        subprocess.run(["nsenter", f"--net=/proc/{self.hub.pid}/ns/net", *command], check=True)

    def _write_config(self, folder: Path) -> None:
        settings = [
            *("Port 22", "ListenAddress 0.0.0.0", f"HostKey {folder}/host_key", "PidFile none"),
            *("PermitRootLogin yes", "PasswordAuthentication no", "KbdInteractiveAuthentication no"),
            *(f"UsePAM {'yes' if sshd_module._is_locked_root() else 'no'}", "UseDNS no", "StrictModes yes"),
            *("MaxStartups 200", "MaxSessions 200", "PrintMotd no", "PrintLastLog no"),
            f"Subsystem sftp {sshd_module._sftp_server()}",
            f"SetEnv TMUX_TMPDIR={folder}",  # /tmp is one for all hosts, and tmux finds its server by a path there
        ]
        (folder / "config").write_text("\n".join(settings) + "\n")
