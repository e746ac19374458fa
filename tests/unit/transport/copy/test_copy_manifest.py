from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from trainyard.lib.errors import DeniedError, InvalidError, NotFoundError
from trainyard.transport.copy.api import CopyOptions, Peer, Peers
from trainyard.transport.copy.manifest import ROOT, expand, leaf_name, scan

NON_UTF8 = b"caf\xe9 \xff"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """An empty folder; the test's own home is elsewhere."""
    folder = tmp_path / "tree"
    folder.mkdir()
    return folder


def make(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)


def names(folder: Path, **options) -> set[str]:
    manifest = scan([(ROOT, folder)], CopyOptions(**options))
    return {os.fsdecode(name) for name in manifest.names()} - {"."}


def test_everything_goes_when_nothing_is_ignored(tmp_path, hostile_path):
    make(hostile_path, ".git/HEAD", ".hidden", "-rf", "a b/'c'", "中文/$(x)")
    (hostile_path / "empty").mkdir()
    (Path(os.fsdecode(os.fsencode(hostile_path) + b"/" + NON_UTF8))).write_bytes(b"x")
    found = names(hostile_path)
    assert found >= {".git/HEAD", ".hidden", "-rf", "a b/'c'", "中文/$(x)", "empty", os.fsdecode(NON_UTF8)}


def test_folders_come_before_what_they_hold_when_scanned(tmp_path):
    make(tmp_path / "t", "b/c/d", "a/x", "z")
    folders = [folder.name for folder in scan([(ROOT, tmp_path / "t")], CopyOptions()).folders]
    assert folders == [b".", b"a", b"b", b"b/c"]


def test_patterns_keep_files_behind_when_an_ignore_file_lists_them(tree):
    make(tree, "keep.py", "data/big.bin", "logs/a.log", "logs/keep.log", "sub/data/x")
    (tree / ".trainyardignore").write_text("data/\n*.log\n!keep.log\n# comment\n")
    assert names(tree) == {".trainyardignore", "keep.py", "logs", "logs/keep.log", "sub"}


def test_an_ignore_file_in_a_folder_counts_for_that_folder_when_nested(tree):
    make(tree, "a/x.o", "a/y", "x.o")
    (tree / "a" / ".trainyardignore").write_text("/x.o\n")
    assert names(tree) == {"a", "a/.trainyardignore", "a/y", "x.o"}


def test_gitignore_counts_only_when_asked(tree):
    make(tree, "x.o", "y")
    (tree / ".gitignore").write_text("*.o\n")
    assert "x.o" in names(tree)
    assert "x.o" not in names(tree, use_gitignore=True)


def test_our_ignore_file_wins_when_gitignore_says_otherwise(tree):
    make(tree, "weights.bin")
    (tree / ".gitignore").write_text("*.bin\n")
    (tree / ".trainyardignore").write_text("!weights.bin\n")
    assert "weights.bin" in names(tree, use_gitignore=True)


def test_excluded_patterns_stay_behind_when_given_as_options(tree):
    make(tree, ".git/HEAD", "a/.git/HEAD", "b")
    assert names(tree, exclude=(".git",)) == {"a", "b"}


def test_links_are_kept_inside_and_followed_at_the_top_when_scanned(tmp_path):
    make(tmp_path / "real", "x")
    (tmp_path / "real" / "absolute").symlink_to("/etc/passwd")
    (tmp_path / "real" / "dangling").symlink_to("nowhere")
    (tmp_path / "real" / "folder").symlink_to("..")
    (tmp_path / "top").symlink_to("real")
    manifest = scan([(ROOT, tmp_path / "top")], CopyOptions())
    links = {entry.name: entry.link for entry in manifest.files if entry.link}
    assert links == {b"absolute": b"/etc/passwd", b"dangling": b"nowhere", b"folder": b".."}
    assert b"x" in {entry.name for entry in manifest.files}


def test_sockets_and_pipes_are_skipped_with_a_note_when_found(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
    manifest = scan([(ROOT, tmp_path)], CopyOptions())
    skipped = [note for note in manifest.notes if "skipped" in note]
    assert any("pipe'" in note for note in skipped)
    assert any("socket'" in note for note in skipped)
    assert b"pipe" not in set(manifest.names())


def test_a_very_deep_tree_is_scanned_when_recursion_would_not_do(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    depth = 1500
    for _ in range(depth):
        os.mkdir("d")
        os.chdir("d")
    monkeypatch.chdir(tmp_path)
    manifest = scan([(ROOT, Path("d"))], CopyOptions())
    assert len(manifest.folders) == depth
    for _ in range(depth):
        os.chdir("d")
    for _ in range(depth):
        os.chdir("..")
        os.rmdir("d")


@pytest.mark.skipif(os.getuid() == 0, reason="root reads everything")
def test_the_file_is_named_when_a_folder_cannot_be_read(tmp_path):
    (tmp_path / "closed").mkdir(mode=0)
    with pytest.raises(DeniedError, match="closed"):
        scan([(ROOT, tmp_path)], CopyOptions())


def test_patterns_match_sorted_names_when_expanded(tmp_path):
    make(tmp_path, "b.py", "a.py", "c.txt")
    assert expand([tmp_path / "*.py"]) == ([tmp_path / "a.py", tmp_path / "b.py"], True)


def test_a_name_with_a_star_is_itself_when_it_exists(tmp_path):
    make(tmp_path, "a*", "ab")
    assert expand([tmp_path / "a*"]) == ([tmp_path / "a*"], False)


@pytest.mark.parametrize("name", ["nothing", "no*thing", "nothing/"])
def test_a_missing_source_is_refused_with_a_hint_when_expanded(tmp_path, name):
    with pytest.raises(NotFoundError) as caught:
        expand([Path(f"{tmp_path}/{name}")])
    assert caught.value.hint


def test_two_sources_of_one_name_are_refused_when_they_go_to_one_place(tmp_path):
    make(tmp_path, "a/x", "b/x")
    with pytest.raises(InvalidError, match="x"):
        scan([(b"x", tmp_path / "a" / "x"), (b"x", tmp_path / "b" / "x")], CopyOptions())


def test_a_dot_has_the_name_of_its_folder_when_uploaded(tmp_path, monkeypatch):
    (tmp_path / "code").mkdir()
    monkeypatch.chdir(tmp_path / "code")
    assert leaf_name(Path(".")) == "code"
    assert leaf_name(Path("..")) == tmp_path.name


def test_a_file_is_racy_when_it_was_touched_around_the_last_scan(tmp_path):
    make(tmp_path, "x")
    os.utime(tmp_path / "x", ns=(0, 10**18))
    (entry,) = scan([(ROOT, tmp_path)], CopyOptions()).files
    later = entry.ctime_ns + 10**9
    assert not entry.is_racy(later)
    assert entry.is_racy(entry.ctime_ns)  # changed after the scan, whatever its mtime says
    assert entry._replace(mtime_ns=later - 10**9, ctime_ns=0).is_racy(later)


def test_machines_relay_when_they_are_peers_and_not_all_on_loopback():
    near, far = Peer("127.0.0.2"), Peer("10.0.0.2")
    peers = Peers({"a": near, "b": near, "c": far}, "k", "h")
    assert not peers.can_relay(["a", "b"])
    assert peers.can_relay(["a", "c"])
    assert not peers.can_relay(["c"])
    assert not peers.can_relay(["a", "c", "stranger"])
    assert Peers(peers.members, "k", "h", force=True).can_relay(["a", "b"])
