"""Uploads to 1 and 32 real sshds on loopback, side by side with what people use today.

Every round runs the rivals and us in turn on the same trees, so that a busy machine is unfair to nobody; the table has
the best of the rounds. Rivals get the quickest key exchange and cipher too, except `tar | ssh` and where it says so.
Targets are on tmpfs where there is one. Connections of ours are open beforehand, as they are in a job that has run its
first command; the row "cold" opens them.

    python benchmarks/upload.py [machines ...]
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import sshd as sshd_module
from benchmarks.measure import render
from trainyard.transport.copy import upload
from trainyard.transport.ssh import SshAddress, SshTransport

QUICK = ["-c", "aes128-gcm@openssh.com", "-o", "KexAlgorithms=curve25519-sha256"]
LONG_AGO = 1_700_000_000
# No two changes may have the same time: rsync takes a file of the same size and time for unchanged and sends nothing.
_STAMPS = itertools.count(LONG_AGO + 10, 10)
Rows = list[tuple[str, str, int, float]]  # case, tool, machines, seconds


def scratch() -> Path:
    """Memory where possible: the disk is not what is measured."""
    place = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    return Path(tempfile.mkdtemp(prefix="trainyard-bench-", dir=place))


def make_small(folder: Path) -> Path:
    """5,000 files of 1 KiB in 50 folders."""
    for number in range(5000):
        path = folder / f"package{number // 100:02}" / f"module_{number:04}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(1024))
        os.utime(path, (LONG_AGO, LONG_AGO))
    return folder


def make_bulk(folder: Path) -> Path:
    """100 MB in 10 files."""
    folder.mkdir(parents=True)
    for number in range(10):
        path = folder / f"shard{number}"
        path.write_bytes(os.urandom(10_000_000))
        os.utime(path, (LONG_AGO, LONG_AGO))
    return folder


def touch_some(folder: Path, count: int) -> None:
    """Change `count` files, all of each."""
    stamp = next(_STAMPS)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    for path in files[:: len(files) // count][:count]:
        path.write_bytes(os.urandom(path.stat().st_size))
        os.utime(path, (stamp, stamp))


def edit_some(folder: Path, count: int) -> None:
    """Change 4 KiB in the middle of `count` files."""
    stamp = next(_STAMPS)
    for path in sorted(path for path in folder.rglob("*") if path.is_file())[:count]:
        with path.open("r+b") as file:
            file.seek(path.stat().st_size // 2)
            file.write(os.urandom(4096))
        os.utime(path, (stamp, stamp))


@contextlib.contextmanager
def machines(count: int, folder: Path) -> Iterator[list[sshd_module.Sshd]]:
    """Real sshds."""
    hosts = sshd_module.start_sshds(count, folder / "hosts")
    try:
        yield hosts
    finally:
        for host in hosts:
            host.close()


def connect(hosts: list[sshd_module.Sshd]) -> list[tuple[str, SshTransport]]:
    """Ways to them."""
    made = []
    for number, host in enumerate(hosts):
        address = SshAddress(
            host.address,
            host.port,
            host.user,
            identity_files=(host.client_key,),
            known_hosts=host.known_hosts,
        )
        made.append((f"task{number}", SshTransport(address, name=f"task{number}")))
    return made


class Rivals:
    """Command lines, one process tree a host, all at once."""

    def __init__(self, hosts: list[sshd_module.Sshd], folder: Path) -> None:
        self._hosts = hosts
        self._folder = folder

    def _ssh(self, host: sshd_module.Sshd, *, quick: bool = True) -> list[str]:
        words = host.ssh_argv()
        return [words[0], *(QUICK if quick else []), *words[1:]]

    def tar_once(self, source: Path, target: str) -> None:
        """An archive made once and piped into ssh, for every host."""
        archive = self._folder / "archive.tar"
        subprocess.run(["tar", "-cf", archive, "-C", source, "."], check=True)
        running = []
        for host in self._hosts:
            with archive.open("rb") as file:
                command = f"mkdir -p {target} && tar -xf - -C {target}"
                running.append(subprocess.Popen([*self._ssh(host), command], stdin=file))
        _wait(running)
        archive.unlink()

    def tar_each(self, source: Path, target: str) -> None:
        """`tar | ssh` for every host, with ssh's defaults."""
        running = []
        for host in self._hosts:
            packing = subprocess.Popen(["tar", "-cf", "-", "-C", source, "."], stdout=subprocess.PIPE)
            command = f"mkdir -p {target} && tar -xf - -C {target}"
            running += [
                packing,
                subprocess.Popen([*self._ssh(host, quick=False), command], stdin=packing.stdout),
            ]
            packing.stdout.close()
        _wait(running)

    def rsync(self, source: Path, target: str, *, quick: bool = True) -> None:
        """`rsync -a` for every host."""
        running = []
        for host in self._hosts:
            words = self._ssh(host, quick=quick)
            shell = " ".join(words[:-1])
            running.append(
                subprocess.Popen(["rsync", "-a", "-e", shell, f"{source}/", f"{words[-1]}:{target}/"])
            )
        _wait(running)


