"""Sums of blocks and what is made of them; the far side by itself, under every shell that a machine may have."""

from __future__ import annotations

import hashlib
import itertools
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.poly1305 import Poly1305
from hypothesis import given
from hypothesis import strategies as st

from trainyard.transport.copy.api import CopyOptions
from trainyard.transport.copy.blocks import (
    MOST_BLOCKS,
    SMALLEST_BLOCK,
    Blocks,
    block_count,
    block_size,
    decode,
    encode,
    make_ledger,
    sum_file,
)
from trainyard.transport.copy.delta import PROOF, Patch, compare, patches, runs, write_patch
from trainyard.transport.copy.manifest import ManifestEntry, scan
from trainyard.transport.copy.payload import make_payload
from trainyard.transport.copy.script import compose

SHELLS = [["dash"], ["bash"], ["bash", "--posix"], ["busybox", "sh"]]
MARK = "trainyard-mark"
BLOCK = SMALLEST_BLOCK
OLD = os.urandom(12 * BLOCK + 1000)


def entry_of(path: Path, name: bytes = b"it") -> ManifestEntry:
    (entry,) = scan([(name, path)], CopyOptions()).files
    return entry


def remembered(path: Path, name: bytes = b"it") -> Blocks:
    entry = entry_of(path, name)
    block = block_size(entry.size)
    return Blocks(entry.size, entry.mtime, block, sum_file(entry, block))


@given(st.integers(1, 1 << 50))
def test_a_file_has_a_bounded_number_of_blocks_when_it_is_large(size):
    assert block_count(size, block_size(size)) <= MOST_BLOCKS
    assert block_size(size) % SMALLEST_BLOCK == 0


def test_sums_come_back_when_encoded():
    kept = [
        (b"a \n\0" + "中文".encode(), Blocks(1_500_000, 5, BLOCK, os.urandom(4 * 12))),
        (b"b", Blocks(0, 0, BLOCK, b"")),
    ]
    assert decode(encode(kept)) == dict(kept)
    assert encode([]) == b""


@given(st.binary())
def test_nothing_is_known_when_the_sums_are_damaged(garbage):
    good = encode([(b"name", Blocks(1_500_000, 5, BLOCK, bytes(4 * 12)))])
    assert decode(garbage) == {}
    assert decode(good[:-1]) == {}
    assert decode(good + b"x") == {}


def test_a_ledger_is_as_long_as_it_says_when_a_file_has_vanished(tmp_path):
    names = ("one", "two", "three")
    for name in names:
        (tmp_path / name).write_bytes(OLD)
    entries = [entry_of(tmp_path / name, name.encode()) for name in names]
    known = {b"three": remembered(tmp_path / "three"), b"gone": remembered(tmp_path / "one")}
    ledger = make_ledger(entries, entries[:2], known)
    (tmp_path / "two").unlink()
    encoded = ledger.encoded()
    assert len(encoded) == ledger.length
    found = decode(encoded)
    assert sorted(found) == [b"one", b"three", b"two"]
    assert found[b"three"] == known[b"three"]
    assert found[b"one"] == remembered(tmp_path / "one")


@given(st.sets(st.integers(0, 200)))
def test_runs_cover_exactly_the_numbers_when_any_are_given(numbers):
    found = runs(sorted(numbers))
    assert [n for first, count in found for n in range(first, first + count)] == sorted(numbers)
    assert all(one[0] + one[1] < other[0] for one, other in itertools.pairwise(found))


def changed(content: bytes, *edits: tuple[int, bytes]) -> bytes:
    new = bytearray(content)
    for at, piece in edits:
        new[at : at + len(piece)] = piece
    return bytes(new)


EDITS = {
    "nothing": OLD,
    "one byte": changed(OLD, (5 * BLOCK, b"\0" if OLD[5 * BLOCK] else b"\1")),
    "first and last": changed(OLD, (0, b"new head"), (len(OLD) - 8, b"new tail")),
    "longer": OLD + os.urandom(3 * BLOCK),
    "longer by zeros": OLD + bytes(100),
    "shorter": OLD[: 10 * BLOCK + 17],
    "shorter by blocks": OLD[: 10 * BLOCK],
    "several runs": changed(OLD, *((n * BLOCK + 5, os.urandom(9)) for n in (1, 2, 5, 9))),
}


