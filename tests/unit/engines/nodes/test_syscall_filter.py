"""The filter of calls: what it lets through and what not, as the kernel itself decides."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from trainyard.engines.nodes.agent.sandbox import syscall_filter

FILTERED = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[4] / "src")!r})
from trainyard.engines.nodes.agent.sandbox import syscall_filter
syscall_filter.apply()
"""


def run(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a script below the filter."""
    return subprocess.run(
        [sys.executable, "-c", FILTERED + script], cwd=folder, capture_output=True, text=True
    )


@pytest.mark.parametrize("machine", sorted(syscall_filter.MACHINES))
def test_a_filter_is_whole_steps_and_ends_with_its_verdicts_when_it_is_made(machine: str):
    found = syscall_filter.program_for(machine)
    steps = [struct.unpack_from("=HBBI", found, at) for at in range(0, len(found), 8)]
    assert len(found) == 8 * len(steps) <= 8 * 4096
    assert [step[0] for step in steps[-4:]] == [syscall_filter.RETURN] * 4
    assert all(at + 1 + jump < len(steps) for at, step in enumerate(steps[:-4]) for jump in step[1:3])


def test_there_is_no_filter_when_the_architecture_is_not_known():
    assert syscall_filter.program_for("pdp11") == b""


def test_ordinary_programs_run_when_the_filter_is_loaded(tmp_path: Path):
    script = (
        "import os, subprocess, threading, tempfile, socket\n"
        "thread = threading.Thread(target=print, args=('thread',)); thread.start(); thread.join()\n"
        "print(subprocess.run(['sh', '-c', 'echo child | cat'], capture_output=True, text=True).stdout.strip(), flush=True)\n"
        "open('made', 'w').close(); os.chmod('made', 0o755); os.mkdir('folder', 0o2775); os.chmod('folder', 0o2775)\n"
        "socket.create_server(('127.0.0.1', 0)).close(); print(oct(os.stat('folder').st_mode))\n"
    )
    done = run(script, tmp_path)
    assert (done.returncode, done.stdout.split()) == (0, ["thread", "child", "0o42775"]), done.stderr


@pytest.mark.parametrize(
    "attempt",
    [
        "os.chmod('file', 0o4755)",
        "os.open('new', os.O_CREAT | os.O_WRONLY, 0o4755)",
        "os.mknod('node', 0o104755)",
        "os.chroot('.')",
        "fcntl.ioctl(0, termios.TIOCSTI, b'x')",
    ],
)
def test_a_call_is_refused_when_containers_have_none_of_it(tmp_path: Path, attempt: str):
    (tmp_path / "file").touch()
    script = (
        f"import fcntl, os, termios\ntry:\n    {attempt}\nexcept OSError as error:\n    print(error.errno)\n"
    )
    assert run(script, tmp_path).stdout == f"{errno.EPERM}\n"


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="a processor with calls of two kinds")
def test_a_process_is_killed_when_it_calls_as_another_architecture(tmp_path: Path):
    # mov eax, 20 (getpid, as programs of 32 bits call it); int 0x80; ret
    script = (
        "import ctypes, mmap\n"
        "page = mmap.mmap(-1, 4096, prot=7); page.write(b'\\xb8\\x14\\x00\\x00\\x00\\xcd\\x80\\xc3')\n"
        "ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()\n"
    )
    assert run(script, tmp_path).returncode == -31  # SIGSYS


def test_the_filter_can_be_read_once_when_bubblewrap_asks_for_it():
    handle = syscall_filter.as_file()
    try:
        assert os.read(handle, 1 << 16) == syscall_filter.own_program()
        assert os.read(handle, 1) == b""
    finally:
        os.close(handle)
    assert ctypes.sizeof(syscall_filter._Program) == 16
