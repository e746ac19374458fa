"""A podman or docker of the tests' own, and images that are made on the spot from programs of this machine."""

from __future__ import annotations

import base64
import contextlib
import gzip
import hashlib
import io
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import platforms
import sshd

PLAIN = "localhost/trainyard-test:1"
WITH_PYTHON = "localhost/trainyard-test-python:1"
# No systemd to make groups or keep a journal here; a kernel with both versions of groups takes only runc. A folder and
# locks of its own: whoever else runs podman on the machine meanwhile, and resets it, would pull ours away as well.
CONFIGURATION = """
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_backend = "file"
lock_type = "file"
tmp_dir = "{folder}/tmp"
"""
STORAGE = '[storage]\ndriver = "overlay"\ngraphroot = "{folder}/graph"\nrunroot = "{folder}/run"\n'
# Ports of this machine are taken without TLS, as docker does by itself.
REGISTRIES = '[[registry]]\nprefix = "127.0.0.1"\nlocation = "127.0.0.1"\ninsecure = true\n'
POLICY = '{"default": [{"type": "insecureAcceptAnything"}]}'
TOOLS = (
    "sh", "ls", "cat", "sleep", "echo", "id", "env", "mkdir", "pwd", "kill", "grep", "test", "head", "tail", "dd", "touch",
    "sort", "true", "seq", "tr", "cut", "df", "ps", "readlink", "find", "rm", "mv", "chmod", "stat",
)  # fmt: skip
# What our own program imports before a command; the image has these modules, what they import, and no others.
MODULES = (
    "__future__ json re socket subprocess signal contextlib importlib pwd select selectors time hashlib hmac binascii errno fcntl "
    "ctypes collections.abc typing threading base64 random struct encodings.idna encodings.utf_8 encodings.ascii zipimport "
    "runpy pkgutil argparse shutil tempfile urllib.parse secrets shlex glob resource"
)
LISTED = """
import importlib, sys
for name in sys.argv[1].split():
    try: importlib.import_module(name)
    except ImportError: pass
for module in list(sys.modules.values()):
    path = getattr(module, "__file__", None)
    if path: print(path)
import os
print(os.__file__)
"""
SSH_PROGRAMS = ("/usr/sbin/sshd", "/usr/bin/ssh", "/usr/bin/scp", "/usr/lib/openssh/sftp-server")
NO_PODMAN = "#!/bin/sh\nexit 1\n"
MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
LIMITS = ("--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024")  # what podman may not raise here
DAEMONS = "/usr/sbin:/usr/bin:/sbin:/bin"  # a daemon that the machine's administrator brought otherwise is not ours to start
START_SECONDS = END_SECONDS = 30.0
CONTAINERD = """version = 2
root = "{folder}/c"
state = "{folder}/s"
disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs"]
[grpc]
address = "{folder}/c.sock"
"""
busybox = shutil.which("busybox")


class Archive:
    """A file system in the making; nothing gets into it twice."""

    def __init__(self) -> None:
        self._buffer = io.BytesIO()
        self._tar = tarfile.open(fileobj=self._buffer, mode="w")  # noqa: SIM115  # closed by `data`
        self._names: set[str] = set()

    def add(self, path: str, name: str = "") -> None:
        """A file of this machine, at its own place unless another is named; links are followed."""
        name = (name or path).lstrip("/")
        if name not in self._names:
            self._names.add(name)
            self._tar.add(os.path.realpath(path), name, recursive=False)

    def program(self, path: str, name: str = "") -> None:
        """A program or library, with the libraries that it needs."""
        self.add(path, name)
        listed = subprocess.run(["ldd", path], capture_output=True, text=True, check=False).stdout
        for library in re.findall(r"(/\S+) \(0x", listed):
            self.add(library)

    def link(self, name: str, target: str) -> None:
        info = tarfile.TarInfo(name.lstrip("/"))
        info.type, info.linkname = tarfile.SYMTYPE, target
        self._names.add(info.name)
        self._tar.addfile(info)

    def folders(self, names: Iterable[str]) -> None:
        for name in names:
            info = tarfile.TarInfo(name)
            info.type, info.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            self._tar.addfile(info)

    def text(self, name: str, text: str) -> None:
        info = tarfile.TarInfo(name)
        info.size = len(text)
        self._tar.addfile(info, io.BytesIO(text.encode()))

    def data(self) -> bytes:
        self._tar.close()
        return self._buffer.getvalue()


