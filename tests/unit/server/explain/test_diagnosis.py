"""What a log and an exit code tell of a failure."""

from __future__ import annotations

import re

import pytest

from trainyard.server.explain.diagnosis import diagnose
from trainyard.server.explain.failure_patterns import EXIT_CODES, NEEDLES, PATTERNS


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("ModuleNotFoundError: No module named 'torch'", "module_missing"),
        ("bash: line 1: nvidia-smii: command not found", "command_missing"),
        ("/bin/sh: 1: foo: not found", "command_missing"),
        ("RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB", "device_memory"),
        ("torch.cuda.OutOfMemoryError: CUDA out of memory", "device_memory"),
        ("RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error.", "shared_memory"),
        ("[E ProcessGroupNCCL.cpp:475] Watchdog caught collective operation timeout", "nccl_timeout"),
        ("NCCL timeout after 1800 s", "nccl_timeout"),
        ("urllib3.exceptions.ReadTimeoutError: HTTPSConnectionPool", "download_timeout"),
        ("Error: manifest unknown: manifest unknown", "image_pull"),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/mnt/x'", "file_missing"),
        ("OSError: [Errno 28] No space left on device", "disk_full"),
        ("disk: it used more than its 20 GiB of the node's disk, 20.4 GiB", "disk_limit"),
        ("disk: the node's disk was full, and no other task used more of it: 31 GiB", "disk_limit"),
        ("MemoryError", "memory"),
        ("NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.", "device_broken"),
        ("train.py: error: unrecognized arguments: --lrr", "arguments"),
        ("ValueError: shapes do not match", "exception"),
        ("connect to 10.0.0.2 port 23456 failed: Connection refused", "peer_unreachable"),
        ("/usr/bin/python3: No module named torchh", "module_missing"),
        ("ERROR: No matching distribution found for foo==9", "requirement_missing"),
        (
            "OSError: libcudart.so.11.0: cannot open shared object file: No such file or directory",
            "library_missing",
        ),
        ("RuntimeError: No CUDA GPUs are available", "no_device"),
        ("RuntimeError: CUDA error: device-side assert triggered", "device_assert"),
        ("ResourceExhaustedError: OOM when allocating tensor with shape[64]", "device_memory"),
        ("RuntimeError: NPU out of memory. Tried to allocate 256.00 MiB", "device_memory"),
        ("[ERROR] HCCL(1,python): EI0006: Getting socket times out.", "hccl"),
        ("RuntimeError: NPU function error: HCCL error, error code is 507048", "hccl"),
        ("torch.distributed.DistBackendError: NCCL error in: x.cpp:1331, unhandled system error", "nccl"),
        ("torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError", "rendezvous"),
        ("The server socket has failed to bind (errno: 98 - Address already in use).", "port_taken"),
        ("ORTE was unable to reliably start one or more daemons.", "mpi_start"),
        ("requests.exceptions.SSLError: Max retries exceeded with url: /bert", "download_timeout"),
        ("OSError: [Errno 24] Too many open files", "open_files"),
        ("Segmentation fault (core dumped)", "segfault"),
        ("Fatal Python error: Segmentation fault", "segfault"),
        ("PermissionError: [Errno 13] Permission denied: '/data/x'", "permission"),
        ("write: Broken pipe", "peer_lost"),
        ("RuntimeError: Memory not enough: device memory pool malloc failed.", "device_memory"),
        (
            "bfc_allocator.cc:431] Allocator (GPU_0_bfc) ran out of memory trying to allocate 1GiB",
            "device_memory",
        ),
        ("java.lang.OutOfMemoryError: Java heap space", "memory"),
        ("RuntimeError: DataLoader worker (pid 1234) is killed by signal: Killed.", "memory"),
        (
            "misc/shmutils.cc:72 NCCL WARN Error: failed to extend /dev/shm/nccl-abc to 9637892 bytes",
            "shared_memory",
        ),
        ("bash: line 1:   112 Killed                  python train.py", "killed"),
        ("traceback : Signal 9 (SIGKILL) received by PID 3312", "killed"),
        ("bash：行1: 1234 已杀死               python train.py", "killed"),
        ("ended by signal 9 (SIGKILL); the node may have run out of memory", "killed"),
        ("/job/command: line 1: ./y.sh: cannot execute: required file not found", "line_ends"),
        ("double free or corruption (!prev)", "aborted"),
        ("EI0004: The ranktable is invalid,Reason:[The ranktable check failed].", "rank_table"),
        (
            "EJ0001: Failed to initialize the HCCP process. Reason: Maybe the last training process is running.",
            "device_held",
        ),
        ("[CRITICAL] DEVICE(11,7f,python): Call rt api rtSetDevice failed, ret: 507033", "device_broken"),
        ("SyntaxError: invalid syntax", "syntax"),
        ("IndentationError: expected an indented block", "syntax"),
        ("bash: ./run.sh: /bin/bash^M: bad interpreter: No such file or directory", "line_ends"),
        ("run.sh: line 2: $'\\r': command not found", "line_ends"),
        ("bash: ./run: cannot execute binary file: Exec format error", "other_processor"),
        ("bash：行1: nvcc：未找到命令", "command_missing"),
        ("socket.gaierror: [Errno -2] Name or service not known", "name_unknown"),
        ("ssh: Could not resolve hostname worker-1: Name or service not known", "name_unknown"),
        ("OSError: We couldn't connect to 'https://hub.example' to load this file", "download_timeout"),
        ("fatal: could not read Username for 'https://git.example.com': No such device or address", "git"),
        ("fatal: Remote branch foo not found in upstream origin", "git"),
        ("git@git.example.com: Permission denied (publickey).", "git"),
        ("fatal: unable to access 'https://git.example.com/x/': Failed to connect", "download_timeout"),
        ("fatal: detected dubious ownership in repository at '/work/code'", "last_words"),
        ("ERROR: ResolutionImpossible: for help visit the pages of pip", "requirement_failed"),
        ("error: externally-managed-environment", "requirement_failed"),
        ("  error: subprocess-exited-with-error".strip(), "requirement_failed"),
        ("ImportError: /opt/x.so: undefined symbol: _ZN2at4_ops", "library_missing"),
        (
            "RuntimeError: CUDA error: no kernel image is available for execution on the device",
            "framework_unfit",
        ),
        (
            "RuntimeError: The NVIDIA driver on your system is too old (found version 11040).",
            "framework_unfit",
        ),
        ("RuntimeError: The client socket has timed out after 300s while trying to connect", "rendezvous"),
        ("There are not enough slots available in the system to satisfy the 16", "mpi_slots"),
        ("mpirun has detected an attempt to run as root.", "mpi_root"),
        ("mpirun was unable to find the specified executable file, and therefore", "command_missing"),
        ("MPI_ABORT was invoked on rank 0 in communicator MPI_COMM_WORLD", "child_failed"),
        (
            "mpirun detected that one or more processes exited with non-zero status, thus causing",
            "child_failed",
        ),
        ("torch.distributed.elastic.multiprocessing.errors.ChildFailedError:", "child_failed"),
        (
            "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory",
            "checkpoint",
        ),
        ("OSError: [Errno 116] Stale file handle: '/mnt/share/x'", "storage_broken"),
        ("RuntimeError: can't start new thread", "threads"),
        ("bash: ./run.sh: Permission denied", "permission"),
        ("the storage at /sets cannot be shown: it is not there", "storage_refused"),
        ("trainyard: the folder etc of the storage at /sets is a link or no folder", "storage_refused"),
        ("the node has no /no/such/folder for the storage at /mnt/x", "storage_refused"),
        (
            "the image localhost/x:1 cannot be fetched (not reached): dial tcp 127.0.0.1:443: connection refused",
            "image_pull",
        ),
        ("out of memory: it used more than its 100 MiB", "memory"),
        ("python: can't open file '/work/trian.py': [Errno 2] No such file or directory", "file_missing"),
        (
            "reading manifest: unauthorized: access to the requested resource is not authorized",
            "image_pull",
        ),
    ],
)
def test_a_cause_is_found_when_a_line_tells_it(line, code):
    found = diagnose(1, [("worker-0", ["epoch 1", line, "bye"])])
    assert (found.code, found.task, found.line) == (code, "worker-0", line)
    assert found.cause
    assert found.remedy


