"""What a log and an exit code tell of a failure."""

from __future__ import annotations

import pytest

from trainyard.server.diagnosis import EXIT_CODES, PATTERNS, diagnose


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
    ],
)
def test_a_cause_is_found_when_a_line_tells_it(line, code):
    found = diagnose(1, [("worker-0", ["epoch 1", line, "bye"])])
    assert (found.code, found.task, found.line) == (code, "worker-0", line)
    assert found.cause
    assert found.remedy


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
