"""The data disk of a machine, with real disks: files as block devices, in a mount namespace that ends with the test."""

from __future__ import annotations

import os
import re
import shutil
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import trainyard.backends.aliyun.launch as launch_package

SCRIPT = Path(launch_package.__file__).with_name("data_disk.sh")
TOOLS = ("losetup", "lsblk", "blkid", "mkfs.ext4", "unshare", "mountpoint", "partx")


def can_attach() -> bool:
    return os.geteuid() == 0 and not [tool for tool in TOOLS if shutil.which(tool) is None] and _tried()


def _tried() -> bool:
    done = subprocess.run(["unshare", "-m", "losetup", "-f"], capture_output=True, text=True)
    return done.returncode == 0 and Path(done.stdout.strip() or "/none").exists()


pytestmark = [
    pytest.mark.skipif(not can_attach(), reason="needs root, block devices of files, and file system tools"),
    pytest.mark.slow,  # formats real file systems
]

# The kernel calls these disks `loop`; beside the disks of the test, those of the computer are out of sight.
LSBLK = """#!/bin/sh
case "$*" in
    *NAME,TYPE) for each in $DISKS; do {lsblk} "$@" "$each"; done | awk '!seen[$0]++' | sed 's/ loop/ disk/' ;;
    *) exec {lsblk} "$@" ;;
esac
"""