@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda one: one.code)
def test_no_part_of_a_pattern_is_passed_over_when_lines_are_looked_through_quickly(pattern):
    for part in alternatives(pattern.line.pattern):
        words = re.sub(r"\(\?[!:i]+|[\\^$?*+]+[bSsdw]?|[()\[\]|]", " ", part).lower()
        assert any(needle.strip("^\\'") in words for needle in NEEDLES), part


def alternatives(text: str) -> list[str]:
    """What stands between the bars of a pattern that are in no brackets."""
    parts, depth = [""], 0
    for sign in text:
        depth += (sign == "(") - (sign == ")")
        if sign == "|" and depth == 0:
            parts.append("")
        else:
            parts[-1] += sign
    return parts


def test_nothing_is_made_up_when_the_log_tells_nothing():
    found = diagnose(3, [("worker-0", ["epoch 1 loss 0.5", "epoch 2 loss 0.4"])])
    assert (found.code, found.line, found.remedy) == ("", "", "")
    assert found.meaning == EXIT_CODES[1][0]


def test_the_more_telling_line_wins_when_several_are_there():
    lines = ["Traceback (most recent call last):", "RuntimeError: x", "CUDA out of memory", "ValueError: y"]
    assert diagnose(1, [("worker-0", lines)]).code == "device_memory"


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        (["The client socket has failed to connect (errno: 111 - Connection refused)", "CUDA out of memory"], "device_memory"),
        (["[rank1]: Watchdog caught collective operation timeout", "RuntimeError: CUDA out of memory"], "device_memory"),
        (["KeyError: 'label'", "BrokenPipeError: [Errno 32] Broken pipe"], "exception"),
        (["ReadTimeoutError: x", "ModuleNotFoundError: No module named 'y'"], "download_timeout"),
        (["connect: Connection refused", "ModuleNotFoundError: No module named 'y'"], "module_missing"),
        (["NCCL INFO NCCL_TIMEOUT set by environment to 1800", "ValueError: bad label 7"], "exception"),
        (["WARNING: nccl timeout set to 1800 s", "ValueError: bad label 7"], "exception"),
        (["cat: /etc/settings: No such file or directory", "ValueError: bad label 7"], "exception"),
        (["connect failed: Connection refused, trying again", "KeyError: 'x'"], "exception"),
        (["cat: /etc/settings: No such file or directory", "PermissionError: [Errno 13] Permission denied"], "permission"),
        (["python: can't open file 'x.py': No such file or directory", "train.py: ChildFailedError: x"], "file_missing"),
        (["subprocess.CalledProcessError: Command 'a' returned 1", "KeyError: 'x'"], "exception"),
        (["(GPU_0_bfc) ran out of memory, but this is not a failure", "KeyError: 'x'"], "exception"),
        (["ERROR: it did not work", "Killed"], "killed"),
    ],
)  # fmt: skip
def test_the_cause_wins_when_what_followed_from_it_is_there_too(lines, code):
    assert diagnose(1, [("worker-0", lines)]).code == code
    assert diagnose(1, [("worker-0", lines[::-1])]).code == code


