"""What a task needs before its command and does not have yet: a repository at a commit, and Python packages.

Runs inside the task's view, called by entry.py; standard library only. A token is never on a command line, in a file of the
checkout or in the log: git asks for it, and only the host that it is for is answered.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from trainyard.lib.remove_tree import remove_tree

Say = Callable[[str], None]

CODE_SECONDS = 1800.0
PACKAGES_SECONDS = 3600.0
# Slower than this for so long, a transfer counts as dead.
LOW_SPEED = {"GIT_HTTP_LOW_SPEED_LIMIT": "1000", "GIT_HTTP_LOW_SPEED_TIME": "60"}
PROTOCOLS = "https:http:ssh:git:file"
NO_REQUIREMENTS = "WARN: ./requirements.txt not found, skip installing requirements."
MARKER = "trainyard.json"  # in .git: whose checkout it is
CODE_VARIABLE = "TRAINYARD_CODE_DIR"

_SCP = re.compile(r"(?:[A-Za-z0-9._-]+@)?[A-Za-z0-9][A-Za-z0-9.-]*:(?!//|:)[^\s].*\Z")
_COMMIT = re.compile(r"[0-9a-fA-F]{4,64}\Z")
_NO_BRANCH = re.compile(r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{|//|\A[-/.]|[/.]\Z|\.lock\Z")
_NO_REF = "couldn't find remote ref"
# What git adds to what was wrong.
_SAYS_NOTHING = frozenset(
    {
        "fatal: Could not read from remote repository.",
        "Please make sure you have the correct access rights",
        "and the repository exists.",
    }
)
_ASK = """\
#!/bin/sh
# git asks "Username for 'https://host': " and "Password for 'https://user@host': "; another host gets nothing.
case "$1" in
  *"//$TRAINYARD_GIT_HOST'"*|*"@$TRAINYARD_GIT_HOST'"*) ;;
  *) exit 1 ;;
esac
case "$1" in
  Username*) printf '%s\\n' "$TRAINYARD_GIT_USER" ;;
  *) printf '%s\\n' "$TRAINYARD_GIT_TOKEN" ;;
