"""What every test gets: a home of its own, no network beyond loopback, and a check that it left nothing running."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(
    0, str(Path(__file__).parent)
)  # tests import each other's modules by plain name: `import sshd`

import combinations
import longest_files
import sshd as sshd_module
from trainyard.lib.process_tree import all_pids

FOREIGN_PREFIXES = ("TRAINYARD_", "ALIYUN_", "ALIBABA_CLOUD_", "NCLUSTER_", "FASTGPU_")
FOREIGN_NAMES = (
    "SSH_AUTH_SOCK",
    "SSH_AGENT_PID",
    "TMUX",
    "TMUX_PANE",
    "BASH_ENV",
    "ENV",
    "CDPATH",
    "COLUMNS",
    "LINES",
)
LEAK_GRACE_SECONDS = 2.0  # what has been told to end needs a moment to be gone

HOSTILE_NAME = "a b'c\"d\n$(touch pwned)`e`\\f;&*中文"


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--update-screens` writes the terminal pictures anew instead of comparing with them."""
    parser.addoption(
        "--update-screens", action="store_true", help="write the golden screens of the command line"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Loopback and unix sockets only; and no program that a test starts is compiled anew each time."""
    _hear_ignored_signals()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    config.option.allow_hosts = config.option.allow_hosts or "127.0.0.0/8,::1"
    config.option.allow_unix_socket = True


def _hear_ignored_signals() -> None:
    """Let the programs that tests start hear what our parent ignores.

    Shells ignore Ctrl-C for what they run in the background, nohup the end of a terminal, and programs inherit it.
    What has a handler here is no longer ignored in programs that we start.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGQUIT) is signal.SIG_IGN:
        signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: None)  # whoever asked for nohup wants us to live on


@pytest.hookimpl(tryfirst=True)  # before `-m` looks at the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first; the others stay in their order. Of many combinations, some are deep."""
    combinations.mark_the_rest_deep(items)
    longest_files.begin_with_them(items)


def pytest_collection_finish() -> None:
    """What was imported and collected stays: who looks for garbage, as `_close` does, need not go through it each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def isolation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Own HOME, own TRAINYARD_HOME, own tmux sockets, none of the person's settings; nothing may be left running."""
    for name in list(os.environ):
        if name.startswith(FOREIGN_PREFIXES) or name in FOREIGN_NAMES:
            monkeypatch.delenv(name)
    home = tmp_path / "home"
    home.mkdir()
    sockets = Path(
        tempfile.mkdtemp(prefix="tyt-", dir="/tmp")
    )  # short: a unix socket's path has 107 bytes at most
    mark = sockets.name
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("TRAINYARD_HOME", str(home / ".trainyard"))
    monkeypatch.setenv("TMUX_TMPDIR", str(sockets))
    monkeypatch.setenv(sshd_module.TEST_MARK, mark)
    before = set(all_pids())
    yield home
    leaks = _end_leaked_processes(f"{sshd_module.TEST_MARK}={mark}", before)
    leaks += [f"tmux socket {path}" for path in _lasting_tmux_sockets(sockets)]
    shutil.rmtree(sockets, ignore_errors=True)
    if leaks:
        pytest.fail("the test left behind: " + "; ".join(leaks), pytrace=False)


def _end_leaked_processes(mark: str, before: set[int]) -> list[str]:
    """Processes with the test's mark that outlive the grace; they are ended so that they do not hurt other tests."""
    deadline = time.monotonic() + LEAK_GRACE_SECONDS
    while left := sshd_module.marked(mark, among=[pid for pid in all_pids() if pid not in before]):
        if time.monotonic() > deadline:
            break
        time.sleep(0.005)
    described = [f"process {pid} ({_command_line(pid)})" for pid in left]
    if left:
        sshd_module.end_pids(lambda: sshd_module.marked(mark), signal.SIGKILL)
    return described


def _lasting_tmux_sockets(folder: Path) -> list[Path]:
    """Servers that outlive the grace: one with a long history loses its memory first and its socket a moment later."""
    deadline = time.monotonic() + LEAK_GRACE_SECONDS
    while (left := list(sshd_module.live_tmux_sockets(folder))) and time.monotonic() < deadline:
        time.sleep(0.005)
    return left


def _command_line(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return "gone meanwhile"
    return b" ".join(words).decode(errors="replace").strip()[:200]


@pytest.fixture
def sshds(isolation: Path, tmp_path: Path) -> Iterator[Callable[..., list[sshd_module.Sshd]]]:
    """A factory: `sshds(3)` starts three hosts; all end with the test, and so does everything on them."""
    started: list[sshd_module.Sshd] = []

    def start(count: int = 1, **options: object) -> list[sshd_module.Sshd]:
        hosts = sshd_module.start_sshds(count, tmp_path, **options)  # type: ignore[arg-type]  # passed through
        started.extend(hosts)
        return hosts

    yield start
    _close(started)


@pytest.fixture
def sshd(isolation: Path, tmp_path: Path) -> Iterator[sshd_module.Sshd]:
    """One host; it ends with the test."""
    host = sshd_module.start_sshd(tmp_path)
    yield host
    _close([host])


def _close(hosts: list[sshd_module.Sshd]) -> None:
    gc.collect()  # a connection that was forgotten says so in the test that forgot it, and not in a later one
    # What is left on a host is a leak like any other, except what asks a few milliseconds to notice the closed link.
    deadline = time.monotonic() + LEAK_GRACE_SECONDS
    leaks: list[str] = []
    for host in hosts:
        host.stop()
    for host in hosts:
        while (left := host.pids()) and time.monotonic() < deadline:
            time.sleep(0.005)
        leaks += [f"process {pid} on {host.address}:{host.port} ({_command_line(pid)})" for pid in left]
        leaks += [f"tmux socket {path}" for path in sshd_module.live_tmux_sockets(host.tmux_tmpdir)]
        host.close()
    if leaks:
        pytest.fail("the test left behind: " + "; ".join(leaks), pytrace=False)


@pytest.fixture
def ssh_terminals() -> None:
    """Ask for it where a test needs a terminal on a test host."""
    if not sshd_module.can_give_terminals():
        pytest.skip("an ordinary user's sshd gives no terminals here: /dev/pts is mounted without gid=tty")


@pytest.fixture
def hostile_path(tmp_path: Path) -> Path:
    """A folder whose name has a space, quotes, a newline, `$()`, a backtick, a backslash and Chinese letters."""
    path = tmp_path / HOSTILE_NAME
    path.mkdir()
    return path
