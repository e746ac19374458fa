"""Whose the folders of storages are on a node that is root's: given once, to whom they belong, and nothing beside."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from trainyard.engines.nodes.agent.sandbox import storage_owner
from trainyard.engines.nodes.agent.sandbox.sandbox_user import FIRST, TaskUser, user_of

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="only root gives files away")
ADA = TaskUser(FIRST + 7)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A user's folder as older versions left it, with what a hostile task may have put there."""
    top = tmp_path / "ada"
    (top / "deep" / "er").mkdir(parents=True)
    (top / "deep" / "er" / "file").write_text("x")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_text("s")
    (top / "link").symlink_to(tmp_path / "outside")
    (top / "shell").write_text("#!")
    (top / "shell").chmod(0o4755)
    os.link(tmp_path / "outside" / "secret", top / "second name")
    os.mknod(top / "device", stat.S_IFCHR | 0o600, os.makedev(1, 3))
    (top / "foreign").write_text("another's")
    os.chown(top / "foreign", 1234, 1234)
    return top


def owners(top: Path) -> dict[str, int]:
    return {str(path.relative_to(top)): path.lstat().st_uid for path in sorted(top.rglob("*"))}


def opened(path: Path) -> int:
    return os.open(path, os.O_PATH | os.O_CLOEXEC)


def test_what_was_roots_becomes_the_users_and_nothing_else_does_when_a_folder_is_handed_over(folder: Path):
    handle = opened(folder)
    storage_owner.make_private(handle, ADA)
    found = owners(folder)
    mine = {name for name, uid in found.items() if uid == ADA.uid}
    assert mine == {"deep", "deep/er", "deep/er/file", "link", "shell"}
    assert found["foreign"] == 1234
    outside = folder.parent / "outside"
    assert outside.stat().st_uid == (outside / "secret").stat().st_uid == 0
    assert not (folder / "shell").stat().st_mode & stat.S_ISUID
    assert (folder.stat().st_uid, stat.S_IMODE(folder.stat().st_mode)) == (ADA.uid, 0o700)
    # Once: what root puts there later is root's.
    (folder / "later").touch()
    storage_owner.make_private(handle, ADA)
    os.close(handle)
    assert (folder / "later").stat().st_uid == 0


def test_a_folder_of_any_depth_is_handed_over(tmp_path: Path):
    top, here = tmp_path / "top", os.open(tmp_path, os.O_RDONLY)
    for name in ["top", *["d"] * 1200]:
        os.mkdir(name, dir_fd=here)
        inner = os.open(name, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    handle = opened(top)
    storage_owner.make_private(handle, ADA)
    os.close(handle)
    assert os.fstat(here).st_uid == top.stat().st_uid == ADA.uid
    for _ in range(1200):
        above = os.open("..", os.O_RDONLY, dir_fd=here)
        os.close(here)
        os.rmdir("d", dir_fd=above)
        here = above
    os.close(here)


def test_all_tasks_may_write_when_a_folder_is_shared(folder: Path):
    handle = opened(folder)
    storage_owner.make_shared(handle, is_ours=True)
    os.close(handle)
    for path, mode in ((folder, 0o2775), (folder / "deep", 0o2775), (folder / "deep" / "er" / "file", 0o664)):
        found = path.stat()
        assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (0, FIRST, mode), path
    assert (folder / "foreign").stat().st_gid == 1234
    assert (folder.parent / "outside" / "secret").stat().st_gid == 0


def test_only_the_top_is_changed_when_the_folder_is_the_operators(folder: Path):
    handle = opened(folder)
    storage_owner.make_shared(handle, is_ours=False)
    os.close(handle)
    assert (folder.stat().st_gid, (folder / "deep").stat().st_gid) == (FIRST, 0)
    given = folder.parent / "given"
    given.mkdir(mode=0o755)
    os.chown(given, 1234, 1234)
    handle = opened(given)
    storage_owner.make_shared(handle, is_ours=False)
    os.close(handle)
    assert (given.stat().st_gid, stat.S_IMODE(given.stat().st_mode)) == (1234, 0o755)


def test_new_folders_are_the_same_peoples_as_those_they_are_in(tmp_path: Path):
    for uid, gid, mode in ((ADA.uid, FIRST, 0o700), (0, FIRST, 0o2775), (0, 0, 0o700)):
        upper = tmp_path / f"{uid}.{gid}"
        upper.mkdir()
        os.chown(upper, uid, gid)
        handle = os.open(upper, os.O_RDONLY)
        os.mkdir("new", 0o700, dir_fd=handle)
        storage_owner.inherit("new", handle)
        os.close(handle)
        found = (upper / "new").stat()
        expected = (uid, gid, 0o2770 if (uid, gid) == (0, FIRST) else mode)
        assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == expected


def test_a_task_has_a_user_of_its_own_when_it_is_kept_apart():
    assert user_of({"env": {}, "view": {"uid": FIRST + 3}}) == TaskUser(FIRST + 3)
    assert user_of({"env": {}, "view": {}}) == TaskUser(FIRST)
    assert user_of({"env": {}, "view": {"isolation": "open", "uid": FIRST + 3}}) is None
    assert user_of({"env": {}, "view": None}) is None
    with pytest.raises(ValueError, match="no number"):
        user_of({"env": {}, "view": {"uid": 1000}})