def _wait(running: list[subprocess.Popen[bytes]]) -> None:
    codes = [process.wait() for process in running]
    if any(codes):
        raise RuntimeError(f"a rival failed: {codes}")


def wipe(hosts: list[sshd_module.Sshd], *names: str) -> None:
    """Remove targets."""
    for host in hosts:
        for name in names:
            shutil.rmtree(host.home / name, ignore_errors=True)


async def timed(work: Callable[[], Awaitable[object]] | Callable[[], None]) -> float:
    """Seconds that `work` takes."""
    start = time.perf_counter()
    result = work()
    if result is not None:
        await result
    return time.perf_counter() - start


async def compare(
    hosts: list[sshd_module.Sshd],
    source: Path,
    folder: Path,
    *,
    rounds: int,
    case: str,
    changed: int,
    edited: tuple[int, ...] = (),
    all_rivals: bool = True,
) -> Rows:
    """First upload, again with none changed, with a few files changed wholly, and with 1 and 10 of them edited."""
    rivals = Rivals(hosts, folder)
    ways = connect(hosts)
    await asyncio.gather(*[way.run("true") for _, way in ways])
    best: dict[tuple[str, str], float] = {}

    async def measure(
        step: str, tool: str, work: Callable[[], Awaitable[object]] | Callable[[], None]
    ) -> None:
        seconds = await timed(work)
        best[step, tool] = min(best.get((step, tool), seconds), seconds)

    async def cold() -> None:
        fresh = connect(hosts)
        await upload(fresh, [source], "target")
        await asyncio.gather(*[way.aclose() for _, way in fresh])

    firsts: list[tuple[str, Callable[[], Awaitable[object]] | Callable[[], None]]] = [
        ("tar once", lambda: rivals.tar_once(source, "target")),
        ("trainyard", lambda: upload(ways, [source], "target")),
        ("rsync -a", lambda: rivals.rsync(source, "target")),
        ("trainyard, cold", cold),
    ]
    if all_rivals:
        firsts.append(("rsync -a, defaults", lambda: rivals.rsync(source, "target", quick=False)))
        firsts.append(("tar | ssh", lambda: rivals.tar_each(source, "target")))
    for number in range(rounds):
        # Each into a place where nothing is, and each at another turn in every round.
        for tool, work in firsts[number:] + firsts[:number]:
            await measure("first", tool, work)
            wipe(hosts, "target")
        if number == 0:
            rivals.rsync(source, "rsynced")
            await upload(ways, [source], "ours")
        await measure("none changed", "rsync -a", lambda: rivals.rsync(source, "rsynced"))
        await measure("none changed", "trainyard", lambda: upload(ways, [source], "ours"))
        changes = [(f"{changed} changed", touch_some, changed)]
        changes += [(f"{count} edited", edit_some, count) for count in edited]
        for step, change, count in changes:
            change(source, count)
            await measure(step, "rsync -a", lambda: rivals.rsync(source, "rsynced"))
            await measure(step, "trainyard", lambda: upload(ways, [source], "ours"))
        check(source, hosts[-1].home / "ours")
        check(source, hosts[-1].home / "rsynced")
    await asyncio.gather(*[way.aclose() for _, way in ways])
    wipe(hosts, "rsynced", "ours")
    return [(f"{case}, {step}", tool, len(hosts), seconds) for (step, tool), seconds in best.items()]


def check(source: Path, target: Path) -> None:
    """What we time must be right, and a rival that did not do the work proves nothing."""
    found = subprocess.run(
        ["rsync", "-acin", "--delete", "--omit-dir-times", f"{source}/", f"{target}/"],
        capture_output=True,
        check=True,
    )
    if found.stdout:
        raise RuntimeError(f"the copy differs: {found.stdout[:500]!r}")


def run(counts: tuple[int, ...] = (1, 32), *, rounds: int = 3) -> Rows:
    """All cases."""
    folder = scratch()
    try:
        small, bulk = make_small(folder / "small"), make_bulk(folder / "bulk")
        rows: Rows = []
        for count in counts:
            # To one host it is over in a moment, and a moment of somebody else's spoils it.
            times = 2 * rounds if count == 1 else rounds
            with machines(count, folder) as hosts:
                rows += asyncio.run(
                    compare(hosts, small, folder, rounds=times, case="5000 x 1 KiB", changed=10)
                )
                rows += asyncio.run(
                    compare(
                        hosts,
                        bulk,
                        folder,
                        rounds=times,
                        case="100 MB",
                        changed=1,
                        edited=(1, 10),
                    )
                )
        return rows
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def table(rows: Rows) -> str:
    """Seconds, and every rival's as a multiple of ours."""
    ours = {(case, count): seconds for case, tool, count, seconds in rows if tool == "trainyard"}
    lines = []
    for case, tool, count, seconds in sorted(rows, key=lambda row: (row[2], row[0], row[3])):
        ratio = seconds / ours[case, count]
        lines.append([case, str(count), tool, f"{seconds:.3f}", f"{ratio:.2f}"])
    return render(["case", "machines", "tool", "seconds", "x ours"], lines, right=frozenset({1, 3, 4}))


if __name__ == "__main__":
    print(table(run(tuple(map(int, sys.argv[1:])) or (1, 32))))
