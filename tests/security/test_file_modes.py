"""What a server and its node write is for their account alone, whatever the umask of whoever started them."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from platforms import platform

OPEN_TO_OTHERS = 0o077


@pytest.fixture
def loose_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def open_to_others(data: Path) -> list[str]:
    """Everything that another account could reach: below a folder that is shut nobody gets."""
    found, waiting = [], [data]
    while waiting:
        for path in waiting.pop().iterdir():
            mode = path.lstat().st_mode
            if path.is_symlink() or not mode & OPEN_TO_OTHERS:
                continue
            found.append(f"{path.relative_to(data)} {stat.S_IMODE(mode):o}")
            if path.is_dir():
                waiting.append(path)
    return found


def test_nothing_in_the_data_folder_is_open_to_others_when_the_umask_is_loose(tmp_path: Path, loose_umask):
    with platform(tmp_path) as up:
        job = up.submit("echo hello")
        up.until(job, "succeeded")
        assert up.lines(job) == ["hello"]
        assert not up.data.stat().st_mode & OPEN_TO_OTHERS
        assert open_to_others(up.data) == []  # also where its owner opens the folder itself


def test_what_an_older_version_left_open_is_shut_when_the_server_starts(tmp_path: Path):
    left = {"platform/logs": 0o700, "platform/storages": 0o700, "platform/server.lock": 0o600}
    for name, mode in left.items():
        path = tmp_path / name
        if mode == 0o600:
            path.touch()
        else:
            path.mkdir(parents=True)
        path.chmod(0o777)
    with platform(tmp_path):
        assert {name: stat.S_IMODE((tmp_path / name).stat().st_mode) for name in left} == left
