"""Every moment of a full disk: a sentence within seconds, no half file, and all is well again when there is room."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from lying_machine import LyingMachine, archive, folder_listing

from trainyard.lib.errors import InvalidError, UnreachableError
from trainyard.runtime.session import Session
from trainyard.transport.copy import download, downloading
from trainyard.transport.local import LocalTransport

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="only root mounts a small disk")

SECONDS = 30  # a busy machine takes a while; what hangs takes for ever
FILL = "cat /dev/zero > filler 2>/dev/null; :"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Makes small disks: `disk("2m")`."""
    made: list[Path] = []

    def mount(size: str) -> Path:
        place = tmp_path / f"disk{len(made)}"
        place.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)], check=True)
        made.append(place)
        return place

    yield mount
    for place in made:
        subprocess.run(["umount", "-l", str(place)], check=True)


def fill(folder: Path) -> Path:
    """Write until there is no room for a byte."""
    filler = folder / "filler"
    with filler.open("ab", buffering=0) as file:
        for size in (65536, 4096, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                pass
    return filler


def machine_at(home: Path) -> LocalTransport:
    return LocalTransport(home, {**os.environ, "HOME": str(home), "TRAINYARD_MACHINE": "task0.x:1"})


# -- commands ------------------------------------------------------------------------------------------------------


@pytest.fixture
async def machine(disk: Callable[[str], Path]) -> AsyncIterator[LocalTransport]:
    """A machine whose home is a disk of 2 MB."""
    way = machine_at(disk("2m"))
    yield way
    gone = "p=~/.trainyard/task0.x/pid; while [ -e $p ] && kill -0 $(cat $p) 2>/dev/null; do sleep 0.02; done"
    await way.run(f"rm -f filler ckpt.pt; tmux kill-server 2>/dev/null; {gone}", timeout=10)
    await way.aclose()


@pytest.fixture
async def session(machine: LocalTransport) -> AsyncIterator[Session]:
    made = Session(transport=machine, machine="task0.x")
    await made.open()
    yield made
    await made.aclose()


async def run(session: Session, text: str) -> int:
    async with asyncio.timeout(SECONDS):
        return (await session.run(text)).status


async def test_the_status_comes_when_the_command_has_filled_the_disk(session):
    assert await run(session, "head -c 5000000 /dev/zero > ckpt.pt") == 1
    # It is noted, too: whoever comes later finds it.
    assert await session.status(1) == 1
    async with asyncio.timeout(SECONDS):
        assert (await session.wait(1)).status == 1


async def test_the_next_command_is_refused_in_a_sentence_when_the_disk_is_full(session):
    await run(session, FILL)
    with pytest.raises(InvalidError, match=r"disk of task0\.x is full") as caught:
        for _ in range(20):  # a few may still find room in blocks that are begun
            await run(session, FILL)
    assert caught.value.hint
    await session.transport.run("rm -f filler")
    assert await run(session, "exit 7") == 7
    assert await run(session, "true") == 0


async def test_waiting_clients_hear_the_end_when_commands_were_queued_before_the_disk_was_full(session):
    gate = "until [ -e go ]; do sleep 0.1; done; "
    texts = [gate + FILL, FILL + " exit 3", FILL + " false", "echo last"]
    numbers = [await session.submit(text) for text in texts]
    await session.transport.run("mkdir go")

    async def end(number: int) -> int | str:
        other = Session(transport=session.transport, machine="task0.x")
        try:
            return (await other.wait(number)).status
        except InvalidError as error:
            return str(error)
        finally:
            await other.aclose()

    async with asyncio.timeout(2 * SECONDS):
        first = await end(numbers[0])
        assert first == 0
        await session.transport.run("rm -f filler")
        ends = [await end(number) for number in numbers[1:]]
    assert all(isinstance(each, int) or "full" in each for each in ends)
    await session.transport.run("rm -f filler")
    assert await run(session, "true") == 0


async def test_a_session_is_refused_in_a_sentence_when_the_disk_is_full_from_the_start(machine):
    filler = fill(Path((await machine.run("pwd")).stdout.decode().strip()))
    made = Session(transport=machine, machine="task0.x")
    async with asyncio.timeout(2 * SECONDS):
        with pytest.raises((InvalidError, UnreachableError), match=r"full|space"):
            await made.open()
    filler.unlink()
    assert await run(made, "exit 5") == 5
    await made.aclose()


# -- downloads -----------------------------------------------------------------------------------------------------


@pytest.fixture
async def source(tmp_path: Path) -> AsyncIterator[LocalTransport]:
    """A machine with 600 kB to download."""
    home = tmp_path / "machine"
    (home / "x").mkdir(parents=True)
    (home / "x/model").write_bytes(os.urandom(600_000))
    way = machine_at(home)
    yield way
    await way.aclose()


@pytest.mark.parametrize("large", [64 * 1024, 32 * 1024 * 1024])
async def test_a_download_leaves_no_part_when_the_disk_is_filled_under_its_hands(
    source, disk, tmp_path, monkeypatch, large
):
    monkeypatch.setattr(downloading, "LARGE", large)
    small = disk("1m")
    check = downloading._check_space

    def check_and_fill(works, target) -> None:
        check(works, target)
        fill(small)

    monkeypatch.setattr(downloading, "_check_space", check_and_fill)
    with pytest.raises(InvalidError, match="No space left") as caught:
        async with asyncio.timeout(SECONDS):
            await download(source, "x", small / "t")
    assert "Free some space" in caught.value.hint
    assert [path.name for path in small.rglob("*") if path.is_file()] == ["filler"]
    monkeypatch.undo()
    (small / "filler").unlink()
    await download(source, "x", small / "t")
    assert (small / "t/model").read_bytes() == (tmp_path / "machine/x/model").read_bytes()


async def test_a_download_is_refused_before_it_begins_when_there_is_no_room(source, disk):
    small = disk("1m")
    filler = fill(small)
    with pytest.raises(InvalidError, match="are free"):
        await download(source, "x", small / "t")
    assert [path.name for path in small.iterdir()] == ["filler"]
    filler.unlink()
    (small / "half").write_bytes(bytes(300_000))
    await download(source, "x", small / "t")
    assert (small / "t/model").stat().st_size == 600_000


async def test_a_small_listing_is_no_way_to_fill_the_disk_for_good_when_the_archive_is_large(disk, tmp_path):
    small = disk("1m")
    lying = LyingMachine(
        tmp_path / "lying",
        listings={"x": folder_listing(("f", "a", 1))},
        archive=archive((".", "folder", ""), ("a", "file", bytes(3_000_000))),
    )
    with pytest.raises(InvalidError, match="No space left"):
        await download(lying, "x", small / "t")
    await lying.aclose()
    assert [path for path in small.rglob("*") if path.is_file()] == []


# -- the command line, with all that it keeps on a full disk -----------------------------------------------------------


def test_the_command_line_says_so_and_heals_when_its_home_is_full(disk):
    home = disk("2m")
    program = [str(Path(sys.executable).with_name("trainyard"))]
    env = {**os.environ, "TRAINYARD_HOME": str(home)}

    def call(*words: str) -> tuple[int, str]:
        done = subprocess.run(
            [*program, *words], env=env, capture_output=True, text=True, timeout=2 * SECONDS
        )
        assert "Traceback" not in done.stderr
        return done.returncode, done.stderr

    filler = fill(home)
    status, said = call("create", "--backend", "local", "--name", "box")
    assert (status, "space" in said) == (7, True)
    filler.unlink()
    try:
        assert call("create", "--backend", "local", "--name", "box")[0] == 0
        assert call("run", "box", "--", "head -c 5000000 /dev/zero > ckpt.pt")[0] == 1
        for _ in range(5):  # the first may find room in a block that is begun
            status, said = call("run", "box", "--", "cat /dev/zero > more")
            if status == 2:
                break
        assert (status, "full" in said) == (2, True)
        status, said = call("scp", str(Path(__file__)), "box:copy")
        assert (status, "No space left" in said) == (2, True)
        assert call("ssh", "box", "rm -f ckpt.pt more")[0] == 0
        assert call("run", "box", "--", "exit 4")[0] == 4
        assert call("wait", "box")[0] in (0, 4)
        assert call("scp", str(Path(__file__)), "box:copy")[0] == 0
    finally:
        call("kill", "-y", "box")
