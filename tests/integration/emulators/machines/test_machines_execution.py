"""Scripts run inside machines from outside, as Cloud Assistant's agent runs them."""

from __future__ import annotations

import asyncio

import pytest
from emulator_lab import living

import sshd as sshd_module
from trainyard.emulators.aliyun.machines import Isolation


@pytest.fixture
async def one(lab):
    await lab.machines.reconcile([lab.wish(user_data=b"")])
    await lab.user_data_log()
    return lab


async def test_status_and_output_come_back_when_a_script_ends(one):
    done = await one.machines.execute("i-test0", b"echo out; echo err >&2; pwd; exit 3")
    assert (done.status, done.problem) == (3, "")
    assert done.output.decode() == f"out\nerr\n{one.root()}/root\n"


async def test_the_script_has_its_own_language_when_it_names_one(one):
    done = await one.machines.execute("i-test0", "#!/bin/bash\na=(x 中文)\necho ${a[1]}".encode())
    assert done.output.decode() == "中文\n"


async def test_it_runs_elsewhere_or_not_at_all_when_a_folder_is_named(one):
    assert (await one.machines.execute("i-test0", b"pwd", working_dir="/usr")).output == b"/usr\n"
    assert (
        await one.machines.execute("i-test0", b"pwd", working_dir="/nowhere")
    ).problem == "DirectoryNotExists"


async def test_an_unknown_account_is_said_when_it_is_named(one):
    assert (await one.machines.execute("i-test0", b"id", user="nobody-knows")).problem == "AccountNotExists"
    if one.isolation is Isolation.ROOT:
        done = await one.machines.execute("i-test0", b"id -un; pwd", user="daemon", working_dir="/tmp")
        assert done.output == b"daemon\n/tmp\n"


@pytest.mark.parametrize("how", ["time", "event", "cancel"])
async def test_the_whole_tree_ends_when_time_or_patience_is_over(one, how, eventually):
    before = one.pids()
    event = asyncio.Event()
    script = (
        b"echo begun; sh -c 'trap \"\" TERM; sleep 900; sleep 901' & setsid sleep 902 & sleep 903; echo never"
    )
    task = asyncio.create_task(
        one.machines.execute("i-test0", script, timeout=0.5 if how == "time" else 60, cancelled=event)
    )
    if how != "time":
        await eventually(lambda: len(one.pids() - before) >= 5)
    mine = one.pids() - before
    if how == "cancel":
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    else:
        event.set() if how == "event" else None
        done = await task
        assert done.problem == ("ExecutionTimeout" if how == "time" else "Terminated")
        assert done.output == b"begun\n"
    await eventually(lambda: not living(mine))
    assert one.pids() <= before


async def test_it_ends_with_its_script_when_a_daemon_keeps_the_output(one):
    async with asyncio.timeout(20):
        done = await one.machines.execute("i-test0", b"tail -f /dev/null & echo done")
    assert done.output == b"done\n"
    names = [sshd_module.command_name(pid) for pid in one.pids()]
    assert "tail" in names  # it is the machine's now


async def test_much_output_is_counted_when_it_is_not_kept(one):
    done = await one.machines.execute("i-test0", b"head -c 3000000 /dev/zero")
    assert len(done.output) + done.dropped == 3_000_000
    assert len(done.output) == 1024 * 1024


async def test_the_state_is_said_when_the_machine_does_not_run(one):
    assert (await one.machines.execute("i-none", b"id")).problem == "InstanceNotExists"
    await one.machines.reconcile([one.wish(running=False)])
    assert (await one.machines.execute("i-test0", b"id")).problem == "InstanceNotRunning"


async def test_the_interruption_is_said_when_the_machine_goes_away_meanwhile(one, eventually):
    before = one.pids()
    task = asyncio.create_task(one.machines.execute("i-test0", b"sleep 905"))
    await eventually(lambda: len(one.pids() - before) >= 1)
    await one.machines.reconcile([])
    assert (await task).problem == "ExecutionInterrupted"


async def test_many_run_at_once_when_asked(one):
    done = await asyncio.gather(*(one.machines.execute("i-test0", b"echo %d" % n) for n in range(20)))
    assert [int(each.output) for each in done] == list(range(20))