class Box:
    """Disks, and a machine that finds them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.disks: list[str] = []
        self.data = folder / "data"
        self.fstab = folder / "fstab"
        self.fstab.write_text("UUID=1234 / ext4 defaults 0 1\n")
        bin_folder = folder / "bin"
        bin_folder.mkdir()
        (bin_folder / "lsblk").write_text(LSBLK.replace("{lsblk}", str(shutil.which("lsblk"))))
        (bin_folder / "sleep").write_text("#!/bin/sh\n")  # a disk that never comes is not waited for
        for program in bin_folder.iterdir():
            program.chmod(0o755)

    def attach(self, gib: int = 1, prepare: str = "", begin: bytes = b"") -> str:
        """A disk of this size that begins with these bytes, prepared by a script that knows it as $disk."""
        image = self.folder / f"disk{len(self.disks)}.img"
        with image.open("wb") as stream:
            stream.write(begin)
            stream.truncate(gib << 30)
        done = subprocess.run(
            ["losetup", "-P", "-f", "--show", str(image)], capture_output=True, text=True, check=True
        )
        self.disks.append(done.stdout.strip())
        self.inside(f"disk={self.disks[-1]}\n{prepare}")
        return self.disks[-1]

    def inside(self, script: str) -> str:
        """Run in a mount namespace of its own; what it printed."""
        env = {
            **os.environ,
            "DISKS": " ".join(self.disks),
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
        }
        done = subprocess.run(
            ["unshare", "-m", "sh", "-euc", script], env=env, capture_output=True, text=True, cwd=self.folder
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def boot(self, then: str = "", *, gib: int = 1, snapshot: bool = False, times: int = 1) -> str:
        """Mount the data disk as a first boot does, so often; what it noted, and what `then` prints."""
        head = 'note() { echo "noted: $1"; }\n'
        head += (
            f"wants_data={gib} is_snapshot={'yes' if snapshot else ''} data={self.data} fstab={self.fstab}\n"
        )
        return self.inside(head + SCRIPT.read_text() + "set +e\n" + "mount_data\n" * times + then)

    def lines(self) -> list[str]:
        """What was written into fstab."""
        return [line for line in self.fstab.read_text().splitlines() if str(self.data) in line]

    def close(self) -> None:
        for disk in self.disks:
            subprocess.run(["partx", "-d", disk], capture_output=True)
            subprocess.run(["losetup", "-d", disk], check=True)


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    made = Box(tmp_path)
    try:
        yield made
    finally:
        made.close()


WITH_FILES = 'mkfs.ext4 -q "$disk"; mkdir -p m; mount "$disk" m; echo precious > m/file; umount m'
# One partition of Linux, from the first MiB on.
TABLE = b"".join(
    [bytes(446), b"\0\0\0\0\x83\0\0\0", struct.pack("<II", 2048, (1 << 21) - 2048), bytes(48), b"\x55\xaa"]
)


def test_a_fresh_disk_is_formatted_and_mounted_now_and_at_every_boot(box):
    box.attach()
    said = box.boot('findmnt -n -o FSTYPE "$data"; echo new > "$data/file"')
    assert said == "ext4\n"
    (line,) = box.lines()
    assert re.fullmatch(rf"UUID=[0-9a-f-]{{36}} {box.data} auto defaults,nofail 0 2", line)
    # The next boot mounts it by its id, whatever the disk is called then.
    assert box.inside(f"mount -T {box.fstab} {box.data}; cat {box.data}/file") == "new\n"


def test_no_file_is_lost_when_the_disk_is_formatted_already(box):
    box.attach(prepare=WITH_FILES)
    assert box.boot('cat "$data/file"') == "precious\n"


def test_no_file_is_lost_when_the_disk_is_made_from_a_snapshot(box):
    box.attach(prepare=WITH_FILES)
    assert box.boot('cat "$data/file"', snapshot=True) == "precious\n"


def test_a_snapshot_is_never_formatted_when_it_cannot_be_read(box):
    disk = box.attach(prepare='echo "a format of my own" | dd of="$disk" bs=1M seek=3 2>/dev/null')
    said = box.boot(snapshot=True)
    assert said.startswith("noted: ")
    assert "left as it is" in said
    assert box.lines() == []
    assert box.inside(f"dd if={disk} bs=1M skip=3 count=1 2>/dev/null | head -c 18") == "a format of my own"


def test_nothing_is_touched_but_the_disk_of_the_size_that_was_asked_for(box):
    other = box.attach(gib=2, prepare="")
    wanted = box.attach(gib=1)
    assert box.boot('findmnt -n -o SOURCE "$data"') == f"{wanted}\n"
    assert box.inside(f"blkid -p {other} || echo blank") == "blank\n"


def test_it_is_done_once_when_it_is_run_twice(box):
    box.attach()
    assert box.boot('echo new > "$data/file"; mount_data; cat "$data/file"', times=2) == "new\n"
    assert len(box.lines()) == 1
    # From a shell that starts anew, as after a boot that did not get as far as fstab's line.
    assert box.boot('cat "$data/file"') == "new\n"
    assert len(box.lines()) == 1


def test_the_line_of_another_disk_goes_when_the_image_brings_one(box):
    with box.fstab.open("a") as stream:
        stream.write(f"UUID=dead-beef {box.data} auto defaults,nofail 0 2\n")
    box.attach()
    assert box.boot() == ""
    assert [line for line in box.lines() if "dead-beef" in line] == []
    assert "UUID=1234 / ext4" in box.fstab.read_text()


def test_the_files_of_a_partition_are_mounted_when_there_is_one(box):
    disk = box.attach(begin=TABLE, prepare='partx -a "$disk"')
    box.inside(f"disk={disk}p1\n{WITH_FILES}")
    assert box.boot('cat "$data/file"', snapshot=True) == "precious\n"


def test_a_disk_with_a_table_of_partitions_is_left_alone_when_no_files_are_found(box):
    disk = box.attach(begin=TABLE, prepare='partx -a "$disk"')
    before = box.inside(f"blkid -p {disk}")
    said = box.boot()
    assert "not empty but has no file system that can be read, so it was left as it is" in said
    assert box.inside(f"blkid -p {disk}") == before
    assert box.lines() == []


def test_it_is_told_when_the_disk_does_not_appear(box):
    box.attach(gib=2)
    assert box.boot() == "noted: the data disk did not appear\n"
