"""probe.sh by itself, under three shells, with and without accelerators (stand-in drivers on the PATH)."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from trainyard.backends.ssh import probe
from trainyard.backends.ssh.probe import HostFacts, parse
from trainyard.spec.machine import Device, DeviceKind

SHELLS = [["dash"], ["busybox", "sh"], ["bash"]]

NVIDIA_SMI = """#!/bin/sh
[ "$*" = "--query-gpu=index,name,memory.total --format=csv,noheader" ] || exit 9
echo "0, Tesla V100-SXM2-16GB, 16160 MiB"
echo "1, Tesla V100-SXM2-16GB, 16160 MiB"
"""

# As the driver of Ascend cards prints it; the last chip of a card is its controller.
NPU_SMI = """#!/bin/sh
[ "$*" = "info -m" ] || exit 9
cat <<END
	NPU ID                         Chip ID                        Chip Logic ID                  Chip Name
	0                              0                              0                              Ascend 910B3
	0                              1                              -                              Mcu
	1                              0                              1                              Ascend 910B3
	1                              1                              -                              Mcu
END
"""


@pytest.fixture(params=SHELLS, ids=lambda words: words[0])
def shell(request: pytest.FixtureRequest) -> list[str]:
    if shutil.which(request.param[0]) is None:
        pytest.skip(f"{request.param[0]} is not installed")
    return list(request.param)


def run(shell: list[str], **env: str) -> HostFacts:
    sent = time.time()
    done = subprocess.run(
        [*shell, "-c", probe.SCRIPT], capture_output=True, text=True, env={**os.environ, **env}, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    return parse(done.stdout, sent=sent, received=time.time())


def driver(folder: Path, name: str, text: str) -> str:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


def test_this_computer_is_described_when_probed(shell: list[str], hostile_path: Path) -> None:
    facts = run(shell, HOME=str(hostile_path), SSH_CONNECTION="127.0.0.1 5 127.0.0.9 22")
    assert facts.home == str(hostile_path)
    assert facts.cores == len(os.sched_getaffinity(0))
    assert 0 < facts.memory_mib <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 20
    free = os.statvfs(hostile_path)
    assert facts.disk_free_mib == pytest.approx(free.f_bavail * free.f_frsize >> 20, rel=0.1)
    assert facts.uid == os.getuid()
    assert facts.kernel.endswith(os.uname().release)
    assert facts.arch == os.uname().machine
    assert {"bash", "tar", "find", "sha256sum", "grep"} <= facts.tools
    assert facts.has_proc
    assert facts.is_home_writable
    assert facts.own_address == "127.0.0.9"
    assert facts.skew_seconds == pytest.approx(0, abs=5)


def test_accelerators_are_found_when_their_drivers_answer(shell: list[str], tmp_path: Path) -> None:
    driver(tmp_path / "bin", "nvidia-smi", NVIDIA_SMI)
    path = driver(tmp_path / "bin", "npu-smi", NPU_SMI)
    assert run(shell, PATH=path).devices == (
        Device(DeviceKind.GPU, 0, "V100"),
        Device(DeviceKind.GPU, 1, "V100"),
        Device(DeviceKind.NPU, 0, "Ascend 910B3"),
        Device(DeviceKind.NPU, 1, "Ascend 910B3"),
    )


def test_the_drivers_own_words_are_kept_when_it_fails(shell: list[str], tmp_path: Path) -> None:
    path = driver(tmp_path / "bin", "nvidia-smi", "#!/bin/sh\necho NVIDIA-SMI has failed\nexit 9\n")
    facts = run(shell, PATH=path)
    assert facts.devices == ()
    assert facts.device_errors == ("NVIDIA-SMI has failed",)


def test_nothing_is_changed_when_probed(shell: list[str], tmp_path: Path) -> None:
    home = tmp_path / "empty"
    home.mkdir()
    run(shell, HOME=str(home))
    assert list(home.iterdir()) == []
