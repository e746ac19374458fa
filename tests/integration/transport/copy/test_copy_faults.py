"""What is cut, killed or done twice: nothing half under a real name, and the next upload goes on from there."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from copy_boxes import Box, age, differences, leftovers, local_box, make_tree, ssh_box

import sshd as sshd_module
from trainyard.lib.errors import UnreachableError
from trainyard.transport.copy import upload

FILES, SIZE = 30, 1 << 20

CLIENT = """
import asyncio, sys
from pathlib import Path
from trainyard.transport.copy import upload
from trainyard.transport.ssh import SshAddress, SshTransport

class Say:
    said = False
    def update(self, machine, done, total):
        if done > 5_000_000 and not self.said:
            self.said = True
            print("moving", flush=True)

async def main(address, port, user, key, known, source):
    way = SshTransport(SshAddress(address, int(port), user, identity_files=(key,), known_hosts=Path(known)))
    await upload([("alpha", way)], [Path(source)], progress=Say())

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    folder.mkdir()
    for number in range(FILES):
        (folder / f"shard{number:02}").write_bytes(os.urandom(SIZE))
    age(folder)
    return folder


@pytest.fixture
def large(tmp_path: Path) -> Path:
    path = tmp_path / "large"
    path.write_bytes(os.urandom(SIZE) * 64)
    age(tmp_path)
    return path


class Trigger:
    """Tells when so many bytes have gone."""

    def __init__(self, after: int) -> None:
        self.event = asyncio.Event()
        self._after = after

    def update(self, machine: str, done: int, total: int) -> None:
        if done > self._after:
            self.event.set()


