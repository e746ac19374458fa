"""Uploads that pass from machine to machine, where one of the machines lies: real sshds, and real ssh between them.

The liar has tools of its own: what its part of the relay runs, it runs its way. Every other machine ends with what the client
sent, byte by byte, and nothing else; the liar is named.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import resource
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from lying_machine import archive

sys.path.insert(0, str(Path(__file__).parents[1] / "integration" / "transport" / "copy"))

from copy_boxes import Box, age, leftovers, ssh_box

from sshd import Sshd, write_key
from trainyard.lib.errors import Error
from trainyard.transport.copy import CopyReport, Peer, Peers, upload
from trainyard.transport.copy import manifest as manifest_module
from trainyard.transport.copy import send as feed_module

# Several sshds, and ssh from each to the next: all combinations take minutes.
pytestmark = [pytest.mark.ssh, pytest.mark.slow, pytest.mark.each_value]

LARGE = 2 * 1024 * 1024  # in these tests a file from here on goes in parts
STALL = 3.0  # seconds; else it is minutes
MOST_SECONDS = 60.0
MOST_KIB = 128 * 1024  # of memory that an upload may take on top


@pytest.fixture(autouse=True)
def _small_and_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest_module, "LARGE", LARGE)
    monkeypatch.setattr(feed_module, "STALL_SECONDS", STALL)


class Chain:
    """Machines in a row, one of which lies."""

    def __init__(self, folder: Path, boxes: list[Box], liar: int) -> None:
        self.folder = folder
        self.boxes = boxes
        self.liar = boxes[liar]
        self.honest = [one for one in boxes if one is not self.liar]
        self.key = folder / "relay key"
        write_key(self.key)
        for one in boxes:
            with (one.sshd.folder / "authorized_keys").open("a") as file:
                file.write(Path(f"{self.key}.pub").read_text())
            (one.home / "kept").write_text("theirs")
        self.tools = self.liar.sshd.folder / "tools"
        self.tools.mkdir()

    def tool(self, name: str, script: str) -> None:
        """The liar runs this instead of a tool; `$real` is the tool, `$folder` is where it keeps what it sees."""
        path = self.tools / name
        head = f"#!/bin/sh\nreal={shutil.which(name)}\nfolder={shlex.quote(str(self.tools))}\n"
        path.write_text(head + script + "\n")
        path.chmod(0o755)

    async def upload(self, source: Path) -> CopyReport:
        """In bounded time and memory."""
        sshd = self.liar.sshd
        sshd.env = {**sshd.env, "PATH": f"{self.tools}:{os.environ['PATH']}"}
        sshd.restart()
        members = {one.name: Peer(one.sshd.address, one.sshd.port, one.sshd.user) for one in self.boxes}
        known = str(self.boxes[0].sshd.known_hosts)
        peers = Peers(members, str(self.key), known, force=True)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        try:
            async with asyncio.timeout(MOST_SECONDS):
                return await upload([one.pair for one in self.boxes], [source], "target", peers=peers)
        finally:
            assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MOST_KIB

    def is_right(self, source: Path) -> None:
        """The honest machines have what the client has, and nothing more; nor is anything left of the relay."""
        for one in self.honest:
            assert digests(one.home / "target") == digests(source), one.name
            outside = {path.name for path in one.home.iterdir()} - {"target", "kept", ".trainyard"}
            assert not outside, one.name
            assert (one.home / "kept").read_text() == "theirs"
            assert leftovers(one.home) == []
            assert not list((one.sshd.folder / "tmp").iterdir())


def digests(path: Path) -> dict[str, str]:
    """Every file below, by its content; links by where they lead."""
    if path.is_file():
        return {".": hashlib.sha256(path.read_bytes()).hexdigest()}
    found = {}
    for one in sorted(path.rglob("*")):
        if one.is_symlink():
            found[str(one.relative_to(path))] = f"-> {os.readlink(one)}"
        elif one.is_file():
            found[str(one.relative_to(path))] = hashlib.sha256(one.read_bytes()).hexdigest()
    return found


@pytest.fixture
async def chain(
    sshds: Callable[..., list[Sshd]], tmp_path: Path, request: pytest.FixtureRequest
) -> AsyncIterator[Chain]:
    """Three machines; by default the one in the middle lies."""
    boxes = [ssh_box(f"task{number}.x", server) for number, server in enumerate(sshds(3))]
    yield Chain(tmp_path, boxes, getattr(request, "param", 1))
    await ended(boxes)  # who was to fill a pipe that the liar never made waits for it a few seconds
    for one in boxes:
        await one.transport.aclose()


@pytest.fixture(params=["tree", "large file"])
def source(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """What is uploaded: a folder of small files goes as an archive, a large file in a part."""
    if request.param == "large file":
        path = tmp_path / "model"
        path.write_bytes(os.urandom(LARGE + 12345))
        return path
    return make_tree(tmp_path)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return make_tree(tmp_path)


def make_tree(folder: Path) -> Path:
    tree = folder / "code 中文 $(x)"
    (tree / "sub").mkdir(parents=True)
    for number in range(4):
        (tree / f"sub/blob{number}").write_bytes(os.urandom(700_000))
    (tree / "train.py").write_text("print('right')\n")
    age(tree)
    return tree


FIRST_OR_SECOND = pytest.mark.parametrize("chain", [0, 1], indirect=True)

# What a tee of the liar's writes to all pipes but its own first two, its copy and its hash.
OTHERS = """
own="$1 $2"; mine=$1; sum=$2; shift 2
"""


@FIRST_OR_SECOND
@pytest.mark.parametrize(
    "change",
    [
        "data[1_500_000] ^= 1",
        "data[:] = data[:-1]",
        "data[:] = b''",
        "data[:] = bytes(len(data))",
        "data += bytes(50_000_000)",
        "data[:] = b'[' * len(data)",
    ],
)
async def test_honest_machines_have_the_right_bytes_when_one_passes_on_others(chain, source, change):
    program = (
        f"import sys; data = bytearray(sys.stdin.buffer.read()); {change}; sys.stdout.buffer.write(data)"
    )
    chain.tool("tee", f'python3 -c "{program}" | "$real" "$@"')
    report = await chain.upload(source)
    chain.is_right(source)
    longer = "+=" in change
    assert longer or any("task2.x" in note and f"{chain.liar.name} was to" in note for note in report.notes) or (
        chain.liar.name == "task0.x" and any("task0.x was to pass it on" in note for note in report.notes)
    )  # fmt: skip


EVIL = {
    "names above": archive(("../planted", "file", b"x"), ("../../kept", "file", b"x")),
    "absolute names": archive(("/tmp/trainyard-planted", "file", b"x")),
    "a link out": archive(
        ("out", "link", "../"), ("out/kept", "file", b"evil"), ("out/planted", "file", b"x")
    ),
    "a second name": archive(("twin", "hard", "../kept"), ("twin", "file", b"evil")),
    "more than was sent": archive(("sitecustomize.py", "file", b"import os")),
    "another content": archive(("train.py", "file", b"print('evil')\n")),
    "deep folders": archive(("d/" * 2000 + "x", "file", b"x")),
}


@FIRST_OR_SECOND
@pytest.mark.parametrize("what", EVIL)
async def test_nothing_of_an_archive_is_unpacked_when_it_is_not_the_clients(chain, tree, what):
    evil = chain.folder / "evil.tar"
    evil.write_bytes(EVIL[what])
    # As long as the right one, since the length alone would give it away; its own copy stays right.
    chain.tool("tee", f'{{ cat {shlex.quote(str(evil))}; cat; }} | "$real" "$@"')
    await chain.upload(tree)
    chain.is_right(tree)
    assert not Path("/tmp/trainyard-planted").exists()


# Whoever may print, prints lines of the relay: the mark is in the words of the shell that runs us.
FORGE = r"""
mark=$(tr '\0' '\n' </proc/$PPID/cmdline | sed -n "s/^.*mark='*\(trainyard-[A-Za-z0-9_-]*\).*/\1/p" | head -n 1)
"""


@FIRST_OR_SECOND
async def test_no_machine_is_taken_for_served_when_another_one_says_so(chain, source):
    forged = "; ".join(
        f'echo "$mark {line}"' for line in ("2 ok", "ok 2", "0 ok", "1 ok", "ok", "task2.x ok")
    )
    chain.tool("mkfifo", f'{FORGE}\n{forged}\n"$real" "$@"')
    # It claims all of it, and passes nothing on.
    chain.tool("tee", '"$real" "$1" "$2" >/dev/null')
    report = await chain.upload(source)
    chain.is_right(source)
    assert "task2.x" not in report.relayed
    assert any("task2.x" in note for note in report.notes)


@FIRST_OR_SECOND
async def test_the_next_machine_gets_the_right_bytes_when_one_answers_with_wrong_digests(chain, source):
    chain.tool(
        "sha256sum", "cat >/dev/null; echo 0000000000000000000000000000000000000000000000000000000000000000"
    )
    failed = ""
    try:
        await chain.upload(source)
    except Error as error:
        failed = str(error)
    chain.is_right(source)
    assert not failed or chain.liar.name in failed


NOISE = {
    "endless lines": "while :; do echo xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx; done",
    "an endless line": "cat /dev/zero",
    "endless complaints": "cat /dev/zero >&2",
    "huge numbers": 'echo "$mark unreached 99999999999999999999999999 x"; echo "$mark unreached -1 x"; "$real" "$@"',
    "nesting": 'printf "$mark failed "; head -c 60000 /dev/zero | tr "\\0" "["; echo; exit 1',
    "controls": 'printf "$mark failed \\033[2J\\007\\n"; exit 1',
    "no text": 'head -c 60000 /dev/urandom; "$real" "$@"',
}


@FIRST_OR_SECOND
@pytest.mark.parametrize("noise", NOISE)
async def test_an_upload_ends_well_or_names_the_machine_when_that_prints_noise(chain, source, noise):
    chain.tool("mkfifo", f"{FORGE}\n{NOISE[noise]}")
    report = await chain.upload(source)
    chain.is_right(source)
    assert not any(not char.isprintable() for note in report.notes for char in note)
    assert all(len(note) < 2000 for note in report.notes)


@FIRST_OR_SECOND
@pytest.mark.parametrize("hang", ["before", "in the middle", "at the end"])
async def test_the_others_are_served_when_one_machine_hangs(chain, source, hang):
    program = {
        "before": "sleep 1000",
        "in the middle": 'head -c 300000 | "$real" "$@"; exec sleep 1000',
        "at the end": '"$real" "$@"; exec sleep 1000',
    }[hang]
    chain.tool("tee", program)
    begun = time.monotonic()
    await chain.upload(source)
    chain.is_right(source)
    assert time.monotonic() - begun < MOST_SECONDS / 2
    await ended(chain.honest)


async def test_the_upload_fails_with_the_name_of_the_machine_when_that_takes_nothing_at_all(chain, tree):
    for tool in ("tee", "tar"):
        chain.tool(tool, "exec sleep 1000")
    with pytest.raises(Error, match=r"task1\.x"):
        await chain.upload(tree)
    chain.is_right(tree)
    await ended(chain.honest)


@FIRST_OR_SECOND
async def test_the_others_are_served_when_one_machine_holds_the_connection_to_the_next(chain, source):
    chain.tool("ssh", '"$real" "$@" <&0 & exec sleep 1000')
    await chain.upload(source)
    chain.is_right(source)
    await ended(chain.honest)


@pytest.mark.parametrize("chain", [2], indirect=True)
async def test_the_others_are_served_when_the_next_machine_never_lets_go(chain, source):
    chain.tool("cat", "exec sleep 1000")
    await chain.upload(source)
    chain.is_right(source)
    await ended(chain.honest)
    chain.liar.sshd.kill_all()  # what it runs of its own is its own


async def test_nothing_of_the_relay_opens_anything_when_it_is_used_again_later(chain, tree):
    """The words that led to the next machine are kept, and said again with other bytes when the relay is over."""
    chain.tool(
        "ssh",
        'for one; do printf "%s\\0" "$one"; done >"$folder/words"; env >"$folder/env"; exec "$real" "$@"',
    )
    await chain.upload(tree)
    chain.is_right(tree)
    words = (chain.tools / "words").read_bytes().split(b"\0")[:-1]
    again = await asyncio.to_thread(
        subprocess.run,
        ["ssh", *map(os.fsdecode, words)],
        input=b"evil" * 500_000,
        capture_output=True,
        timeout=60,
    )
    assert again.returncode != 0
    chain.is_right(tree)


async def test_no_secret_of_the_client_passes_a_machine_when_it_looks_at_all_it_is_given(
    chain, tree, monkeypatch
):
    monkeypatch.setenv("SSH_AUTH_SOCK", "/nowhere/agent-of-the-client")
    monkeypatch.setenv("TRAINYARD_TOKEN", "token-of-the-client")
    look = 'cat /proc/$PPID/cmdline /proc/$PPID/environ /proc/self/environ >>"$folder/seen"'
    chain.tool("mkfifo", f'{look}; "$real" "$@"')
    chain.tool("ssh", f'{look}; printf "%s\\n" "$@" >>"$folder/seen"; exec "$real" "$@"')
    await chain.upload(tree)
    chain.is_right(tree)
    seen = (chain.tools / "seen").read_bytes()
    first, last = chain.boxes[0], chain.boxes[2]
    for secret in (
        b"agent-of-the-client",
        b"token-of-the-client",
        b"PRIVATE KEY",
        os.fsencode(str(first.sshd.client_key)),
    ):
        assert secret not in seen
    assert f"-p {last.sshd.port}".encode() in seen.replace(b"\n", b" "), (
        "it knows the way to the next machine"
    )
    assert str(first.sshd.port).encode() not in seen.replace(str(last.sshd.port).encode(), b""), (
        "and no other way"
    )


async def ended(boxes: list[Box]) -> None:
    """Nothing of ours runs on these any more, although the liar's connections may stand."""
    async with asyncio.timeout(20):
        while any(relays(one) for one in boxes):
            await asyncio.sleep(0.05)


def relays(box: Box) -> list[int]:
    found = []
    for pid in box.sshd.pids():
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if b"key_name=" in words or b"trainyard-relay." in words or words.startswith(b"tee\0"):
            found.append(pid)
    return found
