"""The GPU driver: how the first boot installs it where the image has none, and what is said when that fails."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

import trainyard.backends.aliyun.launch as launch_package
from trainyard.backends.aliyun.launch.user_data import user_data

FOLDER = Path(launch_package.__file__).parent
NVIDIA = 'printf "#!/bin/sh\\nexit ${SMI_STATUS:-0}\\n" > "$BIN/nvidia-smi"; chmod 755 "$BIN/nvidia-smi"'


class Station:
    """A computer whose package programs only note what they are asked for."""

    def __init__(self, folder: Path) -> None:
        self.bin = folder / "bin"
        self.bin.mkdir()
        self.calls = folder / "calls"
        self.calls.write_text("")
        for name in ("sed", "head", "cat", "sh", "chmod", "grep"):
            (self.bin / name).symlink_to(self._real(name))

    @staticmethod
    def _real(name: str) -> str:
        return next(
            f"{folder}/{name}" for folder in ("/usr/bin", "/bin") if os.access(f"{folder}/{name}", os.X_OK)
        )

    def add(self, name: str, body: str = "") -> None:
        path = self.bin / name
        path.write_text(f'#!/bin/sh\nprintf "%s\\n" "{name} $*" >> "$CALLS"\n{body}\n')
        path.chmod(0o755)

    def run(self, **env: str) -> tuple[list[str], list[str]]:
        """What was noted, and which programs were called."""
        text = (FOLDER / "boot.sh").read_text()
        install = text[text.index("install() {") : text.index("# Disks are touched")]
        script = f'note() {{ echo "$1"; }}\n{install}{(FOLDER / "driver.sh").read_text()}\ninstall_driver\n'
        done = subprocess.run(
            ["/bin/sh", "-c", script],
            env={"PATH": str(self.bin), "CALLS": str(self.calls), "BIN": str(self.bin), **env},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines(), self.calls.read_text().splitlines()


@pytest.fixture
def station(tmp_path: Path) -> Station:
    return Station(tmp_path)


def ubuntu(station: Station, *, failing: str = "") -> Station:
    station.add("apt-get", f'case "$*" in *"{failing or "no such word"}"*) exit 100 ;; esac')
    station.add("ubuntu-drivers", NVIDIA)
    station.add("dpkg-query", "echo nvidia-headless-no-dkms-535-server; echo nvidia-headless-535-server")
    station.add("modprobe")
    return station


def test_the_driver_its_tools_and_cuda_are_installed_on_ubuntu(station):
    noted, calls = ubuntu(station).run()
    assert noted == []
    assert calls == [
        "apt-get install -y -q ubuntu-drivers-common",
        "ubuntu-drivers install --gpgpu",
        "dpkg-query -W -f ${Package}\\n nvidia-headless-*",
        "apt-get install -y -q nvidia-utils-535-server",
        "apt-get install -y -q nvidia-cuda-toolkit",
        "modprobe nvidia",
    ]


def test_nothing_is_installed_when_the_driver_is_there(station):
    ubuntu(station).add("nvidia-smi")
    assert station.run() == ([], [])


@pytest.mark.parametrize(
    ("failing", "sentence"),
    [
        ("ubuntu-drivers-common", "the GPU driver cannot be installed"),
        ("nvidia-cuda-toolkit", "CUDA cannot be installed"),
    ],
)
def test_one_sentence_tells_when_a_package_cannot_be_had(station, failing, sentence):
    noted, calls = ubuntu(station, failing=failing).run()
    assert noted == [sentence]
    assert calls.count("apt-get update -q") == 1  # lists of packages in an image are old


def test_one_sentence_tells_when_the_driver_does_not_run(station):
    assert ubuntu(station).run(SMI_STATUS="9")[0] == [
        "the GPU driver was installed, but nvidia-smi does not run"
    ]


def test_one_sentence_tells_when_the_system_is_another(station):
    station.add("dnf")
    assert station.run() == (
        ["the GPU driver is not in this image, and can be installed by us on Ubuntu only"],
        [],
    )


def test_the_first_boot_fits_into_what_the_provider_takes():
    told = user_data(
        authorized=["ssh-rsa " + "A" * 400] * 3, data_disk_gib=500, wants_driver=True, wants_python=True
    )
    assert len(told) < 16 * 1024 * 4 / 3  # of 32 KiB before encoding
