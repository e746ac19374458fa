from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from copy_boxes import Box, differences, leftovers, make_tree

from trainyard.lib.errors import InvalidError, NotFoundError
from trainyard.transport.copy import CopyOptions, download


@pytest.fixture
def results(box: Box) -> Path:
    return make_tree(box.home / "results")


async def test_a_folder_becomes_the_target_when_downloaded(box, results, tmp_path, recorder):
    target = tmp_path / "a b" / "中文 $(x)"
    report = await download(box.transport, "results", target, progress=recorder)
    assert differences(results, target, is_busybox=box.flavour == "busybox") == []
    done, total = recorder.last[""]
    assert done == total > 0
    if box.flavour != "busybox":
        assert report.files == 13
    assert not list(tmp_path.rglob("pwned"))


async def test_only_changes_come_when_downloaded_again(box, results, tmp_path):
    (results / "big").write_bytes(os.urandom(200_000))
    first = await download(box.transport, "results", tmp_path / "t")
    (results / "train.py").write_text("new")
    (tmp_path / "t" / "link").unlink()
    second = await download(box.transport, "results", tmp_path / "t")
    assert differences(results, tmp_path / "t", is_busybox=box.flavour == "busybox") == []
    if box.flavour != "busybox":  # cannot list exactly, so all of it comes
        assert first.sent[""] > 200_000
        assert second.sent[""] < 1000


async def test_a_file_becomes_the_target_or_goes_inside_when_downloaded(box, results, tmp_path):
    (tmp_path / "folder").mkdir()
    await download(box.transport, "results/train.py", tmp_path / "new folder" / "run.py")
    await download(box.transport, "~/results/train.py", tmp_path / "folder")
    await download(box.transport, str(results / "link"), tmp_path / "followed")
    for name in ("new folder/run.py", "folder/train.py", "followed"):
        path = tmp_path / name
        assert path.read_bytes() == (results / "train.py").read_bytes()
        assert not path.is_symlink()
        assert path.stat().st_mode & 0o777 == 0o751
        assert path.stat().st_mtime == 1_600_000_000


@pytest.mark.parametrize(
    "name", ["-rf", "$(touch pwned)", "new\nline", "caf\udce9\udcff", "quote'\"`\\ *", "n" * 255]
)
async def test_the_source_is_taken_literally_when_its_name_is_hostile(box, results, tmp_path, name):
    await download(box.transport, f"results/{name}", tmp_path / "x")
    assert (tmp_path / "x").read_bytes() == (results / name).read_bytes()
    assert not list(tmp_path.rglob("pwned"))


async def test_a_folder_goes_inside_when_the_target_is_the_current_one(box, results, tmp_path, monkeypatch):
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    await download(box.transport, "results", Path("."))
    await download(box.transport, "results", tmp_path / "place", options=CopyOptions(into=True))
    for path in (tmp_path / "cwd/results", tmp_path / "place/results"):
        assert differences(results, path, is_busybox=box.flavour == "busybox") == []


async def test_matches_go_inside_when_a_pattern_is_given(box, tmp_path, monkeypatch):
    for name in ("a 1.log", "b 1.log", "c.txt"):
        (box.home / name).write_text(name)
    await download(box.transport, "*1.log", tmp_path / "logs")
    assert sorted(path.name for path in (tmp_path / "logs").iterdir()) == ["a 1.log", "b 1.log"]
    monkeypatch.chdir(tmp_path / "logs")
    await download(box.transport, "[c].txt", Path("[c].txt"))
    assert (tmp_path / "logs/c.txt").read_text() == "c.txt"


@pytest.mark.parametrize("source", ["nothing", "no*thing", "/no/such/path", "results/nothing"])
async def test_a_missing_source_is_refused_when_downloaded(box, results, tmp_path, source):
    with pytest.raises(NotFoundError) as caught:
        await download(box.transport, source, tmp_path / "t")
    assert caught.value.hint
    assert not (tmp_path / "t").exists()


async def test_existing_files_are_left_when_told_not_to_overwrite(box, results, tmp_path):
    (tmp_path / "t").mkdir()
    (tmp_path / "t/train.py").write_text("mine")
    await download(box.transport, "results", tmp_path / "t", options=CopyOptions(dont_overwrite=True))
    assert (tmp_path / "t/train.py").read_text() == "mine"
    assert (tmp_path / "t/-rf").exists()


