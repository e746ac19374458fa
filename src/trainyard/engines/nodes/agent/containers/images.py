"""Images of containers on a node: used where they are, fetched where not, and how that went told as events of the job."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import subprocess
import time
from typing import Any

from ..sandbox.capabilities import PODMAN, last_line, run_briefly
from ..sandbox.storage_mounts import RefusalError
from ..signals import EndSignal
from ..tasks.folder import TaskFolder, note, read_json, write_file

PULL_TRIES = 3
PULL_PAUSE_SECONDS = 2.0
CONTEXTS = "contexts"  # where docker keeps the addresses of daemons that were given a name
SAID = "pulled"  # a file of the task: what the program said that fetched its image
NO_NAME = "no such name"
COMMON = "docker.io"  # of an image that names no registry
COMMON_KEYS = (COMMON, "https://index.docker.io/v1/")  # as podman and docker call it where they keep sign-ins
NOT_REACHED, NO_DAEMON = "not reached", "docker does not answer"
WORTH_TRYING = (NOT_REACHED, NO_DAEMON)
# What podman takes for files of the node, or of another program there, and opens with our rights.
IS_PLACE = re.compile(
    r"(containers-storage|dir|docker-archive|docker-daemon|oci|oci-archive|ostree|sif|tarball):|[^/]*:/|.*://"
)
# What failed, by what registries and programs say; the first that is found.
CAUSES = (
    (NO_DAEMON, re.compile(r"(?i)cannot connect to the docker|docker daemon|docker api|error during connect")),
    ("not found, or unauthorized", re.compile(r"(?i)does not exist or may require")),
    ("unauthorized", re.compile(r"(?i)unauthori[sz]ed|authentication required|denied|forbidden|login|no basic auth")),
    ("not found", re.compile(r"(?i)not found|manifest unknown|no such image|name unknown|\b404\b|does not exist")),
    ("too many requests", re.compile(r"(?i)too ?many ?requests|rate limit|\b429\b")),
    ("disk full", re.compile(r"(?i)no space left|disk quota")),
    (NOT_REACHED, re.compile(
        r"(?i)timeout|timed out|no such host|name resolution|refused|unreachable|reset by peer|broken pipe|dial tcp|\btls\b|\beof\b"
    )),
    (NO_NAME, re.compile(r"(?i)short-name|invalid reference")),
)  # fmt: skip


class Fetcher:
    """Brings the image of one task onto the node."""

    def __init__(self, folder: TaskFolder, view: dict[str, Any], runtime: tuple[str, str]) -> None:
        self.folder = folder
        self.view = view
        self.image: str = view["image"]
        self.kind, self.runtime = runtime

    def ensure(self, end_signal: EndSignal) -> None:
        """Have it. RefusalError where it cannot be had; whoever was told to go meanwhile gives up."""
        if IS_PLACE.match(self.image):
            raise RefusalError(f"{self.image} is no image of a registry or of this node, but a place")
        words = [self.runtime, "image", "inspect", "--format", "{{.Id}}", "--", self.image]
        if run_briefly(words)[0] == 0:
            return
        begun = time.monotonic()
        self._note("image_pulling", f"The image {self.image} is being fetched.")
        status, said = self._fetch(end_signal)
        if status == 0:
            took = time.monotonic() - begun
            self._note("image_pulled", f"The image {self.image} was fetched in {took:.0f} s.")
        if status == 0 or end_signal.is_told:
            return
        message = f"the image {self.image} cannot be fetched ({cause_of(said)}): {last_line(said)[:500]}"
        self._note("image_failed", f"T{message[1:]}")
        raise RefusalError(message)

    def _fetch(self, end_signal: EndSignal) -> tuple[int, str]:
        """Try until it is there, or there is no use in trying."""
        if self.kind == PODMAN:  # which tries again by itself
            status, said = self._pull(self.image, end_signal)
            if status and cause_of(said) == NO_NAME and not has_host(self.image):
                # Its settings name no registry for such names; what everybody means is this one.
                inner = self.image if "/" in self.image else f"library/{self.image}"
                status, said = self._pull(f"{COMMON}/{inner}", end_signal)
            return status, said
        for number in range(PULL_TRIES):
            if number:
                end_signal.pause(PULL_PAUSE_SECONDS)
            status, said = self._pull(self.image, end_signal)
            if status == 0 or end_signal.is_told or cause_of(said) not in WORTH_TRYING:
                break
        return status, said

    def _pull(self, image: str, end_signal: EndSignal) -> tuple[int, str]:
        said = self.folder.file(SAID)
        with self._signed_in() as options, open(said, "wb") as file:
            words = [self.runtime, "pull", "-q", "--", image]
            if options and self.kind == PODMAN:
                words[2:2] = ["--authfile", f"{options}/config.json"]
            elif options:
                words[1:1] = ["--config", options]
            child = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT)
            while child.poll() is None:
                if end_signal.is_told:
                    child.terminate()
                end_signal.pause(1.0 if end_signal.is_told else None)
        text = self.folder.text(SAID)
        os.unlink(said)
        return child.returncode, text

    @contextlib.contextmanager
    def _signed_in(self) -> Any:
        """A folder with the sign-in of a registry, for as long as it is needed."""
        if not self.view.get("username"):
            yield ""
            return
        folder = os.path.abspath(self.folder.file("registry"))
        os.makedirs(folder, mode=0o700, exist_ok=True)
        words = f"{self.view['username']}:{self.view.get('password', '')}".encode()
        hosts = (self.image.split("/", 1)[0],) if has_host(self.image) else COMMON_KEYS
        auths = {"auths": {host: {"auth": base64.b64encode(words).decode()} for host in hosts}}
        data = auths if self.kind == PODMAN else {**self._context(folder), **auths}
        try:
            write_file(f"{folder}/config.json", json.dumps(data).encode())
            yield folder
        finally:
            for name in ("config.json", CONTEXTS):
                with contextlib.suppress(OSError):
                    os.unlink(f"{folder}/{name}")
            with contextlib.suppress(OSError):
                os.rmdir(folder)

    def _context(self, folder: str) -> dict[str, Any]:
        """By what docker finds its daemon, where settings of the node's user say it: they are not read with other settings."""
        own = os.environ.get("DOCKER_CONFIG") or os.path.expanduser("~/.docker")
        name = (read_json(os.path.realpath(f"{own}/config.json")) or {}).get("currentContext")
        if not name:
            return {}
        with contextlib.suppress(FileExistsError):
            os.symlink(os.path.abspath(f"{own}/{CONTEXTS}"), f"{folder}/{CONTEXTS}")
        return {"currentContext": name}

    def _note(self, code: str, message: str) -> None:
        state = os.open(self.folder.file("state"), os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        try:
            note(state, {"note": [code, message, time.time()]})
        finally:
            os.close(state)


def cause_of(said: str) -> str:
    """Why an image could not be fetched, in a word or two."""
    return next((cause for cause, words in CAUSES if words.search(said)), "failed")


def has_host(image: str) -> bool:
    """Whether an image names its registry."""
    first, slash, _ = image.partition("/")
    return bool(slash) and ("." in first or ":" in first or first == "localhost")
