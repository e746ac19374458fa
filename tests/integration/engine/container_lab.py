"""A podman of the tests' own, and images that are made on the spot from programs of this machine."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import threading
from collections.abc import Iterable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

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
POLICY = '{"default": [{"type": "insecureAcceptAnything"}]}'
TOOLS = (
    "sh", "ls", "cat", "sleep", "echo", "id", "env", "mkdir", "pwd", "kill", "grep", "test", "head", "tail", "dd", "touch",
    "sort", "true", "seq", "tr", "cut", "df", "ps", "readlink", "find", "rm", "mv", "chmod", "stat",
)  # fmt: skip
# What our own program imports before a command; the image has these modules, what they import, and no others.
MODULES = (
    "__future__ json re socket subprocess signal contextlib importlib pwd select selectors time hashlib hmac binascii errno fcntl "
    "ctypes collections.abc typing threading base64 random struct encodings.idna encodings.utf_8 encodings.ascii zipimport "
    "runpy pkgutil argparse shutil tempfile urllib.parse secrets shlex glob"
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
busybox = shutil.which("busybox")


def podman(*words: str, **given: object) -> subprocess.CompletedProcess[bytes]:
    """Ask it."""
    return subprocess.run(["podman", *words], capture_output=True, check=False, **given)  # type: ignore[call-overload,no-any-return]


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
            info.type, info.mode = tarfile.DIRTYPE, 0o755
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


def own_podman(folder: Path) -> dict[str, str]:
    """Variables of a podman that has nothing, and shares nothing with others."""
    (folder / "containers.conf").write_text(CONFIGURATION.format(folder=folder))
    (folder / "storage.conf").write_text(STORAGE.format(folder=folder))
    (folder / "policy.json").write_text(POLICY)
    return {
        "CONTAINERS_CONF": str(folder / "containers.conf"),
        "CONTAINERS_STORAGE_CONF": str(folder / "storage.conf"),
    }


def limits() -> list[str]:
    """What podman may not raise here."""
    return ["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024"]


def try_podman() -> None:
    """Skip the test where it makes no image or runs nothing."""
    if shutil.which("podman") is None or shutil.which("runc") is None:
        pytest.skip("podman and runc are not installed")
    if busybox is None or os.getuid():
        pytest.skip("needs root and busybox")


def make(name: str, data: bytes) -> None:
    """Make an image, and see that it runs."""
    made = podman("import", "-", name, input=data)
    if made.returncode:
        pytest.skip(f"podman makes no image here: {made.stderr.decode()[-300:]}")
    tried = podman("run", "--rm", "--network", "host", *limits(), name, "/bin/sh", "-c", "echo fine")
    if tried.stdout != b"fine\n":
        pytest.skip(f"podman runs nothing here: {tried.stderr.decode()[-300:]}")


def lasting_podman() -> Iterator[dict[str, str]]:
    """A podman for as long as a fixture lasts; nothing of it stays mounted or stored."""
    # Short: it has sockets there, whose paths have 107 bytes at most. Above that it waits 20 s at each end of a container.
    folder = Path(tempfile.mkdtemp(prefix="typ-", dir="/tmp"))
    env = own_podman(folder)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in env.items():
            patch.setenv(name, value)
        yield env
        podman("rm", "-af", "--time", "0")
        podman("rmi", "-af")
        podman("system", "reset", "-f")
        for line in Path("/proc/mounts").read_text().splitlines():
            if line.split()[1].startswith(f"{folder}/"):
                subprocess.run(["umount", line.split()[1]], check=False)
    shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def registry(folder: Path, image: str, user: str, password: str) -> Iterator[tuple[str, Path]]:
    """A registry that gives an image to who signs in: its name there, and the settings by which podman takes it from there."""
    stored = folder / "stored"
    saved = podman("save", "--format", "oci-dir", "-o", str(stored), image)
    assert saved.returncode == 0, saved.stderr
    manifest = json.loads((stored / "index.json").read_text())["manifests"][0]
    wanted = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.headers.get("Authorization") != wanted:
                self._answer(401, b'{"errors":[{"code":"UNAUTHORIZED"}]}', "application/json")
            elif "/manifests/" in self.path or "/blobs/" in self.path:
                name = manifest["digest"] if "/manifests/" in self.path else self.path.rpartition("/")[2]
                kind = manifest["mediaType"] if "/manifests/" in self.path else "application/octet-stream"
                self._answer(200, (stored / "blobs" / name.replace(":", "/")).read_bytes(), kind)
            else:
                self._answer(200, b"{}", "application/json")

        def _answer(self, status: int, data: bytes, kind: str) -> None:
            self.send_response(status)
            if status == 401:
                self.send_header("WWW-Authenticate", 'Basic realm="test"')
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *given: object) -> None:
            """Nothing is to be said."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        host = f"127.0.0.1:{server.server_address[1]}"
        conf = folder / "registries.conf"
        conf.write_text(f'[[registry]]\nlocation = "{host}"\ninsecure = true\n')
        try:
            yield f"{host}/team/tools:1", conf
        finally:
            server.shutdown()
