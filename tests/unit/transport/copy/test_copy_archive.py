from __future__ import annotations

import io
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.lib.errors import DeniedError
from trainyard.transport.copy.api import CopyOptions
from trainyard.transport.copy.archive import BLOCK, Segment, end_mark, pack, segments
from trainyard.transport.copy.manifest import ROOT, ManifestEntry, scan
from trainyard.transport.copy.payload import make_payload

UNPACKERS = {
    "gnu": ["tar", "-xpo", "-f", "-"],
    "busybox": ["busybox", "tar", "-xpo", "-f", "-"],
}


def packed(entries: list[ManifestEntry], notes: list[str] | None = None) -> bytes:
    (segment,) = segments(entries)
    payload = make_payload(lambda descriptor: pack(segment, descriptor, notes if notes is not None else []))
    descriptor = payload.open()
    try:
        data = os.read(descriptor, payload.length + 1)
        assert len(data) == payload.length
        return data
    finally:
        os.close(descriptor)
        payload.close()


def everything(folder: Path) -> list[ManifestEntry]:
    manifest = scan([(ROOT, folder)], CopyOptions())
    return [*manifest.folders, *manifest.files]


def hostile_tree(folder: Path) -> None:
    raw = os.fsencode(folder)
    names = [
        b"plain",
        b"-rf",
        b"$(touch pwned)",
        b"new\nline",
        "中文".encode(),
        b"caf\xe9\xff",
        b"quote'\"`\\",
        b"n" * 100,
        b"m" * 101,
        b"l" * 255,
        b"/".join([b"deep"] * 40) + b"/leaf",
        b"/".join([b"d" * 120] * 5) + b"/" + b"f" * 200,
        b"p" * 90 + b"/" + b"q" * 99,
    ]
    for number, name in enumerate(names):
        path = raw + b"/" + name
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(b"x" * (number * 300))
        os.utime(path, (1_600_000_000 + number, 1_600_000_000 + number))
    os.chmod(raw + b"/plain", 0o751)
    os.mkdir(raw + b"/empty", 0o700)
    os.symlink(b"plain", raw + b"/link")
    os.symlink(b"/" + b"far" * 60, raw + b"/long link")


def differences(left: Path, right: Path) -> bytes:
    words = [
        "rsync",
        "-aicn",
        "--delete",
        "--omit-dir-times",
        "--no-owner",
        "--no-group",
        f"{left}/",
        f"{right}/",
    ]
    return subprocess.run(words, check=True, capture_output=True).stdout


@pytest.mark.parametrize("unpacker", UNPACKERS)
def test_a_stranger_unpacks_the_same_tree_when_names_are_hostile(tmp_path, unpacker):
    source, target = tmp_path / "s", tmp_path / "t"
    source.mkdir(), target.mkdir()
    hostile_tree(source)
    data = packed(everything(source))
    result = subprocess.run(UNPACKERS[unpacker], input=data, cwd=target, capture_output=True, check=True)
    assert result.stderr == b""
    left = differences(source, target)
    if unpacker == "busybox":  # it does not set the times of links
        left = b"".join(line for line in left.splitlines(True) if not line.startswith((b"cL", b".L")))
    assert left == b""
    assert not (target / "pwned").exists()


@given(
    st.binary(min_size=1, max_size=300).filter(lambda name: b"\0" not in name),
    st.integers(0, 0o7777),
    st.integers(0, 2**33 - 1),
)
def test_python_reads_the_same_header_when_anything_is_written(name, mode, mtime):
    name = name.strip(b"/") or b"x"
    entry = ManifestEntry(name, b"/dev/null", 0o100000 | mode, 0, mtime, 0, 0, b"")
    with tarfile.open(fileobj=io.BytesIO(packed([entry]))) as archive:
        (member,) = archive.getmembers()
    assert os.fsencode(member.name) == name
    assert (member.mode, member.mtime, member.size) == (mode, mtime, 0)


def test_the_announced_length_is_right_when_nothing_changes(tmp_path):
    hostile_tree(tmp_path)
    entries = everything(tmp_path)
    (segment,) = segments(entries)
    assert len(packed(entries)) == segment.length
    assert segment.length % BLOCK == 0


def test_archives_are_cut_and_complete_when_there_is_much(tmp_path):
    tmp_path = tmp_path / "tree"
    tmp_path.mkdir()
    for number in range(20):
        (tmp_path / str(number)).write_bytes(bytes(10_000))
    parts = list(segments(everything(tmp_path), limit=50_000))
    assert len(parts) > 3
    assert all(part.length < 60_000 for part in parts)
    names = [entry.name for part in parts for entry in part.entries]
    assert len(names) == len(set(names)) == 21


@pytest.mark.parametrize("size", [100, 1_000_000])
def test_the_archive_stays_whole_when_files_change_after_the_scan(tmp_path, size):
    for name in ("grows", "shrinks", "vanishes", "stays"):
        (tmp_path / name).write_bytes(b"o" * size)
    entries = everything(tmp_path)
    (tmp_path / "grows").write_bytes(b"n" * (size + 5000))
    (tmp_path / "shrinks").write_bytes(b"n" * (size // 2))
    (tmp_path / "vanishes").unlink()
    notes: list[str] = []
    with tarfile.open(fileobj=io.BytesIO(packed(entries, notes))) as archive:
        contents = {member.name: archive.extractfile(member).read() for member in archive if member.isfile()}
    assert contents["stays"] == b"o" * size
    assert contents["grows"] == b"n" * size
    assert contents["shrinks"].rstrip(b"\0") == b"n" * (size // 2)
    assert "vanishes" not in contents
    assert {word for note in notes for word in ("grows", "shrinks", "vanishes") if word in note} == {
        "grows",
        "shrinks",
        "vanishes",
    }


@pytest.mark.skipif(os.getuid() == 0, reason="root reads everything")
def test_the_file_is_named_when_it_cannot_be_read(tmp_path):
    (tmp_path / "secret").write_text("x")
    (tmp_path / "secret").chmod(0)
    with pytest.raises(DeniedError, match="secret"):
        packed(everything(tmp_path))


def test_sizes_beyond_eight_gigabytes_are_written_when_needed():
    entry = ManifestEntry(b"huge", b"", 0o100644, 9 * 2**30, 0, 0, 0, b"")
    from trainyard.transport.copy.archive import _header

    assert tarfile.TarInfo.frombuf(_header(entry), "utf-8", "strict").size == 9 * 2**30


def test_the_end_mark_comes_last_when_packed(tmp_path):
    tmp_path = tmp_path / "tree"
    tmp_path.mkdir()
    (tmp_path / "x").write_text("x")
    segment = Segment([*everything(tmp_path), end_mark(b".end")], 0)
    payload = make_payload(lambda descriptor: pack(segment, descriptor, []))
    descriptor = payload.open()
    listing = subprocess.run(["tar", "-tf", "-"], stdin=descriptor, capture_output=True, check=True).stdout
    os.close(descriptor)
    payload.close()
    assert listing.splitlines() == [b"./", b"x", b".end"]


def test_memory_is_freed_when_a_payload_is_closed(tmp_path):
    before = len(os.listdir("/proc/self/fd"))
    payload = make_payload(lambda descriptor: os.write(descriptor, b"abc"))
    assert payload.sha256() == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    payload.close()
    payload.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_busybox_is_there_when_these_tests_run():
    assert shutil.which("busybox"), "install busybox: it is the judge of what small machines can read"