def plain_image() -> bytes:
    """Busybox, the libraries that it needs, and nothing else."""
    assert busybox is not None
    archive = Archive()
    archive.program(busybox, "bin/busybox")
    for name in TOOLS:
        archive.link(f"bin/{name}", "busybox")
    archive.folders(("tmp", "etc", "root"))
    return archive.data()


def python_image() -> bytes:
    """The same with Python, ssh, and bash for a shell, as many real images have it."""
    assert busybox is not None
    archive = Archive()
    archive.program(busybox, "bin/busybox")
    for name in TOOLS:
        if name != "sh":
            archive.link(f"bin/{name}", "busybox")
    archive.program("/bin/bash", "bin/bash")
    archive.link("bin/sh", "bash")
    interpreter = os.path.realpath(
        shutil.which("python3", path="/usr/bin:/usr/local/bin") or sys._base_executable  # type: ignore[attr-defined]
    )
    archive.program(interpreter)
    archive.link("usr/bin/python3", interpreter)
    listed = subprocess.run(
        [interpreter, "-IS", "-c", LISTED, MODULES], capture_output=True, text=True, check=True
    )
    for path in listed.stdout.split("\n"):
        if path.endswith(".so"):
            archive.program(path)
        elif path:
            archive.add(path)
    for path in filter(os.path.exists, SSH_PROGRAMS):
        archive.program(path)
    for library in ("libnss_files.so.2", "libnss_dns.so.2", "libresolv.so.2"):
        for folder in ("/lib/x86_64-linux-gnu", "/lib/aarch64-linux-gnu", "/lib64"):
            if os.path.exists(f"{folder}/{library}"):
                archive.program(f"{folder}/{library}")
    archive.folders(("tmp", "etc", "root", "run", "run/sshd", "var", "var/empty"))
    archive.text("etc/passwd", "root:x:0:0:root:/root:/bin/sh\nsshd:x:101:65534::/run/sshd:/bin/false\n")
    archive.text("etc/group", "root:x:0:\nnogroup:x:65534:\n")
    archive.text("etc/nsswitch.conf", "passwd: files\nhosts: files\n")
    return archive.data()


