"""Logs: exactly once by offset, bounded, read from both ends, followed, searched, merged."""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainyard.lib.errors import ConflictError, InvalidError
from trainyard.server.logs.log_files import SEGMENTS, LogStore
from trainyard.server.logs.log_search import matcher, search
from trainyard.server.logs.log_views import merged, merged_tail

JOB = "dlc1abc"
KEY = (JOB, 1, "worker-0")


def whole(store: LogStore, key: tuple[str, int, str] = KEY) -> bytes:
    return b"".join(store.download(*key))


def test_bytes_are_kept_once_when_they_come_twice(tmp_path: Path):
    store = LogStore(tmp_path)
    store.append(*KEY, 0, b"hello ", 1.0)
    store.append(*KEY, 0, b"hello ", 1.1)
    store.append(*KEY, 3, b"lo world", 1.2)
    assert whole(store) == b"hello world"
    assert store.size(*KEY) == 11


def test_a_gap_is_refused_and_skipped_only_on_purpose(tmp_path: Path):
    store = LogStore(tmp_path)
    store.append(*KEY, 0, b"begin\n", 1.0)
    with pytest.raises(ConflictError):
        store.append(*KEY, 100, b"end\n", 2.0)
    store.skip(*KEY, 100, 2.0)
    store.append(*KEY, 100, b"end\n", 2.0)
    assert store.size(*KEY) == 104
    text = whole(store)
    assert text.startswith(b"begin\n")
    assert b"94 bytes of output are not kept" in text
    assert text.endswith(b"\nend\n")


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 60)), max_size=30), st.booleans())
@settings(max_examples=60, deadline=None)
def test_any_overlapping_pieces_give_the_same_log(tmp_path_factory, pieces, reopens):
    text = bytes(random.Random(1).randbytes(4000))
    store = LogStore(tmp_path_factory.mktemp("logs"))
    size = 0
    for back, length in pieces:
        begin = max(0, size - back)
        store.append(*KEY, begin, text[begin : begin + length], 1.0)
        size = max(size, min(len(text), begin + length))
        if reopens:
            store.close()
    assert whole(store) == text[:size]
    assert store.size(*KEY) == size
    store.close()


