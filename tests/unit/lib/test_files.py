from __future__ import annotations

import os
import subprocess
import sys

import pytest

from trainyard.lib import files


def test_file_has_text_and_mode_when_written(hostile_path):
    path = hostile_path / "new" / "a b"
    files.write_atomic(path, "中文\n")
    assert path.read_text(encoding="utf-8") == "中文\n"
    assert path.stat().st_mode & 0o777 == 0o600
    files.write_atomic(path, "x", mode=0o644)
    assert path.stat().st_mode & 0o777 == 0o644
    assert os.listdir(path.parent) == ["a b"]


def test_old_file_stays_and_no_half_is_left_when_writing_fails(tmp_path):
    path = tmp_path / "f"
    files.write_atomic(path, "old")
    with pytest.raises(UnicodeEncodeError):
        files.write_atomic(path, "new \udcff")
    assert path.read_text() == "old"
    assert sorted(os.listdir(tmp_path)) == ["f", "home"]


def test_nothing_is_left_when_the_target_is_a_folder(tmp_path):
    (tmp_path / "f").mkdir()
    with pytest.raises(IsADirectoryError):
        files.write_atomic(tmp_path / "f", "x")
    assert sorted(os.listdir(tmp_path)) == ["f", "home"]


def test_second_waits_when_the_lock_is_held_and_gets_it_when_the_first_dies(tmp_path):
    path = tmp_path / "deep" / "lock"
    hold = (
        "import sys, pathlib; from trainyard.lib import files\n"
        "with files.lock(pathlib.Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", hold, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert holder.stdout.readline() == b"held\n"
        probe = ["flock", "--nonblock", str(path), "true"]
        assert subprocess.run(probe).returncode == 1
        holder.kill()
        holder.wait()
        with files.lock(path):
            assert subprocess.run(probe).returncode == 1
        assert subprocess.run(probe).returncode == 0
    finally:
        holder.kill()
        holder.communicate()
