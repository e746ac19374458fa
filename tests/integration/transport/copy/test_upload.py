from __future__ import annotations

import os
from pathlib import Path

import pytest
from copy_boxes import Box, Recorder, age, differences, leftovers, make_tree

from trainyard.lib.errors import ConflictError, InvalidError, NotFoundError, TaskErrors
from trainyard.transport.copy import CopyOptions, upload


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return make_tree(tmp_path / "perseus-bert")


def same(tree: Path, box: Box, target: str) -> bool:
    return differences(tree, box.home / target, is_busybox=box.flavour == "busybox") == []


async def test_a_folder_goes_home_under_its_name_when_no_target_is_given(box, tree, recorder):
    report = await upload([box.pair], [tree], progress=recorder)
    assert same(tree, box, "perseus-bert")
    assert report.files == 13
    done, total = recorder.last[box.name]
    assert done == total > 0
    assert not list(box.home.rglob("pwned"))
    assert leftovers(box.home) == []


async def test_nothing_travels_when_nothing_has_changed(box, tree, recorder):
    await upload([box.pair], [tree])
    report = await upload([box.pair], [tree], progress=recorder)
    if box.flavour != "busybox":  # cannot be asked about newlines, and does not keep the times of links
        assert report.sent == {box.name: 0}
        assert recorder.last[box.name] == (0, 0)
    assert same(tree, box, "perseus-bert")


async def test_only_the_changed_file_travels_when_one_has_changed(box, tree):
    (tree / "large").write_bytes(os.urandom(1_000_000))
    age(tree)
    first = await upload([box.pair], [tree])
    (tree / "train.py").write_text("new")
    second = await upload([box.pair], [tree])
    assert first.sent[box.name] > 1_000_000
    assert second.sent[box.name] < 50_000
    assert same(tree, box, "perseus-bert")


async def test_a_change_is_seen_when_size_and_time_stay_the_same(box, tree):
    (tree / "train.py").write_text("one")
    age(tree)
    await upload([box.pair], [tree])
    (tree / "train.py").write_text("two")
    age(tree)
    await upload([box.pair], [tree])
    assert (box.home / "perseus-bert/train.py").read_text() == "two"


async def test_only_what_changed_travels_when_all_was_written_a_moment_before(box, tree):
    (tree / "train.py").write_text("fresh")
    before = (tree / "train.py").stat()
    await upload([box.pair], [tree])
    report = await upload([box.pair], [tree])
    assert report.sent[box.name] < 50_000  # 0, but for a machine that cannot hash

    (tree / "train.py").write_text("FRESH")  # the same size, in the same second
    os.utime(tree / "train.py", ns=(before.st_atime_ns, before.st_mtime_ns))
    await upload([box.pair], [tree])
    assert (box.home / "perseus-bert/train.py").read_text() == "FRESH"


async def test_the_mode_arrives_when_only_the_mode_has_changed(box, tree):
    await upload([box.pair], [tree])
    (tree / "train.py").chmod(0o600)
    await upload([box.pair], [tree])
    assert same(tree, box, "perseus-bert")


async def test_what_was_damaged_there_is_repaired_when_uploaded_again(box, tree):
    await upload([box.pair], [tree])
    there = box.home / "perseus-bert"
    (there / "train.py").write_text("edited there")
    (there / "link").unlink()
    (there / "empty").rmdir()
    (there / "中文/深/文件").unlink()
    (there / "中文/深").rmdir()
    await upload([box.pair], [tree])
    assert same(tree, box, "perseus-bert")


async def test_what_the_machine_made_is_left_alone_when_uploaded_again(box, tree):
    await upload([box.pair], [tree])
    (box.home / "perseus-bert/checkpoint").write_text("precious")
    report = await upload([box.pair], [tree])
    assert (box.home / "perseus-bert/checkpoint").read_text() == "precious"
    if box.flavour != "busybox":
        assert report.sent == {box.name: 0}


async def test_a_folder_merges_when_the_target_exists(box, tree):
    there = box.home / "code"
    there.mkdir(mode=0o711)
    there.chmod(0o711)
    (there / "theirs").write_text("t")
    await upload([box.pair], [tree], "code")
    assert (there / "theirs").read_text() == "t"
    (there / "theirs").unlink()
    assert there.stat().st_mode & 0o777 == 0o711  # /tmp keeps its mode, too
    there.chmod(tree.stat().st_mode & 0o777)
    assert same(tree, box, "code")


@pytest.mark.parametrize("target", ["~/a b/c", "a b/c", "./a b/c", "a b/c/"])
async def test_parents_are_made_and_paths_start_at_home_when_relative(box, tree, target):
    await upload([box.pair], [tree], target)
    assert same(tree, box, "a b/c")