def test_beginning_and_end_stay_when_a_log_outgrows_its_limit(tmp_path: Path):
    limit = SEGMENTS * 4096
    store = LogStore(tmp_path, limit_bytes=limit)
    lines = [b"line %06d\n" % number for number in range(30_000)]
    offset = 0
    for begin in range(0, len(lines), 100):
        data = b"".join(lines[begin : begin + 100])
        store.append(*KEY, offset, data, 1.0 + begin)
        offset += len(data)
    info = store.logs(JOB)[0]
    assert info.size == offset == store.size(*KEY)
    assert info.kept <= limit + 4096
    text = whole(store)
    assert text.startswith(b"line 000000\n")
    assert text.endswith(b"line 029999\n")
    assert text.count(b"bytes of output are not kept here") == 1
    part = store.tail(*KEY, lines=3)
    assert part.data == b"".join(lines[-3:])
    # Where the hole is, reading goes on behind it.
    middle = store.read(*KEY, offset=offset // 2)
    assert middle.is_marker
    assert store.read(*KEY, offset=middle.next_offset).data


def test_sizes_are_right_when_a_crash_left_half_an_index_and_nothing_is_in_memory(tmp_path: Path):
    store = LogStore(tmp_path)
    store.append(*KEY, 0, b"one\n", 1.0)
    store.append(*KEY, 4, b"two\n", 2.0)
    store.close()
    (times,) = tmp_path.rglob("*.times")
    with times.open("ab") as file:
        file.write(b"\x01\x02\x03")
    again = LogStore(tmp_path)
    assert again.size(*KEY) == 8
    again.append(*KEY, 8, b"three\n", 3.0)
    assert again.times(*KEY) == [(0, 1.0), (4, 2.0), (8, 3.0)]
    found, _ = merged(again, JOB, 1, {"worker-0": 0})
    assert [(line.time, line.data) for line in found] == [(1.0, b"one"), (2.0, b"two"), (3.0, b"three")]


def test_another_writer_is_noticed(tmp_path: Path):
    first, second = LogStore(tmp_path), LogStore(tmp_path)
    first.append(*KEY, 0, b"aaa", 1.0)
    second.append(*KEY, 3, b"bbb", 2.0)
    first.append(*KEY, 3, b"bbbccc", 3.0)
    assert whole(first) == b"aaabbbccc"


def test_pages_go_backwards_by_whole_lines(tmp_path: Path):
    store = LogStore(tmp_path)
    text = b"".join(b"%04d\n" % number for number in range(1000))
    store.append(*KEY, 0, text, 1.0)
    pages, offset = [], None
    while offset != 0:
        part = store.before(*KEY, offset=offset, limit=777)
        assert part.data.endswith(b"\n")
        assert part.data[:4].isdigit()
        pages.insert(0, part.data)
        offset = part.offset
    assert b"".join(pages) == text


@pytest.mark.parametrize(
    ("text", "lines", "wanted"),
    [
        (b"", 5, b""),
        (b"a\nb\nc\n", 2, b"b\nc\n"),
        (b"a\nb\nc", 2, b"b\nc"),
        (b"a\nb\nc", 9, b"a\nb\nc"),
        (b"a\n", 0, b""),
        (b"\n\n\n", 2, b"\n\n"),
    ],
)
def test_the_tail_has_so_many_lines(tmp_path: Path, text: bytes, lines: int, wanted: bytes):
    store = LogStore(tmp_path)
    store.append(*KEY, 0, text, 1.0)
    assert store.tail(*KEY, lines=lines).data == wanted


def test_words_and_expressions_are_found_in_binary_output(tmp_path: Path):
    store = LogStore(tmp_path)
    text = b"epoch 1 loss 0.5\n\xff\x00\xfe\rLOSS 7\nepoch 22 loss 0.25\n\nlast loss"
    store.append(*KEY, 0, text, 4.0)
    found = search(store, *KEY, matcher("loss"))
    assert [line.offset for line in found.lines] == [0, text.index(b"epoch 22"), text.index(b"last")]
    assert len(search(store, *KEY, matcher("LOSS", ignores_case=True)).lines) == 4
    by_expression = search(store, *KEY, matcher(r"epoch [0-9]{2} ", is_regex=True))
    assert [line.data for line in by_expression.lines] == [b"epoch 22 loss 0.25"]
    first = search(store, *KEY, matcher("loss"), limit=1)
    assert first.next_offset is not None
    assert len(search(store, *KEY, matcher("loss"), offset=first.next_offset).lines) == 2
    partly = search(store, *KEY, matcher("loss"), scan_bytes=20)
    assert partly.next_offset is not None
    with pytest.raises(InvalidError):
        matcher("(", is_regex=True)
    with pytest.raises(InvalidError):
        matcher("")


def test_tasks_are_merged_by_the_time_of_their_lines(tmp_path: Path):
    store = LogStore(tmp_path)
    store.append(JOB, 1, "a-0", 0, b"a1\n", 1.0)
    store.append(JOB, 1, "b-0", 0, b"b1\nb2\n", 2.0)
    store.append(JOB, 1, "a-0", 3, b"a2\nunfinished", 3.0)
    found, offsets = merged(store, JOB, 1, {"a-0": 0, "b-0": 0}, whole=True)
    assert [(line.task, line.data) for line in found] == [
        ("a-0", b"a1"),
        ("b-0", b"b1"),
        ("b-0", b"b2"),
        ("a-0", b"a2"),
    ]
    assert offsets == {"a-0": 6, "b-0": 6}
    tail, _ = merged_tail(store, JOB, 1, ["a-0", "b-0"], lines=2)
    assert [line.data for line in tail] == [b"a2", b"unfinished"]


async def test_followers_are_woken_and_end_with_the_task(tmp_path: Path):
    store = LogStore(tmp_path)
    ended = False
    read: list[list[bytes]] = [[] for _ in range(50)]

    async def follow(into: list[bytes]) -> None:
        async for part in store.follow(*KEY, is_ended=lambda: ended):
            into.append(part.data)  # noqa: PERF401  # as they come

    followers = [asyncio.create_task(follow(into)) for into in read]
    offset = 0
    for number in range(20):
        data = b"line %d\n" % number
        store.append(*KEY, offset, data, float(number))
        offset += len(data)
        await asyncio.sleep(0)
    ended = True
    store.wake(JOB)
    await asyncio.wait_for(asyncio.gather(*followers), 5)
    assert {b"".join(each) for each in read} == {whole(store)}
    assert not store._waiting


async def test_a_follower_sees_what_another_process_writes(tmp_path: Path):
    reader, writer = LogStore(tmp_path), LogStore(tmp_path)
    parts = reader.follow(*KEY)
    waiting = asyncio.ensure_future(anext(parts))
    await asyncio.sleep(0)
    writer.append(*KEY, 0, b"from afar\n", 1.0)
    assert (await asyncio.wait_for(waiting, 5)).data == b"from afar\n"
    await parts.aclose()


@pytest.mark.parametrize("name", ["..", "../x", "a/b", "", ".hidden", "a\nb", "x" * 300, "中文"])
def test_names_that_lead_elsewhere_are_refused(tmp_path: Path, name: str):
    store = LogStore(tmp_path)
    with pytest.raises(InvalidError):
        store.append(name, 1, "worker-0", 0, b"x", 1.0)
    with pytest.raises(InvalidError):
        store.read(JOB, 1, name)
    with pytest.raises(InvalidError):
        store.delete(name)
    assert os.listdir(tmp_path) == [] or not any(tmp_path.rglob("*x*"))


def test_nothing_is_left_when_a_workload_is_deleted(tmp_path: Path):
    store = LogStore(tmp_path)
    store.append(*KEY, 0, b"x" * 5000, 1.0)
    store.append(JOB, 2, "worker-0", 0, b"again", 2.0)
    store.append("other1", 1, "worker-0", 0, b"stays", 2.0)
    assert [(info.attempt, info.size) for info in store.logs(JOB)] == [(1, 5000), (2, 5)]
    assert sorted(store.workloads()) == [JOB, "other1"]
    store.delete(JOB)
    store.delete(JOB)
    assert store.logs(JOB) == []
    assert whole(store, ("other1", 1, "worker-0")) == b"stays"
    store.append(*KEY, 0, b"anew", 3.0)
    assert whole(store) == b"anew"


def test_the_index_stays_small_when_a_task_talks_for_long(tmp_path: Path):
    store = LogStore(tmp_path, limit_bytes=2**20)
    for number in range(12_000):
        store.append(*KEY, number, b"x", number * 0.02)
    assert len(store.times(*KEY)) < 10_200
