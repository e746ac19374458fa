"""processes.sh by itself, under three shells: what belongs to a machine ends, and nothing else does."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from trainyard.backends.ssh import lease as leases
from trainyard.lib.process_tree import all_pids

pytestmark = [pytest.mark.slow, pytest.mark.each_value]  # each waits for real processes to end

SCRIPT = Path(leases.__file__).with_name("processes.sh")
SHELLS = [["dash"], ["busybox", "sh"], ["bash"]]
ID = "abc123def456"


@pytest.fixture(params=SHELLS, ids=lambda words: words[0])
def shell(request: pytest.FixtureRequest) -> list[str]:
    if shutil.which(request.param[0]) is None:
        pytest.skip(f"{request.param[0]} is not installed")
    return list(request.param)


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Start `sh -c script` in a session of its own, with a mark; killed after the test, whatever becomes of it."""
    started: list[subprocess.Popen[bytes]] = []

    def begin(script: str, mark: str = f"task0.x:{ID}") -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            ["sh", "-c", script],
            env={**os.environ, **({"TRAINYARD_MACHINE": mark} if mark else {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def end(shell: list[str], grace_tenths: int = 20) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*shell, str(SCRIPT), ID, str(grace_tenths)], capture_output=True, text=True, timeout=60
    )


def sleepers(seconds: str) -> list[int]:
    """The pids of `sleep SECONDS`; zombies have no command line."""
    found = []
    for pid in all_pids():
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if words[-3:] == [b"sleep", seconds.encode(), b""]:
            found.append(pid)
    return found


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.01)


def unique(number: int) -> str:
    """A length of sleep that no other test uses."""
    return f"{number}{os.getpid()}"


@pytest.mark.parametrize(
    "script",
    [
        "sleep {n}",
        "sleep {n} & sleep {n} & wait",
        "(setsid sleep {n} &)",
        "setsid sh -c '(sleep {n} &) ; exit' ; sleep {n}",
        "env -i sleep {n} & wait",
        "(env -i sleep {n} &) ; sleep {n}",
        "env -i sh -c 'env -i sleep {n} & wait'",
        "nohup sleep {n} & exit 0",
    ],
)
def test_everything_of_the_machine_ends_when_told(
    shell: list[str], start: Callable[..., subprocess.Popen[bytes]], script: str
) -> None:
    n = unique(91)
    start(script.format(n=n))
    wait_for(lambda: bool(sleepers(n)))
    done = end(shell)
    assert (done.returncode, done.stderr) == (0, "")
    assert sleepers(n) == []


def test_others_live_on_when_a_machine_ends(
    shell: list[str], start: Callable[..., subprocess.Popen[bytes]]
) -> None:
    n = unique(92)
    start(f"sleep {n}", f"task0.x:{ID}")
    others = [
        start(f"sleep {n}", f"task0.x:{ID}9"),
        start(f"sleep {n}", f"task0.x:9{ID}"),
        start(f"sleep {n}", ""),
    ]
    wait_for(lambda: len(sleepers(n)) == 4)
    assert end(shell).returncode == 0
    assert len(sleepers(n)) == 3
    assert [other.poll() for other in others] == [None] * 3


def test_a_process_gets_time_to_clean_up_when_told_to_end(
    shell: list[str], start: Callable[..., subprocess.Popen[bytes]], hostile_path: Path
) -> None:
    file = hostile_path / "cleaned"
    os.environ["CLEANED"] = str(file)
    try:
        process = start(
            "trap 'sleep 0.3; echo yes >\"$CLEANED\"; exit' TERM; "
            'echo >"$CLEANED.ready"; while :; do sleep 0.05; done'
        )
    finally:
        del os.environ["CLEANED"]
    wait_for((hostile_path / "cleaned.ready").exists)
    assert end(shell, 50).returncode == 0
    process.wait()
    assert file.read_text() == "yes\n"


def test_sigkill_comes_when_the_grace_is_over(
    shell: list[str], start: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    ready = tmp_path / "ready"
    process = start(f'trap "" TERM HUP INT; : >"{ready}"; while :; do sleep 0.05; done')
    wait_for(ready.exists)
    began = time.monotonic()
    assert end(shell, 3).returncode == 0
    assert time.monotonic() - began > 0.25
    assert process.wait() == -signal.SIGKILL


def test_a_stopped_process_ends_when_told(
    shell: list[str], start: Callable[..., subprocess.Popen[bytes]]
) -> None:
    process = start("kill -STOP $$; sleep 1000")
    wait_for(lambda: b") T " in Path(f"/proc/{process.pid}/stat").read_bytes())
    assert end(shell, 0).returncode == 0
    assert process.wait() < 0


def test_what_is_born_meanwhile_ends_too_when_it_keeps_forking(
    shell: list[str], start: Callable[..., subprocess.Popen[bytes]]
) -> None:
    n = unique(93)
    start(f"trap '' TERM; while :; do (setsid sleep {n} &); sleep 0.02; done")
    wait_for(lambda: len(sleepers(n)) > 2)
    assert end(shell, 2).returncode == 0
    assert sleepers(n) == []


def test_a_shell_that_exports_the_mark_itself_ends_too(
    shell: list[str], start: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    ready = tmp_path / "ready"
    process = start(
        f"export TRAINYARD_MACHINE=task0.x:{ID}; : >{ready}; while :; do read -r x </dev/zero; done", ""
    )
    wait_for(ready.exists)
    assert end(shell).returncode == 0
    assert process.wait() == -signal.SIGTERM


def test_the_way_to_the_script_is_spared_when_it_is_marked_itself(shell: list[str]) -> None:
    words = " ".join(shell)
    done = subprocess.run(
        ["sh", "-c", f'sh -c \'{words} "$0" {ID} 5; echo inner $?\' "$0"; echo outer $?', str(SCRIPT)],
        env={**os.environ, "TRAINYARD_MACHINE": f"task0.x:{ID}"},
        capture_output=True,
        text=True,
        start_new_session=True,
    )
    assert done.stdout == "inner 0\nouter 0\n"


def test_nothing_happens_when_nothing_runs(shell: list[str]) -> None:
    assert end(shell).returncode == 0


def test_everything_ends_when_grep_stops_at_nul_bytes(
    shell: list[str],
    start: Callable[..., subprocess.Popen[bytes]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    n = unique(94)
    start(f"sleep {n}")
    wait_for(lambda: bool(sleepers(n)))
    poor = tmp_path / "bin" / "grep"
    poor.parent.mkdir()
    # As a grep that works on C strings: a line ends for it where a NUL is.
    poor.write_text(f"#!/bin/sh\nsed 's/\\x00.*//' | {shutil.which('grep')} \"$@\"\n")
    poor.chmod(0o755)
    monkeypatch.setenv("PATH", f"{poor.parent}:{os.environ['PATH']}")
    if shell[0] == "busybox":
        pytest.skip("busybox uses its own grep")
    assert end(shell).returncode == 0
    assert sleepers(n) == []