class Containers:
    """What runs containers for as long as a fixture lasts, and shares nothing with others on the machine."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        self.folder = folder
        self.env: dict[str, str] = {}  # by which everybody finds it

    def ask(self, *words: str, **given: object) -> subprocess.CompletedProcess[bytes]:
        """Have it do something."""
        path = shutil.which(self.kind)
        return subprocess.run([path, *words], capture_output=True, check=False, **given)  # type: ignore[call-overload,no-any-return]

    def make(self, name: str, data: bytes, *changes: str) -> None:
        """Make an image, and see that it runs."""
        options = [word for one in changes for word in ("--change", one)]
        made = self.ask("import", *options, "-", name, input=data)
        if made.returncode:
            pytest.skip(f"{self.kind} makes no image here: {made.stderr.decode()[-300:]}")
        tried = self.ask("run", "--rm", "--network", "host", *LIMITS, name, "/bin/sh", "-c", "echo fine")
        if tried.stdout != b"fine\n":
            pytest.skip(f"{self.kind} runs nothing here: {tried.stderr.decode()[-300:]}")

    def leftovers(self) -> str:
        """Containers that are there, whether they run or not."""
        return self.ask("ps", "-aq").stdout.decode()


@contextlib.contextmanager
def lasting(kind: str) -> Iterator[Containers]:
    """A podman or docker that has nothing; nothing of it stays mounted, stored or running. Skips where there can be none."""
    if busybox is None or os.getuid():
        pytest.skip("needs root and busybox")
    # Short: both have sockets there, whose paths have 107 bytes at most. Above that podman waits 20 s at each end of a container.
    folder = Path(tempfile.mkdtemp(prefix="tyc-", dir="/tmp"))
    found = Docker(folder) if kind == "docker" else Podman(folder)
    try:
        with pytest.MonkeyPatch.context() as patch:
            found.prepare()
            for name, value in found.env.items():
                patch.setenv(name, value)
            try:
                found.start()
                yield found
            finally:
                found.end()
    finally:
        for line in reversed(Path("/proc/mounts").read_text().splitlines()):
            if line.split()[1].startswith(f"{folder}/"):
                subprocess.run(["umount", "-l", line.split()[1]], check=False)
        shutil.rmtree(folder, ignore_errors=True)


class Podman(Containers):
    """One without a service."""

    def __init__(self, folder: Path) -> None:
        super().__init__("podman", folder)

    def prepare(self) -> None:
        if shutil.which("podman") is None or shutil.which("runc") is None:
            pytest.skip("podman and runc are not installed")
        (self.folder / "containers.conf").write_text(CONFIGURATION.format(folder=self.folder))
        (self.folder / "storage.conf").write_text(STORAGE.format(folder=self.folder))
        (self.folder / "policy.json").write_text(POLICY)
        (self.folder / "registries.conf").write_text(REGISTRIES)
        self.env = {
            "CONTAINERS_CONF": str(self.folder / "containers.conf"),
            "CONTAINERS_STORAGE_CONF": str(self.folder / "storage.conf"),
            "CONTAINERS_REGISTRIES_CONF": str(self.folder / "registries.conf"),
        }

    def start(self) -> None:
        """It is there whenever it is asked."""

    def end(self) -> None:
        self.ask("rm", "-af", "--time", "0")
        self.ask("rmi", "-af")
        self.ask("system", "reset", "-f")


class Docker(Containers):
    """One with a daemon of its own, which leaves the machine's network and firewall alone."""

    def __init__(self, folder: Path) -> None:
        super().__init__("docker", folder)
        self.daemon: subprocess.Popen[bytes] | None = None
        self.keeper: subprocess.Popen[bytes] | None = (
            None  # of the containers; it stays when the daemon goes, as on Debian
        )
        self.socket = folder / "d.sock"

    def prepare(self) -> None:
        daemon, client = shutil.which("dockerd", path=DAEMONS), shutil.which("docker", path="/usr/bin:/bin")
        if daemon is None or client is None:
            pytest.skip("docker.io is not installed")
        tools = self.folder / "tools"
        tools.mkdir()
        (tools / "podman").write_text(NO_PODMAN)  # a node that has no other
        (tools / "podman").chmod(0o755)
        (tools / "docker").symlink_to(client)
        (self.folder / "daemon.json").write_text(json.dumps({}))
        (self.folder / "containerd.toml").write_text(CONTAINERD.format(folder=self.folder))
        self.env = {
            "DOCKER_HOST": f"unix://{self.socket}",
            "DOCKER_CONFIG": str(self.folder / "config"),
            "PATH": f"{tools}:{os.environ['PATH']}",
        }

    def start(self) -> None:
        """Start the daemon, and wait until it answers."""
        own = self.folder
        if self.keeper is None:
            self.keeper = self._begin("containerd", "--config", f"{own}/containerd.toml")
        words = [
            "--iptables=false",
            "--ip6tables=false",
            "--ip-forward=false",
            "--ip-masq=false",
            "--bridge=none",
        ]
        words += ["--data-root", f"{own}/data", "--exec-root", f"{own}/run", "--pidfile", f"{own}/pid"]
        words += ["--host", f"unix://{self.socket}", "--config-file", f"{own}/daemon.json"]
        self.daemon = self._begin("dockerd", *words, "--containerd", f"{own}/c.sock")
        deadline = time.monotonic() + START_SECONDS
        while not self.answers():
            if self.daemon.poll() is not None or time.monotonic() > deadline:
                pytest.skip(f"no daemon of docker starts here: {(own / 'log').read_text()[-500:]}")
            time.sleep(0.05)

    def _begin(self, *words: str) -> subprocess.Popen[bytes]:
        env = {**os.environ, "PATH": f"{os.environ['PATH']}:{DAEMONS}"}
        env.pop(sshd.TEST_MARK, None)  # it is no test's own
        with open(self.folder / "log", "ab") as log:
            return subprocess.Popen(words, stdout=log, stderr=log, env=env, start_new_session=True)

    def set_up(self, settings: dict[str, object]) -> None:
        """Have a daemon with these settings: the one that runs where it has them, else a new one."""
        data, path = json.dumps(settings), self.folder / "daemon.json"
        if not self.answers() or path.read_text() != data:
            path.write_text(data)
            self.stop()
            self.start()

    def answers(self) -> bool:
        """Whether the daemon is there, and well."""
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as asked:
            asked.settimeout(5)
            asked.connect(str(self.socket))
            asked.sendall(b"GET /_ping HTTP/1.0\r\n\r\n")
            return b" 200 " in asked.recv(100)
        return False

    def clear(self) -> None:
        """Remove all containers."""
        if found := self.leftovers().split():
            self.ask("rm", "-f", "-v", *found)

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Have the daemon go; what it left running goes with `end`."""
        if self.daemon is not None:
            self.daemon.send_signal(number)
            self.daemon.wait(END_SECONDS)
            self.daemon = None

    def end(self) -> None:
        """End the daemon, and whoever belongs to it and did not go with it."""
        if self.daemon is not None and self.answers():
            self.clear()
        self.stop()
        if self.keeper is not None:
            self.keeper.terminate()
            self.keeper.wait(END_SECONDS)
        while found := list(platforms.processes_of(f"{self.folder}/")):
            for pid in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)


@contextlib.contextmanager
def registry(data: bytes, user: str, password: str) -> Iterator[str]:
    """A registry that gives an image of a file system to who signs in: the image's name there."""
    wanted = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
    blobs: dict[str, bytes] = {}

    def stored(blob: bytes, kind: str) -> dict[str, object]:
        digest = f"sha256:{hashlib.sha256(blob).hexdigest()}"
        blobs[digest] = blob
        return {"mediaType": f"application/vnd.docker.{kind}", "size": len(blob), "digest": digest}

    layer = stored(gzip.compress(data, 1), "image.rootfs.diff.tar.gzip")
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine)
    system = {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(data).hexdigest()}"]}
    settings = json.dumps({"architecture": machine, "os": "linux", "config": {}, "rootfs": system}).encode()
    config = stored(settings, "container.image.v1+json")
    manifest = json.dumps(
        {"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": [layer]}
    ).encode()
    manifest_digest = str(stored(manifest, "")["digest"])

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.headers.get("Authorization") != wanted:
                self._answer(401, b'{"errors":[{"code":"UNAUTHORIZED"}]}', "application/json")
            elif "/manifests/" in self.path:
                self._answer(200, manifest, MANIFEST)
            elif "/blobs/" in self.path:
                self._answer(200, blobs[self.path.rpartition("/")[2]], "application/octet-stream")
            else:
                self._answer(200, b"{}", "application/json")

        do_HEAD = do_GET

        def _answer(self, status: int, data: bytes, kind: str) -> None:
            self.send_response(status)
            if status == 401:
                self.send_header("WWW-Authenticate", 'Basic realm="test"')
            if kind == MANIFEST:
                self.send_header("Docker-Content-Digest", manifest_digest)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        def log_message(self, *given: object) -> None:
            """Nothing is to be said."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}/team/tools:1"
        finally:
            server.shutdown()
