"""Every moment of a full disk: a sentence within seconds, no half file, and all is well again when there is room."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from trainyard.lib.errors import InvalidError, UnreachableError
from trainyard.runtime.session import Session
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