esac
"""


class FetchError(Exception):
    """A sentence for the log: why the task cannot begin."""


def fetch(entry: dict[str, Any], say: Say) -> str:
    """Fetch the code and the packages of an entry. Returns an empty text, or why it could not be done.

    What the command has to know (PYTHONPATH, PATH, where the code is) is added to `entry["env"]`.
    """
    folder = str(entry.get("folder") or "") or tempfile.mkdtemp(prefix="trainyard-")
    env: dict[str, str] = entry.setdefault("env", {})
    try:
        code = entry.get("code") or {}
        checkout = _fetch_code(code, folder, say) if code else ""
        if checkout:
            env[CODE_VARIABLE] = checkout
            _forget_token(code, folder)
        _fetch_packages(entry, folder, checkout, env, say)
    except FetchError as error:
        return str(error)
    except OSError as error:
        return f"what the task needs could not be fetched: {error.filename or ''} {error.strerror or error}".strip()
    return ""


# -- code


def _fetch_code(code: Mapping[str, str], folder: str, say: Say) -> str:
    """The folder of the checkout."""
    url, user, token = _without_secret(code.get("url", ""), code.get("token", ""))
    branch, commit = code.get("branch", ""), code.get("commit", "")
    _check(url, branch, commit)
    target = _target(code.get("target", ""), url, folder, say)
    wanted = {"url": url, "branch": branch, "commit": commit}
    if _is_there(target, wanted):
        say(f"trainyard: the code of {url} is in {target} already")
        return target
    git = shutil.which("git")
    if git is None:
        raise FetchError(f"the code of {url} cannot be fetched: there is no git here")
    os.makedirs(os.path.dirname(target), exist_ok=True)
    # Beside its place, then moved: tasks that share a folder do not meet half a checkout.
    made = tempfile.mkdtemp(prefix=".trainyard-code-", dir=os.path.dirname(target))
    try:
        with contextlib.closing(_Git(git, made, url, user, token, folder)) as tool:
            head = _check_out(tool, branch, commit)
        with open(f"{made}/.git/{MARKER}", "w", encoding="utf-8") as file:
            json.dump(wanted, file)
        os.chmod(made, 0o755)  # noqa: S103  # as git makes them
        _put_in_place(made, target, wanted)
    finally:
        remove_tree(made)
    say(f"trainyard: the code of {url} at {head} is in {target}")
    return target


def _forget_token(code: Mapping[str, str], folder: str) -> None:
    """Take it out of the order: the program that runs now has no use for it."""
    path = os.path.join(folder, "order.json")
    if not code.get("token") or not os.path.isfile(path):
        return
    with open(path, encoding="utf-8") as file:
        order = json.load(file)
    order["code"] = {**order.get("code", {}), "token": ""}
    handle = os.open(f"{path}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        json.dump(order, file)
    os.rename(f"{path}.new", path)


def _without_secret(url: str, token: str) -> tuple[str, str, str]:
    """The address without what nobody should read, and user and token for it; `user:token` is both."""
    user = ""
    if url.startswith(("https://", "http://")):
        parts = urlsplit(url)
        if parts.username or parts.password:
            user, own = unquote(parts.username or ""), unquote(parts.password or "")
            user, token = (user, token or own) if own else ("", token or user)
            host = parts.netloc.rpartition("@")[2]
            url = urlunsplit((parts.scheme, host, parts.path, parts.query, parts.fragment))
    if ":" in token:
        user, _, token = token.partition(":")
    return url, user or "oauth2", token  # which the hosts of repositories take with a token


def _check(url: str, branch: str, commit: str) -> None:
    if not url:
        raise FetchError("the code source of this job is gone")
    known = url.startswith(("https://", "http://", "ssh://", "git://", "file:///", "/")) or _SCP.match(url)
    if not known or any(ord(letter) < 33 for letter in url.replace(" ", "")):
        raise FetchError(f"{url!r} is no address of a repository")
    if branch and _NO_BRANCH.search(branch):
        raise FetchError(f"{branch!r} cannot be the name of a branch")
    if commit and not _COMMIT.match(commit):
        raise FetchError(f"{commit!r} is no commit")


def _target(wanted: str, url: str, folder: str, say: Say) -> str:
    """Where the code goes: always inside the task."""
    if ".." in wanted.split("/") or "\0" in wanted:
        raise FetchError(f"the code cannot go to {wanted!r}, which leads out of the task")
    if wanted.startswith("/"):
        if os.environ.get("TRAINYARD_VIEW") == "closed":
            return wanted.rstrip("/") or "/"
        moved = os.path.normpath(f"{folder}/files{wanted}")
        say(f"trainyard: this node gives the task no file view of its own: the code is in {moved}")
        return moved
    return os.path.normpath(os.path.join(os.getcwd(), wanted or name_of(url)))


def name_of(url: str) -> str:
    """The folder that git would make: the last part of the address, without .git."""
    path = re.sub(r"\.git\Z", "", url.rstrip("/").rpartition("/")[2].rpartition(":")[2])
    path = unquote(path) if "://" in url else path
    return "code" if path in {"", ".", ".."} or "\0" in path or "/" in path else path


def _is_there(target: str, wanted: Mapping[str, str]) -> bool:
    """Whether this very checkout was made before, by an earlier start or by another task; FetchError where something else is."""
    if not os.path.lexists(target) or (os.path.isdir(target) and not os.listdir(target)):
        return False
    with contextlib.suppress(OSError, ValueError), open(f"{target}/.git/{MARKER}", encoding="utf-8") as file:
        if json.load(file) == dict(wanted):
            return True
    raise FetchError(f"the code cannot go to {target}: something else is there")


def _put_in_place(made: str, target: str, wanted: Mapping[str, str]) -> None:
    try:
        os.rename(made, target)
    except OSError:
        if not _is_there(target, wanted):
            raise


def _check_out(tool: _Git, branch: str, commit: str) -> str:
    tool.run("init", "--quiet")
    tool.run("remote", "add", "origin", tool.url)
    if commit:
        _fetch_commit(tool, branch, commit)
    elif branch:
        _fetch_branch(tool, branch)
    else:
        tool.run("fetch", "--quiet", "--depth=1", "origin", "HEAD")
        tool.run("checkout", "--quiet", "--detach", "FETCH_HEAD")
    return tool.run("rev-parse", "HEAD").strip()


def _fetch_commit(tool: _Git, branch: str, commit: str) -> None:
    whole = len(commit) in {40, 64}
    if not (whole and tool.tries("fetch", "--quiet", "--depth=1", "origin", commit)):
        refs = f"+refs/heads/{branch or '*'}:refs/remotes/origin/{branch or '*'}"
        # A server that does not know of filters is asked for everything.
        if not tool.tries("fetch", "--quiet", "--filter=blob:none", "--tags", "origin", refs):
            tool.run("fetch", "--quiet", "--tags", "origin", refs, missing=f"branch {branch}")
    if not tool.tries("rev-parse", "--quiet", "--verify", f"{commit}^{{commit}}"):
        raise FetchError(tool.has_no(f"commit {commit}" + (f" on branch {branch}" if branch else "")))
    tool.run("checkout", "--quiet", "--detach", commit)


def _fetch_branch(tool: _Git, branch: str) -> None:
    own = f"refs/remotes/origin/{branch}"
    if tool.tries("fetch", "--quiet", "--depth=1", "origin", f"+refs/heads/{branch}:{own}"):
        tool.run("checkout", "--quiet", "-B", branch, own)
        return
    refs = f"+refs/tags/{branch}:refs/tags/{branch}"
    tool.run("fetch", "--quiet", "--depth=1", "origin", refs, missing=f"branch or tag {branch}")
    tool.run("checkout", "--quiet", "--detach", f"refs/tags/{branch}")


class _Git:
    """git in one folder: asks nobody, runs no hooks, keeps no passwords."""

    def __init__(self, program: str, folder: str, url: str, user: str, token: str, private: str) -> None:
        self.url = url
        self._token = token
        self._words = [
            program, "-C", folder, "-c", "credential.helper=", "-c", "core.hooksPath=/dev/null",
            "-c", "core.fsmonitor=false", "-c", "gc.auto=0", "-c", "advice.detachedHead=false",
            "-c", "protocol.ext.allow=never", "-c", "core.symlinks=true",
        ]  # fmt: skip
        self._ask = os.path.join(private, f"ask-{os.getpid()}.sh")
        self._env = {
            **{name: value for name, value in os.environ.items() if not name.startswith("GIT_")},
            **LOW_SPEED,
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_ASKPASS": self._ask if token else "/bin/false",
            "GIT_ALLOW_PROTOCOL": PROTOCOLS,
            "GIT_SSH_COMMAND": "ssh -o BatchMode=yes -o StrictHostKeyChecking=accept-new -o ConnectTimeout=30",
            "GIT_LFS_SKIP_SMUDGE": "0",
            "LC_ALL": "C",
            "TRAINYARD_GIT_HOST": urlsplit(url).netloc if "://" in url else "",
            "TRAINYARD_GIT_USER": user,
            "TRAINYARD_GIT_TOKEN": token,
        }

        if token:
            os.makedirs(os.path.dirname(self._ask), exist_ok=True)
            handle = os.open(self._ask, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o700)
            with os.fdopen(handle, "w") as file:
                file.write(_ASK)

    def close(self) -> None:
        """Leave nothing behind."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._ask)

    def run(self, *words: str, missing: str = "") -> str:
        """What it printed; FetchError where it failed, in few words where `missing` is what the repository has not."""
        code, out, errors = _run([*self._words, *words], self._env, CODE_SECONDS)
        if code:
            if missing and _NO_REF in errors:
                raise FetchError(self.has_no(missing))
            lines = [line.strip() for line in self._open(errors).splitlines() if line.strip()]
            telling = [line for line in lines if line not in _SAYS_NOTHING] or lines[:1]
            why = " ".join(telling[-3:]) or f"git ended with {code}"
            raise FetchError(f"the code of {self.url} could not be fetched: {why}")
        return out

    def has_no(self, what: str) -> str:
        """A sentence."""
        return f"the code of {self.url} could not be fetched: it has no {what}"

    def tries(self, *words: str) -> bool:
        """Whether it worked."""
        return _run([*self._words, *words], self._env, CODE_SECONDS)[0] == 0

    def _open(self, text: str) -> str:
        return text.replace(self._token, "***") if self._token else text