@pytest.fixture(params=SHELLS, ids=" ".join)
def shell(request, tmp_path, hostile_path):
    """Runs a script as a transport would, in a home at a hostile path."""
    home = hostile_path / "machine"
    home.mkdir()

    def run(script: str, stdin: bytes = b"", path: str = "") -> subprocess.CompletedProcess[bytes]:
        env = {"HOME": str(home), "PATH": path or os.environ["PATH"], "TMPDIR": str(tmp_path)}
        return subprocess.run([*run.words, "-c", script], input=stdin, env=env, cwd=home, capture_output=True)

    run.words = [shutil.which(request.param[0]), *request.param[1:]]
    run.home = home
    return run


NAMES = [b"plain", b"-rf $(touch pwned) 'q' \"d\" `x`", b"new\nline\\ back", b"caf\xe9/" + "中文".encode()]


def delta_script(patch: Patch, kept: int = 0, **changes) -> str:
    variables = {
        "sink": "delta", "base": b"./a b", "key": "k", "patch": patch.script(), "upto": patch.length,
        "proofs": patch.proofs, "kept": kept, "stamp": "9 x",
    }  # fmt: skip
    return compose("sinks.sh", "receive.sh", mark=MARK, **{**variables, **changes})


def content(patch: Patch, ledger=None) -> bytes:
    payload = make_payload(lambda descriptor: write_patch(patch, ledger, descriptor))
    descriptor = payload.open()
    try:
        return os.read(descriptor, payload.length)
    finally:
        os.close(descriptor)
        payload.close()


def prepare(shell, tmp_path, new: bytes, names=NAMES) -> Patch:
    """Files there in their old form; a patch that makes them new."""
    files = []
    for name in names:
        there = os.path.join(os.fsencode(shell.home / "a b"), name)
        os.makedirs(os.path.dirname(there), exist_ok=True)
        Path(os.fsdecode(there)).write_bytes(OLD)
        os.chmod(there, 0o444)
        here = tmp_path / "local"
        here.write_bytes(OLD)
        base = remembered(here)
        here.write_bytes(new)
        here.chmod(0o751)
        os.utime(here, (1_577_934_245, 1_577_934_245))
        entry = entry_of(here, name)
        files.append((entry, compare(entry, base)))
    (made,) = patches(b"./a b", files)
    return made


# An openssl that knows Poly1305, one that does not, none.
OPENSSLS = ("all", "old", "none")


def make_tools(folder: Path, openssl: str) -> str:
    """A PATH with what a machine has at least, and that openssl."""
    tools = folder / "tools"
    tools.mkdir()
    names = ["cat", "wc", "tail", "dd", "chmod", "touch", "mv", "rm", "sha256sum", "mkdir", "find"]
    for name in [*names, *(["openssl"] if openssl == "all" else [])]:
        (tools / name).symlink_to(shutil.which(name))
    if openssl == "old":
        (tools / "openssl").write_text(
            '#!/bin/sh\ncase "$*" in *-mac*) echo "Error setting MAC" >&2; exit 1 ;; esac\n'
            f'exec {shutil.which("openssl")} "$@"\n'
        )
        (tools / "openssl").chmod(0o755)
    return str(tools)


def everything(folder: Path) -> list[bytes]:
    root = os.fsencode(folder)
    return sorted(
        os.path.relpath(os.path.join(place, file), root)
        for place, _, files in os.walk(root)
        for file in files
    )


@pytest.mark.parametrize("edit", EDITS)
def test_old_files_become_new_ones_when_patched(shell, tmp_path, edit):
    new = EDITS[edit]
    patch = prepare(shell, tmp_path, new)
    assert patch.length <= 4 * len(NAMES) * BLOCK
    result = shell(delta_script(patch), content(patch))
    assert result.stdout == b"trainyard-mark ok\n", result.stderr
    assert everything(shell.home / "a b") == sorted(NAMES)
    for name in NAMES:
        there = Path(os.fsdecode(os.path.join(os.fsencode(shell.home / "a b"), name)))
        assert there.read_bytes() == new
        assert there.stat().st_mode & 0o777 == 0o751
        assert there.stat().st_mtime == 1_577_934_245


def test_the_sums_are_kept_when_they_come_along(shell, tmp_path):
    (shell.home / ".trainyard/uploads").mkdir(parents=True)
    patch = prepare(shell, tmp_path, EDITS["one byte"])
    entries = [entry for entry, _ in patch.files]
    ledger = make_ledger(entries, entries, {})
    result = shell(delta_script(patch, ledger.length), content(patch, ledger))
    assert result.stdout == b"trainyard-mark ok\n", result.stderr
    assert decode((shell.home / ".trainyard/uploads/k.blocks").read_bytes()).keys() == set(NAMES)
    assert everything(shell.home / ".trainyard") == [b"uploads/k", b"uploads/k.blocks"]


