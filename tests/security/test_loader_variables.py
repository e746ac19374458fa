"""Variables and files by which a task could lead programs that are root's: none of its code runs as anybody but its user."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from node_lab import EngineLab, launch_of, node_in

from trainyard.engines.api import Entry, Mount, TaskEnded, View
from trainyard.transport.api import read_all

pytestmark = [
    pytest.mark.skipif(os.getuid() != 0, reason="only on root's nodes do tasks run as others"),
    pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed"),
    pytest.mark.slow,  # a real agent, and a compiler
]
UID = 2_000_007
# Tells, on the task's own output, as whom it was loaded and into what.
LIBRARY = r"""
#include <stdio.h>
#include <unistd.h>
__attribute__((constructor)) static void loaded(void)
{
    char name[256] = "";
    ssize_t size = readlink("/proc/self/exe", name, sizeof name - 1);
    if (size >= 0) name[size] = 0;
    dprintf(2, "loaded as %d into %s\n", (int)geteuid(), name);
}
unsigned int la_version(unsigned int version) { return version; }
int capng_apply(int set) { return 0; }
"""


@pytest.fixture
async def lab(isolation: Path, tmp_path: Path) -> AsyncIterator[EngineLab]:
    async with node_in(tmp_path) as lab:
        yield lab


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    """A folder of the user's with the library in it, under its own name and that of one which helpers load."""
    folder = tmp_path / "storage"
    folder.mkdir(mode=0o755)
    source = tmp_path / "library.c"
    source.write_text(LIBRARY)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", folder / "own.so", source], check=True)
    shutil.copy(folder / "own.so", folder / "libcap-ng.so.0")
    for each in (folder, *folder.iterdir()):
        os.chown(each, UID, UID)
    return folder


def view_of(storage: Path) -> View:
    return View(uid=UID, mounts=(Mount(source=str(storage), target="/mine"),))


def loads(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("loaded as ")]


@pytest.mark.parametrize(
    "env",
    [
        {"LD_PRELOAD": "/mine/own.so"},
        {"LD_AUDIT": "/mine/own.so"},
        {"LD_LIBRARY_PATH": "/mine"},
        {"GCONV_PATH": "/mine", "LOCPATH": "/mine", "LC_ALL": "zz_ZZ.OWN"},
        {"LD_PRELOAD": "/mine/own.so", "UID": "0", "OPTIND": "x", "SHELLOPTS": "posix"},
    ],
    ids=lambda env: "+".join(env),
)
async def test_a_library_of_a_tasks_is_loaded_by_nobody_but_its_user(
    lab: EngineLab, storage: Path, env: dict[str, str]
):
    server = await lab.start()
    await lab.launch(server, launch_of("id -u; true", view=view_of(storage), env=env))
    ended = await server.ended("w1.1")
    text = server.log("w1.1").decode()
    assert ended.exit_code == 0, text
    assert str(UID) in text.splitlines()
    assert {line.split()[2] for line in loads(text)} <= {str(UID)}, text
    if {"LD_PRELOAD", "LD_AUDIT"} & env.keys():
        assert loads(text), "the library was loaded by no program at all: this test shows nothing"


async def test_variables_arrive_as_they_are_when_a_task_has_a_user_of_its_own(lab: EngineLab):
    env = {
        "PLAIN": "a",
        "QUOTED": 'it\'s "here" $HOME `id` \\ \t',
        "LINES": "one\ntwo\n",
        "CHINESE": "训练",
        "EMPTY": "",
        "LD_PRELOAD": "",
        "GROUPS": "many",
    }
    names = " ".join(env)
    show = (
        f"python3 -c \"import os; print(*(os.environ[name] for name in '{names}'.split()), sep='|', end='')\""
    )
    server = await lab.start()
    await lab.launch(server, launch_of(show, view=View(uid=UID), env=env))
    assert (await server.ended("w1.1")).exit_code == 0
    said = server.log("w1.1").decode()
    assert said == "|".join(env.values())


async def test_a_command_beside_a_task_has_its_variables_and_loads_as_its_user(lab: EngineLab, storage: Path):
    server = await lab.start()
    env = {"LD_PRELOAD": "/mine/own.so", "MINE": "yes"}
    await lab.launch(server, launch_of("echo on; sleep 60", view=view_of(storage), env=env))
    await server.until(lambda: b"on" in server.log("w1.1"))
    for _ in range(3):
        process = await server.engine.exec(
            "w1.1", "worker-0", "local", 'echo "MINE=$MINE"; id -u 2>&1; true', None
        )
        text = (await read_all(process)).decode()
        assert await process.wait() == 0, text
        assert "MINE=yes" in text.splitlines(), text
        assert {line.split()[2] for line in loads(text)} == {str(UID)}, text


@pytest.mark.parametrize(
    "target",
    ["/etc/ld.so.preload", "/usr/bin/setpriv", "/lib/x86_64-linux-gnu/libc.so.6", "/usr/lib/../bin/setpriv"],
)
async def test_a_task_is_refused_whose_files_would_stand_for_the_systems(
    lab: EngineLab, storage: Path, target: str
):
    server = await lab.start()
    entry = Entry(secret_files={target: "/mine/own.so\n"})
    await lab.launch(server, launch_of("id -u", view=view_of(storage), entry=entry))
    ended = await server.ended("w1.1")
    assert isinstance(ended, TaskEnded)
    assert ended.exit_code != 0
    assert os.path.normpath(target) in str(ended)


async def test_settings_of_the_kernel_are_read_only_and_folders_of_devices_can_be_looked_at(lab: EngineLab):
    server = await lab.start()
    command = 'ls /sys/class/net >/dev/null && echo seen; cat /proc/sys/kernel/ostype; grep " /proc/sys " /proc/mounts'
    await lab.launch(server, launch_of(command, view=View(uid=UID)))
    assert (await server.ended("w1.1")).exit_code == 0, server.log("w1.1")
    lines = server.log("w1.1").decode().splitlines()
    assert lines[:2] == ["seen", "Linux"]
    assert " ro," in lines[2]


async def test_tasks_run_when_the_nodes_folder_lies_below_one_that_is_shown_and_closed(tmp_path: Path):
    """As with HOME=/opt/owner: the view shows /opt, and in it a folder that only root may enter."""
    top = Path("/opt") / f"trainyard-test-{os.getpid()}"
    top.mkdir(mode=0o700)
    try:
        async with node_in(top) as lab:
            server = await lab.start()
            await lab.launch(server, launch_of("id -u", view=View(uid=UID)))
            ended = await server.ended("w1.1")
            assert (ended.exit_code, server.log("w1.1").decode()) == (0, f"{UID}\n")
    finally:
        shutil.rmtree(top, ignore_errors=True)
