from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from trainyard.runtime import usage
from trainyard.runtime.usage import DeviceUsage, Usage
from trainyard.spec.machine import DeviceKind

SHELLS = [words for words in (["sh"], ["dash"], ["bash"], ["busybox", "sh"]) if shutil.which(words[0])]
ONCE = Usage(counters="0 0 0")  # as if read before: no need to look twice
NPU_USAGES = """\
\tNPU ID                         : 3
\tChip Count                     : 1

\tDDR Capacity(MB)               : 0
\tDDR Usage Rate(%)              : 0
\tHBM Capacity(MB)               : 65536
\tHBM Usage Rate(%)              : 50
\tAicore Usage Rate(%)           : 87
\tHBM Bandwidth Usage Rate(%)    : 1
\tChip ID                        : 0
"""


def read(shell=("sh",), previous=None, **env):
    clean = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"], **env}
    done = subprocess.run(
        [*shell, "-c", usage.script(previous)],
        capture_output=True,
        text=True,
        env=clean,
        timeout=60,
        check=True,
    )
    assert done.stderr == ""
    return usage.parse(done.stdout)


@pytest.fixture
def tools(tmp_path):
    """Put a vendor's tool on PATH that prints what such a tool prints."""
    folder = tmp_path / "vendor bin"
    folder.mkdir()

    def add(name, body):
        (folder / name).write_text(f"#!/bin/sh\n{body}\n")
        (folder / name).chmod(0o755)
        return f"{folder}:{os.environ['PATH']}"

    return add


