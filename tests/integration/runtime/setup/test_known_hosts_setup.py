"""A job that is found again is not set up again, unless something of it is gone."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from lab import Lab
from trainyard.runtime.context import Context
from trainyard.runtime.job import Job, make_job

pytestmark = [pytest.mark.ssh, pytest.mark.slow]  # each makes a job on real sshds: sessions, keys, host files


@pytest.fixture
async def again(sshds, tmp_path) -> AsyncIterator[tuple[Callable[[], object], Lab]]:
    """Makes the job, or finds it, as a new client each time."""
    lab = Lab(tmp_path, sshds(2))
    jobs: list[Job] = []

    async def once() -> Job:
        jobs.append(await make_job(Context(backend=lab.backend()), name="bert", num_tasks=2))
        return jobs[-1]

    yield once, lab
    for job in jobs[:-1]:
        await job.aclose()
    await jobs[-1].kill()
    await lab.aclose()


def written(lab: Lab) -> list[tuple[Path, int]]:
    """What introducing writes, and when it was written."""
    names = (
        ".ssh/config",
        ".ssh/authorized_keys",
        ".trainyard/task*/rendezvous/*",
        ".trainyard/task*/introduced",
    )
    paths = [path for host in lab.sshds for name in names for path in host.home.glob(name)]
    return [(path, path.stat().st_mtime_ns) for path in sorted(paths)]


async def test_nothing_is_written_when_the_job_is_found_as_it_was(again):
    make, lab = again
    first = await make()
    before = written(lab)
    second = await make()

    assert len(before) == 2 * 9
    assert written(lab) == before
    assert second.peers == first.peers
    assert (await second.run("echo $NODE_RANK of $NNODES")) == ["0 of 2\n", "1 of 2\n"]


@pytest.mark.parametrize("lost", [".ssh/config", ".trainyard/keys/bert", ".trainyard/task1.bert/rendezvous"])
async def test_tasks_are_introduced_anew_when_something_was_taken_away(again, lost):
    make, lab = again
    await make()
    path = lab.sshds[1].home / lost
    if path.is_dir():
        path.rename(path.with_name("taken"))
    else:
        path.write_text("# all mine\n")
    await make()

    home = lab.sshds[1].home
    assert "task0.bert" in (home / ".ssh/config").read_text()
    assert (home / ".ssh/authorized_keys").read_text().count("trainyard-bert") == 2
    assert (home / ".trainyard/keys/bert/known_hosts").read_text().count("ssh-ed25519") == 2
    assert (home / ".trainyard/task1.bert/rendezvous/hostfile").read_text().count("slots=") == 2
