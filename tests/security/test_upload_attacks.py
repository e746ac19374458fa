"""Uploads among strangers: names, links and pipes in the user's folder, what others have planted on the machine, and answers
that are lies.
"""

from __future__ import annotations

import asyncio
import gzip
import os
import re
import socket
import subprocess
import zlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from test_download_attacks import make_deep, remove_deep

from trainyard.lib.errors import Error, InvalidError
from trainyard.transport.api import Completed
from trainyard.transport.copy import CopyOptions, upload
from trainyard.transport.copy import blocks as blocks_module
from trainyard.transport.copy import manifest as manifest_module
from trainyard.transport.copy.compare import part_name
from trainyard.transport.copy.manifest import scan
from trainyard.transport.local import LocalTransport

LARGE = 2 * 1024 * 1024  # in these tests a file from here on goes in parts; else it is 32 MiB


@pytest.fixture(autouse=True)
def _large_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest_module, "LARGE", LARGE)


@pytest.fixture(params=["debian", "busybox"])
async def machine(
    request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncIterator[tuple[LocalTransport, Path]]:
    """A machine and its home."""
    path = os.environ["PATH"]
    if request.param == "busybox":
        tools = tmp_path / "tools"
        tools.mkdir()
        subprocess.run(["busybox", "--install", "-s", tools], check=True)
        path = str(tools)
    home = tmp_path / "machine"
    home.mkdir()
    way = LocalTransport(home, {"HOME": str(home), "PATH": path})
    yield way, home
    await way.aclose()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A large file in a folder."""
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "model").write_bytes(os.urandom(LARGE + 1))
    return folder


def planted(home: Path, source: Path) -> Path:
    """Where the part of the large file will grow. Whoever sees the folder can work it out."""
    (entry,) = scan([(b".", source)], CopyOptions()).files
    (home / "target").mkdir()
    return home / "target" / os.fsdecode(part_name(entry))


# -- what others have planted on the machine -------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["link", "dangling", "hard", "folder", "fifo"])
async def test_a_part_is_never_written_through_when_another_task_has_planted_its_name(machine, model, kind):
    way, home = machine
    victim = home / "authorized_keys"
    victim.write_text("theirs")
    part = planted(home, model)
    if kind == "link":
        part.symlink_to(victim)
    elif kind == "dangling":
        part.symlink_to(home / "made")
    elif kind == "hard":
        part.hardlink_to(victim)
    elif kind == "folder":
        part.mkdir()
    else:
        os.mkfifo(part)
    async with asyncio.timeout(30):
        await upload([("box", way)], [model], "target")
    assert victim.read_text() == "theirs"
    assert not (home / "made").exists()
    assert (home / "target/model").read_bytes() == (model / "model").read_bytes()
    # Where parts are not shared, as with BusyBox, what was planted is not even looked at.
    assert {path.name for path in (home / "target").iterdir()} <= {"model", part.name}


async def test_a_link_is_replaced_when_it_stands_at_the_name_of_a_file(machine, model):
    way, home = machine
    victim = home / "victim"
    victim.write_text("theirs")
    (model / "small").write_text("new")
    (home / "target").mkdir()
    for name in ("small", "model"):
        (home / "target" / name).symlink_to(victim)
    await upload([("box", way)], [model], "target")
    assert victim.read_text() == "theirs"
    assert (home / "target/small").read_text() == "new"
    assert not (home / "target/model").is_symlink()


async def test_only_the_target_is_pruned_when_links_in_it_lead_out(machine, model):
    way, home = machine
    (home / "outside").mkdir()
    (home / "outside/kept").write_text("theirs")
    await upload([("box", way)], [model], "target")
    (home / "target/out").symlink_to(home / "outside")
    (home / "target/old").mkdir()
    (home / "target/old-er").write_text("x")
    (home / "target/old/x").write_text("x")
    await upload([("box", way)], [model], "target", options=CopyOptions(delete=True))
    assert [path.name for path in (home / "target").iterdir()] == ["model"]
    assert (home / "outside/kept").read_text() == "theirs"


# -- the user's own folder ---------------------------------------------------------------------------------------------


async def test_pipes_sockets_and_devices_are_left_out_when_the_folder_holds_them(machine, tmp_path):
    way, home = machine
    folder = tmp_path / "s"
    (folder / "sub").mkdir(parents=True)
    (folder / "good").write_text("g")
    os.mkfifo(folder / "pipe")
    os.mkfifo(folder / ".trainyardignore")  # reading it would wait for ever
    (folder / "sub/.trainyardignore").symlink_to("/dev/zero")  # and this never ends
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(folder / "socket"))
        async with asyncio.timeout(30):
            report = await upload([("box", way)], [folder], "t")
    assert (home / "t/good").read_text() == "g"
    assert not (home / "t/pipe").exists()
    assert sum("skipped" in note for note in report.notes) == 3


async def test_an_ignore_file_is_refused_when_it_has_no_end(machine, tmp_path):
    way, _ = machine
    folder = tmp_path / "s"
    folder.mkdir()
    with (folder / ".trainyardignore").open("wb") as file:
        file.truncate(10**12)
    with pytest.raises(InvalidError, match="too long"):
        await upload([("box", way)], [folder], "t")


async def test_deep_trees_go_and_old_ones_are_pruned_when_folders_are_many(tmp_path):
    home = tmp_path / "machine"
    home.mkdir()
    way = LocalTransport(home, {"HOME": str(home), "PATH": os.environ["PATH"]})
    make_deep(tmp_path / "s", 1100)
    make_deep(tmp_path / "s/too deep", 110, "d" * 40)
    try:
        report = await upload([("box", way)], [tmp_path / "s"], "t")
        assert any("nested too deep" in note for note in report.notes)
        assert (home / "t").joinpath(*["d"] * 1100, "leaf").exists()
        make_deep(home / "t/old", 1100)
        await upload([("box", way)], [tmp_path / "s"], "t", options=CopyOptions(delete=True))
        assert not (home / "t/old").exists()
    finally:
        await way.aclose()
        remove_deep(tmp_path / "s")
        remove_deep(home)


# -- answers that are lies -----------------------------------------------------------------------------------------------


@dataclass
class LyingSurvey:
    """A machine that answers the question what it has with `answer`, and takes what comes."""

    home: Path
    answer: Callable[[bytes], bytes]
    stdin: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._local = LocalTransport(self.home, {"HOME": str(self.home), "PATH": os.environ["PATH"]})
        self.spawn = self._local.spawn
        self.aclose = self._local.aclose

    async def run(self, script: str, *, stdin: bytes = b"", **_options: object) -> Completed:
        mark = re.search(r"^mark='?([^'\n]*)'?$", script, re.MULTILINE)
        assert mark is not None
        self.stdin.append(stdin)
        return Completed(0, self.answer(mark[1].encode()), b"")


def bomb() -> bytes:
    packer = zlib.compressobj(wbits=31)
    return b"".join(packer.compress(bytes(1_000_000)) for _ in range(300)) + packer.flush()


HEAD = blocks_module._HEAD  # what a machine can forge
LIES: list[Callable[[bytes], bytes]] = [
    lambda mark: mark,
    lambda mark: mark + b"\n",
    lambda mark: mark + b" stamp \xc2\xb2\n" + mark + b" same\n",
    lambda mark: mark + b" stamp " + b"9" * 5000 + b"\n" + mark + b" same\n",
    lambda mark: mark + b" listing gnu\n",
    lambda mark: mark + b" listing gnu\nno gzip",
    lambda mark: mark + b" listing gnu\n" + bomb(),
    lambda mark: mark + b" listing gnu\n" + gzip.compress(b"zzzz 5 5 model\0-1 9999999 1 model\0"),
    lambda mark: mark + b" listing gnu\n" + gzip.compress(b"81a4 2097153 5 model\0") + blocks_module.MAGIC
    + HEAD.pack(LARGE + 1, 5, 2**62, 5) + b"model" + bytes(4),
    lambda mark: mark + b" listing gnu\n" + gzip.compress(b"81a4 2097153 5 model\0") + bytes(10**7),
]  # fmt: skip


@pytest.mark.parametrize("lie", range(len(LIES)))
async def test_an_upload_ends_in_a_sentence_or_well_when_the_machine_lies(tmp_path, model, lie):
    home = tmp_path / "machine"
    home.mkdir()
    lying = LyingSurvey(home, LIES[lie])
    try:
        async with asyncio.timeout(60):
            await upload([("box", lying)], [model], "target")
    except Error:
        pass
    finally:
        await lying.aclose()


async def test_nothing_but_what_find_can_say_is_removed_when_the_machine_lists_more(tmp_path, model):
    home = tmp_path / "machine"
    home.mkdir()

    def answer(mark: bytes) -> bytes:
        return mark + b"\n.\0./../outside\0/etc\0\0\0./a/../../x\0./old\0"

    from trainyard.transport.copy.prune import prune
    from trainyard.transport.copy.uploading import _plan

    lying = LyingSurvey(home, answer)
    removed = await prune("box", lying, _plan([model], "target", CopyOptions(delete=True)))
    await lying.aclose()
    assert removed == ["old"]
    assert lying.stdin[-1] == b"./old\0"
