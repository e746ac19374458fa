from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from trainyard.lib.errors import CommandError
from trainyard.runtime.paths import MachinePaths
from trainyard.runtime.setup import ensure_installed
from trainyard.transport.local import LocalTransport

PATHS = MachinePaths("task0.a")


@pytest.fixture
async def machine(hostile_path):
    """A transport whose home has a hostile name."""
    transport = LocalTransport(hostile_path, {"HOME": str(hostile_path), "PATH": "/usr/bin:/bin"})
    yield transport, hostile_path
    await transport.aclose()


async def test_script_runs_once_when_the_job_is_made_twice(machine):
    transport, home = machine
    await ensure_installed(transport, PATHS, "echo ran >> log")
    await ensure_installed(transport, PATHS, "echo ran >> log")
    assert (home / "log").read_text() == "ran\n"


async def test_script_runs_again_when_it_has_changed(machine):
    transport, home = machine
    await ensure_installed(transport, PATHS, "echo one >> log")
    await ensure_installed(transport, PATHS, "echo two >> log")
    await ensure_installed(transport, PATHS, "echo one >> log")
    assert (home / "log").read_text() == "one\ntwo\none\n"


async def test_here_documents_and_continued_lines_stay_whole_when_run(machine):
    transport, home = machine
    script = "cat > log <<'END'\n  $HOME \\\n# not a comment\nEND\necho a \\\n  b >> log\n[[ -n $BASH ]] && echo bash >> log"
    await ensure_installed(transport, PATHS, script)
    assert (home / "log").read_text() == "  $HOME \\\n# not a comment\na b\nbash\n"


async def test_failure_is_told_and_tried_again_when_the_script_fails(machine):
    transport, home = machine
    script = "echo begun >> log; echo 'E: no package 中文' >&2; [ -e repaired ]\necho installed >> log"
    with pytest.raises(CommandError) as caught:
        await ensure_installed(transport, PATHS, script)
    assert caught.value.status == 1
    assert "no package 中文" in caught.value.output
    assert "task0.a" in caught.value.message
    assert (home / "log").read_text() == "begun\n"
    (home / "repaired").touch()
    await ensure_installed(transport, PATHS, script)
    await ensure_installed(transport, PATHS, script)
    assert (home / "log").read_text() == "begun\nbegun\ninstalled\n"


async def test_old_success_does_not_count_when_the_new_script_fails(machine):
    transport, home = machine
    await ensure_installed(transport, PATHS, "echo one >> log")
    with pytest.raises(CommandError):
        await ensure_installed(transport, PATHS, "exit 7")
    await ensure_installed(transport, PATHS, "echo one >> log")
    assert (home / "log").read_text() == "one\none\n"


async def test_script_runs_once_when_two_clients_make_the_job_at_once(machine):
    transport, home = machine
    await asyncio.gather(*(ensure_installed(transport, PATHS, "echo ran >> log") for _ in range(4)))
    assert (home / "log").read_text() == "ran\n"


async def test_script_gets_end_of_file_and_may_be_large_when_run(machine):
    transport, home = machine
    script = "cat > log; echo end >> log\n: <<'END'\n" + "x" * 200 + "\n" + "y\n" * 200_000 + "END\n"
    await ensure_installed(transport, PATHS, script)
    assert (home / "log").read_text() == "end\n"


async def test_lock_is_free_when_the_script_leaves_a_service_running(machine):
    transport, home = machine
    await ensure_installed(transport, PATHS, "sleep 300 >/dev/null 2>&1 </dev/null & echo $! > pid")
    pid = int((home / "pid").read_text())
    try:
        async with asyncio.timeout(10):
            await ensure_installed(transport, PATHS, "echo next > log")
    finally:
        await transport.run(f"kill {pid}")
    assert (home / "log").read_text() == "next\n"


async def test_files_of_the_script_have_usual_modes_when_made(machine):
    transport, home = machine
    await ensure_installed(transport, PATHS, "touch made")
    assert (home / "made").stat().st_mode & 0o777 == 0o644
    assert (Path(home) / PATHS.install_marker).stat().st_mode & 0o777 == 0o600


async def test_script_finds_what_the_profile_gives_when_run(machine):
    transport, home = machine
    (home / ".bashrc").write_text(
        "case $- in *i*) ;; *) return ;; esac\n"
        'export PATH="$HOME/conda/bin:$PATH"; echo greeting; echo grumble >&2; cd /\n'
    )
    (home / "conda/bin").mkdir(parents=True)
    (home / "conda/bin/tool").write_text("#!/bin/sh\necho tool > log\n")
    (home / "conda/bin/tool").chmod(0o755)
    await ensure_installed(transport, PATHS, "tool")
    assert (home / "log").read_text() == "tool\n"
    (home / ".profile").write_text(". ~/.bashrc\n")
    with pytest.raises(CommandError) as caught:
        await ensure_installed(transport, PATHS, "echo only this; exit 3")
    assert (caught.value.status, caught.value.output) == (3, "only this\n")


async def test_script_runs_when_the_profile_turns_into_another_program(machine):
    transport, home = machine
    (home / ".bashrc").write_text("exec true\n")
    await ensure_installed(transport, PATHS, "echo ran >> log")
    assert (home / "log").read_text() == "ran\n"