@pytest.mark.parametrize(
    "line", ["\x1b[31mValueError: bad\x1b[0m", "[rank0]: ValueError: bad", "[1,0]<stderr>:ValueError: bad"]
)
def test_an_exception_is_seen_when_a_launcher_has_dressed_its_line(line):
    assert diagnose(1, [("worker-0", [line])]).code == "exception"


def test_a_log_of_one_endless_line_takes_no_time_when_it_is_looked_at():
    lines = ["nccl" * 65536, "DataLoader worker " * 16384, ": " * 131072]
    assert diagnose(1, [("worker-0", lines)]).code == ""  # its length is cut: else this would not come back


def test_the_first_of_equal_lines_wins_when_tasks_say_the_same():
    logs = [("worker-1", ["ValueError: first"]), ("worker-0", ["ValueError: second"])]
    assert diagnose(1, logs).task == "worker-1"


@pytest.mark.parametrize("code", sorted(EXIT_CODES))
def test_an_exit_code_is_explained_in_both_languages_when_it_is_known(code):
    assert diagnose(code, []).meaning == EXIT_CODES[code][0]
    assert diagnose(code, [], chinese=True).meaning == EXIT_CODES[code][1]


@pytest.mark.parametrize(("code", "words"), [(150, "signal 22"), (0, ""), (None, "")])
def test_other_exit_codes_are_told_when_they_are_signals(code, words):
    assert words in diagnose(code, []).meaning


def test_causes_have_names_of_their_own_when_they_are_listed():
    assert len({one.code for one in PATTERNS}) == len(PATTERNS)


def test_a_huge_line_is_cut_when_it_is_shown():
    assert len(diagnose(1, [("w", ["ValueError: " + "x" * 100_000])]).line) == 500
