"""Machines that pass data on to each other, over real ssh between real sshds."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

import pytest
from copy_boxes import Box, age, differences, leftovers, make_tree

from trainyard.transport.copy import Peer, Peers, upload

pytestmark = [pytest.mark.ssh, pytest.mark.slow]  # several sshds, and ssh from each to the next


def peers(made: list[Box], **changes: Peer) -> Peers:
    members = {one.name: Peer(one.sshd.address, one.sshd.port, one.sshd.user) for one in made}
    first = made[0].sshd
    return Peers({**members, **changes}, str(first.client_key), str(first.known_hosts), force=True)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    folder = make_tree(tmp_path / "code")
    for number in range(4):
        (folder / f"blob{number}").write_bytes(os.urandom(700_000))
    age(folder)
    return folder


def all_same(tree: Path, made: list[Box]) -> bool:
    return all(differences(tree, one.home / tree.name) == [] for one in made)


def litter(made: list[Box]) -> list[str]:
    """Temporary files on the machines."""
    found = [path for one in made for path in leftovers(one.home)]
    return found + [str(path) for one in made for path in (one.sshd.folder / "tmp").iterdir()]


@pytest.mark.parametrize("count", [2, 4, 10])  # ten make a tree, fewer a chain
async def test_the_client_sends_once_when_machines_are_peers(boxes, tree, recorder, count):
    made = boxes(count)
    report = await upload([one.pair for one in made], [tree], peers=peers(made), progress=recorder)
    assert all_same(tree, made)
    assert set(report.relayed) == {one.name for one in made[1:]}
    assert sum(report.sent.values()) < 2 * 2_900_000
    assert report.notes == ()
    assert litter(made) == []
    for one in made:
        assert recorder.last[one.name][0] == recorder.last[one.name][1] > 2_800_000
    again = await upload([one.pair for one in made], [tree], peers=peers(made))
    assert sum(again.sent.values()) == 0


async def test_a_large_file_is_relayed_when_machines_are_peers(boxes, tmp_path):
    large = tmp_path / "large model"
    large.write_bytes(os.urandom(1 << 20) * 33)
    made = boxes(3)
    report = await upload([one.pair for one in made], [large], "sub/it", peers=peers(made))
    for one in made:
        assert (one.home / "sub/it").read_bytes() == large.read_bytes()
        assert (one.home / "sub/it").stat().st_mtime == int(large.stat().st_mtime)
    assert len(report.relayed) == 2
    assert litter(made) == []


async def test_the_rest_is_served_directly_when_a_middle_machine_cannot_be_reached(boxes, tree):
    made = boxes(4)
    gone = Peer(made[1].sshd.address, 1, made[1].sshd.user)
    report = await upload([one.pair for one in made], [tree], peers=peers(made, **{"task1.x": gone}))
    assert all_same(tree, made)
    assert report.relayed == ()
    assert report.sent["task3.x"] > 2_800_000
    assert any("task1.x" in note and "refused" in note for note in report.notes)
    assert litter(made) == []


async def test_the_rest_is_served_directly_when_nobody_lets_the_first_in(boxes, tree, tmp_path):
    made = boxes(3)
    from sshd import write_key

    write_key(tmp_path / "stranger")
    ways = peers(made)
    ways = Peers(ways.members, str(tmp_path / "stranger"), ways.known_hosts, force=True)
    report = await upload([one.pair for one in made], [tree], peers=ways)
    assert all_same(tree, made)
    assert any("Permission denied" in note for note in report.notes)


def spoil_tee(box: Box, script: str) -> None:
    """Give one machine a tee of its own."""
    tools = box.sshd.folder / "tools"
    tools.mkdir()
    tee = tools / "tee"
    tee.write_text(f"#!/bin/sh\nreal={shutil.which('tee')}\n{script}\n")
    tee.chmod(0o755)
    box.sshd.env = {**box.sshd.env, "PATH": f"{tools}:{os.environ['PATH']}"}
    box.sshd.restart()


async def test_a_damaged_stream_is_found_and_sent_again_when_a_machine_spoils_it(boxes, tree):
    made = boxes(3)
    # One byte in the middle of a file becomes another; sizes and times stay.
    spoil_tee(
        made[1],
        """python3 -c '
import sys
data = bytearray(sys.stdin.buffer.read())
data[1_500_000] ^= 1
sys.stdout.buffer.write(data)' | "$real" "$@" """,
    )
    report = await upload([one.pair for one in made], [tree], peers=peers(made))
    assert all_same(tree, made)
    assert any("task1.x" in note and "damaged" in note for note in report.notes)
    assert any("task2.x" in note and "damaged" in note for note in report.notes)
    assert not list(made[1].home.rglob("*.bad"))
    assert litter(made) == []
    again = await upload([one.pair for one in made], [tree], peers=peers(made))
    assert sum(again.sent.values()) == 0


async def test_a_damaged_large_file_never_gets_its_name_when_a_machine_spoils_it(boxes, tmp_path):
    large = tmp_path / "large"
    large.write_bytes(os.urandom(1 << 20) * 33)
    made = boxes(2)
    spoil_tee(
        made[0],
        """python3 -c '
import sys
data = bytearray(sys.stdin.buffer.read())
data[1_500_000] ^= 1
sys.stdout.buffer.write(data)' | "$real" "$@" """,
    )
    report = await upload([one.pair for one in made], [large], peers=peers(made))
    for one in made:
        assert (one.home / "large").read_bytes() == large.read_bytes()
    assert sum("damaged" in note for note in report.notes) == 2
    assert litter(made) == []


async def test_others_get_everything_when_one_machine_cannot_store_it(boxes, tree):
    made = boxes(3)
    spoil = made[1].sshd.folder / "tools"
    spoil.mkdir()
    (spoil / "tar").write_text("#!/bin/sh\necho 'tar: No space left on device' >&2\nexit 2\n")
    (spoil / "tar").chmod(0o755)
    made[1].sshd.env = {"PATH": f"{spoil}:{os.environ['PATH']}"}
    made[1].sshd.restart()
    from trainyard.lib.errors import InvalidError

    with pytest.raises(InvalidError, match=r"task1\.x.*No space left") as caught:
        await upload([one.pair for one in made], [tree], peers=peers(made))
    assert caught.value.hint
    assert all_same(tree, [made[0], made[2]])
    assert litter(made) == []


async def test_everybody_ends_and_the_next_upload_continues_when_cancelled(boxes, tree):
    made = boxes(3)
    for number in range(20):
        (tree / f"more{number}").write_bytes(os.urandom(1 << 20) * 2)
    age(tree)
    moving = asyncio.Event()

    class Watch:
        def update(self, machine, done, total):
            if done > 5_000_000:
                moving.set()

    work = asyncio.ensure_future(
        upload([one.pair for one in made], [tree], peers=peers(made), progress=Watch())
    )
    await moving.wait()
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    await until(lambda: not any(one.sshd.pids() for one in made))
    assert litter(made) == []
    for one in made:
        for path in (one.home / "code").glob("more*"):
            assert path.stat().st_size == 2 << 20
    await upload([one.pair for one in made], [tree], peers=peers(made))
    assert all_same(tree, made)


async def until(condition, seconds: float = 10.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)