async def test_excluded_files_stay_there_and_extra_files_go_when_told(box, results, tmp_path):
    if box.flavour == "busybox":
        pytest.skip("without a listing nothing is left out")
    (tmp_path / "t/old").mkdir(parents=True)
    (tmp_path / "t/old/x").write_text("x")
    (tmp_path / "t/kept.log").write_text("x")
    (results / "new.log").write_text("x")
    options = CopyOptions(exclude=("*.log", ".hidden"), delete=True)
    await download(box.transport, "results", tmp_path / "t", options=options)
    assert not (tmp_path / "t/old").exists()
    assert not (tmp_path / "t/new.log").exists()
    assert not (tmp_path / "t/.hidden").exists()
    assert (tmp_path / "t/kept.log").exists()


@pytest.fixture
def large(box: Box) -> Path:
    path = box.home / "big model"
    path.write_bytes(os.urandom(1 << 20) * 40)
    path.chmod(0o640)
    return path


@pytest.mark.slow  # 40 MiB
async def test_a_large_file_continues_when_it_was_cut(box, large, tmp_path, recorder):
    target = tmp_path / "t" / "model"
    stop = asyncio.Event()

    class Cut:
        def update(self, machine, done, total):
            if done > 3_000_000:
                stop.set()

    task = asyncio.ensure_future(download(box.transport, "big model", target, progress=Cut()))
    waiting = asyncio.ensure_future(stop.wait())
    await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not target.exists()
    if box.flavour == "busybox":
        assert leftovers(tmp_path / "t") == []
    else:
        (part,) = (tmp_path / "t").iterdir()
        had = part.stat().st_size
        assert 0 < had < large.stat().st_size
        report = await download(box.transport, "big model", target, progress=recorder)
        assert target.read_bytes() == large.read_bytes()
        assert target.stat().st_mode & 0o777 == 0o640
        assert recorder.last[""] == (large.stat().st_size, large.stat().st_size)
        assert report.sent[""] == large.stat().st_size - had
        assert [path.name for path in (tmp_path / "t").iterdir()] == ["model"]
        assert (await download(box.transport, "big model", target)).sent == {"": 0}


@pytest.mark.slow  # 40 MiB
async def test_a_large_file_starts_anew_when_the_part_is_of_another(box, large, tmp_path):
    if box.flavour == "busybox":
        pytest.skip("whole files only")
    target = tmp_path / "t" / "model"
    await download(box.transport, "big model", target)
    from trainyard.transport.copy.downloading import _signature
    from trainyard.transport.copy.listing import list_source

    listing = await list_source(box.transport, b"./big model", pattern=False)
    target.unlink()
    part = tmp_path / "t" / f".trainyard-part-{_signature(b'./big model', listing.entries[0])}-x"
    part.write_bytes(b"something else" * 100_000)
    await download(box.transport, "big model", target)
    assert target.read_bytes() == large.read_bytes()
    assert leftovers(tmp_path / "t") == []


async def test_nothing_half_is_left_when_cancelled(box, results, tmp_path):
    for number in range(20):
        (results / f"blob{number}").write_bytes(os.urandom(500_000))
    started = asyncio.Event()

    class Start:
        def update(self, machine, done, total):
            started.set()

    task = asyncio.ensure_future(download(box.transport, "results", tmp_path / "t", progress=Start()))
    waiting = asyncio.ensure_future(started.wait())
    await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert leftovers(tmp_path / "t") == []
    for path in (tmp_path / "t").rglob("blob*"):
        assert path.stat().st_size == 500_000
    await download(box.transport, "results", tmp_path / "t")
    assert differences(results, tmp_path / "t", is_busybox=box.flavour == "busybox") == []


@pytest.mark.skipif(os.getuid() == 0, reason="root reads everything")
async def test_what_cannot_be_read_there_is_named_when_downloaded(box, results, tmp_path):
    (results / "secret").write_text("x")
    (results / "secret").chmod(0)
    with pytest.raises(InvalidError, match="secret"):
        await download(box.transport, "results", tmp_path / "t")