# -- packages


def _fetch_packages(
    entry: Mapping[str, Any], folder: str, checkout: str, env: dict[str, str], say: Say
) -> None:
    wanted = [str(one) for one in entry.get("requirements") or ()]
    place = str(entry.get("requirements_dir") or "")
    options: list[str] = []
    if place:
        listed = _requirements_file(place, checkout)
        if listed:
            options += ["-r", listed]
        else:
            say(NO_REQUIREMENTS)
    if any(one.lstrip().startswith("-") or "\n" in one for one in wanted):
        raise FetchError("one of the packages is an option of pip, and no package")
    if wanted:
        # In a file: an address may hold a password, and command lines are everybody's to read.
        listed = os.path.join(folder, "requirements.txt")
        handle = os.open(listed, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write("\n".join(wanted) + "\n")
        options += ["-r", listed]
    if options:
        _install(options, os.path.join(folder, "packages"), env, say)


def _requirements_file(place: str, checkout: str) -> str:
    """The list in that folder; a relative one is looked for in the working folder, then in the code."""
    for base in (os.getcwd(), *([checkout] if checkout else [])):
        path = os.path.join(base, place, "requirements.txt")
        if os.path.isfile(path):
            return path
    return ""


def _install(options: Sequence[str], target: str, env: dict[str, str], say: Say) -> None:
    python = shutil.which("python3") or shutil.which("python")
    if python is None:
        raise FetchError("the packages of this job cannot be installed: there is no python3 here")
    words = [
        python, "-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check",
        "--target", target, *options,
    ]  # fmt: skip
    quiet = {**os.environ, "PIP_NO_INPUT": "1", "PIP_ROOT_USER_ACTION": "ignore", "PYTHONNOUSERSITE": "1"}
    say(f"trainyard: installing {_counted(options)} with {python} -m pip")
    code, out, errors = _run(words, quiet, PACKAGES_SECONDS)
    for line in (out + errors).splitlines():
        say(line)
    if code:
        last = (errors or out).strip().splitlines()[-1:] or [f"pip ended with {code}"]
        raise FetchError(f"the packages of this job could not be installed: {last[0]}")
    for name, own in (("PYTHONPATH", target), ("PATH", os.path.join(target, "bin"))):
        before = env.get(name) or os.environ.get(name, "")
        env[name] = own + (os.pathsep + before if before else "")


def _counted(options: Sequence[str]) -> str:
    return "the packages of " + " and ".join(options[1::2])


# -- programs


def _run(words: Sequence[str], env: Mapping[str, str], seconds: float) -> tuple[int, str, str]:
    """A program with nothing to read from; it and all that it started are killed after the time."""
    process = subprocess.Popen(
        words, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        start_new_session=True, encoding="utf-8", errors="replace",
    )  # fmt: skip
    try:
        out, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return 124, "", f"it took longer than {seconds:g} s"
    return process.returncode, out, errors