@pytest.mark.parametrize("openssl", OPENSSLS)
def test_the_old_files_stay_when_one_of_them_is_not_what_it_was(shell, tmp_path, openssl):
    path = make_tools(tmp_path, openssl)
    patch = prepare(shell, tmp_path, EDITS["one byte"])
    odd = shell.home / "a b/plain"
    odd.chmod(0o644)
    spoilt = changed(OLD, (7 * BLOCK, b"spoilt"))
    odd.write_bytes(spoilt)
    result = shell(delta_script(patch), content(patch), path)
    assert result.stdout == b"trainyard-mark failed 3\n"
    assert odd.read_bytes() == spoilt
    assert everything(shell.home / "a b") == sorted(NAMES)
    odd.unlink()
    odd.symlink_to("elsewhere")
    assert shell(delta_script(patch), content(patch), path).stdout == b"trainyard-mark failed 3\n"
    assert odd.is_symlink()
    assert everything(shell.home / "a b") == sorted(NAMES)
    assert not (shell.home / ".trainyard/uploads/k").exists()


@pytest.mark.parametrize("length", [0, 1000, -1])
def test_nothing_changes_when_the_stream_is_cut(shell, tmp_path, length):
    patch = prepare(shell, tmp_path, EDITS["one byte"])
    result = shell(delta_script(patch), content(patch)[:length])
    assert result.stdout == b"trainyard-mark failed 1\n"
    assert (shell.home / "a b/plain").read_bytes() == OLD
    assert everything(shell.home / "a b") == sorted(NAMES)


def test_nothing_changes_when_a_block_is_damaged_on_its_way(shell, tmp_path):
    patch = prepare(shell, tmp_path, EDITS["one byte"])
    data = changed(content(patch), (100, b"damaged"))
    assert shell(delta_script(patch), data).stdout == b"trainyard-mark failed 3\n"
    assert (shell.home / "a b/plain").read_bytes() == OLD
    assert everything(shell.home / "a b") == sorted(NAMES)


@pytest.mark.parametrize("openssl", OPENSSLS)
@pytest.mark.parametrize("spoilt", ["hashes", "seals", ""])
def test_files_are_proved_by_what_the_machine_can_compute_when_there_are_two_proofs(
    shell, tmp_path, openssl, spoilt
):
    patch = prepare(shell, tmp_path, EDITS["one byte"])
    data = content(patch)
    blocks, lines = data[: patch.length], data[patch.length :].splitlines()
    assert all(len(line) + 1 == PROOF for line in lines)
    at = {"hashes": slice(0, 64), "seals": slice(65, None), "": slice(0, 0)}[spoilt]
    for number, line in enumerate(lines):
        changed_line = bytearray(line)
        changed_line[at] = b"0" * len(line[at])
        lines[number] = bytes(changed_line)
    result = shell(
        delta_script(patch), blocks + b"".join(line + b"\n" for line in lines), make_tools(tmp_path, openssl)
    )
    is_sealing = openssl == "all"
    if spoilt == ("seals" if is_sealing else "hashes"):
        assert result.stdout == b"trainyard-mark failed 3\n"
        assert (shell.home / "a b/plain").read_bytes() == OLD
    else:
        assert result.stdout == b"trainyard-mark ok\n", result.stderr
        assert (shell.home / "a b/plain").read_bytes() == EDITS["one byte"]


def test_the_proof_is_of_the_file_as_it_is_when_it_changes_after_the_comparison(tmp_path):
    here = tmp_path / "local"
    here.write_bytes(OLD)
    base = remembered(here)
    entry = entry_of(here)
    found = compare(entry, base)
    assert found.changed == ()
    here.write_bytes(EDITS["one byte"])
    patch = Patch(b".", [(entry, found)])
    seal = Poly1305(patch.key)
    seal.update(EDITS["one byte"])
    digest = hashlib.sha256(EDITS["one byte"]).hexdigest()
    assert content(patch) == f"{digest} {seal.finalize().hex()}\n".encode()
    here.unlink()
    assert content(patch) == b"-" * (PROOF - 1) + b"\n"


def test_no_two_deliveries_have_the_same_key_when_made_of_the_same_files():
    assert Patch(b".", []).key != Patch(b".", []).key


def test_a_file_is_sent_whole_when_most_of_it_has_changed(tmp_path):
    here = tmp_path / "local"
    here.write_bytes(OLD)
    base = remembered(here)
    here.write_bytes(OLD[BLOCK // 2 :])  # all blocks are moved
    assert not compare(entry_of(here), base).is_worth_it
    here.write_bytes(changed(OLD, (0, b"x" * 5)))
    assert compare(entry_of(here), base).is_worth_it
