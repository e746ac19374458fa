"""A job fills the server's disk: what stops and deletes works on, what makes more is refused, and all of it heals."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from platforms import Up, platform
from small_disk import SmallDisk, small_disk
from trainyard.engines.nodes.reports import NodeReports
from trainyard.lib.errors import DiskFullError
from trainyard.server.disk_space import RESERVE_BYTES, WAL_BYTES, DiskSpace
from trainyard.server.logs.log_files import LogStore
from trainyard.server.settings import ServerSettings
from trainyard.server.store import settings as stored
from trainyard.server.store import upgrade
from trainyard.server.store.backup import make_backup
from trainyard.server.store.database import Database

SECONDS = 60.0


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk", "600m") as made:
        yield made


def until(condition: Any) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def refusal(up: Up, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, dict[str, Any]]:
    with pytest.raises(urllib.error.HTTPError) as refused:
        up.call(method, path, body, **headers)
    with refused.value as error:
        return error.code, json.loads(error.read())


def health(up: Up) -> dict[str, Any]:
    with urllib.request.urlopen(up.url + "/api/v1/health", timeout=20) as answer:
        assert answer.status == 200
        return json.loads(answer.read())


def cancel(up: Up, job: str) -> None:
    up.call("PUT", f"/api/v1/jobs/{job}/desired", {"desired": "cancel"})


def reserve_of(up: Up) -> Path:
    return up.data / "platform.db.reserve"


@pytest.mark.parametrize("fills", ["other", "job"])
def test_a_full_disk_is_cured_from_inside(disk: SmallDisk, fills: str):
    with platform(disk.folder) as up:
        until(lambda: reserve_of(up).exists())
        done, running = up.submit("true"), up.submit("sleep 1000")
        held = up.submit("true", needs_approval=True)
        up.until(done, "succeeded")
        up.until(running, "running")
        until(lambda: (up.data / "platform.db-wal").stat().st_size >= WAL_BYTES)
        if fills == "other":
            disk.fill()
            greedy = running
        else:
            greedy = up.submit(f"cat /dev/zero >> {disk.folder}/filler; sleep 1000")
            until(lambda: disk.is_full)
        until(lambda: health(up)["code"] == "disk_full")
        assert health(up)["status"] == "degraded"
        job = {"name": "more", "command": "true", "roles": [{"cpu": 0.1}]}
        for method, path, body in (
            ("POST", "/api/v1/jobs", job),
            ("POST", "/api/v1/jobs/bulk", [job]),
            ("POST", "/api/v1/tokens", {"name": "x"}),
        ):
            status, said = refusal(up, method, path, body)
            assert (status, said["code"]) == (507, "disk_full")
            assert "make room" in said["hint"]
        for number in range(60):  # the reserve is for hundreds of them
            up.call("PATCH", f"/api/v1/jobs/{held}", {"priority": 1 + number % 9})
        cancel(up, running)
        cancel(up, greedy)
        up.until(running, "cancelled")
        up.until(greedy, "cancelled")
        up.call("DELETE", f"/api/v1/jobs/{done}")
        disk.free()
        until(lambda: health(up)["status"] == "ok")
        up.submit("true")
        until(lambda: reserve_of(up).exists())
        assert reserve_of(up).stat().st_blocks * 512 >= RESERVE_BYTES
    assert "Traceback" not in (disk.folder / "up.err").read_text()


def up_fails(up: Up) -> str:
    """What `trainyard up` says when it cannot begin."""
    command = [sys.executable, "-m", "trainyard.cli.main", "up", "--data", str(up.data), "--port", "0"]
    done = subprocess.run(command, env=up.env, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 8, done.stderr
    assert "Traceback" not in done.stderr
    return " ".join(done.stderr.split())


def test_a_first_start_says_that_the_disk_is_full_and_works_when_there_is_room(
    disk: SmallDisk, tmp_path: Path
):
    disk.fill()
    up = Up(tmp_path / "elsewhere")
    up.data = disk.folder / "platform"
    said = up_fails(up)
    assert "disk" in said
    assert "hint:" in said
    disk.free()
    with platform(disk.folder) as again:
        assert health(again)["status"] == "ok"


def test_a_server_starts_on_a_full_disk_when_it_has_a_reserve(disk: SmallDisk):
    with platform(disk.folder) as up:
        until(lambda: reserve_of(up).exists())
        job = up.submit("sleep 1000")
        up.until(job, "running")
        up.kill(15)
        disk.fill()
        up.start()
        until(lambda: health(up)["code"] == "disk_full")
        cancel(up, job)
        up.until(job, "cancelled")
        disk.free()
        until(lambda: health(up)["status"] == "ok")


def test_a_killed_server_loses_nothing_on_a_full_disk(disk: SmallDisk):
    with platform(disk.folder) as up:
        until(lambda: reserve_of(up).exists())
        job = up.submit("sleep 1000")
        up.until(job, "running")
        until(lambda: (up.data / "platform.db-wal").stat().st_size >= WAL_BYTES)
        disk.fill()
        cancel(up, job)
        up.kill(9)
        up.start()
        up.until(job, "cancelled")
        disk.free()


def test_a_backup_on_a_full_disk_is_an_error_and_leaves_no_file(disk: SmallDisk, tmp_path: Path):
    settings = ServerSettings(data=tmp_path / "data")
    settings.data.mkdir()
    db = Database(settings.database_url)
    upgrade.ensure(db)
    db.close()
    target = disk.folder / "backups" / "copy.db"
    target.parent.mkdir()
    make_backup(settings, target)
    before = target.read_bytes()
    disk.fill()
    for name in ("copy.db", "other.db"):
        with pytest.raises(DiskFullError) as told:
            make_backup(settings, target.with_name(name), replace=True)
        assert "disk" in told.value.message
    assert [each.name for each in target.parent.iterdir()] == ["copy.db"]
    assert target.read_bytes() == before


def test_writes_are_refused_one_by_one_and_none_is_half_done_when_the_reserve_is_used_up(disk: SmallDisk):
    room = DiskSpace(disk.folder, reserve=disk.folder / "platform.db.reserve")
    db = Database(f"sqlite:///{disk.folder}/platform.db", disk=room)
    try:
        upgrade.ensure(db)
        room.renew()
        disk.fill()
        kept: list[int] = []

        def write(number: int) -> None:
            text = os.urandom(100_000).hex()
            db.write_now(lambda c: stored.ensure(c, f"big-{number}", text))

        with pytest.raises(DiskFullError) as told:
            for number in range(1000):
                write(number)
                kept.append(number)
        assert told.value.code == "disk_full"
        assert kept, "the reserve was of no use"
        assert not (disk.folder / "platform.db.reserve").exists()
        assert room.is_full()
        for number in kept:
            assert len(db.read_now(lambda c, n=number: stored.ensure(c, f"big-{n}", ""))) == 200_000
        disk.free()
        write(len(kept))
        until(lambda: not room.is_full())
        room.renew()
        assert (disk.folder / "platform.db.reserve").exists()
    finally:
        db.close()


# -- logs


def test_output_is_kept_exactly_once_when_the_disk_was_full_meanwhile(tmp_path: Path):
    with small_disk(tmp_path / "logs", "1m") as disk:
        store = LogStore(disk.folder)
        reports = NodeReports("node", store)
        key = ("job1.1", "worker-0")
        reports.launched(key)
        output = b"".join(b"line %05d\n" % number for number in range(3000))
        at = 0

        def send(end: int) -> None:
            nonlocal at
            piece = output[at:end]
            reports.keep([[*key, at, len(piece)]], piece, time.time())
            at = end

        send(4000)
        assert reports.taken() == [[*key, 4000]]
        disk.fill()
        send(9000)
        send(12000)
        assert reports.taken() == []
        kept = store.size("job1", 1, "worker-0")
        assert 4000 <= kept < 12000
        disk.free()
        assert reports.wanted_again() == [[*key, kept]]
        at = kept
        send(len(output))
        assert reports.taken() == [[*key, len(output)]]
        assert b"".join(store.download("job1", 1, "worker-0")) == output
        times = store.times("job1", 1, "worker-0")
        assert times == sorted(times)
        store.close()