async def cancel_after(work: asyncio.Future, trigger: Trigger) -> None:
    waiting = asyncio.ensure_future(trigger.event.wait())
    await asyncio.wait([work, waiting], return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work


async def until(condition, seconds: float = 10.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


def idle(box: Box) -> bool:
    """No script of ours runs there any more."""
    if box.sshd is not None:
        return box.sshd.pids() == []
    return not sshd_module.marked(f"HOME={box.home}")


@pytest.mark.slow  # 30 MB, twice
async def test_no_half_file_is_left_and_only_the_rest_is_sent_when_cancelled(box, tree):
    trigger = Trigger(5_000_000)
    await cancel_after(asyncio.ensure_future(upload([box.pair], [tree], progress=trigger)), trigger)
    await until(lambda: idle(box))
    arrived = list((box.home / "code").glob("shard*"))
    assert leftovers(box.home) == []
    if box.flavour != "busybox":  # its tar does not say where it is; the next upload repairs the half file
        assert all(path.stat().st_size == SIZE for path in arrived)
    report = await upload([box.pair], [tree])
    assert differences(tree, box.home / "code") == []
    assert report.sent[box.name] < (FILES - len(arrived) + 2) * (SIZE + 1024)


@pytest.mark.slow  # 64 MB, twice
async def test_a_large_file_continues_when_cancelled(box, large):
    trigger = Trigger(20_000_000)
    await cancel_after(asyncio.ensure_future(upload([box.pair], [large], "it", progress=trigger)), trigger)
    await until(lambda: idle(box))
    assert not (box.home / "it").exists()
    parts = leftovers(box.home)
    if box.flavour == "busybox":  # no flock there, so parts are not shared
        had = 0
    else:
        assert len(parts) == 1
        had = Path(parts[0]).stat().st_size
        assert had > 0
    report = await upload([box.pair], [large], "it")
    assert (box.home / "it").read_bytes() == large.read_bytes()
    assert 0 <= report.sent[box.name] - (large.stat().st_size - had) < 10_000  # and the sums of its blocks
    assert leftovers(box.home) == []


@pytest.mark.slow  # 64 MB
async def test_a_large_file_starts_anew_when_its_part_was_damaged(box, large):
    if box.flavour == "busybox":
        pytest.skip("parts are not shared there")
    trigger = Trigger(20_000_000)
    await cancel_after(asyncio.ensure_future(upload([box.pair], [large], "it", progress=trigger)), trigger)
    await until(lambda: idle(box))
    (part,) = leftovers(box.home)
    with open(part, "r+b") as file:
        file.seek(-100, os.SEEK_END)
        file.write(b"x" * 100)
    await upload([box.pair], [large], "it")
    assert (box.home / "it").read_bytes() == large.read_bytes()
    assert leftovers(box.home) == []


@pytest.mark.slow  # 30 MB, twice
@pytest.mark.ssh
async def test_the_error_is_clear_and_the_rest_is_sent_later_when_the_link_is_cut(sshd, tree):
    box = ssh_box("alpha", sshd)
    trigger = Trigger(5_000_000)
    work = asyncio.ensure_future(upload([box.pair], [tree], progress=trigger))
    await trigger.event.wait()
    sshd.stop()
    with pytest.raises(UnreachableError, match=r"reached|lost"):
        await work
    await until(lambda: idle(box))
    arrived = list((box.home / "code").glob("shard*"))
    assert all(path.stat().st_size == SIZE for path in arrived)
    sshd.restart()
    await upload([box.pair], [tree])
    assert differences(tree, box.home / "code") == []
    await box.transport.aclose()


@pytest.mark.slow  # 30 and 64 MB
@pytest.mark.ssh
@pytest.mark.parametrize("kind", ["tree", "large"])
@pytest.mark.parametrize("way", ["channel", "program"])
async def test_the_upload_goes_on_when_the_link_is_cut_and_comes_back(sshd, tree, large, kind, way, request):
    if way == "program":
        request.getfixturevalue("program_only")
    box = ssh_box("alpha", sshd)
    source = tree if kind == "tree" else large
    trigger = Trigger(5_000_000)
    work = asyncio.ensure_future(upload([box.pair], [source], "it", progress=trigger))
    await trigger.event.wait()
    sshd.cut()
    await work
    if kind == "large":
        assert (box.home / "it").read_bytes() == large.read_bytes()
    else:
        assert differences(tree, box.home / "it") == []
    await until(lambda: idle(box))
    assert leftovers(box.home) == []
    await box.transport.aclose()


@pytest.mark.slow  # a client process of its own, 30 and 64 MB
@pytest.mark.ssh
@pytest.mark.parametrize("kind", ["tree", "large"])
async def test_the_next_upload_continues_when_the_client_was_killed(sshd, tree, large, kind):
    source = tree if kind == "tree" else large
    words = [
        sshd.address,
        str(sshd.port),
        sshd.user,
        str(sshd.client_key),
        str(sshd.known_hosts),
        str(source),
    ]
    with subprocess.Popen([sys.executable, "-c", CLIENT, *words], stdout=subprocess.PIPE) as client:
        assert client.stdout.readline() == b"moving\n"
        client.send_signal(signal.SIGKILL)
    box = ssh_box("alpha", sshd)
    await until(lambda: idle(box))
    if kind == "large" and (box.home / "large").exists():  # the ssh program may have finished its work
        assert (box.home / "large").read_bytes() == large.read_bytes()
    await upload([box.pair], [source])
    if kind == "large":
        assert (box.home / "large").read_bytes() == large.read_bytes()
    else:
        assert differences(tree, box.home / "code") == []
    assert leftovers(box.home) == []
    await box.transport.aclose()


@pytest.mark.slow  # 30 and 64 MB by four clients at once
@pytest.mark.parametrize("kind", ["tree", "large"])
async def test_everybody_succeeds_when_machines_share_a_home(tmp_path, tree, large, kind):
    made = [local_box(f"task{number}", tmp_path / "shared") for number in range(4)]
    source = tree if kind == "tree" else large
    await upload([one.pair for one in made], [source], "it")
    await asyncio.gather(*[upload([one.pair], [source], "it2") for one in made])
    for name in ("it", "it2"):
        if kind == "large":
            assert (tmp_path / "shared" / name).read_bytes() == large.read_bytes()
        else:
            assert differences(tree, tmp_path / "shared" / name) == []
    assert leftovers(tmp_path / "shared") == []
    for one in made:
        await one.transport.aclose()


@pytest.mark.slow  # 64 MB
async def test_the_file_arrives_as_it_was_when_it_grows_meanwhile(tmp_path, large):
    box = local_box("here", tmp_path / "machine")
    before = large.read_bytes()

    class Grow:
        done = False

        def update(self, machine, done, total):
            if not self.done:
                self.done = True
                with large.open("ab") as file:
                    file.write(b"more" * 100_000)

    await upload([box.pair], [large], "it", progress=Grow())
    assert (box.home / "it").read_bytes() == before
    await upload([box.pair], [large], "it")
    assert (box.home / "it").read_bytes() == large.read_bytes()
    await box.transport.aclose()


async def test_files_arrive_when_the_home_takes_no_files_of_ours(box, tmp_path):
    (box.home / ".trainyard").write_text("a file, where we would make a folder")
    tree = make_tree(tmp_path / "code")
    await upload([box.pair], [tree], str(tmp_path / "elsewhere"))
    await upload([box.pair], [tree], str(tmp_path / "elsewhere"))
    assert differences(tree, tmp_path / "elsewhere", is_busybox=box.flavour == "busybox") == []
    assert list(box.home.iterdir()) == [box.home / ".trainyard"]


async def test_links_to_folders_stay_links_when_files_go_through_them(tmp_path):
    box = local_box("here", tmp_path / "machine")
    tree = make_tree(tmp_path / "code")
    (tree / "data").mkdir()
    (tree / "data" / "x").write_text("x")
    (box.home / "disk").mkdir()
    (box.home / "code").mkdir()
    (box.home / "code" / "data").symlink_to(box.home / "disk")
    await upload([box.pair], [tree])
    assert (box.home / "code" / "data").is_symlink()
    assert (box.home / "disk" / "x").read_text() == "x"
    await box.transport.aclose()


async def test_it_still_works_when_a_login_prints_things(sshd, tmp_path):
    (sshd.home / ".bashrc").write_text("echo hello from .bashrc; echo complaint >&2\n")
    box = ssh_box("alpha", sshd)
    tree = make_tree(tmp_path / "code")
    await upload([box.pair], [tree])
    assert (await upload([box.pair], [tree])).sent == {"alpha": 0}
    assert differences(tree, box.home / "code") == []
    await box.transport.aclose()