@pytest.mark.parametrize("name", ["-rf x", "$(touch pwned) `x`", "中文 'q' \"d\"", "new\nline", "caf\udce9"])
async def test_the_target_is_taken_literally_when_its_name_is_hostile(box, tree, name):
    await upload([box.pair], [tree / "train.py"], f"{name}/{name}")
    await upload([box.pair], [tree], f"tree {name}")
    assert (box.home / name / name).stat().st_mode & 0o777 == 0o751
    assert same(tree, box, f"tree {name}")
    assert not list(box.home.rglob("pwned"))


async def test_an_absolute_target_is_used_when_given(box, tree, tmp_path):
    await upload([box.pair], [tree], str(tmp_path / "elsewhere/x"))
    assert differences(tree, tmp_path / "elsewhere/x", is_busybox=box.flavour == "busybox") == []


async def test_a_file_goes_inside_when_the_target_is_a_folder(box, tree):
    (box.home / "folder").mkdir()
    await upload([box.pair], [tree / "train.py"], "folder")
    await upload([box.pair], [tree / "train.py"], "new/")
    await upload([box.pair], [tree / "train.py"])
    for name in ("folder/train.py", "new/train.py", "train.py"):
        assert (box.home / name).read_bytes() == (tree / "train.py").read_bytes()


async def test_a_file_replaces_the_file_when_the_target_exists(box, tree):
    (box.home / "run.py").write_text("old")
    await upload([box.pair], [tree / "train.py"], "run.py")
    assert (box.home / "run.py").read_bytes() == (tree / "train.py").read_bytes()
    assert (box.home / "run.py").stat().st_mode & 0o777 == 0o751


async def test_matches_go_inside_when_a_pattern_is_given(box, tmp_path):
    for name in ("a.py", "b.py", "c.txt"):
        (tmp_path / name).write_text(name)
    await upload([box.pair], [tmp_path / "*.py"])
    await upload([box.pair], [tmp_path / "*.py"], "sub/folder")
    for folder in (box.home, box.home / "sub/folder"):
        assert sorted(path.name for path in folder.glob("*.*") if path.is_file()) == ["a.py", "b.py"]


async def test_a_folder_goes_inside_when_asked(box, tree):
    await upload([box.pair], [tree], "place", options=CopyOptions(into=True))
    assert same(tree, box, "place/perseus-bert")


async def test_several_sources_go_inside_when_given_together(box, tree, tmp_path):
    (tmp_path / "one").write_text("1")
    report = await upload([box.pair], [tree, tmp_path / "one"], "all")
    assert same(tree, box, "all/perseus-bert")
    assert (box.home / "all/one").read_text() == "1"
    again = await upload([box.pair], [tree, tmp_path / "one"], "all")
    assert report.sent[box.name] > again.sent[box.name]


async def test_existing_files_are_left_when_told_not_to_overwrite(box, tree):
    (box.home / "perseus-bert").mkdir()
    (box.home / "perseus-bert/train.py").write_text("theirs")
    await upload([box.pair], [tree], options=CopyOptions(dont_overwrite=True))
    assert (box.home / "perseus-bert/train.py").read_text() == "theirs"
    assert (box.home / "perseus-bert/-rf").exists()
    (box.home / "train.py").write_text("theirs")
    await upload([box.pair], [tree / "train.py"], options=CopyOptions(dont_overwrite=True))
    assert (box.home / "train.py").read_text() == "theirs"


async def test_superfluous_files_go_and_ignored_ones_stay_when_told_to_delete(box, tree):
    (tree / ".trainyardignore").write_text("logs/\n*.ckpt\n")
    there = box.home / "perseus-bert"
    await upload([box.pair], [tree])
    for name in ("logs/today", "sub/x.ckpt", "sub/extra", "old/deep/file", "$(touch pwned)2", "new\nline2"):
        (there / name).parent.mkdir(parents=True, exist_ok=True)
        (there / name).write_text("x")
    await upload([box.pair], [tree], options=CopyOptions(delete=True))
    assert (there / "logs/today").exists()
    assert (there / "sub/x.ckpt").exists()
    for name in ("sub/extra", "old", "$(touch pwned)2", "new\nline2"):
        assert not (there / name).exists()
    assert (there / "train.py").exists()


async def test_an_empty_folder_and_an_empty_file_arrive_when_alone(box, tmp_path):
    (tmp_path / "void").mkdir()
    (tmp_path / "zero").touch()
    await upload([box.pair], [tmp_path / "void"])
    await upload([box.pair], [tmp_path / "zero"])
    assert (box.home / "void").is_dir()
    assert (box.home / "zero").read_bytes() == b""


