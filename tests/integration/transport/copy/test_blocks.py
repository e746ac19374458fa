"""Large files that change a little: only their new blocks travel, and only what is proved gets its name."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from copy_boxes import Box, age, differences, leftovers, local_box
from test_relay import peers

from trainyard.transport.copy import CopyOptions, delta, manifest, upload, uploading
from trainyard.transport.copy.blocks import SMALLEST_BLOCK

pytestmark = [
    pytest.mark.slow,
    pytest.mark.each_value,
]  # 15 MB, two or three times, on four kinds of machines

SIZE = 5_000_000
LITTLE = 2 * SMALLEST_BLOCK + 20_000  # a block or two, hashes, sums
NAMES = ("weights", "-rf $(touch pwned) 'q'", "sub/中文\nline")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    for name in NAMES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(os.urandom(SIZE))
    (folder / "small").write_text("small")
    age(folder)
    return folder


def edit(path: Path, at: int = SIZE // 2, text: bytes = b"edited") -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(text)


def same(tree: Path, box: Box) -> bool:
    if box.flavour == "busybox":  # it cannot be asked about a name with a newline, which is sent each time
        return differences(tree, box.home / "code", is_busybox=True) == []
    return differences(tree, box.home / "code") == [] and leftovers(box.home) == []


def spare(box: Box) -> int:
    return SIZE + 10_000 if box.flavour == "busybox" else 0


async def test_only_the_block_travels_when_a_file_is_edited(box, tree, recorder):
    await upload([box.pair], [tree])
    (tree / "weights").chmod(0o751)
    edit(tree / "weights")
    report = await upload([box.pair], [tree], progress=recorder)
    assert same(tree, box)
    assert report.sent[box.name] < LITTLE + spare(box)
    assert recorder.last[box.name] == (report.sent[box.name], report.sent[box.name])
    # And again: the sums moved on with the file.
    edit(tree / "weights", 100)
    edit(tree / NAMES[1])
    (tree / "small").write_text("changed, too")
    report = await upload([box.pair], [tree])
    assert same(tree, box)
    assert report.sent[box.name] < 2 * LITTLE + spare(box)
    assert not list(box.home.rglob("pwned"))


async def test_only_the_end_travels_when_a_file_grows_or_shrinks(box, tree):
    await upload([box.pair], [tree])
    with (tree / "weights").open("ab") as file:
        file.write(os.urandom(300_000))
    report = await upload([box.pair], [tree])
    assert same(tree, box)
    assert report.sent[box.name] < 300_000 + LITTLE + spare(box)
    os.truncate(tree / "weights", 3_333_333)
    report = await upload([box.pair], [tree])
    assert same(tree, box)
    assert report.sent[box.name] < LITTLE + spare(box)


async def test_no_block_travels_when_only_the_time_or_the_mode_has_changed(box, tree):
    await upload([box.pair], [tree])
    os.utime(tree / "weights", (1_650_000_000, 1_650_000_000))
    (tree / NAMES[1]).chmod(0o600)
    report = await upload([box.pair], [tree])
    assert same(tree, box)
    assert report.sent[box.name] < 10_000 + spare(box)


async def test_the_file_is_sent_whole_when_it_was_spoilt_there_unseen(box, tree):
    await upload([box.pair], [tree])
    there = box.home / "code/weights"
    before = there.stat()
    edit(there, 1_000_000, b"not what was sent")
    os.utime(there, ns=(before.st_atime_ns, before.st_mtime_ns))
    edit(tree / "weights")
    report = await upload([box.pair], [tree])
    assert same(tree, box)
    assert report.sent[box.name] > SIZE
    # The sums of the whole are kept again.
    edit(tree / "weights", 7)
    report = await upload([box.pair], [tree])
    assert same(tree, box)
    assert report.sent[box.name] < LITTLE + spare(box)


@pytest.mark.parametrize("content", [None, b"", b"garbage", b"trainyard blocks 1\n" + b"\xff" * 100])
async def test_the_file_is_sent_whole_when_the_sums_are_gone_or_damaged(box, tree, content):
    await upload([box.pair], [tree])
    (kept,) = (box.home / ".trainyard/uploads").glob("*.blocks")
    kept.unlink()
    if content is not None:
        kept.write_bytes(content)
    edit(tree / "weights")
    report = await upload([box.pair], [tree])
    assert same(tree, box)
    assert SIZE < report.sent[box.name] < SIZE + 10_000 + spare(box)


async def test_the_file_is_sent_whole_when_it_was_edited_or_replaced_there(box, tree):
    await upload([box.pair], [tree])
    (box.home / "code/weights").write_text("theirs")
    (box.home / "code" / NAMES[1]).unlink()
    (box.home / "code" / NAMES[1]).symlink_to("weights")
    edit(tree / "weights")
    edit(tree / NAMES[1])
    await upload([box.pair], [tree])
    assert same(tree, box)
    assert not (box.home / "code" / NAMES[1]).is_symlink()


async def test_existing_files_are_left_when_told_not_to_overwrite_them(box, tree):
    await upload([box.pair], [tree])
    before = (box.home / "code/weights").read_bytes()
    edit(tree / "weights")
    await upload([box.pair], [tree], options=CopyOptions(dont_overwrite=True))
    assert (box.home / "code/weights").read_bytes() == before


async def test_only_the_block_travels_when_a_file_goes_in_parts(box, tmp_path):
    large = tmp_path / "large"
    large.write_bytes(os.urandom(1 << 20) * 40)
    await upload([box.pair], [large], "sub/it")
    edit(large, 30_000_000)
    report = await upload([box.pair], [large], "sub/it")
    assert (box.home / "sub/it").read_bytes() == large.read_bytes()
    assert report.sent[box.name] < LITTLE
    assert leftovers(box.home) == []


async def test_nothing_half_is_left_when_cancelled(box, tree):
    await upload([box.pair], [tree])
    for name in NAMES:
        edit(tree / name)
        edit(tree / name, 100)

    class Once:
        event = asyncio.Event()

        def update(self, machine, done, total):
            self.event.set()

    for _ in range(3):
        Once.event.clear()
        work = asyncio.ensure_future(upload([box.pair], [tree], progress=Once()))
        waiting = asyncio.ensure_future(Once.event.wait())
        await asyncio.wait([work, waiting], return_when=asyncio.FIRST_COMPLETED)
        work.cancel()
        await asyncio.gather(work, waiting, return_exceptions=True)
    async with asyncio.timeout(10):
        while leftovers(box.home):  # a script that was ended a moment ago tidies up
            await asyncio.sleep(0.01)
    await upload([box.pair], [tree])
    assert same(tree, box)


@pytest.mark.ssh
@pytest.mark.parametrize("relayed", [False, True])
async def test_every_machine_gets_its_blocks_when_they_differ(boxes, tree, relayed):
    made = boxes(3)
    pairs = [one.pair for one in made]
    ways = peers(made) if relayed else None
    await upload(pairs, [tree], peers=ways)
    edit(tree / "weights")
    await upload([made[0].pair], [tree], peers=ways)
    edit(tree / "weights", 100)
    report = await upload(pairs, [tree], peers=ways)
    assert all(same(tree, one) for one in made)
    assert all(count < LITTLE + SMALLEST_BLOCK for count in report.sent.values())


@pytest.mark.ssh
async def test_blocks_are_relayed_and_spoilt_machines_healed_when_there_are_many(boxes, tree):
    made = boxes(4)
    pairs = [one.pair for one in made]
    await upload(pairs, [tree], peers=peers(made))
    there = made[2].home / "code/weights"
    before = there.stat()
    edit(there, 4_900_000, b"not what was sent")
    os.utime(there, ns=(before.st_atime_ns, before.st_mtime_ns))
    for name in NAMES:
        edit(tree / name, 0, os.urandom(1_000_000))
    report = await upload(pairs, [tree], peers=peers(made))
    assert all(same(tree, one) for one in made)
    assert set(report.relayed) >= {"task1.x", "task3.x"}
    assert 3_000_000 < report.sent["task0.x"] < 4_000_000
    assert report.sent["task2.x"] > SIZE
    assert all((one.sshd.folder / "tmp").exists() and not os.listdir(one.sshd.folder / "tmp") for one in made)


async def test_everybody_succeeds_when_machines_share_a_home(tmp_path, tree):
    made = [local_box(f"task{number}", tmp_path / "shared") for number in range(4)]
    await upload([one.pair for one in made], [tree])
    for name in NAMES:
        edit(tree / name)
    await upload([one.pair for one in made], [tree])
    assert same(tree, made[0])
    for one in made:
        await one.transport.aclose()


@pytest.mark.ssh
async def test_only_blocks_travel_when_every_file_of_many_machines_is_edited(boxes, tree):
    made = boxes(6)
    pairs = [one.pair for one in made]
    await upload(pairs, [tree])
    for name in NAMES:
        edit(tree / name)
    report = await upload(pairs, [tree])
    assert all(same(tree, one) for one in made)
    assert sorted(report.sent) == sorted(one.name for one in made)
    assert all(0 < count < len(NAMES) * SMALLEST_BLOCK + 20_000 for count in report.sent.values())


async def test_few_machines_hold_a_file_twice_when_all_are_on_this_computer(tmp_path, tree, monkeypatch):
    monkeypatch.setattr(uploading, "HERE_AT_ONCE", 2)
    made = [local_box(f"task{number}", tmp_path / str(number)) for number in range(6)]
    await upload([one.pair for one in made], [tree])
    for name in NAMES:
        edit(tree / name)

    class Look:
        most = 0

        def update(self, machine, done, total):
            held = sum(bool(leftovers(one.home)) for one in made)
            self.most = max(self.most, held)

    look = Look()
    report = await upload([one.pair for one in made], [tree], progress=look)
    assert 1 <= look.most <= 2
    assert all(same(tree, one) for one in made)
    assert all(count < LITTLE + 2 * SMALLEST_BLOCK for count in report.sent.values())
    for one in made:
        await one.transport.aclose()


@pytest.mark.parametrize("kind", ["whole", "blocks"])
async def test_everybody_is_served_when_there_are_more_machines_and_deliveries_than_go_at_once(
    tmp_path, tree, monkeypatch, kind
):
    monkeypatch.setattr(uploading, "AT_ONCE", 1)
    monkeypatch.setattr(uploading, "HERE_AT_ONCE", 1)
    monkeypatch.setattr(manifest, "LARGE", SIZE)  # each file is a delivery
    monkeypatch.setattr(delta, "MOST_FILES", 1)
    made = [local_box(f"task{number}", tmp_path / str(number)) for number in range(3)]
    pairs = [one.pair for one in made]
    if kind == "blocks":
        await upload(pairs[:1], [tree])
        await asyncio.gather(*(upload([pair], [tree]) for pair in pairs[1:]))
        for name in NAMES:
            edit(tree / name)
    async with asyncio.timeout(60):
        report = await upload(pairs, [tree])
    assert all(same(tree, one) for one in made)
    most = 2 * SIZE if kind == "blocks" else 4 * SIZE
    assert all(count < most for count in report.sent.values())
    for one in made:
        await one.transport.aclose()
