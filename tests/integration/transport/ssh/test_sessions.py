"""Sharing a connection: sshd allows ten sessions on one, often fewer; nobody starves and nothing locks."""

from __future__ import annotations

import asyncio

import pytest

from sshd import Sshd
from trainyard.lib.errors import UnreachableError
from trainyard.transport import ssh_pool
from trainyard.transport.api import read_all

pytestmark = pytest.mark.ssh


@pytest.mark.slow  # 65 commands and at least three connections
@pytest.mark.parametrize("allowed", [1, 2, 3, 10])
async def test_fifty_runs_and_fifteen_spawns_work_when_sessions_are_few(sshds, reach, allowed: int):
    (host,) = sshds(1, settings=[f"MaxSessions {allowed}"])
    transport = reach(host)
    processes = await asyncio.gather(*(transport.spawn("cat") for _ in range(15)))

    async with asyncio.timeout(60):
        done = await asyncio.gather(*(transport.run(f"echo {number}") for number in range(50)))
        for number, process in enumerate(processes):
            await process.write(b"%d" % number)
            await process.write_eof()
        answers = await asyncio.gather(*(read_all(process) for process in processes))

    assert [each.stdout for each in done] == [b"%d\n" % number for number in range(50)]
    assert answers == [b"%d" % number for number in range(15)]
    assert [await process.wait() for process in processes] == [0] * 15


async def test_one_connection_is_enough_when_many_run_shortly(sshds, reach):
    (host,) = sshds(1, settings=["MaxSessions 10"])
    transport = reach(host)
    spawned = [await transport.spawn("cat") for _ in range(3)]

    await asyncio.gather(*(transport.run("true") for _ in range(40)))

    assert host.log.count("Accepted publickey") == 1
    for process in spawned:
        await process.terminate()


@pytest.mark.slow  # half a second of patience before another connection is opened
async def test_run_does_not_wait_for_ever_when_all_places_hold_long_commands(sshds, reach):
    (host,) = sshds(1, settings=["MaxSessions 10"])
    transport = reach(host)
    fifo = "mkfifo gate 2>/dev/null; cat gate >/dev/null"
    waiting = [asyncio.ensure_future(transport.run(fifo)) for _ in range(12)]

    async with asyncio.timeout(20):
        while len(host.pids()) < 12:
            await asyncio.sleep(0.01)
        assert (await transport.run("echo free")).stdout == b"free\n"
        assert await transport.spawn("true")

    for task in waiting:
        task.cancel()
    await asyncio.wait(waiting)


async def test_all_are_ended_when_many_are_cancelled_at_once(sshds, reach):
    (host,) = sshds(1, settings=["MaxSessions 10"])
    transport = reach(host)
    tasks = [asyncio.ensure_future(transport.run("sleep 1000")) for _ in range(8)]
    async with asyncio.timeout(20):
        while sum("sleep" in _name(pid) for pid in host.pids()) < 8:
            await asyncio.sleep(0.01)

    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)

    async with asyncio.timeout(10):
        while host.pids():
            await asyncio.sleep(0.01)
    assert host.log.count("Accepted publickey") == 1


async def test_commands_end_when_cancelled_on_a_host_with_one_session(sshds, reach):
    (host,) = sshds(1, settings=["MaxSessions 1"])
    transport = reach(host)

    with pytest.raises(TimeoutError):
        await transport.run("sleep 1000", timeout=0.3)

    async with asyncio.timeout(10):
        while host.pids():
            await asyncio.sleep(0.01)
    assert (await transport.run("echo fine")).stdout == b"fine\n"


async def test_refusal_is_told_when_the_host_allows_no_session(sshds, reach):
    (host,) = sshds(1, settings=["MaxSessions 0"])

    with pytest.raises(UnreachableError, match="opens no further session") as caught:
        await reach(host).run("true")

    assert "MaxSessions" in caught.value.hint


async def test_further_connections_close_when_nobody_uses_them(sshds, reach, monkeypatch):
    monkeypatch.setattr(ssh_pool, "IDLE_SECONDS", 0.05)
    (host,) = sshds(1, settings=["MaxSessions 10"])
    transport = reach(host)
    processes = [await transport.spawn("cat") for _ in range(20)]
    assert host.log.count("Accepted publickey") >= 3

    for process in processes:
        await process.write_eof()
        await process.wait()

    async with asyncio.timeout(10):
        while len(transport._pool._places) > 1:
            await asyncio.sleep(0.01)
    assert (await transport.run("echo fine")).stdout == b"fine\n"


@pytest.mark.slow  # 32 key exchanges on both sides
async def test_thirty_two_hosts_are_reached_at_once(sshds, reach):
    hosts = sshds(32)
    transports = [reach(host, name=f"host{number}") for number, host in enumerate(hosts)]

    done = await asyncio.gather(*(transport.run("printf %s $HOME") for transport in transports))

    assert [each.stdout.decode() for each in done] == [str(host.home) for host in hosts]


async def test_environment_of_the_transport_is_everywhere(sshd: Sshd, reach):
    transport = reach(sshd)
    transport._env["MARK"] = "a b"

    assert (await transport.run('printf %s "$MARK"')).stdout == b"a b"
    assert await read_all(await transport.spawn('printf %s "$MARK"')) == b"a b"
    assert (await transport.run('printf %s "$MARK"', env={"MARK": "mine"})).stdout == b"mine"


def _name(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm") as file:
            return file.read()
    except OSError:
        return ""