@pytest.mark.slow  # 33 MiB, hashed and compared
async def test_a_large_file_arrives_whole_when_sent_in_a_part(box, large, recorder):
    report = await upload([box.pair], [large], "models/big file", progress=recorder)
    there = box.home / "models/big file"
    assert there.read_bytes() == large.read_bytes()
    assert there.stat().st_mode & 0o777 == 0o640
    assert there.stat().st_mtime == 1_600_000_000
    assert 0 <= report.sent[box.name] - large.stat().st_size < 10_000  # and the sums of its blocks
    assert recorder.last[box.name] == (report.sent[box.name], report.sent[box.name])
    again = await upload([box.pair], [large], "models/big file")
    assert again.sent == {box.name: 0}
    assert leftovers(box.home) == []
    with large.open("r+b") as file:
        file.write(b"x")
    os.utime(large, (1_600_000_000, 1_600_000_000))
    await upload([box.pair], [large], "models/big file")
    assert there.read_bytes() == large.read_bytes()


@pytest.fixture
def large(tmp_path: Path) -> Path:
    path = tmp_path / "large"
    path.write_bytes(os.urandom(1 << 20) * 33)
    path.chmod(0o640)
    os.utime(path, (1_600_000_000, 1_600_000_000))
    return path


async def test_a_missing_source_is_refused_when_uploaded(box, tmp_path):
    with pytest.raises(NotFoundError) as caught:
        await upload([box.pair], [tmp_path / "nothing"])
    assert "nothing" in caught.value.message
    assert caught.value.hint


async def test_the_obstacle_is_named_when_a_file_stands_where_a_folder_must_go(box, tree):
    (box.home / "perseus-bert").write_text("file")
    with pytest.raises(ConflictError, match="perseus-bert"):
        await upload([box.pair], [tree])
    with pytest.raises((ConflictError, InvalidError), match="perseus-bert"):
        await upload([box.pair], [tree], "perseus-bert/sub/sub")
    assert (box.home / "perseus-bert").read_text() == "file"


@pytest.mark.ssh
@pytest.mark.slow  # four sshds
async def test_healthy_machines_finish_when_others_fail(boxes, tree):
    made = boxes(4)
    (made[1].home / "perseus-bert").write_text("file")
    made[2].sshd.stop()
    with pytest.raises(TaskErrors) as caught:
        await upload([one.pair for one in made], [tree])
    assert len(caught.value.exceptions) == 2
    assert "task1.x" in str(caught.value)
    assert "task2.x" in str(caught.value)
    for one in (made[0], made[3]):
        assert same(tree, one, "perseus-bert")


@pytest.mark.ssh
@pytest.mark.slow  # three sshds
async def test_every_machine_gets_only_what_it_lacks_when_they_differ(boxes, tree, recorder):
    for number in range(10):
        (tree / f"blob{number}").write_bytes(os.urandom(700_000))
    age(tree)
    made = boxes(3)
    await upload([made[0].pair], [tree])
    (made[0].home / "perseus-bert/blob3").unlink()
    await upload([made[1].pair], [tree])
    report = await upload([one.pair for one in made], [tree], progress=recorder)
    assert 700_000 < report.sent["task0.x"] < 800_000
    assert report.sent["task1.x"] == 0
    assert report.sent["task2.x"] > 7_000_000
    for one in made:
        assert same(tree, one, "perseus-bert")
        assert recorder.last[one.name][0] == recorder.last[one.name][1]


@pytest.mark.ssh
async def test_the_open_connection_is_used_when_the_program_cannot_log_in(sshd, tree, program_only):
    from copy_boxes import ssh_box

    class Unattached:
        """A transport whose command line leads to nowhere."""

        def __init__(self, transport):
            self._transport = transport

        def __getattr__(self, name):
            return getattr(self._transport, name)

        def argv(self, script="", *, terminal=True):
            return ["ssh", "-F", "none", "-p", "1", "-o", "ConnectTimeout=1", "127.0.0.1", "true"]

    (tree / "bulk").write_bytes(os.urandom(5_000_000))
    box = ssh_box("alpha", sshd)
    await upload([("alpha", Unattached(box.transport))], [tree])
    assert same(tree, box, "perseus-bert")
    await box.transport.aclose()


def test_the_recorder_fails_when_progress_goes_back():
    recorder = Recorder()
    recorder.update("a", 5, 10)
    with pytest.raises(AssertionError):
        recorder.update("a", 4, 10)
