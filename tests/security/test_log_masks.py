"""What tasks print of their secrets is not kept, wherever the pieces of their output end."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from trainyard.server.logs.log_files import LogStore
from trainyard.server.logs.log_masks import LEAST, Mask, MaskedEnd, texts_of

SECRET = "hf_S3cretT0ken-中文"
KUBE = "apiVersion: v1\nusers:\n- token: eyJhbGciOiJSUzI1NiIsImtpZCI6IjEifQ\n"
LONG = "".join(random.Random(1).choices("abcdefghijklmnopqrstuvwxyz0123456789", k=3000))
VALUES = (SECRET, KUBE, LONG, "postgres://me:p4ssw0rd@db/x", "short", "******", "")


def stored(store: LogStore) -> bytes:
    return b"".join(store.download("dlc1", 1, "worker-0"))


def feed(store: LogStore, data: bytes, cuts: list[int]) -> None:
    """Give a store the output in pieces, some of them twice, as after a lost connection."""
    begin = 0
    for cut in [*cuts, len(data)]:
        again = max(0, begin - 5)
        store.append("dlc1", 1, "worker-0", again, data[again:cut], 1.0)
        begin = cut


def expected(data: bytes) -> bytes:
    for text in texts_of(VALUES):
        data = data.replace(text.encode(), b"*" * len(text.encode()))
    return data


@pytest.fixture
def store(tmp_path: Path) -> LogStore:
    made = LogStore(tmp_path, limit_bytes=64 * 2**20)
    made._segment = 4096  # so that secrets lie across segments
    made.hide("dlc1.1", VALUES)
    yield made
    made.close()


def output(random_: random.Random, count: int) -> bytes:
    """Lines with secrets, with parts of secrets, and without any."""
    parts = []
    for _ in range(count):
        text = random_.choice(
            [*VALUES, "p4ssw0rd", SECRET[:9], LONG[:100], LONG * 2, "step 3 loss 0.1", "hf_hf_", "short"]
        )
        parts.append(random_.choice(["", "\n", " ", "x="]) + text)
    return ("".join(parts) + "\nthe end\n").encode()


@pytest.mark.parametrize("seed", range(12))
def test_no_secret_is_stored_and_nothing_else_is_changed_when_pieces_end_anywhere(store: LogStore, seed: int):
    random_ = random.Random(seed)
    data = output(random_, 60)
    cuts = sorted(random_.sample(range(1, len(data)), min(len(data) - 1, random_.choice([1, 20, 400]))))
    feed(store, data, cuts)
    found = stored(store)
    assert len(found) == len(data), "offsets are those of the output"
    for text in texts_of(VALUES):
        assert text.encode() not in found
    # NB: where secrets overlap, more is starred than their plain replacement would.
    assert all(a == b or a == ord("*") for a, b in zip(found, data, strict=True))
    wrong = [at for at, (a, b) in enumerate(zip(found, expected(data), strict=True)) if a != b]
    assert len(wrong) <= len(data) // 50


def test_no_secret_is_stored_when_it_comes_byte_by_byte(store: LogStore):
    data = f"a {SECRET} b {SECRET[:5]} c".encode()
    feed(store, data, list(range(1, len(data))))
    assert stored(store) == expected(data)


def test_what_only_began_like_a_secret_is_put_right_when_it_goes_on_otherwise(store: LogStore):
    store.append("dlc1", 1, "worker-0", 0, b"see hf_S3c", 1.0)
    assert stored(store) == b"see ******"
    store.append("dlc1", 1, "worker-0", 10, b"ond try", 1.0)
    assert stored(store) == b"see hf_S3cond try"


def test_a_reader_sees_no_beginning_of_a_secret_when_it_comes_in_two_pieces(store: LogStore):
    secret = SECRET.encode()
    store.append("dlc1", 1, "worker-0", 0, secret[:10], 1.0)
    assert stored(store) == b"*" * 10
    store.append("dlc1", 1, "worker-0", 10, secret[10:], 1.0)
    assert stored(store) == b"*" * len(secret)


def test_other_jobs_and_attempts_print_what_they_like(store: LogStore):
    store.append("dlc2", 1, "worker-0", 0, SECRET.encode(), 1.0)
    assert b"".join(store.download("dlc2", 1, "worker-0")) == SECRET.encode()
    store.unhide("dlc1.1")
    store.append("dlc1", 1, "worker-0", 0, SECRET.encode(), 1.0)
    assert stored(store) == SECRET.encode()
    assert store.cleaned("dlc1.1", SECRET) == SECRET


def test_messages_are_cleaned_without_telling_the_length(store: LogStore):
    assert store.cleaned("dlc1.1", f"git: {SECRET}: no") == "git: ******: no"
    assert store.cleaned("dlc9.1", SECRET) == SECRET


def test_short_values_and_short_lines_are_left_alone():
    found = texts_of(VALUES)
    assert all(len(text) >= LEAST for text in found)
    assert "short" not in found and "users:" not in found and "******" not in found and "p4ssw0rd" in found


def test_the_work_is_bounded_when_secrets_and_output_repeat_themselves():
    mask = Mask(["a" * 65536, "ab" * 1000, "x" * 600])
    end = MaskedEnd()
    for _ in range(8):
        fresh, _before = end.feed(mask, b"a" * 262_144)
        assert set(fresh) == {ord("*")}
    assert len(end.raw) < 512