@pytest.mark.parametrize("shell", SHELLS, ids="-".join)
def test_readings_are_sane_when_taken_on_this_computer(shell):
    got = read(shell)
    assert 0 <= got.cpu_percent <= 100
    assert got.cpus == len(os.sched_getaffinity(0))
    assert len(got.load) == 3
    assert 0 < got.memory_used_mib < got.memory_total_mib
    assert got.memory_total_mib == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2**20
    disk = shutil.disk_usage(os.environ["HOME"])
    assert abs(got.disk_total_mib - disk.total // 2**20) <= 1
    assert got.own_processes is None
    assert got.own_cpu_percent is None


def test_use_is_counted_since_the_last_reading_when_there_is_one():
    first = read()
    second = read(previous=first)
    # The counters stand in hundredths of a second: a reading that follows at once may see no time pass.
    assert second.cpu_percent is None or 0 <= second.cpu_percent <= 100
    assert [
        int(new) >= int(old) for old, new in zip(first.counters.split(), second.counters.split(), strict=True)
    ]


@pytest.mark.slow  # processor time has to be used before it can be seen: the two looks are 0.2 s apart
@pytest.mark.parametrize("shell", SHELLS, ids="-".join)
def test_only_its_own_processes_count_when_machines_share_a_computer(shell):
    name = "task1.a"  # task1.a2 below must not count as task1.a
    busy = (
        "import ctypes; ctypes.CDLL(None).prctl(15, b'x) (y\\nz'); print('up', flush=True)\nwhile True: pass"
    )
    marked = [
        subprocess.Popen(
            [sys.executable, "-c", busy],
            stdout=subprocess.PIPE,
            env={**os.environ, "TRAINYARD_MACHINE": mark},
        )
        for mark in (name, name + "2")
    ]
    try:
        for process in marked:
            assert process.stdout.readline() == b"up\n"
        got = read(shell, TRAINYARD_MACHINE=name)
    finally:
        for process in marked:
            process.kill()
            process.communicate()
    shells = 4  # the reading itself runs on the machine
    assert 1 <= got.own_processes <= 1 + shells
    assert 0 < got.own_cpu_percent <= 100
    assert got.own_memory_mib >= 1


@pytest.mark.parametrize("shell", SHELLS, ids="-".join)
def test_gpus_are_read_when_nvidia_smi_is_there(shell, tools):
    path = tools(
        "nvidia-smi",
        "case $1 in --query-gpu=index,name,utilization.gpu,memory.used,memory.total,temperature.gpu,power.draw) ;;"
        " *) exit 1 ;; esac\n"
        "echo '0, Tesla V100-SXM2-16GB, 97, 15000, 16384, 61, 249.50'\n"
        "echo '1, NVIDIA GeForce RTX 4090, [N/A], 10, 24564, 30, [Not Supported]'",
    )
    assert read(shell, ONCE, PATH=path).devices == (
        DeviceUsage(
            kind=DeviceKind.GPU,
            index=0,
            model="V100",
            busy_percent=97,
            memory_used_mib=15000,
            memory_total_mib=16384,
            temperature_celsius=61,
            power_watts=249.5,
        ),
        DeviceUsage(
            kind=DeviceKind.GPU,
            index=1,
            model="NVIDIA GeForce RTX 4090",
            memory_used_mib=10,
            memory_total_mib=24564,
            temperature_celsius=30,
        ),
    )
    assert [device.index for device in read(shell, ONCE, PATH=path, CUDA_VISIBLE_DEVICES="1").devices] == [1]
    assert read(shell, ONCE, PATH=path, CUDA_VISIBLE_DEVICES="").devices == ()
    assert len(read(shell, ONCE, PATH=path, CUDA_VISIBLE_DEVICES="GPU-8932f937").devices) == 2


@pytest.mark.parametrize("shell", SHELLS, ids="-".join)
def test_npus_are_read_when_npu_smi_is_there(shell, tools):
    path = tools(
        "npu-smi",
        f"case \"$*\" in 'info -l') printf '\\tTotal Count : 1\\n\\n\\tNPU ID : 3\\n\\tChip Count : 1\\n' ;;\n"
        f"'info -t usages -i 3') cat <<'END'\n{NPU_USAGES}END\n;; *) exit 1 ;; esac",
    )
    assert read(shell, ONCE, PATH=path).devices == (
        DeviceUsage(
            kind=DeviceKind.NPU, index=3, busy_percent=87, memory_used_mib=32768, memory_total_mib=65536
        ),
    )


def test_the_rest_is_read_when_a_vendors_tool_fails(tools):
    got = read(PATH=tools("nvidia-smi", "echo 'Failed to initialize NVML: Driver mismatch'; exit 9"))
    assert got.devices == ()
    assert got.memory_total_mib


def test_nothing_is_claimed_when_nothing_could_be_read():
    assert usage.parse("") == Usage()
    assert usage.parse(
        "before 1 2\nafter x\nown ?\ncpus many\ngpu a, b\ndisk -\nmemory MemTotal x\n\n"
    ) == Usage(counters="x")
    assert usage.script(Usage(counters="$(rm -rf /)")).startswith("previous=''\n")


@pytest.mark.parametrize(
    ("before", "after", "percent"),
    [("10 100 0", "60 200 25", (50, 25)), ("10 100 9", "10 200 0", (0, 0)), ("5 5 5", "5 5 5", (None, None))],
)
def test_percent_is_between_0_and_100_when_counted(before, after, percent):
    got = usage.parse(f"before {before}\nafter {after}\nown 1 2048\n")
    assert (got.cpu_percent, got.own_cpu_percent) == percent
    assert got.own_memory_mib == 2


def test_disk_is_read_when_its_name_has_blanks():
    got = usage.parse("disk //server/my share 1 2048 1024 1024 50% /mnt/a b\n")
    assert (got.disk_total_mib, got.disk_used_mib) == (2, 1)


def test_memory_is_counted_from_its_parts_when_the_kernel_is_old():
    got = usage.parse("memory MemTotal 10240\nmemory MemFree 1024\nmemory Buffers 1024\nmemory Cached 2048\n")
    assert (got.memory_used_mib, got.memory_total_mib) == (6, 10)
