from __future__ import annotations

import io
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from trainyard.lib.errors import ConflictError, InvalidError, UnreachableError
from trainyard.transport.copy.extraction import Extraction
from trainyard.transport.copy.target_folder import TargetFolder


def archive(*members: tuple[str, str, object], layout: int = tarfile.GNU_FORMAT) -> bytes:
    """(name, type, content or link target) → tar."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=layout) as writer:
        for name, kind, value in members:
            info = tarfile.TarInfo(name)
            info.type = {"file": tarfile.REGTYPE, "link": tarfile.SYMTYPE, "hard": tarfile.LNKTYPE,
                         "folder": tarfile.DIRTYPE, "fifo": tarfile.FIFOTYPE, "char": tarfile.CHRTYPE}[kind]  # fmt: skip
            info.mode = 0o755 if kind == "folder" else 0o640
            info.mtime = 1_600_000_000
            if kind in ("link", "hard"):
                info.linkname = str(value)
            content = value if isinstance(value, bytes) else b""
            info.size = len(content)
            writer.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def extract(data: bytes, root: Path, *, piece: int = 1 << 20, **options) -> Extraction:
    tree = TargetFolder(os.fsencode(root))
    extraction = Extraction(tree, **options)
    try:
        for start in range(0, len(data), piece):
            extraction.feed(data[start : start + piece])
        extraction.finish()
    finally:
        extraction.abort()
        tree.close()
    return extraction


@pytest.mark.parametrize("piece", [1, 511, 513, 1 << 20])
def test_files_arrive_when_the_stream_comes_in_any_pieces(tmp_path, piece):
    data = archive(("a/b", "file", b"x" * 1500), ("a/empty", "file", b""), ("l", "link", "a/b"))
    extract(data, tmp_path / "t", piece=piece)
    assert (tmp_path / "t/a/b").read_bytes() == b"x" * 1500
    assert (tmp_path / "t/a/empty").read_bytes() == b""
    assert (tmp_path / "t/l").readlink() == Path("a/b")
    assert (tmp_path / "t/a/b").stat().st_mode & 0o7777 == 0o640
    assert (tmp_path / "t/a/b").stat().st_mtime == 1_600_000_000


@pytest.mark.parametrize("name", ["../evil", "a/../../evil", "/evil", "..", "a/.."])
def test_nothing_is_written_outside_when_names_climb(tmp_path, name):
    root = tmp_path / "in" / "t"
    extraction = extract(archive((name, "file", b"x"), ("good", "file", b"y")), root)
    assert {path.name for path in tmp_path.rglob("*") if path.is_file()} == {"good"}
    assert any("refused" in note for note in extraction.notes)
    assert not Path("/evil").exists()


def test_nothing_is_written_through_a_link_when_the_archive_makes_one(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    data = archive(
        ("x", "link", str(outside)), ("x/evil", "file", b"e"), ("y", "link", ".."), ("y/evil", "file", b"e")
    )
    extraction = extract(data, tmp_path / "t")
    assert list(outside.iterdir()) == []
    assert not (tmp_path / "evil").exists()
    assert (tmp_path / "t/x/evil").read_bytes() == b"e"
    assert any("link there" in note for note in extraction.notes)


def test_nothing_is_written_through_a_link_when_an_earlier_download_made_it(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    extract(archive(("x", "link", str(outside))), tmp_path / "t")
    extract(archive(("x/evil", "file", b"e")), tmp_path / "t")
    assert list(outside.iterdir()) == []


def test_the_link_is_replaced_when_a_file_comes_under_its_name(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / "t").mkdir()
    (tmp_path / "t/x").symlink_to(victim)
    extract(archive(("x", "file", b"new")), tmp_path / "t")
    assert victim.read_text() == "mine"
    assert (tmp_path / "t/x").read_bytes() == b"new"


def test_links_that_point_outside_are_kept_when_nothing_goes_through_them(tmp_path):
    extract(archive(("a", "link", "/etc/passwd"), ("b", "link", "../..")), tmp_path / "t")
    assert (tmp_path / "t/a").readlink() == Path("/etc/passwd")
    assert (tmp_path / "t/b").readlink() == Path("../..")


def test_hard_links_stay_inside_when_they_point_out(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("s")
    data = archive(
        ("a", "file", b"a"), ("b", "hard", "a"), ("c", "hard", "../secret"), ("d", "hard", str(secret))
    )
    extract(data, tmp_path / "t")
    assert (tmp_path / "t/b").read_bytes() == b"a"
    assert not (tmp_path / "t/c").exists()
    assert not (tmp_path / "t/d").exists()


def test_devices_and_pipes_are_skipped_when_sent(tmp_path):
    extraction = extract(archive(("p", "fifo", ""), ("c", "char", ""), ("f", "file", b"x")), tmp_path / "t")
    assert [path.name for path in (tmp_path / "t").iterdir()] == ["f"]
    assert len(list(extraction.notes)) == 2


@pytest.mark.parametrize("cut", [100, 512, 700, 1024, 1536])
def test_no_half_file_is_left_when_the_stream_is_cut(tmp_path, cut):
    data = archive(("a", "file", b"x" * 600), ("b", "file", b"y" * 600))
    with pytest.raises(UnreachableError):
        extract(data[:cut], tmp_path / "t")
    for path in (tmp_path / "t").rglob("*") if (tmp_path / "t").exists() else ():
        assert path.name in "ab"
        assert path.stat().st_size == 600


def test_the_old_file_stays_when_the_new_one_is_cut(tmp_path):
    (tmp_path / "a").write_text("old")
    with pytest.raises(UnreachableError):
        extract(archive(("a", "file", b"x" * 600))[:900], tmp_path)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir() if path.is_file()] == [("a", "old")]


def test_noise_is_refused_when_it_is_no_archive(tmp_path):
    with pytest.raises(InvalidError):
        extract(b"command not found\n" * 100, tmp_path / "t")


def test_a_folder_in_the_way_is_named_when_a_file_comes(tmp_path):
    (tmp_path / "x" / "y").mkdir(parents=True)
    with pytest.raises(ConflictError, match="x"):
        extract(archive(("x", "file", b"1")), tmp_path)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize("layout", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_and_odd_names_arrive_when_python_packs_them(tmp_path, layout):
    names = ["n" * 200, "/".join(["d" * 90] * 5), "中文/" + "x" * 99, "new\nline"]
    data = archive(*[(name, "file", b"x") for name in names], ("link", "link", "t" * 300), layout=layout)
    extract(data, tmp_path)
    assert all((tmp_path / name).is_file() for name in names)
    assert str((tmp_path / "link").readlink()) == "t" * 300


@pytest.mark.parametrize("packer", [["tar"], ["busybox", "tar"]])
def test_the_same_tree_arrives_when_a_stranger_packs_it(tmp_path, packer):
    source = tmp_path / "s"
    (source / "a b" / "c").mkdir(parents=True)
    (source / "a b" / "x").write_bytes(os.urandom(70_000))
    (source / ("n" * 150)).write_text("long")
    os.link(source / "a b" / "x", source / "hard")
    (source / "l").symlink_to("a b")
    data = subprocess.run([*packer, "-cf", "-", "."], cwd=source, check=True, capture_output=True).stdout
    extract(data, tmp_path / "t", piece=1000)
    words = ["rsync", "-aicn", "--delete", "--omit-link-times", f"{source}/", f"{tmp_path}/t/"]
    assert (
        subprocess.run(words, check=True, capture_output=True).stdout.replace(b".d..t...... ./\n", b"") == b""
    )


def test_exact_times_are_set_when_the_listing_knows_them(tmp_path):
    exact = 1_600_000_000_123_456_789
    extract(archive(("./a", "file", b"x"), ("./b", "file", b"x")), tmp_path, times={b"a": exact, b"b": 5})
    assert (tmp_path / "a").stat().st_mtime_ns == exact
    assert (tmp_path / "b").stat().st_mtime_ns == 1_600_000_000_000_000_000
